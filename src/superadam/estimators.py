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
    """Base class. `buffers` names the tensors it keeps for each parameter; `two_point` says it needs both gradients."""

    buffers: ClassVar[tuple[str, ...]] = ("g",)

    @property
    def two_point(self) -> bool:
        return False

    def before(self, s: Chunk, q: Tensor) -> None:
        r"""Take in $q = \nabla f(x_{t-1}; \xi_t)$; $g_{t-1}$ is not needed any more, the move has been taken."""

    def after(self, s: Chunk, grad: Tensor) -> None:
        r"""Take in $\nabla f(x_t; \xi_t)$, so that `s.g` is $g_t$. `s.paired` says if `before` has seen this batch."""
        raise NotImplementedError(f"{type(self).__name__} has no after")


class Recursive(Estimator):
    r"""Momentum (τ = 0), variance reduction (τ = 1), and what lies between.

    $$g_t = \alpha_t \nabla f(x_t; \xi_t)
          + (1-\alpha_t)\bigl[g_{t-1} + \tau\bigl(\nabla f(x_t; \xi_t) - \nabla f(x_{t-1}; \xi_t)\bigr)\bigr]$$

    The sum is formed in two halves, so that one buffer holds it all:
    $(1-\alpha_t)(g_{t-1} - \tau q)$ before the move, plus $(\alpha_t + (1-\alpha_t)\tau)\nabla f(x_t; \xi_t)$ after it.
    """

    tau: float = 0.0

    def __post_init__(self) -> None:
        check(0 <= self.tau <= 1, "tau", self.tau, "0 <= tau <= 1")

    @property
    def two_point(self) -> bool:
        return self.tau > 0

    def before(self, s: Chunk, q: Tensor) -> None:
        if self.tau > 0:
            s.g.sub_(q, alpha=self.tau)
        s.g.mul_(1 - s.alpha)

    def after(self, s: Chunk, grad: Tensor) -> None:
        if s.paired:
            add_scaled(s.g, grad, s.alpha + (1 - s.alpha) * self.tau)
        else:
            s.g.lerp_(grad, s.alpha)
