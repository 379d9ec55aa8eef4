r"""The one-dimensional equations of the exact step, solved for all slices of a tensor at once.

First what their solvers share, then the equation of a norm, then those of a sum: on simplices, l1 balls and sections
of boxes.

Each slice runs over the dimensions `dim`; what belongs to a slice is a tensor with these dimensions kept, of size 1.
Where the slice is the whole tensor, the sums are taken over blocks that stay in the processor's cache. All functions
work in place: they write the solution into their first argument, and may write into the second.

On a CPU the host checks for convergence. On other devices it does not (`may_look`), because the check would
synchronise, and a CUDA graph cannot contain it. There the number of iterations is fixed, and slices that have converged
no longer change.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import cast

import torch
from torch import Tensor

__all__ = [
    "BLOCK",
    "Blocks",
    "clip_",
    "everywhere",
    "may_look",
    "norm_root",
    "nowhere",
    "section_level",
    "tolerance",
    "total_of",
    "warm",
    "water_level",
]

MAX_ITERATIONS = 200  # far more than needed; see the bounds below
NEWTON, AGAIN = 20, 6  # iterations without looks; and from a start that is nearly right
FAR = 1e6  # a sum or a squared norm is so far from its aim that the last root is of no use
BLOCK = 1 << 17  # coordinates


def tolerance(x: Tensor) -> float:
    """Return the relative error below which an equation counts as solved: a few rounding errors."""
    return 4 * torch.finfo(x.dtype).eps


def may_look(x: Tensor) -> bool:
    """Return whether the host may read numbers of x during a step."""
    return x.device.type == "cpu"


def warm(root: Tensor | None) -> bool:
    """Return whether the host knows that all slices had a root in the last step, and so probably have one now."""
    return root is not None and may_look(root) and bool((root > 0).all())


def everywhere(condition: Tensor) -> bool:
    """Return whether a condition holds everywhere. False if the host may not read it."""
    return may_look(condition) and bool(condition.all())


def nowhere(condition: Tensor) -> bool:
    """Return whether a condition holds nowhere. False if the host may not read it."""
    return may_look(condition) and not bool(condition.any())


def in_rows(x: Tensor, dim: tuple[int, ...]) -> bool:
    """Return whether there are several rows x[i], and every slice lies within a row."""
    return x.dim() > 1 and len(x) > 1 and all(i % x.dim() for i in dim)


class Blocks:
    """Tensors of one shape (or 0-d), split in the same places, and the dimensions of a slice within a block.

    There is more than one block only if the whole tensor is one slice, contiguous in a CPU's memory.
    """

    def __init__(self, parts: list[tuple[Tensor, ...]], dim: tuple[int, ...], ndim: int) -> None:
        self.parts, self.dim, self.ndim = parts, dim, ndim
        self.one, self.looks, self.small = len(parts) == 1, may_look(parts[0][0]), tolerance(parts[0][0])

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
        """Return a value per slice, in the shape for the blocks."""
        return value.view(1) if len(self.parts) > 1 else value

    def unsliced(self, value: Tensor) -> Tensor:
        """Return a value per slice, in the shape for the whole tensor."""
        return value.view([1] * self.ndim) if len(self.parts) > 1 else value

    def rest(self, settled: Tensor) -> Tensor | None:
        """Return the rows in which some slice is not settled, if they are few: they go on by themselves."""
        x = self.parts[0][0]
        if not self.one or not self.looks or not in_rows(x, self.dim):
            return None
        rest = settled.reshape(len(x), -1).all(1).logical_not_().nonzero().view(-1)
        return rest if 3 * len(rest) <= len(x) else None

    def rows(self, which: Tensor) -> Blocks:
        """Copies of some rows."""
        return Blocks([tuple(t if t.dim() == 0 else t[which] for t in self.parts[0])], self.dim, self.ndim)


def total_of(values: Sequence[Tensor]) -> Tensor:
    return values[0] if len(values) == 1 else torch.stack(list(values)).sum(0)


def norm_root(p: Tensor, alpha: Tensor, dim: tuple[int, ...], start: Tensor | None = None, r: float = 1.0) -> Tensor:
    r"""Write $p / (\alpha + c)$ into p, for the $c \ge 0$ at which its norm is r, and return c.

    c = 0 where $\|p / \alpha\| \le r$.

    $1 / \|x\|$ is increasing and concave in c. So Newton's method on $1 / \|x\| - 1 / r$ never overshoots from a c that
    is too small, and from a c that is too large it reaches such a c in one step. It starts from the last root if that
    is near, otherwise from the least c at which all $|x_i| \le r$. It needs about one step for each order of
    magnitude between the $\alpha_i$; then it converges quadratically, and with the second derivative cubically.

    >>> p = torch.tensor([6.0, 8.0])
    >>> norm_root(p, torch.tensor(5.0), (0,)), p
    (tensor([5.]), tensor([0.6000, 0.8000]))
    """
    blocks = Blocks.of(dim, p, alpha)
    looks = blocks.looks
    if start is not None and looks and not bool(start.any()):
        start = None
    c = _norm_level(blocks, r, None if start is None else blocks.slice_of(start), MAX_ITERATIONS if looks else NEWTON)
    for p_i, alpha_i in blocks.parts:
        p_i.div_(alpha_i + c)
    if not looks:  # feasible, even if there had to be more iterations
        norm = p.square().sum(dim, keepdim=True).sqrt().div_(r)
        p.div_(norm.masked_fill_(norm <= 1 + tolerance(p), 1.0))
    return blocks.unsliced(c)


def _norm_level(blocks: Blocks, r: float, start: Tensor | None, iterations: int) -> Tensor:
    """c, without a change of p."""
    one, looks, small = blocks.one, blocks.looks, blocks.small
    c = _least(blocks, r) if start is None else start.clamp(min=0)
    lost = torch.finfo(c.dtype).tiny / small  # a sum of squares below this has lost digits
    for k in range(iterations):
        moments = [_moments(p, alpha, c, blocks.dim) for p, alpha in blocks.parts]
        norm2, slope, curve = moments[0] if one else map(total_of, zip(*moments, strict=True))
        excess = norm2.sqrt() / r - 1
        done = torch.where(c > 0, excess.abs(), excess) <= small
        step = torch.where(norm2 > 0, excess * norm2 / slope, -c)
        # The second derivative of 1/‖x‖ is a variance of the 1/(α + c). The third is at most a few times that over c.
        bend, size = 1.5 * (curve / slope - slope / norm2) * step.square(), step.abs()
        slight = (8 * bend.abs() <= size) & (curve > lost)
        rest = torch.where(slight, 8 * bend.abs(), 16 * size) * size
        last, c = c, torch.where(done, c, (c + torch.where(slight, step + bend, step)).clamp_(min=0))
        # A long step down may end below the least c, where α + c is nearly 0.
        near = (norm2 > r**2 / FAR) & (norm2 < r**2 * FAR) & ((c > last / FAR) | done)
        if k == 0 and start is not None and not (looks and bool(near.all())):
            c = torch.where(near, c, _least(blocks, r))
            continue
        # What is left of the error is known well enough, if the step was short: the norm at the new c needs no look.
        least = c.minimum(last)
        settled = done | ((16 * (c - last).abs() <= least) & (rest <= small * least.square()))
        if looks and bool(settled.all()):
            break
        if (others := blocks.rest(settled)) is not None:
            c[others] = _norm_level(blocks.rows(others), r, c[others], iterations)
            break
    return c


def _moments(p: Tensor, alpha: Tensor, c: Tensor, dim: tuple[int, ...]) -> tuple[Tensor, Tensor, Tensor]:
    """Return Σ x², Σ x²/(α + c) and Σ x²/(α + c)² of x = p/(α + c)."""
    t = alpha + c
    square = (p / t).square_()
    norm2 = square.sum(dim, keepdim=True)
    slope = square.div_(t).sum(dim, keepdim=True)
    return norm2, slope, square.div_(t).sum(dim, keepdim=True)


def _least(blocks: Blocks, r: float) -> Tensor:
    """Return the least c at which all |x_i| ≤ r."""
    least = [(p.abs().div_(r) - alpha).amax(blocks.dim, keepdim=True) for p, alpha in blocks.parts]
    return torch.stack(least).amax(0).clamp(min=0)


# Without looks: iterations of Newton's method that is kept between bounds, and how often the rounding errors of a large
# y are solved for.
BOUNDED, ROUNDS = 60, 3


def water_level(
    y: Tensor,
    d: Tensor,
    total: float,
    dim: tuple[int, ...],
    start: Tensor | None = None,
    unit: Tensor | float | None = None,
    at_most: bool = False,
) -> Tensor:
    r"""Write $\max(0, y - \theta / d)$ into y, for the $\theta$ at which it sums to `total`.

    Return $\theta$. `start` is the $\theta$ of a similar equation; it is ignored if it is far from the solution.
    `unit` is what d is measured in (see `unit_of`). With `at_most`, y stays as it is where its sum is less.

    >>> y = torch.tensor([3.0, 2.5, 0.1])
    >>> water_level(y, torch.ones(3), 1.0, (0,)), y
    (tensor([2.2500]), tensor([0.7500, 0.2500, 0.0000]))
    """
    if total == 0:
        return torch.zeros_like(y.zero_().sum(dim, keepdim=True))
    w = d.reciprocal_()
    if unit is None:
        return _refined(Blocks.of(dim, y, w), total, start, at_most)
    start = None if start is None else start / unit
    return _refined(Blocks.of(dim, y, w.mul_(unit)), total, start, at_most).mul_(unit)


def section_level(
    y: Tensor, w: Tensor, total: float, dim: tuple[int, ...], lo: Tensor, hi: Tensor, start: Tensor | None = None
) -> Tensor:
    r"""Write $\mathrm{clip}(y - \theta w, \mathrm{lo}, \mathrm{hi})$ into y, for the $\theta$ at which it sums to
    `total`; return $\theta$. w is positive, the bounds are 0-d or like y, and may be infinite.

    >>> y = torch.tensor([3.0, 2.5, 0.1])
    >>> section_level(y, torch.ones(3), 0.7, (0,), torch.tensor(-1.0), torch.tensor(1.0)), y
    (tensor([1.8000]), tensor([ 1.0000,  0.7000, -1.0000]))
    """
    return _refined(Blocks.of(dim, y, w, lo, hi), total, start)


def _refined(blocks: Blocks, total: float, start: Tensor | None, at_most: bool = False) -> Tensor:
    """Return the θ for which z - θw, clipped, sums to `total`. Writes the clipped z - θw into z."""
    z = blocks.parts[0][0]
    looks, bounded = blocks.looks, len(blocks.parts[0]) > 2
    start = None if start is None or (looks and not bool(start.any())) else start if blocks.one else start.view(1)
    theta = _rounds(blocks, total, start, 8 if looks else ROUNDS, at_most)
    for z, _, *bounds in blocks.parts:
        clip_(z, *bounds) if bounded else z.relu_()
    if not looks and not bounded:  # feasible, even if there had to be more iterations
        held = total_of([z.sum(blocks.dim, keepdim=True) for z, _ in blocks.parts])
        factor = torch.where(_small(held / total - 1, theta, at_most), 1.0, total / held)
        for z, _ in blocks.parts:
            z.mul_(factor)
    if not looks and bounded:
        _onto_sum(blocks, total)
    return theta if blocks.one else blocks.unsliced(theta)


def _rounds(blocks: Blocks, total: float, start: Tensor | None, rounds: int, at_most: bool) -> Tensor:
    """Subtract θw from z, and return θ.

    z - θw has the rounding errors of z. If they matter for the sum, solve again for the remainder of z. In float32,
    each repetition removes seven digits from the z that are too large.
    """
    looks, bounded = blocks.looks, len(blocks.parts[0]) > 2
    if start is None or not looks:  # a y that is feasible stays as it is
        off = _excess(blocks, total)
        theta = torch.zeros_like(off)
        done = _small(off, theta, at_most)
    else:  # after a step with a root, the next one is not expected to be without
        theta, done = torch.zeros_like(start), torch.zeros_like(start, dtype=torch.bool)
    for k in range(rounds):
        if looks and bool(done.all()):
            break
        if k > 0 and (others := blocks.rest(done)) is not None:
            some = blocks.rows(others)
            theta[others] += _rounds(some, total, torch.zeros_like(theta[others]), rounds - k, False)
            blocks.parts[0][0][others] = some.parts[0][0]
            break
        fixed = (BOUNDED if bounded else NEWTON) if k == 0 else (NEWTON if bounded else AGAIN)
        more = (_section if bounded else _level)(blocks, total, start, MAX_ITERATIONS if looks else fixed)
        # The next θ is nearly 0. Far from it, the rounding errors of w θ could make a sum that is no longer there.
        more, start = more.masked_fill(done, 0.0), torch.zeros_like(more)
        if at_most and k == 0:
            more.relu_()
        theta = theta + more
        done = _small(_excess(blocks, total, more), theta, at_most)
    return theta


def _small(off: Tensor, theta: Tensor, at_most: bool) -> Tensor:
    """Return whether a sum has the total, given its relative excess, or has less than it may have at most."""
    return (torch.where(theta == 0, off, off.abs()) if at_most else off.abs()) <= tolerance(off)


def _excess(blocks: Blocks, total: float, more: Tensor | None = None) -> Tensor:
    """Subtract w · more from z. By how much the sum of each slice is then larger than the total, relatively."""
    first, bounded, sums, sizes = blocks.parts[0][0], len(blocks.parts[0]) > 2, [], []
    huge = torch.finfo(first.dtype).max / (len(blocks.parts) * first.numel())  # what can be summed
    for z, w, *bounds in blocks.parts:
        if more is not None:
            z.addcmul_(w, more, value=-1)
            if not blocks.looks:  # otherwise `enough` has seen to it
                z.clamp_(-huge, huge)
        x = clip_(z.clone(), *bounds) if bounded else z.relu()
        sums.append(x.sum(blocks.dim, keepdim=True))
        sizes.append(x.abs_().sum(blocks.dim, keepdim=True) if bounded else sums[-1])  # its terms may cancel
    error = (sums[0] if blocks.one else total_of(sums)) - total
    return error.div_(total_of(sizes).clamp_(min=max(abs(total), torch.finfo(first.dtype).tiny)) if bounded else total)


def _onto_sum(blocks: Blocks, total: float) -> None:
    """Move all z by the same share of the way to a bound, where their sum is not the total yet."""
    missing = total - total_of([z.sum(blocks.dim, keepdim=True) for z, *_ in blocks.parts])
    rooms = [torch.where(missing > 0, hi - z, lo - z) for z, _, lo, hi in blocks.parts]
    rooms = [room.masked_fill_(room.isinf(), 0.0) for room in rooms]
    room = total_of([room.sum(blocks.dim, keepdim=True) for room in rooms])
    size = total_of([z.abs().sum(blocks.dim, keepdim=True) for z, *_ in blocks.parts]).clamp(min=abs(total))
    solved = (missing.abs() <= tolerance(room) * size) | (room == 0)
    share = torch.where(solved, 0.0, missing / room).clamp_(0.0, 1.0)
    for (z, *_), of_z in zip(blocks.parts, rooms, strict=True):
        z.addcmul_(of_z, share)


def clip_(x: Tensor, lo: Tensor, hi: Tensor) -> Tensor:
    """Clamp in place. With tensor bounds, 0-d or not, torch's is six times slower than with numbers."""
    torch.maximum(x, lo, out=x)
    return torch.minimum(x, hi, out=x)


def _level(blocks: Blocks, total: float, start: Tensor | None, iterations: int) -> Tensor:
    r"""Return $\theta$ with $\sum_i \max(0, z_i - \theta w_i) = \mathrm{total}$, up to the rounding errors of z.

    The sum is decreasing, convex and piecewise linear in θ. So Newton's method never overshoots from a θ that is too
    small, reaches such a θ in one step from one that is too large, and ends at the exact solution. Each step halves the
    error of the sum or its slope, so there are at most about a hundred steps; five to fifteen are usual.
    """
    dim, one, looks, small = blocks.dim, blocks.one, blocks.looks, blocks.small
    theta = _too_small(blocks, total) if start is None else start
    before = torch.zeros_like(theta)
    for k in range(iterations):
        sums, slopes = [], []
        for z, w in blocks.parts:
            x = torch.addcmul(z, w, theta, value=-1).relu_()
            sums.append(x.sum(dim, keepdim=True))
            slopes.append(x.sign_().mul_(w).sum(dim, keepdim=True))
        error, slope = (sums[0], slopes[0]) if one else (total_of(sums), total_of(slopes))
        error = error - total
        step, off = torch.where(slope > 0, error / slope, 0.0), error.abs() / total
        done = (off <= small) | (step.abs() <= small * theta.abs())
        following = torch.where(done, theta, theta + step)
        # Far from the solution, the rounding errors of a long step could hide it. A root of 0 is that of a later round.
        near = (slope > 0) & (error < FAR * total) & ((theta == 0) | (step.abs() <= FAR * theta.abs()))
        if k == 0 and start is not None and not (looks and bool(near.all())):
            theta, before = torch.where(near, following, _too_small(blocks, total)), torch.where(near, off, 0.0)
            continue
        # Newton's method nearly squares a small error, and `_rounds` checks the sum at the new θ anyway.
        settled = done | (16 * off.square() <= small) | (off**3 <= small * before.clamp(max=1.0).square())
        theta, before = following, off
        if looks and bool(settled.all()):
            break
        if (others := blocks.rest(settled)) is not None:
            theta[others] = _level(blocks.rows(others), total, theta[others], iterations)
            break
    return theta


def _too_small(blocks: Blocks, total: float) -> Tensor:
    """Return the larger of two lower bounds of θ: the solution without the max, and θ where the first z - θw equals the
    total, rounded down so that not all z - θw are negative."""
    dim, small = blocks.dim, tolerance(blocks.parts[0][0])
    first = torch.stack([(z - total).div_(w).amax(dim, keepdim=True) for z, w in blocks.parts]).amax(0)
    zs = total_of([z.sum(dim, keepdim=True) for z, _ in blocks.parts])
    ws = total_of([w.expand_as(z).sum(dim, keepdim=True) for z, w in blocks.parts])
    return (first - small * first.abs()).maximum((zs - total) / ws)


def _section(blocks: Blocks, total: float, start: Tensor | None, iterations: int) -> Tensor:
    r"""Return $\theta$ with $\sum_i \mathrm{clip}(z_i - \theta w_i, lo_i, hi_i) = \mathrm{total}$, up to rounding.

    The sum is neither convex nor concave, so Newton's method stays between two bounds. If it would leave them, makes no
    progress, or has not halved the error of the sum, bisection replaces the step.
    """
    dim, small = blocks.dim, tolerance(blocks.parts[0][0])

    def at(theta: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Return the excess of the sum over the total, its slope, and the size of its terms."""
        sums, slopes, sizes = [], [], []
        for z, w, lo, hi in blocks.parts:
            free = z.addcmul(w, theta, value=-1)
            x = clip_(free.clone(), lo, hi)
            sums.append(x.sum(dim, keepdim=True))
            slopes.append(free.eq_(x).mul_(w).sum(dim, keepdim=True))  # of those between their bounds
            sizes.append(x.abs_().sum(dim, keepdim=True))
        return total_of(sums) - total, total_of(slopes), total_of(sizes)

    ends = None if start is not None and may_look(start) else _ends(blocks, at)
    lo, hi = ends or (torch.full_like(cast(Tensor, start), -torch.inf), torch.full_like(cast(Tensor, start), torch.inf))
    theta = torch.zeros_like(lo) if start is None else start.nan_to_num(0.0, 0.0, 0.0)
    theta = theta.maximum(lo).minimum(hi)
    last = torch.full_like(theta, torch.inf)
    for _ in range(iterations):
        error, slope, size = at(theta)
        lo, hi = torch.where(error > 0, theta, lo), torch.where(error < 0, theta, hi)
        done = (error.abs() <= small * size.clamp_(min=abs(total))) | (hi - lo <= small * theta.abs())
        done &= size < torch.inf  # far from the solution the sum may overflow
        if everywhere(done):
            break
        newton = theta + error / slope
        safe = (lo < newton) & (newton < hi) & (error.abs() <= last / 2)
        if ends is None and not bool((safe | done).all()):
            ends = _ends(blocks, at)
            lo, hi = lo.maximum(ends[0]), hi.minimum(ends[1])
        theta = torch.where(done, theta, torch.where(safe, newton, lo + (hi - lo) / 2))
        last = error.abs()
    return theta


def _ends(blocks: Blocks, at: Callable[[Tensor], tuple[Tensor, Tensor, Tensor]]) -> tuple[Tensor, Tensor]:
    """Two θ that enclose the solution: where the first and the last coordinate reach a bound, or further out, where the
    sum is linear in θ."""
    dim, most = blocks.dim, torch.finfo(blocks.parts[0][0].dtype).max / 4
    ends = []
    for sign in (1.0, -1.0):
        corners, slopes = [], []
        for z, w, *bounds in blocks.parts:
            meets = [((z - bound) / w).mul_(sign) for bound in bounds]
            corners += [m.masked_fill_(m.abs() > most, torch.inf).amin(dim, keepdim=True) for m in meets]
            free = torch.isinf(bounds[1] if sign > 0 else bounds[0])
            slopes.append((w * free).expand_as(z).sum(dim, keepdim=True))
        corner = torch.stack(corners).amin(0)
        theta = torch.where(corner < torch.inf, sign * corner, 0.0)
        error, slope = at(theta)[0], total_of(slopes)
        beyond = torch.where(slope > 0, 2 * error / slope, 0.0)
        ends.append(theta + (beyond.clamp(max=0) if sign > 0 else beyond.clamp(min=0)))
    return ends[0], ends[1]
