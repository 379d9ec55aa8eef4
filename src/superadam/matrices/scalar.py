"""Matrices that are a multiple of the identity, from the literature: one learning rate for all coordinates."""

from __future__ import annotations

from typing import Any

from torch import Tensor

from superadam.bucket import Bucket
from superadam.lists import norm2
from superadam.matrices import fused
from superadam.matrices.base import Scalar
from superadam.parts import check

__all__ = ["AccumulatedNorm", "EstimateNorm", "Identity"]


class Identity(Scalar):
    r"""$H_t = \mathrm{scale} \cdot I$: no adaptation, as in SGD.

    Args:
        scale: b in H_t = b I: γ is divided by it.

    >>> Identity()
    Identity(scale=1.0)
    """

    scale: float = 1.0

    elementwise = True

    @property
    def lr(self) -> float:  # type: ignore[override]
        return 0.1 * self.scale

    def __post_init__(self) -> None:
        check(self.scale > 0, "scale", self.scale, "scale > 0")

    @property
    def lower_bound(self) -> float:
        return self.scale

    def H(self, s: Bucket) -> Tensor:
        return s.one * self.scale

    def has_kernel(self, schedule: Any) -> bool:
        return type(self) is Identity

    def fused_step(self, s: Bucket) -> bool:
        return fused.sgd(s, self.scale)


class AccumulatedNorm(Scalar):
    r"""A power of the sum of all squared gradient norms.

    $$H_t = \frac{1}{k} \Bigl(\omega + \sum_{i \le t} \|\nabla f(x_i; \xi_i)\|^2\Bigr)^p I$$

    p = 1/2 is AdaGrad-Norm (Ward et al. 2019, $\omega = b_0^2$), p = 1/3 is STORM (Cutkosky and Orabona 2019). With
    `past` the sum ends at t - 1, as in adaptive SGD (Li and Orabona 2019, p = 1/2 + ε).

    Args:
        power: p, the power of the sum.
        omega: ω, the initial value of the sum.
        k: k, a factor of the learning rate.
        past: end the sum at t - 1.

    >>> AccumulatedNorm(power=1 / 3)
    AccumulatedNorm(power=0.3333333333333333, omega=1.0, k=1.0, past=False)
    """

    power: float = 0.5
    omega: float = 1.0
    k: float = 1.0
    past: bool = False

    lr = 1.0
    scalars = ("before", "newest")
    elementwise = True

    def __post_init__(self) -> None:
        check(0 < self.power < 1, "power", self.power, "0 < power < 1")
        check(self.omega > 0 or (self.omega == 0 and not self.past), "omega", self.omega, "omega >= 0, > 0 if past")
        check(self.k > 0, "k", self.k, "k > 0")

    @property
    def lower_bound(self) -> float:
        return float(self.omega**self.power / self.k)

    def measure(self, s: Bucket, grad: Tensor) -> tuple[Tensor, ...]:
        return (norm2(grad),)

    def reduce(self, s: Any, totals: tuple[Tensor, ...]) -> None:
        s.before += s.newest
        s.newest = totals[0]

    def H(self, s: Bucket) -> Tensor:
        total: Tensor = s.before if self.past else s.before + s.newest
        return (self.omega + total) ** self.power / self.k


class EstimateNorm(Scalar):
    r"""The norm of the estimator itself: a normalised step.

    $$H_t = \mathrm{scale} \cdot \max(\|g_t\|^p, \mathrm{floor})\, I$$

    p = 1 is normalised SGD (Cutkosky and Mehta 2020), p = 1/2 is Adam⁺ (Liu et al. 2020).

    Args:
        power: p, the power of the norm.
        floor: the smallest value of ‖g_t‖^p, to avoid a division by zero.
        scale: factor of H_t: γ is divided by it.

    >>> EstimateNorm()
    EstimateNorm(power=1.0, floor=1e-12, scale=1.0)
    """

    power: float = 1.0
    floor: float = 1e-12
    scale: float = 1.0

    scalars = ("b",)
    from_estimate = True

    @property
    def lr(self) -> float:  # type: ignore[override]
        return 0.03 * self.scale

    elementwise = True

    def __post_init__(self) -> None:
        check(0 < self.power <= 1, "power", self.power, "0 < power <= 1")
        check(self.floor >= 0, "floor", self.floor, "floor >= 0")
        check(self.scale > 0, "scale", self.scale, "scale > 0")

    @property
    def lower_bound(self) -> float:
        return self.floor * self.scale

    def objection(self, others: Any, options: dict[str, Any]) -> str | None:
        return None if options["clip"] is None else "it divides g by its own norm, which leaves nothing to clip"

    def measure(self, s: Bucket, grad: Tensor) -> tuple[Tensor, ...]:
        return (norm2(s.estimate),)

    def reduce(self, s: Any, totals: tuple[Tensor, ...]) -> None:
        s.b = totals[0].sqrt()

    def H(self, s: Bucket) -> Tensor:
        b: Tensor = s.b
        return (b**self.power).clamp(min=self.floor) * self.scale
