"""Polyhedra: several linear inequalities."""

from __future__ import annotations

import contextlib
import math
from typing import Any, ClassVar

import torch
from torch import Tensor

from superadam.parts import check
from superadam.sets.base import ConvexSet, check_finite, in_metric, largest, like
from superadam.sets.linear import LinearSet
from superadam.sets.multipliers import active_set, independent, root_of
from superadam.sets.roots import tolerance
from superadam.sets.separable import Intervals

__all__ = ["OnRows", "Polyhedron", "joined", "nearest_on_rows", "without_repeated"]

MAX_NEWTON = 200
FEW = 500  # coordinates whose bounds may be rows of a matrix
HELD = 1e-10  # how far a coordinate at a bound is taken to move, as a share of a free one


class Polyhedron(LinearSet):
    r"""$A x \le b$, where the m × n tensor A acts on the flattened x.

    The multipliers $\lambda$ are positive only for active rows, which hold with equality at the solution:

    $$x = y - D^{-1} A^\top \lambda, \qquad 0 \le \lambda \perp A x - b \le 0$$

    A dual active-set method finds the active rows, starting from those of the last step. It is designed for up to a few
    hundred rows. Write an equation as two rows, or use an `Intersection` with `Affine`. An empty set is refused.

    Args:
        A: the m × n matrix, for an x of n coordinates.
        b: the m right-hand sides.

    >>> A = torch.tensor([[1.0, 1.0], [1.0, -1.0], [-1.0, 0.0]])
    >>> Polyhedron(A, torch.tensor([1.0, 1.0, 0.0])).argmin(torch.tensor([3.0, 1.0]), torch.tensor([1.0, 3.0]))
    tensor([0.7500, 0.2500])
    """

    A: Tensor
    b: Tensor

    inequality: ClassVar[bool] = True
    no_lmo: ClassVar[str] = (
        "it would be a linear program in every step. Use an adaptive matrix, for which line 9 on it is exact, or a set "
        "whose lmo is known: Box, CappedSimplex, BoxSection, DoublyStochastic, Ordered"
    )

    @classmethod
    def _refuse_unknown(cls, options: dict[str, Any], error: type[Exception]) -> None:
        if "dim" in options:
            raise error(
                "Polyhedron has no option 'dim': its rows act on the whole tensor. For k slices with the same rows, "
                "write those of all, Polyhedron(torch.block_diag(*[A] * k), b.repeat(k)), or use k parameters"
            )
        super()._refuse_unknown(options, error)

    def __post_init__(self) -> None:
        A, b = self.A, self.b
        check(A.dim() == 2 and b.shape == A.shape[:1], "A, b", (A, b), "A of shape (m, n) and b of shape (m,)")
        check_finite("A", A)
        check_finite("b", b)
        check((A != 0).any(1).all(), "A", A, "rows that are not 0")
        nothing = torch.zeros(A.shape[1], dtype=torch.float64, device=A.device)
        self.argmin(nothing, 1.0)  # refuses an empty set

    def system(self, x: Tensor) -> tuple[Tensor, Tensor]:
        if self.A.shape[1] != x.numel():
            raise ValueError(f"A acts on {self.A.shape[1]} coordinates, and the tensor has {x.numel()}")
        return self.A.to(x), self.b.to(x)

    def root_shape(self, x: Tensor) -> torch.Size:
        return self.b.shape

    @in_metric
    def argmin(self, y: Tensor, d: Tensor, root: Tensor | None) -> Tensor:
        return nearest_on_rows(self.rows(y.double()), y, d, root)

    def violation(self, x: Tensor) -> Tensor:
        x = x.double().flatten()
        if x.numel() == 0:
            return x.new_zeros(())
        A, b = self.system(x)
        return largest((A @ x - b) / torch.linalg.vector_norm(A, dim=1))


Rows = tuple[Tensor, Tensor, Tensor]


def joined(sets: list[LinearSet], x: Tensor) -> Rows:
    """Return a and b of several linear sets, and which rows are inequalities."""
    A, b, inequality = zip(*(each.rows(x) for each in sets), strict=True)
    return torch.cat(A), torch.cat(b), torch.cat(inequality)


def without_repeated(rows: Rows) -> Rows:
    """Return the rows without equations that follow from others, as the sums of two simplices do."""
    A, b, inequality = rows
    equations = (~inequality).nonzero().flatten()
    if len(equations) < 2:
        return rows
    unit = _unit(rows)[0]
    C = torch.linalg.qr(unit.T, mode="r").R
    kept = independent(C, torch.zeros_like(inequality), ~inequality)
    for p in equations[~kept[equations]].tolist():
        share = torch.linalg.lstsq(A[kept].T, A[p][:, None], driver="gelsd").solution.flatten()
        if bool((share @ b[kept] - b[p]).abs() > 1e-9 * (share.abs() @ b[kept].abs() + b[p].abs())):
            raise ValueError(f"the set is empty: equations [{p}] contradict the others")
    kept = kept | inequality
    return A[kept], b[kept], inequality[kept]


def nearest_on_rows(rows: Rows, y: Tensor, d: Tensor, root: Tensor | None = None) -> Tensor:
    """Return the x nearest to y that satisfies the rows.

    `root` is 1 for the rows with λ > 0, and 0 for the others.
    """
    x = y.double().flatten()
    A, b, inequality = _unit(rows)
    left = 1e-3 * A.abs() @ x.abs()  # of a large y, in what rounding errors are compared with
    excess, size = A @ x - b, A.abs() @ x.abs() + b.abs()
    if bool((torch.where(inequality, excess, excess.abs()) <= tolerance(y) * size).all()):
        return y
    w = (d.amax().double() / d.double()).expand_as(y).flatten()
    B, C = _factor(A, w.sqrt()), torch.linalg.qr(A.T, mode="r").R
    lam = torch.zeros_like(b)
    guess = torch.zeros_like(inequality) if root is None else root > 0
    for _ in range(8):  # once, then against rounding errors, of a large y above all
        delta = active_set(B, C, excess, inequality, lam, guess, 1e-14 * size)
        x, lam = x - w * (A.T @ delta), lam + delta
        guess = lam > 0
        excess, size = A @ x - b, A.abs() @ x.abs() + b.abs() + left
        wrong = torch.where(guess | ~inequality, excess.abs(), excess)
        if bool((wrong <= 1e-13 * size).all()):
            break
    if bool((wrong > 1e-9 * size).any()):
        raise ValueError(
            f"line 9 on {len(A)} rows was not solved to 1e-9: it could not reach the required accuracy because of "
            f"rounding. d spans a ratio of {float(w.max() / w.min()):.0e}, and y has numbers up to "
            f"{float(y.abs().max()):.0e}: rescale d or y, or remove nearly parallel rows"
        )
    if root is not None:
        root.copy_(guess)
    return x.view(y.shape)


def _unit(rows: Rows) -> Rows:
    A, b, inequality = rows
    length = torch.linalg.vector_norm(A, dim=1)
    return A / length[:, None], b / length, inequality


def _factor(A: Tensor, w: Tensor) -> Tensor:
    """B with BᵀB = A w² Aᵀ, where w may span many orders of magnitude."""
    # w Aᵀ = L U. With pivoting no element of L is large, and U has all of the differences between the w.
    LU = torch.linalg.lu_factor_ex(w[:, None] * A.T).LU  # rows may depend on each other
    L, U = LU[:, : len(LU)].tril(-1), LU[: LU.shape[1]].triu()
    L.diagonal().fill_(1.0)
    B: Tensor = torch.linalg.cholesky(L.T @ L).T @ U  # the order of L's rows does not matter
    return B


class OnRows:
    """The point of a set that is nearest to y and satisfies some rows, as a function of y.

    By Newton's method on the dual, with the multipliers λ of the rows as unknowns: x(λ) is the set's point that is
    nearest to y - w Aᵀλ. For curved sets, the derivative of A x(λ) is found by differences, one for each row. λ of the
    last solution is the next start.
    """

    def __init__(self, rows: Rows, sets: list[ConvexSet], d: Tensor, accept: float) -> None:
        self.A, self.b, self.inequality = _unit(rows)
        self.rows, self.sets, self.d, self.accept = rows, sets, d, accept
        self.w = 1 / d
        self.lam = torch.zeros_like(self.b)

    def moved(self, lam: Tensor) -> Tensor:
        return self.y - self.w * (self.A.T @ lam).view_as(self.y)

    def x(self, lam: Tensor) -> Tensor:
        first, moved = self.sets[0], self.moved(lam)
        return first.clip_(moved) if isinstance(first, Intervals) else first.argmin(moved, self.d).to(self.y.dtype)

    def __call__(self, y: Tensor, d: Tensor | None = None) -> Tensor:
        if d is not None:
            self.d, self.w = d, 1 / d
        if not self.sets:
            return nearest_on_rows(self.rows, y, self.d)
        self.y, lam = y, torch.where(self.inequality, self.lam.clamp(min=0), self.lam)
        gram, least, stalled = root_of(self.A @ self.A.T), math.inf, 0
        size_of_A = self.A.abs()
        left = 1e-3 * size_of_A @ y.abs().flatten()  # of a large y, in what rounding errors are compared with
        for _ in range(MAX_NEWTON):
            x = self.x(lam)
            excess = self.excess(x)
            size = size_of_A @ x.abs().flatten() + self.b.abs() + left
            wrong = torch.where((lam > 0) | ~self.inequality, excess.abs(), excess) / size
            error = float(wrong.amax())
            stalled += error >= least / 2
            if error <= 1e-14 or (stalled and error <= self.accept):
                self.lam = lam
                return x
            least = min(least, error)
            delta = active_set(self.factor(lam, x), gram, excess, self.inequality, lam, lam > 0, 1e-15 * size)
            lam = lam + self.share(lam, delta, excess) * delta
            if not bool((lam.abs() <= 1e20 * (1 + y.abs().amax())).all()):
                break
        if isinstance(self.sets[0], Intervals) and y.numel() <= FEW:
            with contextlib.suppress(ValueError):
                return self.by_active_bounds(y, self.sets[0])
        raise ValueError(
            f"no point of {type(self.sets[0]).__name__} that meets all rows was found in {MAX_NEWTON} iterations: they "
            f"are off by {least:g}, relative to the numbers in them. Is there such a point? Does d span more than "
            "four orders of magnitude?"
        )

    def by_active_bounds(self, y: Tensor, box: Intervals) -> Tensor:
        """Return the same with the bounds as rows: slower, but exact for more orders of magnitude in d."""
        lo, hi = box.bounds()
        lo, hi = like(-math.inf if lo is None else lo, y).flatten(), like(math.inf if hi is None else hi, y).flatten()
        eye, (A, b, inequality) = torch.eye(y.numel(), dtype=y.dtype, device=y.device), self.rows
        above, below = hi < math.inf, lo > -math.inf
        bounds = torch.cat([hi[above], -lo[below]])
        rows = (
            torch.cat([A, eye[above], -eye[below]]),
            torch.cat([b, bounds]),
            torch.cat([inequality, bounds == bounds]),
        )
        return box.clip_(nearest_on_rows(rows, y, self.d))

    def excess(self, x: Tensor) -> Tensor:
        return self.A @ x.flatten() - self.b

    def factor(self, lam: Tensor, x: Tensor) -> Tensor:
        """Return B with BᵀB the derivative of -A x(λ), plus a little of the derivative without the set.

        So its rows have the same linear dependencies as those of A, and rows that the set keeps fixed are not lost.
        """
        w = self.w.expand_as(x)
        if isinstance(self.sets[0], Intervals):  # coordinates between their bounds move freely
            return _factor(self.A, w.where(self.moved(lam) == x, HELD * w).flatten().sqrt())
        free = (self.A * w.flatten()) @ self.A.T
        unit = free.diagonal().sqrt()
        return root_of((self.derivative(lam, x) + HELD * free) / torch.outer(unit, unit)) * unit

    def derivative(self, lam: Tensor, x: Tensor) -> Tensor:
        """Return the derivative of -A x(λ), by differences."""
        size = 1e-3 * self.y.abs().amax() + x.abs().amax() + 1e-3 * self.b.abs().amax()
        h = 1e-7 * size.clamp(min=1e-30) / (self.w * self.A.view(-1, *x.shape)).abs().amax()
        columns = [(x - self.x(lam + h * unit)).flatten() / h for unit in torch.eye(len(lam)).to(lam)]
        S = self.A @ torch.stack(columns, 1)
        return (S + S.T) / 2

    def share(self, lam: Tensor, delta: Tensor, excess: Tensor) -> float:
        """Return the fraction of the step to take: where the slope of the dual is nearly 0, or 1."""
        first, t, low, high = float(excess @ delta), 1.0, 0.0, 1.0
        for _ in range(60):
            slope = float(self.excess(self.x(lam + t * delta)) @ delta)
            if slope >= -0.1 * first and (slope <= 0.1 * first or t == 1.0):
                return t
            low, high = (t, high) if slope > 0 else (low, t)
            t = math.sqrt(low * high) if low > 0 else high / 10
        return low or t
