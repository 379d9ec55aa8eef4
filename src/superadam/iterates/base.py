"""The base class of iterates, and the plain iterate."""

from __future__ import annotations

from typing import Any, ClassVar

from superadam.bucket import Bucket
from superadam.lists import Scalar
from superadam.parts import Part

__all__ = ["Iterate", "Plain"]


class Iterate(Part, kind="iterate"):
    """Base class. `buffers` names the tensors that the optimizer keeps for each parameter, initially zero.

    While gradients are taken, `s.x` may be another point than x_t. `rebase` sets `s.x` to the point where a move
    starts, `moved` to the point of the next gradient, `settle` to the result.

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
    no_auto: ClassVar[str] = ""
    """Why `lr="auto"` is refused with this iterate, and what to write instead; empty if it is not."""
    numbers: ClassVar[tuple[str, ...]] = ()
    """Numbers kept for each parameter, which begin at 0. `count` updates them, `s.number` reads them."""

    def count(self, s: Bucket) -> None:
        """Write `numbers`, if there are any, into `s.states`. Called once per step, before the lines."""

    def begin(self, s: Bucket) -> None:
        """Called before lines 11 and 4 get a gradient."""

    def rebase(self, s: Bucket) -> None:
        """Before a move: set `s.x` to the point where the move starts."""

    def moved(self, s: Bucket) -> None:
        """After a move: set `s.x` to the point of the next gradient."""

    def settle(self, s: Bucket) -> None:
        """At the end of training, or to evaluate: set `s.x` to x_t, the result."""

    def rate(self, s: Bucket) -> Scalar:
        """Return a factor of the learning rate."""
        return 1.0

    def take_decay(self, s: Bucket, share: Scalar) -> None:
        """Take the decoupled weight decay of a move without a set or a penalty, which subtracts `share` of a point.

        Override it for an iterate whose weight decay acts at another point than `s.x`, where the move starts.
        """
        s.x.mul_(1 - share)

    def age(self, t: Any) -> Any:
        """Return the step count that the estimator and the matrix use."""
        return t


class Plain(Iterate):
    """Gradients are taken at x_t, and x_t is the result.

    >>> Plain()
    Plain()
    """

    elementwise = True
