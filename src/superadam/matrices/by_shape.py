"""One matrix for some parameters, another for the rest."""

from __future__ import annotations

import fnmatch

from torch import Tensor

from superadam._state.parts import check
from superadam.matrices.base import Matrix
from superadam.matrices.paper import SecondMoment
from superadam.matrices.shampoo import OneSidedShampoo

__all__ = ["ByShape"]


class ByShape(Matrix):
    """The first matrix that accepts a parameter's shape; `otherwise` for all others.

    `names` are patterns of parameters that `otherwise` takes whatever their shape is, as `"*embed*"`; `layers` are
    types of layers whose parameters it takes, known where the optimizer was given a module.

    >>> ByShape(OneSidedShampoo(every=10), names=("head.*",)).otherwise
    SecondMoment(beta=0.999, lam=0.0005, bias_correction=False)
    """

    first: Matrix = OneSidedShampoo()
    otherwise: Matrix = SecondMoment()
    names: tuple[str, ...] = ()
    layers: tuple[str, ...] = ("Embedding", "EmbeddingBag")

    def __post_init__(self) -> None:
        for name in ("names", "layers"):
            value = getattr(self, name)
            check(isinstance(value, tuple), name, repr(value), "a tuple of patterns, such as ('head.*',)")

    @property
    def options(self) -> tuple[Matrix, ...]:
        """All matrices that a parameter may get."""
        nested = (m.options if isinstance(m, ByShape) else (m,) for m in (self.first, self.otherwise))
        return tuple(m for each in nested for m in each)

    @property
    def lr(self) -> float:  # type: ignore[override]
        return self.first.lr

    @property
    def two_point(self) -> bool:  # type: ignore[override]
        return any(matrix.two_point for matrix in self.options)

    @property
    def lower_bound(self) -> float:
        return min(matrix.lower_bound for matrix in self.options)

    def choose(self, x: Tensor, name: str = "", layer: str = "") -> Matrix:
        """The matrix of a parameter."""
        left_out = layer in self.layers or any(fnmatch.fnmatch(name, pattern) for pattern in self.names)
        chosen = self.otherwise if left_out or not self.first.accepts(x) else self.first
        return chosen.choose(x, name, layer) if isinstance(chosen, ByShape) else chosen
