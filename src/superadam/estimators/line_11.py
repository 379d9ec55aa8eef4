"""Line 11, and estimators built on it: corrected gradients, averaged estimates."""

from __future__ import annotations

from typing import Any, cast

import torch
from torch import Tensor

from superadam.bucket import Bucket
from superadam.estimators.base import Blend, Estimator
from superadam.lists import Scalar, TensorList, add_scaled, mix
from superadam.parts import check
from superadam.schedules import BiasCorrected

__all__ = ["Averaged", "Mars", "Nesterov", "NesterovRecursive", "Recursive", "Summed"]


class Recursive(Estimator):
    r"""Momentum (τ = 0), variance reduction (τ = 1), and mixtures of both (0 < τ < 1).

    $$g_t = \alpha_t \nabla f(x_t; \xi_t)
          + (1-\alpha_t)\bigl[g_{t-1} + \tau\bigl(\nabla f(x_t; \xi_t) - \nabla f(x_{t-1}; \xi_t)\bigr)\bigr]$$

    One buffer is enough, because the sum is formed in two halves: $g_{t-1} - \tau q$ before the move, and after it
    $1-\alpha_t$ times that plus $(\alpha_t + (1-\alpha_t)\tau)\nabla f(x_t; \xi_t)$.

    Args:
        tau: τ: 0 for momentum, 1 for variance reduction.

    >>> Recursive(tau=1.0).two_point
    True
    """

    tau: float = 0.0

    elementwise = True

    def __post_init__(self) -> None:
        check(0 <= self.tau <= 1, "tau", self.tau, "0 <= tau <= 1")

    @property
    def two_point(self) -> bool:
        return self.tau > 0

    def before(self, s: Bucket, q: Any) -> None:
        if self.tau > 0:
            s.g.sub_(q, alpha=self.tau)

    def after(self, s: Bucket, grad: Any) -> Any:
        take_in(s.g, grad, s.alpha, self.tau if s.paired else 0.0)
        return grad


class Nesterov(Blend):
    r"""A step along a mixture of an average of gradients and the newest gradient, with one buffer.

    $$m_t = (1-\alpha_t) m_{t-1} + \alpha_t \nabla f(x_t; \xi_t), \qquad
      g_t = (1-a)\, m_t + a \nabla f(x_t; \xi_t)$$

    Lion is $a = 1 - \beta_1 / \beta_2$ with $\alpha = 1 - \beta_2$; MARS with the previous batch's gradient and no
    bound is $a = \tau$ (Ma and Yarats 2019 study all of them as quasi-hyperbolic momentum). The buffer `g` holds $m_t$.

    Args:
        a: weight of the newest gradient in the step. None uses α_t, which is Nesterov's momentum as in Muon.

    >>> Nesterov(a=0.05)
    Nesterov(a=0.05)
    """

    a: float | None = None

    elementwise = True

    def __post_init__(self) -> None:
        check(self.a is None or 0 <= self.a <= 1, "a", self.a, "0 <= a <= 1, or None")

    def estimate(self, s: Bucket) -> Any:
        grad = s.grad if s.factor is None else s.grad * s.factor
        a = s.alpha if self.a is None else self.a
        return s.g.lerp(grad, a)


class OnLine11(Estimator, abstract=True):
    """Base class of estimators that compute g_t from line 11's estimate, which they keep in the buffer `r`."""

    tau: float = 1.0

    buffers = ("g", "r")

    def __post_init__(self) -> None:
        check(0 <= self.tau <= 1, "tau", self.tau, "0 <= tau <= 1")

    @property
    def two_point(self) -> bool:
        return self.tau > 0

    def before(self, s: Bucket, q: Any) -> None:
        s.r.sub_(q, alpha=self.tau)

    def line_11(self, s: Bucket, grad: Any) -> None:
        """Add the newest gradient to r by line 11."""
        if s.restarted:
            s.r.zero_()
        take_in(s.r, grad, s.alpha, self.tau if s.paired else 0.0)


class NesterovRecursive(OnLine11):
    r"""Variance reduction, then Nesterov's momentum: line 11 computes $r_t$, and a step adds the newest gradient.

    $$r_t = \alpha_t \nabla f(x_t; \xi_t)
          + (1-\alpha_t)\bigl[r_{t-1} + \tau\bigl(\nabla f(x_t; \xi_t) - \nabla f(x_{t-1}; \xi_t)\bigr)\bigr],
      \qquad g_t = (1-a)\, r_t + a \nabla f(x_t; \xi_t)$$

    It keeps one tensor more than line 11, because $\nabla f(x_t; \xi_t)$ is no longer available when the move along
    $g_t$ is taken. With τ = 0 it equals `Nesterov`, which needs one tensor only.

    Args:
        tau: τ in r_t.
        a: weight of the newest gradient in the step. None uses α_t.

    >>> NesterovRecursive()
    NesterovRecursive(tau=1.0, a=None)
    """

    a: float | None = None

    elementwise = True

    def __post_init__(self) -> None:
        super().__post_init__()
        check(self.a is None or 0 <= self.a <= 1, "a", self.a, "0 <= a <= 1, or None")

    def after(self, s: Bucket, grad: Any) -> Any:
        self.line_11(s, grad)
        a = s.alpha if self.a is None else self.a
        s.g = s.r * (1 - a) + grad * a
        return grad


class Mars(Estimator):
    r"""A corrected and clipped gradient, averaged (MARS: Yuan et al. 2024).

    $$c_t = \nabla f(x_t; \xi_t) + \tau\frac{1-\alpha}{\alpha}
            \bigl(\nabla f(x_t; \xi_t) - \nabla f(x_{t-1}; \xi_t)\bigr),
      \qquad \tilde c_t = c_t \min\Bigl(1, \frac{\mathrm{bound}}{\|c_t\|}\Bigr), \qquad
      g_t = (1-\alpha_t) g_{t-1} + \alpha_t \tilde c_t$$

    Each tensor has its own norm, and line 4 gets $\tilde c_t$. Without the bound, and with $\alpha_t = \alpha$, this is
    line 11. With `previous_batch`, $\tau = \alpha = \alpha_t$ and no bound it is Nesterov's momentum:
    $g_t = m_t + (1-\alpha)(m_t - m_{t-1})$, where $m_t$ is the average of plain gradients, except for a decaying term
    from the first gradient. It keeps one tensor more than line 11.

    Args:
        tau: τ, the share of the correction.
        alpha: α in the factor (1 - α)/α of the correction. Use the schedule's α if that is constant.
        bound: largest norm of a corrected gradient, for each tensor. None does not clip.
        previous_batch: use ∇f(x_{t-1}; ξ_{t-1}), which is known, instead of ∇f(x_{t-1}; ξ_t). The noise no longer
            cancels, but one gradient per step is enough.

    >>> Mars()
    Mars(tau=0.025, alpha=0.05, bound=1.0, previous_batch=False)
    """

    tau: float = 0.025
    alpha: float = 0.05
    bound: float | None = 1.0
    previous_batch: bool = False

    buffers = ("g", "last")

    @property
    def elementwise(self) -> bool:  # type: ignore[override]
        return self.bound is None

    def __post_init__(self) -> None:
        check(0 <= self.tau <= 1, "tau", self.tau, "0 <= tau <= 1")
        check(0 < self.alpha <= 1, "alpha", self.alpha, "0 < alpha <= 1")
        check(self.bound is None or self.bound > 0, "bound", self.bound, "bound > 0, or None")

    @property
    def two_point(self) -> bool:
        return self.tau > 0 and not self.previous_batch

    def before(self, s: Bucket, q: Any) -> None:
        if not self.previous_batch:
            s.last = q

    def after(self, s: Bucket, grad: Any) -> Any:
        weight = self.tau * (1 - self.alpha) / self.alpha
        c = grad
        if self.previous_batch:
            c = grad + (grad - s.last) * (weight * float(s.step > 1 and not s.restarted))
            s.last = grad
        elif s.paired:
            c = grad + (grad - s.last) * weight
        if self.bound is not None:
            c = TensorList([t * (self.bound / s.whole_norm(t)).clamp(max=1.0) for t in c])
        s.g.lerp_(c, s.alpha)
        return c


class Summed(Estimator):
    r"""The sum of all gradients of the stage. With `iterates.SAdaGrad` it is dual averaging within each stage.

    $$g_t = \sum_{i \text{ in this stage}} \nabla f(x_i; \xi_i)$$

    >>> Summed()
    Summed()
    """

    elementwise = True

    def after(self, s: Bucket, grad: Any) -> Any:
        if s.restarted or s.t == 1:
            s.g.zero_()
        s.g.add_(grad)
        return grad

    def objection(self, others: Any, options: dict[str, Any]) -> str | None:
        return (
            None if others.iterate.on_host else "a sum that never begins anew grows without end: use iterates.SAdaGrad"
        )


class Averaged(OnLine11):
    r"""Variance reduction, then an average: line 11 computes $r_t$, and the step goes along an average of $r_t$.

    $$r_t = \alpha_t \nabla f(x_t; \xi_t)
          + (1-\alpha_t)\bigl[r_{t-1} + \tau\bigl(\nabla f(x_t; \xi_t) - \nabla f(x_{t-1}; \xi_t)\bigr)\bigr],
      \qquad g_t = \frac{\beta(1-\beta^{t-1})\, g_{t-1} + (1-\beta)\, r_t}{1-\beta^t}$$

    The largest usable learning rate of τ = 1 is half of AdamW's with α ≤ 0.3, and equal to AdamW's with α = 0.6. There
    are three remedies:

    - `beta`: $r_t$ follows $\nabla f(x_t)$ without lag, so steps along it are stable only up to gradient descent's
      learning rate. An average over the path is stable up to Adam's, which is $(1+\beta)/(1-\beta)$ times as large. 0
      means $g_t = r_t$.
    - `guard`: where $\|r_t\| > \mathrm{guard}\,\|\nabla f(x_t; \xi_t)\|$ in a tensor, or where it is not finite, $r_t$
      restarts as $\nabla f(x_t; \xi_t)$.
    - `own`: line 4 gets $r_t$. Adam's steps are bounded because $g_t$ is an average of the gradients whose squares make
      $H_t$. With τ = 1 this does not hold: a coordinate whose gradient becomes zero still has an $r_t$, which is not
      part of its $H_t$.

    It keeps one tensor more than line 11.

    Args:
        tau: τ in r_t.
        beta: weight of the old average in g_t; 0 means g_t = r_t.
        guard: restart r_t of a tensor if its norm exceeds guard times the norm of the newest gradient, or is not
            finite. None means never.
        own: whether line 4 gets r_t; otherwise it gets the newest gradient.

    >>> Averaged(guard=2.0)
    Averaged(tau=1.0, beta=0.9, guard=2.0, own=True)
    """

    beta: float = 0.9
    guard: float | None = None
    own: bool = True

    @property
    def elementwise(self) -> bool:  # type: ignore[override]
        return self.guard is None

    def __post_init__(self) -> None:
        super().__post_init__()
        check(0 <= self.beta < 1, "beta", self.beta, "0 <= beta < 1")
        check(self.guard is None or self.guard > 0, "guard", self.guard, "guard > 0, or None")

    def after(self, s: Bucket, grad: Any) -> Any:
        self.line_11(s, grad)
        if self.guard is not None:
            steady = TensorList(map(s.whole_norm, s.r)) <= TensorList(map(s.whole_norm, grad)) * self.guard
            s.r = torch.where(cast(Tensor, steady), s.r, grad)
        mix(s.g, s.r, 1.0 if s.restarted else BiasCorrected(self.beta).weight(s.step, 0.0))
        r: Tensor = s.r
        return r if self.own else grad


def take_in(g: Any, grad: Any, alpha: Scalar, tau: float) -> None:
    r"""Set $g \leftarrow (1-\alpha) g + (\alpha + (1-\alpha)\tau) \nabla$."""
    if tau == 0:
        g.lerp_(grad, alpha)
    else:
        g.mul_(1 - alpha)
        add_scaled(g, grad, alpha + (1 - alpha) * tau)
