"""Estimators that mix two averages, or an average and the newest gradient, when a step is taken."""

from __future__ import annotations

import functools
import math
from dataclasses import field
from typing import Any

from superadam.bucket import Bucket
from superadam.estimators.base import Blend
from superadam.lists import mix
from superadam.parts import check
from superadam.schedules import BiasCorrected

__all__ = ["AdEMAMix", "Adan", "HeavyBall", "NAdam"]


class AdEMAMix(Blend):
    r"""A fast average of gradients plus a multiple of a slow one (AdEMAMix: Pagliardini et al. 2024).

    $$m_t = (1-\alpha_t) m_{t-1} + \alpha_t \nabla f(x_t; \xi_t), \qquad
      n_t = \beta_t n_{t-1} + (1-\beta_t) \nabla f(x_t; \xi_t), \qquad g_t = m_t + a_t n_t$$

    During the first `warmup` steps, $a_t$ rises linearly to `a`, and $\beta_t$ rises from `start` to `beta` with a
    linearly rising half-life. `g` holds $m_t$. It keeps one tensor more than line 11, for $n_t$.

    Args:
        a: weight of the slow average, after the warm-up.
        beta: β of the slow average, after the warm-up.
        warmup: number of steps during which a_t and β_t rise. 0 keeps them constant.
        start: β of the slow average in the first step of a warm-up.

    >>> AdEMAMix(warmup=1000)
    AdEMAMix(a=2.0, beta=0.9999, warmup=1000, start=0.9)
    """

    a: float = 2.0
    beta: float = 0.9999
    warmup: int = 0
    start: float = 0.9

    buffers = ("g", "slow")
    elementwise = True
    on_host = True

    def __post_init__(self) -> None:
        check(self.a >= 0, "a", self.a, "a >= 0")
        for name in ("beta", "start"):
            check(0 < getattr(self, name) < 1, name, getattr(self, name), f"0 < {name} < 1")
        check(self.warmup >= 0, "warmup", self.warmup, "warmup >= 0")

    def _done(self, t: int) -> float:
        """Return the share of the warm-up that is over."""
        return 1.0 if self.warmup == 0 else min(t / self.warmup, 1.0)

    def share(self, t: int) -> float:
        """Return a_t."""
        return self.a * self._done(t)

    def slow_weight(self, t: int) -> float:
        """Return 1 - β_t: the half-life, ln ½ / ln β - 1, rises linearly."""
        first, last = 1 / math.log(self.start), 1 / math.log(self.beta)
        rate = 1 / (first + (last - first) * self._done(t))
        return -math.expm1(rate)

    def after(self, s: Bucket, grad: Any) -> Any:
        if s.restarted:
            s.slow.zero_()
        mix(s.slow, grad, self.slow_weight(s.step))
        return super().after(s, grad)

    def estimate(self, s: Bucket) -> Any:
        slow = s.slow if s.factor is None else s.slow * s.factor
        return s.g + slow * self.share(s.step)


class Adan(Blend):
    r"""An average of gradients plus an average of their changes from batch to batch (Adan: Xie et al. 2022).

    $$\Delta_t = \nabla f(x_t; \xi_t) - \nabla f(x_{t-1}; \xi_{t-1}), \qquad
      d_t = \text{the corrected average of } \Delta_t \text{ with } \beta, \qquad g_t = m_t + \beta d_t$$

    Line 4 gets $\nabla f(x_t; \xi_t) + \beta \Delta_t$. `g` holds $m_t$. It keeps two tensors more than line 11.

    Args:
        beta: weight of the old average of changes, and of that average in g_t.

    >>> Adan()
    Adan(beta=0.92)
    """

    beta: float = 0.92

    buffers = ("g", "changes", "last")
    elementwise = True
    on_host = True

    def __post_init__(self) -> None:
        check(0 <= self.beta < 1, "beta", self.beta, "0 <= beta < 1")

    def after(self, s: Bucket, grad: Any) -> Any:
        change = (grad - s.last) * float(s.step > 1 and not s.restarted)
        mix(s.changes, change, BiasCorrected(self.beta).weight(s.step, 0.0))
        s.last = grad
        return super().after(s, grad) + change * self.beta

    def estimate(self, s: Bucket) -> Any:
        changes = s.changes if s.factor is None else s.changes * s.factor
        return s.g + changes * self.beta


class HeavyBall(Blend):
    r"""The newest gradient plus a share of the last step: momentum of steps, not of gradients (RMSprop's in torch).

    $$g_t = (1 - \mathrm{dampening}) \nabla f(x_t; \xi_t) + \mathrm{momentum}\, H_t b_{t-1}, \qquad
      b_t = H_t^{-1} g_t$$

    So $b_t = \mathrm{momentum}\, b_{t-1} + (1 - \mathrm{dampening}) H_t^{-1} \nabla f(x_t; \xi_t)$. Line 9 repeats a
    share of the last step and adds a step along the newest gradient, also on a set. The buffer `g` holds $b_t$. The
    schedule's α_t is not used.

    Args:
        momentum: share of the last step in the next.
        dampening: 1 - dampening is the weight of the newest gradient. With dampening = momentum, b_t is an average.

    >>> HeavyBall()
    HeavyBall(momentum=0.9)
    """

    momentum: float = 0.9
    dampening: float = field(default=0.0, repr=False)

    elementwise = True
    watches_steps = True

    def __post_init__(self) -> None:
        check(0 <= self.momentum < 1, "momentum", self.momentum, "0 <= momentum < 1")
        check(0 <= self.dampening < 1, "dampening", self.dampening, "0 <= dampening < 1")

    def after(self, s: Bucket, grad: Any) -> Any:
        if s.restarted:
            s.g.zero_()
        return grad

    def estimate(self, s: Bucket) -> Any:
        grad = s.grad if s.factor is None else s.grad * s.factor
        if self.dampening > 0:
            grad = grad * (1 - self.dampening)
        return grad + s.g * s.matrix.H(s) * self.momentum

    def moved(self, s: Bucket, step: Any) -> None:
        s.g = step

    def objection(self, others: Any, options: dict[str, Any]) -> str | None:
        if others.matrix.per_tensor or others.matrix.joint:
            return f"it multiplies steps by H_t, and {type(others.matrix).__name__} only divides: use a diagonal matrix"
        if others.matrix.from_estimate:
            matrix = type(others.matrix).__name__
            return f"{matrix} depends on g_t, and this g_t depends on H_t: a circular definition. Use another matrix."
        return super().objection(others, options)


class NAdam(Blend):
    r"""Nesterov's momentum with torch's weights of NAdam (Dozat 2016).

    $$m_t = \beta m_{t-1} + (1-\beta) \nabla f(x_t; \xi_t), \qquad
      g_t = \frac{\mu_{t+1} m_t}{1 - \prod_{i \le t+1} \mu_i}
          + \frac{(1-\mu_t) \nabla f(x_t; \xi_t)}{1 - \prod_{i \le t} \mu_i}, \qquad
      \mu_t = \beta\bigl(1 - \tfrac12 0.96^{t \psi}\bigr)$$

    The schedule's average must begin at zero: `Constant(alpha=1 - beta, first=1 - beta)`.

    Args:
        beta: weight of the old average; the schedule needs the same.
        decay: ψ, how fast μ_t rises to β.

    >>> NAdam()
    NAdam(beta=0.9, decay=0.004)
    """

    beta: float = 0.9
    decay: float = 4e-3

    elementwise = True
    on_host = True

    def __post_init__(self) -> None:
        check(0 <= self.beta < 1, "beta", self.beta, "0 <= beta < 1")
        check(self.decay >= 0, "decay", self.decay, "decay >= 0")

    def weights(self, t: int) -> tuple[float, float]:
        """Return the weights of m_t and of the newest gradient."""
        now, later = (_mu(i, self.beta, self.decay) for i in (t, t + 1))
        product = _product(t, self.beta, self.decay)
        return later / (1 - product * later), (1 - now) / (1 - product)

    def estimate(self, s: Bucket) -> Any:
        grad = s.grad if s.factor is None else s.grad * s.factor
        m, newest = self.weights(s.step)
        return s.g * m + grad * newest


def _mu(t: int, beta: float, decay: float) -> float:
    return float(beta * (1 - 0.5 * 0.96 ** (t * decay)))


@functools.lru_cache(maxsize=64)
def _product(t: int, beta: float, decay: float) -> float:
    """Return Π μ_i over i ≤ t. Below 1e-20 it is no longer updated: 1 - Π rounds to 1 there."""
    most = math.ceil(-46 / math.log(beta)) if beta > 0 else 1
    return float(math.prod(_mu(i, beta, decay) for i in range(1, min(t, most) + 1)))
