"""What an estimator of the gradient is."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar

from torch import Tensor

from superadam._state.parts import Part

if TYPE_CHECKING:
    from superadam._step.view import Chunk

__all__ = ["Estimator"]


class Estimator(Part, kind="estimator"):
    """Base class. `buffers` names the tensors it keeps for each parameter, zero at first.

    An estimator says what it needs (`two_point`: both gradients of a batch), takes the gradients in (`before`, `after`)
    and may have the parameters hold another point than x_t while gradients are taken (`rebase`, `moved`, `settle`).

    >>> class Newest(Estimator):
    ...     def after(self, s, grad):
    ...         s.g = grad
    ...         return grad
    >>> Newest().two_point
    False
    """

    buffers: ClassVar[tuple[str, ...]] = ("g",)
    tau = 0.0  # no ClassVar: a subclass may make it an option, in its own place
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

    def age(self, t: Any) -> Any:
        """What the matrix shall take for t."""
        return t

    def rate(self, s: Chunk) -> float:
        """A factor of the learning rate."""
        return 1.0

    def rebase(self, s: Chunk) -> None:
        """Before a move: put `s.x` where the move starts."""

    def moved(self, s: Chunk) -> None:
        """After a move: put `s.x` where the next gradient shall be taken."""

    def settle(self, s: Chunk) -> None:
        """At the end of training: put `s.x` at x_t."""
