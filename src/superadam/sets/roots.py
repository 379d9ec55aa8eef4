r"""The one-dimensional equations behind the exact step, solved for all slices of a tensor at once.

Each slice runs over the dimensions `dim`; what belongs to a slice is a tensor with these dimensions kept, of size 1.
Where the slice is the whole tensor, the sums are taken over blocks that stay in the processor's cache. All functions
work in place: they write the solution into their first argument, and may write into the second.
"""

from __future__ import annotations

import torch
from torch import Tensor

__all__ = ["BLOCK", "Blocks", "norm_root", "tolerance", "water_level"]

MAX_ITERATIONS = 200  # far more than needed; see the bounds below
CHECK_EVERY = 2  # iterations between two looks at whether all slices are done, each of which waits for the device
FAR = 1e6  # a sum or a squared norm is so far from its aim that the last root is of no use
BLOCK = 1 << 17  # coordinates


def tolerance(x: Tensor) -> float:
    """Relative error below which an equation counts as solved: a few rounding errors."""
    return 4 * torch.finfo(x.dtype).eps


class Blocks:
    """Tensors of one shape (or 0-d), cut in the same places, and the dimensions that make up a slice of a block.

    There is more than one block only where the whole is one slice, in one piece in a CPU's memory.
    """

    def __init__(self, parts: list[tuple[Tensor, ...]], dim: tuple[int, ...], ndim: int) -> None:
        self.parts, self.dim, self.ndim = parts, dim, ndim

    @classmethod
    def of(cls, dim: tuple[int, ...], *tensors: Tensor) -> Blocks:
        x, n = tensors[0], -(-tensors[0].numel() // BLOCK)
        whole = len({i % max(x.dim(), 1) for i in dim}) >= x.dim()
        dense = all(t.dim() == 0 or t.is_contiguous() for t in tensors)
        if not whole or n <= 1 or x.device.type != "cpu" or not dense:
            return cls([tensors], dim, x.dim())
        cut = [torch.split(t.view(-1), BLOCK) if t.dim() > 0 else [t] * n for t in tensors]
        return cls(list(zip(*cut, strict=True)), (0,), x.dim())

    def slice_of(self, value: Tensor) -> Tensor:
        """What belongs to a slice, as the blocks have it."""
        return value.view(1) if len(self.parts) > 1 else value

    def unsliced(self, value: Tensor) -> Tensor:
        """What belongs to a slice, as the whole has it."""
        return value.view([1] * self.ndim) if len(self.parts) > 1 else value


def _total(values: list[Tensor]) -> Tensor:
    return values[0] if len(values) == 1 else torch.stack(values).sum(0)


def norm_root(p: Tensor, alpha: Tensor, dim: tuple[int, ...], start: Tensor | None = None) -> Tensor:
    r"""Write $p / (\alpha + c)$ into p, for the $c \ge 0$ at which its norm is 1, and return c.

    c = 0 where $\|p / \alpha\| \le 1$.

    $1 / \|x\|$ is increasing and concave in c, so Newton's method on $1 / \|x\| - 1$ never overshoots from a c that is
    too small, and comes to such a c in one step from one that is too large. The start is the last root, if it is near,
    or the least c at which all $|x_i| \le 1$. Convergence is quadratic in the end; before, it takes a step or so
    for each order of magnitude between the $\alpha_i$.

    >>> p = torch.tensor([6.0, 8.0])
    >>> norm_root(p, torch.tensor(5.0), (0,)), p
    (tensor([5.]), tensor([0.6000, 0.8000]))
    """
    blocks = Blocks.of(dim, p, alpha)
    warm = start is not None and bool(start.any())
    c = blocks.slice_of(start).clamp(min=0) if start is not None and warm else _least(blocks)
    for k in range(MAX_ITERATIONS):
        squares, slopes = [], []
        for p_i, alpha_i in blocks.parts:
            t = alpha_i + c
            square = (p_i / t).square_()
            squares.append(square.sum(blocks.dim, keepdim=True))
            slopes.append(square.div_(t).sum(blocks.dim, keepdim=True))
        norm2 = _total(squares)
        norm = norm2.sqrt()
        done = torch.where(c > 0, (norm - 1).abs(), norm - 1) <= tolerance(p)
        if k % CHECK_EVERY == 0 and bool(done.all()):
            break
        if k == 0 and warm and not bool((near := (norm2 > 1 / FAR) & (norm2 < FAR)).all()):
            c = torch.where(near, c, _least(blocks))
            continue
        step = torch.where(norm2 > 0, (norm - 1) * norm2 / _total(slopes), -c)
        c = torch.where(done, c, (c + step).clamp(min=0))
    for p_i, alpha_i in blocks.parts:
        p_i.div_(alpha_i + c)
    return blocks.unsliced(c)


def _least(blocks: Blocks) -> Tensor:
    """The least c at which all |x_i| ≤ 1."""
    least = [(p.abs() - alpha).amax(blocks.dim, keepdim=True) for p, alpha in blocks.parts]
    return torch.stack(least).amax(0).clamp(min=0)


def water_level(
    y: Tensor, d: Tensor, total: float, dim: tuple[int, ...], cap: Tensor | None = None, start: Tensor | None = None
) -> Tensor:
    r"""Write $\mathrm{clip}(y - \theta / d, 0, \mathrm{cap})$ into y, for the $\theta$ at which it sums to `total`.

    Return $\theta$; `start` is that of an equation like this one, and is left aside if it is far from the solution.

    >>> y = torch.tensor([3.0, 2.5, 0.1])
    >>> water_level(y, torch.ones(3), 1.0, (0,)), y
    (tensor([2.2500]), tensor([0.7500, 0.2500, 0.0000]))
    """
    most = d.amax()
    w = d.reciprocal_().mul_(most)  # a multiple of 1/d that does not overflow
    huge = torch.finfo(y.dtype).max / y.numel()  # what can be summed
    blocks = Blocks.of(dim, y, w) if cap is None else Blocks.of(dim, y, w, cap)
    theta = torch.zeros_like(blocks.slice_of(y.sum(dim, keepdim=True)))
    if total == 0:
        y.zero_()
        return blocks.unsliced(theta)
    start = blocks.slice_of(start / most) if start is not None and bool(start.any()) else None
    # y - θ/d has the rounding errors of y. Where they matter for the total, solve again for what is left of y; with
    # float32, each time takes seven digits from the y that are too large.
    for _ in range(8):
        sums = [_clipped(z, *rest[1:]).sum(blocks.dim, keepdim=True) for z, *rest in blocks.parts]
        done = (_total(sums) - total).abs() <= tolerance(y) * total
        if bool(done.all()):
            break
        more = _level(blocks, total, start) if cap is None else _capped_level(blocks, total)
        # The next θ is nearly 0. Far from it, the rounding errors of w θ could make a sum that is no longer there.
        more, start = more.masked_fill(done, 0.0), torch.zeros_like(theta)
        theta = theta + more
        for z, w_i, *_ in blocks.parts:
            z.addcmul_(w_i, more, value=-1).clamp_(-huge, huge)
    for z, _, *rest in blocks.parts:
        z.copy_(_clipped(z, *rest)) if rest else z.relu_()
    return blocks.unsliced(theta * most)


def _clipped(z: Tensor, cap: Tensor | None = None) -> Tensor:
    return z.relu() if cap is None else z.clamp(min=0).minimum(cap)


def _level(blocks: Blocks, total: float, start: Tensor | None) -> Tensor:
    r"""$\theta$ with $\sum_i \max(0, z_i - \theta w_i) = \mathrm{total}$, up to the rounding errors of z.

    The sum is decreasing, convex and piecewise linear in θ, so Newton's method never overshoots from a θ that is too
    small, comes to such a θ in one step from one that is too large, and ends at the exact solution. Each step halves
    the error of the sum or its slope, so there are at most some hundred steps; five to fifteen are usual.
    """
    dim, small = blocks.dim, tolerance(blocks.parts[0][0])
    theta = _too_small(blocks, total) if start is None else start
    for k in range(MAX_ITERATIONS):
        sums, slopes = [], []
        for z, w in blocks.parts:
            x = torch.addcmul(z, w, theta, value=-1).relu_()
            sums.append(x.sum(dim, keepdim=True))
            slopes.append(x.sign_().mul_(w).sum(dim, keepdim=True))
        error, slope = _total(sums) - total, _total(slopes)
        if k == 0 and start is not None and not bool((near := (slope > 0) & (error < FAR * total)).all()):
            theta = torch.where(near, theta, _too_small(blocks, total))
            continue
        step = torch.where(slope > 0, error / slope, 0.0)
        done = (error.abs() <= small * total) | (step.abs() <= small * theta.abs())
        if k % CHECK_EVERY == 0 and bool(done.all()):
            break
        theta = torch.where(done, theta, theta + step)
    return theta


def _too_small(blocks: Blocks, total: float) -> Tensor:
    """The larger of two θ that are too small: the one without the max, and the one at which the first of the z - θw
    would be the total, rounded down, lest all z - θw be negative."""
    dim, small = blocks.dim, tolerance(blocks.parts[0][0])
    first = torch.stack([(z - total).div_(w).amax(dim, keepdim=True) for z, w in blocks.parts]).amax(0)
    zs = _total([z.sum(dim, keepdim=True) for z, _ in blocks.parts])
    ws = _total([w.expand_as(z).sum(dim, keepdim=True) for z, w in blocks.parts])
    return (first - small * first.abs()).maximum((zs - total) / ws)


def _capped_level(blocks: Blocks, total: float) -> Tensor:
    r"""$\theta$ with $\sum_i \mathrm{clip}(z_i - \theta w_i, 0, \mathrm{cap}) = \mathrm{total}$, up to rounding errors.

    The sum is not convex any more, so Newton's method is kept between two bounds; where it would leave them, stand
    still, or has not halved the error of the sum, the interval is halved instead.
    """
    dim, small = blocks.dim, tolerance(blocks.parts[0][0])
    # All at their caps, and all at 0.
    lo = torch.stack([(z - cap).div_(w).amin(dim, keepdim=True) for z, w, cap in blocks.parts]).amin(0)
    hi = torch.stack([(z / w).amax(dim, keepdim=True) for z, w, _ in blocks.parts]).amax(0)
    theta = torch.zeros_like(lo).maximum(lo).minimum(hi)
    last = torch.full_like(theta, torch.inf)
    for k in range(MAX_ITERATIONS):
        sums, slopes = [], []
        for z, w, cap in blocks.parts:
            x = z.addcmul(w, theta, value=-1).clamp_(min=0).minimum(cap)
            sums.append(x.sum(dim, keepdim=True))
            between = (cap - x).sign_().mul_(x.sign_())  # those strictly between 0 and cap
            slopes.append(between.mul_(w).sum(dim, keepdim=True))
        error, slope = _total(sums) - total, _total(slopes)
        lo, hi = torch.where(error > 0, theta, lo), torch.where(error < 0, theta, hi)
        done = (error.abs() <= small * total) | (hi - lo <= small * theta.abs())
        if k % CHECK_EVERY == 0 and bool(done.all()):
            break
        newton = theta + error / slope
        safe = (lo < newton) & (newton < hi) & (error.abs() <= last / 2)
        theta = torch.where(done, theta, torch.where(safe, newton, lo + (hi - lo) / 2))
        last = error.abs()
    return theta
