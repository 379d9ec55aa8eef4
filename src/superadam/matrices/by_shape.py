"""One matrix for some parameters, another for the rest."""

from __future__ import annotations

import fnmatch
from dataclasses import field

from torch import Tensor

from superadam.matrices.base import Matrix
from superadam.matrices.paper import SecondMoment
from superadam.matrices.soap import SOAP
from superadam.parts import check

__all__ = ["ByShape"]


class ByShape(Matrix):
    """The first matrix that accepts a parameter's shape; `otherwise` for all others.

    Args:
        first: the matrix of every parameter whose shape it accepts, except those in `names` or `layers`. In a tuple of
            several matrices, the first that accepts the parameter is used.
        otherwise: the matrix of all other parameters.
        names: patterns of parameter names, such as `"*embed*"`, which always use `otherwise`. A pattern that matches no
            parameter raises a warning.
        layers: types of layers (and their subclasses) whose parameters always use `otherwise`. The optimizer knows the
            layers if it was given a module. "head" is the last linear layer of a network that has several layers with
            matrices.
        rate: learning rate of `otherwise` divided by that of `first`. Schedulers keep this ratio.

    >>> ByShape(SOAP(every=10), names=("head.*",), rate=0.3).otherwise
    SecondMoment(beta=0.999, lam=0.0005, bias_correction=False)
    >>> import torch
    >>> several = ByShape((SOAP(batch_dims=1), SOAP()))  # experts (experts, out, in), and matrices
    >>> several.choose(torch.empty(4, 3, 2))[0] == several.first[0], several.choose(torch.empty(3, 2))[0]
    (True, SOAP(beta=0.95, lam=1e-08, every=10, factor_beta=None, bias_correction=True))
    """

    first: Matrix | tuple[Matrix, ...] = SOAP()
    otherwise: Matrix = SecondMoment()
    names: tuple[str, ...] = ()
    layers: tuple[str, ...] = ("Embedding", "EmbeddingBag", "head")
    rate: float = field(default=1.0, kw_only=True, repr=False)

    def __post_init__(self) -> None:
        right = self.firsts and all(isinstance(matrix, Matrix) for matrix in self.firsts)
        check(right, "first", self.first, "a matrix, or a tuple of them")
        for name in ("names", "layers"):
            value = getattr(self, name)
            check(isinstance(value, tuple), name, repr(value), "a tuple of patterns, such as ('head.*',)")
        check(self.rate > 0, "rate", self.rate, "rate > 0")

    @property
    def firsts(self) -> tuple[Matrix, ...]:
        """`first`, as a tuple."""
        return self.first if isinstance(self.first, tuple) else (self.first,)

    @property
    def options(self) -> tuple[Matrix, ...]:
        """All matrices that a parameter may get."""
        nested = (m.options if isinstance(m, ByShape) else (m,) for m in (*self.firsts, self.otherwise))
        return tuple(matrix for several in nested for matrix in several)

    @property
    def lr(self) -> float:  # type: ignore[override]
        return self.firsts[0].lr

    @property
    def two_point(self) -> bool:  # type: ignore[override]
        return any(matrix.two_point for matrix in self.options)

    @property
    def lower_bound(self) -> float:
        return min(matrix.lower_bound for matrix in self.options)

    def accepts(self, x: Tensor) -> bool:
        return any(matrix.accepts(x) for matrix in (*self.firsts, self.otherwise))

    def choose(self, x: Tensor, name: str = "", layer: str = "") -> tuple[Matrix, float]:
        """Return the matrix of a parameter, and its learning rate divided by the group's."""
        left_out = any(kind in self.layers for kind in layer.split())
        left_out = left_out or any(fnmatch.fnmatch(name, pattern) for pattern in self.names)
        fitting = [] if left_out else [matrix for matrix in self.firsts if matrix.accepts(x)]
        chosen, rate = (fitting[0], 1.0) if fitting else (self.otherwise, self.rate)
        if not isinstance(chosen, ByShape):
            return chosen, rate
        matrix, within = chosen.choose(x, name, layer)
        return matrix, rate * within
