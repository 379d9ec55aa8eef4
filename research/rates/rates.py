"""Theorems 1 and 2 against what SuperAdam does, on a problem made to show their rates: README.md has the numbers.

A non-convex f of which L, σ, f* and the gradient are known exactly:

    f(x; ξ) = Σ_j b² [1 - cos(s_j x_j/b - ξ_j)],   s_j² = 1, 1/2, 1/4, …,   ξ_j uniform in [-2, 2]
    f(x)    = Σ_j b² [1 - κ cos(s_j x_j/b)],       κ = sin(2)/2

Every f(·; ξ) is 1-smooth, f is κ-smooth, and the noise depends on x. Each octave of curvature holds an equal share of
f(x_1) - f*, so that always some octave is just being descended, and ‖∇f‖ falls about as fast as the theorems say. With
a single curvature, which is measured too, it falls faster, and τ = 0 is ahead in the end.

python -m research.rates.rates             # four minutes of one core; prints the numbers, and writes rates.json
python -m research.pictures rates    # draws rates.svg from it
"""

import json
import math
from dataclasses import dataclass, replace
from pathlib import Path

import torch

from superadam import SuperAdam, matrices, theory

HERE = Path(__file__).resolve().parent
DATA = HERE / "rates.json"

STEPS, RUNS, OCTAVES = 100_000, 16, 10
AMPLITUDE, START, LAM, M = 0.5, 2.0, 1.0, 10.0


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


def main():

    results = measure([2.0**-j for j in range(OCTAVES + 1)], STEPS)
    report(results)
    found = {tau: numbers(tau, curve, bounds) for tau, (_, _, curve, bounds) in results.items()}
    DATA.write_text(json.dumps(found, separators=(",", ":")) + "\n", encoding="utf-8")
    print("\nWith a single curvature:\n")
    report(measure([1.0] * (OCTAVES + 1), STEPS))


def numbers(tau, curve, bounds):
    columns = {
        "T": curve.T,
        "evaluations": [evaluations(tau, T) for T in curve.T],
        "M": curve.M,
        "gradient": curve.gradient,
        "bound": [b.value for b in bounds],
        "bound in the paper": [b.paper for b in bounds],
    }
    return {name: [float(f"{value:.6g}") for value in column] for name, column in columns.items()}


def draw():
    import style

    fig, (left, right) = style.panels(1, 2, 3.6)
    for tau, of in json.loads(DATA.read_text(encoding="utf-8")).items():
        color, power, shift = (style.GREEN, 3, 0.72) if tau == "1" else (style.RED, 4, 1.3)
        for name, line in (("bound in the paper", ":"), ("bound", "--"), ("M", "-")):
            left.plot(of["T"], of[name], line, color=color)
        right.plot(of["evaluations"], of["gradient"], color=color, label=f"τ = {tau}")
        end, height = of["evaluations"][-1], shift * of["gradient"][-1]
        guide = [end / 20, end]
        right.plot(guide, [height * (e / end) ** (-1 / power) for e in guide], color=color, alpha=0.6, linewidth=1)
        place = {"ha": "right", "va": "top"} if tau == "1" else {"ha": "left", "va": "bottom"}
        right.annotate(f"slope −1/{power}", (end / 20**0.5, height * 20 ** (0.5 / power)), color=color, **place)
    left.set(xlabel="steps T", title="mean of M$_t$ over t ≤ T")
    right.set(
        xlabel="gradient evaluations", title="mean of ‖∇f(x$_t$)‖, at equal cost", ylim=(0.014, 0.5), xlim=(6, 6e5)
    )
    for panel in (left, right):
        panel.set(xscale="log", yscale="log")
        panel.set_xticks([10, 1e3, 1e5])
    right.set_yticks([0.02, 0.05, 0.1, 0.2, 0.5], ["0.02", "0.05", "0.1", "0.2", "0.5"])
    right.minorticks_off()
    kinds = {":": "bound in the paper", "--": "bound, repaired", "-": "measured"}
    lines = [left.plot([], [], line, color=style.GREY, label=name)[0] for line, name in kinds.items()]
    fig.legend(handles=[*right.get_legend_handles_labels()[0], *lines], loc="outside lower center", ncols=5,
               fontsize=9, handlelength=1.4, columnspacing=1.0)  # fmt: skip
    style.save(fig, HERE / "rates.svg")


if __name__ == "__main__":
    torch.set_num_threads(1)
    main()
