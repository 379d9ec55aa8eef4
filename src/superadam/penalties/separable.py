"""Penalties that are sums over the coordinates. They work with every box, and on parts of a tensor."""

from __future__ import annotations

from typing import ClassVar

import torch
from torch import Tensor

from superadam.parts import check
from superadam.penalties.base import Penalty, check_weight
from superadam.sets.base import in_metric

__all__ = ["L1", "L2", "ElasticNet", "Huber"]


def _soft(y: Tensor, threshold: Tensor) -> Tensor:
    """sign(y) max(0, |y| - threshold), computed in place."""
    return y.sub_(y.minimum(threshold).clamp_min_(threshold.neg_()))


class L1(Penalty):
    r"""$h(x) = \lambda \|x\|_1$. It sets coordinates exactly to zero.

    $$x = \mathrm{sign}(y) \max(0, |y| - \lambda / d)$$

    Args:
        lam: λ, the weight of the penalty.

    >>> L1(1.0).argmin(torch.tensor([3.0, -0.4]), torch.tensor([1.0, 2.0]))
    tensor([2., 0.])
    """

    lam: float
    separable: ClassVar[bool] = True
    elementwise = True

    def __post_init__(self) -> None:
        check_weight("lam", self.lam)

    @in_metric
    def argmin(self, y: Tensor, d: Tensor) -> Tensor:
        return _soft(y, self.lam / d)

    def value(self, x: Tensor) -> Tensor:
        return self.lam * x.abs().sum()


class L2(Penalty):
    r"""$h(x) = \frac{\lambda}{2} \|x\|_2^2$.

    $$x = \frac{d}{d + \lambda}\, y$$

    Args:
        lam: λ, the weight of the penalty.

    >>> L2(1.0).argmin(torch.tensor([3.0, -3.0]), torch.tensor([1.0, 2.0]))
    tensor([ 1.5000, -2.0000])
    """

    lam: float
    separable: ClassVar[bool] = True
    needs: ClassVar[str] = "eigen"
    elementwise = True

    def __post_init__(self) -> None:
        check_weight("lam", self.lam)

    @in_metric
    def argmin(self, y: Tensor, d: Tensor) -> Tensor:
        return y.div_(1 + self.lam / d)  # d may be infinite, for γ = 0

    def value(self, x: Tensor) -> Tensor:
        return self.lam / 2 * x.square().sum()


class ElasticNet(Penalty):
    r"""$h(x) = \lambda_1 \|x\|_1 + \frac{\lambda_2}{2} \|x\|_2^2$.

    $$x = \frac{d}{d + \lambda_2}\, \mathrm{sign}(y) \max(0, |y| - \lambda_1 / d)$$

    Args:
        l1: λ₁, the weight of the absolute values.
        l2: λ₂, the weight of the squares.

    >>> ElasticNet(l1=1.0, l2=1.0).argmin(torch.tensor([3.0, -0.4]), torch.tensor([1.0, 2.0]))
    tensor([1., 0.])
    """

    l1: float
    l2: float
    separable: ClassVar[bool] = True
    elementwise = True

    def __post_init__(self) -> None:
        check_weight("l1", self.l1)
        check_weight("l2", self.l2)

    @in_metric
    def argmin(self, y: Tensor, d: Tensor) -> Tensor:
        return _soft(y, self.l1 / d).div_(1 + self.l2 / d)

    def value(self, x: Tensor) -> Tensor:
        return self.l1 * x.abs().sum() + self.l2 / 2 * x.square().sum()


class Huber(Penalty):
    r"""$h(x) = \lambda \sum_i \phi(x_i)$; $\phi(x) = x^2/2$ for $|x| \le \delta$, and $\delta (|x| - \delta/2)$ beyond.

    It acts like `L2` near zero and like `L1` far from it, so it does not shrink large coordinates in proportion to
    their size.

    $$x = \mathrm{sign}(y) \max\Bigl(\frac{d}{d + \lambda}\, |y|,\ |y| - \frac{\lambda \delta}{d}\Bigr)$$

    Args:
        lam: λ, the weight of the penalty.
        delta: δ, the size beyond which h grows linearly.

    >>> Huber(1.0, delta=1.0).argmin(torch.tensor([1.0, -5.0]), torch.tensor([1.0, 1.0]))
    tensor([ 0.5000, -4.0000])
    """

    lam: float
    delta: float = 1.0
    separable: ClassVar[bool] = True
    elementwise = True

    def __post_init__(self) -> None:
        check_weight("lam", self.lam)
        check(0 < self.delta < float("inf"), "delta", self.delta, "0 < delta < inf")

    @in_metric
    def argmin(self, y: Tensor, d: Tensor) -> Tensor:
        size, ratio = y.abs(), self.lam / d
        return (size / (1 + ratio)).maximum(size - ratio * self.delta).copysign(y)

    def value(self, x: Tensor) -> Tensor:
        zero = torch.zeros_like(x)
        return self.lam * torch.nn.functional.huber_loss(x, zero, reduction="sum", delta=self.delta)
