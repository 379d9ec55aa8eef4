"""A matrix H_t for each tensor: which tensors it takes, and as which matrices."""

from __future__ import annotations

import math
from dataclasses import field
from typing import Any

import torch
from torch import Tensor

from superadam._state.parts import check
from superadam.matrices.base import Matrix

__all__ = ["LinAlgError", "PerTensor", "eigh"]

LinAlgError: Any = torch.linalg.LinAlgError  # type: ignore[attr-defined]


class PerTensor(Matrix, abstract=True):
    """Base class of the matrices of each tensor.

    A tensor is a matrix with its rows; its further dimensions are the columns, so a convolution's kernel is out × (in ·
    height · width).

    Vectors, and kernels of depthwise convolutions, are for another matrix: see `ByShape`.

    Unless H_t is a diagonal, `update` never sees a gradient that is not finite, or whose square is not. On a CPU such a
    batch is refused before anything changes. Elsewhere the device puts zeros in its place, the tensor stays where it
    is, and an error tells of it at the next tenth step.

    Args:
        batch_dims: number of leading dimensions that count matrices: 1 for experts (experts, out, in).
        split: cut the rows into so many matrices: 3 for a joint query, key and value, or the number of heads.

    >>> class Rows(PerTensor):
    ...     def slots(self, x):
    ...         batch, rows, _ = self.size(x)
    ...         return {"v": Slot((batch, rows, 1))}
    ...     def update(self, s, grad):
    ...         s.v.lerp_(grad.square().mean(-1, keepdim=True), 0.1)
    ...     def solve(self, s, g):
    ...         return g / s.v.sqrt()
    >>> Rows(split=2).size(torch.empty(6, 2, 5)), Rows().accepts(torch.empty(6))
    ((2, 3, 10), False)
    """

    batch_dims: int = field(default=0, kw_only=True, repr=False)
    split: int = field(default=1, kw_only=True, repr=False)

    scope = "tensor"

    def __post_init__(self) -> None:
        for name in ("every", "split"):
            value = getattr(self, name, 1)
            check(isinstance(value, int) and value >= 1, name, value, f"a whole number {name} >= 1")
        check(self.batch_dims >= 0, "batch_dims", self.batch_dims, "batch_dims >= 0")

    @property
    def on_host(self) -> bool:  # type: ignore[override]
        """Which step it is decides whether eigenvectors are due."""
        return type(self).refresh is not Matrix.refresh

    def objection(self, others: Any, options: dict[str, Any]) -> str | None:
        if options["differentiable"] and type(self).update is not Matrix.update:
            return "autograd does not follow its factors: use differentiable=False"
        return None

    def accepts(self, x: Tensor) -> bool:
        if x.dim() < self.batch_dims + 2 or x.numel() == 0 or x.shape[self.batch_dims] % self.split:
            return False
        depthwise = x.dim() > self.batch_dims + 2 and x.shape[self.batch_dims + 1] == 1
        return not depthwise and min(self.size(x)[1:]) > 1

    def size(self, x: Tensor) -> tuple[int, int, int]:
        """How many matrices a tensor is, their rows and their columns."""
        lead, (rows, *columns) = x.shape[: self.batch_dims], x.shape[self.batch_dims :]
        return math.prod(lead) * self.split, rows // self.split, math.prod(columns)

    def matrices(self, x: Tensor) -> Tensor:
        return x.reshape(self.size(x))

    @property
    def reshapes(self) -> bool:
        return type(self).matrices is PerTensor.matrices and type(self).tensor is Matrix.tensor

    def dims(self, x: Tensor, *, rows: bool, columns: bool) -> tuple[int, ...]:
        """The dimensions of x that are the rows and the columns of its matrices."""
        first = self.batch_dims
        return (first,) * rows + tuple(range(first + 1, x.dim())) * columns


def eigh(A: Tensor, what: str) -> tuple[Tensor, Tensor]:
    """Eigenvalues, the largest first, and eigenvectors of a batch of positive semidefinite matrices; in float64 if
    float32 fails.

    >>> eigh(torch.diag(torch.tensor([1.0, 2.0])), "A")[0]
    tensor([2., 1.])
    """
    try:
        values, Q = _eigh(A)
    except LinAlgError:
        if not bool(A.isfinite().all()):
            raise not_finite(what) from None
        values, Q = (result.to(A) for result in _eigh(A.double()))
    return values.flip(-1), Q.flip(-1)


def _eigh(A: Tensor) -> tuple[Tensor, Tensor]:
    """With a multiple of I, no larger than rounding errors, added for the time being.

    Without it LAPACK (MKL's) fails for most matrices of low rank with rows of zeros, the factors of embeddings: with an
    error, or with eigenvectors that are not finite.
    """
    shift = torch.finfo(A.dtype).eps * A.diagonal(dim1=-2, dim2=-1).amax(-1, keepdim=True)
    values, Q = torch.linalg.eigh(A + shift.expand(A.shape[:-1]).diag_embed())
    if Q.device.type == "cpu" and not bool(Q.isfinite().all()):  # elsewhere LAPACK is not used, and the host would wait
        raise LinAlgError("the eigenvectors are not finite")
    return values - shift, Q


def not_finite(what: Any) -> RuntimeError:
    return RuntimeError(
        f"{what}: a factor of H_t is not finite, because a gradient was not, or its square. Its eigenvectors were left "
        "as they were. opt.restart() begins with new factors; a GradScaler, or a look at the loss, keeps such batches "
        "out."
    )
