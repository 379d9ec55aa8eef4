"""What a constraint costs: one step with every set and penalty, as a ratio to torch.optim.AdamW(fused=True).

One float32 tensor of 10⁶ coordinates (1000 × 1000, or 10,000 rows of 100), SuperAdam with τ = 0 and case 1. All
candidates take turns, so that a slow moment of the machine hits all of them. Times are CPU times of the process, on one
thread, which other programs disturb less than the clock; the ratio of medians and that of minima are printed.

python scripts/set_costs.py [--rounds 30] [--compile] [--only Ordered L1Ball …]
python scripts/set_costs.py --targets    # beside what was aimed at, with DoublyStochastic
"""

import argparse
import itertools
import statistics
import time

import torch

from superadam import SuperAdam, penalties, sets

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


def parameter(shape):
    p = torch.nn.Parameter(torch.randn(shape, generator=torch.Generator().manual_seed(0)))
    p.grad = torch.randn(shape, generator=torch.Generator().manual_seed(1))
    return p


def candidates(chosen, compiled):
    """Name → function to time. Gradients stay as they are: what is timed is the step."""
    made = {"AdamW": torch.optim.AdamW([parameter(SHAPE)], lr=1e-3, fused=True).step}
    y = parameter(SHAPE).detach() + 0.01
    d = torch.rand(SHAPE, generator=torch.Generator().manual_seed(2)) + 0.5
    for name, part in chosen.items():
        role = "penalty" if isinstance(part, penalties.Penalty) else "constraint"
        made["step", name] = SuperAdam([parameter(SHAPE)], lr=1e-2, **{role: part}).step
        if part is not None:
            made["argmin", name] = lambda part=part: part.argmin(y, d)
        if getattr(part, "dim", None) is not None:
            made["rows", name] = SuperAdam([parameter(ROWS)], lr=1e-2, **{role: part}).step
        if compiled:
            made["compiled", name] = SuperAdam([parameter(SHAPE)], lr=1e-2, compile=True, **{role: part}).step
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
    """Steps beside what they were to cost, all in turns."""
    made = {k: v for k, v in candidates({name: SETS[name] for name in TARGETS}, True).items() if k[0] != "argmin"}
    plan, square = parameter(SHAPE), parameter(SHAPE).detach()
    opt, gen = SuperAdam([plan], lr=1e-2, constraint=sets.DoublyStochastic()), torch.Generator().manual_seed(4)
    turn = itertools.cycle([torch.randn(SHAPE, generator=gen) for _ in range(5)])

    def step():
        plan.grad = next(turn)
        opt.step()

    product = "a product of matrices"
    times = measure({**made, product: lambda: square @ square, "DoublyStochastic()": step}, rounds)

    def ratio(key, unit="AdamW"):
        if key not in times:
            return "–"
        median = statistics.median(times[key]) / statistics.median(times[unit])
        return f"{median:.1f} ({min(times[key]) / min(times[unit]):.1f})"

    print(f"{rounds} rounds, CPU time, 1 thread, torch {torch.__version__}; medians (minima):\n")
    print("| set | at most | step | step, `compile=True` | step, rows of 100 |\n|---|---|---|---|---|")
    for name, most in TARGETS.items():
        cells = [ratio((kind, name)) for kind in ("step", "compiled", "rows")]
        print(f"| `{name}` | {most} | {' | '.join(cells)} |")
    print(f"| `DoublyStochastic()`, to {product} | 30 | {ratio('DoublyStochastic()', product)} | – | – |")


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
    options = parser.parse_args()
    torch.set_num_threads(1)
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
