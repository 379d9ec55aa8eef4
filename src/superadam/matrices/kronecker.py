r"""Matrices $H_t = Q\, \mathrm{diag}(d)\, Q^\top$ with $Q = Q_L \otimes Q_R$, for the rows and columns."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import field
from typing import ClassVar, cast

import torch
from torch import Tensor, nn

from superadam.bucket import Bucket
from superadam.matrices.base import Matrix, Rotation, Slot
from superadam.matrices.per_tensor import PerTensor, Trouble, descending, eigh, not_finite, orthogonal, retried
from superadam.matrices.products import add_gram, symmetric
from superadam.parts import check

__all__ = ["Kronecker", "Shampoo", "outer"]

SIDES = (("L", -2), ("R", -1))
TOLERATED = 3  # eigendecompositions in a row that may fail


class Kronecker(PerTensor, abstract=True):
    """Shared code: factors `L` and `R` of the two sides, and the eigenvectors or roots recomputed every `every` steps.

    The eigenvectors are `QL` and `QR`, the roots (Shampoo's) `PL` and `PR`.

    Args:
        one_sided_above: if a side is longer than this, only the smaller side has a factor.
        largest: tensors whose smaller side is longer than this need another matrix (`ByShape`).
        block: cut matrices into blocks of at most this many rows and columns, each with its own factors. None does not
            cut.
    """

    one_sided_above: int = field(default=1024, kw_only=True, repr=False)
    largest: int = field(default=10_000, kw_only=True, repr=False)
    block: int | None = field(default=None, kw_only=True, repr=False)

    lr = 3e-3
    made: ClassVar[str] = "Q"

    def __post_init__(self) -> None:
        super().__post_init__()
        for name in ("one_sided_above", "largest"):
            check(getattr(self, name) >= 0, name, getattr(self, name), f"{name} >= 0")
        check(self.block is None or self.block >= 2, "block", self.block, "block >= 2, or None")

    # ------------------------------------------------------------------------------------ shapes

    def accepts(self, x: Tensor) -> bool:
        return super().accepts(x) and min(self.size(x)[1:]) <= self.largest

    def size(self, x: Tensor) -> tuple[int, int, int]:
        batch, rows, columns = super().size(x)
        if self.block is None:
            return batch, rows, columns
        high, wide = math.ceil(rows / self.block), math.ceil(columns / self.block)
        return batch * high * wide, math.ceil(rows / high), math.ceil(columns / wide)

    def matrices(self, x: Tensor) -> Tensor:
        if self.block is None:
            return super().matrices(x)
        whole = self.parts(x)  # zeros fill up the last blocks: they stay zeros
        batch, rows, columns = whole.shape
        _, r, c = self.size(x)
        high, wide = math.ceil(rows / r), math.ceil(columns / c)
        if (rows, columns) != (high * r, wide * c):
            whole = nn.functional.pad(whole, (0, wide * c - columns, 0, high * r - rows))
        return whole.view(batch, high, r, wide, c).transpose(2, 3).reshape(-1, r, c)

    def tensor(self, matrices: Tensor, shape: torch.Size) -> Tensor:
        if self.block is None:
            return super().tensor(matrices, shape)
        batch, rows, columns = PerTensor.size(self, torch.empty(shape, device="meta"))
        _, r, c = matrices.shape
        high, wide = math.ceil(rows / r), math.ceil(columns / c)
        whole = matrices.view(batch, high, wide, r, c).transpose(2, 3).reshape(batch, high * r, wide * c)
        return super().tensor(whole.narrow(1, 0, rows).narrow(2, 0, columns), shape)

    @property
    def reshapes(self) -> bool:
        return self.block is None and isinstance(self.split, int) and type(self).matrices is Kronecker.matrices

    def sides(self, rows: int, columns: int) -> tuple[tuple[str, int], ...]:
        """Return the sides that have a factor: their names and dimensions."""
        if max(rows, columns) <= self.one_sided_above:
            return SIDES
        return SIDES[:1] if rows <= columns else SIDES[1:]

    def slots(self, x: Tensor) -> dict[str, Slot]:
        batch, *shape = self.size(x)
        slots = {"retries": Slot((batch,)), "failures": Slot((batch,))}
        for side, dim in self.sides(*shape):
            n = shape[dim]
            slots |= {side: Slot((batch, n, n)), f"{self.made}{side}": Slot((batch, n, n), 1.0, eye=True)}
        return slots

    # ------------------------------------------------------------------------------------ rotations

    def both(self, s: Bucket) -> dict[str, Tensor]:
        """Return the roots or eigenvectors of the factors, by side."""
        return {side: getattr(s, f"{self.made}{side}") for side, _ in self.here(s)}

    def rotate(self, s: Bucket, G: Tensor) -> Tensor:
        """Return Qᵀ G, a new tensor."""
        if "L" in s.names:
            G = getattr(s, f"{self.made}L").mT @ G
        return G @ getattr(s, f"{self.made}R") if "R" in s.names else G

    def back(self, s: Bucket, G: Tensor) -> Tensor:
        """Return Q G."""
        if "L" in s.names:
            G = s.QL @ G
        return G @ s.QR.mT if "R" in s.names else G

    def d(self, s: Bucket) -> Tensor:
        """Return the eigenvalues of H_t; they broadcast to the matrices."""
        raise NotImplementedError(f"{type(self).__name__} has no d")

    def eigen(self, s: Bucket) -> tuple[Rotation, Tensor, Rotation]:
        return lambda G: self.rotate(s, G), self.d(s), lambda G: self.back(s, G)

    def mixes(self, x: Tensor) -> tuple[int, ...] | None:
        batch, *shape = self.size(x)
        if batch * math.prod(shape) != x.numel():  # blocks that are filled up mix x with what is not there
            return None
        names = [side for side, _ in self.sides(*shape)]
        return self.dims(x, rows="L" in names, columns="R" in names)

    def solve(self, s: Bucket, g: Tensor) -> Tensor:
        return self.back(s, self.rotate(s, g).div_(self.d(s)))

    # ------------------------------------------------------------------------------------ factors

    def factors(self, s: Bucket) -> dict[str, Tensor]:
        return {side: getattr(s, side) for side, _ in self.here(s)}

    def average(self, s: Bucket, grad: Tensor, beta: float) -> None:
        """Add G Gᵀ and Gᵀ G to the averages L and R; β = 1 sums them."""
        alpha = 1.0 if beta == 1 else 1 - beta
        if "L" in s.names:
            add_gram(s.L, grad, beta, alpha)
        if "R" in s.names:
            add_gram(s.R, grad.mT, beta, alpha)

    def here(self, s: Bucket) -> list[tuple[str, int]]:
        return [(side, dim) for side, dim in SIDES if side in s.names]

    def decompose(self, s: Bucket, make: Callable[[Tensor, Tensor], Tensor]) -> None:
        """Compute PL and PR, or QL and QR, from the eigenvalues (largest first) and eigenvectors of the factors.

        If a decomposition also fails in float64, the earlier result stays.
        """
        trouble, made = Trouble(), {}
        for side, _ in self.here(s):
            found = retried(descending, getattr(s, side), f"{type(self).__name__}, factor {side}", trouble)
            made[f"{self.made}{side}"] = make(*found)
        for name, new in made.items():
            kept(new, getattr(s, name), trouble)
            setattr(s, name, new)
        self.count(s, trouble)

    def count(self, s: Bucket, trouble: Trouble) -> None:
        """Count for each matrix: `retries`, how often a decomposition failed in float32, and `failures`, how often in a
        row in float64 too."""
        in_a_row = s.failures.clone()
        s.failures.zero_()
        for i in trouble.again:
            s.retries[i] += 1
        for i in trouble.failed:
            s.failures[i] = in_a_row[i] + 1
            if in_a_row[i] >= TOLERATED:
                often = f"{TOLERATED + 1} times in a row"
                raise RuntimeError(f"{trouble.what}: decomposition failed {often}: {trouble.error}") from trouble.error

    def begin(self, s: Bucket) -> None:
        """Compute the eigenvectors of the factors from scratch."""
        self.decompose(s, lambda values, Q: Q)

    def iterate(self, s: Bucket) -> list[tuple[int, Tensor]]:
        """Update the eigenvectors of the factors by a step of orthogonal iteration, sorted by eigenvalue.

        Returns the order of each side, for what is kept in the eigenvectors' basis.
        """
        orders, trouble = [], Trouble()
        for side, dim in self.here(s):
            A, Q = getattr(s, side), getattr(s, f"Q{side}")
            AQ = A @ Q
            values = (Q * AQ).sum(-2)
            if not bool(values.isfinite().all()):
                raise not_finite(f"{type(self).__name__}, factor {side}")
            order = values.argsort(-1, descending=True)
            columns = order.unsqueeze(-2).expand_as(AQ)
            _, new = retried(orthogonal, AQ.gather(-1, columns), f"{type(self).__name__}, factor {side}", trouble)
            if trouble.failed:
                kept(new, Q.gather(-1, columns), trouble)
            setattr(s, f"Q{side}", new)
            orders.append((dim, order))
        self.count(s, trouble)
        return orders


def kept(new: Tensor, old: Tensor, trouble: Trouble) -> None:
    """Leave a batch as it was where its decomposition failed."""
    for i in trouble.failed:
        new[i] = old[i]


def turned(by: dict[str, Tensor], G: Tensor) -> Tensor:
    """Lᵀ G R. A missing side counts as the identity."""
    G = by["L"].mT @ G if "L" in by else G
    return G @ by["R"] if "R" in by else G


def outer(left: Tensor | None, right: Tensor | None) -> Tensor:
    """Return the eigenvalues of a Kronecker product from the eigenvalues of its factors; None for the identity."""
    if left is None:
        return cast(Tensor, right).unsqueeze(-2)
    return left.unsqueeze(-1) if right is None else left.unsqueeze(-1) * right.unsqueeze(-2)


class Shampoo(Kronecker):
    r"""Shampoo (Gupta, Koren and Singer 2018).

    $$L_t = \beta L_{t-1} + (1-\beta)\, G G^\top, \quad R_t = \beta R_{t-1} + (1-\beta)\, G^\top G, \qquad
      H_t = \hat L_t^{p} \otimes \hat R_t^{p}, \quad \hat L_t = \frac{L_t}{1 - \beta^t} + \varepsilon I$$

    with the power p = 1/4, or 1/2 where one side is used (`one_sided_above=0`: ASGO, An et al. 2025). Each step
    multiplies by the roots $\hat L_t^{-p}$ and $\hat R_t^{-p}$. (A set that needs the eigenvectors of $H_t$ decomposes
    the roots in each step.) Without `grafting`, $H_t \succeq \varepsilon^{2p} I$, or
    $\varepsilon^{p} I$ where one side is used.

    Args:
        beta: weight of the old factors. 1 means the sum of all, as in the paper.
        eps: ε, added to the eigenvalues of the factors. Smaller eigenvalues are raised to the rounding error of the
            largest one.
        every: number of steps between two computations of the roots.
        power: p. None means 1/4, or 1/2 where one side is used.
        bias_correction: divide the factors by 1 - β^t.
        grafting: a diagonal or scalar matrix: each step is rescaled to the norm of this matrix's step. None: no
            grafting.

    >>> Shampoo(one_sided_above=0, every=10).every
    10
    """

    beta: float = 0.99
    eps: float = 1e-12
    every: int = 5
    power: float | None = None
    bias_correction: bool = True
    grafting: Matrix | None = None

    made = "P"
    ignores_zeros = True

    def __post_init__(self) -> None:
        super().__post_init__()
        check(0 <= self.beta <= 1, "beta", self.beta, "0 <= beta <= 1")
        check(self.eps >= 0, "eps", self.eps, "eps >= 0")
        check(self.power is None or 0 < self.power <= 1, "power", self.power, "0 < power <= 1, or None")
        grafted = self.grafting is None or not (
            self.grafting.per_tensor or self.grafting.joint or self.grafting.scalars
        )
        check(grafted, "grafting", self.grafting, "a matrix without sums over all parameters, such as SecondMoment()")

    @property
    def no_auto(self) -> str:  # type: ignore[override]
        if self.grafting is not None:
            return self.grafting.no_auto
        own = "its factors are sums, and its steps shrink: give lr a number, such as 0.03, beta < 1, or grafting"
        return own if self.beta == 1 else ""

    @property
    def lower_bound(self) -> float:
        if self.grafting is not None:
            return 0.0
        if self.power is None:
            return float(self.eps**0.5)
        one, both = self.eps**self.power, self.eps ** (2 * self.power)
        return float(one if self.one_sided_above == 0 else min(one, both))

    def slots(self, x: Tensor) -> dict[str, Slot]:
        slots = super().slots(x)
        if self.grafting is not None:
            slots |= self.grafting.slots(torch.empty(self.size(x), device="meta"))
        return slots

    def update(self, s: Bucket, grad: Tensor) -> None:
        self.average(s, grad, self.beta)
        if self.grafting is not None:
            self.grafting.update(s, grad)

    def refresh(self, s: Bucket) -> None:
        power = 1 / (2 * len(self.here(s))) if self.power is None else self.power
        correction = 1 - self.beta**s.t if self.bias_correction and self.beta < 1 else 1.0

        def root(values: Tensor, Q: Tensor) -> Tensor:
            rounding = torch.finfo(values.dtype).eps * values.amax(-1, keepdim=True)
            values = values.maximum(rounding)  # what is smaller is nothing but errors
            W = Q * ((values / correction + self.eps) ** (-power / 2)).unsqueeze(-2)
            return symmetric(W, W.mT)

        self.decompose(s, root)

    def solve(self, s: Bucket, g: Tensor) -> Tensor:
        step = self.rotate(s, g)  # roots are symmetric
        return step if self.grafting is None else step * self.grafted(self.grafting.solve(s, g), step)

    def inverse(self, s: Bucket) -> Rotation:
        ratio = self.ratio(s)
        return lambda v: turned(self.both(s), v) * ratio

    def eigen(self, s: Bucket) -> tuple[Rotation, Tensor, Rotation]:
        found = {side: eigh(P, f"Shampoo, root {side}") for side, P in self.both(s).items()}
        Q = {side: vectors for side, (_, vectors) in found.items()}
        QT = {side: vectors.mT for side, vectors in Q.items()}
        roots = outer(*(found[side][0] if side in found else None for side, _ in SIDES))
        return lambda G: turned(Q, G), 1 / (roots * self.ratio(s)), lambda G: turned(QT, G)

    def ratio(self, s: Bucket) -> Tensor | float:
        """Return the factor by which grafting multiplies H_t⁻¹."""
        if self.grafting is None:
            return 1.0
        g = s.estimates
        ratio = self.grafted(self.grafting.solve(s, g), turned(self.both(s), g))
        return torch.where(ratio > 0, ratio, 1.0)  # without a gradient, any size is right

    def grafted(self, given: Tensor, step: Tensor) -> Tensor:
        """Return the norm of one step divided by the norm of another, for each matrix."""
        size, own = (torch.linalg.matrix_norm(x, keepdim=True) for x in (given, step))
        ratio: Tensor = size / own.clamp(min=torch.finfo(own.dtype).tiny)
        return ratio
