"""What a constraint costs: one step with every set and penalty, as a ratio to torch.optim.AdamW(fused=True).

One float32 tensor of 10⁶ coordinates (1000 × 1000), SuperAdam with τ = 0 and case 1. All candidates take turns, so that
a slow moment of the machine hits all of them. Times are CPU times of the process, on one thread, which other programs
disturb less than the clock; the ratio of medians and that of minima are printed.

python scripts/set_costs.py [--rounds 30] [--compile]
"""

import argparse
import statistics
import time

import torch

from superadam import SuperAdam, penalties, sets

SIDE = 1000
N = SIDE * SIDE
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
    "L1(0.01)": penalties.L1(0.01),
    "L2(0.01)": penalties.L2(0.01),
    "ElasticNet(0.01, 0.01)": penalties.ElasticNet(0.01, 0.01),
    "GroupLasso(0.01, dim=1)": penalties.GroupLasso(0.01, dim=1),
}


def parameter():
    p = torch.nn.Parameter(torch.randn(SIDE, SIDE, generator=torch.Generator().manual_seed(0)))
    p.grad = torch.randn(SIDE, SIDE, generator=torch.Generator().manual_seed(1))
    return p


def candidates(compiled):
    """Name → function to time. Gradients stay as they are: what is timed is the step."""
    made = {"AdamW": torch.optim.AdamW([parameter()], lr=1e-3, fused=True).step}
    y = parameter().detach() + 0.01
    d = torch.rand(SIDE, SIDE, generator=torch.Generator().manual_seed(2)) + 0.5
    for name, part in SETS.items():
        role = "penalty" if isinstance(part, penalties.Penalty) else "constraint"
        made["step", name] = SuperAdam([parameter()], lr=1e-2, **{role: part}).step
        if part is not None:
            made["argmin", name] = lambda part=part: part.argmin(y, d)
        if compiled:
            made["compiled", name] = SuperAdam([parameter()], lr=1e-2, compile=True, **{role: part}).step
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


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=30)
    parser.add_argument("--compile", action="store_true", help="the step with compile=True, too")
    options = parser.parse_args()
    torch.set_num_threads(1)
    times = measure(candidates(options.compile), options.rounds)
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
    kinds = ("step", "compiled", "argmin") if options.compile else ("step", "argmin")
    heads = {"step": "step", "compiled": "step, `compile=True`", "argmin": "argmin alone"}
    print("| set or penalty | " + " | ".join(heads[k] for k in kinds) + " |")
    print("|---" * (len(kinds) + 1) + "|")
    for name in SETS:
        print(f"| `{name}` | " + " | ".join(ratio((k, name)) for k in kinds) + " |")


if __name__ == "__main__":
    main()
