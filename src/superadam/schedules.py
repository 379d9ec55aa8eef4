r"""Lines 10 and 11: the weights $\mu_t$ and $\alpha_t$.

A schedule of one's own is a subclass with two methods; its fields are its options:

>>> class Cosine(Schedule):
...     steps: float
...     def mu_t(self, t, tau):
...         return 0.5 + 0.5 * math.cos(math.pi * min(t / self.steps, 1.0))
...     def alpha_t(self, t, tau):
...         return 0.1
>>> Cosine(steps=100).mu_t(50, tau=0.0)
0.5
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, ClassVar, TypeVar

import torch
from torch import Tensor

from superadam.parts import Part, check
from superadam.tensors import Scalar

if TYPE_CHECKING:
    from superadam.chunks import Chunk

__all__ = ["Constant", "Paper", "Schedule"]

# A step count, or a weight computed from one: a number, or a tensor where the step count lives on the device.
Number = TypeVar("Number", float, Tensor)


class Schedule(Part, kind="schedule"):
    """Base class: `mu_t(t, tau)` for line 10, and `alpha_t(t, tau)` for line 11 from the second gradient on.

    t is a number, or a tensor if the optimizer is `capturable`; arithmetic works on both.
    """

    first: ClassVar[float] = 1.0
    """α_1. With 1, g_1 = ∇f(x_1; ξ_1), as in line 2 of the paper."""

    def mu_t(self, t: Number, tau: float) -> Number:
        r"""$\mu_t$, for $t \ge 1$."""
        raise NotImplementedError(f"{type(self).__name__} has no mu_t")

    def alpha_t(self, t: Number, tau: float) -> Number:
        r"""$\alpha_t$, for $t \ge 2$."""
        raise NotImplementedError(f"{type(self).__name__} has no alpha_t")

    def weight(self, t: Number, tau: float) -> Number:
        """α_t for every t ≥ 1."""
        if isinstance(t, Tensor):
            return torch.where(t == 1, torch.as_tensor(self.first, dtype=t.dtype), self.alpha_t(t, tau))
        return self.first if t == 1 else self.alpha_t(t, tau)

    def weight_of(self, s: Chunk) -> Scalar:
        """α_t for the state at hand. A schedule that looks at more than t and τ overrides this."""
        return s.at_step(self.weight)


class Paper(Schedule):
    r"""The schedules of theorems 1 and 2.

    $$\tau = 0:\quad \mu_t = \frac{k}{(m+t)^{1/2}},\quad \alpha_{t+1} = \min(c\,\mu_t, \mathrm{cap})$$
    $$\tau > 0:\quad \mu_t = \frac{k}{(m+t)^{1/3}},\quad \alpha_{t+1} = \min(c\,\mu_t^2, \mathrm{cap})$$

    `c=None` is 20 for τ = 0 and 40 for τ > 0, the values of the paper's experiments on CIFAR. The cap, 0.9 in section
    6, is needed there: with m = 100 both values of c make α exceed 1 at first.

    >>> round(Paper().mu_t(1, tau=0.0), 6)
    0.099504
    >>> Paper().alpha_t(2, tau=0.0), round(Paper().alpha_t(10_000, tau=1.0), 6)
    (0.9, 0.085613)
    """

    k: float = 1.0
    m: float = 100.0
    c: float | None = None
    cap: float = 0.9

    def __post_init__(self) -> None:
        check(self.k > 0 and math.isfinite(self.k), "k", self.k, "k > 0")
        check(self.m >= 0 and math.isfinite(self.m), "m", self.m, "m >= 0")
        check(self.c is None or self.c > 0, "c", self.c, "c > 0, or None for the paper's")
        check(0 < self.cap <= 1, "cap", self.cap, "0 < cap <= 1")

    def mu_t(self, t: Number, tau: float) -> Number:
        mu: Number = self.k / (self.m + t) ** (1 / 3 if tau > 0 else 1 / 2)
        return mu

    def alpha_t(self, t: Number, tau: float) -> Number:
        mu = self.mu_t(t - 1, tau)
        c = self.c if self.c is not None else (40.0 if tau > 0 else 20.0)
        alpha = c * (mu * mu if tau > 0 else mu)
        return alpha.clamp(max=self.cap) if isinstance(alpha, Tensor) else min(alpha, self.cap)


class Constant(Schedule):
    r"""$\mu_t = \mu$ and, for $t \ge 2$, $\alpha_t = \alpha$.

    >>> schedule = Constant(alpha=0.1)
    >>> schedule.weight(1, tau=0.0), schedule.weight(2, tau=0.0)
    (1.0, 0.1)
    """

    mu: float = 1.0
    alpha: float = 0.1

    def __post_init__(self) -> None:
        check(self.mu > 0 and math.isfinite(self.mu), "mu", self.mu, "mu > 0")
        check(0 < self.alpha <= 1, "alpha", self.alpha, "0 < alpha <= 1")

    def mu_t(self, t: Number, tau: float) -> Number:
        return torch.full_like(t, self.mu) if isinstance(t, Tensor) else self.mu

    def alpha_t(self, t: Number, tau: float) -> Number:
        return torch.full_like(t, self.alpha) if isinstance(t, Tensor) else self.alpha
