"""The project's leaderboard: methods of the zoo and of other packages on ten embedded tasks, at tiny scale.

    python -m research.leaderboard.leaderboard --size    # how many runs and gradient evaluations that is; runs nothing
    nohup nice -n 19 python -m research.leaderboard.leaderboard > leaderboard.log 2>&1 &    # in the background
    kill %1                                 # stops it; the same command goes on, and makes no run twice
    python -m research.leaderboard.leaderboard --stop-after 30    # in pieces of 30 minutes
    python -m research.leaderboard.leaderboard --write   # all files from the runs; runs nothing
    python -m research.leaderboard.leaderboard --check   # fails if README.md says something else than leaderboard.csv

One folder for each task is below --out. The page is written after each task. Methods that are new are added to the runs
that are there. Packages that are not installed are left out, and so is a method that cannot be made for a task. Run it
in a clone of its own: if superadam's code changes meanwhile, later runs use the new code, and the page says so.
"""

import argparse
import csv
import html
import importlib.util
import re
import signal
import sys
from pathlib import Path
from statistics import fmean

import torch

import superadam_lab as lab
from research.kept import filled
from superadam import create, list_methods
from superadam_lab.comparison import leaderboard
from superadam_lab.comparison.engine import plan_size
from superadam_lab.comparison.options import Options
from superadam_lab.comparison.plan.budgets import kept, rungs
from superadam_lab.comparison.plan.planning import plan_of
from superadam_lab.methods.by_name import label, make
from superadam_lab.methods.specs import read
from superadam_lab.tasks import find

SITE = Path(__file__).resolve().parent
ROOT, PAGE = SITE.parents[1], SITE / "README.md"
TITLE = "superadam: leaderboard"
TASKS = (
    "digits-mlp",
    "digits-cnn",
    "digits-autoencoder",
    "digits-vit",
    "pydoc-lstm",
    "pydoc-transformer",
    "ratings",
    "pinn-poisson",
    "logistic-nonconvex",
    "logistic-sparse",
)
FORMS = {  # other forms of a method than its defaults
    "schedule_free_adamw": ("schedule_free_adamw decay=none",),
    "super_adam": ("super_adam", "super_adam tau=1"),
}
PEERS = {  # and their default learning rates
    "torch.optim.Muon + torch.optim.AdamW": 1e-3,
    "pytorch_optimizer:SOAP": 3e-3,
    "pytorch_optimizer:Lion": 1e-4,
    "schedulefree:AdamWScheduleFree decay=none": 2.5e-3,
    "heavyball:SOAP": 2.5e-3,
}
LONGER = {  # at tiny scale these tasks have a dozen batches: nothing to see
    "pydoc-lstm": {"words": 3000, "epochs": 4},
    "pydoc-transformer": {"words": 3000, "epochs": 4},
    "logistic-nonconvex": {"rows": None, "epochs": 10},
}


BASELINE = "adamw"


def ranged(method, lr):
    """The method with its range of learning rates: from a tenth to a hundred times its default, for all alike."""
    first, plus, second = method.partition(" + ")
    return f"{first} lr={lr / 10:g}:{lr * 100:g}{plus}{second}"


def candidates():
    """All methods of the zoo and of other packages; the baseline first."""
    found = []
    for name in [BASELINE, *(name for name in list_methods() if name != BASELINE)]:
        lr = create(name, torch.nn.Linear(2, 2)).param_groups[0]["lr"]
        found += [ranged(form, lr) for form in FORMS.get(name, (name,))]
    for peer, lr in PEERS.items():
        if importlib.util.find_spec(peer.partition(":")[0].partition(".")[0]):
            found.append(ranged(peer, lr))
        else:
            print(f"{peer} is not installed, and left out")
    return found


def fits(task, method):
    """Whether the method can be made for the task: Muon needs hidden matrices, for one."""
    try:
        make(find(task), find(task).workload("tiny", 0), method, "lab", {"lr": 0.01})
    except (TypeError, ValueError) as error:
        print(f"{method} is left out on {task}: {error}")
        return False
    return True


def asked(given, methods, task):
    """What is compared on a task."""
    rules = {"scale": given.scale, "trials": given.trials, "seeds": given.seeds, "halving": 3, "run_seconds": 600}
    rules |= {"warmup": 0.05, "baseline": methods[0], "no_reuse": True}
    sizes = LONGER.get(task) if given.scale == "tiny" else None
    more = {"budget_evals": given.budget_evals, "sizes": sizes, "jobs": given.jobs, "out": given.out / task}
    return {"tasks": [task], "methods": [m for m in methods if fits(task, m)], **rules, **more}


def size(given, methods):
    """How many runs and gradient evaluations there are in all."""
    runs = evaluations = 0
    for task in given.tasks or TASKS:
        plan = plan_of(Options(**asked(given, methods, task)))
        trials, whole = plan.trials, plan.budget_evals[task]
        each = len(plan.report_seeds) * whole
        for amount in rungs(plan, task):
            each += trials * (amount or whole)
            trials = trials if amount is None else kept(plan, trials)
        runs, evaluations = runs + plan_size(plan), evaluations + len(plan.methods) * each
        print(f"{task}: {len(plan.methods)} methods, {plan_size(plan)} runs, {len(plan.methods) * each:,} evaluations")
    print(f"In all {runs:,} runs with {evaluations:,} gradient evaluations")


# ------------------------------------------------------------------------------------------------ what the docs say


def about(site):
    """What README.md says of the leaderboard: read from its two files, so that it is true."""
    with (site / "leaderboard.csv").open(encoding="utf-8") as file:
        rows = list(csv.DictReader(file))
    methods, tasks = (list(dict.fromkeys(row[key] for row in rows)) for key in ("method", "task"))
    made = re.findall(r"<dt>(.*?)</dt><dd>(.*?)</dd>", (site / "index.html").read_text(encoding="utf-8"))
    baseline = next(row["method"] for row in rows if row["outcome"] == "baseline")
    foreign = [method for method in methods if read(method)[0].foreign]
    ours = [method for method in methods if method not in (*foreign, baseline)]
    return "\n".join(
        [
            f"[The project's leaderboard](index.html) has {len(methods)} methods on {len(tasks)} tasks. "
            f"The baseline is {label(unranged(baseline))}.",
            "",
            f"- {_listed('the zoo', ours)}",
            f"- {_listed('other packages', foreign)}",
            "",
            "The ten lowest mean ranks, SUPER-ADAM⁺ and the baseline. Scores are from 0 to 1, higher is better:",
            "",
            *_best(rows, baseline),
            "",
            "| task | how it was made |",
            "|---|---|",
            *(f"| `{html.unescape(task)}` | {html.unescape(text)} |" for task, text in made),
        ]
    )


def _best(rows, baseline, many=10):
    """A table of the methods with the lowest ranks, and of two more."""
    means = {}
    for method in dict.fromkeys(row["method"] for row in rows):
        own = [row for row in rows if row["method"] == method]
        keys = ("mean_rank", "score_gradient_evaluations", "score_seconds")
        means[method] = [fmean(float(row[key]) for row in own if row[key]) for key in keys]
    order = sorted(means, key=means.__getitem__)
    shown = [m for i, m in enumerate(order) if i < many or m == baseline or m.startswith("super_adam_plus ")]
    lines = ["| place | method | mean rank | score in gradients | score in seconds |", "|---|---|---|---|---|"]
    for method in shown:
        rank, gradients, seconds = means[method]
        name = " + ".join(part.split(" lr=")[0] for part in method.split(" + "))
        lines.append(f"| {order.index(method) + 1} | `{name}` | {rank:.1f} | {gradients:.2f} | {seconds:.2f} |")
    return lines


def _listed(where, methods):
    if not methods:
        return f"From {where}: no method yet."
    return f"From {where}, {len(methods)}: {', '.join(f'`{unranged(method)}`' for method in methods)}."


def unranged(method):
    """Without its range of learning rates."""
    return re.sub(r" lr=\S+:\S+", "", method)


def page():
    """README.md with what is `about` the leaderboard between its marks."""
    return filled(PAGE.read_text(encoding="utf-8"), "leaderboard: research/leaderboard/leaderboard.py", about(SITE))


def write(given):
    """The page of all tasks that are there; if it is the project's, what the docs say of it, too."""
    there = [given.out / task for task in TASKS if (given.out / task / "results.json").is_file()]
    if there:
        for note in leaderboard.write(there, given.site, TITLE).notes:
            print(f"Note: {note}.")
        print(given.site / "index.html", flush=True)
    if given.site.resolve() == SITE:
        PAGE.write_text(page(), encoding="utf-8")


# ------------------------------------------------------------------------------------------------ running it


def options():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tasks", action="append", choices=TASKS)
    parser.add_argument("--methods", action="append")
    parser.add_argument("--scale", default="tiny")
    parser.add_argument("--trials", type=int, default=7)
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--budget-evals", type=int)
    parser.add_argument("--jobs", type=int, default=1)
    parser.add_argument("--stop-after", type=float, metavar="MINUTES")
    parser.add_argument("--out", type=Path, default=Path("leaderboard"))
    parser.add_argument("--site", type=Path, default=SITE)
    for name in ("--size", "--write", "--check"):
        parser.add_argument(name, action="store_true")
    return parser


def stop(number, frame):
    raise KeyboardInterrupt


def main(args=None):
    given = options().parse_args(args)
    if given.check:
        sys.exit(page() != PAGE.read_text(encoding="utf-8"))
    if given.write:
        write(given)
        return
    methods = given.methods or candidates()
    if given.size:
        size(given, methods)
        return
    signal.signal(signal.SIGTERM, stop)
    if given.stop_after:
        signal.signal(signal.SIGALRM, stop)
        signal.setitimer(signal.ITIMER_REAL, 60 * given.stop_after)
    tasks = given.tasks or TASKS
    try:
        for i, task in enumerate(tasks, start=1):
            lab.compare(**asked(given, methods, task))
            print(f"{task}: done, {i} of {len(tasks)}", flush=True)
            write(given)
    except KeyboardInterrupt:
        print("Stopped: the same command goes on, and no run that is done is made again")
        signal.setitimer(signal.ITIMER_REAL, 0)
        write(given)


if __name__ == "__main__":
    main()
