"""What an iterate is, and the plain one."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar

from superadam._state.parts import Part

if TYPE_CHECKING:
    from superadam._step.view import View

__all__ = ["Iterate", "Plain"]


class Iterate(Part, kind="iterate"):
    """Base class. `buffers` names the tensors it keeps for each parameter, zero at first.

    While gradients are taken, `s.x` may be another point than x_t: `rebase` puts it where a move starts, `moved` where
    the next gradient is taken, `settle` where the result is.

    >>> class Halfway(Iterate):
    ...     buffers = ("lead",)
    ...     def rebase(self, s):
    ...         s.x.sub_(s.lead)
    ...         s.lead = s.x
    ...     def moved(self, s):
    ...         s.lead.sub_(s.x).mul_(-0.5)
    ...         s.x.add_(s.lead)
    ...     def settle(self, s):
    ...         s.x.sub_(s.lead)
    ...         s.lead.zero_()
    >>> Halfway().buffers
    ('lead',)
    """

    buffers: ClassVar[tuple[str, ...]] = ()

    def begin(self, s: View) -> None:
        """Before a gradient is taken in."""

    def rebase(self, s: View) -> None:
        """Before a move: put `s.x` where the move starts."""

    def moved(self, s: View) -> None:
        """After a move: put `s.x` where the next gradient shall be taken."""

    def settle(self, s: View) -> None:
        """At the end of training, or to measure: put `s.x` at x_t."""

    def rate(self, s: View) -> float:
        """A factor of the learning rate."""
        return 1.0

    def age(self, t: Any) -> Any:
        """What the estimator and the matrix shall take for t."""
        return t


class Plain(Iterate):
    """Gradients are taken at x_t, and x_t is the result.

    >>> Plain()
    Plain()
    """

    elementwise = True
