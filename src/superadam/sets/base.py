"""Line 9: what a set X is."""

from __future__ import annotations

import functools
import inspect
import math
from collections.abc import Callable
from typing import Any, ClassVar, cast

import torch
from torch import Tensor

from superadam._state.parts import Part, check
from superadam._step.tensors import tracing
from superadam.matrices import Matrix

__all__ = ["ConvexSet", "in_metric", "solving"]

# Which coordinates make up one slice: all of them (None), or those along a dimension or several.
Dim = int | tuple[int, ...] | None


class ConvexSet(Part, kind="constraint"):
    r"""Base class of the sets.

    `argmin(y, d)` is the exact step of line 9, for $d = H_t / \gamma$ and $y = x_t - g_t / d$:

    $$\arg\min_{x \in \mathcal{X}} \tfrac12 \sum_i d_i (x_i - y_i)^2$$

    d is a positive tensor of y's shape, or a scalar. The sets of this package return a feasible y unchanged, a tensor
    without elements too, and refuse numbers that are not finite (on a GPU, only if they are not `separable`).

    A set of one's own is a subclass with this one method; its fields are its options. Here, all coordinates are equal:

    >>> class AllEqual(ConvexSet):
    ...     def argmin(self, y, d):
    ...         d = torch.as_tensor(d).expand_as(y)
    ...         return ((d * y).sum() / d.sum()).expand_as(y)
    >>> AllEqual().argmin(torch.tensor([0.0, 3.0]), torch.tensor([2.0, 1.0]))
    tensor([1., 1.])
    >>> AllEqual().contains(torch.tensor([1.0, 1.5]))
    False
    """

    scalar_metric: ClassVar[bool] = False
    """Whether the step is known only for H_t = b I, so that d must be a scalar."""
    separable: ClassVar[bool] = False
    """Whether the set is a product of intervals, so that any separable penalty goes with it."""

    def argmin(self, y: Tensor, d: Tensor | float) -> Tensor:
        """The point of the set nearest to y, where d weighs the coordinates."""
        raise NotImplementedError(f"{type(self).__name__} has no argmin")

    def root_shape(self, x: Tensor) -> torch.Size | None:
        """The shape of the roots that `argmin` finds for a tensor like x, if it takes those of the last step."""
        return None

    def in_rows(self, x: Tensor) -> bool:
        """Whether every x[i] is in a set of its own, so that x can be cut along its first dimension."""
        return False

    def violation(self, x: Tensor) -> Tensor:
        """How far x is outside, as a 0-d tensor: 0 for a feasible x."""
        return largest((x.double() - self.argmin(x, 1.0).double()).abs())

    def contains(self, x: Tensor, tol: float = 1e-6) -> bool:
        """Whether x is feasible, up to `tol`."""
        return bool(self.violation(x) <= tol)

    def objection(self, others: Any, options: dict[str, Any]) -> str | None:
        matrix = others.matrix
        if matrix.scope != "coordinate":
            return f"line 9 on a set is known for a diagonal H, which that of {type(matrix).__name__} is not"
        if others.schedule.mu_t(1, others.estimator.tau) > 1:
            return f"line 10 leaves the set if μ is larger than 1, as that of {others.schedule} is"
        if self.scalar_metric and not matrix.multiple_of_identity:
            return f"{type(self).__name__} {_NEEDS_SCALAR}, and {type(matrix).__name__} has many; {_scalar_matrices()}"
        return None


_NEEDS_SCALAR = "needs one learning rate for all coordinates"


def _scalar_matrices() -> str:
    names = [name for name, matrix in Matrix._names.items() if matrix.multiple_of_identity]  # type: ignore[attr-defined]
    return f"matrices that have one: {', '.join(sorted(names))}"


def in_metric(argmin: Callable[..., Tensor]) -> Callable[..., Tensor]:
    """Check y and d, compute in float32 or, where its range is too small, in float64, and give the result y's dtype.

    The function may write into y, which is a copy unless given as `scratch`. See `solving` for more.
    """
    return _in_metric(argmin, writes_d=False)


def solving(argmin: Callable[..., Tensor]) -> Callable[..., Tensor]:
    """`in_metric`, for a function that solves an equation. It may write into d, too.

    If it takes `root`, it finds the root of the last equation there, or zeros, and leaves that of this one.
    """
    return _in_metric(argmin, writes_d=True)


def _in_metric(argmin: Callable[..., Tensor], writes_d: bool) -> Callable[..., Tensor]:
    takes_root = "root" in inspect.signature(argmin).parameters

    @functools.wraps(argmin)
    @torch.no_grad()
    def checked(
        self: Any, y: Tensor, d: Tensor | float, root: Tensor | None = None, *, scratch: bool = False
    ) -> Tensor:
        if not y.is_floating_point():
            raise ValueError(f"y must be a real floating-point tensor, not {y.dtype}")
        dtype = torch.promote_types(y.dtype, torch.float32)
        if isinstance(d, Tensor) and d.dim() > 0:
            dtype = torch.promote_types(dtype, d.dtype)
        metric = torch.as_tensor(d, dtype=dtype, device=y.device)
        if metric.shape not in ((), y.shape):
            raise ValueError(f"d must be a scalar or have the shape of y, {tuple(y.shape)}, not {tuple(metric.shape)}")
        if getattr(self, "scalar_metric", False) and metric.dim() > 0:
            raise ValueError(f"{type(self).__name__} {_NEEDS_SCALAR}, so d must be a scalar; {_scalar_matrices()}")
        if y.numel() == 0:
            return y.clone()
        # On a GPU a look waits for the device. Of intervals, a coordinate that is not finite spoils no other one.
        unseen = tracing.get() or (self.separable and y.device.type != "cpu")
        wide = False
        if not unseen:
            y_size, d_min, d_max = _range(y, metric)
            wide = not _enough(self, y.dtype, y_size, d_min, d_max)
        if wide:
            _check_range(self, y_size, d_min, d_max)
            dtype = torch.float64
            metric = metric.double() / (d_max if isinstance(self, ConvexSet) else 1.0)  # a set asks for ratios alone
            if root is not None:  # that of these numbers may be beyond float32, in which it is kept
                root.zero_()
                root = None
        own = y if scratch and y.dtype == dtype else y.to(dtype, copy=True)
        if writes_d and metric is d and not (scratch and d.dim() > 0):
            metric = metric.clone()
        solved = (argmin(self, own, metric, root) if takes_root else argmin(self, own, metric)).to(y.dtype)
        if wide and not bool(solved.isfinite().all()):
            raise ValueError(f"line 9 on {self} has a solution beyond the largest {y.dtype}: scale the problem down")
        return solved

    checked.takes_more = True  # type: ignore[attr-defined]
    return checked


def _range(y: Tensor, d: Tensor) -> tuple[float, float, float]:
    """The size of y, and the least and largest d; an error if they are not finite."""
    # One look at the results of two reductions, or of one: NaN fails every comparison.
    sides = (*torch.aminmax(y), *((d, d) if d.dim() == 0 else torch.aminmax(d)))
    y_min, y_max, d_min, d_max = torch.stack([side.to(d.dtype) for side in sides]).tolist()
    if not (d_min > 0 and d_max < math.inf):
        raise ValueError(f"d must be positive and finite; its least and largest are {d_min:g} and {d_max:g}")
    if not (-math.inf < y_min and y_max < math.inf):
        raise ValueError(f"y must be finite; its least and largest elements are {y_min:g} and {y_max:g}")
    return max(-y_min, y_max), d_min, d_max


def _enough(part: Any, dtype: torch.dtype, y: float, d_min: float, d_max: float) -> bool:
    """Whether float32 is enough: no square, product or quotient in the solvers leaves its range.

    Elsewhere they run in float64, where they are right for all numbers that float32 has, and the result is looked at:
    float16 may have no such number.
    """
    least, most = _sizes(part)
    if dtype == torch.float16 or not (d_min >= 1e-15 and d_max <= 1e15 and most <= 1e9):
        return False
    ordinary = least >= 1e-9 and (y == 0 or 1e-12 <= y <= 1e9 * min(1.0, least))
    return part.separable or (ordinary and d_max <= 1e12 * d_min)


def _check_range(part: Any, y: float, d_min: float, d_max: float) -> None:
    """Refuse numbers for which float64 is not enough. Any y and d of float32 pass."""
    least, most = _sizes(part)
    ratio = isinstance(part, ConvexSet)
    d_fits = d_max <= 1e100 * d_min if ratio else d_min >= 1e-75 and d_max <= 1e75
    if not part.separable and not (max(y, most) <= 1e75 and least >= 1e-75 and d_fits):
        expected = "a ratio of at most 1e100 between those of d" if ratio else "d from 1e-75 to 1e75"
        raise ValueError(
            f"{part} solves line 9 for numbers of at most 1e75 in y, options from 1e-75 to 1e75, and {expected}; y has "
            f"up to {y:g}, the options {least:g} to {most:g}, d {d_min:g} to {d_max:g}: scale the problem"
        )


def _sizes(part: Any) -> tuple[float, float]:
    """Of the options of a part, the least and the largest size, where 0 and inf do not count; found once."""
    if "_sizes" not in part.__dict__:
        options = [v for name, v in part.spec().items() if name != "dim" and isinstance(v, int | float | Tensor)]
        sizes = [float(largest(v.abs())) if isinstance(v, Tensor) else abs(v) for v in options]
        counting = [size for size in sizes if 0 < size < math.inf] or [1.0]
        object.__setattr__(part, "_sizes", (min(counting), max(counting)))
    return cast(tuple[float, float], part.__dict__["_sizes"])


def check_radius(r: float) -> None:
    check(0 <= r < math.inf, "r", r, "0 <= r < inf")


def check_finite(name: str, value: float | Tensor) -> None:
    check(bool(torch.as_tensor(value).isfinite().all()), name, value, "finite numbers")


def like(value: float | Tensor, y: Tensor) -> Tensor:
    """An option of a set, where y is: its dtype, device and shape."""
    value = torch.as_tensor(value, dtype=y.dtype, device=y.device)
    try:
        return value.expand_as(y)
    except RuntimeError:
        shapes = f"{tuple(value.shape)} and {tuple(y.shape)}"
        raise ValueError(f"an option of the set and the tensor do not fit: shapes {shapes}") from None


def dims(y: Tensor, dim: Dim) -> tuple[int, ...]:
    """The dimensions to reduce over, so that a slice becomes one number."""
    if dim is None:
        return tuple(range(y.dim()))
    return dim if isinstance(dim, tuple) else (dim,)


def slices_in_rows(x: Tensor, dim: Dim, *options: float | Tensor) -> bool:
    """Whether slices along `dim` lie within the x[i], and the options are the same for all of them."""
    return x.dim() > 1 and not any(isinstance(o, Tensor) for o in options) and all(i % x.dim() for i in dims(x, dim))


def slice_shape(x: Tensor, dim: Dim) -> torch.Size:
    """The shape of a tensor with one number for each slice."""
    reduced = {i % x.dim() for i in dims(x, dim)} if x.dim() else set()
    return torch.Size([1 if i in reduced else size for i, size in enumerate(x.shape)])


def largest(excess: Tensor) -> Tensor:
    """The largest element, or 0 if there is no positive one."""
    return excess.amax().clamp(min=0) if excess.numel() else excess.new_zeros(())
