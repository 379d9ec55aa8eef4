"""How much the learning rate matters: the runs of `python scripts/search.py "learning rates"`, a figure and a table.

    python scripts/sensitivity.py            # docs/img/sensitivity.svg, and the table of docs/results.md
    python scripts/sensitivity.py --check    # fails if the table is not what would be written

Each method has six learning rates on one seed, none stopped early. Between two of them, the logarithm of the loss is
taken as linear in that of the learning rate.
"""

import argparse
import itertools
import math
import sys

import style
import torch
from search import NAME, PAGES, read

from superadam import bench, create
from superadam.lab.comparison.records import Results, final

PAGE = PAGES[1]
BEFORE, AFTER = "<!-- sensitivity -->\n\n", "\n\n<!-- end -->"
NEAR = math.log(1.05)
Curve = list[tuple[float, float]]  # log of the learning rate, log of the final validation loss


def curve(results: Results, method: str) -> Curve:
    """Runs that diverged have an infinite loss."""
    tried = [r for r in results.records if r.phase == "tune" and r.method == method]
    losses = {float(r.options["lr"]): final(r, "valid_loss") if r.status == "finished" else math.inf for r in tried}
    return [(math.log(lr), math.log(loss) if math.isfinite(loss) else math.inf) for lr, loss in sorted(losses.items())]


def at(points: Curve, x: float) -> float:
    for (x0, y0), (x1, y1) in itertools.pairwise(points):
        if x0 <= x <= x1:
            return y0 + (y1 - y0) * (x - x0) / (x1 - x0)
    raise ValueError(f"A learning rate of {math.exp(x):.2g} was not tried")


def width(points: Curve) -> float:
    """The factor of learning rates around the best one that lose at most 5 %, among those that were tried."""
    i = min(range(len(points)), key=lambda i: points[i][1])
    most = points[i][1] + NEAR

    def end(side: Curve) -> float:
        for (x0, y0), (x1, y1) in itertools.pairwise(side):
            if y1 > most:
                return x0 if math.isinf(y1) else x0 + (x1 - x0) * (most - y0) / (y1 - y0)
        return side[-1][0]

    return math.exp(end(points[i:]) - end(points[i::-1]))


def rows() -> list[list[str]]:
    default = math.log(create("super_adam_plus", [torch.nn.Parameter(torch.ones(1))]).param_groups[0]["lr"])
    found = []
    for results in read("learning rates"):
        ours, theirs = (curve(results, method) for method in (NAME, "AdamW"))
        loss = math.exp(at(ours, default) - min(y for _, y in ours)) - 1
        (task,) = results.plan.tasks
        found.append([f"`{task}`", f"{width(ours):.1f}", f"{width(theirs):.1f}", f"{100 * loss:.0f} %"])
    return found


def page() -> str:
    head = ["", f"{NAME}: within 5 % over a factor of", "AdamW", f"{NAME} with its default lr: above its best by"]
    text = PAGE.read_text(encoding="utf-8")
    start = text.index(BEFORE) + len(BEFORE)
    return text[:start] + bench.Table("", head, rows()).markdown() + text[text.index(AFTER, start) :]


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
    style.save(fig, "sensitivity")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--check", action="store_true")
    if parser.parse_args().check:
        sys.exit(page() != PAGE.read_text(encoding="utf-8"))
    PAGE.write_text(page(), encoding="utf-8")
    draw()


if __name__ == "__main__":
    main()
