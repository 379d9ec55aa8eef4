"""The exact adaptive step against what people use on constrained problems: README.md.

    python -m research.constrained.constrained PROBLEM...   # runs problems, or "all"; --jobs 2 takes two processes
    python -m research.constrained.constrained --more PROBLEM...   # only problems and seeds that the data do not have
    python -m research.constrained.constrained              # constrained.json.gz from the runs, if any; then the page
    python -m research.constrained.constrained --check      # fails if the page is not what the data give
    python -m research.pictures rivals rivals_few           # draws rivals.svg and rivals_few.svg

Every method gets one gradient in each of 800 steps, nine learning rates a factor √10 apart around a value that the
problem suggests, and a linear decay to zero. Where the best of them is at an end, up to five more follow there. The
rate is chosen on one seed by the gradients to the target; five other seeds (other data, starts and batches) are
reported. Needs scikit-learn; runs also need cooper-optim and, for
the optima, cvxpy. What was run is kept in --out, line by line: a run that was stopped goes on.
"""

import argparse
import json
import math
import multiprocessing
import sys
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from statistics import mean, median, stdev
from typing import Any

from research import kept

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[1]
DATA, PAGE = HERE / "constrained.json.gz", HERE / "README.md"
BEGIN, END = "<!-- constrained.py -->", "<!-- end of constrained.py -->"

GRADIENTS, RATES, MORE_RATES = 800, 9, 5
TUNING_SEED, REPORT_SEEDS = 0, (1, 2, 3, 4, 5)
SHOWN = sorted({round(10 ** (math.log10(GRADIENTS) * i / 150)) for i in range(151)})
OURS = "exact step, Adam's H"
OF_OURS = (OURS, "exact step, SOAP's H", "exact step, scalar H")

# ------------------------------------------------------------------------------------------------------------- runs


def run(problem: Any, method: type, gamma: float, seed: int) -> list[float]:
    """f after each of the SHOWN numbers of gradients; infinite from where the method has left the numbers."""
    import torch

    order = torch.Generator().manual_seed(seed)
    agent, losses = method(problem, gamma), []
    try:
        for t in range(GRADIENTS):
            rows = None
            if problem.batch is not None:
                rows = torch.randint(problem.rows, (problem.batch,), generator=order)
            agent.step(rows, 1 - t / GRADIENTS)
            if t + 1 in SHOWN:
                losses.append(problem.full(agent.points()))
    except (ValueError, RuntimeError) as diverged:
        if "finite" not in str(diverged) and "numbers" not in str(diverged) and "gradient" not in str(diverged):
            raise
    losses += [math.inf] * (len(SHOWN) - len(losses))
    return [loss if math.isfinite(loss) else math.inf for loss in losses]


def optimum(problem: Any) -> float | None:
    """f* of a convex problem: by cvxpy, by SLSQP where cvxpy fails, or by 4,000 accelerated projected gradients."""
    import torch

    from research.constrained.methods import project, smoothness
    from superadam import sets

    if not problem.convex:
        return None
    if problem.by_cvxpy is not None:
        import cvxpy as cp

        objective, conditions = problem.by_cvxpy(cp)
        solved = cp.Problem(cp.Minimize(objective), conditions)
        return float(solved.solve(solver=cp.CLARABEL, tol_gap_abs=1e-10, tol_gap_rel=1e-10))
    if isinstance(problem.sets[0], sets.Simplex):
        return _by_slsqp(problem)
    step, best = 0.5 / smoothness(problem), math.inf
    x, y, t = [v.clone() for v in problem.start], [v.clone() for v in problem.start], 1.0
    for _ in range(4_000):
        leaves = [v.clone().requires_grad_() for v in y]
        loss = problem.loss(leaves, None)
        gradients = torch.autograd.grad(loss, leaves)
        after = project(problem, [v - step * g for v, g in zip(y, gradients, strict=True)])
        rising = sum(float((g * (b - a)).sum()) for g, a, b in zip(gradients, x, after, strict=True)) > 0
        nearer = 1.0 if rising else (1 + math.sqrt(1 + 4 * t * t)) / 2
        y = [b if rising else b + (t - 1) / nearer * (b - a) for a, b in zip(x, after, strict=True)]
        x, t = after, nearer
    return min(best, problem.full(x))


def _by_slsqp(problem: Any) -> float:
    """Of a vector on the simplex."""
    import numpy as np
    import torch
    from scipy.optimize import minimize

    def f(w: Any) -> tuple[float, Any]:
        x = torch.tensor(w, requires_grad=True)
        loss = problem.loss([x], None)
        loss.backward()
        return loss.item(), x.grad.numpy()

    sums_to_one = {"type": "eq", "fun": lambda w: w.sum() - 1, "jac": np.ones_like}
    found = minimize(
        f,
        problem.start[0].numpy(),
        jac=True,
        method="SLSQP",
        bounds=[(0, 1)] * problem.start[0].numel(),
        constraints=sums_to_one,
        options={"ftol": 1e-15, "maxiter": 500},
    )
    return f(found.x.clip(0) / found.x.clip(0).sum())[0]


def run_problem(name: str, out: Path, published: dict[str, Any] | None = None) -> None:
    """All runs of a problem, each a line of a file; those that are there are not made again.

    With what is `published`, the seeds that it does not have, at its learning rates.
    """
    import torch

    from research.constrained.methods import METHODS
    from research.constrained.problems import build

    torch.set_num_threads(1)
    path = out / f"{name}.jsonl"
    known = rows_of(path) if path.exists() else []
    there = (TUNING_SEED, *published["seeds"]) if published else ()
    instances = {seed: build(name, seed) for seed in (TUNING_SEED, *REPORT_SEEDS) if seed not in there}

    def keep(**row: Any) -> None:
        known.append(row)
        with path.open("a") as file:
            file.write(json.dumps(row) + "\n")

    def made(method: str, gamma: float, seed: int) -> list[float]:
        for row in known:
            if (row.get("method"), row.get("gamma"), row["seed"]) == (method, gamma, seed):
                return [math.inf if f is None else f for f in row["losses"]]
        losses = run(instances[seed], METHODS[method], gamma, seed)
        keep(method=method, gamma=gamma, seed=seed, losses=[f if math.isfinite(f) else None for f in losses])
        return losses

    for seed, problem in instances.items():
        if not any("optimum" in row and row["seed"] == seed for row in known):
            keep(seed=seed, optimum=optimum(problem), start=problem.full(problem.start))
    if published:
        for method, of in published["methods"].items():
            print(name, method, flush=True)
            for seed in instances:
                made(method, of["gamma"], seed)
        return
    tuning = instances[TUNING_SEED]
    for method, kind in METHODS.items():
        if kind.objection(tuning):
            continue
        print(name, method, flush=True)
        for k in range(RATES):
            made(method, _rate(kind.base(tuning), k), TUNING_SEED)
    start = next(row["start"] for row in known if "start" in row and row["seed"] == TUNING_SEED)
    for method, kind in METHODS.items():
        if kind.objection(tuning):
            continue
        first, last = 0, RATES - 1
        for _ in range(MORE_RATES):
            gamma = chosen(known, method, start, lowest(known, TUNING_SEED), tuning.target)
            first, last = (
                first - (gamma == _rate(kind.base(tuning), first)),
                last + (gamma == _rate(kind.base(tuning), last)),
            )
            for k in (first, last):
                made(method, _rate(kind.base(tuning), k), TUNING_SEED)
    for method, kind in METHODS.items():
        if not kind.objection(tuning):
            gamma = chosen(known, method, start, lowest(known, TUNING_SEED), tuning.target)
            for seed in REPORT_SEEDS:
                made(method, gamma, seed)


def rows_of(path: Path) -> list[dict[str, Any]]:
    """The first of each run, should two processes have made it."""
    rows: dict[Any, dict[str, Any]] = {}
    for line in path.read_text().splitlines():
        row = json.loads(line)
        rows.setdefault((row.get("method"), row.get("gamma"), row["seed"]), row)
    return list(rows.values())


def _rate(base: float, k: int) -> float:
    return float(f"{base * 10 ** ((k - RATES // 2) / 2):.3g}")


def lowest(rows: list[dict[str, Any]], seed: int) -> float:
    """The optimum, or the lowest f of all runs on the seed."""
    found = [row["optimum"] for row in rows if row["seed"] == seed and row.get("optimum") is not None]
    found += [f for row in rows if row["seed"] == seed for f in row.get("losses", []) if f is not None]
    return min(found)


def gaps(losses: list[float | None], start: float, floor: float) -> list[float]:
    return [math.inf if f is None else (f - floor) / (start - floor) for f in losses]


def reached(curve: list[float], target: float) -> float:
    """The gradients after which the gap stays below the target; infinite if it does not."""
    last = max((i for i, gap in enumerate(curve) if not gap <= target), default=-1)
    return SHOWN[last + 1] if last + 1 < len(curve) else math.inf


def chosen(rows: list[dict[str, Any]], method: str, start: float, floor: float, target: float) -> float:
    """The learning rate with the fewest gradients to the target, or the smallest gap at the end."""

    def score(row: dict[str, Any]) -> tuple[float, float]:
        curve = gaps(row["losses"], start, floor)
        return reached(curve, target), curve[-1]

    tried = [row for row in rows if row.get("method") == method and row["seed"] == TUNING_SEED]
    gamma: float = min(tried, key=score)["gamma"]
    return gamma


# ------------------------------------------------------------------------------------------------------------- data


def gather(out: Path) -> None:
    """constrained.json.gz: curves of the reported runs, and the end of each that was tuned.

    Of a problem that was not tuned anew, the seeds that are there already stay, and others are added.
    """
    from research.constrained.problems import PROBLEMS

    known = read()["problems"] if DATA.exists() else {}
    found: dict[str, Any] = {}
    for name in PROBLEMS:
        path = out / f"{name}.jsonl"
        rows = rows_of(path) if path.exists() else []
        tuned = _tuned(name, rows)
        of = _gathered(name, rows, None if tuned else known[name]) if tuned or name in known else None
        if of is not None:
            found[name] = of
    numbers = {"gradients": GRADIENTS, "shown": SHOWN, "problems": found}
    kept.pack(DATA, json.dumps(numbers, separators=(",", ":"), ensure_ascii=False) + "\n")


def _tuned(name: str, rows: list[dict[str, Any]]) -> bool:
    """Whether all methods have run at all learning rates."""
    from research.constrained.methods import METHODS
    from research.constrained.problems import build

    problem = build(name, TUNING_SEED)
    runs = [row["method"] for row in rows if row["seed"] == TUNING_SEED and "method" in row]
    return all(runs.count(method) >= RATES for method, kind in METHODS.items() if not kind.objection(problem))


def _gathered(name: str, rows: list[dict[str, Any]], before: dict[str, Any] | None) -> dict[str, Any] | None:
    """What is kept of one problem: what was there `before`, and the seeds that were run since, by all methods.

    Without `before`, the tuning and all seeds; None if there are none.
    """
    from research.constrained.methods import METHODS
    from research.constrained.problems import build

    problem = build(name, TUNING_SEED)
    starts = {row["seed"]: row["start"] for row in rows if "start" in row}
    optima = {row["seed"]: row["optimum"] for row in rows if "optimum" in row}
    methods: dict[str, Any] = {}
    for method in (m for m, kind in METHODS.items() if not kind.objection(problem)):
        if before is not None:
            methods[method] = dict(before["methods"][method])
            continue
        start, floor = starts[TUNING_SEED], lowest(rows, TUNING_SEED)
        tried = []
        for row in rows:
            if row.get("method") == method and row["seed"] == TUNING_SEED:
                curve = gaps(row["losses"], start, floor)
                tried.append([row["gamma"], _finite(reached(curve, problem.target)), _short(curve[-1])])
        gamma = chosen(rows, method, start, floor, problem.target)
        methods[method] = {"gamma": gamma, "tried": sorted(tried, key=lambda of: of[0]), "curves": []}
    runs = {(row["method"], row["gamma"], row["seed"]): row["losses"] for row in rows if "method" in row}
    old = [] if before is None else before["seeds"]
    new = [s for s in REPORT_SEEDS if s not in old and all((m, of["gamma"], s) in runs for m, of in methods.items())]
    if not old and not new:
        return None
    for method, of in methods.items():
        curves = [gaps(runs[method, of["gamma"], s], starts[s], lowest(rows, s)) for s in new]
        of["curves"] = of["curves"] + [[_short(gap) for gap in curve] for curve in curves]

    def above(seed: int) -> float | None:
        """What the lowest run is above the optimum, relative to the start."""
        if optima[seed] is None:
            return None
        least = min(f for row in rows if row["seed"] == seed for f in row.get("losses", []) if f is not None)
        return _short((least - optima[seed]) / (starts[seed] - lowest(rows, seed)))

    known = [] if before is None else before["above"]
    return {
        "target": problem.target,
        "convex": problem.convex,
        "seeds": [*old, *new],
        "above": [*known, *map(above, new if before is not None else [TUNING_SEED, *new])],
        "methods": methods,
        "left out": {m: reason for m, kind in METHODS.items() if (reason := kind.objection(problem))},
    }


def _finite(value: float) -> float | None:
    return value if math.isfinite(value) else None


def _short(value: float) -> float | None:
    return float(f"{value:.3g}") if math.isfinite(value) else None


def read() -> dict[str, Any]:
    numbers: dict[str, Any] = kept.unpack(DATA)
    return numbers


# ------------------------------------------------------------------------------------------------------------- page


def hits(of: dict[str, Any], method: str) -> list[float]:
    """Of each reported seed, the gradients to the target."""
    curves = [[math.inf if gap is None else gap for gap in curve] for curve in of["methods"][method]["curves"]]
    return [reached(curve, of["target"]) for curve in curves]


def best_rival(of: dict[str, Any]) -> str | None:
    """The rival with the least median; None if no rival reaches the target on most seeds."""
    rivals = [m for m in of["methods"] if m not in OF_OURS]
    best = min(rivals, key=lambda m: median(hits(of, m)))
    return best if math.isfinite(median(hits(of, best))) else None


def ratio(of: dict[str, Any], ours: str = OURS) -> float:
    """Median gradients of ours over those of the best rival; 0 if only ours gets there, infinite if only rivals do."""
    rival, own = best_rival(of), median(hits(of, ours))
    if rival is None:
        return 0.0 if math.isfinite(own) else math.nan
    return own / median(hits(of, rival))


def paired(of: dict[str, Any]) -> list[float] | None:
    """The 95 % interval of the ratio of ours to the best rival, by the seeds' logarithms; None if a run has no hit."""
    from scipy.stats import t

    rival = best_rival(of)
    pairs = [] if rival is None else list(zip(hits(of, OURS), hits(of, rival), strict=True))
    if not pairs or not all(math.isfinite(n) for pair in pairs for n in pair):
        return None
    logs = [math.log(own / other) for own, other in pairs]
    half = float(t.ppf(0.975, len(logs) - 1)) * stdev(logs) / math.sqrt(len(logs))
    return [math.exp(mean(logs) - half), math.exp(mean(logs) + half)]


def _paired_words(of: dict[str, Any]) -> str:
    rival, interval = best_rival(of), paired(of)
    if rival is None:
        return ""
    if interval is not None:
        return f" [{interval[0]:.2g}, {interval[1]:.2g}]"
    pairs = list(zip(hits(of, OURS), hits(of, rival), strict=True))
    return f" [first on {sum(own < other for own, other in pairs)} of {len(pairs)} seeds]"


def final_gap(of: dict[str, Any], method: str) -> float:
    """The median of the last gaps."""
    return median(math.inf if curve[-1] is None else curve[-1] for curve in of["methods"][method]["curves"])


def _cell(of: dict[str, Any], method: str) -> str:
    if method not in of["methods"]:
        return ""
    found = hits(of, method)
    if math.isfinite(median(found)):
        return f"{median(found):g}"
    end = final_gap(of, method)
    return f"({end:.1e})" if math.isfinite(end) else "(∞)"


def _ratio_words(value: float) -> str:
    if math.isnan(value):
        return "none gets there"
    if value == 0:
        return "only ours"
    return "never" if math.isinf(value) else f"{value:.2g}"


def tables(numbers: dict[str, Any]) -> str:
    problems = numbers["problems"]
    methods = list(dict.fromkeys(m for of in problems.values() for m in of["methods"]))
    ordered = [m for m in OF_OURS if m in methods] + [m for m in methods if m not in OF_OURS]
    lines = [
        "| problem | target | " + " | ".join(ordered) + " | ours / best rival |",
        "|---" * (len(ordered) + 3) + "|",
    ]
    for name, of in problems.items():
        cells = [_cell(of, m) for m in ordered]
        least = min((float(c) for c in cells if c and c[0] != "("), default=None)
        cells = [f"**{c}**" if c and c[0] != "(" and float(c) == least else c for c in cells]
        rival = best_rival(of)
        against = f" ({rival})" if rival else ""
        last = f"{_ratio_words(ratio(of))}{_paired_words(of)}{against}"
        lines.append(f"| {name} | {of['target']:g} | " + " | ".join(cells) + f" | {last} |")
    return "\n".join(lines)


def summary(numbers: dict[str, Any]) -> str:
    found = {name: ratio(of) for name, of in numbers["problems"].items()}
    half = [name for name, value in found.items() if value <= 0.5]
    level = [name for name, value in found.items() if 0.5 < value <= 1]
    lost = [name for name, value in found.items() if value > 1]
    nobody = [name for name, value in found.items() if math.isnan(value)]
    words = [
        f"With Adam's H, the exact step needs at most half the gradients of the best rival on {len(half)} of "
        f"{len(found)} problems{_listed(half)}.",
        f"It is ahead by less, or level, on {len(level)}{_listed(level)}.",
        f"It is behind on {len(lost)}{_listed(lost)}.",
    ]
    intervals = {name: paired(of) for name, of in numbers["problems"].items()}
    below = [name for name, interval in intervals.items() if interval and interval[1] < 1]
    above = [name for name, interval in intervals.items() if interval and interval[0] > 1]
    words.append(
        f"The 95 % interval of the ratio over paired seeds is below 1 on {len(below)}{_listed(below)} and above 1 on "
        f"{len(above)}{_listed(above)}."
    )
    for name in nobody:
        of = numbers["problems"][name]
        rival = min((m for m in of["methods"] if m not in OF_OURS), key=lambda m: final_gap(of, m))
        words.append(
            f"Nobody reaches the target on {name}: the exact step ends with a gap of {final_gap(of, OURS):.1e}, "
            f"the best rival ({rival}) with {final_gap(of, rival):.1e}."
        )
    soap = [
        f"{_ratio_words(ratio(of, OF_OURS[1]))} on {name}"
        for name, of in numbers["problems"].items()
        if OF_OURS[1] in of["methods"]
    ]
    words.append(f"With SOAP's H, where the set allows it, the ratio to the best rival is {', '.join(soap)}.")
    return "\n".join(words)


def _listed(names: list[str]) -> str:
    return f" ({'; '.join(names)})" if names else ""


def tolerance(numbers: dict[str, Any]) -> str:
    """How many of the learning rates that were tried reach the target, over the problems that a method is for."""
    counts: dict[str, list[bool]] = {}
    for of in numbers["problems"].values():
        for method, runs in of["methods"].items():
            counts.setdefault(method, []).extend(hit is not None for _, hit, _ in runs["tried"])
    ordered = sorted(counts, key=lambda m: -sum(counts[m]) / len(counts[m]))
    return "; ".join(f"{m} {100 * sum(counts[m]) / len(counts[m]):.0f} %" for m in ordered)


def edges(numbers: dict[str, Any]) -> str:
    """Methods whose best learning rate is the least or the largest that was tried."""
    found = []
    for name, of in numbers["problems"].items():
        for method, runs in of["methods"].items():
            rates = [gamma for gamma, *_ in runs["tried"]]
            if runs["gamma"] in (min(rates), max(rates)):
                found.append(f"{method} on {name}")
    return "; ".join(found)


def section(numbers: dict[str, Any]) -> str:
    at_edge = edges(numbers)
    note = f"The best learning rate was at an end of those tried for: {at_edge}." if at_edge else ""
    below = max(-gap for of in numbers["problems"].values() for gap in of["above"] if gap is not None)
    seeds, gradients = _seeds(numbers), numbers["gradients"]
    return f"""{BEGIN}

{summary(numbers)}

Gradients until the gap f - f*, relative to that at the start, stays below the target: medians of
{seeds}. In parentheses: the gap after {gradients}, where the target is not reached. Empty: the method is not for
the problem. In brackets: the 95 % interval of the ratio over paired seeds (Student's t of its logarithm). If either
method misses the target on some seed: the number of seeds on which ours was faster.

{tables(numbers)}

The share of the learning rates tried that reach the target, over all problems that a method is for:
{tolerance(numbers)}.

On convex problems f* is that of cvxpy, of SLSQP (mixture weights) or of 4,000 accelerated gradients (softmax); no
run ends below f* by more than {below:.0e} of the initial gap. On the last four it is the lowest f of all runs on a
seed.
{note}

{END}"""


def _seeds(numbers: dict[str, Any]) -> str:
    """How many seeds there are; of which problems fewer."""
    counts = {name: len(of["seeds"]) for name, of in numbers["problems"].items()}
    most = max(counts.values())
    fewer = [f"{name}: {count}" for name, count in counts.items() if count < most]
    return f"{most} seeds" + (f" (fewer on {'; '.join(fewer)})" if fewer else "")


def page() -> str:
    text = PAGE.read_text(encoding="utf-8")
    before, rest = text.split(BEGIN)
    _, after = rest.split(END)
    return before + section(read()) + after


# ------------------------------------------------------------------------------------------------------------- picture


FEW = ("optimal transport, rows", "mixture weights", "portfolio, caps", "softmax digits, l2 ball")


def draw() -> None:
    """All problems."""
    names = tuple(read()["problems"])
    rows = -(-len(names) // 3)
    _draw("rivals", names, (rows, 3), 0.6 + 2 * rows)


def draw_few() -> None:
    """Where the exact step is far ahead, ahead, a little ahead, and behind."""
    _draw("rivals_few", FEW, (2, 2), 5.6)


def _draw(picture: str, names: tuple[str, ...], shape: tuple[int, int], height: float) -> None:
    import style

    numbers = read()
    looks = {
        OURS: (style.GREEN, "-", 2.4),
        OF_OURS[1]: (style.GREEN, "--", 1.4),
        OF_OURS[2]: (style.GREEN, ":", 1.4),
        "projected SGD, momentum": (style.BLUE, "-", 1.3),
        "mirror descent": (style.OCHRE, "-", 1.3),
        "reparametrised, Adam": (style.OCHRE, "--", 1.3),
        "Adam, then projected": (style.RED, "-", 1.3),
        "Frank–Wolfe": (style.GREY, "-", 1.1),
        "Lagrangian (Cooper)": (style.GREY, "--", 1.1),
    }
    fig, panels = style.panels(*shape, height, sharex=True)
    lines = {}
    for panel in panels.flat[len(names) :]:
        panel.set_axis_off()
    for panel, name in zip(panels.flat[: len(names)], names, strict=True):
        of = numbers["problems"][name]
        for method, (color, dash, width) in reversed(looks.items()):
            if method in of["methods"]:
                curves = [[math.inf if gap is None else gap for gap in c] for c in of["methods"][method]["curves"]]
                middle = [min(max(median(gap), 1e-7), 3.0) for gap in zip(*curves, strict=True)]
                (lines[method],) = panel.plot(numbers["shown"][::2], middle[::2], dash, color=color, linewidth=width)
        panel.axhline(of["target"], color=style.INK, linewidth=0.6)
        panel.set(xscale="log", yscale="log", ylim=(of["target"] / 30, 4), xticks=[1, 10, 100])
        panel.set_title(name.replace("breast cancer in other units, l1 ball", "breast cancer, other units"), fontsize=9)
        panel.tick_params(labelsize=8)
        panel.minorticks_off()
    shown = [m for m in looks if m in lines]
    fig.legend([lines[m] for m in shown], shown, loc="outside lower center", ncols=3, fontsize=8)
    for panel in panels[-1]:
        panel.set_xlabel("gradients", fontsize=9)
    fig.supylabel("gap to the optimum, relative to the start", fontsize=9)
    style.save(fig, HERE / f"{picture}.svg")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("problems", nargs="*", metavar="PROBLEM", help='names of problems, or "all"')
    parser.add_argument("--out", type=Path, default=ROOT / "build" / "constrained")
    parser.add_argument("--check", action="store_true")
    parser.add_argument("--more", action="store_true", help="only problems and seeds that the data do not have")
    parser.add_argument("--jobs", type=int, default=1, help="processes, each with problems of its own")
    args = parser.parse_args()
    if args.problems:
        from research.constrained.problems import PROBLEMS

        args.out.mkdir(parents=True, exist_ok=True)
        published = read()["problems"] if args.more else {}
        names = list(PROBLEMS) if args.problems == ["all"] else args.problems
        names.sort(key=lambda name: name in published)  # those to be tuned take longest
        # New processes: torch's threads do not survive a fork.
        with ProcessPoolExecutor(args.jobs, multiprocessing.get_context("spawn")) as pool:
            for run in [pool.submit(run_problem, name, args.out, published.get(name)) for name in names]:
                run.result()
        return
    if args.check:
        sys.exit(page() != PAGE.read_text(encoding="utf-8"))
    if args.out.exists():
        gather(args.out)
    PAGE.write_text(page(), encoding="utf-8")


if __name__ == "__main__":
    main()
