"""The base classes of gradient estimators."""

from __future__ import annotations

from typing import Any, ClassVar

from superadam.bucket import Bucket
from superadam.lists import mix
from superadam.parts import Part

__all__ = ["Blend", "Estimator"]


class Estimator(Part, kind="estimator"):
    """Base class. `buffers` names the tensors that the optimizer keeps for each parameter, initially zero.

    `two_point` says whether the estimator needs both gradients of a batch; `before` and `after` get them. The iterate
    chooses the points where gradients are taken.

    >>> class Newest(Estimator):
    ...     def after(self, s, grad):
    ...         s.g = grad
    ...         return grad
    >>> Newest().two_point
    False
    """

    buffers: ClassVar[tuple[str, ...]] = ("g",)
    tau = 0.0  # no ClassVar: a subclass may make it an option, in its own place
    """The τ that the schedule uses."""
    blends: ClassVar[bool] = False
    """Whether g_t is not the buffer g but what `estimate` makes of it."""

    anchored: ClassVar[bool] = False
    """Whether g_t is now and then the gradient of a large batch: `due(t)` says when."""
    watches_steps: ClassVar[bool] = False
    """Whether `moved` is called after every step."""

    @property
    def two_point(self) -> bool:
        return False

    def due(self, t: int, share: float | None = None) -> bool:
        """Return whether step t ≥ 1 is an anchor, if the estimator has any."""
        return False

    def before(self, s: Bucket, q: Any) -> None:
        r"""Use $q = \nabla f(x_{t-1}; \xi_t)$. The move along $g_{t-1}$ is done, so `s.g` may be overwritten."""

    def after(self, s: Bucket, grad: Any) -> Any:
        r"""Set `s.g` to $g_t$, using $\nabla f(x_t; \xi_t)$, and return the gradient for line 4.

        `s.paired` says whether `before` was called for this batch.
        """
        raise NotImplementedError(f"{type(self).__name__} has no after")

    def estimate(self, s: Bucket) -> Any:
        """Return the g_t for line 9. The gradient of this batch, `s.grad`, is still available."""
        return s.g

    def moved(self, s: Bucket, step: Any) -> None:
        """Called after a step along `step` = H_t⁻¹ g_t."""


class Blend(Estimator, abstract=True):
    """The buffer `g` holds an average of gradients. The step goes along `estimate(s)`, which is computed from it.

    >>> class Half(Blend):
    ...     def estimate(self, s):
    ...         return (s.g + s.grad) / 2
    >>> Half().blends
    True
    """

    blends = True

    def after(self, s: Bucket, grad: Any) -> Any:
        mix(s.g, grad, s.alpha)
        return grad

    def objection(self, others: Any, options: dict[str, Any]) -> str | None:
        if others.matrix.two_point:
            matrix = type(others.matrix).__name__
            return f"{matrix} delays each step to the next batch; this estimator needs the current gradient"
        in_gradient = options["weight_decay"] != 0 and not options["decoupled_weight_decay"]
        if in_gradient and "lead" in others.iterate.buffers:
            return (
                f"it looks at the gradient where a move starts, and {type(others.iterate).__name__} takes it "
                "elsewhere: use decoupled_weight_decay=True"
            )
        return None
