"""Matrices of each tensor."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import Tensor

from superadam._state.parts import check
from superadam.matrices.base import Matrix, Rotation, Slot, check_options

if TYPE_CHECKING:
    from superadam._step.view import View

__all__ = ["OneSidedShampoo"]


class OneSidedShampoo(Matrix):
    r"""Shampoo on the rows of a matrix (Gupta et al. 2018; ASGO: An et al. 2025).

    $$L_t = \beta L_{t-1} + (1-\beta)\, G G^\top, \qquad H_t = L_t^{1/2} \otimes I + \lambda I$$

    G is the gradient as a matrix with x's rows; further dimensions are its columns. The eigenvectors of L are computed
    every `every` steps.

    >>> OneSidedShampoo(every=10)
    OneSidedShampoo(beta=0.99, lam=0.0005, every=10)
    """

    beta: float = 0.99
    lam: float = 5e-4
    every: int = 5

    scope = "tensor"
    on_host = True  # when to refresh

    def __post_init__(self) -> None:
        check_options(self)
        check(self.every >= 1, "every", self.every, "every >= 1")

    def accepts(self, x: Tensor) -> bool:
        return x.dim() >= 2

    def slots(self, x: Tensor) -> dict[str, Slot]:
        n = x.shape[0]
        return {"L": Slot((n, n)), "Q": Slot((n, n), 1.0, eye=True), "d": Slot((n,), self.lam)}

    def update(self, s: View, grad: Tensor) -> None:
        G = grad.flatten(1)
        s.L.lerp_(G @ G.T, 1 - self.beta)

    def refresh(self, s: View) -> None:
        values, s.Q = torch.linalg.eigh(s.L)
        s.d = values.clamp(min=0).sqrt() + self.lam

    def eigen(self, s: View) -> tuple[Rotation, Tensor, Rotation]:
        def rotated(Q: Tensor) -> Rotation:
            return lambda x: (Q @ x.flatten(1)).view_as(x)

        return rotated(s.Q.T), s.d.view(-1, *[1] * (s.params[0].dim() - 1)), rotated(s.Q)

    def solve(self, s: View, g: Tensor) -> Tensor:
        rotate, d, back = self.eigen(s)
        return back(rotate(g) / d)
