"""Preconditioned SGD with a Kronecker product of triangular factors."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from superadam.bucket import Bucket
from superadam.matrices.base import Rotation, Slot
from superadam.matrices.per_tensor import PerTensor, spectrum
from superadam.parts import check

__all__ = ["PSGDKron"]

BALANCED_EVERY = 100  # updates of the factors
BLOCK = 128  # rows


class PSGDKron(PerTensor):
    r"""PSGD with Kronecker factors that whiten $g_t$ (Li 2018; Kron: Walters 2024).

    $$H_t^{-1} = (Q_L^\top Q_L) \otimes (Q_R^\top Q_R), \qquad
      Q_L \leftarrow Q_L - \mu\, \frac{\mathrm{triu}(A A^\top - B B^\top)}{\|A A^\top + B B^\top\|}\, Q_L,
      \quad A = Q_L g_t Q_R^\top, \quad B = Q_L^{-\top} V Q_R^{-1}$$

    and $Q_R$ likewise. V holds normal random numbers that depend only on the step and the shape. They are drawn on the
    CPU, so that all devices, all processes and resumed runs get the same numbers. The norm is a lower bound of the
    largest singular value, by two steps of the power method. No lower bound of $H_t$ is known: `lower_bound` is 0.

    Args:
        precision: μ, how fast the factors follow.
        flat: from this step on, factors are updated less and less often.
        least: the smallest fraction of steps with an update.
        triangular: sides longer than this have diagonal factors.
        bound: largest root mean square of H_t⁻¹ g_t. Longer steps are scaled down.

    >>> PSGDKron().due(500), sum(PSGDKron().due(t) for t in range(10_001, 10_101))
    (True, 3)
    """

    precision: float = 0.1
    flat: int = 500
    least: float = 0.03
    triangular: int = 8192
    bound: float = 1.1

    lr = 3e-4
    on_host = True  # whether an update is due
    of_estimate = True

    def __post_init__(self) -> None:
        super().__post_init__()
        check(0 < self.precision < 1, "precision", self.precision, "0 < precision < 1")
        check(0 < self.least <= 1, "least", self.least, "0 < least <= 1")
        check(self.flat >= 1, "flat", self.flat, "flat >= 1")
        check(self.bound > 0, "bound", self.bound, "bound > 0")

    def slots(self, x: Tensor) -> dict[str, Slot]:
        batch, *sizes = self.size(x)
        sides = zip(("QL", "QR"), sizes, strict=True)
        return {
            side: Slot((batch, n, n), 1.0, eye=True) if n <= self.triangular else Slot((batch, n), 1.0)
            for side, n in sides
        }

    def updates_until(self, t: int) -> int:
        """Return the number of updates after step t: the sum of clip(exp(-(t - flat)/1000), least, 1), rounded."""
        falling = min(max(0, t - self.flat), math.floor(-1000 * math.log(self.least)))
        ratio = math.exp(-1 / 1000)
        count = min(t, self.flat) + ratio * (1 - ratio**falling) / (1 - ratio)
        return math.floor(count + self.least * max(0, t - self.flat - falling) + 1e-9)

    def due(self, t: int) -> bool:
        return self.updates_until(t) > self.updates_until(t - 1)

    def update(self, s: Bucket, g: Tensor) -> None:
        t = s.step
        if not self.due(t):
            return
        V = torch.randn(g.shape[-2:], generator=torch.Generator().manual_seed(t), dtype=g.dtype).to(g.device)
        if self.updates_until(t) % BALANCED_EVERY == 0:
            self.balance(s)
        A = on_columns(s.QR, on_rows(s.QL, g))
        B = on_columns(s.QR, on_rows(s.QL, V.expand_as(g), inverse=True), inverse=True)
        self.follow(s.QL, A, B)
        self.follow(s.QR, A.mT, B.mT)

    def follow(self, Q: Tensor, A: Tensor, B: Tensor) -> None:
        """Move a factor of the rows so that A Aᵀ becomes B Bᵀ."""
        if Q.dim() == 2:
            a, b = A.square().sum(-1), B.square().sum(-1)
            Q.sub_(self.precision * (a - b) * Q / (a + b).amax(-1, keepdim=True))
            return
        a, b = gram(A), gram(B)
        norm = largest_singular_value(symmetric(a + b)).unsqueeze(-1).unsqueeze(-1)
        change = a.sub_(b).mul_(self.precision / norm)
        for i, _, right in blocks(Q):  # rows further down are still those of the old Q
            Q[..., i, right] -= change[..., i, right] @ Q[..., right, right]

    def factors(self, s: Bucket) -> dict[str, Tensor]:
        return {name: Q.mT @ Q if Q.dim() == 3 else Q.square() for name, Q in (("L", s.QL), ("R", s.QR))}

    def eigenvalues(self, s: Bucket) -> Tensor:
        """Return the eigenvalues of H_t, for the monitor."""
        left, right = map(spectrum, self.factors(s).values())
        inverse: Tensor = left.unsqueeze(-1) * right.unsqueeze(-2) * self.shrink(self.whiten(s, s.estimates))
        return 1 / inverse

    def balance(self, s: Bucket) -> None:
        """Give both factors the same largest element, without changing their product."""
        sizes = [Q.abs().flatten(1).amax(1) for Q in (s.QL, s.QR)]
        ratio = (sizes[1] / sizes[0]).sqrt()
        for Q, factor in ((s.QL, ratio), (s.QR, 1 / ratio)):
            Q.mul_(factor.view(-1, *[1] * (Q.dim() - 1)))

    def solve(self, s: Bucket, g: Tensor) -> Tensor:
        step = self.whiten(s, g)
        return step * self.shrink(step)

    def inverse(self, s: Bucket) -> Rotation:
        shrink = self.shrink(self.whiten(s, s.estimates))
        return lambda v: self.whiten(s, v) * shrink

    def whiten(self, s: Bucket, g: Tensor) -> Tensor:
        """QᵀQ g."""
        half = on_columns(s.QR, on_rows(s.QL, g))
        return on_columns(s.QR, on_rows(s.QL, half, transposed=True), transposed=True)

    def shrink(self, step: Tensor) -> Tensor:
        """Return the factor that reduces the root mean square of a step to the bound."""
        rms = step.square().mean((-2, -1), keepdim=True).sqrt()
        return (self.bound / rms).clamp(max=1.0)


def on_rows(Q: Tensor, X: Tensor, *, transposed: bool = False, inverse: bool = False) -> Tensor:
    """Return Q X, Qᵀ X, or Q⁻ᵀ X, for an upper triangular or a diagonal Q."""
    if Q.dim() == 2:
        return X / Q.unsqueeze(-1) if inverse else X * Q.unsqueeze(-1)
    if inverse:
        solved: Tensor = torch.linalg.solve_triangular(Q.mT, X, upper=False)
        return solved
    if transposed:
        return torch.cat([Q[..., above, i].mT @ X[..., above, :] for i, above, _ in blocks(Q)], -2)
    return torch.cat([Q[..., i, right] @ X[..., right, :] for i, _, right in blocks(Q)], -2)


def on_columns(Q: Tensor, X: Tensor, **how: bool) -> Tensor:
    """Multiply the columns: X Qᵀ, X Q, or X Q⁻¹."""
    return on_rows(Q, X.mT, **how).mT


def blocks(Q: Tensor) -> list[tuple[slice, slice, slice]]:
    """Blocks of rows of a large matrix, with the rows up to each block and from it on. Products then skip the zeros
    below the diagonal, almost half of the work."""
    starts = range(0, Q.shape[-2], BLOCK)
    return [(slice(i, i + BLOCK), slice(0, i + BLOCK), slice(i, None)) for i in starts]


def gram(A: Tensor) -> Tensor:
    """Return the upper triangle of A Aᵀ."""
    product = A.new_zeros(*A.shape[:-1], A.shape[-2])
    for i, _, right in blocks(A):
        product[..., i, right] = A[..., i, :] @ A[..., right, :].mT
    return product.triu_()


def symmetric(upper: Tensor) -> Tensor:
    return upper + upper.triu(1).mT


def largest_singular_value(A: Tensor) -> Tensor:
    """Return a lower bound for symmetric A: two steps of the power method, from its longest column.

    A is divided by its largest element, because the method takes its fourth power: float32 ends at 1e38.
    """
    tiny = torch.finfo(A.dtype).tiny
    size = A.abs().amax((-2, -1), keepdim=True).clamp(min=tiny)
    A = A / size
    longest = A.square().sum(-2).argmax(-1).unsqueeze(-1).unsqueeze(-1).expand(*A.shape[:-1], 1)
    u = A @ A.gather(-1, longest)
    u = u / torch.linalg.vector_norm(u, dim=-2, keepdim=True).clamp(min=tiny)
    norm: Tensor = torch.linalg.vector_norm(A @ u, dim=(-2, -1)) * size.squeeze((-2, -1))
    return norm
