"""The nuclear norm, for a scalar metric only: a diagonal one would change the singular vectors too."""

from __future__ import annotations

from typing import ClassVar

import torch
from torch import Tensor

from superadam.penalties.base import Penalty, check_weight
from superadam.sets.base import in_metric
from superadam.sets.spectral import as_matrix

__all__ = ["Nuclear"]


class Nuclear(Penalty):
    r"""$h(x) = \lambda \sum_i \sigma_i(x)$. It sets singular values exactly to zero, so that x̃ has low rank.

    The last two dimensions are the matrix; a vector is a matrix of one row. With one learning rate for all coordinates,
    and $y = U \sigma V^\top$,

    $$x = U \max(0, \sigma - \lambda / d)\, V^\top$$

    Args:
        lam: λ, the weight of the penalty.

    >>> Nuclear(1.0).argmin(torch.diag(torch.tensor([3.0, 0.5])), 2.0)
    tensor([[2.5000, 0.0000],
            [0.0000, 0.0000]])
    """

    lam: float

    scalar_metric: ClassVar[bool] = True

    def __post_init__(self) -> None:
        check_weight("lam", self.lam)

    @in_metric
    def argmin(self, y: Tensor, d: Tensor) -> Tensor:
        U, sigma, V = torch.linalg.svd(as_matrix(y), full_matrices=False)
        x: Tensor = (U * (sigma - self.lam / d).clamp_(min=0)[..., None, :]) @ V
        return x.view(y.shape)

    def in_rows(self, x: Tensor) -> bool:
        return x.dim() > 2

    def value(self, x: Tensor) -> Tensor:
        if x.numel() == 0:
            return x.new_zeros(())
        norms: Tensor = torch.linalg.svdvals(as_matrix(x)).sum()
        return self.lam * norms
