r"""Line 11: the gradient estimator $g_t$.

An estimator sees the two gradients of a batch one after the other, with the move from $x_{t-1}$ to $x_t$ between them,
and keeps neither. In both methods `s` is the state at hand: `s.g`, and the weight `s.alpha` = $\alpha_t$.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

from torch import Tensor

from superadam.parts import Part, check
from superadam.tensors import add_scaled

if TYPE_CHECKING:
    from superadam.chunks import Chunk

__all__ = ["Estimator", "Recursive"]


class Estimator(Part, kind="estimator"):
    """Base class. `buffers` names the tensors it keeps for each parameter, zero at first.

    An estimator says what it needs (`two_point`: both gradients of a batch), takes the gradients in (`before`,
    `after`), and may have the parameters hold another point than x_t while gradients are taken (`rebase`, `moved`, `settle`).
    """

    buffers: ClassVar[tuple[str, ...]] = ("g",)
    tau: ClassVar[float] = 0.0
    """What a schedule takes for τ."""

    @property
    def two_point(self) -> bool:
        return False

    def before(self, s: Chunk, q: Tensor) -> None:
        r"""Take in $q = \nabla f(x_{t-1}; \xi_t)$; $g_{t-1}$ is not needed any more, the move has been taken."""

    def after(self, s: Chunk, grad: Tensor) -> Tensor:
        r"""Take in $\nabla f(x_t; \xi_t)$, so that `s.g` is $g_t$, and return the gradient that line 4 shall see.

        `s.paired` says if `before` has seen this batch.
        """
        raise NotImplementedError(f"{type(self).__name__} has no after")

    def rebase(self, s: Chunk) -> None:
        """Before a move: put `s.x` where the move starts."""

    def moved(self, s: Chunk) -> None:
        """After a move: put `s.x` where the next gradient shall be taken."""

    def settle(self, s: Chunk) -> None:
        """At the end of training: put `s.x` at x_t."""


class Recursive(Estimator):
    r"""Momentum (τ = 0), variance reduction (τ = 1), and what lies between.

    $$g_t = \alpha_t \nabla f(x_t; \xi_t)
          + (1-\alpha_t)\bigl[g_{t-1} + \tau\bigl(\nabla f(x_t; \xi_t) - \nabla f(x_{t-1}; \xi_t)\bigr)\bigr]$$

    The sum is formed in two halves, so that one buffer holds it all:
    $(1-\alpha_t)(g_{t-1} - \tau q)$ before the move, plus $(\alpha_t + (1-\alpha_t)\tau)\nabla f(x_t; \xi_t)$ after it.
    """

    tau: float = 0.0  # type: ignore[misc]

    def __post_init__(self) -> None:
        check(0 <= self.tau <= 1, "tau", self.tau, "0 <= tau <= 1")

    @property
    def two_point(self) -> bool:
        return self.tau > 0

    def before(self, s: Chunk, q: Tensor) -> None:
        if self.tau > 0:
            s.g.sub_(q, alpha=self.tau)
        s.g.mul_(1 - s.alpha)

    def after(self, s: Chunk, grad: Tensor) -> Tensor:
        if s.paired:
            add_scaled(s.g, grad, s.alpha + (1 - s.alpha) * self.tau)
        else:
            s.g.lerp_(grad, s.alpha)
        return grad
