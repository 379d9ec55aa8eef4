"""The picture of the third test: validation loss against gradients on four tasks that no search had seen.

python -m research.locked.unseen    # unseen.svg, from data/locked third.json.gz
"""

from statistics import median

import style
from research import kept
from research.locked.locked import HERE, NAME, THIRD

COLOURS = {NAME: style.RED, "SOAP": style.BLUE, "Muon": style.OCHRE, "NAdamW": style.GREEN, "AdamW": style.GREY}
TITLES = {
    "locked-plays": "Llama on Shakespeare",
    "locked-rotations": "CNN, rotated CIFAR-10",
    "locked-diffusion": "U-Net, reaction-diffusion",
    "locked-solids": "PointNet on solids",
}


def draw() -> None:
    (results,) = kept.read(THIRD.file)
    fig, axes = style.panels(2, 2, height=4.4)
    for ax, task in zip(axes.flat, results.plan.tasks, strict=True):
        for method, colour in COLOURS.items():
            runs = [r.rows for r in results.records if (r.task, r.method, r.phase) == (task, method, "report")]
            at = list(zip(*([row["valid_loss"] for row in rows[1:]] for rows in runs), strict=True))
            x = [row["gradient_evaluations"] for row in runs[0][1:]]
            ax.plot(x, [median(losses) for losses in at], color=colour, label=method, zorder=3 if method == NAME else 2)
            if method == "AdamW":
                ax.axhline(median(at[-1]), color=colour, linewidth=1, linestyle="--")
        last = [r.rows[-1]["valid_loss"] for r in results.records if r.task == task and r.phase == "report"]
        first = median([rows[1]["valid_loss"] for rows in runs])
        scale = "log" if task == "locked-diffusion" else "linear"  # its loss goes towards 0
        ax.set(title=TITLES[task], yscale=scale, ylim=(0.97 * min(last), first))
    for ax in axes[-1]:
        ax.set_xlabel("gradients")
    fig.supylabel("validation loss, median of 5 seeds")
    axes[1, 1].legend()
    style.save(fig, HERE / "unseen.svg")


if __name__ == "__main__":
    draw()
