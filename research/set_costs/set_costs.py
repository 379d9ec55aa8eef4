"""What a constraint costs: one step with every set and penalty, as a ratio to torch.optim.AdamW(fused=True).

One float32 tensor of 10⁶ coordinates (1000 × 1000, or 10,000 rows of 100), SuperAdam with τ = 0 and case 1. All
candidates take turns, so that a slow moment of the machine hits all of them. Times are CPU times of the process, on one
thread, which other programs disturb less than the clock; the ratio of medians and that of minima are printed.

Every step has another gradient, five in turns: with a single one, the root of the last step would be too good a start.

python -m research.set_costs.set_costs [--rounds 30] [--compile] [--only Ordered L1Ball …]
python -m research.set_costs.set_costs --targets    # beside what was aimed at, with DoublyStochastic: writes
                                         # set_costs.json and the table in README.md
python -m research.set_costs.set_costs --table      # that table again, from the stored times
"""

import argparse
import datetime
import functools
import itertools
import json
import os
import statistics
import time
from pathlib import Path

import torch

from superadam import SuperAdam, penalties, sets

HERE = Path(__file__).resolve().parent
RAW, PAGE = HERE / "set_costs.json", HERE / "README.md"
BEGIN, END = "<!-- set_costs.py -->\n", "\n<!-- end of set_costs.py -->"
PRODUCT = "a product of matrices"
SHAPE, ROWS = (1000, 1000), (10_000, 100)
SETS = {
    "none": None,
    "Box(-1, 1)": sets.Box(-1.0, 1.0),
    "NonNegative()": sets.NonNegative(),
    "Halfspace(1, 0)": sets.Halfspace(1.0, 0.0),
    "Hyperplane(1, 0)": sets.Hyperplane(1.0, 0.0),
    "L2Ball(100)": sets.L2Ball(100.0),
    "L2Ball(3, dim=1)": sets.L2Ball(3.0, dim=1),
    "L1Ball(1e5)": sets.L1Ball(1e5),
    "L1Ball(100, dim=1)": sets.L1Ball(100.0, dim=1),
    "Simplex(dim=None)": sets.Simplex(dim=None),
    "Simplex(dim=1)": sets.Simplex(dim=1),
    "CappedSimplex(1, 0.01, dim=1)": sets.CappedSimplex(1.0, 0.01, dim=1),
    "CappedSimplex(1, 0.01, low=1e-4, dim=1)": sets.CappedSimplex(1.0, 0.01, dim=1, low=1e-4),
    "BoxSection(1, 0, -1, 1)": sets.BoxSection(1.0, 0.0, -1.0, 1.0),
    "BoxSection(1, 0, -1, 1, dim=1)": sets.BoxSection(1.0, 0.0, -1.0, 1.0, dim=1),
    "Ordered(dim=None)": sets.Ordered(dim=None),
    "Ordered(dim=1)": sets.Ordered(dim=1),
    "GroupL1Ball(1e4)": sets.GroupL1Ball(1e4),
    "L1InfBall(1e3)": sets.L1InfBall(1e3),
    "SecondOrderCone(dim=None)": sets.SecondOrderCone(dim=None),
    "SecondOrderCone(dim=1)": sets.SecondOrderCone(dim=1),
    "Sphere(100)": sets.Sphere(100.0),
    "Sphere(3, dim=1)": sets.Sphere(3.0, dim=1),
    "L1(0.01)": penalties.L1(0.01),
    "L2(0.01)": penalties.L2(0.01),
    "ElasticNet(0.01, 0.01)": penalties.ElasticNet(0.01, 0.01),
    "GroupLasso(0.01, dim=1)": penalties.GroupLasso(0.01, dim=1),
}


# What a step was to cost at most: as a ratio to AdamW, and of DoublyStochastic to a product of matrices of its size.
TARGETS = {
    "Box(-1, 1)": 1.5,
    "Halfspace(1, 0)": 3,
    "L2Ball(100)": 5,
    "L2Ball(3, dim=1)": 5,
    "Simplex(dim=None)": 6,
    "Simplex(dim=1)": 6,
    "L1Ball(1e5)": 6,
    "L1Ball(100, dim=1)": 6,
    "Ordered(dim=None)": 15,
    "Ordered(dim=1)": 15,
}


@functools.cache
def gradients(shape):
    gen = torch.Generator().manual_seed(1)
    return [torch.randn(shape, generator=gen) for _ in range(5)]


def parameter(shape):
    return torch.nn.Parameter(torch.randn(shape, generator=torch.Generator().manual_seed(0)))


def steps_of(shape, make, **options):
    """A function that takes one step of an optimizer, each with the next gradient."""
    p = parameter(shape)
    opt, turn = make([p], **options), itertools.cycle(gradients(shape))

    def step():
        p.grad = next(turn)
        opt.step()

    return step


def candidates(chosen, compiled):
    """Name → function to time."""
    made = {"AdamW": steps_of(SHAPE, torch.optim.AdamW, lr=1e-3, fused=True)}
    y = parameter(SHAPE).detach() + 0.01
    d = torch.rand(SHAPE, generator=torch.Generator().manual_seed(2)) + 0.5
    for name, part in chosen.items():
        role = "penalty" if isinstance(part, penalties.Penalty) else "constraint"
        made["step", name] = steps_of(SHAPE, SuperAdam, lr=1e-2, **{role: part})
        if part is not None:
            made["argmin", name] = lambda part=part: part.argmin(y, d)
        if getattr(part, "dim", None) is not None:
            made["rows", name] = steps_of(ROWS, SuperAdam, lr=1e-2, **{role: part})
        if compiled:
            made["compiled", name] = steps_of(SHAPE, SuperAdam, lr=1e-2, compile=True, **{role: part})
    return made


def measure(made, rounds):
    times = {name: [] for name in made}
    for i in range(rounds + 3):
        for name, run in made.items():
            start = time.process_time()
            run()
            if i >= 3:  # warm-up, and the compiler
                times[name].append(time.process_time() - start)
    return times


def targets(rounds):
    """Steps beside what they were to cost, all in turns. Stores the times, and writes the table into README.md."""
    made = {k: v for k, v in candidates({name: SETS[name] for name in TARGETS}, True).items() if k[0] != "argmin"}
    square = parameter(SHAPE).detach()
    made[PRODUCT] = lambda: square @ square
    made["step", "DoublyStochastic()"] = steps_of(SHAPE, SuperAdam, lr=1e-2, constraint=sets.DoublyStochastic())
    times = measure(made, rounds)
    stored = {
        "date": datetime.datetime.now(datetime.UTC).date().isoformat(),
        "torch": torch.__version__,
        "load": round(os.getloadavg()[0], 1),
        "milliseconds": {
            " ".join(k) if isinstance(k, tuple) else k: [round(1e3 * t, 4) for t in v] for k, v in times.items()
        },
    }
    RAW.write_text(json.dumps(stored, indent=1) + "\n", encoding="utf-8")
    write_table()


def target_table(stored):
    """The table beside the targets, from stored times."""
    times = stored["milliseconds"]

    def ratio(key, unit="AdamW"):
        if key not in times:
            return "–"
        median = statistics.median(times[key]) / statistics.median(times[unit])
        return f"{median:.1f} ({min(times[key]) / min(times[unit]):.1f})"

    base = times["AdamW"]
    lines = [
        f"{stored['date']}, torch {stored['torch']}, {len(base)} rounds, CPU time, 1 thread, load of the machine "
        f"{stored['load']}.",
        f"`AdamW(fused=True)`: median {statistics.median(base):.2f} ms, minimum {min(base):.2f} ms. Ratios of medians "
        "(of minima):",
        "",
        "| set | target | step | step, `compile=True` | step, rows of 100 |",
        "|---|---|---|---|---|",
    ]
    for name, most in TARGETS.items():
        cells = [ratio(f"{kind} {name}") for kind in ("step", "compiled", "rows")]
        lines.append(f"| `{name}` | {most} | {' | '.join(cells)} |")
    plan = ratio("step DoublyStochastic()", PRODUCT)
    return "\n".join([*lines, f"| `DoublyStochastic()`, to {PRODUCT} | 30 | {plan} | – | – |"])


def write_table():
    before, _, rest = PAGE.read_text(encoding="utf-8").partition(BEGIN)
    table = target_table(json.loads(RAW.read_text(encoding="utf-8")))
    PAGE.write_text(before + BEGIN + "\n" + table + "\n" + END + rest.partition(END)[2], encoding="utf-8")
    print(table)


def coupled(rounds):
    """The sets that are solved by Newton's method or by active rows, in units of what they are made of."""
    gen = torch.Generator().manual_seed(3)

    def normal(*shape):
        return torch.randn(shape, generator=gen)

    def steps(part, *shape, **options):
        """argmin with a cold start, and a training step, which starts from the last solution."""
        y, d, grads = normal(*shape), torch.rand(shape, generator=gen) + 0.5, [normal(*shape) for _ in range(5)]
        p = torch.nn.Parameter(normal(*shape))
        opt = SuperAdam([p], lr=1e-2, constraint=part, **options)
        turn = itertools.cycle(grads)

        def step():
            p.grad = next(turn)
            opt.step()

        return lambda: part.argmin(y, 0.7 if part.scalar_metric else d), step

    square, many = normal(1000, 1000), 10**5
    adamw = torch.nn.Parameter(normal(many))
    adamw.grad = normal(many)
    small = torch.randn(300, 300, generator=gen, dtype=torch.float64)
    units = {
        "a product of 1000 × 1000 matrices": lambda: square @ square,
        "eigh of 300 × 300 in float64": lambda: torch.linalg.eigh(small + small.T),
        "AdamW(fused=True) on 10⁵": torch.optim.AdamW([adamw], fused=True).step,
    }
    scalar = {"matrix": "GradientNorm"}
    product, eigen, step = units
    A = normal(20, many)
    made = {
        "DoublyStochastic(), 1000 × 1000": (product, steps(sets.DoublyStochastic(), 1000, 1000)),
        "PSD(), 300 × 300": (eigen, steps(sets.PSD(), 300, 300, **scalar)),
        "Spectrahedron(), 300 × 300": (eigen, steps(sets.Spectrahedron(), 300, 300, **scalar)),
        "Correlation(), 300 × 300": (eigen, steps(sets.Correlation(), 300, 300, **scalar)),
        "Polyhedron, 20 rows, 10⁵": (step, steps(sets.Polyhedron(A, 10 * torch.ones(20)), many)),
        "Intersection(Simplex(), Box(0, 1e-4), Halfspace), 10⁵": (
            step,
            steps(sets.Intersection(sets.Simplex(), sets.Box(0, 1e-4), sets.Halfspace(A[0], -0.5)), many),
        ),
        "Intersection(L1Ball(100), L2Ball(1)), 10⁵": (
            step,
            steps(sets.Intersection(sets.L1Ball(100.0), sets.L2Ball(1.0)), many),
        ),
    }
    runs = dict(units)
    for name, (_, (argmin, train)) in made.items():
        runs["argmin", name], runs["step", name] = argmin, train
    times = measure(runs, rounds)
    print(f"{rounds} rounds, CPU time, 1 thread, torch {torch.__version__}; medians (minima):\n")
    print("| set | unit | argmin, cold start | step |\n|---|---|---|---|")
    for name, (unit, _) in made.items():
        cells = [
            f"{statistics.median(times[key]) / statistics.median(times[unit]):.1f} "
            f"({min(times[key]) / min(times[unit]):.1f})"
            for key in (("argmin", name), ("step", name))
        ]
        print(f"| `{name}` | {unit} | {' | '.join(cells)} |")


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=30)
    parser.add_argument("--compile", action="store_true", help="the step with compile=True, too")
    parser.add_argument("--only", nargs="+", metavar="NAME", help="sets and penalties that begin so")
    parser.add_argument("--targets", action="store_true", help="beside what was aimed at")
    parser.add_argument("--coupled", action="store_true", help="only the sets solved by Newton's method or active rows")
    parser.add_argument("--table", action="store_true", help="write the table of --targets again")
    options = parser.parse_args()
    torch.set_num_threads(1)
    if options.table:
        write_table()
        return
    if options.coupled or options.targets:
        (coupled if options.coupled else targets)(options.rounds)
        return
    chosen = {name: part for name, part in SETS.items() if not options.only or name.startswith(tuple(options.only))}
    times = measure(candidates(chosen, options.compile), options.rounds)
    base = times["AdamW"]

    def ratio(key):
        if key not in times:
            return "–"
        median = statistics.median(times[key]) / statistics.median(base)
        return f"{median:.1f} ({min(times[key]) / min(base):.1f})"

    print(
        f"AdamW(fused=True): median {1e3 * statistics.median(base):.2f} ms, minimum {1e3 * min(base):.2f} ms; ", end=""
    )
    print(f"{options.rounds} rounds, CPU time, 1 thread, torch {torch.__version__}")
    print("Ratios to it of medians (of minima):\n")
    kinds = ("step", "rows", "compiled", "argmin") if options.compile else ("step", "rows", "argmin")
    heads = {"step": "step", "rows": "step, rows of 100", "compiled": "step, `compile=True`", "argmin": "argmin alone"}
    print("| set or penalty | " + " | ".join(heads[k] for k in kinds) + " |")
    print("|---" * (len(kinds) + 1) + "|")
    for name in chosen:
        print(f"| `{name}` | " + " | ".join(ratio((k, name)) for k in kinds) + " |")


if __name__ == "__main__":
    main()
