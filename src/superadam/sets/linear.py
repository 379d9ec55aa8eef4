"""Linear equations and inequalities over the whole tensor."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import ClassVar, cast

import torch
from torch import Tensor

from superadam.parts import check
from superadam.sets.base import ConvexSet, Sizes, check_finite, in_metric, largest, like, relative, solving
from superadam.sets.multipliers import multipliers
from superadam.sets.roots import Blocks, nowhere

__all__ = ["Affine", "Halfspace", "Hyperplane", "LinearSet", "correction", "multipliers"]


class LinearSet(ConvexSet, abstract=True):
    """A x = b or A x ≤ b. The step needs only the inverse of H_t: see `correction`."""

    needs: ClassVar[str] = "inverse"
    inequality: ClassVar[bool] = False

    def rows(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Return A, b, and which rows are inequalities."""
        A, b = self.system(x)
        return A, b, torch.full((len(A),), self.inequality, device=A.device)

    def system(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """Return A for the flattened x, and b."""
        raise NotImplementedError(f"{type(self).__name__} has no system")

    def relative_violation(self, x: Tensor) -> Tensor:
        """Row by row, to Σ|Aᵢⱼxⱼ| + |bᵢ|."""
        if x.numel() == 0:
            return x.new_zeros(())
        A, b, inequality = self.rows(x.double())
        x = x.double().flatten()
        excess = A @ x - b
        off = torch.where(inequality, excess.relu(), excess.abs())
        return relative(off, A.abs() @ x.abs() + b.abs()).amax()


class OneRow(LinearSet, abstract=True):
    """Shared code of `Halfspace` and `Hyperplane`.

    Args:
        a: a tensor that broadcasts to x, or a number for all coordinates.
        b: the right-hand side, a number.
    """

    a: Tensor | float
    b: float

    def __post_init__(self) -> None:
        check_finite("a", self.a)
        check_finite("b", self.b)
        check(torch.as_tensor(self.a).count_nonzero() > 0, "a", self.a, "a != 0")

    def excess(self, x: Tensor) -> Tensor:
        """aᵀx - b."""
        if not isinstance(self.a, Tensor):
            return self.a * x.sum() - self.b
        return (like(self.a, x) * x).sum() - self.b

    def system(self, x: Tensor) -> tuple[Tensor, Tensor]:
        return like(self.a, x).reshape(1, -1), x.new_full((1,), self.b)

    def violated(self, excess: Tensor) -> Tensor:
        """Return whether x is outside, given aᵀx - b."""
        raise NotImplementedError(f"{type(self).__name__} has no violated")

    @solving
    def argmin(self, y: Tensor, d: Tensor, sizes: Sizes | None) -> Tensor:
        excess = self.excess(y)
        violated = self.violated(excess)
        if nowhere(violated):
            return y
        most = d.amax() if sizes is None else sizes.d_max
        a = like(self.a, y) if isinstance(self.a, Tensor) else y.new_full((), self.a)
        blocks = Blocks.of(tuple(range(y.dim())), y, d, a).parts
        scales = []
        for i, (y_i, w_i, a_i) in enumerate(blocks):
            if d.dim() > 0 or i == 0:
                w_i.reciprocal_().mul_(most)  # a multiple of 1/d that does not overflow
            weights = w_i if a.dim() == 0 else w_i * (a_i * a_i)
            scales.append(weights.expand_as(y_i).sum())
        scale = torch.stack(scales).sum() * (a * a if a.dim() == 0 else 1.0)
        for last in (False, True):  # once more, against the rounding errors of a large y
            t, sums = torch.where(violated, excess / scale, 0.0), []
            for y_i, w_i, a_i in blocks:
                y_i.addcmul_(w_i, a_i * t, value=-1)
                if not last:
                    sums.append(y_i.sum() * a if a.dim() == 0 else (a_i * y_i).sum())
            excess = excess if last else torch.stack(sums).sum() - self.b
        return y

    def violation(self, x: Tensor) -> Tensor:
        if x.numel() == 0:
            return x.new_zeros(())
        x = x.double()
        norm: Tensor = torch.linalg.vector_norm(like(self.a, x))
        excess = self.excess(x)
        return self.violated(excess) * excess.abs() / norm


class Hyperplane(OneRow):
    r"""$a^\top x = b$.

    $$x = y - \frac{a}{d} \cdot \frac{a^\top y - b}{\sum_i a_i^2 / d_i}$$

    >>> Hyperplane(1.0, b=0.0).argmin(torch.tensor([1.0, 2.0]), torch.tensor([1.0, 2.0]))
    tensor([-1.,  1.])
    """

    waits: ClassVar[bool] = False

    def violated(self, excess: Tensor) -> Tensor:
        return excess != 0


class Halfspace(OneRow):
    r"""$a^\top x \le b$.

    $$x = y - \frac{a}{d} \cdot \frac{\max(0, a^\top y - b)}{\sum_i a_i^2 / d_i}$$

    >>> Halfspace(torch.tensor([1.0, 0.0]), b=1.0).argmin(torch.tensor([3.0, 3.0]), 1.0)
    tensor([1., 3.])
    """

    inequality: ClassVar[bool] = True
    waits: ClassVar[bool] = False

    def violated(self, excess: Tensor) -> Tensor:
        return excess > 0


class Affine(LinearSet):
    r"""$A x = b$, where the m × n tensor A acts on the flattened x.

    $$x = y - D^{-1} A^\top (A D^{-1} A^\top)^{-1} (A y - b)$$

    Args:
        A: the m × n matrix, for an x of n coordinates.
        b: the m right-hand sides.

    >>> A = torch.tensor([[1.0, 1.0, 0.0], [0.0, 1.0, 1.0]])
    >>> Affine(A, torch.tensor([0.0, 3.0])).argmin(torch.zeros(3), 1.0)
    tensor([-1.,  1.,  2.])
    """

    A: Tensor
    b: Tensor

    waits: ClassVar[bool] = False

    def __post_init__(self) -> None:
        A, b = self.A, self.b
        check(A.dim() == 2 and b.shape == A.shape[:1], "A, b", (A, b), "A of shape (m, n) and b of shape (m,)")
        check_finite("A", A)
        check_finite("b", b)
        independent = torch.linalg.matrix_rank(A.double()) == len(A)
        check(independent, "A", A, "linearly independent rows; leave out those that follow from others")

    def system(self, x: Tensor) -> tuple[Tensor, Tensor]:
        if self.A.shape[1] != x.numel():
            raise ValueError(f"A acts on {self.A.shape[1]} coordinates, and the tensor has {x.numel()}")
        return self.A.to(x), self.b.to(x)

    @in_metric
    def argmin(self, y: Tensor, d: Tensor) -> Tensor:
        x = y.double().flatten()
        A, b = self.system(x)
        w = (d.double() / d.amax()).rsqrt().expand_as(y).reshape(-1, 1)
        # w Aᵀ = L U. With pivoting no element of L is large, and U has all of the differences between the d, however
        # many orders of magnitude they are: A D⁻¹ Aᵀ = Uᵀ (Lᵀ L) U.
        U = torch.linalg.lu_factor_ex(w * A.T).LU[: len(A)].triu()
        L = torch.linalg.solve_triangular(U, w * A.T, upper=True, left=False)
        R = torch.linalg.cholesky_ex(L.T @ L).L
        for _ in range(5):  # once, then against rounding errors
            excess = torch.linalg.solve_triangular(U.T, (A @ x - b)[:, None], upper=False)
            x = x - (w * (L @ torch.cholesky_solve(excess, R))).flatten()
        return x.view(y.shape)

    def violation(self, x: Tensor) -> Tensor:
        x = x.double().flatten()
        if x.numel() == 0:
            return x.new_zeros(())
        A, b = self.system(x)
        return largest((A @ x - b).abs())


Vector = list[Tensor]


@torch.no_grad()
def correction(sets: Sequence[ConvexSet | None], y: Vector, inverse: Callable[[Vector], Vector]) -> Vector:
    r"""Return $H^{-1} A^\top \lambda$. y minus this is the exact step of line 9, the feasible point nearest to y.

    There is one linear set for each tensor of y (None: no set). H is one matrix for all tensors, and `inverse` returns
    $H^{-1} v$. For $A x = b$, $\lambda = (A H^{-1} A^\top)^{-1} (A y - b)$.

    >>> d = torch.tensor([1.0, 2.0])
    >>> correction([Hyperplane(1.0, b=0.0)], [torch.tensor([1.0, 2.0])], lambda v: [v[0] / d])
    [tensor([2., 1.])]
    """
    place: list[int] = []
    rows, excess, inequality = [], [], []
    for i, (of_x, x) in enumerate(zip(sets, y, strict=True)):
        if of_x is not None:
            A, b, unequal = cast(LinearSet, of_x).rows(x.double())
            place += [i] * len(A)
            rows += list(A)
            excess += list(A @ x.double().flatten() - b)
            inequality.append(unequal)
    columns = [
        inverse([a.to(x.dtype).view_as(x) if i == k else torch.zeros_like(x) for k, x in enumerate(y)])
        for i, a in zip(place, rows, strict=True)
    ]
    S = torch.stack([
        torch.stack([a @ column[i].double().flatten() for column in columns])
        for i, a in zip(place, rows, strict=True)
    ])  # fmt: skip
    gram = torch.stack([
        torch.stack([a @ other if i == k else a.new_zeros(()) for k, other in zip(place, rows, strict=True)])
        for i, a in zip(place, rows, strict=True)
    ])  # fmt: skip
    lam = multipliers(S, torch.stack(excess), torch.cat(inequality), gram)
    return [
        torch.stack([u * c[k].double() for u, c in zip(lam, columns, strict=True)]).sum(0).to(x)
        for k, x in enumerate(y)
    ]
