"""Compare SuperAdam with torch's Adam on scikit-learn's handwritten digits, at equal numbers of gradient evaluations.

Every method sees the same initial weights, the same batches and the same dropout masks, gets the same number of
gradients (so τ = 1, which takes two per step, takes half as many steps), and has its learning rate chosen from the same
grid on a validation set, over seeds that the report does not use. Writes demo-report/curves.png and results.json there.
"""

import json
import statistics
import sys
import time
from pathlib import Path

import torch
from sklearn.datasets import load_digits
from torch import nn

from superadam import SuperAdam

EVALUATIONS = 1200
BATCH = 32
TUNING_SEEDS, REPORT_SEEDS = (0, 1), (10, 11, 12, 13, 14)
METHODS = {
    "Adam (torch)": lambda model, lr: torch.optim.Adam(model.parameters(), lr=lr),
    "SUPER-ADAM τ=0": lambda model, lr: SuperAdam(model, lr=lr, tau=0.0),
    "SUPER-ADAM τ=1": lambda model, lr: SuperAdam(model, lr=lr, tau=1.0),
}
GRID = (1e-3, 3e-3, 1e-2, 3e-2, 1e-1)


def digits():
    """Train, validation and test sets: 1,000, 297 and 500 images of 8 × 8."""
    images, labels = load_digits(return_X_y=True)
    order = torch.randperm(len(labels), generator=torch.Generator().manual_seed(0))
    x = torch.tensor(images, dtype=torch.float32)[order] / 16
    y = torch.tensor(labels)[order]
    return [(x[a:b], y[a:b]) for a, b in ((0, 1000), (1000, 1297), (1297, 1797))]


def mlp():
    return nn.Sequential(nn.Linear(64, 128), nn.ReLU(), nn.Dropout(0.2), nn.Linear(128, 10))


def measure(model, x, y):
    """Loss and accuracy."""
    model.eval()
    with torch.no_grad():
        out = model(x)
    model.train()
    return nn.functional.cross_entropy(out, y).item(), (out.argmax(1) == y).float().mean().item()


def train(make, train_set, watch, *, seed, evaluations=EVALUATIONS, every=60):
    """Train until `evaluations` gradients are used. Returns the curve [(evaluations, loss, accuracy)] on `watch`."""
    torch.manual_seed(seed)
    model = mlp()
    opt = make(model)
    order = torch.Generator().manual_seed(seed)
    curve, used = [], 0

    def closure():
        nonlocal used
        used += 1
        opt.zero_grad()
        loss = nn.functional.cross_entropy(model(x), y)
        loss.backward()
        return loss

    while used < evaluations:
        for rows in torch.randperm(len(train_set[1]), generator=order).split(BATCH):
            x, y = train_set[0][rows], train_set[1][rows]
            before = used
            opt.step(closure)
            if used // every > before // every:
                curve.append((used, *measure(model, *watch)))
            if used >= evaluations:
                break
    if isinstance(opt, SuperAdam):
        opt.flush()
    curve.append((used, *measure(model, *watch)))
    return curve


def main(out=Path("demo-report")):
    train_set, valid_set, test_set = digits()
    jobs = len(METHODS) * (len(GRID) * len(TUNING_SEEDS) + len(REPORT_SEEDS))
    done, start = 0, time.time()

    def run(name, lr, watch, seed):
        nonlocal done
        curve = train(lambda model: METHODS[name](model, lr), train_set, watch, seed=seed)
        done += 1
        print(f"\r[{done:2d}/{jobs}] {time.time() - start:4.0f} s  {name}, lr {lr:g}".ljust(60), end="", flush=True)
        return curve

    results = {}
    for name in METHODS:
        score = {lr: statistics.mean(run(name, lr, valid_set, seed)[-1][1] for seed in TUNING_SEEDS) for lr in GRID}
        lr = min(score, key=score.get)
        curves = [run(name, lr, test_set, seed) for seed in REPORT_SEEDS]
        results[name] = {"lr": lr, "grid": GRID, "curves": curves}
    print("\r" + " " * 60 + "\r", end="")

    print(f"digits, MLP with dropout, {EVALUATIONS} gradient evaluations, {len(REPORT_SEEDS)} seeds, mean ± deviation")
    print(f"{'method':16s} {'lr':>8s} {'test loss':>18s} {'test accuracy':>20s}")
    for name, result in results.items():
        finals = [curve[-1] for curve in result["curves"]]
        loss, accuracy = zip(*((f[1], 100 * f[2]) for f in finals), strict=True)
        print(
            f"{name:16s} {result['lr']:8g} {statistics.mean(loss):10.3f} ± {statistics.stdev(loss):.3f}"
            f" {statistics.mean(accuracy):12.1f} ± {statistics.stdev(accuracy):.1f} %"
        )
    out.mkdir(exist_ok=True)
    (out / "results.json").write_text(json.dumps(results, indent=1))
    draw(results, out / "curves.png")
    print(f"Report: {out / 'curves.png'}, numbers in {out / 'results.json'} ({time.time() - start:.0f} s)")


def draw(results, path):
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot as plt

    fig, panels = plt.subplots(1, 2, figsize=(11, 4.2), layout="constrained")
    for name, result in results.items():
        curves = torch.tensor([curve[:20] for curve in result["curves"]])
        for panel, column, scale in ((panels[0], 1, 1), (panels[1], 2, 100)):
            value = scale * curves[:, :, column]
            (line,) = panel.plot(curves[0, :, 0], value.mean(0), label=f"{name}, lr {result['lr']:g}")
            panel.fill_between(
                curves[0, :, 0], value.amin(0), value.amax(0), color=line.get_color(), alpha=0.15, linewidth=0
            )
    panels[0].set(ylabel="test loss", yscale="log")
    panels[1].set(ylabel="test accuracy (%)", ylim=(85, 100))
    for panel in panels:
        panel.set_xlabel("gradient evaluations")
        panel.grid(alpha=0.3)
    panels[0].legend()
    fig.suptitle("Digits, MLP with dropout: mean and range over 5 seeds, learning rates tuned on validation")
    fig.savefig(path, dpi=130)


if __name__ == "__main__":
    sys.exit(main())
