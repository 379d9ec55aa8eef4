"""The five adaptive matrices of the paper: cases 1, 2, 3, 4a and 4b."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from superadam.bucket import Bucket
from superadam.lists import dot, norm2
from superadam.matrices import fused
from superadam.matrices.base import Diagonal, MultipleOfIdentity, check_options

__all__ = ["BarzilaiBorwein", "Belief", "BeliefNorm", "GradientNorm", "SecondMoment"]


class SecondMoment(Diagonal):
    r"""Case 1: a learning rate for every coordinate, as in Adam.

    $$v_t = \beta v_{t-1} + (1-\beta) \nabla f(x_t; \xi_t)^2, \quad v_0 = 0, \qquad
      H_t = \mathrm{diag}(\sqrt{v_t} + \lambda)$$

    Args:
        beta: weight of the old average; 1 - β is that of the newest gradient.
        lam: λ, added to the root of the second moment. It bounds H_t from below, and so the steps from above.
        bias_correction: divide v_t by 1 - β^t, as Adam does; the paper does not.

    >>> SecondMoment(beta=0.99)
    SecondMoment(beta=0.99, lam=0.0005, bias_correction=False)
    """

    beta: float = 0.999
    lam: float = 5e-4
    bias_correction: bool = False

    buffers = ("v",)
    homogeneous = True
    elementwise = True

    def __post_init__(self) -> None:
        check_options(self)

    def update(self, s: Bucket, grad: Any) -> None:
        s.v.mul_(self.beta).addcmul_(grad, grad, value=1 - self.beta)

    def H(self, s: Bucket) -> Any:
        return root(s, s.v, self.beta, self.bias_correction).add_(self.lam)

    def has_kernel(self, schedule: Any) -> bool:
        return type(self) is SecondMoment

    def fused_step(self, s: Bucket) -> bool:
        return fused.adam(s, self.beta, self.lam, self.bias_correction)


class GradientNorm(MultipleOfIdentity):
    r"""Case 2: one learning rate, from the norm of the gradient over all parameters.

    $$b_t = \beta b_{t-1} + (1-\beta) \|\nabla f(x_t; \xi_t)\|, \quad b_0 = 0, \qquad H_t = (b_t + \lambda) I$$

    Args:
        beta: weight of the old average; 1 - β is that of the newest norm.

    >>> GradientNorm()
    GradientNorm(lam=0.0005, beta=0.999)
    """

    beta: float = 0.999

    elementwise = True

    def measure(self, s: Bucket, grad: Any) -> tuple[Tensor, ...]:
        return (norm2(grad),)

    def reduce(self, s: Any, totals: tuple[Tensor, ...]) -> None:
        (grad2,) = totals
        s.b.lerp_(grad2.sqrt(), 1 - self.beta)


class BarzilaiBorwein(MultipleOfIdentity):
    r"""Case 3: one learning rate, from the curvature along the last move. It needs two gradients of every batch.

    $$b_t = \frac{|\langle \nabla f(x_t; \xi_t) - \nabla f(x_{t-1}; \xi_t),\; x_t - x_{t-1} \rangle|}
                 {\|x_t - x_{t-1}\|^2},
      \qquad H_t = (b_t + \lambda) I$$

    In the first step, $b_1 = \|\nabla f(x_1; \xi_1)\|$. If $x_t = x_{t-1}$, then $b_t = b_{t-1}$.

    >>> BarzilaiBorwein()
    BarzilaiBorwein(lam=0.0005)
    """

    lr = 1e-2
    scalars = ("b", "steps")
    two_point = True
    elementwise = True

    def measure(self, s: Bucket, grad: Any) -> tuple[Tensor, ...]:
        if not s.paired:
            zero = norm2(grad).new_zeros(())
            return zero, zero, norm2(grad)
        return dot(grad - s.q, s.dx), norm2(s.dx), norm2(grad)

    def reduce(self, s: Any, totals: tuple[Tensor, ...]) -> None:
        curvature, dx2, grad2 = totals
        otherwise = torch.where(s.steps == 0, grad2.sqrt(), s.b)
        s.b = torch.where(dx2 > 0, curvature.abs() / dx2, otherwise)
        s.steps += 1


class Belief(Diagonal):
    r"""Case 4a: a learning rate for every coordinate, from the gradient's distance to its own average, as in AdaBelief.

    $$m_t = \beta_1 m_{t-1} + (1-\beta_1) \nabla f(x_t; \xi_t), \qquad
      v_t = \beta_2 v_{t-1} + (1-\beta_2) (\nabla f(x_t; \xi_t) - m_t)^2, \qquad
      H_t = \mathrm{diag}(\sqrt{v_t} + \lambda)$$

    Args:
        beta1: weight of the old average of gradients.
        beta2: weight of the old average of squared distances.
        lam: λ, added to the root of the second moment. It bounds H_t from below, and so the steps from above.
        eps: added to v_t in every step, as AdaBelief does.
        bias_correction: divide v_t by 1 - β₂^t, as AdaBelief does.

    >>> Belief()
    Belief(beta1=0.9, beta2=0.999, lam=0.0005, eps=0.0, bias_correction=False)
    """

    beta1: float = 0.9
    beta2: float = 0.999
    lam: float = 5e-4
    eps: float = 0.0
    bias_correction: bool = False

    buffers = ("m", "v")
    homogeneous = True
    elementwise = True

    def __post_init__(self) -> None:
        check_options(self)

    def update(self, s: Bucket, grad: Any) -> None:
        s.m.lerp_(grad, 1 - self.beta1)
        surprise = grad - s.m
        s.v.mul_(self.beta2).addcmul_(surprise, surprise, value=1 - self.beta2)
        if self.eps > 0:
            s.v.add_(self.eps)

    def H(self, s: Bucket) -> Any:
        return root(s, s.v, self.beta2, self.bias_correction).add_(self.lam)


class BeliefNorm(MultipleOfIdentity):
    r"""Case 4b: one learning rate, from the norm of the gradient's distance to its own average.

    $$m_t = \beta_1 m_{t-1} + (1-\beta_1) \nabla f(x_t; \xi_t), \qquad
      b_t = \beta_2 b_{t-1} + (1-\beta_2) \|\nabla f(x_t; \xi_t) - m_t\|, \qquad H_t = (b_t + \lambda) I$$

    Args:
        beta1: weight of the old average of gradients.
        beta2: weight of the old average of distances.

    >>> BeliefNorm()
    BeliefNorm(lam=0.0005, beta1=0.9, beta2=0.999)
    """

    beta1: float = 0.9
    beta2: float = 0.999

    buffers = ("m",)
    elementwise = True

    def update(self, s: Bucket, grad: Any) -> None:
        s.m.lerp_(grad, 1 - self.beta1)

    def measure(self, s: Bucket, grad: Any) -> tuple[Tensor, ...]:
        return (norm2(grad - s.m),)

    def reduce(self, s: Any, totals: tuple[Tensor, ...]) -> None:
        (surprise2,) = totals
        s.b.lerp_(surprise2.sqrt(), 1 - self.beta2)


def root(s: Bucket, v: Any, beta: float, bias_correction: bool) -> Any:
    """Return √v, with v divided by 1 - β^t if asked."""
    h = v.sqrt()
    return h.div_((1 - beta**s.t) ** 0.5) if bias_correction else h
