"""Linear equations and inequalities over the whole tensor."""

from __future__ import annotations

import torch
from torch import Tensor

from superadam._state.parts import check
from superadam.sets.base import ConvexSet, check_finite, in_metric, largest, like, solving
from superadam.sets.roots import Blocks

__all__ = ["Affine", "Halfspace", "Hyperplane"]


class OneRow(ConvexSet, abstract=True):
    """What the halfspace and the hyperplane share."""

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

    def violated(self, excess: Tensor) -> Tensor:
        """Whether x is outside, given aᵀx - b."""
        raise NotImplementedError(f"{type(self).__name__} has no violated")

    @solving
    def argmin(self, y: Tensor, d: Tensor) -> Tensor:
        excess = self.excess(y)
        if not bool(self.violated(excess)):
            return y
        most = d.amax()
        w = d.reciprocal_().mul_(most)  # a multiple of 1/d that does not overflow
        a = like(self.a, y) if isinstance(self.a, Tensor) else y.new_tensor(self.a)
        blocks = Blocks.of(tuple(range(y.dim())), y, w, a).parts
        scale = torch.stack([(w_i * (a_i * a_i)).expand_as(y_i).sum() for y_i, w_i, a_i in blocks]).sum()
        for _ in range(2):  # once more, against the rounding errors of a large y
            t = self.excess(y) / scale
            for y_i, w_i, a_i in blocks:
                y_i.addcmul_(w_i, a_i * t, value=-1)
        return y

    def violation(self, x: Tensor) -> Tensor:
        if x.numel() == 0:
            return x.new_zeros(())
        x = x.double()
        norm: Tensor = torch.linalg.vector_norm(like(self.a, x))
        excess = self.excess(x)
        return self.violated(excess) * excess.abs() / norm


class Hyperplane(OneRow):
    r"""$a^\top x = b$; a is a tensor that fits x, or a number for all coordinates.

    $$x = y - \frac{a}{d} \cdot \frac{a^\top y - b}{\sum_i a_i^2 / d_i}$$

    >>> Hyperplane(1.0, b=0.0).argmin(torch.tensor([1.0, 2.0]), torch.tensor([1.0, 2.0]))
    tensor([-1.,  1.])
    """

    def violated(self, excess: Tensor) -> Tensor:
        return excess != 0


class Halfspace(OneRow):
    r"""$a^\top x \le b$; a is a tensor that fits x, or a number for all coordinates.

    $$x = y - \frac{a}{d} \cdot \frac{\max(0, a^\top y - b)}{\sum_i a_i^2 / d_i}$$

    >>> Halfspace(torch.tensor([1.0, 0.0]), b=1.0).argmin(torch.tensor([3.0, 3.0]), 1.0)
    tensor([1., 3.])
    """

    def violated(self, excess: Tensor) -> Tensor:
        return excess > 0


class Affine(ConvexSet):
    r"""$A x = b$, where the m × n tensor A acts on the flattened x.

    $$x = y - D^{-1} A^\top (A D^{-1} A^\top)^{-1} (A y - b)$$

    >>> A = torch.tensor([[1.0, 1.0, 0.0], [0.0, 1.0, 1.0]])
    >>> Affine(A, torch.tensor([0.0, 3.0])).argmin(torch.zeros(3), 1.0)
    tensor([-1.,  1.,  2.])
    """

    A: Tensor
    b: Tensor

    def __post_init__(self) -> None:
        A, b = self.A, self.b
        check(A.dim() == 2 and b.shape == A.shape[:1], "A, b", (A, b), "A of shape (m, n) and b of shape (m,)")
        check_finite("A", A)
        check_finite("b", b)
        independent = torch.linalg.matrix_rank(A.double()) == len(A)
        check(independent, "A", A, "linearly independent rows; leave out those that follow from others")

    def _system(self, x: Tensor) -> tuple[Tensor, Tensor]:
        if self.A.shape[1] != x.numel():
            raise ValueError(f"A acts on {self.A.shape[1]} coordinates, and the tensor has {x.numel()}")
        return self.A.to(x), self.b.to(x)

    @in_metric
    def argmin(self, y: Tensor, d: Tensor) -> Tensor:
        x = y.double().flatten()
        A, b = self._system(x)
        w = (d.double() / d.amax()).rsqrt().expand_as(y).reshape(-1, 1)
        # w Aᵀ = L U. With pivoting no element of L is large, and U has all of the differences between the d, however
        # many orders of magnitude they are: A D⁻¹ Aᵀ = Uᵀ (Lᵀ L) U.
        U = torch.linalg.lu_factor(w * A.T).LU[: len(A)].triu()
        L = torch.linalg.solve_triangular(U, w * A.T, upper=True, left=False)
        R = torch.linalg.cholesky(L.T @ L)
        for _ in range(5):  # once, then against rounding errors
            excess = torch.linalg.solve_triangular(U.T, (A @ x - b)[:, None], upper=False)
            x = x - (w * (L @ torch.cholesky_solve(excess, R))).flatten()
        return x.view(y.shape)

    def violation(self, x: Tensor) -> Tensor:
        x = x.double().flatten()
        if x.numel() == 0:
            return x.new_zeros(())
        A, b = self._system(x)
        return largest((A @ x - b).abs())
