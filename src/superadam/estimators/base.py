"""What an estimator of the gradient is."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

from torch import Tensor

from superadam._state.parts import Part

if TYPE_CHECKING:
    from superadam._step.view import View

__all__ = ["Estimator"]


class Estimator(Part, kind="estimator"):
    """Base class. `buffers` names the tensors it keeps for each parameter, zero at first.

    An estimator says what it needs (`two_point`: both gradients of a batch) and takes the gradients in (`before`,
    `after`). At which points they are taken is the iterate's choice.

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

    def before(self, s: View, q: Tensor) -> None:
        r"""Take in $q = \nabla f(x_{t-1}; \xi_t)$; $g_{t-1}$ is not needed any more, the move has been taken."""

    def after(self, s: View, grad: Tensor) -> Tensor:
        r"""Take in $\nabla f(x_t; \xi_t)$, so that `s.g` is $g_t$, and return the gradient that line 4 shall see.

        `s.paired` says if `before` has seen this batch.
        """
        raise NotImplementedError(f"{type(self).__name__} has no after")
