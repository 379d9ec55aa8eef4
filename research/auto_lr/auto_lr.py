"""lr="auto" beside AdamW with its learning rate tuned, on tasks of the lab: auto_lr.json and a table.

    python -m research.auto_lr.auto_lr --out research/auto_lr/auto_lr.json      # measures
    python -m research.auto_lr.auto_lr --table research/auto_lr/auto_lr.json    # prints the table of README.md

Measuring takes about a minute for each task and seed on an idle machine.

AdamW has eight learning rates, a factor of √10 apart, and a cosine decay; the best is the one with the least mean of
the final validation losses. The others have no learning rate to tune, and the same decay. Every list in the file holds
one loss per seed: 0, 1, ... The file is written after every run; losses that it already holds are not measured again.
"""

import argparse
import datetime
import json
import math
import tempfile
from pathlib import Path

from research.lab_results.lab_settings import lean
from superadam_lab.runs.folders import Config, Folder, rows
from superadam_lab.runs.training import Run

TASKS = ("digits-mlp", "digits-cnn", "digits-autoencoder", "digits-vit", "ratings", "logistic-sparse", "pinn-poisson")
RATES = [10 ** (-4 + i / 2) for i in range(8)]
OTHERS = {'adamw lr="auto"': ("adamw", {"lr": "auto"}), "prodigy": ("prodigy", {"lr": 1.0})}
EVALUATIONS = 500
SEEDS = {"ratings": 3, "pinn-poisson": 3}  # one for the other tasks


def final(task, method, options, seed):
    """The last validation loss of a run; infinite if it diverged."""
    with tempfile.TemporaryDirectory() as place:
        settings = {"options": options, "seed": seed, "preset": "default", "decay": "cosine"}
        folder = Folder.new(f"{place}/run", Config(task, method, budget_evals=EVALUATIONS, **settings))
        ended = lean(Run(folder)).train()
        last = rows(folder.path)[-1]
    found = last.get("valid_loss", last["train_loss"])
    return math.inf if ended != "finished" or found is None else found


def measure(tasks, seeds, found, write):
    """Add to `found` the losses that it lacks; call `write` after every run."""
    for task in tasks:
        known = found.setdefault(task, {"adamw": {}})
        runs = [(known["adamw"].setdefault(f"{lr:.2g}", []), "adamw", {"lr": lr}) for lr in RATES]
        runs += [(known.setdefault(name, []), *method) for name, method in OTHERS.items()]
        for losses, method, options in runs:
            for seed in range(len(losses), seeds or SEEDS.get(task, 1)):
                losses.append(final(task, method, options, seed))
                write()
        print(task, json.dumps(known), flush=True)


def table(found):
    lines = ["| task | best lr of AdamW | its loss | " + " | ".join(OTHERS) + " |", "|---" * (3 + len(OTHERS)) + "|"]
    for task, losses in found.items():
        means = {lr: sum(values) / len(values) for lr, values in losses["adamw"].items()}
        best = min(means, key=means.get)
        ratios = [f"{sum(losses[name]) / len(losses[name]) / means[best]:.2f}" for name in OTHERS]
        lines.append(f"| {task} | {best} | {means[best]:.4g} | " + " | ".join(ratios) + " |")
    return "\n".join(lines)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path)
    parser.add_argument("--table", type=Path)
    parser.add_argument("--task", action="append", choices=TASKS)
    parser.add_argument("--seeds", type=int, help="how many, for every task; default: those of README.md")
    given = parser.parse_args()
    if given.table:
        print(table(json.loads(given.table.read_text())["tasks"]))
        return
    known = json.loads(given.out.read_text()) if given.out and given.out.exists() else {"tasks": {}}

    def write():
        if given.out:
            date = f"{datetime.date.today()}"
            given.out.write_text(json.dumps({"evaluations": EVALUATIONS, **known, "date": date}, indent=1) + "\n")

    measure(given.task or TASKS, given.seeds, known["tasks"], write)
    print(table(known["tasks"]))


if __name__ == "__main__":
    main()
