"""Why line 9 must be solved in the metric of H_t: the numbers of README.md, and exact_step.json.

A quadratic in 20 dimensions with curvatures from 0.03 to 32, gradients with noise, on three sets. SUPER-ADAM with the
exact step against Adam followed by the Euclidean projection, which is what one writes by hand. Both have decreasing
learning rates, γ chosen from the same grid by the smallest gap in the last tenth of a run with other noise.

python -m research.exact_step.exact_step             # a few minutes
python -m research.pictures exact_step    # draws exact_step.svg from them
"""

import json
import math
from pathlib import Path

import torch

from superadam import SuperAdam, sets

HERE = Path(__file__).resolve().parent
DATA = HERE / "exact_step.json"

STEPS, SIGMA = 10_000, 0.01
GRID = (0.01, 0.1, 1.0, 10.0)
TUNING_NOISE, REPORT_NOISE = 1, 2
SETS = {"simplex": sets.Simplex(), "l1 ball, r = 1": sets.L1Ball(1.0), "l2 ball, r = 1": sets.L2Ball(1.0)}
EXACT, PROJECTED = "SUPER-ADAM, exact step", "Adam, then Euclidean projection"


class Quadratic:
    """f(x) = ½ Σ qᵢ (xᵢ - aᵢ)²."""

    def __init__(self, q, a):
        self.q, self.a = q, a

    def __call__(self, x):
        return 0.5 * (self.q * (x - self.a) ** 2).sum(-1)

    def minimiser(self, constraint):
        """On a set, and exact: it is line 9 itself, with Q for H_t."""
        return constraint.argmin(self.a, self.q)


TWENTY = Quadratic(
    torch.logspace(-1.5, 1.5, 20, dtype=torch.float64),
    torch.randn(20, generator=torch.Generator().manual_seed(0), dtype=torch.float64),
)


def run(method, f, constraint, gamma, noise, steps=STEPS, x_1=None):
    """x_2, x_3, … of one of the two methods; x_1 is the point of the set that is nearest to zero, if not given."""
    generator = torch.Generator().manual_seed(noise)
    gradient_noise = SIGMA * torch.randn(steps, len(f.a), generator=generator, dtype=torch.float64)
    x = torch.nn.Parameter(constraint.argmin(torch.zeros_like(f.a), 1.0) if x_1 is None else x_1.clone())
    exact = method == EXACT
    opt = (
        SuperAdam([x], lr=gamma, schedule="Paper", constraint=constraint) if exact else torch.optim.Adam([x], lr=gamma)
    )
    points = torch.empty(steps, len(f.a), dtype=torch.float64)
    for t in range(steps):
        x.grad = f.q * (x.detach() - f.a) + gradient_noise[t]
        if not exact:  # the decrease of the paper's schedule, μ_t = 1/√(100 + t)
            opt.param_groups[0]["lr"] = gamma / (101 + t) ** 0.5
        opt.step()
        if not exact:
            with torch.no_grad():
                x.copy_(constraint.argmin(x, 1.0))
        points[t] = x.detach()
    return points


def tuned(method, f, constraint, steps=STEPS, **options):
    """γ that is best on other noise, and the points that it leads to."""

    def score(gamma):
        return f(run(method, f, constraint, gamma, TUNING_NOISE, steps, **options)[-(steps // 10) :]).mean()

    gamma = min(GRID, key=score)
    return gamma, run(method, f, constraint, gamma, REPORT_NOISE, steps, **options)


def measure(steps=STEPS):
    """For every set and method γ, f - f* in the last tenth of the steps, and f - f* at some of them."""
    shown = torch.logspace(0, math.log10(steps), 300).long().unique()
    results = {}
    for name, constraint in SETS.items():
        best = TWENTY(TWENTY.minimiser(constraint))
        for method in (EXACT, PROJECTED):
            gamma, points = tuned(method, TWENTY, constraint, steps)
            gaps = TWENTY(points) - best
            curve = [float(f"{gap:.4g}") for gap in gaps[shown - 1].tolist()]
            last = gaps[-(steps // 10) :].mean().item()
            results.setdefault(name, {})[method] = {"gamma": gamma, "last": last, "gaps": curve}
    return {"steps": shown.tolist(), "sets": results}


def main():
    results = measure()
    print(f"f - f*, mean of the last {STEPS // 10} of {STEPS} steps\n")
    print(f"| set | {EXACT} (γ) | {PROJECTED} (γ) |\n|---|---|---|")
    for name, methods in results["sets"].items():
        print(f"| {name} | " + " | ".join(f"{m['last']:.1e} ({m['gamma']:g})" for m in methods.values()) + " |")
    DATA.write_text(json.dumps(results, separators=(",", ":")) + "\n", encoding="utf-8")


def draw():
    import style

    numbers = json.loads(DATA.read_text(encoding="utf-8"))
    fig, panels = style.panels(1, len(SETS), 2.9, sharey=True)
    for panel, (name, methods) in zip(panels, numbers["sets"].items(), strict=True):
        for (method, of), color in zip(methods.items(), (style.GREEN, style.RED), strict=True):
            panel.plot(numbers["steps"], [max(gap, 1e-12) for gap in of["gaps"]], label=method, color=color)
        panel.set(title=name, xscale="log", yscale="log", xlabel="steps")
        panel.set_xticks([1, 100, 10_000])
        panel.minorticks_off()
    panels[0].set_ylabel("f(x$_t$) − f*")
    fig.legend(*panels[0].get_legend_handles_labels(), loc="outside lower center", ncols=2)
    style.save(fig, HERE / "exact_step.svg")


if __name__ == "__main__":
    main()
