"""The time of compiled steps beside that of torch's AdamW, compiled and fused, all in turns.

python -m research.speed.compiled_step [model …] [--parts model …] [--rounds 30] [--write]

A second table, of `--parts`, has the parts of a step with τ = 1: the kernels of its two halves, and what is outside of
them.

The models are those of `superadam bench`: by default mlp, resnet18 and gpt2-small (12 GB of memory). All run with one
thread, and times are of the processor's clock: what other programs do at the same time matters less. With τ = 1 a step
is both of its halves. `--write` keeps the results in compiled_step.json and makes the tables of
compiled_step.md of them.
"""

import argparse
import collections
import contextlib
import datetime
import gc
import json
import statistics
import time
from pathlib import Path
from unittest import mock

import torch

from superadam import SuperAdam, matrices
from superadam_lab.bench.candidates import Candidate, Trial, gradients
from superadam_lab.bench.models import SHAPES

HERE = Path(__file__).resolve().parent
RESULTS, PAGE = HERE / "compiled_step.json", HERE / "compiled_step.md"
MARKS = "<!-- compiled_step.py -->", "<!-- end of compiled_step.py -->"
MODELS = ("mlp", "resnet18", "gpt2-small")
COMPILED, FUSED = "`torch.compile` of torch's AdamW", "torch's AdamW, fused"
CASE_1, CASE_4A = "case 1, τ = 1, `compile=True`", "case 4a, τ = 1, `compile=True`"
FIRST, SECOND, OUTSIDE = "kernel of the first half", "kernel of the second half", "outside of the kernels"
# Tensors that are read and written. Each has four bytes per parameter.
MOVED = {(FUSED, ""): (4, 3), (CASE_1, FIRST): (4, 2), (CASE_1, SECOND): (3, 2)}
MOVED |= {(CASE_4A, FIRST): (4, 2), (CASE_4A, SECOND): (4, 3)}

# What is built, and whether its step goes through torch.compile.
STEPS = {
    COMPILED: (lambda p: torch.optim.AdamW(p, lr=torch.tensor(1e-3)), True),
    FUSED: (lambda p: torch.optim.AdamW(p, fused=True), False),
    "case 1, τ = 0, `torch.compile` (torch's fused kernel)": (lambda p: SuperAdam(p, weight_decay=0.01), True),
    "case 1, τ = 0, fused=False, `torch.compile`": (lambda p: SuperAdam(p, weight_decay=0.01, fused=False), True),
    "Yogi, `torch.compile`": (lambda p: SuperAdam(p, matrix="Yogi"), True),
    "Yogi": (lambda p: SuperAdam(p, matrix="Yogi"), False),
    CASE_1: (lambda p: SuperAdam(p, tau=1.0, compile=True), False),
    CASE_4A: (
        lambda p: SuperAdam(p, tau=1.0, matrix=matrices.Belief(), compile=True),
        False,
    ),
}


def parameters(model):
    return sum(torch.Size(shape).numel() for shape in SHAPES[model]())


def made(model, names):
    """The steps, on the same x and gradients, so that more fit into the memory."""
    given, trials = gradients(SHAPES[model]()), {}
    for name in names:
        build, through = STEPS[name]
        trial = trials[name] = Trial(Candidate(name, "", build), given)
        for p, first in zip(trial.params, trials[names[0]].params, strict=True):
            p.data = first.data
        if through:
            trial.step = torch.compile(trial.step)
    return trials


def milliseconds(model, rounds, names=tuple(STEPS), warm_up=4):
    """The times of each step in each round."""
    trials, times = made(model, names), {name: [] for name in names}
    for n in range(rounds + warm_up):
        for name, trial in trials.items():
            start = time.process_time()
            trial.step()
            if n >= warm_up:  # the first ones compile
                times[name].append(1e3 * (time.process_time() - start))
    return times


def parts(model, rounds, warm_up=4):
    """Medians of the time of a step with τ = 1, of its kernels, and of all else; and of AdamW's step."""
    from superadam._step import compiled, dispatch  # the page's tables are made without

    halves = {dispatch.move_and_prepare: FIRST, dispatch.absorb: SECOND}
    trials = made(model, (FUSED, CASE_1, CASE_4A))
    for _ in range(warm_up):
        for trial in trials.values():
            trial.step()
    times = collections.defaultdict(lambda: [0.0] * rounds)
    now = None

    def timed(run, half):
        def call(*args):
            start = time.process_time()
            run(*args)
            times[now[0], half][now[1]] += 1e3 * (time.process_time() - start)

        return call

    with contextlib.ExitStack() as stack:
        for (line, *_), kernel in compiled._kernels.items():
            if line in halves:
                stack.enter_context(mock.patch.object(kernel, "run", timed(kernel.run, halves[line])))
        for n in range(rounds):
            for name, trial in trials.items():
                now, start = (name, n), time.process_time()
                trial.step()
                times[name, ""][n] = 1e3 * (time.process_time() - start)
    for name in (CASE_1, CASE_4A):
        columns = (times[name, part] for part in ("", FIRST, SECOND))
        times[name, OUTSIDE] = [whole - first - second for whole, first, second in zip(*columns, strict=True)]
    return [[name, part, statistics.median(of)] for (name, part), of in times.items()]


def measured(models, rounds):
    found = {}
    for model in models:
        times = milliseconds(model, rounds)
        found[model] = {
            "parameters": parameters(model),
            "steps": {name: {"median_ms": statistics.median(t), "minimum_ms": min(t)} for name, t in times.items()},
        }
        torch._dynamo.reset()
        gc.collect()
    return found


def table(results):
    """One row for each step, two columns for each model."""
    models = results["models"]
    heads = [f"{name} ({of['parameters'] / 1e6:.3g} M): ms | ÷ compiled AdamW | ÷ fused" for name, of in models.items()]
    lines = ["| step | " + " | ".join(heads) + " |", "|---|" + 3 * len(models) * "---|"]
    for name in STEPS:
        cells = []
        for of in models.values():
            took, *bases = (of["steps"][n]["median_ms"] for n in (name, COMPILED, FUSED))
            cells += [f"{took:.3g}", *(f"{took / base:.2f}" for base in bases)]
        lines.append(f"| {name} | {' | '.join(cells)} |")
    said = f"`{results['command']}`, torch {results['torch']}, {results['date']}, one thread, medians of "
    return [f"{said}{results['rounds']} interleaved steps, of the processor's clock:", "", *lines]


def table_of_parts(results):
    """One row for each part, three columns for each model."""
    models = results["parts"]
    heads = [f"{name}: ms | ÷ AdamW | GB/s" for name in models]
    lines = ["| part | reads + writes | " + " | ".join(heads) + " |", "|---|---|" + 3 * len(models) * "---|"]
    found = {name: {(step, part): ms for step, part, ms in rows} for name, rows in models.items()}
    for step, part in [(FUSED, ""), *((s, p) for s in (CASE_1, CASE_4A) for p in (FIRST, SECOND, OUTSIDE, ""))]:
        moved = MOVED.get((step, part))
        cells = [f"{moved[0]} + {moved[1]}" if moved else ""]
        for name in models:
            took, base = found[name][step, part], found[name][FUSED, ""]
            rate = f"{4 * sum(moved) * parameters(name) / took / 1e6:.0f}" if moved else ""
            cells += [f"{took:.3g}", f"{took / base:.2f}", rate]
        lines.append(f"| {step}{': ' if part else ''}{part} | {' | '.join(cells)} |")
    return ["", "The parts of a step with τ = 1, measured apart:", "", *lines]


def tables(results):
    return [*table(results), *table_of_parts(results)]


# ----------------------------------------------------------------------------------------------- methods and their ways


def write(lines):
    begin, end = MARKS
    text = PAGE.read_text()
    before, after = text.split(begin)[0], text.split(end)[1]
    PAGE.write_text("\n".join([f"{before}{begin}", "", *lines, "", f"{end}{after}"]))


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("models", nargs="*", default=MODELS, choices=SHAPES, metavar="model")
    parser.add_argument("--parts", nargs="*", default=(), choices=SHAPES, metavar="model")
    parser.add_argument("--rounds", type=int, default=30)
    parser.add_argument("--write", action="store_true")
    options = parser.parse_args()
    torch.set_num_threads(1)
    split = ["--parts", *options.parts] if options.parts else []
    command = " ".join(
        ["python -m research.speed.compiled_step", *options.models, *split, f"--rounds {options.rounds}"]
    )
    results = {"command": command, "date": f"{datetime.date.today():%Y-%m-%d}", "torch": torch.__version__}
    results |= {"rounds": options.rounds, "models": measured(options.models, options.rounds)}
    results["parts"] = {model: parts(model, options.rounds) for model in options.parts}
    lines = tables(results)
    print("\n".join(lines))
    if options.write:
        RESULTS.write_text(json.dumps(results, indent=1, ensure_ascii=False) + "\n")
        write(lines)


if __name__ == "__main__":
    main()
