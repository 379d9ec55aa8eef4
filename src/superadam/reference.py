"""Algorithm 1, literally: one float64 vector, one loop, no speed. Tests compare every fast path with it.

Read it next to the paper. Indices are the paper's: `x[t]`, `g[t]`, `H[t]` for t = 1, …, T; `x[T + 1]` is the last
point.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

__all__ = ["Trajectory", "on_set", "super_adam", "unconstrained"]

Oracle = Callable[[Tensor, Any], Tensor]
"""grad(x, ξ) = ∇f(x; ξ)."""

Argmin = Callable[[Tensor, Tensor, Tensor, float], Tensor]
"""argmin(g, x, H, γ): the minimiser of ⟨g, z⟩ + (z - x)ᵀ H (z - x) / (2γ) over z in X; H is dense, or its diagonal."""


Rule = Callable[[int, Tensor, Tensor], Tensor]
"""rule(t, ∇f(x_t; ξ_t), g_t): an H_t that is not among the paper's cases, dense, or the diagonal of one."""

Weight = Callable[[int], float]
"""weight(t): μ_t, or α_t."""


def unconstrained(g: Tensor, x: Tensor, H: Tensor, gamma: float) -> Tensor:
    """Line 9 on X = R^d.

    Args:
        g: g_t.
        x: x_t.
        H: H_t, dense, or its diagonal.
        gamma: γ.

    >>> unconstrained(torch.tensor([1.0]), torch.tensor([3.0]), torch.tensor([2.0]), gamma=0.5)
    tensor([2.7500])
    """
    return x - gamma * (torch.linalg.solve(H, g) if H.dim() == 2 else g / H)


def on_set(project: Callable[[Tensor], Tensor], iterations: int = 10_000) -> Argmin:
    """Line 9 on a set, given the Euclidean projection onto it: projected gradient descent until it converges.

    Args:
        project: the Euclidean projection onto X.
        iterations: largest number of projected gradient steps.

    >>> ball = on_set(lambda z: z / z.norm().clamp(min=1.0))
    >>> H = torch.tensor([[2.0, 1.0], [1.0, 2.0]])
    >>> ball(torch.tensor([0.0, -9.0]), torch.zeros(2), H, 1.0)
    tensor([-0.1085,  0.9941])
    """

    def argmin(g: Tensor, x: Tensor, H: Tensor, gamma: float) -> Tensor:
        H = H if H.dim() == 2 else H.diag()
        values = torch.linalg.eigvalsh(H)
        step, z = 2 / (values[0] + values[-1]), project(x)
        for _ in range(iterations):
            last, z = z, project(z - step * (H @ (z - x) + gamma * g))
            if torch.dist(last, z) <= 8 * torch.finfo(z.dtype).eps * z.norm():
                break
        return z

    return argmin


@dataclass
class Trajectory:
    """All quantities of a run, by their index t. A diagonal H is kept as a vector.

    >>> run = super_adam(lambda x, xi: x, torch.ones(2), [None] * 3)
    >>> list(run.x), list(run.g), list(run.H), list(run.x_tilde)
    ([1, 2, 3, 4], [1, 2, 3], [1, 2, 3], [2, 3, 4])
    """

    x: dict[int, Tensor] = field(default_factory=dict)
    g: dict[int, Tensor] = field(default_factory=dict)
    H: dict[int, Tensor] = field(default_factory=dict)
    x_tilde: dict[int, Tensor] = field(default_factory=dict)


def paper_mu(t: int, tau: float, k: float, m: float) -> float:
    """Return μ_t of theorems 1 and 2."""
    return float(k / (m + t) ** (1 / 2 if tau == 0 else 1 / 3))


def paper_alpha(t: int, tau: float, k: float, m: float, c: float) -> float:
    """Return α_t of theorems 1 and 2, made of μ_{t-1}."""
    mu = paper_mu(t - 1, tau, k, m)
    return c * mu if tau == 0 else c * mu**2


def super_adam(
    grad: Oracle,
    x_1: Tensor,
    xi: Sequence[Any],
    *,
    case: str | Rule = "1",
    tau: float = 0.0,
    gamma: float = 1e-3,
    k: float = 1.0,
    m: float = 100.0,
    c: float | None = None,
    cap: float = 0.9,
    beta: float = 0.999,
    beta1: float = 0.9,
    beta2: float = 0.999,
    lam: float = 5e-4,
    mu: Weight | None = None,
    alpha: Weight | None = None,
    argmin: Argmin = unconstrained,
) -> Trajectory:
    """Run SUPER-ADAM from x_1 on the samples ξ_1, …, ξ_T.

    Args:
        grad: ∇f(x; ξ), a function of x and ξ.
        x_1: the first point, a vector.
        xi: the samples.
        case: the adaptive matrix: "1", "2", "3", "4a", "4b", or a rule.
        tau: τ.
        gamma: γ.
        k: k of the paper's μ_t.
        m: m of the paper's μ_t.
        c: c of the paper's α_t. None is 20 for τ = 0 and 40 for τ > 0.
        cap: the largest α_t.
        beta: weight of the old average, cases 1 and 2.
        beta1: weight of the old average of gradients, case 4.
        beta2: weight of the old average of distances, case 4.
        lam: λ.
        mu: μ_t, a function of t, in place of the paper's.
        alpha: α_t, a function of t, in place of the paper's.
        argmin: line 9; see `on_set`.

    >>> quadratic = lambda x, xi: x - xi
    >>> run = super_adam(quadratic, torch.tensor([1.0, -1.0]), [0.1, -0.1] * 200, tau=1.0, gamma=0.1)
    >>> bool(run.x[401].abs().max() < 0.2)
    True
    """
    run = Trajectory()
    x, g, H = run.x, run.g, run.H
    x[1] = x_1.to(torch.float64)

    v = torch.zeros_like(x[1])
    mean = torch.zeros_like(x[1])
    b = torch.zeros((), dtype=torch.float64)

    if c is None:
        c = 20.0 if tau == 0 else 40.0
    mu = mu or (lambda t: paper_mu(t, tau, k, m))
    alpha = alpha or (lambda t: min(paper_alpha(t, tau, k, m, c), cap))

    g[1] = grad(x[1], xi[0])  # line 2
    for t in range(1, len(xi) + 1):
        xi_t = xi[t - 1]
        newest = grad(x[t], xi_t)

        # Line 4: the adaptive matrix H_t.
        if callable(case):
            H[t] = case(t, newest, g[t])
        elif case == "1":
            v = beta * v + (1 - beta) * newest**2
            H[t] = v.sqrt() + lam
        elif case == "2":
            b = beta * b + (1 - beta) * newest.norm()
            H[t] = (b + lam) * torch.ones_like(newest)
        elif case == "3":
            if t == 1:
                b = newest.norm()
            elif not torch.equal(x[t], x[t - 1]):
                dx = x[t] - x[t - 1]
                b = torch.dot(newest - grad(x[t - 1], xi_t), dx).abs() / torch.dot(dx, dx)
            H[t] = (b + lam) * torch.ones_like(newest)
        elif case == "4a":
            mean = beta1 * mean + (1 - beta1) * newest
            v = beta2 * v + (1 - beta2) * (newest - mean) ** 2
            H[t] = v.sqrt() + lam
        elif case == "4b":
            mean = beta1 * mean + (1 - beta1) * newest
            b = beta2 * b + (1 - beta2) * (newest - mean).norm()
            H[t] = (b + lam) * torch.ones_like(newest)
        else:
            raise ValueError(f"Unknown case {case!r}: known are 1, 2, 3, 4a, 4b")

        # Lines 9 and 10: the step, and the mixing with the point before it.
        run.x_tilde[t + 1] = argmin(g[t], x[t], H[t], gamma)
        x[t + 1] = (1 - mu(t)) * x[t] + mu(t) * run.x_tilde[t + 1]

        # Line 11: the gradient estimator, on the next sample.
        if t < len(xi):
            at_new, at_old = grad(x[t + 1], xi[t]), grad(x[t], xi[t])
            a = alpha(t + 1)
            g[t + 1] = a * at_new + (1 - a) * (g[t] + tau * (at_new - at_old))
    return run
