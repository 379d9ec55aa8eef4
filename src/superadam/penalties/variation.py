"""Total variation along a dimension, for every diagonal metric."""

from __future__ import annotations

import torch
from torch import Tensor

from superadam.penalties.base import Penalty, check_weight
from superadam.sets.base import solving

__all__ = ["TotalVariation"]

# Relative to the terms of a cost, far above their rounding errors in float64.
SMALL = 1e-11


class TotalVariation(Penalty):
    r"""$h(x) = \lambda \sum_i |x_{i+1} - x_i|$ along `dim`. It makes x̃ exactly piecewise constant (fused lasso).

    Each slice along `dim` is a separate chain. The step is exact in every diagonal metric. A piece S of a chain that
    has no jump inside, and whose neighbours are known to be below (s = 1) or above (s = -1), has the value

    $$x_S = \frac{\sum_{i \in S} d_i y_i - \lambda (s_{\text{left}} + s_{\text{right}})}{\sum_{i \in S} d_i}$$

    The chain starts as one piece. A minimum cut decides which coordinates belong above $x_S$ and which below. It splits
    the piece into parts whose neighbours are known, or shows that there is no jump. Each round splits all pieces of all
    slices at once. It costs O(n) arithmetic in O(log n) tensor operations for the n coordinates that remain. Ten to
    thirty rounds are usual; the worst case is one round per piece.

    Args:
        lam: λ, the weight of the penalty.
        dim: the dimension along which neighbours are compared.

    >>> TotalVariation(1.0).argmin(torch.tensor([0.0, 0.2, 5.0, 5.4]), 1.0)
    tensor([0.6000, 0.6000, 4.7000, 4.7000])
    """

    lam: float
    dim: int = -1

    def __post_init__(self) -> None:
        check_weight("lam", self.lam)

    @solving
    def argmin(self, y: Tensor, d: Tensor) -> Tensor:
        if self.lam == 0 or y.dim() == 0:
            return y
        chains, metric = (t.movedim(self.dim, -1).double() for t in (y, d.expand_as(y)))
        x = _fused(chains.flatten(), metric.flatten(), self.lam, chains.shape[-1])
        return x.view(chains.shape).movedim(-1, self.dim).to(y.dtype)

    def in_rows(self, x: Tensor) -> bool:
        return x.dim() > 1 and self.dim % x.dim() > 0

    def value(self, x: Tensor) -> Tensor:
        return self.lam * x.diff(dim=self.dim).abs().sum() if x.dim() else x.new_zeros(())


def _fused(y: Tensor, d: Tensor, lam: float, n: int) -> Tensor:
    """Return the minimiser for chains of n coordinates each, concatenated."""
    x = torch.empty_like(y)
    index = torch.arange(len(y), device=y.device)  # of what is left, as are the following
    start = index % n == 0  # where pieces begin
    base, pull = torch.zeros_like(y), torch.zeros_like(y)  # y is relative to base; λ pull is the slope of the jumps
    while len(index):
        piece = start.cumsum(0) - 1
        weight, pulled = _sums(d, piece), lam * _sums(pull, piece)
        for _ in range(2):  # once more, for what rounding has left: then d·y is of λ's size wherever there is no jump
            mean = ((_sums(d * y, piece) - pulled) / weight)[piece]
            y, base = y - mean, base + mean
        side = _sides(torch.stack([pull, -d * y, (d * y).abs()], -1), start, lam)
        begins = start.clone()
        begins[1:] |= side[1:] != side[:-1]
        split = (_sums((begins & ~start).to(y), piece) > 0)[piece]
        settled = ~split | (side == 0)
        x[index[settled]] = base[settled]
        jump = (side[:-1] - side[1:]).sign() * (begins & ~start)[1:]
        pull[:-1] += jump
        pull[1:] -= jump
        left = ~settled
        index, start, y, d, base, pull = (t[left] for t in (index, begins, y, d, base, pull))
    return x


def _sums(values: Tensor, piece: Tensor) -> Tensor:
    """Return the sums over each piece."""
    return values.new_zeros(int(piece[-1]) + 1).index_add_(0, piece, values)


def _value(m: Tensor, lam: float) -> Tensor:
    return lam * m[..., 0] + m[..., 1]


def _sides(c: Tensor, start: Tensor, lam: float) -> Tensor:
    """Return the sign of each coordinate of a piece: 1 above 0, -1 below, 0 at 0.

    The coordinates above minimise Σ cᵢ + λ · (number of ends of runs) over all subsets. The message mᵢ is the extra
    cost for the coordinates before i if i is above rather than below. It lies between -λ and λ:
    mᵢ₊₁ = clip(mᵢ + cᵢ, -λ, λ). Costs and messages are triples: k, f and s for kλ + f, where s is the sum of the sizes
    of the terms of f. So a light coordinate between a neighbour above and one below still counts: there k is 0.
    """
    end = start.roll(-1)  # the first begins a piece, so the last ends one
    both = torch.stack([c, c.flip(0)])
    first = torch.stack([start, end.flip(0)])[..., None]
    low, high = (c.new_tensor([k, 0.0, 0.0]) for k in (-1.0, 1.0))
    clipped = _clipped(both, low.expand_as(both), high.expand_as(both), lam)
    lo, hi = (torch.where(first, clipped, bound) for bound in (low, high))
    sent = _scan(both, lo, hi, lam)
    before = sent[0].roll(1, 0).masked_fill_(start[:, None], 0.0)
    after = sent[1].flip(0).roll(-1, 0).masked_fill_(end[:, None], 0.0)
    cost = c + before + after
    noise = SMALL * (cost[:, 2] + lam * (cost[:, 0] != 0))
    cost = _value(cost, lam)
    return -cost.sign().masked_fill_(cost.abs() <= noise, 0.0)


def _clipped(m: Tensor, lo: Tensor, hi: Tensor, lam: float) -> Tensor:
    """Return m, or the bound that its value is beyond."""
    m = torch.where((_value(m - lo, lam) < 0)[..., None], lo, m)
    return torch.where((_value(m - hi, lam) > 0)[..., None], hi, m)


def _scan(a: Tensor, lo: Tensor, hi: Tensor, lam: float) -> Tensor:
    """Return m_i = clip(m_{i-1} + a_i, lo_i, hi_i) along the dimension before the last, where lo_0 = hi_0.

    The composition of two such functions is another one: solve for every second m, then fill in the others.
    """
    n = a.shape[-2]
    if n == 1:
        return lo.clone()
    pairs = n // 2
    (a1, lo1, hi1), (a2, lo2, hi2) = (tuple(t[..., k : 2 * pairs : 2, :] for t in (a, lo, hi)) for k in (0, 1))
    odd = _scan(a1 + a2, _clipped(lo1 + a2, lo2, hi2, lam), _clipped(hi1 + a2, lo2, hi2, lam), lam)
    m = torch.empty_like(a)
    m[..., 0, :], m[..., 1::2, :] = lo[..., 0, :], odd
    rest = slice(2, None, 2)
    m[..., rest, :] = _clipped(odd[..., : (n - 1) // 2, :] + a[..., rest, :], lo[..., rest, :], hi[..., rest, :], lam)
    return m
