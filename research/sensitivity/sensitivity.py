"""How much the learning rate and a warm-up matter: a figure and tables of some rounds of research/search/search.py.

    python -m research.sensitivity.sensitivity            # sensitivity.svg, and the tables of README.md
    python -m research.sensitivity.sensitivity --check    # fails if the tables are not what would be written

The rounds are "learning rates", "defaults", "warm-up 0" and "warm-up 0.05". Between two learning
rates, the logarithm of the loss is taken as linear in that of the learning rate.
"""

import argparse
import itertools
import math
import sys
from collections.abc import Mapping
from statistics import fmean, median

import torch

import style
from research import kept
from research.search.search import NAME, PAGES, read
from superadam import create
from superadam_lab import bench
from superadam_lab.comparison.records import Results, final
from superadam_lab.comparison.statistics.intervals import paired
from superadam_lab.comparison.verdict.words import interval

PAGE = PAGES[1]
PICTURE = PAGE.with_name("sensitivity.svg")
NEAR = math.log(1.05)
Curve = list[tuple[float, float]]  # log of the learning rate, log of the final validation loss


def tried(results: Results, method: str) -> dict[float, list[float]]:
    """By learning rate, the logarithms of final losses on the tuning seeds; infinite for runs that diverged."""
    found: dict[float, list[float]] = {}
    for r in (r for r in results.records if r.phase == "tune" and r.method == method):
        loss = final(r, "valid_loss") if r.status == "finished" else math.inf
        found.setdefault(float(r.options["lr"]), []).append(math.log(loss) if math.isfinite(loss) else math.inf)
    return found


def curve(results: Results, method: str) -> Curve:
    """Of losses, the geometric mean over seeds."""
    return [(math.log(lr), fmean(losses)) for lr, losses in sorted(tried(results, method).items())]


def at(points: Curve, x: float) -> float:
    for (x0, y0), (x1, y1) in itertools.pairwise(points):
        if x0 <= x <= x1:
            return y0 + (y1 - y0) * (x - x0) / (x1 - x0)
    raise ValueError(f"A learning rate of {math.exp(x):.2g} was not tried")


def width(points: Curve) -> tuple[float, bool]:
    """The factor of learning rates around the best one that lose at most 5 %; and whether it ends with what was tried,
    so that it may be larger."""
    i = min(range(len(points)), key=lambda i: points[i][1])
    most = points[i][1] + NEAR

    def end(side: Curve) -> tuple[float, bool]:
        for (x0, y0), (x1, y1) in itertools.pairwise(side):
            if y1 > most:
                return x0 if math.isinf(y1) else x0 + (x1 - x0) * (most - y0) / (y1 - y0), False
        return side[-1][0], True

    (high, open_above), (low, open_below) = end(points[i:]), end(points[i::-1])
    return math.exp(high - low), open_above or open_below


def factor(points: Curve) -> str:
    found, more = width(points)
    return f"{'at least ' if more else ''}{found:.1f}"


def rates() -> bench.Table:
    """Seven learning rates of both methods on three seeds, and by how much seeds with one learning rate differ."""
    default = math.log(create("super_adam_plus", [torch.nn.Parameter(torch.ones(1))]).param_groups[0]["lr"])
    found = []
    for results in read("learning rates"):
        ours, theirs = (curve(results, method) for method in (NAME, "AdamW"))
        loss = math.exp(at(ours, default) - min(y for _, y in ours)) - 1
        apart = median(math.exp(max(losses) - min(losses)) for losses in tried(results, NAME).values()) - 1
        (task,) = results.plan.tasks
        found.append([f"`{task}`", factor(ours), factor(theirs), f"{100 * loss:.0f} %", f"{100 * apart:.0f} %"])
    head = ["", f"{NAME}: within 5 % over a factor of", "AdamW", f"{NAME} with its default lr: above its best by"]
    return bench.Table("", [*head, "seeds of one lr differ by"], found)


def finals(results: Results, method: str) -> Mapping[int, float]:
    runs = [r for r in results.records if r.phase == "report" and r.method == method]
    return {r.seed: final(r, "valid_loss") for r in runs}


def over(ours: Mapping[int, float], theirs: Mapping[int, float]) -> str:
    """The ratio of losses with the same seeds, and its interval."""
    return interval(paired([math.log(ours[seed] / theirs[seed]) for seed in theirs]).exp())


def defaults() -> bench.Table:
    found = []
    for results in read("defaults"):
        first, *others = results.plan.methods
        cells = [over(finals(results, method), finals(results, first)) for method in others]
        found.append([f"`{results.plan.tasks[0]}`", *cells])
    return bench.Table("", ["", *others], found)


def warmups() -> bench.Table:
    found, pairs = [], list(zip(read("warm-up 0.05"), read("warm-up 0"), strict=True))
    for with_it, without in pairs:
        cells = [over(finals(with_it, method), finals(without, method)) for method in with_it.plan.methods]
        found.append([f"`{with_it.plan.tasks[0]}`", *cells])
    return bench.Table("", ["", *pairs[0][0].plan.methods], found)


TABLES = {"sensitivity": rates, "defaults": defaults, "warm-up": warmups}


def page() -> str:
    text = PAGE.read_text(encoding="utf-8")
    for name, made in TABLES.items():
        text = kept.filled(text, name, made().markdown())
    return text


def draw() -> None:
    found = read("learning rates")
    lines = math.ceil(len(found) / 2)
    fig, axes = style.panels(lines, 2, height=1.7 * lines, sharex=True)
    for ax, results in zip(axes.flat, found, strict=False):
        best = min(y for method in (NAME, "AdamW") for _, y in curve(results, method))
        for method, colour, mark in ((NAME, style.RED, "o"), ("AdamW", style.GREY, "s")):
            points = [(math.exp(x), math.exp(y - best)) for x, y in curve(results, method) if math.isfinite(y)]
            ax.plot(*zip(*points, strict=True), color=colour, marker=mark, markersize=4, label=method)
        ax.axhspan(1, 1.05, color=style.FAINT, zorder=0)
        ax.set(title=results.plan.tasks[0], xscale="log")
        if min(y for _, y in curve(results, "AdamW")) - best > math.log(1.6):  # far apart
            ax.set(yscale="log")
        else:
            ax.set(ylim=(0.97, 1.6))
    for ax in axes[-1]:
        ax.set_xlabel("learning rate")
    fig.supylabel("final validation loss / the lowest")
    axes.flat[0].legend(loc="upper center")
    style.save(fig, PICTURE)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--check", action="store_true")
    if parser.parse_args().check:
        sys.exit(page() != PAGE.read_text(encoding="utf-8"))
    PAGE.write_text(page(), encoding="utf-8")
    draw()


if __name__ == "__main__":
    main()
