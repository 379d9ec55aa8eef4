"""Choose the learning rates of lab/src/superadam_lab/settings.py: those of the paper's methods at laptop scale.

All methods of a task have the same grid, the same weights to start from, and the same gradient evaluations: a 16th of
those that the epochs of the scale have, for every second of it from 0.001 to 10; then a third, for the best of these
and its neighbours, and on from there until both neighbours are worse. (A sixth, not a 16th, for texts.) It is
validation loss that counts (training loss where there is nothing to validate on). The seed is for this alone.

    python -m research.lab_results.lab_settings [TASK...] [--data-dir DIR] [--out FOLDER]

prints the lines of LAPTOP. FOLDER keeps what was found, and what is there is not computed again.
"""

import argparse
import functools
import json
import math
import tempfile
from pathlib import Path

import torch

from superadam_lab import data
from superadam_lab.methods.by_name import PAPER
from superadam_lab.runs.folders import Config, Folder, rows
from superadam_lab.runs.training import Run
from superadam_lab.tasks import find

EMBEDDED = ("digits-mlp", "digits-cnn", "pydoc-lstm", "pydoc-transformer", "logistic-nonconvex")
CONSTRAINED = ("simplex-regression", "nmf")
GRID = (3e-4, 1e-3, 3e-3, 1e-2, 3e-2, 1e-1, 3e-1, 1.0, 3.0, 10.0, 30.0, 100.0)
FIRST = GRID[1:10:2]
PARTS, OF_TEXTS = (16, 3), (6, 3)  # for long, a language model learns no more than how common words are
SEED = 1000


def lean(run):
    """Measure what is asked for alone: nearly all of the time of a short run would go into the rest."""
    workload = run.workload
    workload.splits = tuple(split for split in workload.splits if split != "test")
    workload.full_gradient_norm = lambda: math.nan
    if "valid" in workload.splits and hasattr(workload, "measured"):
        few = workload.measured["train"]
        workload.measured["train"] = few[:1] if isinstance(few, list) else few.take(slice(100))
    return run


def loss(task, method, lr, evaluations, root):
    """Infinite if the run does not end well; None if there is no such run."""
    options = {"preset": "default", "options": {"lr": lr}, "seed": SEED, "data_dir": root}
    with tempfile.TemporaryDirectory() as place:
        folder = Folder.new(f"{place}/run", Config(task, method, budget_evals=evaluations, **options))
        try:
            run = lean(Run(folder))
        except ValueError:
            return None
        try:
            ended = run.train()
        except (RuntimeError, ValueError):  # line 9 has no solution for a gradient that is not finite
            return math.inf
        if ended == "interrupted":
            raise SystemExit("stopped")
        last = rows(folder.path)[-1]
        found = last.get("valid_loss", last["train_loss"])
        return math.inf if ended == "diverged" or found is None else found


def choose(task, method, evaluations, parts, root, known, save):
    """The learning rate, or None if the task refuses the method."""

    def best(grid, part):
        found = known.setdefault(f"1/{part}", {})
        for lr in grid:
            if str(lr) not in found:
                found[str(lr)] = loss(task, method, lr, max(2, evaluations // part), root)
                save()
            if found[str(lr)] is None:
                return None
        return min(grid, key=lambda lr: found[str(lr)])

    lr, tried = best(FIRST, parts[0]), None
    while lr is not None and lr != tried:
        i, tried = GRID.index(lr), lr
        lr = best(GRID[max(i - 1, 0) : i + 2], parts[1])
    return lr


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("tasks", nargs="*", default=[*EMBEDDED, *CONSTRAINED], metavar="TASK")
    parser.add_argument("--data-dir", help="for tasks whose data are not embedded")
    parser.add_argument("--out", type=Path, default=Path("/tmp/lab_settings"))
    args = parser.parse_args()
    torch.set_num_threads(1)
    data.cifar, data.wikitext2 = functools.cache(data.cifar), functools.cache(data.wikitext2)
    args.out.mkdir(parents=True, exist_ok=True)
    for task in args.tasks:
        path = args.out / f"{task}.json"
        known = json.loads(path.read_text()) if path.exists() else {}

        def save(path=path, known=known):
            path.write_text(json.dumps(known, indent=1) + "\n")

        workload = find(task).workload("laptop", SEED, args.data_dir)
        evaluations = workload.length * find(task).sizes("laptop")["epochs"]
        parts = OF_TEXTS if workload.score == "perplexity" else PARTS
        chosen = {m: choose(task, m, evaluations, parts, args.data_dir, known.setdefault(m, {}), save) for m in PAPER}
        lines = {method: {"lr": lr} for method, lr in chosen.items() if lr is not None}
        print(f"    {json.dumps(task)}: {json.dumps(lines)},", flush=True)


if __name__ == "__main__":
    main()
