"""Whole comparisons, tuning and all, whose runs are drawn and not trained."""

import math

import numpy as np

from studies import BUDGET, ENVIRONMENT
from superadam_lab.comparison.plan.jobs import complete, needed
from superadam_lab.comparison.records import Plan, Results


def plan(methods, *, tasks=("task",), **more):
    budgets = dict.fromkeys(tasks, BUDGET)
    return Plan(list(tasks), list(methods), next(iter(methods)), budget_evals=budgets, **{"trials": 9, **more})


def drawn(job, truth, noise, cost, common, rng):
    """A run whose final loss has a factor of the method and a best lr; a longer run has a lower loss and a smaller one.

    Errors of the logarithm: one for the seed, common to all methods, and one of the run.
    """
    steps = BUDGET if job.amount is None else job.amount
    evaluations = steps * cost(job.method)[0] if job.budget == "epochs" else steps
    lr, best = dict(job.options)["lr"], 0.05 * (BUDGET / evaluations) ** 0.3
    worse = 0.03 * math.log(lr / best) ** 2
    error = common[job.seed] + noise[job.phase] * rng.standard_normal()
    places = np.linspace(0, evaluations, 6)
    losses = 2 * (1 + places / 50) ** -0.5 * math.exp(worse + math.log(truth.get(job.method, 1.0)) + error)
    rows = [
        {
            "epoch": e / 100,
            "step": round(e / cost(job.method)[0]),
            "gradient_evaluations": round(e),
            "seconds": e / 50 * cost(job.method)[1],
            "lr": lr,
            "train_loss": 0.9 * f,
            "valid_loss": f,
        }
        for e, f in zip(places.tolist(), losses.tolist(), strict=True)
    ]
    return job.record("finished", rows)


def carried_out(plan, truth, *, noise=0.02, tuning=None, shared=0.02, cost=lambda method: (1, 1.0), rng=None):
    """The results. `truth` has the factor of each method's loss, `cost` gradients of a batch and seconds of a gradient,
    `tuning` the noise of trials, if it is another."""
    noise = {"report": noise, "tune": noise if tuning is None else tuning}
    rng = rng or np.random.default_rng(0)
    common = dict(zip([*plan.tuning_seeds, *plan.report_seeds], shared * rng.standard_normal(200), strict=False))
    records = []
    while not complete(plan, records):
        done = {(r.task, r.method, r.phase, r.trial, r.seed, r.budget, r.amount) for r in records}
        for job in needed(plan, records):
            if (job.task, job.method, job.phase, job.trial, job.seed, job.budget, job.amount) not in done:
                records.append(drawn(job, truth, noise, cost, common, rng))
    return Results(plan, dict(ENVIRONMENT), records)
