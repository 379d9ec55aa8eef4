r"""The one-dimensional equations of the exact step, solved for all slices of a tensor at once.

Here is what their solvers share, and the equation of a norm; those of a sum are in `levels`.

Each slice runs over the dimensions `dim`; what belongs to a slice is a tensor with these dimensions kept, of size 1.
Where the slice is the whole tensor, the sums are taken over blocks that stay in the processor's cache. All functions
work in place: they write the solution into their first argument, and may write into the second.

On a CPU the host checks for convergence. On other devices it does not (`may_look`), because the check would
synchronise, and a CUDA graph cannot contain it. There the number of iterations is fixed, and slices that have converged
no longer change.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

__all__ = [
    "BLOCK",
    "Blocks",
    "everywhere",
    "may_look",
    "norm_root",
    "nowhere",
    "tolerance",
    "total_of",
    "warm",
]

MAX_ITERATIONS = 200  # far more than needed; see the bounds below
NEWTON, AGAIN = 20, 6  # iterations without looks; and from a start that is nearly right
FAR = 1e6  # a sum or a squared norm is so far from its aim that the last root is of no use
BLOCK = 1 << 17  # coordinates


def tolerance(x: Tensor) -> float:
    """The relative error below which an equation counts as solved: a few rounding errors."""
    return 4 * torch.finfo(x.dtype).eps


def may_look(x: Tensor) -> bool:
    """Whether the host may read numbers of x during a step."""
    return x.device.type == "cpu"


def warm(root: Tensor | None) -> bool:
    """Whether the host knows that all slices had a root in the last step, and so probably have one now."""
    return root is not None and may_look(root) and bool((root > 0).all())


def everywhere(condition: Tensor) -> bool:
    """Whether a condition holds everywhere. False if the host may not read it."""
    return may_look(condition) and bool(condition.all())


def nowhere(condition: Tensor) -> bool:
    """Whether a condition holds nowhere. False if the host may not read it."""
    return may_look(condition) and not bool(condition.any())


def in_rows(x: Tensor, dim: tuple[int, ...]) -> bool:
    """Whether there are several rows x[i], and every slice lies within one."""
    return x.dim() > 1 and len(x) > 1 and all(i % x.dim() for i in dim)


class Blocks:
    """Tensors of one shape (or 0-d), split in the same places, and the dimensions of a slice within a block.

    There is more than one block only if the whole tensor is one slice, contiguous in a CPU's memory.
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
        """A value per slice, in the shape for the blocks."""
        return value.view(1) if len(self.parts) > 1 else value

    def unsliced(self, value: Tensor) -> Tensor:
        """A value per slice, in the shape for the whole tensor."""
        return value.view([1] * self.ndim) if len(self.parts) > 1 else value

    def rest(self, settled: Tensor) -> Tensor | None:
        """The rows in which some slice is not settled, if they are few: those go on by themselves."""
        x = self.parts[0][0]
        if len(self.parts) > 1 or not may_look(x) or not in_rows(x, self.dim):
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
    blocks, looks = Blocks.of(dim, p, alpha), may_look(p)
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
    small, c = tolerance(blocks.parts[0][0]), _least(blocks, r) if start is None else start.clamp(min=0)
    lost = torch.finfo(c.dtype).tiny / small  # a sum of squares below this has lost digits
    for k in range(iterations):
        moments = [_moments(p, alpha, c, blocks.dim) for p, alpha in blocks.parts]
        norm2, slope, curve = map(total_of, zip(*moments, strict=True))
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
        if k == 0 and start is not None and not everywhere(near):
            c = torch.where(near, c, _least(blocks, r))
            continue
        # What is left of the error is known well enough, if the step was short: the norm at the new c needs no look.
        least = c.minimum(last)
        settled = done | ((16 * (c - last).abs() <= least) & (rest <= small * least.square()))
        if everywhere(settled):
            break
        if (others := blocks.rest(settled)) is not None:
            c[others] = _norm_level(blocks.rows(others), r, c[others], iterations)
            break
    return c


def _moments(p: Tensor, alpha: Tensor, c: Tensor, dim: tuple[int, ...]) -> tuple[Tensor, Tensor, Tensor]:
    """Σ x², Σ x²/(α + c) and Σ x²/(α + c)² of x = p/(α + c)."""
    t = alpha + c
    square = (p / t).square_()
    norm2 = square.sum(dim, keepdim=True)
    slope = square.div_(t).sum(dim, keepdim=True)
    return norm2, slope, square.div_(t).sum(dim, keepdim=True)


def _least(blocks: Blocks, r: float) -> Tensor:
    """The least c at which all |x_i| ≤ r."""
    least = [(p.abs().div_(r) - alpha).amax(blocks.dim, keepdim=True) for p, alpha in blocks.parts]
    return torch.stack(least).amax(0).clamp(min=0)
