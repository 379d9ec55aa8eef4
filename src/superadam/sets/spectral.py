"""Balls of matrix norms. Only for a scalar metric: with a diagonal one, the singular vectors change too.

The last two dimensions are the matrix, as in `torch.linalg`; a vector is a matrix of one row.
"""

from __future__ import annotations

from typing import ClassVar

import torch
from torch import Tensor

from superadam.sets.base import ConvexSet, check_radius, in_metric, largest
from superadam.sets.roots import tolerance, water_level

__all__ = ["NuclearBall", "SpectralBall"]


def as_matrix(x: Tensor) -> Tensor:
    return x if x.dim() >= 2 else x.view(1, -1)


class SingularValues(ConvexSet, abstract=True):
    """What the sets of this file share: a condition on the singular values."""

    r: float

    scalar_metric: ClassVar[bool] = True

    def __post_init__(self) -> None:
        check_radius(self.r)

    def norm(self, sigma: Tensor) -> Tensor:
        """The norm of a matrix with these singular values."""
        raise NotImplementedError(f"{type(self).__name__} has no norm")

    def project(self, sigma: Tensor) -> Tensor:
        """The nearest singular values of norm r, for those of a larger norm."""
        raise NotImplementedError(f"{type(self).__name__} has no project")

    @in_metric
    def argmin(self, y: Tensor, d: Tensor) -> Tensor:
        matrix = as_matrix(y)
        U, sigma, V = torch.linalg.svd(matrix, full_matrices=False)
        x = (U * self.project(sigma)[..., None, :]) @ V
        inside = self.norm(sigma)[..., None, None] <= self.r * (1 + tolerance(y))
        return torch.where(inside, matrix, x).view(y.shape)

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
