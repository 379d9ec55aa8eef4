"""Eigenvectors updated by orthogonal iterations: Adam in Shampoo's eigenbasis, and KL-Shampoo."""

from __future__ import annotations

import torch
from torch import Tensor

from superadam.bucket import Bucket
from superadam.matrices.base import Slot, check_options
from superadam.matrices.kronecker import SIDES, Kronecker, outer
from superadam.matrices.products import symmetric
from superadam.parts import check

__all__ = ["SOAP", "KLShampoo"]


class SOAP(Kronecker):
    r"""Adam in the eigenbasis of Shampoo's factors (Vyas et al. 2024).

    $$H_t = Q\, \mathrm{diag}\bigl(\sqrt{v_t} + \lambda\bigr)\, Q^\top, \qquad
      v_t = \beta v_{t-1} + (1-\beta) (Q_L^\top G\, Q_R)^2$$

    where $Q_L$ and $Q_R$ are eigenvectors of the averages (weight `factor_beta`, or β) of $G G^\top$ and $G^\top G$
    over the steps *before* t, by one orthogonal iteration every `every` steps; in the first step, those of its own
    gradient. $H_t \succeq \lambda I$.

    Args:
        beta: weight of the old average; 1 - β is that of the newest gradient.
        lam: λ, added to the root of the second moment. It bounds H_t from below, and so the steps from above.
        every: number of steps between two orthogonal iterations for the eigenvectors.
        factor_beta: weight of the old factors. None means β.
        bias_correction: divide v_t by 1 - β^t, as Adam does.

    >>> SOAP(every=5).lower_bound
    1e-08
    """

    beta: float = 0.95
    lam: float = 1e-8
    every: int = 10
    factor_beta: float | None = None
    bias_correction: bool = True

    refreshes_first = True
    ignores_zeros = True

    def __post_init__(self) -> None:
        super().__post_init__()
        check_options(self)
        beta = self.factor_beta
        check(beta is None or 0 <= beta < 1, "factor_beta", beta, "0 <= factor_beta < 1, or None")

    def slots(self, x: Tensor) -> dict[str, Slot]:
        return {**super().slots(x), "v": Slot(self.size(x))}

    def update(self, s: Bucket, grad: Tensor) -> None:
        beta = self.beta if self.factor_beta is None else self.factor_beta
        if s.t == 1:
            self.average(s, grad, beta)
            self.begin(s)
        rotated = self.rotate(s, grad)
        s.v.mul_(self.beta).addcmul_(rotated, rotated, value=1 - self.beta)
        if s.t == 1:  # a gradient is diagonal in its own basis: the rest is rounding, which √v would make as large
            s.v = s.v.maximum(torch.finfo(s.v.dtype).eps * s.v.amax((-2, -1), keepdim=True))
        self.average(s, grad, beta)

    def refresh(self, s: Bucket) -> None:
        if s.t == 1:
            return  # `update` begins
        for dim, order in self.iterate(s):  # v is kept in the basis whose vectors are put in another order
            index = order.unsqueeze(-2) if dim == -1 else order.unsqueeze(-1)
            s.v = s.v.gather(dim, index.expand_as(s.v))

    def d(self, s: Bucket) -> Tensor:
        d: Tensor = s.v.sqrt()
        return (d.div_((1 - self.beta**s.t) ** 0.5) if self.bias_correction else d).add_(self.lam)


class KLShampoo(Kronecker):
    r"""Shampoo whose factors minimise a divergence to the covariance of the gradients (Lin et al. 2025).

    $$S_L \leftarrow \beta S_L + (1-\beta)\, G S_R^{-1} G^\top / n, \quad
      S_R \leftarrow \beta S_R + (1-\beta)\, G^\top S_L^{-1} G / m, \qquad H_t = S_L^{1/2} \otimes S_R^{1/2}$$

    for m × n matrices. The eigenvectors are updated every `every` steps, as in SOAP, and the eigenvalues in every step,
    in the current basis. The eigenvalues start at `start`. Smaller ones are raised to $c^{-2}$, where c = max(10,
    min(size of the side, 4000)).

    Args:
        beta: weight of the old factors.
        every: number of steps between two orthogonal iterations for the eigenvectors.
        start: eigenvalue of the factors before the first gradient.

    >>> KLShampoo(every=5).beta
    0.98
    """

    beta: float = 0.98
    every: int = 10
    start: float = 0.1

    refreshes_first = True

    def __post_init__(self) -> None:
        super().__post_init__()
        check_options(self)
        check(self.start > 0, "start", self.start, "start > 0")

    @property
    def lower_bound(self) -> float:
        return 1 / 4000**2

    def slots(self, x: Tensor) -> dict[str, Slot]:
        batch, *shape = self.size(x)
        sides = self.sides(*shape)
        return super().slots(x) | {f"d{side}": Slot((batch, shape[dim]), self.start) for side, dim in sides}

    def values(self, s: Bucket, side: str) -> Tensor:
        """Return the eigenvalues of a factor, raised to their lower bound."""
        d: Tensor = getattr(s, f"d{side}")
        return d.clamp(min=max(10, min(d.shape[-1], 4000)) ** -2)

    def update(self, s: Bucket, grad: Tensor) -> None:
        m, n = grad.shape[-2:]
        if s.t == 1:
            self.average(s, grad, self.beta)
            self.begin(s)
            for side, _ in self.here(s):
                getattr(s, side).zero_()
        left = s.QL.mT @ grad if "L" in s.names else grad  # each rotated and weighed on one side
        right = grad @ s.QR if "R" in s.names else grad
        squares = self.rotate(s, grad).square()
        weight_L = self.values(s, "L").unsqueeze(-1) if "L" in s.names else 1.0
        weight_R = self.values(s, "R").unsqueeze(-2) if "R" in s.names else 1.0
        if "L" in s.names:
            s.L.lerp_(symmetric(right / weight_R, right.mT) / n, 1 - self.beta)
            s.dL.lerp_((squares / weight_R).sum(-1) / n, 1 - self.beta)
        if "R" in s.names:
            s.R.lerp_(symmetric(left.mT, left / weight_L) / m, 1 - self.beta)
            s.dR.lerp_((squares / weight_L).sum(-2) / m, 1 - self.beta)

    def refresh(self, s: Bucket) -> None:
        if s.t == 1:
            return  # `update` begins
        for dim, order in self.iterate(s):
            side = "dR" if dim == -1 else "dL"
            setattr(s, side, getattr(s, side).gather(-1, order))

    def d(self, s: Bucket) -> Tensor:
        return outer(*(self.values(s, side).sqrt() if side in s.names else None for side, _ in SIDES))
