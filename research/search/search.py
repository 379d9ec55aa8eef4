"""The search for a composition that trains faster than tuned AdamW: what is tried, on which tasks, in which order.

    python -m research.search.search ROUND... --data-dir DIR [--out FOLDER] [--jobs N]   # runs, and data/ROUND.json.gz
    python -m research.search.search            # the tables of README.md, from these files
    python -m research.search.search --check    # fails if they are not what would be written

A round is some comparisons by the referee (`superadam compare`), each in a folder of its own: what was stopped goes on.
All methods have 5 % warm-up and a cosine, but schedule-free ones. Each has the same number of trials, on a tuning seed,
and then runs with other seeds. The tasks of ../locked/locked_tasks.py have no part in it but in the last round, which
came after their test; those of ../locked/locked_*_tasks.py have none at all. DIR holds CIFAR-10 and WikiText-2.
"""

import argparse
import dataclasses
import functools
import itertools
import json
import math
import shlex
import sys
from collections.abc import Callable
from pathlib import Path
from statistics import fmean, median
from typing import Any

import superadam_lab as lab
from research import kept
from superadam_lab import bench
from superadam_lab.comparison.records import Budget, Results, final
from superadam_lab.tasks import find

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[1]
DATA = HERE / "data"
PAGES = (HERE / "README.md", HERE.parent / "sensitivity" / "README.md")

NAME = "SUPER-ADAM⁺"
ADAMW = "adamw lr=3e-4:0.1 betas.1=0.9:0.999"
NESTEROV = 'estimator={"type": "Nesterov"}'
PUBLISHED = "layers=[]"  # SOAP as published has factors for embeddings, too
FIVE = "precondition_frequency=5"
SOAP = f"soap {PUBLISHED} betas=[0.9,0.99] {FIVE} one_sided_above=300 lr=1e-3:0.1"
BASE = f"{SOAP} {NESTEROV}"
GRAFT = 'grafting={"type": "SecondMoment", "beta": 0.99, "lam": 1e-8, "bias_correction": true}'


def corrected(**options: Any) -> str:
    """MARS's estimator."""
    return "estimator=" + json.dumps({"type": "Mars", **options})


MUON = "Muon of torch, AdamW"
PEERS = {
    "NAdamW": "nadamw betas=[0.9,0.99] lr=3e-4:0.1",
    "schedule-free AdamW": "schedule_free_adamw decay=none weight_decay=0.01 lr=1e-3:0.1",
    MUON: "torch.optim.Muon lr=1e-3:0.3 weight_decay=0.01 + torch.optim.AdamW lr=3e-4:0.1",
    "SOAP": f"soap {PUBLISHED} lr=1e-3:0.1",
}


def fixed(lr: float) -> str:
    """With one learning rate: bounds that leave no choice."""
    return f"super_adam_plus lr={lr}:{1.000001 * lr:.9g}"


ESTIMATORS = {
    "momentum": SOAP,
    "Nesterov": BASE,
    "Nesterov, β₁ = 0.95": BASE.replace("[0.9,", "[0.95,"),
    "ahead": f"{SOAP} iterate=Nigt",
    "previous batch, τ = 0.2": f"{SOAP} {corrected(tau=0.2, alpha=0.1, bound=None, previous_batch=True)}",
    "τ = 0.025": f"{SOAP} tau=0.025",
    "τ = 0.1": f"{SOAP} tau=0.1",
    "τ = 1": f"{SOAP} tau=1",
    "MARS": f"{SOAP} {corrected(tau=0.025, alpha=0.1)}",
    "τ = 1 in the last fifth": f"{SOAP} taus=[[0.8, 1]]",
}
"""With SOAP's matrix, refreshed every 5 steps."""

MATRICES = {
    "second moment": f"adamw betas=[0.9,0.99] lr=3e-4:0.1 {NESTEROV}",
    "spectral": "muon lr=1e-3:0.3 weight_decay=0.01 adjust_lr_fn=match_rms_adamw beta2=0.99 momentum=0.9",
    "KL-Shampoo": f"kl_shampoo {PUBLISHED} betas=[0.9,0.99] {FIVE} one_sided_above=300 lr=1e-3:0.1 {NESTEROV}",
    "Shampoo, one-sided, grafted": f"shampoo {PUBLISHED} betas=[0.9,0.99] {FIVE} lr=3e-4:0.1 {GRAFT} {NESTEROV}",
    "PSGD": f"psgd_kron {PUBLISHED} weight_decay=0.01 lr=1e-4:0.03 {NESTEROV}",
    "SOAP, every step": BASE.replace("frequency=5", "frequency=1"),
    "SOAP, every 20": BASE.replace("frequency=5", "frequency=20"),
    "SOAP, two-sided": BASE.replace("above=300", "above=10000"),
    "SOAP, β₂ = 0.95": BASE.replace("0.99]", "0.95]"),
    "SOAP, β₂ = 0.999": BASE.replace("0.99]", "0.999]"),
    "SOAP, λ = 1e-5": f"{BASE} eps=1e-5",
    "SOAP, λ = 5e-4": f"{BASE} eps=5e-4",
    "SOAP, weight decay 0.1": f"{BASE} weight_decay=0.1",
}
"""With Nesterov's momentum in one buffer."""


def divided(layers: list[str], rate: float = 1.0, above: int = 300) -> str:
    """SOAP's matrix for all but some layers, which have Adam's."""
    first = {"type": "SOAP", "beta": 0.99, "every": 5, "one_sided_above": above}
    others = {"type": "SecondMoment", "beta": 0.99, "lam": 1e-8, "bias_correction": True}
    matrix = {"type": "ByShape", "first": first, "otherwise": others, "layers": layers, "rate": rate}
    return f"{BASE} matrix={json.dumps(matrix)}"


EMBEDDINGS = ["Embedding", "EmbeddingBag"]
DIVISIONS = {
    "embeddings by Adam": divided(EMBEDDINGS),
    "embeddings and head by Adam": divided([*EMBEDDINGS, "head"]),
    "the same, a third of the rate": divided([*EMBEDDINGS, "head"], 1 / 3),
    "embeddings by Adam, one-sided": divided(EMBEDDINGS, above=0),
    "MARS-M": "mars_m lr=1e-3:0.3 weight_decay=0.01",
}
"""With Nesterov's momentum and SOAP's matrix for the others; and the best of the table of the matrix family."""

SIDES = {
    "one-sided": BASE.replace("above=300", "above=0"),
    "one-sided above 100": BASE.replace("above=300", "above=100"),
    "one-sided, β₂ = 0.95": BASE.replace("above=300", "above=0").replace("0.99]", "0.95]"),
    "one-sided, momentum": SOAP.replace("above=300", "above=0"),
}
"""Which sides of a matrix have factors: a factor of the longer side takes most of the time."""

ITERATES = {
    "schedule-free": f'{SOAP} iterate={{"type": "ScheduleFree"}} decay=none',
    "EMA of x": f'{BASE} iterate={{"type": "Averaged", "decay": 0.99}}',
}

AFTER = {
    "sides to 300": "super_adam_plus betas=[0.9,0.99] one_sided_above=300 lr=1e-3:0.1",
    "sides to 300, β₁ = 0.95": "super_adam_plus betas=[0.95,0.99] one_sided_above=300 lr=1e-3:0.1",
    "sides to 300, β₁ = β₂ = 0.95": "super_adam_plus betas=[0.95,0.95] one_sided_above=300 lr=1e-3:0.1",
}
"""What SOAP had, and the composition of the search had not, on two tasks where it was behind SOAP."""

WIDE = {"trials": 7, "seeds": 3}  # more of both, and learning rates up to 0.3
FINALISTS = {
    NAME: "super_adam_plus lr=1e-3:0.3",
    f"{NAME}, every 10": "super_adam_plus precondition_frequency=10 lr=1e-3:0.3",
    f"{NAME}, Muon's matrix": "muon lr=1e-3:0.3 weight_decay=0.01 adjust_lr_fn=match_rms_adamw beta2=0.95",
    "NAdamW": "nadamw betas=[0.9,0.99] lr=3e-4:0.1",
    "schedule-free AdamW": "schedule_free_adamw decay=none weight_decay=0.01 lr=1e-3:0.3",
    MUON: "torch.optim.Muon lr=1e-3:0.3 weight_decay=0.01 + torch.optim.AdamW lr=3e-4:0.1",
    "SOAP": f"soap {PUBLISHED} lr=1e-3:0.3",
}
"""Today's composition, with two changes that make its step cheaper, and the peers."""
EIGHT: dict[tuple[str, ...], dict[str, Any]] = {
    **{(task,): {"budget_evals": 480} for task in ("digits-autoencoder", "digits-vit", "digits-mlp", "pinn-poisson")},
    ("ratings",): {},
    ("pydoc-transformer",): {"budget_evals": 250},
    ("cifar10-resnet18",): {"budget_evals": 150, "without": (MUON,)},  # torch's takes no kernels of convolutions
    ("wikitext2-transformer",): {"budget_evals": 300},
}
WITH_EMBEDDINGS = [("pydoc-transformer",), ("wikitext2-transformer",), ("ratings",)]
ON_EMBEDDINGS = {
    NAME: "super_adam_plus lr=1e-3:0.3",
    f"{NAME}, factors for embeddings": "super_adam_plus layers=[] lr=1e-3:0.3",
    f"{NAME}, embeddings at 3 times the rate": "super_adam_plus rate=3 lr=1e-3:0.3",
    f"{NAME}, embeddings at a third of the rate": "super_adam_plus rate=0.3333 lr=1e-3:0.3",
    f"{NAME}, head by Adam, too": 'super_adam_plus layers=["Embedding","EmbeddingBag","head"] lr=1e-3:0.3',
    "SOAP": f"soap {PUBLISHED} lr=1e-3:0.3",
    MUON: FINALISTS[MUON],
}
"""Which layers have factors where most parameters are embeddings: on these tasks the composition is not ahead."""
BETAS = {
    f"β₁ = {one}, β₂ = {two}": f"super_adam_plus betas=[{one},{two}] lr=1e-3:0.3"
    for one, two in ((0.9, 0.95), (0.9, 0.99), (0.95, 0.95), (0.95, 0.99), (0.95, 0.98))
}
"""How long the averages are. The first test had changed them by what two tasks said."""
AN_LSTM = {("pydoc-lstm",): {"scale": "tiny", "sizes": {"words": 40000, "epochs": 1}}}
VARIANCE = {
    NAME: "super_adam_plus lr=1e-4:0.3",
    **{
        f"SOAP, τ = {tau}, λ = {lam}": f"soap {PUBLISHED} betas=[0.5,0.95] {FIVE} tau={tau} eps={lam} lr=1e-4:0.3"
        for tau, lam in itertools.product((0.1, 1), (1e-8, 5e-4))
    },
    **{f"Muon, τ = 1, α = {alpha}": f"limuon alpha={alpha} lr=1e-4:0.3" for alpha in (0.5, 0.1)},
}
"""Variance reduction with the weights that suit it: a large α, a λ that is not tiny, small learning rates as well."""
QUICK = ("digits-autoencoder", "digits-vit", "ratings", "logistic-sparse")
COMMON = {"warmup": 0.05, "trials": 5, "seeds": 2, "first_seed": 900, "halving": 3}


@dataclasses.dataclass
class Round:
    """What is compared, on groups of tasks that need different options."""

    methods: dict[str, str]
    tasks: dict[tuple[str, ...], dict[str, Any]]
    common: dict[str, Any] = dataclasses.field(default_factory=lambda: COMMON)
    baseline: str = f"AdamW: {ADAMW}"

    def run(self, name: str, out: Path, jobs: int | None, data_dir: str | None) -> list[Results]:
        """All of it. What is there is not made again, nor what another round has run with the same options."""
        found = []
        for tasks, options in self.tasks.items():
            options = dict(options)
            without = options.pop("without", ())
            chosen = [f"{called}: {method}" for called, method in self.methods.items() if called not in without]
            own = "task_file" in options
            more = {"data_dir": data_dir} if not own and any(find(task).needs_data for task in tasks) else {}
            print(name, *tasks, flush=True)
            folder = out / "-".join([name, *tasks])
            earlier = [str(f) for f in sorted(out.glob("*")) if f != folder and (f / "results.json").exists()]
            given = {**self.common, **options, **more, "baseline": self.baseline}
            if "equal" not in given:  # equal seconds are measured, not taken from other rounds
                given["reuse"] = earlier
            found.append(lab.compare(tasks, chosen, jobs=jobs, out=folder, **given))
            if own:
                found[-1].plan.task_file = str(options["task_file"].relative_to(ROOT))
        return found


ROUNDS = {
    "estimators": Round(ESTIMATORS, {(task,): {} for task in QUICK}),
    "matrices": Round(MATRICES, {(task,): {} for task in QUICK if task != "digits-vit"}),
    "iterates": Round(ITERATES, {(task,): {} for task in QUICK if task != "digits-vit"}),
    "sides": Round(SIDES, {(task,): {} for task in QUICK[:-1]}),
    "divisions": Round(DIVISIONS, {(task,): {} for task in QUICK[:-1]}),
    # No trial is stopped early, and each learning rate has three seeds: how much it matters.
    "learning rates": Round(
        {NAME: "super_adam_plus lr=5e-4:0.2"},
        EIGHT | {("digits-cnn",): {}, ("logistic-sparse",): {}},
        {"warmup": 0.05, "trials": 7, "tuning_seeds": 3, "seeds": 3, "first_seed": 900},
        "AdamW: adamw lr=5e-4:0.2",
    ),
    # The default, a quarter more, and a rate that was best of six on two of these tasks, on seeds of their own.
    "defaults": Round(
        {f"lr = {lr:g}": fixed(lr) for lr in (0.0125, 0.038)},
        {(task,): {} for task in ("logistic-sparse", "digits-cnn")}
        | {(task,): {"budget_evals": 480} for task in ("digits-mlp", "digits-vit")},
        {"warmup": 0.05, "trials": 1, "seeds": 5, "first_seed": 910},
        f"lr = 0.01: {fixed(0.01)}",
    ),
    # The default learning rate with a warm-up and without, before a cosine and before none.
    **{
        f"warm-up {part:g}": Round(
            {"no decay": f"{fixed(0.01)} decay=none"},
            {(task,): {"budget_evals": 200} for task in ("digits-mlp", "digits-autoencoder", "ratings")}
            | {("pydoc-transformer",): {"budget_evals": 100}},
            {"scale": "tiny", "warmup": part, "trials": 1, "seeds": 3, "first_seed": 910},
            f"cosine: {fixed(0.01)}",
        )
        for part in (0, 0.05)
    },
    "finalists": Round(FINALISTS, EIGHT, {**COMMON, **WIDE, "equal": ["seconds"]}),
    "betas": Round(BETAS, AN_LSTM | EIGHT, {**COMMON, **WIDE, "tuning_seeds": 2, "seeds": 4}),
    "embeddings": Round(ON_EMBEDDINGS, {task: EIGHT[task] for task in WITH_EMBEDDINGS}, {**COMMON, **WIDE}),
    **{
        f"batches of {batch}": Round(
            FINALISTS,
            {
                (task,): {"budget_evals": 480, "sizes": {"batch": batch}}
                for task in ("digits-autoencoder", "digits-vit")
            },
            {**COMMON, **WIDE},
        )
        for batch in (8, 256)
    },
    "variance reduction": Round(
        VARIANCE,
        {(task,): {"budget_evals": 480} for task in ("digits-autoencoder", "digits-vit", "digits-mlp", "pinn-poisson")},
        {**COMMON, **WIDE},
    ),
    "after the first test": Round(
        AFTER,
        {("locked-denoising", "locked-series"): {"task_file": HERE.parent / "locked" / "locked_tasks.py"}},
        {**COMMON, "first_seed": 400},
        f"SOAP: {PEERS['SOAP']}",
    ),
}


# ------------------------------------------------------------------------------------------------ what is kept


def write(name: str, found: list[Results]) -> None:
    kept.write(DATA / f"{name}.json.gz", found, f"python -m research.search.search {shlex.quote(name)}")


def read(name: str) -> list[Results]:
    return kept.read(DATA / f"{name}.json.gz")


# ------------------------------------------------------------------------------------------------ tables


def against(results: Results, task: str, method: str, budget: Budget = "gradients") -> tuple[float, float]:
    """Final validation loss over the baseline's with the same seed, and what part of the baseline's gradients, or of
    its seconds, a run takes to the baseline's median final loss, the median of the seeds."""
    plan, runs = results.plan, {}
    for record in results.under(budget).records:
        if record.task == task and record.phase == "report":
            runs[record.method, record.seed] = record
    ours, theirs = ({seed: runs[m, seed] for seed in plan.report_seeds} for m in (method, plan.baseline))
    target = median(final(record, "valid_loss") for record in theirs.values())
    ends = [(final(ours[s], "valid_loss"), final(theirs[s], "valid_loss")) for s in plan.report_seeds]
    ratio = math.exp(fmean(math.log(mine / other) for mine, other in ends))
    axis, parts = "seconds" if budget == "seconds" else "gradient_evaluations", []
    for seed in plan.report_seeds:
        there = [row[axis] for row in ours[seed].rows if row["valid_loss"] <= target]
        parts.append(there[0] / theirs[seed].rows[-1][axis] if there else math.inf)
    return ratio, median(parts)


def table(name: str, budget: Budget = "gradients") -> str:
    """Methods by the mean of their losses over the tasks."""
    found = [(results, task) for results in read(name) for task in results.plan.tasks]
    methods = list(found[0][0].plan.methods)
    cells = {
        m: [against(results, task, m, budget) for results, task in found if m in results.plan.methods] for m in methods
    }
    means = {m: math.exp(fmean(math.log(ratio) for ratio, _ in cells[m])) for m in methods}
    rows = []
    for m in sorted(methods, key=lambda m: (len(cells[m]) < len(found), means[m])):  # means over all tasks first
        told = iter(f"{ratio:.3f} ({part:.2f})" for ratio, part in cells[m])
        mean = f"{means[m]:.3f}" if len(cells[m]) == len(found) else "–"
        rows.append([m, *(next(told) if m in results.plan.methods else "–" for results, _ in found), mean])
    return bench.Table("", ["", *(f"`{task}`" for _, task in found), "mean"], rows).markdown()


def pages() -> dict[Path, str]:
    """The pages with their tables as they should be."""
    texts = {path: path.read_text(encoding="utf-8") for path in PAGES}
    made: dict[str, Callable[[], str]] = {name: functools.partial(table, name) for name in ROUNDS}
    made |= {f"{name}, equal seconds": functools.partial(table, name, "seconds") for name in ROUNDS}
    for path, name in itertools.product(PAGES, made):
        if f"<!-- round: {name} -->" in texts[path]:
            texts[path] = kept.filled(texts[path], f"round: {name}", made[name]())
    return texts


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("rounds", nargs="*", metavar="ROUND", help=", ".join(ROUNDS))
    parser.add_argument("--data-dir")
    parser.add_argument("--out", type=Path, default=ROOT / "search")
    parser.add_argument("--jobs", type=int)
    parser.add_argument("--check", action="store_true")
    args = parser.parse_args()
    for name in args.rounds:
        write(name, ROUNDS[name].run(name, args.out, args.jobs, args.data_dir))
        print(f"\n{name}\n\n{table(name)}\n")
    if args.check:
        sys.exit(any(text != path.read_text(encoding="utf-8") for path, text in pages().items()))
    for path, text in pages().items():
        path.write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
