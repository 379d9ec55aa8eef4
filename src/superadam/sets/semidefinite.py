"""Sets of positive semidefinite matrices, for a scalar metric only: a diagonal one would change the eigenvectors too.

The last two dimensions are the matrix, as in `torch.linalg`. Everything is computed in float64, because the remainder
of a large eigenvalue must be accurate relative to the trace.
"""

from __future__ import annotations

import math
from typing import ClassVar

import torch
from torch import Tensor

from superadam.parts import check
from superadam.sets.base import ConvexSet, in_metric, largest, vertex
from superadam.sets.roots import tolerance, water_level

__all__ = ["PSD", "Correlation", "Spectrahedron"]


class Semidefinite(ConvexSet, abstract=True):
    """Shared code of the sets in this file."""

    scalar_metric: ClassVar[bool] = True

    def excess(self, x: Tensor, values: Tensor) -> Tensor:
        """Violation of the conditions other than x ⪰ 0, for each symmetric matrix with these eigenvalues."""
        return torch.zeros_like(values[..., 0])

    def nearest(self, x: Tensor, values: Tensor, Q: Tensor) -> Tensor:
        """Return the matrix of the set nearest to a symmetric x = Q diag(values) Qᵀ."""
        raise NotImplementedError(f"{type(self).__name__} has no nearest")

    @in_metric
    def argmin(self, y: Tensor, d: Tensor) -> Tensor:
        matrix = self._square(y).double()
        x = (matrix + matrix.mT) / 2
        values, Q = torch.linalg.eigh(x)
        small = tolerance(y) * values.abs().amax(-1).clamp(min=1e-300) * x.shape[-1]
        skew = (matrix - x).abs().amax((-2, -1))
        inside = (values[..., 0] >= -small) & (skew == 0) & (self.excess(x, values) <= tolerance(y))
        if bool(inside.all()):
            return y
        solved = self.nearest(x, values, Q)
        return torch.where(inside[..., None, None], matrix, (solved + solved.mT) / 2).view(y.shape)

    def in_rows(self, x: Tensor) -> bool:
        return x.dim() > 2

    def violation(self, x: Tensor) -> Tensor:
        if x.numel() == 0:
            return x.new_zeros(())
        matrix = self._square(x).double()
        x = (matrix + matrix.mT) / 2
        values = torch.linalg.eigvalsh(x)
        skew = largest((matrix - x).abs())
        return torch.stack([skew, largest(-values), largest(self.excess(x, values))]).amax()

    def _square(self, x: Tensor) -> Tensor:
        if x.dim() == 0 or (x.dim() == 1 and len(x) == 1):
            return x.view(1, 1)
        if x.dim() < 2 or x.shape[-1] != x.shape[-2]:
            raise ValueError(f"{self} is a set of square matrices, and the tensor has the shape {tuple(x.shape)}")
        return x


def _rebuilt(values: Tensor, Q: Tensor) -> Tensor:
    return (Q * values[..., None, :]) @ Q.mT


class PSD(Semidefinite):
    r"""$x = x^\top \succeq 0$: $x = Q \max(0, \sigma) Q^\top$ for $(y + y^\top)/2 = Q \sigma Q^\top$.

    >>> PSD().argmin(torch.diag(torch.tensor([3.0, -0.5])), 1.0)
    tensor([[3., 0.],
            [0., 0.]])
    """

    def nearest(self, x: Tensor, values: Tensor, Q: Tensor) -> Tensor:
        return _rebuilt(values.clamp(min=0), Q)


class Spectrahedron(Semidefinite):
    r"""$x = x^\top \succeq 0$, $\mathrm{tr}\, x = \mathrm{trace}$, as for density matrices.

    $x = Q \max(0, \sigma - \theta) Q^\top$ for $(y + y^\top)/2 = Q \sigma Q^\top$, with $\theta$ such that
    $\mathrm{tr}\, x = \mathrm{trace}$.

    Args:
        trace: the trace of x.

    >>> Spectrahedron().argmin(torch.diag(torch.tensor([1.0, 0.5])), 1.0)
    tensor([[0.7500, 0.0000],
            [0.0000, 0.2500]])
    """

    trace: float = 1.0

    def __post_init__(self) -> None:
        check(0 <= self.trace < math.inf, "trace", self.trace, "0 <= trace < inf")

    def excess(self, x: Tensor, values: Tensor) -> Tensor:
        return (values.sum(-1) - self.trace).abs() / max(self.trace, 1e-300)

    def nearest(self, x: Tensor, values: Tensor, Q: Tensor) -> Tensor:
        values = values.clone()
        water_level(values, values.new_ones(()), self.trace, (-1,))
        return _rebuilt(values, Q)

    @vertex
    def lmo(self, g: Tensor) -> Tensor:
        """trace · q qᵀ for the eigenvector q of g's least eigenvalue. Ties: the decomposition's first."""
        matrix = self._square(g).double()
        v = torch.linalg.eigh((matrix + matrix.mT) / 2).eigenvectors[..., :1]
        x: Tensor = self.trace * v @ v.mT
        return x.view(g.shape)


class Correlation(Semidefinite):
    r"""$x = x^\top \succeq 0$, $x_{ii} = 1$: the nearest correlation matrix.

    $$x = (y + \mathrm{Diag}(z))_+, \qquad \mathrm{diag}\, x = 1$$

    where $(\cdot)_+$ keeps the positive eigenvalues. z minimises the dual. The Newton method of Qi and Sun (2006) finds
    it in five to ten eigendecompositions, and in more if entries of y exceed 1e3. It supports entries of y up to 1e6.

    >>> y = torch.tensor([[2.0, 1.0, -1.0], [1.0, 1.0, 1.0], [-1.0, 1.0, 1.0]])
    >>> Correlation().argmin(y, 1.0)
    tensor([[ 1.0000,  0.5000, -0.5000],
            [ 0.5000,  1.0000,  0.5000],
            [-0.5000,  0.5000,  1.0000]])
    """

    no_lmo: ClassVar[str] = (
        "it would be a semidefinite program in every step. Use a matrix with one learning rate, such as GradientNorm, "
        "for which line 9 on it is exact, or the Spectrahedron, whose lmo is an eigenvector"
    )

    def excess(self, x: Tensor, values: Tensor) -> Tensor:
        return (x.diagonal(dim1=-2, dim2=-1) - 1).abs().amax(-1)

    def nearest(self, x: Tensor, values: Tensor, Q: Tensor) -> Tensor:
        x = _on_unit_diagonal(x)
        # The rounding errors of the diagonal; x stays semidefinite.
        root = x.diagonal(dim1=-2, dim2=-1).rsqrt()
        x = x * root[..., None] * root[..., None, :]
        x.diagonal(dim1=-2, dim2=-1).fill_(1.0)
        return x


MAX_NEWTON = 200


def _on_unit_diagonal(y: Tensor) -> Tensor:
    r"""Return $(y + \mathrm{Diag}(z))_+$ with unit diagonal, for each matrix.

    Minimises the convex $\frac12 \|(y + \mathrm{Diag}(z))_+\|^2 - \sum_i z_i$, whose gradient is the diagonal minus 1.
    """
    scale = y.abs().amax((-2, -1), keepdim=True).clamp(min=1.0)[..., 0]
    z = 1 - y.diagonal(dim1=-2, dim2=-1)
    values, Q, x, f = _positive(y, z)
    for _ in range(MAX_NEWTON):
        F = x.diagonal(dim1=-2, dim2=-1) - 1
        error = F.abs().amax(-1, keepdim=True)
        # Rounding errors are relative to y.
        if bool((error <= 1e-15 * x.shape[-1] * scale).all()):
            return x
        step = _newton(values, Q, F, error)
        slope = (F * step).sum(-1)
        t = torch.ones_like(slope)
        for _ in range(40):  # halve where the dual has not gone down
            new = _positive(y, z + t[..., None] * step)
            smaller = (new[2].diagonal(dim1=-2, dim2=-1) - 1).abs().amax(-1, keepdim=True) <= error / 2
            enough = smaller[..., 0] | (new[3] <= f + 1e-4 * t * slope)
            if bool(enough.all()):
                break
            t = torch.where(enough, t, t / 2)
        z = z + t[..., None] * step
        values, Q, x, f = new
    if bool((error > 1e-9 * scale).any()):
        raise ValueError(
            f"Correlation was not solved in {MAX_NEWTON} iterations: the diagonal is off by {error.max():g}. It is "
            f"made for numbers of up to 1e6, and y has up to {scale.max():g}"
        )
    return x


def _positive(y: Tensor, z: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Eigenvalues and eigenvectors of y + Diag(z), its positive part, and the dual."""
    values, Q = torch.linalg.eigh(y + torch.diag_embed(z))
    positive = values.clamp(min=0)
    return values, Q, _rebuilt(positive, Q), positive.square().sum(-1) / 2 - z.sum(-1)


def _newton(values: Tensor, Q: Tensor, F: Tensor, error: Tensor) -> Tensor:
    """Return -V⁻¹F by conjugate gradients. V h = diag(Q (W ∘ Qᵀ Diag(h) Q) Qᵀ) is a derivative of F."""
    positive = values.clamp(min=0)
    rise = positive[..., :, None] - positive[..., None, :]
    run = values[..., :, None] - values[..., None, :]
    both = ((values[..., :, None] > 0) & (values[..., None, :] > 0)).to(values)
    W = torch.where(run.abs() > 1e-14 * values.abs().amax(-1)[..., None, None], rise / run, both)

    def V(h: Tensor) -> Tensor:
        M = W * (Q.mT @ (h[..., None] * Q))
        return ((Q @ M) * Q).sum(-1) + 1e-12 * h

    step, left = torch.zeros_like(F), -F
    # V's diagonal, so that rows that are nearly 0 do not slow it down
    scale = torch.einsum("...ia,...ab,...ib->...i", Q.square(), W, Q.square()).clamp(min=1e-12)
    p = q = left / scale
    rho = (left * q).sum(-1, keepdim=True)
    goal = (error.clamp(max=0.1) * left.norm(dim=-1, keepdim=True)).clamp(min=1e-300)
    for _ in range(4 * F.shape[-1]):
        if bool((left.norm(dim=-1, keepdim=True) <= goal).all()):
            break
        Vp = V(p)
        a = rho / (p * Vp).sum(-1, keepdim=True).clamp(min=1e-300)
        step, left = step + a * p, left - a * Vp
        q = left / scale
        last, rho = rho, (left * q).sum(-1, keepdim=True)
        p = q + rho / last.clamp(min=1e-300) * p
    return step
