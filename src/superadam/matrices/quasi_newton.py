"""A matrix that is not diagonal: stochastic damped L-BFGS."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from superadam.bucket import Bucket
from superadam.lists import dot, norm2
from superadam.matrices.base import Joint, Slot
from superadam.parts import check

__all__ = ["DampedLBFGS"]


class DampedLBFGS(Joint):
    r"""Curvature from the last few moves, damped so that $H_t$ stays positive definite (Wang et al. 2017, SdLBFGS).

    $s = x_t - x_{t-1}$ and $y = \nabla f(x_t; \xi_t) - \nabla f(x_{t-1}; \xi_t)$, both gradients of one batch, give

    $$\kappa_t = \max\Bigl(\frac{y^\top y}{s^\top y}, \delta\Bigr), \qquad
      \bar y = \theta y + (1-\theta)\kappa_t s, \qquad
      \theta = \begin{cases} \frac{0.75\,\kappa_t s^\top s}{\kappa_t s^\top s - s^\top y}
                             & s^\top y < 0.25\,\kappa_t s^\top s \\ 1 & \text{otherwise}\end{cases}$$

    so that $s^\top \bar y \ge 0.25\, \kappa_t s^\top s > 0$. $H_t^{-1} g_t$ is the two-loop recursion over the last
    `history` pairs $(s, \bar y)$, started from $\kappa_t^{-1} I$. It keeps 2 × `history` tensors for each parameter.

    Where the curvature along s is negative, κ_t is δ, and every pair may enlarge $H_t^{-1}$ by the factor (largest
    curvature)/δ. So δ should not be much smaller than the largest curvature: with δ = 0.01 and momentum, four small
    networks diverged at learning rates of 0.01 and 0.03. Use a small δ only for nearly convex problems.

    Args:
        history: number of pairs to keep. Each takes two tensors for each parameter.
        delta: δ, the smallest curvature.

    >>> DampedLBFGS()
    DampedLBFGS(history=10, delta=10.0)
    """

    history: int = 10
    delta: float = 10.0

    lr = 0.3
    no_auto = "its steps are as long as the gradient over the curvature: give lr a number, such as 0.3"
    two_point = True
    scalars = ("kappa", "theta", "kappas")
    """κ of the newest pair; θ and κ of every pair, the newest first."""

    def __post_init__(self) -> None:
        check(self.history >= 1, "history", self.history, "history >= 1")
        check(self.delta > 0, "delta", self.delta, "delta > 0")

    def slots(self, x: Tensor) -> dict[str, Slot]:
        """Return the pairs, the newest first."""
        return {name: Slot((self.history, *x.shape)) for name in ("s", "y")}

    def initial(self, name: str) -> float:
        return 1.0 if name == "kappa" else 0.0

    def scalar_shape(self, name: str) -> tuple[int, ...]:
        return () if name == "kappa" else (self.history,)

    def update(self, s: Bucket, grad: Tensor) -> None:
        for name, value in (("s", s.dx), ("y", grad - s.q)) if s.paired else (("s", None), ("y", None)):
            held = getattr(s, name)
            self._age(held)
            if value is not None:
                held.select(0, 0).copy_(value)

    def _age(self, held: Tensor) -> None:
        """Shift all pairs: drop the oldest, and make room for the newest."""
        for i in reversed(range(1, self.history)):
            held.select(0, i).copy_(held.select(0, i - 1))
        held.select(0, 0).zero_()

    def absent(self, state: dict[str, Any]) -> None:
        for name in ("s", "y"):
            self._age(state[name])

    def measure(self, s: Bucket, grad: Tensor) -> tuple[Tensor, ...]:
        step, y = s.s.select(0, 0), s.y.select(0, 0)
        return dot(step, y), norm2(step), norm2(y)

    def reduce(self, s: Any, totals: tuple[Tensor, ...]) -> None:
        sy, ss, yy = totals
        kappa = torch.where(sy > 0, yy / sy, 0.0).clamp(min=self.delta)
        damped = 0.75 * kappa * ss / (kappa * ss - sy)
        theta = torch.where(sy < 0.25 * kappa * ss, damped, 1.0)
        s.theta = torch.cat([theta.reshape(1), s.theta.narrow(0, 0, self.history - 1)])
        s.kappas = torch.cat([kappa.reshape(1), s.kappas.narrow(0, 0, self.history - 1)])
        s.kappa = torch.where(ss > 0, kappa, s.kappa)

    def solve(self, s: Bucket, g: Tensor) -> Tensor:
        pairs = []
        for i in range(self.history):
            step, y, theta = s.s.select(0, i), s.y.select(0, i), s.theta.select(0, i)
            y = plus_scaled(y * theta, step, (1 - theta) * s.kappas.select(0, i))
            sy = dot(step, y)
            pairs.append((step, y, torch.where(sy > 0, 1 / sy, 0.0)))  # an empty pair counts for nothing
        u, weights = g.clone(), []
        for step, y, rho in pairs:
            weights.append(rho * dot(step, u))
            u = plus_scaled(u, y, -weights[-1])
        v: Tensor = u / s.kappa
        for (step, y, rho), weight in zip(reversed(pairs), reversed(weights), strict=True):
            v = plus_scaled(v, step, weight - rho * dot(y, v))
        return v


def plus_scaled(x: Tensor, y: Tensor, weight: Tensor) -> Tensor:
    """Add weight y to x in place, and return it."""
    return x.addcmul_(y, weight)
