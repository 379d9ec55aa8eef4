"""How the pictures of the docs and of research look.

Pictures are SVG, six inches wide, so that their text can still be read on a telephone (380 pixels), and have a
background of their own: a light one, or a dark one where the page is dark. The same numbers make the same bytes.
"""

import io
from pathlib import Path

import matplotlib

matplotlib.use("svg")
from matplotlib import pyplot as plt

ROOT = Path(__file__).resolve().parent.parent
IMG = ROOT / "docs" / "img"

WIDTH = 6.0
PAPER, INK, FAINT = "#fdfdfd", "#22262b", "#d9dce1"
DARK = {PAPER: "#1e2129", INK: "#d6dae2", FAINT: "#3b404c"}
# Told apart on both backgrounds, and by people who do not see all colours.
RED, GREEN, BLUE, OCHRE, GREY = "#d1593b", "#17917f", "#3f7fc4", "#c08a1e", "#858b95"

RC = {
    "svg.hashsalt": "superadam",
    "font.size": 10,
    "axes.titlesize": 10.5,
    "legend.fontsize": 9.5,
    "legend.frameon": False,
    "lines.linewidth": 1.8,
    "axes.grid": True,
    "axes.axisbelow": True,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "grid.color": FAINT,
    "grid.linewidth": 0.7,
    "mathtext.fontset": "dejavusans",
    "savefig.facecolor": PAPER,
    **dict.fromkeys(("figure.facecolor", "axes.facecolor"), PAPER),
    **dict.fromkeys(("text.color", "axes.labelcolor", "axes.edgecolor", "xtick.color", "ytick.color"), INK),
}
plt.rcParams.update(RC)


def panels(rows=1, columns=1, height=3.2, **options):
    """A figure and its panels."""
    return plt.subplots(rows, columns, figsize=(WIDTH, height), layout="constrained", **options)


def svg(fig):
    """The figure as SVG, with other colours for dark pages."""
    text = io.StringIO()
    fig.savefig(text, format="svg", metadata={"Date": None, "Creator": None})
    plt.close(fig)
    return with_dark(text.getvalue())


def with_dark(text):
    """An SVG drawn in these colours, which has others where the page is dark."""
    rules = (
        f'[style*="{kind}: {light}"] {{ {kind}: {dark} !important }}'
        for light, dark in DARK.items()
        for kind in ("fill", "stroke")
    )
    css = f"<style>@media (prefers-color-scheme: dark) {{ {' '.join(rules)} }}</style>"
    return text.replace("<defs>", f"{css}\n <defs>", 1)


def save(fig, path):
    """Write the figure as an SVG file."""
    path.write_text(svg(fig))
    print(f"{path}, {path.stat().st_size // 1000} kB")
