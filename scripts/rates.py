"""Draw docs/img/rates.png: theorems 1 and 2 against what SuperAdam does, on a problem made to show their rates.

A non-convex f of which L, σ, f* and the gradient are known exactly:

    f(x; ξ) = Σ_j b² [1 - cos(s_j x_j/b - ξ_j)],   s_j² = 1, 1/2, 1/4, …,   ξ_j uniform in [-2, 2]
    f(x)    = Σ_j b² [1 - κ cos(s_j x_j/b)],       κ = sin(2)/2

Every f(·; ξ) is 1-smooth, f is κ-smooth, and the noise depends on x. Each octave of curvature holds an equal share of
f(x_1) - f*, so that always some octave is just being descended, and ‖∇f‖ falls about as fast as the theorems say. With
a single curvature, which is measured too, it falls faster, and τ = 0 is ahead in the end.

python scripts/rates.py    # four minutes of one core; prints the numbers of the page docs/theory.md
"""

import math
from dataclasses import dataclass, replace
from pathlib import Path

import torch

from superadam import SuperAdam, matrices, theory

OUT = Path(__file__).resolve().parent.parent / "docs" / "img" / "rates.png"
STEPS, RUNS, OCTAVES = 100_000, 16, 10
AMPLITUDE, START, LAM, M = 0.5, 2.0, 1.0, 10.0
COLORS = {0: "#c8553d", 1: "#0b6e4f"}


class Waves:
    """f above, for a tensor of independent runs by coordinates. x_1 has the phase 2 everywhere, where f is concave."""

    width = 2.0
    kappa = math.sin(2) / 2  # E cos ξ
    kappa2 = math.sin(4) / 4  # E cos 2ξ

    def __init__(self, curvatures):
        self.s = torch.as_tensor(curvatures, dtype=torch.float64).sqrt()

    def x_1(self, runs):
        return (START * AMPLITUDE / self.s).expand(runs, -1).clone()

    def draw(self, runs, generator):
        return self.width * (2 * torch.rand(runs, len(self.s), generator=generator, dtype=torch.float64) - 1)

    def stochastic_gradient(self, x, xi):
        return AMPLITUDE * self.s * (self.s * x / AMPLITUDE - xi).sin()

    def gradient(self, x):
        return AMPLITUDE * self.kappa * self.s * (self.s * x / AMPLITUDE).sin()

    def problem(self, tau):
        """The variance of sin(φ - ξ) is (1 - κ₂)/2 + (κ₂ - κ²) sin²φ, the largest at φ = 0."""
        scale = AMPLITUDE**2
        variance = scale * (1 - self.kappa2) / 2 * self.s.square().sum().item()
        gap = scale * self.kappa * (1 - math.cos(START)) * len(self.s)
        L = self.s.square().max().item() * (1 if tau == 1 else self.kappa)  # assumption 4, assumption 5
        return theory.Problem(L=L, sigma=math.sqrt(variance), rho=LAM, gap=gap)


@dataclass
class Curve:
    """Means over t = 1 … T and over the runs, at each T."""

    T: list
    M: list
    gradient: list
    H2: list

    def slope(self, name, start=100):
        """Of the logarithm against that of T, by least squares, from `start` on."""
        T, y = (torch.tensor(v, dtype=torch.float64) for v in (self.T, getattr(self, name)))
        at = start <= T
        T, y = T[at].log(), y[at].log()
        return (((T - T.mean()) * (y - y.mean())).sum() / (T - T.mean()).square().sum()).item()

    def reaches(self, epsilon):
        """The first T from which on the mean of ‖∇f‖ is at most epsilon."""
        above = max((i for i, y in enumerate(self.gradient) if y > epsilon), default=-1)
        return self.T[above + 1] if above + 1 < len(self.T) else None


def run(waves, advice, steps, runs=RUNS, seed=0):
    """SuperAdam itself: H_t of case 1 is a matter of single coordinates, so one tensor holds many independent runs."""
    generator = torch.Generator().manual_seed(seed)
    x = torch.nn.Parameter(waves.x_1(runs))
    opt = SuperAdam([x], matrix=matrices.SecondMoment(lam=LAM), **advice.options)
    marks = {round(10 ** (i / 8)) for i in range(8, 8 * 9)} | {steps}
    sums, curve = torch.zeros(3, dtype=torch.float64), Curve([], [], [], [])
    xi = None

    def closure():
        x.grad = waves.stochastic_gradient(x.detach(), xi)
        return 0.0

    for t in range(1, steps + 1):
        xi = waves.draw(runs, generator)
        x_t = x.detach().clone()
        opt.step(closure)
        if opt.two_point:  # the call has moved from x_{t-1} to x_t, and not yet further
            x_t = x.detach()
        g, H = opt.state[x]["g"], opt.state[x]["v"].sqrt() + LAM
        gradient = waves.gradient(x_t)
        M = (gradient - g).norm(dim=1) / LAM + (g / H).norm(dim=1)
        sums += torch.stack([M.mean(), gradient.norm(dim=1).mean(), H.amax(1).square().mean()])
        if t in marks:
            for values, value in zip((curve.M, curve.gradient, curve.H2), (sums / t).tolist(), strict=True):
                values.append(value)
            curve.T.append(t)
    return curve


def measure(curvatures, steps, runs=RUNS):
    """For each τ: the parameters that are suggested for this number of steps, and what happens with them."""
    waves, results = Waves(curvatures), {}
    for tau in (0, 1):
        problem = waves.problem(tau)
        advice = theory.suggest(problem, steps, tau=tau, m=M)
        assert theory.conditions(problem, **advice.parameters)
        curve = run(waves, advice, steps, runs)
        bounds = [
            theory.bound(problem, T, mean_H2=H2, **advice.parameters) for T, H2 in zip(curve.T, curve.H2, strict=True)
        ]
        results[tau] = problem, advice, curve, bounds
    return results


def evaluations(tau, T):
    return 2 * T - 1 if tau == 1 else T


def report(results):
    for problem, advice, curve, bounds in results.values():
        print(f"{problem}\n{advice}")
        noise = theory.bound(replace(problem, gap=0.0), advice.bound.T, **advice.parameters).value / advice.bound.value
        used = max(m / b.value for m, b in zip(curve.M, bounds, strict=True))
        print(f"  {noise**2:.0%} of the square of the bound is due to noise")
        print(f"  mean M_t is at most {used:.2f} of the bound; slopes {curve.slope('M'):.3f} of mean M_t, ", end="")
        print(f"{curve.slope('gradient'):.3f} of mean ‖∇f‖")
    print("\n| T | " + " | ".join(f"τ = {tau}: mean M_t, bound, mean ‖∇f‖" for tau in results) + " |\n|---|---|---|")
    for i, T in enumerate(results[0][2].T):
        if math.log10(T) % 1 == 0:
            cells = (f"{c.M[i]:.3g}, {b[i].value:.3g}, {c.gradient[i]:.3g}" for _, _, c, b in results.values())
            print(f"| {T:,} | " + " | ".join(cells) + " |")
    print("\n| mean ‖∇f‖ at most | " + " | ".join(f"τ = {tau}: gradient evaluations" for tau in results) + " |")
    print("|---|---|---|")
    zero = results[0][2]
    for epsilon in (zero.gradient[i] for i, T in enumerate(zero.T) if T >= 1000 and math.log10(T) % 1 == 0):
        reached = {tau: curve.reaches(epsilon) for tau, (_, _, curve, _) in results.items()}
        cells = ("not reached" if T is None else f"{evaluations(tau, T):,}" for tau, T in reached.items())
        print(f"| {epsilon:.3g} | " + " | ".join(cells) + " |")


def main(steps=STEPS, runs=RUNS, out=OUT):
    results = measure([2.0**-j for j in range(OCTAVES + 1)], steps, runs)
    report(results)
    if out is not None:
        draw(results, out)
        print(f"\n{out}, {out.stat().st_size // 1000} kB")
    print("\nWith a single curvature:\n")
    report(measure([1.0] * (OCTAVES + 1), steps, runs))
    return results


def draw(results, out):
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot as plt

    fig, (left, right) = plt.subplots(1, 2, figsize=(10.5, 4.4), layout="constrained")
    for tau, (_, _, curve, bounds) in results.items():
        color = COLORS[tau]
        left.plot(
            curve.T, [b.paper for b in bounds], color=color, linestyle=":", label=f"τ = {tau}, bound in the paper"
        )
        left.plot(curve.T, [b.value for b in bounds], color=color, linestyle="--", label=f"τ = {tau}, bound repaired")
        left.plot(curve.T, curve.M, color=color, linewidth=2, label=f"τ = {tau}, measured")
        spent = [evaluations(tau, T) for T in curve.T]
        right.plot(spent, curve.gradient, color=color, linewidth=2, label=f"τ = {tau}")
        power, shift, side = (1 / 3, 0.75, "right") if tau == 1 else (1 / 4, 1.25, "left")
        guide = [spent[-1] / 20, spent[-1]]
        heights = [shift * curve.gradient[-1] * (e / spent[-1]) ** -power for e in guide]
        right.plot(guide, heights, color=color, alpha=0.6, linewidth=1)
        middle = (guide[0] * guide[1]) ** 0.5, (heights[0] * heights[1]) ** 0.5 * (0.9 if tau == 1 else 1.06)
        right.annotate(f"slope −1/{round(1 / power)}", middle, color=color, ha=side, va="top" if tau else "bottom")
    left.set(xlabel="steps T", ylabel="mean of M$_t$ over t ≤ T", title="Theorems 1 and 2", ylim=(4e-3, None))
    right.set(xlabel="gradient evaluations", ylabel="mean of ‖∇f(x$_t$)‖", title="At equal cost", ylim=(0.014, 0.5))
    for panel in (left, right):
        panel.set(xscale="log", yscale="log")
        panel.grid(alpha=0.3)
    left.legend(loc="lower left", ncols=2, frameon=False, fontsize=9)
    right.legend(loc="lower left", frameon=False)
    right.set_yticks([0.02, 0.05, 0.1, 0.2, 0.5], ["0.02", "0.05", "0.1", "0.2", "0.5"])
    right.minorticks_off()
    out.parent.mkdir(exist_ok=True)
    fig.savefig(out, dpi=110, metadata={"Software": None})


if __name__ == "__main__":
    torch.set_num_threads(1)
    main()
