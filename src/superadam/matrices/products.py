"""Products of batches of matrices, where torch's own batched ones take longer than they need on a CPU."""

from __future__ import annotations

import torch
from torch import Tensor

__all__ = ["add_gram", "combined", "product", "symmetric"]

BLOCK = {torch.float32: 128, torch.float64: 128}  # rows
NARROW = 256  # of other dtypes, whose products take less time beside their calls


def product(A: Tensor, B: Tensor) -> Tensor:
    """Return A B. A batch of one is multiplied as two matrices: batched products copy transposed matrices of bfloat16.

    >>> product(torch.eye(2).unsqueeze(0), torch.ones(1, 2, 1)).shape
    torch.Size([1, 2, 1])
    """
    # squeeze, not [0]: torch 2.6 asks the driver for an index, which a fake device does not have.
    return (A.squeeze(0) @ B.squeeze(0)).unsqueeze(0) if len(A) == 1 else A @ B


def combined(C: Tensor, A: Tensor, B: Tensor, beta: float, alpha: float = 1.0) -> Tensor:
    """Return βC + αAB."""
    if len(A) == 1:
        return torch.addmm(C.squeeze(0), A.squeeze(0), B.squeeze(0), beta=beta, alpha=alpha).unsqueeze(0)
    return torch.baddbmm(C, A, B, beta=beta, alpha=alpha)


def symmetric(A: Tensor, B: Tensor, C: Tensor | None = None, *, beta: float = 1.0, alpha: float = 1.0) -> Tensor:
    """Return A B, or βC + αAB, for symmetric C and A B: of large matrices, only the blocks up to the diagonal.

    >>> X = torch.randn(1, 300, 20)
    >>> torch.testing.assert_close(symmetric(X, X.mT), X @ X.mT)
    """
    if not _in_blocks(A):
        return product(A, B) if C is None else combined(C, A, B, beta, alpha)
    made = A.new_empty(*A.shape[:-1], A.shape[-2])
    for k, rows, columns in _blocks(made):
        if C is None:
            torch.mm(A[k, rows], B[k, :, columns], out=made[k, rows, columns])
        else:
            part = C[k, rows, columns]
            torch.addmm(part, A[k, rows], B[k, :, columns], beta=beta, alpha=alpha, out=made[k, rows, columns])
    return _mirrored(made)


def add_gram(A: Tensor, G: Tensor, beta: float, alpha: float) -> None:
    """Set A to βA + αG Gᵀ, for a symmetric A.

    >>> A, G = torch.eye(3).repeat(1, 1, 1), torch.ones(1, 3, 2)
    >>> add_gram(A, G, 0.5, 1.0)
    >>> A[0, 0]
    tensor([2.5000, 2.0000, 2.0000])
    """
    if G.shape[-2] < 256 or not _in_blocks(G):
        A.baddbmm_(G, G.mT, beta=beta, alpha=alpha)
        return
    for k, rows, columns in _blocks(A):
        A[k, rows, columns].addmm_(G[k, rows], G[k, columns].mT, beta=beta, alpha=alpha)
    _mirrored(A)


def _in_blocks(A: Tensor) -> bool:
    """Return whether a product with so many rows takes longer than the calls for its blocks."""
    return A.device.type == "cpu" and A.shape[-2] >= 2 * BLOCK.get(A.dtype, NARROW)


def _blocks(made: Tensor) -> list[tuple[int, slice, slice]]:
    """Return for each matrix its rows, and the columns up to the end of the diagonal block."""
    size = BLOCK.get(made.dtype, NARROW)
    starts = range(0, made.shape[-1], size)
    return [(k, slice(i, i + size), slice(0, i + size)) for k in range(len(made)) for i in starts]


def _mirrored(made: Tensor) -> Tensor:
    """With the blocks above the diagonal."""
    size = BLOCK.get(made.dtype, NARROW)
    for i in range(size, made.shape[-1], size):
        made[:, :i, i : i + size] = made[:, i : i + size, :i].mT
    return made
