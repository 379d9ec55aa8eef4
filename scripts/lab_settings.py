"""Choose the learning rates of src/superadam/lab/settings.py: the paper's methods on the small embedded tasks.

Every method gets the same grid, at laptop scale, with a seed that is for this alone; the least validation loss at the
end wins (training loss where there is nothing to validate on).

    python scripts/lab_settings.py [TASK...]

prints the lines of EMBEDDED. The language models have the paper's settings for WikiText-2 instead: a grid takes hours.
"""

import json
import math
import sys
import tempfile

import torch

from superadam.lab.folders import Config, Folder, rows
from superadam.lab.methods import PAPER
from superadam.lab.runs import Run

TASKS = ("digits-mlp", "digits-cnn", "logistic-nonconvex", "simplex-regression", "nmf")
GRID = (1e-3, 3e-3, 1e-2, 3e-2, 1e-1, 3e-1, 1.0, 3.0, 10.0)
SEED = 1000


def final_loss(task, method, lr):
    """Infinite if the run does not end well; None if there is no such run."""
    with tempfile.TemporaryDirectory() as place:
        folder = Folder.new(f"{place}/run", Config(task, method, preset="default", options={"lr": lr}, seed=SEED))
        try:
            run = Run(folder)
        except ValueError:
            return None
        try:
            ended = run.train()
        except (RuntimeError, ValueError):  # line 9 has no solution for a gradient that is not finite
            return math.inf
        if ended == "interrupted":
            raise SystemExit("stopped")
        last = rows(folder.path)[-1]
        loss = last.get("valid_loss", last["train_loss"])
        return math.inf if ended == "diverged" or loss is None else loss


def main(tasks):
    torch.set_num_threads(1)
    for task in tasks:
        chosen = {}
        for method in PAPER:
            losses = {lr: final_loss(task, method, lr) for lr in GRID}
            if None not in losses.values():
                chosen[method] = {"lr": min(losses, key=losses.get)}
                print(task, method, losses, file=sys.stderr, flush=True)
        print(f"    {json.dumps(task)}: {json.dumps(chosen)},", flush=True)


if __name__ == "__main__":
    main(sys.argv[1:] or TASKS)
