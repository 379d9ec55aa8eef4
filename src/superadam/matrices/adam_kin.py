"""Variants of Adam's second moment: other norms, centered, rectified, delayed by a step."""

from __future__ import annotations

import math
from typing import Any

import torch

from superadam.bucket import Bucket
from superadam.lists import mix
from superadam.matrices.base import STILL, Diagonal, check_options
from superadam.parts import check

__all__ = ["Adamax", "Adopt", "Centered", "RAdam"]


class Adamax(Diagonal):
    r"""The largest absolute gradient, with exponential decay (Adamax: Kingma and Ba 2015).

    $$u_t = \max\bigl(\beta u_{t-1}, |\nabla f(x_t; \xi_t)| + \lambda\bigr), \qquad H_t = \mathrm{diag}(u_t)$$

    Args:
        beta: decay factor of the largest gradient per step.
        lam: λ, added to the absolute value of every gradient.

    >>> Adamax()
    Adamax(beta=0.999, lam=1e-08)
    """

    beta: float = 0.999
    lam: float = 1e-8

    lr = 2e-3
    buffers = ("u",)
    homogeneous = True
    elementwise = True

    def __post_init__(self) -> None:
        check_options(self)

    def update(self, s: Bucket, grad: Any) -> None:
        s.u.mul_(self.beta).clamp_min_(grad.abs().add_(self.lam))

    def H(self, s: Bucket) -> Any:
        return s.u


class Centered(Diagonal):
    r"""The second moment minus the squared first moment: an estimate of the gradients' variance (centered RMSprop).

    $$v_t = \beta v_{t-1} + (1-\beta) \nabla f(x_t; \xi_t)^2, \qquad
      m_t = \beta m_{t-1} + (1-\beta) \nabla f(x_t; \xi_t), \qquad
      H_t = \mathrm{diag}\bigl(\sqrt{v_t - m_t^2} + \lambda\bigr)$$

    Args:
        beta: weight of the old averages.
        lam: λ, added to the root of the variance.

    >>> Centered()
    Centered(beta=0.99, lam=1e-08)
    """

    beta: float = 0.99
    lam: float = 1e-8

    buffers = ("v", "mean")
    homogeneous = True
    elementwise = True

    def __post_init__(self) -> None:
        check_options(self)

    def update(self, s: Bucket, grad: Any) -> None:
        s.v.mul_(self.beta).addcmul_(grad, grad, value=1 - self.beta)
        mix(s.mean, grad, 1 - self.beta)

    def H(self, s: Bucket) -> Any:
        variance = s.v - s.mean * s.mean
        return variance.clamp_min_(0.0).sqrt().add_(self.lam)  # rounding may make it negative


class RAdam(Diagonal):
    r"""$I$ in the first steps, then Adam's second moment, once its variance is small enough (RAdam: Liu et al. 2020).

    $$H_t = \mathrm{diag}\Bigl(\frac{\sqrt{v_t} + \lambda}{r_t \sqrt{1-\beta^t}}\Bigr) \text{ if } \rho_t > 5,
      \quad I \text{ otherwise}, \qquad \rho_t = \rho_\infty - \frac{2t\beta^t}{1-\beta^t}, \qquad
      \rho_\infty = \frac{2}{1-\beta} - 1$$

    $$r_t^2 = \frac{(\rho_t-4)(\rho_t-2)\rho_\infty}{(\rho_\infty-4)(\rho_\infty-2)\rho_t}$$

    Args:
        beta: weight of the old average; 1 - β is that of the newest gradient.
        lam: λ, added to the root of the second moment. It bounds H_t from below, and so the steps from above.

    >>> RAdam()
    RAdam(beta=0.999, lam=1e-08)
    >>> [round(RAdam().trust(t), 5) for t in (1, 5, 6, 1000)]
    [0.0, 0.0, 0.002, 0.51315]
    """

    beta: float = 0.999
    lam: float = 1e-8

    lr = 1e-2  # its first hundreds of steps are a warm-up
    buffers = ("v",)
    elementwise = True
    on_host = True

    def __post_init__(self) -> None:
        check_options(self)

    @property
    def lower_bound(self) -> float:
        return min(self.lam, 1.0)

    def trust(self, t: int) -> float:
        """Return r_t √(1 - β^t); 0 where ρ_t is too small."""
        most, left = 2 / (1 - self.beta) - 1, self.beta**t
        rho = most - 2 * t * left / (1 - left)
        if rho <= 5:
            return 0.0
        return math.sqrt((rho - 4) * (rho - 2) * most / ((most - 4) * (most - 2) * rho) * (1 - left))

    def update(self, s: Bucket, grad: Any) -> None:
        s.v.mul_(self.beta).addcmul_(grad, grad, value=1 - self.beta)

    def H(self, s: Bucket) -> Any:
        trust, h = self.trust(s.t), s.v.sqrt().add_(self.lam)
        return h.div_(trust) if trust > 0 else torch.ones_like(h)


class Adopt(Diagonal):
    r"""The second moment of all gradients except the newest, with bounded steps (ADOPT: Taniguchi et al. 2024).

    $$H_t = \mathrm{diag}\Bigl(\max\bigl(\sqrt{v_{t-1}},\; \lambda,\;
      \frac{|\nabla f(x_t; \xi_t)|}{(t-1)^{\mathrm{power}}}\bigr)\Bigr), \qquad
      v_1 = \nabla f(x_1; \xi_1)^2, \quad v_t = \beta v_{t-1} + (1-\beta) \nabla f(x_t; \xi_t)^2$$

    The first gradient only sets $v_1$: $H_1$ is so large that nothing moves. It keeps two tensors for each parameter,
    $v_t$ and $H_t$.

    Args:
        beta: weight of the old average; 1 - β is that of the newest gradient.
        lam: λ, the smallest entry of H_t.
        power: how fast the bound on |H_t⁻¹ ∇f| grows with t.

    >>> Adopt()
    Adopt(beta=0.9999, lam=1e-06, power=0.25)
    """

    beta: float = 0.9999
    lam: float = 1e-6
    power: float = 0.25

    buffers = ("v", "h")
    homogeneous = True
    elementwise = True
    on_host = True

    def __post_init__(self) -> None:
        check_options(self)
        check(self.power >= 0, "power", self.power, "power >= 0")

    def bound(self, t: int) -> float:
        """Return 1 / (t - 1)^power; 1 in the first step."""
        return float(max(t - 1, 1) ** -self.power)

    def update(self, s: Bucket, grad: Any) -> None:
        first = float(s.t == 1)
        h = torch.maximum(s.v.sqrt().clamp_min(self.lam), grad.abs() * self.bound(s.t))
        s.h = h * (first * STILL + 1)
        mix(s.v, grad * grad, first * self.beta + (1 - self.beta))

    def H(self, s: Bucket) -> Any:
        return s.h
