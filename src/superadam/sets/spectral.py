"""Balls of matrix norms, for a scalar metric only: a diagonal one would change the singular vectors too.

The last two dimensions are the matrix, as in `torch.linalg`; a vector is a matrix of one row.
"""

from __future__ import annotations

from typing import ClassVar

import torch
from torch import Tensor

from superadam.sets.base import ConvexSet, check_radius, in_metric, largest, vertex
from superadam.sets.roots import tolerance, water_level

__all__ = ["NuclearBall", "SpectralBall"]


def as_matrix(x: Tensor) -> Tensor:
    return x if x.dim() >= 2 else x.view(1, -1)


class SingularValues(ConvexSet, abstract=True):
    """Shared code of the sets in this file, which bound a norm of the singular values.

    Args:
        r: the bound on the norm of the singular values.
    """

    r: float

    scalar_metric: ClassVar[bool] = True

    def __post_init__(self) -> None:
        check_radius(self.r)

    def norm(self, sigma: Tensor) -> Tensor:
        """Return the norm of a matrix with these singular values."""
        raise NotImplementedError(f"{type(self).__name__} has no norm")

    def project(self, sigma: Tensor) -> Tensor:
        """Return the singular values of norm r nearest to the given values of a larger norm."""
        raise NotImplementedError(f"{type(self).__name__} has no project")

    @in_metric
    def argmin(self, y: Tensor, d: Tensor) -> Tensor:
        matrix = as_matrix(y)
        U, sigma, V = torch.linalg.svd(matrix, full_matrices=False)
        x = (U * self.project(sigma)[..., None, :]) @ V
        inside = self.norm(sigma)[..., None, None] <= self.r * (1 + tolerance(y))
        return torch.where(inside, matrix, x).view(y.shape)

    def opposite(self, sigma: Tensor) -> Tensor:
        """Return the singular values of norm r with the largest inner product with these."""
        raise NotImplementedError(f"{type(self).__name__} has no opposite")

    @vertex
    def lmo(self, g: Tensor) -> Tensor:
        """Return the minimiser, which has the singular vectors of g. 0 if g is 0."""
        U, sigma, V = torch.linalg.svd(as_matrix(g), full_matrices=False)
        x: Tensor = (U * -self.opposite(sigma)[..., None, :]) @ V
        return x.view(g.shape)

    def violation(self, x: Tensor) -> Tensor:
        if x.numel() == 0:
            return x.new_zeros(())
        return largest(self.norm(torch.linalg.svdvals(as_matrix(x.double()))) - self.r)


class SpectralBall(SingularValues):
    r"""Largest singular value at most r: $x = U \min(\sigma, r) V^\top$ for $y = U \sigma V^\top$.

    >>> SpectralBall(1.0).argmin(torch.diag(torch.tensor([3.0, 0.5])), 1.0)
    tensor([[1.0000, 0.0000],
            [0.0000, 0.5000]])
    """

    def norm(self, sigma: Tensor) -> Tensor:
        return sigma.amax(-1)

    def project(self, sigma: Tensor) -> Tensor:
        return sigma.clamp(max=self.r)

    def opposite(self, sigma: Tensor) -> Tensor:
        """Return r, but 0 where a singular value is 0 up to rounding errors: its singular vectors are arbitrary."""
        zero = sigma <= sigma.shape[-1] * tolerance(sigma) * sigma.amax(-1, keepdim=True)
        return torch.full_like(sigma, self.r).masked_fill(zero, 0.0)


class NuclearBall(SingularValues):
    r"""Sum of the singular values at most r: $x = U \max(0, \sigma - \theta) V^\top$ for $y = U \sigma V^\top$.

    >>> NuclearBall(1.0).argmin(torch.diag(torch.tensor([3.0, 0.5])), 1.0)
    tensor([[1., 0.],
            [0., 0.]])
    """

    def norm(self, sigma: Tensor) -> Tensor:
        return sigma.sum(-1)

    def project(self, sigma: Tensor) -> Tensor:
        x = sigma.clone()
        water_level(x, x.new_ones(()), self.r, (-1,))
        return x

    def opposite(self, sigma: Tensor) -> Tensor:
        """r for the first, which is the largest. Ties: the decomposition's first."""
        return torch.cat([self.r * sigma[..., :1].sign(), torch.zeros_like(sigma[..., 1:])], -1)
