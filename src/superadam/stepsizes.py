"""Factors of γ: learning rates that are estimated during training, or that differ between tensors."""

from __future__ import annotations

import math
from typing import Any, ClassVar

import torch
from torch import Tensor

from superadam.bucket import Bucket
from superadam.lists import TensorList, add_scaled, dot, norm2
from superadam.parts import Part, check

__all__ = ["Decaying", "DoG", "Prodigy", "Stepsize", "TrustRatio", "UpdateClipping"]


class Stepsize(Part, kind="stepsize"):
    """Base class. `factor` multiplies γ in every move; `lr` stays a number that schedulers change.

    `buffers` names the tensors kept for each parameter, initially zero. `scalars` names 0-d tensors that all parameters
    with an equal step size share. Once per step, `measure` returns `sums` sums over the coordinates of a view. The
    optimizer adds them up over all parameters and processes. `reduce` updates the scalars with the totals.

    >>> class Shrinking(Stepsize):
    ...     scalars, sums = ("norm",), 1
    ...     def measure(self, s, grad):
    ...         return (norm2(grad),)
    ...     def reduce(self, s, totals):
    ...         s.norm = totals[0].sqrt()
    ...     def factor(self, s):
    ...         return 1 / (1 + s.norm)
    >>> from superadam import SuperAdam
    >>> x = torch.zeros(2, requires_grad=True)
    >>> x.grad = torch.tensor([3.0, 4.0])
    >>> SuperAdam([x], lr=6.0, matrix="Identity", stepsize=Shrinking()).step()
    >>> x.detach()
    tensor([-3., -4.])
    """

    buffers: ClassVar[tuple[str, ...]] = ()
    scalars: ClassVar[tuple[str, ...]] = ()
    sums: ClassVar[int] = 0
    lr: ClassVar[float] = 1.0
    """The γ of `lr=None`."""

    def initial(self, name: str) -> float:
        """First value of a scalar."""
        return 0.0

    def scalar_shape(self, name: str) -> tuple[int, ...]:
        """Return the shape of a scalar."""
        return ()

    def weighed(self, s: Bucket, grad: Any) -> Any:
        """Return the gradient that lines 11 and 4 get."""
        return grad

    def measure(self, s: Bucket, grad: Any) -> tuple[Tensor, ...]:
        """Sums over the coordinates of s, as 0-d tensors. `grad` is the newest gradient, as `weighed` returns it."""
        return ()

    def reduce(self, s: Any, totals: tuple[Tensor, ...]) -> None:
        """Set the scalars to their values at t, given the sums over all parameters."""

    def factor(self, s: Bucket) -> Any:
        """Return the factor of γ in the next move."""
        raise NotImplementedError(f"{type(self).__name__} has no factor")


def here(s: Bucket) -> Any:
    """Return x in the precision of the state."""
    return s.x.to(s.one.dtype)


def from_start(s: Bucket) -> Tensor:
    """x - x_1, where `s.x0` keeps the point of the first gradient."""
    x = here(s)
    if s.step == 1:
        s.x0.copy_(x)
    away: Tensor = x - s.x0
    return away


class Prodigy(Stepsize):
    r"""`lr="auto"`: γ times an estimate $d_t$ of the distance from $x_1$ to a solution (Mishchenko and Defazio 2024).

    $$a_t = \frac{d_t^2 \gamma}{d_1}, \qquad r_t = \beta r_{t-1} + a_t \langle \nabla f(x_t; \xi_t), x_1 - x_t\rangle,
      \qquad s_t = \beta s_{t-1} + a_t \nabla f(x_t; \xi_t), \qquad
      d_{t+1} = \max\Bigl(d_t,\; \mathrm{coefficient}\, \frac{r_t}{\|s_t\|_1}\Bigr)$$

    The learning rate is γ $d_t$, where γ is lr = 1 times a schedule. Both sums run over all processes, and over all
    parameters of all groups with an equal step size. Prodigy assumes a matrix like Adam's, with which a step moves
    every coordinate by about the learning rate. It refuses other matrices. It keeps two tensors for each parameter.

    Args:
        d0: d_1, the first estimate of the distance. It must be far below the true one.
        beta: weight of the past in both sums.
        coefficient: factor of every new estimate. A value below 1 gives smaller steps.
        weigh: multiply the gradient by d_t/d_1 before lines 11 and 4, as published. While d_t grows, the averages then
            forget the gradients of the first, tiny steps. λ of the matrix is compared with d_t/d_1 |∇f|. None does
            this if it changes nothing else: with a `homogeneous` matrix and an estimator that does not use the newest
            gradient a second time, without a penalty and without `clip`.

    >>> Prodigy(coefficient=0.5)
    Prodigy(d0=1e-06, beta=0.9995, coefficient=0.5, weigh=None)
    """

    d0: float = 1e-6
    beta: float = 0.9995
    coefficient: float = 1.0
    weigh: bool | None = None

    buffers = ("x0", "weighted")
    scalars, sums = ("d", "d_next", "numerator"), 2
    elementwise = True

    def __post_init__(self) -> None:
        check(self.d0 > 0, "d0", self.d0, "d0 > 0")
        check(0 <= self.beta < 1, "beta", self.beta, "0 <= beta < 1")
        check(self.coefficient > 0, "coefficient", self.coefficient, "coefficient > 0")

    def initial(self, name: str) -> float:
        return 0.0 if name == "numerator" else self.d0

    def _weighs(self, s: Bucket) -> bool:
        if self.weigh is not None:
            return self.weigh
        plain = s.penalty is None and s.group.get("clip") is None
        return plain and s.matrix.homogeneous and not s.estimator.blends

    def weighed(self, s: Bucket, grad: Any) -> Any:
        return grad * (s.d_next / self.d0) if self._weighs(s) else grad

    def measure(self, s: Bucket, grad: Any) -> tuple[Tensor, ...]:
        away = from_start(s)
        weight = s.d_next * s.gamma  # of the gradient times d/d₁
        if not self._weighs(s):
            weight = weight * (s.d_next / self.d0)
        s.weighted.mul_(self.beta)
        add_scaled(s.weighted, grad, weight)
        return -dot(grad, away) * weight, dot(s.weighted, s.weighted.sign())

    def reduce(self, s: Any, totals: tuple[Tensor, ...]) -> None:
        s.numerator = s.numerator * self.beta + totals[0]
        found = torch.where(totals[1] > 0, self.coefficient * s.numerator / totals[1], 0.0)
        s.d = s.d_next
        s.d_next = torch.maximum(s.d_next, found)

    def factor(self, s: Bucket) -> Any:
        return s.d

    def objection(self, others: Any, options: dict[str, Any]) -> str | None:
        if others.matrix.multiple_of_identity:
            return (
                "it estimates how far each coordinate is to go (lr='auto' is Prodigy), and steps of "
                f"{type(others.matrix).__name__} are as long as the gradient: use stepsize=stepsizes.DoG(), or a "
                "matrix like Adam's"
            )
        for part in (others.matrix, others.iterate):
            if part.no_auto:
                return f"with {type(part).__name__} lr='auto' (Prodigy) does not train: {part.no_auto}"
        reason = "line 11 and H_t see the gradient times d_t, "
        if self.weigh and others.estimator.blends:
            return f"{reason}and {type(others.estimator).__name__} the gradient as it was: use weigh=False"
        if self.weigh and others.penalty is not None:
            return f"{reason}and {type(others.penalty).__name__} is for the function as it was: use weigh=False"
        if self.weigh and options["clip"] is not None:
            return f"{reason}and clip would bound that: use weigh=False, or torch.nn.utils.clip_grad_norm_"
        return None


class DoG(Stepsize):
    r"""The distance from x_1, divided by the root of the sum of squared gradients (Ivgi, Hinder and Carmon 2023).

    $$\gamma_t = \gamma\, \frac{\max_{i \le t} \|x_i - x_1\|}
                               {\sqrt{\sum_{i \le t} \|\nabla f(x_i; \xi_i)\|^2 + 10^{-8}}}$$

    Use it for SGD, with lr = 1. The authors evaluate an average of the points (`iterates.Averaged`). It keeps one
    tensor for each parameter.

    Args:
        reach: the distance is at least reach × (1 + ‖x_1‖), which gives the first step its size.

    >>> DoG()
    DoG(reach=1e-06)
    """

    reach: float = 1e-6

    buffers = ("x0",)
    scalars, sums = ("farthest", "total"), 3
    elementwise = True

    def __post_init__(self) -> None:
        check(self.reach > 0, "reach", self.reach, "reach > 0")

    def measure(self, s: Bucket, grad: Any) -> tuple[Tensor, ...]:
        return norm2(from_start(s)), norm2(grad), norm2(s.x0)

    def reduce(self, s: Any, totals: tuple[Tensor, ...]) -> None:
        least = self.reach * (1 + totals[2].sqrt())
        reached = totals[0].clamp(min=1e-30).sqrt()  # the root of 0 has no derivative
        s.farthest = torch.maximum(torch.maximum(s.farthest, reached), least)
        s.total = s.total + totals[1]

    def factor(self, s: Bucket) -> Any:
        return s.farthest / (s.total + 1e-8).sqrt()


class Decaying(Stepsize):
    r"""A learning rate that falls with the steps (ASGD: Polyak and Juditsky 1992).

    $$\gamma_t = \gamma\, (1 + \mathrm{speed} \cdot \gamma\, (t-1))^{-\mathrm{power}}$$

    Args:
        speed: how fast γ_t falls.
        power: the power in γ_t.

    >>> Decaying()
    Decaying(speed=0.0001, power=0.75)
    """

    speed: float = 1e-4
    power: float = 0.75

    lr = 1e-2
    elementwise = True

    def __post_init__(self) -> None:
        check(self.speed >= 0, "speed", self.speed, "speed >= 0")
        check(self.power >= 0, "power", self.power, "power >= 0")

    def factor(self, s: Bucket) -> Any:
        return ((s.step - 1.0) * s.gamma * self.speed + 1) ** -self.power


class TrustRatio(Stepsize):
    r"""Steps whose norm is proportional to the norm of their tensor: LAMB (You et al. 2020), LARS (You et al. 2017).

    $$\gamma_t = \gamma\, c\, \frac{\|x_t\|}{\|H_t^{-1} g_t + w x_t\|} \text{ for each tensor, if both are positive}$$

    w is the decoupled weight decay.

    Args:
        coefficient: c, the norm of a step divided by the norm of its tensor, for γ = 1.
        of_gradient: multiply the gradient by c ‖x_t‖/‖∇f(x_t; ξ_t)‖ before it is averaged, as LARS does.
        least_dims: tensors with fewer dimensions keep γ. 2 excludes biases and norms.

    >>> TrustRatio()
    TrustRatio(coefficient=1.0, of_gradient=False, least_dims=0)
    """

    coefficient: float = 1.0
    of_gradient: bool = False
    least_dims: int = 0

    lr = 1e-3

    def __post_init__(self) -> None:
        check(self.coefficient > 0, "coefficient", self.coefficient, "coefficient > 0")

    def weighed(self, s: Bucket, grad: Any) -> Any:
        return grad * self._ratio(s, grad) if self.of_gradient else grad

    def factor(self, s: Bucket) -> Any:
        if self.of_gradient:
            return 1.0
        step = s.matrix.solve(s, s.estimate)
        return self._ratio(s, step + here(s) * s.decay if s.decay != 0 else step)

    def _ratio(self, s: Bucket, step: Any) -> Any:
        found = []
        for p, point, along in zip(s.params, here(s), step, strict=True):
            size, length = s.whole_norm(point), s.whole_norm(along)
            there = (size > 0) & (length > 0)
            ratio = torch.where(there, self.coefficient * size / torch.where(there, length, 1.0), 1.0)
            found.append(ratio if p.dim() >= self.least_dims else torch.ones_like(ratio))
        return TensorList(found)

    def objection(self, others: Any, options: dict[str, Any]) -> str | None:
        if others.matrix.per_tensor or others.matrix.joint:
            return f"{type(others.matrix).__name__} is no diagonal, and its steps have a size of their own"
        if self.of_gradient and (others.estimator.blends or others.penalty is not None):
            part = others.penalty if others.penalty is not None else others.estimator
            return f"{type(part).__name__} needs the gradient as it was"
        return None


class UpdateClipping(Stepsize):
    r"""Shorter steps for a tensor whose newest gradient is large relative to $H_t$: StableAdamW (Wortsman et al. 2023).

    $$\gamma_t = \gamma \big/ \max\bigl(1,\; \mathrm{RMS}(H_t^{-1} \nabla f(x_t; \xi_t)) / d\bigr)
      \text{ for each tensor}$$

    It needs a diagonal matrix and τ = 0. It shortens weight decay as well. `opt.at_x_tilde()` uses γ_t = γ, because
    between steps the gradient may be cleared.

    Args:
        d: the largest root mean square of H_t⁻¹ ∇f that leaves γ unchanged.

    >>> UpdateClipping()
    UpdateClipping(d=1.0)
    """

    d: float = 1.0

    lr = 1e-3

    def __post_init__(self) -> None:
        check(self.d > 0, "d", self.d, "d > 0")

    def factor(self, s: Bucket) -> Any:
        if s.grads is None:
            return 1.0
        found = []
        for p, update in zip(s.params, s.matrix.solve(s, s.grad), strict=True):
            numbers = max(1, p.numel() * (2 if p.is_complex() else 1))
            found.append(1 / (s.whole_norm(update) / (math.sqrt(numbers) * self.d)).clamp(min=1.0))
        return TensorList(found)

    def objection(self, others: Any, options: dict[str, Any]) -> str | None:
        if others.matrix.per_tensor or others.matrix.joint:
            return f"{type(others.matrix).__name__} is no diagonal, and its steps have a size of their own"
        if others.estimator.two_point or others.matrix.two_point:
            return "it needs the newest gradient when the step is taken, and τ > 0 delays the step: use tau=0"
        return None
