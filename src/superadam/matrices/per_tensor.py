"""A matrix H_t for each tensor: which tensors it accepts, and how they become matrices."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from superadam.matrices.base import OfTensors
from superadam.parts import check

__all__ = ["LinAlgError", "PerTensor", "Trouble", "descending", "eigh", "orthogonal", "retried", "spectrum"]

LinAlgError: Any = torch.linalg.LinAlgError  # type: ignore[attr-defined]
Decomposition = Callable[[Tensor], tuple[Tensor, Tensor]]


class PerTensor(OfTensors, abstract=True):
    """Base class of matrices per tensor.

    The first dimension of a tensor is the rows of a matrix; all others together are its columns. So the kernel of a
    convolution is out × (in · height · width). The kernel of a convolution with groups is one matrix too, unless
    `split` is the number of groups.

    Vectors, and kernels of depthwise convolutions, need another matrix: see `ByShape`.

    Unless H_t is diagonal, `update` never gets a gradient that is not finite, or whose square is not. On a CPU, `step`
    raises an error before anything changes. On other devices the gradient is replaced by zeros, the tensor is not
    updated, and `step` raises an error at the next multiple of ten steps.

    Args:
        batch_dims: number of leading dimensions that index separate matrices: 1 for experts (experts, out, in).
        split: cut the rows into this many matrices: 3 for a joint query, key and value, or the number of heads or
            groups. A tuple gives the rows of each, such as (4096, 1024, 1024) for grouped-query attention; smaller ones
            are padded with zeros.

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
    split: int | tuple[int, ...] = field(default=1, kw_only=True, repr=False)

    ignores_zeros: ClassVar[bool] = False
    """Whether rows of zeros below a matrix change nothing, so that matrices of different sizes go in one batch."""

    def __post_init__(self) -> None:
        sizes = self.split if isinstance(self.split, tuple) else (self.split,)
        for name, values in (("every", (getattr(self, "every", 1),)), ("split", sizes)):
            whole = bool(values) and all(isinstance(value, int) and value >= 1 for value in values)
            check(whole, name, getattr(self, name, 1), f"a whole number {name} >= 1")
        equal = isinstance(self.split, int) or self.ignores_zeros
        check(equal, "split", self.split, f"a whole number: {type(self).__name__} needs matrices of one size")
        check(self.batch_dims >= 0, "batch_dims", self.batch_dims, "batch_dims >= 0")

    def accepts(self, x: Tensor) -> bool:
        if x.dim() < self.batch_dims + 2 or x.numel() == 0:
            return False
        rows = x.shape[self.batch_dims]
        if rows % self.split if isinstance(self.split, int) else rows != sum(self.split):
            return False
        depthwise = x.dim() > self.batch_dims + 2 and x.shape[self.batch_dims + 1] == 1
        return not depthwise and min(self.size(x)[1:]) > 1

    def size(self, x: Tensor) -> tuple[int, int, int]:
        """Return the number of matrices in a tensor, their rows and their columns."""
        lead, (rows, *columns) = x.shape[: self.batch_dims], x.shape[self.batch_dims :]
        if isinstance(self.split, int):
            return math.prod(lead) * self.split, rows // self.split, math.prod(columns)
        return math.prod(lead) * len(self.split), max(self.split), math.prod(columns)

    def matrices(self, x: Tensor) -> Tensor:
        return x.reshape(self.size(x)) if isinstance(self.split, int) else self.parts(x)

    def parts(self, x: Tensor) -> Tensor:
        """Return the matrices into which `split` cuts a tensor; smaller ones are padded with rows of zeros."""
        batch, rows, columns = PerTensor.size(self, x)
        if isinstance(self.split, int):
            return x.reshape(batch, rows, columns)
        parts = torch.split(x.reshape(-1, sum(self.split), columns), list(self.split), 1)
        filled = [nn.functional.pad(part, (0, 0, 0, rows - part.shape[1])) for part in parts]
        return torch.stack(filled, 1).reshape(batch, rows, columns)

    def tensor(self, matrices: Tensor, shape: torch.Size) -> Tensor:
        if isinstance(self.split, int):
            return matrices.reshape(shape)
        parts = matrices.reshape(-1, len(self.split), *matrices.shape[1:]).unbind(1)
        return torch.cat([part[:, :n] for part, n in zip(parts, self.split, strict=True)], 1).reshape(shape)

    @property
    def reshapes(self) -> bool:
        own = type(self).matrices is PerTensor.matrices and type(self).tensor is PerTensor.tensor
        return own and isinstance(self.split, int)

    def dims(self, x: Tensor, *, rows: bool, columns: bool) -> tuple[int, ...]:
        """Return the dimensions of x that are the rows and the columns of its matrices."""
        first = self.batch_dims
        return (first,) * rows + tuple(range(first + 1, x.dim())) * columns


def eigh(A: Tensor, what: str) -> tuple[Tensor, Tensor]:
    """Eigenvalues, the largest first, and eigenvectors of a batch of positive semidefinite matrices; in float64 if
    float32 fails.

    >>> eigh(torch.diag(torch.tensor([1.0, 2.0])), "A")[0]
    tensor([2., 1.])
    """
    try:
        return descending(A)
    except LinAlgError:
        if not bool(A.isfinite().all()):
            raise not_finite(what) from None
    values, Q = descending(A.double())
    return values.to(A), Q.to(A)


def spectrum(A: Tensor) -> Tensor:
    """Return the eigenvalues of a batch of symmetric matrices, the least first; a vector stands for a diagonal."""
    values: Tensor = torch.linalg.eigvalsh(A) if A.dim() == 3 else A.sort(-1).values
    return values


def _eigh(A: Tensor) -> tuple[Tensor, Tensor]:
    """Return `eigh` of the matrix plus a multiple of I that is no larger than rounding errors.

    Without it LAPACK (MKL's) fails for most matrices of low rank with rows of zeros, the factors of embeddings: with an
    error, or with eigenvectors that are not finite.
    """
    shift = torch.finfo(A.dtype).eps * A.diagonal(dim1=-2, dim2=-1).amax(-1, keepdim=True)
    values, Q = torch.linalg.eigh(A + shift.expand(A.shape[:-1]).diag_embed())
    if Q.device.type == "cpu" and not bool(Q.isfinite().all()):  # elsewhere LAPACK is not used, and the host would wait
        raise LinAlgError("the eigenvectors are not finite")
    return values - shift, Q


@dataclass
class Trouble:
    """The matrices of a batch whose decomposition was repeated in float64, and where that failed too."""

    again: set[int] = field(default_factory=set)
    failed: set[int] = field(default_factory=set)
    what: str = ""
    error: Exception | None = None


def retried(compute: Decomposition, A: Tensor, what: str, trouble: Trouble) -> tuple[Tensor, Tensor]:
    """Apply `compute` to a batch. If it fails, apply it to each matrix separately, in float64 where float32 fails.

    Where float64 fails too, the result is that of the identity, and `trouble` lists the matrix.
    """
    try:
        return compute(A)
    except LinAlgError:
        if not bool(A.isfinite().all()):
            raise not_finite(what) from None
    values, Q = A.new_ones(A.shape[:-1]), torch.eye(A.shape[-1]).to(A).repeat(len(A), 1, 1)
    for i in range(len(A)):
        try:
            values[i], Q[i] = compute(A[i])
        except LinAlgError:
            trouble.again.add(i)
            try:
                values[i], Q[i] = compute(A[i].double())
            except LinAlgError as error:
                trouble.failed.add(i)
                trouble.what, trouble.error = what, error
    return values, Q


def descending(A: Tensor) -> tuple[Tensor, Tensor]:
    """Eigenvalues, the largest first, and eigenvectors of a batch of positive semidefinite matrices."""
    values, Q = _eigh(A)
    return values.flip(-1), Q.flip(-1)


def orthogonal(A: Tensor) -> tuple[Tensor, Tensor]:
    """Return the diagonal of R, and Q, of A = QR."""
    Q, R = torch.linalg.qr(A)
    if Q.device.type == "cpu" and not bool(Q.isfinite().all()):
        raise LinAlgError("the orthogonal factor is not finite")
    return R.diagonal(dim1=-2, dim2=-1), Q


def not_finite(what: Any) -> RuntimeError:
    return RuntimeError(
        f"{what}: a factor of H_t is not finite, because a gradient was not, or its square. Its eigenvectors were left "
        "as they were. opt.restart() begins with new factors; a GradScaler, or a look at the loss, keeps such batches "
        "out."
    )
