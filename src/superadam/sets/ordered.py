"""Sequences that increase or decrease, by isotonic regression for all slices at once; convex and concave ones."""

from __future__ import annotations

import math
from typing import ClassVar

import torch
from torch import Tensor

from superadam.parts import check
from superadam.sets.base import ConvexSet, Dim, by_slices, dims, in_metric, largest, slices_in_rows, vertex
from superadam.sets.linear import LinearSet
from superadam.sets.polyhedra import nearest_on_rows
from superadam.sets.separable import Box

__all__ = ["Ordered"]

ORDERS, BENT = ("increasing", "decreasing"), ("convex", "concave")
LONGEST = 500  # coordinates of a convex slice: the time grows with their third power
SPARSE = 32  # less than one descent in so many blocks: few blocks would go in a sweep that pools descents alone


class Ordered(ConvexSet):
    r"""$\mathrm{low} \le x_1 \le x_2 \le \dots \le x_n \le \mathrm{high}$ for each slice along `dim`, or decreasing; or
    convex, $x_i \le \tfrac12 (x_{i-1} + x_{i+1})$, or concave.

    Increasing and decreasing order: pool adjacent violators, for all slices at once:

    $$x_i = \mathrm{clip}\Bigl(\max_{j \le i} \min_{k \ge i} \frac{\sum_{l=j}^k d_l y_l}{\sum_{l=j}^k d_l},\
        \mathrm{low},\ \mathrm{high}\Bigr)$$

    Convex and concave order have no such formula. They are solved as a `Polyhedron` of second differences, one slice
    after the other, starting from the active rows of the last step. Use them for slices of up to some hundred
    coordinates.

    Args:
        order: "increasing", "decreasing", "convex" or "concave".
        low: the smallest value; None for no bound.
        high: the largest value; None for no bound. `lmo` needs both.
        dim: the dimension, or dimensions, of a slice; None for the whole tensor, in the order of its indices.

    >>> Ordered().argmin(torch.tensor([1.0, 3.0, 2.0, 4.0]), torch.tensor([1.0, 1.0, 3.0, 1.0]))
    tensor([1.0000, 2.2500, 2.2500, 4.0000])
    >>> Ordered("decreasing", high=3.5).argmin(torch.tensor([4.0, 1.0, 2.0]), 1.0)
    tensor([3.5000, 1.5000, 1.5000])
    >>> Ordered("convex").argmin(torch.tensor([1.0, 1.0, 0.0, 3.0]), 1.0)
    tensor([1.1667, 0.6667, 0.1667, 3.0000])
    """

    order: str = "increasing"
    low: float | None = None
    high: float | None = None
    dim: Dim = -1

    def __post_init__(self) -> None:
        expected = "'increasing', 'decreasing', 'convex' or 'concave'"
        check(self.order in ORDERS + BENT, "order", repr(self.order), expected)
        low, high = self._ends()
        check(low <= high and low < math.inf and high > -math.inf, "low, high", (self.low, self.high), "low <= high")

    def _ends(self) -> tuple[float, float]:
        return -math.inf if self.low is None else self.low, math.inf if self.high is None else self.high

    @property
    def bounded(self) -> bool:
        return all(map(math.isfinite, self._ends()))

    @in_metric
    def argmin(self, y: Tensor, d: Tensor, root: Tensor | None) -> Tensor:
        if self.order in BENT:
            x = by_slices(lambda y, d: self._bent(y, d, root), self.dim, y, d.expand_as(y))
        elif self.order == "decreasing":
            x = by_slices(isotonic, self.dim, y.neg_(), d.expand_as(y)).neg_()
        else:
            x = by_slices(isotonic, self.dim, y, d.expand_as(y))
        low, high = self._ends()
        return x if low == -math.inf and high == math.inf else x.clamp_(low, high)

    def _bent(self, y: Tensor, d: Tensor, root: Tensor | None) -> Tensor:
        """Return the step for convex or concave slices along the last dimension."""
        n = y.shape[-1]
        rows = self._rows(n, y.device)
        if len(rows[0]) == 0:
            return y
        # At first, a straight line: most of its rows stay, and there are few kinks to find.
        straight = torch.arange(len(rows[0]), device=y.device) < n - 2
        held = straight.to(torch.float32).expand(y.numel() // n, -1).clone()
        if root is not None and bool(root.any()):
            held.copy_(root.view_as(held))
        of_each = zip(y.reshape(-1, n), d.reshape(-1, n), held, strict=True)
        x = torch.stack([nearest_on_rows(rows, *each).to(y.dtype) for each in of_each])
        if root is not None:
            root.copy_(held.view_as(root))
        return x.view(y.shape)

    def _rows(self, n: int, device: torch.device) -> tuple[Tensor, Tensor, Tensor]:
        """Return A x ≤ b: second differences and bounds. The ends bound all others on one side."""
        if n > LONGEST:
            raise ValueError(f"{self} is for slices of at most {LONGEST:,} coordinates, and these have {n:,}")
        eye, (low, high) = torch.eye(n, dtype=torch.float64, device=device), self._ends()
        bend = 2 * eye[1:-1] - eye[:-2] - eye[2:]
        ends, every = eye[:: max(n - 1, 1)], eye
        above, below = (ends, every) if self.order == "convex" else (every, ends)
        parts = [(bend if self.order == "convex" else -bend, 0.0), (above, high), (-below, -low)]
        parts = [(A, b) for A, b in parts if b < math.inf]
        A, b = torch.cat([A for A, _ in parts]), torch.cat([eye.new_full((len(A),), b) for A, b in parts])
        return A, b, torch.ones(len(A), dtype=torch.bool, device=device)

    def steps(self, x: Tensor) -> tuple[ConvexSet, ...]:
        """Return rows, one for each pair of neighbours, and a box; or the set itself where there would be too many."""
        return (Steps(self.order, self.dim), Box(self.low, self.high)) if 0 < x.numel() <= LONGEST else (self,)

    def root_shape(self, x: Tensor) -> torch.Size | None:
        if self.order in ORDERS or x.numel() == 0:
            return None
        n = math.prod(x.shape[i] for i in {i % x.dim() for i in dims(x, self.dim)}) if x.dim() else 1
        return torch.Size([x.numel() // n, len(self._rows(n, x.device)[0])])

    @vertex
    def lmo(self, g: Tensor) -> Tensor:
        """Return a vertex.

        Ordered: a step from one bound to the other, at the first of the best places. Convex: straight from the upper
        bound down to the lower bound at either end, or the lower bound; the first of the best kinks."""
        if not self.bounded:
            raise ValueError(f"{self} has no lmo: it is not bounded. Give it low and high")
        low, high = self._ends()
        if self.order in BENT:
            sign = 1 if self.order == "convex" else -1
            base = low if sign > 0 else high
            return by_slices(lambda g: base + sign * (high - low) * _hinges(sign * g.double()), self.dim, g).to(g.dtype)
        first, then = (low, high) if self.order == "increasing" else (high, low)

        def step(g: Tensor) -> Tensor:
            # ⟨g, x⟩ but for a constant, with the step before each coordinate, and behind the last one.
            gain = torch.nn.functional.pad(g.double().cumsum(-1), (1, 0)).mul_(first - then)
            at = gain.argmin(-1, keepdim=True)
            return torch.where(torch.arange(g.shape[-1], device=g.device) < at, first, then).to(g.dtype)

        return by_slices(step, self.dim, g)

    def in_rows(self, x: Tensor) -> bool:
        return self.order in ORDERS and slices_in_rows(x, self.dim)

    def violation(self, x: Tensor) -> Tensor:
        """Return the largest step, or change of two steps, in the wrong direction, or the distance to the bounds."""
        times = 1 if self.order in ORDERS else 2

        def descents(x: Tensor) -> Tensor:
            n = min(times, x.shape[-1])
            return torch.nn.functional.pad(0.0 - x.diff(n=times, dim=-1), (n, 0))

        if x.numel() == 0:
            return x.new_zeros(())
        x, (low, high) = x.double(), self._ends()
        up = by_slices(descents, self.dim, x if self.order in ("increasing", "convex") else -x)
        return torch.stack([largest(up), largest(low - x), largest(x - high)]).amax()


class Steps(LinearSet, abstract=True):
    """`Ordered` without bounds, as rows A x ≤ 0."""

    order: str
    dim: Dim

    inequality: ClassVar[bool] = True

    def system(self, x: Tensor) -> tuple[Tensor, Tensor]:
        signs = {"increasing": (1, -1), "decreasing": (-1, 1), "convex": (-1, 2, -1), "concave": (1, -2, 1)}[self.order]
        axes = sorted({i % x.dim() for i in dims(x, self.dim)}) if x.dim() else []
        index = torch.arange(x.numel(), device=x.device).view(x.shape)
        slices = index.movedim(axes, list(range(len(axes)))).flatten(0, len(axes) - 1) if axes else index.view(1)
        n = max(len(slices) + 1 - len(signs), 0)
        A = x.new_zeros(n * slices[0].numel(), x.numel())
        for i, sign in enumerate(signs):
            A.scatter_(1, slices[i : i + n].reshape(-1, 1), sign)
        return A, x.new_zeros(len(A))


def _hinges(g: Tensor) -> Tensor:
    r"""Return the convex sequence between 0 and 1 with the least ⟨g, x⟩, for slices along the last dimension.

    Every such sequence is $\sum_k \alpha_k L_k + \sum_k \beta_k R_k$ with $\alpha, \beta \ge 0$ of sum at most 1, where
    $L_k = \max(0, k - i) / (k - 1)$ falls from 1 at the first coordinate to 0 at the k-th, and $R_k$ rises from 0 at
    the k-th to 1 at the last: a constant is $L_n + R_1$. So the best L and the best R are chosen apart from each other.
    """
    n = g.shape[-1]
    length = torch.arange(1, max(n, 2), dtype=g.dtype, device=g.device)
    x, i = torch.zeros_like(g), torch.arange(n, dtype=g.dtype, device=g.device)
    for turn in ((), (-1,)) if n > 1 else ((),):
        gain = g.flip(turn).cumsum(-1).cumsum(-1)[..., : len(length)] / length  # ⟨g, L⟩
        least, k = gain.min(-1, keepdim=True)
        hinge = (1 - i / length[k]).clamp_(min=0) * (least < 0)
        x = x + hinge.flip(turn)
    return x


def isotonic(y: Tensor, w: Tensor) -> Tensor:
    r"""Minimise $\sum_i w_i (x_i - y_i)^2$ over increasing rows x. Returns y if it is already increasing.

    It pools blocks of coordinates that must be equal until no block is above the next one. The order of pooling does
    not matter, so each sweep pools everywhere at once. All rows form one long vector, in which no block crosses the
    beginning of a row. Sums are in float64, because a block may have a million coordinates.
    """
    first = torch.arange(0, y.numel(), y.shape[-1], device=y.device) if y.shape[:-1].numel() > 1 else None
    v, w = y.reshape(-1), w.reshape(-1).double()
    sums = v.to(w.dtype, copy=True).mul_(w)
    size = torch.ones_like(w) if y.dtype == torch.float64 else None
    levels = []
    while True:
        block = _blocks(v, sums, w, first)
        n = int(block[-1]) + 1
        if n == len(v):
            break
        sums, w = w.new_zeros(n).scatter_add_(0, block, sums), w.new_zeros(n).scatter_add_(0, block, w)
        size = None if size is None else w.new_zeros(n).scatter_add_(0, block, size)
        v = sums / w
        first = None if first is None else block[first]
        levels.append(block)
    if not levels:
        return y
    x = v.to(y.dtype)
    for block in reversed(levels):
        x = x.index_select(0, block)
        size = None if size is None else size.index_select(0, block)
    # A coordinate that is a block of its own is y. Rounded to float32, its sum / w is that anyway.
    return x.view(y.shape) if size is None else torch.where(size == 1, y.reshape(-1), x).view(y.shape)


def _blocks(v: Tensor, sums: Tensor, w: Tensor, first: Tensor | None) -> Tensor:
    """Return the index of the new block of each entry of v: the blocks of a descent, with some neighbours."""
    begins = torch.ones(len(v), dtype=torch.int32, device=v.device)
    torch.ge(v[1:], v[:-1], out=begins[1:])
    if first is not None:
        begins.index_fill_(0, first, 1)
    begins[0] = 0
    block = begins.cumsum(0)
    descents = len(v) - 1 - int(block[-1])
    if descents == 0 or SPARSE * descents > len(v):
        return block
    # Far fewer descents than blocks: a sweep that pools these alone would change little, and there could be very many.
    # So each takes in the neighbours that must be pooled with it, in a window: first to the left, then to the right.
    right = (begins[1:] == 0).nonzero().view(-1) + 1
    left = right - 1
    fence = torch.zeros(len(v) + 1, dtype=torch.bool, device=v.device)  # between which neighbours a row begins
    fence[0] = fence[-1] = True
    if first is not None:
        fence.index_fill_(0, first, True)
    window = torch.arange(1, 2 + len(v) // (16 * descents), device=v.device)
    S, W = sums[left] + sums[right], w[left] + w[right]
    S, W = _take_in(v, sums, w, S, W, left[:, None] - window, 1, fence, begins)
    _take_in(v, sums, w, S, W, right[:, None] + window, 0, fence, begins)
    begins[0] = 0
    return begins.cumsum(0)


def _take_in(
    v: Tensor, sums: Tensor, w: Tensor, S: Tensor, W: Tensor, at: Tensor, is_left: int, fence: Tensor, begins: Tensor
) -> tuple[Tensor, Tensor]:
    """Pool blocks of sum S and weight W with the neighbours `at` one side that violate the order."""
    link = (at + is_left).clamp_(0, len(v))
    at = at.clamp_(0, len(v) - 1)
    more_S, more_W = sums[at], w[at]
    # The mean with a neighbour is on the same side of it as the mean without.
    mean = more_S.cumsum(1).add_(S[:, None]).div_(more_W.cumsum(1).add_(W[:, None]))
    violates = v[at] > mean if is_left else v[at] < mean
    taken = violates.logical_and_(fence[link].logical_not_()).cumprod(1)
    begins[link[taken > 0]] = 0
    return S + more_S.mul_(taken).sum(1), W + more_W.mul_(taken).sum(1)
