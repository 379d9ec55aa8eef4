"""Draw docs/img/exact_step.png: why line 9 must be solved in the metric of H_t.

A quadratic in 20 dimensions with curvatures from 0.03 to 32, gradients with noise, on three sets. SUPER-ADAM with the
exact step against Adam followed by the Euclidean projection, which is what one writes by hand. Both have decreasing
learning rates, γ chosen from the same grid by the smallest gap in the last tenth of a run with other noise.

python scripts/exact_step.py    # a few minutes; prints the numbers of the page docs/constraints.md
"""

from pathlib import Path

import torch

from superadam import SuperAdam, sets

OUT = Path(__file__).resolve().parent.parent / "docs" / "img" / "exact_step.png"
STEPS, SIGMA = 10_000, 0.01
GRID = (0.01, 0.1, 1.0, 10.0)
TUNING_NOISE, REPORT_NOISE = 1, 2
SETS = {"simplex": sets.Simplex(), "l1 ball, r = 1": sets.L1Ball(1.0), "l2 ball, r = 1": sets.L2Ball(1.0)}
EXACT, PROJECTED = "SUPER-ADAM, exact step", "Adam, then Euclidean projection"

Q = torch.logspace(-1.5, 1.5, 20, dtype=torch.float64)
A = torch.randn(20, generator=torch.Generator().manual_seed(0), dtype=torch.float64)


def f(x):
    return 0.5 * (Q * (x - A) ** 2).sum(-1)


def run(method, constraint, gamma, noise, steps=STEPS):
    """f(x_t) - f* for every t. f* is exact: the minimiser of f on the set is argmin(A, Q), the step itself."""
    best = f(constraint.argmin(A, Q))
    gradient_noise = SIGMA * torch.randn(steps, 20, generator=torch.Generator().manual_seed(noise), dtype=torch.float64)
    x = torch.nn.Parameter(constraint.argmin(torch.zeros_like(A), 1.0))
    exact = method == EXACT
    opt = SuperAdam([x], lr=gamma, constraint=constraint) if exact else torch.optim.Adam([x], lr=gamma)
    points = torch.empty(steps, 20, dtype=torch.float64)
    for t in range(steps):
        x.grad = Q * (x.detach() - A) + gradient_noise[t]
        if not exact:  # the decrease of the paper's schedule, μ_t = 1/√(100 + t)
            opt.param_groups[0]["lr"] = gamma / (101 + t) ** 0.5
        opt.step()
        if not exact:
            with torch.no_grad():
                x.copy_(constraint.argmin(x, 1.0))
        points[t] = x.detach()
    return f(points) - best


def main(steps=STEPS, out=OUT):
    curves, results, tail = {}, {}, steps // 10
    for name, constraint in SETS.items():
        for method in (EXACT, PROJECTED):
            score = {g: run(method, constraint, g, TUNING_NOISE, steps)[-tail:].mean().item() for g in GRID}
            gamma = min(score, key=score.get)
            curves[name, method] = run(method, constraint, gamma, REPORT_NOISE, steps)
            results[name, method] = gamma, curves[name, method][-tail:].mean().item()
    print(f"f - f*, mean of the last {tail} of {steps} steps\n\n| set | {EXACT} (γ) | {PROJECTED} (γ) |\n|---|---|---|")
    for name in SETS:
        cells = (f"{results[name, m][1]:.1e} ({results[name, m][0]:g})" for m in (EXACT, PROJECTED))
        print(f"| {name} | " + " | ".join(cells) + " |")
    if out is not None:
        draw(curves, out)
        print(f"\n{out}, {out.stat().st_size // 1000} kB")
    return results


def draw(curves, out):
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot as plt

    fig, panels = plt.subplots(1, len(SETS), figsize=(10.5, 3.6), sharey=True, layout="constrained")
    for panel, name in zip(panels, SETS, strict=True):
        for method, color in ((EXACT, "#0b6e4f"), (PROJECTED, "#c8553d")):
            curve = curves[name, method]
            shown = torch.logspace(0, torch.log10(torch.tensor(float(len(curve)))), 300).long().unique().clamp(1)
            panel.plot(shown, curve[shown - 1].clamp(min=1e-12), label=method, color=color, linewidth=1.6)
        panel.set(title=name, xscale="log", yscale="log", xlabel="steps")
        panel.grid(alpha=0.3)
    panels[0].set_ylabel("f(x$_t$) − f*")
    panels[0].legend(loc="lower left", frameon=False)
    fig.suptitle("Quadratic in 20 dimensions, curvatures 0.03 to 32, noisy gradients", fontsize=11)
    out.parent.mkdir(exist_ok=True)
    fig.savefig(out, dpi=110, metadata={"Software": None})


if __name__ == "__main__":
    main()
