"""The picture of the second test: validation loss against gradients on four tasks that no search had seen.

python scripts/unseen.py    # docs/img/unseen.svg, from docs/data/search/locked again.json
"""

from statistics import median

import kept
import style
from locked import AGAIN, NAME

COLOURS = {NAME: style.RED, "SOAP": style.BLUE, "Muon": style.OCHRE, "AdamW": style.GREY}
TITLES = {
    "locked-bytes": "LSTM on program text",
    "locked-mixer": "MLP-Mixer on CIFAR-10",
    "locked-pendulum": "perceptron, double pendulum",
    "locked-sorting": "Transformer that sorts",
}


def draw() -> None:
    (results,) = kept.read(AGAIN.file)
    fig, axes = style.panels(2, 2, height=4.4)
    for ax, task in zip(axes.flat, results.plan.tasks, strict=True):
        for method, colour in COLOURS.items():
            runs = [r.rows for r in results.records if (r.task, r.method, r.phase) == (task, method, "report")]
            at = list(zip(*([row["valid_loss"] for row in rows[1:]] for rows in runs), strict=True))
            x = [row["gradient_evaluations"] for row in runs[0][1:]]
            ax.plot(x, [median(losses) for losses in at], color=colour, label=method, zorder=3 if method == NAME else 2)
            if method == "AdamW":
                ax.axhline(median(at[-1]), color=colour, linewidth=1, linestyle="--")
        ax.set(title=TITLES[task], yscale="log" if task in ("locked-pendulum", "locked-sorting") else "linear")
    for ax in axes[-1]:
        ax.set_xlabel("gradients")
    axes[0, 0].set(ylim=(1.4, 3.0))
    axes[0, 1].set(ylim=(1.25, 2.0))
    fig.supylabel("validation loss, median of 4 seeds")
    axes[0, 0].legend()
    style.save(fig, "unseen")


if __name__ == "__main__":
    draw()
