"""The algorithm as a diagram of the paper's four choices, and the way of one step through the modules."""

from matplotlib.patches import FancyBboxPatch

import style

CHOICES = {  # keyword of SuperAdam → what it chooses, and some of what there is
    "matrix": ("the matrix H$_t$", "second moments (Adam's), a norm,\nbelief, Barzilai-Borwein, L-BFGS"),
    "constraint": ("the set $\\mathcal{X}$", "box, balls, simplex, affine, …;\npenalties h: l1, group lasso, …"),
    "schedule": ("the weights μ$_t$, α$_t$", "the paper's, constant, Adam's\nbias correction, STORM's"),
    "tau": ("the estimate g$_t$", "τ = 0: momentum\nτ = 1: variance reduction"),
}
LINES = {
    "matrix": ["H$_t$  from  ∇f(x$_t$; ξ$_t$)"],
    "constraint": [
        "x̃  =  argmin  ⟨g$_t$, x⟩ + h(x)",
        "        $_{x ∈ \\mathcal{X}}$     + $\\frac{1}{2γ}$ (x−x$_t$)ᵀ H$_t$ (x−x$_t$)",
    ],
    "schedule": ["x$_{t+1}$  =  (1−μ$_t$) x$_t$ + μ$_t$ x̃"],
    "tau": ["g$_{t+1}$  =  α ∇f(x$_{t+1}$) + (1−α) [g$_t$", "        + τ (∇f(x$_{t+1}$) − ∇f(x$_t$))]"],
}
NUMBERS = {"matrix": "(4)", "constraint": "(9)", "schedule": "(10)", "tau": "(11)"}
METHODS = {
    "Adam": {"matrix": "SecondMoment", "constraint": "–", "schedule": "BiasCorrected", "tau": "0"},
    "STORM": {"matrix": "AccumulatedNorm", "constraint": "–", "schedule": "Storm", "tau": "1"},
    "SUPER-ADAM": {"matrix": "case 1, 2, 3 or 4", "constraint": "any", "schedule": "Paper", "tau": "0 or 1"},
    "yours": {"matrix": "your own", "constraint": "Simplex", "schedule": "Constant", "tau": "0.1"},
}


def canvas(height):
    fig = style.plt.figure(figsize=(style.WIDTH, height))
    panel = fig.add_axes((0, 0, 1, 1))
    panel.set(xlim=(0, style.WIDTH), ylim=(height, 0))
    panel.axis("off")
    return fig, panel


def box(panel, x, y, width, height, color, *, filled=True):
    shape = f"round,pad=0,rounding_size={min(0.09, height / 3)}"
    if filled:
        panel.add_patch(FancyBboxPatch((x, y), width, height, shape, facecolor=color, alpha=0.14, linewidth=0))
    panel.add_patch(FancyBboxPatch((x, y), width, height, shape, facecolor="none", edgecolor=color, linewidth=1.2))


def arrow(panel, start, end, color):
    shape = {"arrowstyle": "-|>", "color": color, "linewidth": 1.3, "shrinkA": 0, "shrinkB": 0}
    panel.annotate("", end, start, arrowprops=shape)


def algorithm():
    colors = dict(zip(CHOICES, (style.GREEN, style.RED, style.OCHRE, style.BLUE), strict=True))
    fig, panel = canvas(6.05)
    height, gap = 0.86, 0.1
    panel.text(0.12, 0.24, "the paper's four choices", weight="bold", va="center")
    panel.text(2.92, 0.24, "one step", weight="bold", va="center")
    y = 0.46
    box(panel, 2.92, y, 2.96, 4 * height + 3 * gap, style.GREY, filled=False)
    for name, (what, parts) in CHOICES.items():
        color = colors[name]
        box(panel, 0.12, y, 2.4, height, color)
        panel.text(0.22, y + 0.19, what, color=color, weight="bold", va="center")
        panel.text(2.44, y + 0.19, f"{name}=", va="center", ha="right", family="monospace", fontsize=8.5, color=color)
        panel.text(0.22, y + 0.57, parts, va="center", fontsize=9, linespacing=1.25)
        middle = y + height / 2
        arrow(panel, (2.52, middle), (2.92, middle), color)
        panel.text(3.0, middle, NUMBERS[name], va="center", color=color, fontsize=9)
        lines = LINES[name]
        for i, line in enumerate(lines):
            panel.text(3.38, middle + 0.28 * (i - (len(lines) - 1) / 2), line, va="center", fontsize=9.5)
        y += height + gap
    panel.text(0.12, y + 0.17, "methods are choices", weight="bold", va="center")
    columns = dict(zip(CHOICES, (1.16, 2.56, 3.6, 5.0), strict=True))
    y += 0.47
    for name, x in columns.items():
        panel.text(x, y, name, color=colors[name], va="center", family="monospace", fontsize=8.5)
    for method, parts in METHODS.items():
        y += 0.27
        panel.text(0.12, y, method, va="center", fontsize=9, weight="bold")
        for name, x in columns.items():
            panel.text(x, y, parts[name], va="center", fontsize=9)
    style.save(fig, style.IMG / "algorithm.svg")


# What happens, and in which modules; then the same for τ > 0.
ONE_GRADIENT = [
    ("∇f(x$_t$; ξ$_t$)", "your loop, or the closure"),
    ("unscale, check", "optimizer, checks"),
    ("buckets of parameters that are alike", "options, bucket"),
    ("(11) g$_t$,  (4) H$_t$", "estimators, matrices"),
    ("sums over all of x; clip", "step, distributed"),
    ("(9) x̃,  (10) x$_{t+1}$", "step, sets, penalties"),
]
TWO_GRADIENTS = [
    ("q = ∇f(x$_{t-1}$; ξ$_t$)", "your loop, or the closure"),
    ("(9), (10): the pending move to x$_t$", "step, sets, penalties"),
    ("(11), first half: q into g", "estimators"),
    ("the same ξ$_t$ again, at x$_t$", "evaluations: generators, buffers"),
    ("(11) g$_t$,  (4) H$_t$;  sums, clip", "estimators, matrices, step"),
    ("the next move is pending", "phase and γ in the state, no copy of x"),
]
WAYS = [
    ("torch's fused", "matrices/fused"),
    ("torch.compile", "step.compiled"),
    ("pieces", "step.pieces"),
    ("lists", "lists"),
]


def step():
    fig, panel = canvas(5.75)
    width, height, gap = 2.78, 0.52, 0.19
    for x, title, stages, color in (
        (0.12, "τ = 0: one gradient of the batch", ONE_GRADIENT, style.RED),
        (3.1, "τ > 0: two gradients of the batch", TWO_GRADIENTS, style.GREEN),
    ):
        panel.text(x, 0.24, title, weight="bold", va="center")
        y = 0.46
        for i, (what, where) in enumerate(stages):
            box(panel, x, y, width, height, color)
            panel.text(x + width / 2, y + 0.17, what, va="center", ha="center")
            panel.text(x + width / 2, y + 0.38, where, va="center", ha="center", fontsize=8.5, color=color)
            if i:
                arrow(panel, (x + width / 2, y - gap), (x + width / 2, y), color)
            y += height + gap
    panel.text(
        0.12,
        y + 0.16,
        "how the lines (4), (9), (10), (11) run: step takes the first that can",
        weight="bold",
        va="center",
    )
    y += 0.36
    for i, (what, where) in enumerate(WAYS):
        x = 0.12 + i * 1.46
        box(panel, x, y, 1.38, height, style.BLUE)
        panel.text(x + 0.69, y + 0.17, what, va="center", ha="center")
        panel.text(x + 0.69, y + 0.38, where, va="center", ha="center", fontsize=8.5, color=style.BLUE)
    style.save(fig, style.IMG / "step.svg")
