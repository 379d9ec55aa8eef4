"""Simulated comparisons, whose truth is known."""

import math

import numpy as np

from superadam_lab.comparison.records import Plan, Record, Results

BUDGET = 1000
ENVIRONMENT = {
    "command": "superadam compare digits-mlp --seeds 5",
    "began": "2026-11-16T07:00:00+0000",
    "superadam": "0.1.0",
    "torch": "2.13.0",
    "python": "3.13.0",
    "system": "Linux-6.1-x86_64",
    "cuda": None,
    "threads": 1,
}


def run(task, method, seed, losses, *, phase="report", trial=0, options=None, status="finished", evaluations=None):
    """A record with these validation losses, at equal distances."""
    places = evaluations or np.linspace(0, BUDGET, len(losses))
    rows = [
        {
            "epoch": float(e) / 100,
            "step": round(e),
            "gradient_evaluations": float(e),
            "seconds": float(e) / 50,
            "lr": 0.1,
            "train_loss": None if f is None else 0.9 * f,
            "train_accuracy": None if f is None else math.exp(-0.9 * f),
            "valid_loss": f,
            "valid_accuracy": None if f is None else math.exp(-f),
            "test_loss": None if f is None else 1.1 * f,
            "test_accuracy": None if f is None else math.exp(-1.1 * f),
        }
        for e, f in zip(places, losses, strict=True)
    ]
    return Record(task, method, phase, trial, options or {"lr": 0.1}, seed, status, rows)


def study(
    factors,
    *,
    tasks=("task",),
    seeds=5,
    noise=0.02,
    common=0.02,
    power=0.5,
    rows=41,
    trials=0,
    rng=None,
    baseline="adamw",
):
    """Losses 2 (1 + s e / 50)^-power, where e are evaluations and s the speed of a method: `factors` says for each
    how many times the evaluations of the baseline it needs. On a run lie two errors of the logarithm, one `common` to
    all methods that have its seed.
    """
    rng = rng or np.random.default_rng(0)
    places = np.linspace(0, BUDGET, rows)
    plan = Plan(list(tasks), list(factors), baseline, trials=trials, report_seeds=list(range(seeds)))
    records = []
    for task in tasks:
        for method, factor in factors.items():
            for trial in range(trials):
                lr = 3e-4 * (10 / 3e-4) ** ((trial + 0.5) / trials)
                penalty = 0.05 * math.log(lr / 0.1) ** 2
                losses = 2 * (1 + places / factor / 50) ** -power * math.exp(penalty)
                status = "finished" if lr < 3 else "diverged"
                losses = losses.tolist() if lr < 3 else [*losses[:5].tolist(), None]
                places_ = places.tolist() if lr < 3 else places[:6].tolist()
                records.append(
                    run(
                        task,
                        method,
                        1000,
                        losses,
                        phase="tune",
                        trial=trial,
                        options={"lr": lr},
                        status=status,
                        evaluations=places_,
                    )
                )
        shared = common * rng.standard_normal(seeds)
        for method, factor in factors.items():
            own = noise * rng.standard_normal(seeds)
            for seed in range(seeds):
                losses = 2 * (1 + places / factor / 50) ** -power * math.exp(shared[seed] + own[seed])
                records.append(run(task, method, seed, losses.tolist(), trial=trials * 5 // 9))
    return Results(plan, dict(ENVIRONMENT), records)
