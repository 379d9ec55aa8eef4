"""What every composition does with its own defaults, no option given: the table of README.md.

For each task of the lab and each composition: the loss it starts from is 0 %, the best loss that AdamW finds on a grid
of learning rates is 100 %, and the number says how far the composition comes in the same steps. Negative numbers, and
"diverged", are failures. τ > 0, and matrices that need it, take two gradients per step: this is no comparison at equal
cost (`superadam compare` makes one), it is a check that the defaults train.

    python -m research.defaults.defaults [--seeds 1] [--out FOLDER] [NAME...]    # about 20 minutes on one core

FOLDER keeps what was found, and what is there is not computed again. NAME, such as "create storm", limits the rows.
"""

import argparse
import json
import math
import statistics
import warnings
from pathlib import Path

import torch

from superadam import SuperAdam, create, matrices, zoo
from superadam_lab import tasks
from superadam_lab.runs.clipping import OneFactor

SIZES = {
    "digits-mlp": {"hidden": 64, "epochs": 4},
    "digits-cnn": {"width": 8, "epochs": 4},
    "pydoc-lstm": {"size": 16, "words": 15_000, "batch": 10, "epochs": 3},
    "pydoc-transformer": {"size": 16, "words": 15_000, "batch": 10, "epochs": 3},
    "logistic-nonconvex": {"epochs": 5},
    "nmf": {"epochs": 20},
}
GRID = (3e-4, 1e-3, 3e-3, 1e-2, 3e-2)
TAUS = {"": {}, ", tau=1.0": {"tau": 1.0}}
CASES = (
    "GradientNorm",
    "BarzilaiBorwein",
    "Belief",
    "BeliefNorm",
)  # of the paper; case 1 is the default
OTHERS = sorted(set(matrices.__all__) - {"Matrix", "MultipleOfIdentity", "SecondMoment"})


def compositions():
    """Name → what makes it of a model and the options that the task asks for."""
    made = {"SuperAdam(model)": SuperAdam, "SuperAdam(model, tau=1.0)": with_(tau=1.0)}
    made['lr=1e-3, schedule="Paper"'] = with_(lr=1e-3, schedule="Paper")  # the default before: the paper's, for CIFAR
    made |= {f'schedule="Paper"{shown}': with_(schedule="Paper", **tau) for shown, tau in TAUS.items()}
    made |= {f'matrix="{name}"': with_(matrix=name) for name in OTHERS}
    made |= {f'matrix="{name}", tau=1.0': with_(matrix=name, tau=1.0) for name in CASES}
    made |= {f'create("{name}")': lambda model, name=name, **own: create(name, model, **own) for name in zoo.METHODS}
    return made


def with_(**options):
    return lambda model, **own: SuperAdam(model, **options, **own)


def adamw(lr):
    return lambda model, **own: create("adamw", model, lr, **own)


def losses(task, build, seed):
    """Before and after training; None if the composition refuses the task, infinite if it diverges."""
    workload = tasks.find(task).workload("laptop", seed, sizes=SIZES[task])
    workload.evaluate_less()
    split = "valid" if "valid" in workload.splits else "train"
    start = workload.evaluate(split)["loss"]
    try:
        opt = build(workload.model, **workload.options)
    except ValueError:
        return start, None
    torch.manual_seed(seed)
    try:
        for epoch in range(SIZES[task]["epochs"]):
            train(workload, opt, epoch)
        opt.flush()
        end = workload.evaluate(split)["loss"]
    except (RuntimeError, ValueError):  # line 9 has no solution for a gradient that is not finite
        end = math.inf
    return start, end if math.isfinite(end) else math.inf


def train(workload, opt, epoch):
    memory = None
    for batch in workload.batches(epoch):
        before, clipped = memory, OneFactor(opt, workload.clip)

        def closure(batch=batch, before=before, clipped=clipped):
            nonlocal memory
            opt.zero_grad()
            loss, memory = workload.loss(batch, before)
            loss.backward()
            clipped()
            return loss.detach()

        opt.step(closure)


def cell(start, end, best):
    if end is None:
        return "–"
    return "diverged" if end > 10 * abs(start) + 1 else f"{100 * (start - end) / (start - best):.0f}"


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("names", nargs="*")
    parser.add_argument("--seeds", type=int, default=1)
    parser.add_argument("--out", type=Path, default=Path("defaults-found"))
    args = parser.parse_args()
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    args.out.mkdir(parents=True, exist_ok=True)
    file = args.out / "losses.json"
    found = json.loads(file.read_text()) if file.exists() else {}

    def mean(name, task, build):
        pairs = []
        for seed in range(args.seeds):
            key = f"{name} | {task} | {seed}"
            if key not in found:
                found[key] = losses(task, build, seed)
                file.write_text(json.dumps(found, indent=0))
            pairs.append(found[key])
        ends = [end for _, end in pairs]
        return pairs[0][0], None if None in ends else statistics.fmean(ends)

    best = {t: min(mean(f"adamw {lr:g}", t, adamw(lr))[1] for lr in GRID) for t in SIZES}
    print("| composition | lr | " + " | ".join(SIZES) + " |\n" + "|---" * (len(SIZES) + 2) + "|")
    for name, build in compositions().items():
        if args.names and not any(part in name for part in args.names):
            continue
        lr = build(torch.nn.Linear(2, 1)).param_groups[0]["lr"]
        cells = [cell(*mean(f"{name} {lr:g}", task, build), best[task]) for task in SIZES]
        print(f"| `{name}` | {lr:g} | " + " | ".join(cells) + " |", flush=True)


if __name__ == "__main__":
    main()
