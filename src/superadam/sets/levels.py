"""The equations of a sum: on simplices, l1 balls and sections of boxes. They are solved as those in `roots`."""

from __future__ import annotations

from collections.abc import Callable
from typing import cast

import torch
from torch import Tensor

from superadam.sets.roots import (
    AGAIN,
    FAR,
    MAX_ITERATIONS,
    NEWTON,
    Blocks,
    everywhere,
    may_look,
    tolerance,
    total_of,
)

__all__ = ["clip_", "section_level", "water_level"]

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
    """The θ for which z - θw, clipped, sums to `total`. Writes the clipped z - θw into z."""
    z = blocks.parts[0][0]
    looks, bounded = may_look(z), len(blocks.parts[0]) > 2
    start = None if start is None or (looks and not bool(start.any())) else blocks.slice_of(start)
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
    return blocks.unsliced(theta)


def _rounds(blocks: Blocks, total: float, start: Tensor | None, rounds: int, at_most: bool) -> Tensor:
    """Subtract θw from z, and return θ.

    z - θw has the rounding errors of z. If they matter for the sum, solve again for the remainder of z. In float32,
    each repetition removes seven digits from the z that are too large.
    """
    looks, bounded = may_look(blocks.parts[0][0]), len(blocks.parts[0]) > 2
    if start is None or not looks:  # a y that is feasible stays as it is
        off = _excess(blocks, total)
        theta = torch.zeros_like(off)
        done = _small(off, theta, at_most)
    else:  # after a step with a root, the next one is not expected to be without
        theta, done = torch.zeros_like(start), torch.zeros_like(start, dtype=torch.bool)
    for k in range(rounds):
        if everywhere(done):
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
    """Whether a sum has the total, given its relative excess, or has less than it may have at most."""
    return (torch.where(theta == 0, off, off.abs()) if at_most else off.abs()) <= tolerance(off)


def _excess(blocks: Blocks, total: float, more: Tensor | None = None) -> Tensor:
    """Subtract w · more from z. By how much the sum of each slice is then larger than the total, relatively."""
    first, bounded, sums, sizes = blocks.parts[0][0], len(blocks.parts[0]) > 2, [], []
    huge = torch.finfo(first.dtype).max / (len(blocks.parts) * first.numel())  # what can be summed
    for z, w, *bounds in blocks.parts:
        if more is not None:
            z.addcmul_(w, more, value=-1)
            if not may_look(z):  # otherwise `enough` has seen to it
                z.clamp_(-huge, huge)
        x = clip_(z.clone(), *bounds) if bounded else z.relu()
        sums.append(x.sum(blocks.dim, keepdim=True))
        sizes.append(x.abs_().sum(blocks.dim, keepdim=True) if bounded else sums[-1])  # its terms may cancel
    error = total_of(sums) - total
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
    """`clamp_`. With tensor bounds, 0-d or not, torch's is six times slower than with numbers."""
    torch.maximum(x, lo, out=x)
    return torch.minimum(x, hi, out=x)


def _level(blocks: Blocks, total: float, start: Tensor | None, iterations: int) -> Tensor:
    r"""$\theta$ with $\sum_i \max(0, z_i - \theta w_i) = \mathrm{total}$, up to the rounding errors of z.

    The sum is decreasing, convex and piecewise linear in θ. So Newton's method never overshoots from a θ that is too
    small, reaches such a θ in one step from one that is too large, and ends at the exact solution. Each step halves the
    error of the sum or its slope, so there are at most about a hundred steps; five to fifteen are usual.
    """
    dim, small = blocks.dim, tolerance(blocks.parts[0][0])
    theta = _too_small(blocks, total) if start is None else start
    before = torch.zeros_like(theta)
    for k in range(iterations):
        sums, slopes = [], []
        for z, w in blocks.parts:
            x = torch.addcmul(z, w, theta, value=-1).relu_()
            sums.append(x.sum(dim, keepdim=True))
            slopes.append(x.sign_().mul_(w).sum(dim, keepdim=True))
        error, slope = total_of(sums) - total, total_of(slopes)
        step, off = torch.where(slope > 0, error / slope, 0.0), error.abs() / total
        done = (off <= small) | (step.abs() <= small * theta.abs())
        following = torch.where(done, theta, theta + step)
        if k == 0 and start is not None and not everywhere(near := _near(theta, step, slope, error / total)):
            theta, before = torch.where(near, following, _too_small(blocks, total)), torch.where(near, off, 0.0)
            continue
        # Newton's method nearly squares a small error, and `_rounds` checks the sum at the new θ anyway.
        settled = done | (16 * off.square() <= small) | (off**3 <= small * before.clamp(max=1.0).square())
        theta, before = following, off
        if everywhere(settled):
            break
        if (others := blocks.rest(settled)) is not None:
            theta[others] = _level(blocks.rows(others), total, theta[others], iterations)
            break
    return theta


def _near(theta: Tensor, step: Tensor, slope: Tensor, off: Tensor) -> Tensor:
    """Whether the last root is of use: otherwise the rounding errors of the long step from it could hide the solution.

    A root of 0 is that of a later round, and always near.
    """
    return (slope > 0) & (off < FAR) & ((theta == 0) | (step.abs() <= FAR * theta.abs()))


def _too_small(blocks: Blocks, total: float) -> Tensor:
    """The larger of two lower bounds of θ: the solution without the max, and the θ at which the first z - θw equals the
    total, rounded down so that not all z - θw are negative."""
    dim, small = blocks.dim, tolerance(blocks.parts[0][0])
    first = torch.stack([(z - total).div_(w).amax(dim, keepdim=True) for z, w in blocks.parts]).amax(0)
    zs = total_of([z.sum(dim, keepdim=True) for z, _ in blocks.parts])
    ws = total_of([w.expand_as(z).sum(dim, keepdim=True) for z, w in blocks.parts])
    return (first - small * first.abs()).maximum((zs - total) / ws)


def _section(blocks: Blocks, total: float, start: Tensor | None, iterations: int) -> Tensor:
    r"""$\theta$ with $\sum_i \mathrm{clip}(z_i - \theta w_i, lo_i, hi_i) = \mathrm{total}$, up to rounding errors.

    The sum is neither convex nor concave, so Newton's method stays between two bounds. If it would leave them, makes no
    progress, or has not halved the error of the sum, bisection replaces the step.
    """
    dim, small = blocks.dim, tolerance(blocks.parts[0][0])

    def at(theta: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """The excess of the sum over the total, its slope, and the size of its terms."""
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
