r"""The one-dimensional equations behind the exact step, solved for all slices of a tensor at once.

Each slice runs over the dimensions `dim`; what belongs to a slice is a tensor with these dimensions kept, of size 1.
"""

from __future__ import annotations

import torch
from torch import Tensor

__all__ = ["norm_root", "tolerance", "water_level"]

MAX_ITERATIONS = 200  # far more than needed; see the bounds below
CHECK_EVERY = 2  # iterations between two looks at whether all slices are done, each of which waits for the device


def tolerance(x: Tensor) -> float:
    """Relative error below which an equation counts as solved: a few rounding errors."""
    return 4 * torch.finfo(x.dtype).eps


def norm_root(p: Tensor, alpha: Tensor, dim: tuple[int, ...]) -> tuple[Tensor, Tensor]:
    r"""$x = p / (\alpha + c)$ and the $c \ge 0$ for which $\|x\| = 1$; c = 0 where $\|p / \alpha\| \le 1$.

    $1 / \|x\|$ is increasing and concave in c, so Newton's method on $1 / \|x\| - 1$ never overshoots from a c that is
    too small; the start is the least c at which all $|x_i| \le 1$. Convergence is quadratic in the end; before, it
    takes a step or so for each order of magnitude between the $\alpha_i$.

    >>> norm_root(torch.tensor([6.0, 8.0]), torch.tensor(5.0), (0,))
    (tensor([0.6000, 0.8000]), tensor([5.]))
    """
    c = (p.abs() - alpha).amax(dim, keepdim=True).clamp(min=0)
    for k in range(MAX_ITERATIONS):
        t = alpha + c
        squares = (p / t).square_()
        norm2 = squares.sum(dim, keepdim=True)
        norm = norm2.sqrt()
        done = norm <= 1 + tolerance(p)
        if k % CHECK_EVERY == 0 and bool(done.all()):
            break
        slope = squares.div_(t).sum(dim, keepdim=True)
        c = torch.where(done, c, c + (norm - 1) * norm2 / slope)
    return p / (alpha + c), c


def water_level(y: Tensor, d: Tensor, total: float, dim: tuple[int, ...], cap: Tensor | None = None) -> Tensor:
    r"""$x = \mathrm{clip}(y - \theta / d, 0, \mathrm{cap})$ with the $\theta$ for which $\sum_i x_i = \mathrm{total}$.

    >>> water_level(torch.tensor([3.0, 2.5, 0.1]), torch.tensor(1.0), 1.0, (0,))
    tensor([0.7500, 0.2500, 0.0000])
    """
    if total == 0:
        return torch.zeros_like(y)
    w = d.amax() / d  # a multiple of 1/d that does not overflow
    huge = torch.finfo(y.dtype).max / y.numel()  # what can be summed
    z = y
    # y - θ/d has the rounding errors of y. Where they matter for the total, solve again for what is left of y; with
    # float32, each time takes seven digits from the y that are too large.
    for _ in range(8):
        x = z.clamp(min=0) if cap is None else z.clamp(min=0).minimum(cap)
        done = (x.sum(dim, keepdim=True) - total).abs() <= tolerance(y) * total
        if bool(done.all()):
            break
        theta = _level(z, w, total, dim) if cap is None else _capped_level(z, w, total, dim, cap)
        z = z.addcmul(w, theta.masked_fill(done, 0.0), value=-1).clamp_(-huge, huge)
    return x


def _level(z: Tensor, w: Tensor, total: float, dim: tuple[int, ...]) -> Tensor:
    r"""$\theta$ with $\sum_i \max(0, z_i - \theta w_i) = \mathrm{total}$, up to the rounding errors of z.

    The sum is decreasing, convex and piecewise linear in θ, so Newton's method never overshoots from a θ that is too
    small, and ends at the exact solution. Each step halves the error of the sum or its slope, so there are at most some
    hundred steps; five to fifteen are usual.
    """
    # Too small: the θ without the max, and the one at which the first of the z - θw would be the total.
    # The latter is rounded down, lest all z - θw be negative.
    theta = (z - total).div_(w).amax(dim, keepdim=True)
    theta = theta - tolerance(z) * theta.abs()
    theta = theta.maximum((z.sum(dim, keepdim=True) - total) / w.expand_as(z).sum(dim, keepdim=True))
    x = torch.empty_like(z)
    for k in range(MAX_ITERATIONS):
        torch.addcmul(z, w, theta, value=-1, out=x).relu_()
        error = x.sum(dim, keepdim=True) - total
        slope = x.sign_().mul_(w).sum(dim, keepdim=True)
        step = torch.where(slope > 0, error / slope, 0.0)
        done = (error <= tolerance(z) * total) | (step <= tolerance(z) * theta.abs())
        if k % CHECK_EVERY == 0 and bool(done.all()):
            break
        theta = torch.where(done, theta, theta + step)
    return theta


def _capped_level(z: Tensor, w: Tensor, total: float, dim: tuple[int, ...], cap: Tensor) -> Tensor:
    r"""$\theta$ with $\sum_i \mathrm{clip}(z_i - \theta w_i, 0, \mathrm{cap}) = \mathrm{total}$, up to rounding errors.

    The sum is not convex any more, so Newton's method is kept between two bounds; where it would leave them, stand
    still, or has not halved the error of the sum, the interval is halved instead.
    """
    lo = (z - cap).div_(w).amin(dim, keepdim=True)  # all at their caps
    hi = (z / w).amax(dim, keepdim=True)  # all at 0
    theta = torch.zeros_like(lo).maximum(lo).minimum(hi)
    last = torch.full_like(theta, torch.inf)
    for k in range(MAX_ITERATIONS):
        x = z.addcmul(w, theta, value=-1).clamp_(min=0).minimum(cap)
        error = x.sum(dim, keepdim=True) - total
        slope = (cap - x).sign_().mul_(x.sign_()).mul_(w).sum(dim, keepdim=True)  # of those strictly between 0 and cap
        lo, hi = torch.where(error > 0, theta, lo), torch.where(error < 0, theta, hi)
        done = (error.abs() <= tolerance(z) * total) | (hi - lo <= tolerance(z) * theta.abs())
        if k % CHECK_EVERY == 0 and bool(done.all()):
            break
        newton = theta + error / slope
        safe = (lo < newton) & (newton < hi) & (error.abs() <= last / 2)
        theta = torch.where(done, theta, torch.where(safe, newton, lo + (hi - lo) / 2))
        last = error.abs()
    return theta
