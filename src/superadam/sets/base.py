"""Line 9: the base class of sets, and the checks that their solvers share."""

from __future__ import annotations

import functools
import inspect
import math
from collections.abc import Callable, Iterator
from typing import Any, ClassVar, NamedTuple, cast

import torch
from torch import Tensor

from superadam.parts import Part, check

__all__ = ["IF_MISSING", "ConvexSet", "in_metric", "solving"]

# Which coordinates make up one slice: all of them (None), or those along a dimension or several.
Dim = int | tuple[int, ...] | None

IF_MISSING = (
    "a set that is missing is a class of ten lines: class Mine(sets.ConvexSet) with one method, argmin(self, y, d), "
    "that returns the x of the set with the least ½ Σ d (x - y)²; or it is the sets.Intersection of some that are "
    'there. See "Your own set" in docs/constraints.md'
)


class ConvexSet(Part, kind="constraint"):
    r"""Base class of all sets.

    `argmin(y, d)` is the exact step of line 9, for $d = H_t / \gamma$ and $y = x_t - g_t / d$:

    $$\arg\min_{x \in \mathcal{X}} \tfrac12 \sum_i d_i (x_i - y_i)^2$$

    d is a positive tensor of y's shape, or a scalar. The sets of this package return a feasible y, or an empty tensor,
    unchanged. They refuse numbers that are not finite (on a GPU, only sets that are not `separable` do).

    To write your own set, subclass this and define `argmin`. Its fields are its options. Here all coordinates are
    equal:

    >>> class AllEqual(ConvexSet):
    ...     def argmin(self, y, d):
    ...         d = torch.as_tensor(d).expand_as(y)
    ...         return ((d * y).sum() / d.sum()).expand_as(y)
    >>> AllEqual().argmin(torch.tensor([0.0, 3.0]), torch.tensor([2.0, 1.0]))
    tensor([1., 1.])
    >>> AllEqual().contains(torch.tensor([1.0, 1.5]))
    False
    """

    _if_missing = IF_MISSING

    scalar_metric: ClassVar[bool] = False
    """Whether the step is only known for H_t = b I, so that d must be a scalar."""
    convex: ClassVar[bool] = True
    """Whether the set is convex. If not, line 10 projects x in every step, and the theorems do not hold."""
    separable: ClassVar[bool] = False
    """Whether the set is a product of intervals, so that it works with any separable penalty."""
    needs: ClassVar[str] = "diagonal"
    """What the step needs from H_t: "diagonal", if H_t must be diagonal; "eigen" for its eigenvectors (`argmin` then
    works in their basis); "inverse" for H_t⁻¹ (`LinearSet`)."""
    no_lmo: ClassVar[str] = "it is not bounded, or its lmo is not known"
    """Why there is no `lmo`, and what to use in its place."""

    def argmin(self, y: Tensor, d: Tensor | float) -> Tensor:
        """Return the point of the set nearest to y in the metric of d."""
        raise NotImplementedError(f"{type(self).__name__} has no argmin")

    def lmo(self, g: Tensor) -> Tensor:
        r"""Return a point of the set that minimises $\langle g, x\rangle$: line 9 for H → 0. Bounded sets only."""
        raise NotImplementedError(f"{type(self).__name__} has no lmo: {self.no_lmo}")

    @property
    def bounded(self) -> bool:
        """Whether the set has an `lmo`."""
        return type(self).lmo is not ConvexSet.lmo

    def centered(self) -> tuple[float | Tensor, ConvexSet]:
        """Return the centre of the set's symmetry, and the set shifted to centre 0, for `needs = "eigen"`."""
        return 0.0, self

    def root_shape(self, x: Tensor) -> torch.Size | None:
        """Shape of the roots that `argmin` finds for a tensor like x. None if it takes no root of the last step."""
        return None

    def pieces(self, x: Tensor) -> tuple[ConvexSet, ...]:
        """Simpler sets of which this one is the intersection, for a tensor like x: linear ones and intervals."""
        return (self,)

    def in_rows(self, x: Tensor) -> bool:
        """Return whether every x[i] has its own set, so that x can be split along its first dimension."""
        return False

    def misfit(self, x: Tensor) -> str | None:
        """Return why the set is not one for tensors like x, or None."""
        return outside(self, x)

    def entry(self, x: Tensor) -> Tensor:
        """Return the feasible point nearest to x, where training starts. Refuse a tensor that the set is not for."""
        if reason := self.misfit(x):
            raise ValueError(reason)
        point = self.argmin(x, 1.0)
        if point.shape != x.shape:
            shapes = f"{tuple(point.shape)} for {tuple(x.shape)}"
            raise ValueError(f"{type(self).__name__}.argmin must return the shape of y, and returned {shapes}")
        return point

    def violation(self, x: Tensor) -> Tensor:
        """Return how far x is outside the set, as a 0-d tensor. 0 if x is feasible."""
        return largest((x.double() - self.argmin(x, 1.0).double()).abs())

    def relative_violation(self, x: Tensor) -> Tensor:
        """Return `violation`, relative to the size of the numbers that it compares."""
        x = x.double()
        return relative(self.violation(x), self._size(x))

    def _size(self, x: Tensor) -> Tensor:
        """Return the size to compare `violation` with: the largest coordinate, or sum for sets of sums."""
        return largest(x.abs())

    def contains(self, x: Tensor, tol: float = 1e-6) -> bool:
        """Return whether x is feasible to within `tol`."""
        return bool(self.violation(x) <= tol)

    def objection(self, others: Any, options: dict[str, Any]) -> str | None:
        matrix = others.matrix
        if others.schedule.mu_t(1, others.estimator.tau) > 1:
            return f"line 10 leaves the set if μ is larger than 1, as that of {others.schedule} is"
        if not matrix.is_diagonal:
            return metric_objection(self, others)
        return scalar_objection(self, matrix)


def metric_objection(part: Any, others: Any) -> str | None:
    """Return the reason why line 9 with this set or penalty has no known solution for a non-diagonal H_t, or None."""
    matrix, name = others.matrix, type(others.matrix).__name__
    family = next(kind for kind in type(matrix).__mro__ if "_kind" in vars(kind))  # it says that there is no `eigen`
    eigen = getattr(matrix, "eigen", None) is not None and type(matrix).eigen is not getattr(family, "eigen", None)
    known = ["inverse", "eigen"] if eigen else ["inverse"]
    if part.needs not in known:
        missing = "H_t to be diagonal" if part.needs == "diagonal" else "the eigenvectors of H_t"
        fitting = sorted(each for each, kind in type(part)._names.items() if kind.needs in known)
        kinds = "scalar" if getattr(part, "scalar_metric", False) else "diagonal and scalar"
        return (
            f"line 9 needs {missing} for {type(part).__name__}, and {name} does not offer that. {name} goes with "
            f"{', '.join(fitting) or f'no {part._kind}'}; {type(part).__name__} goes with {kinds} matrices"
        )
    if matrix.joint and type(others.iterate).__name__ != "Plain":
        return f"{name} solves for all parameters at once, from x_t itself: use iterates.Plain()"
    return None


def shape_objection(part: Any, matrix: Any, x: Tensor) -> str | None:
    """Return the reason why line 9 has no known solution for a tensor like x, or None. Rotations must map slices to
    themselves."""
    if reason := part.misfit(x):
        return str(reason)
    if matrix.is_diagonal or part.needs != "eigen":
        return None
    mixed, dim = matrix.mixes(x), getattr(part, "group", getattr(part, "dim", None))
    if mixed is None:
        return f"{part} needs the eigenvectors of H_t, which {matrix} has not for a tensor of shape {tuple(x.shape)}"
    if not set(mixed) <= {i % x.dim() for i in dims(x, dim)}:
        along = " and ".join(map(str, mixed))
        return (
            f"{part} has slices along dim={dim}, and {matrix} mixes the coordinates of a tensor of shape "
            f"{tuple(x.shape)} along {along}, so that line 9 is not known: give these parameters a diagonal matrix in "
            f"a param group, {{'params': …, 'matrix': 'SecondMoment', '{part._kind}': …}}, or use slices that hold "
            f"{along} in full, as dim=None does"
        )
    return None


def outside(part: Any, x: Tensor) -> str | None:
    """Return an error message if the slices of a part run along dimensions that x has not."""
    n = max(x.dim(), 1)
    for name in ("dim", "group"):
        axes = getattr(part, name, None)
        if isinstance(axes, int | tuple) and not all(-n <= i < n for i in dims(x, axes)):
            return (
                f"{part} does not fit shape {tuple(x.shape)}: it has slices along {name}={axes}. Give it to a param "
                f"group of the parameters that it is for: [{{'params': [p for p in model.parameters() if p.dim() > "
                f"{x.dim()}], '{part._kind}': …}}, {{'params': [p for p in model.parameters() if p.dim() <= "
                f"{x.dim()}]}}]"
            )
    return None


def scalar_objection(part: Any, matrix: Any) -> str | None:
    """Return the reason why a part that needs one learning rate does not go with a matrix, or None."""
    if not part.scalar_metric or matrix.multiple_of_identity or matrix.vanishes:
        return None
    names = sorted(name for name, kind in type(matrix)._names.items() if kind.multiple_of_identity)
    has_many = f"{type(part).__name__} {NEEDS_SCALAR}, and {type(matrix).__name__} has many"
    return f"{has_many}; matrices that have one: {', '.join(names)}"


NEEDS_SCALAR = "needs one learning rate for all coordinates"


def in_metric(argmin: Callable[..., Tensor]) -> Callable[..., Tensor]:
    """Check y and d, compute in float32 (in float64 if its range is too small), and return y's dtype.

    The function may write into y, which is a copy unless given as `scratch`. See also `solving`.
    """
    return _in_metric(argmin, writes_d=False)


def solving(argmin: Callable[..., Tensor]) -> Callable[..., Tensor]:
    """Return `in_metric` for a function that solves an equation. It may write into d, too.

    If the function takes `root`, that tensor holds the root of the last equation (initially zeros). The function
    replaces it by the new root. If it takes `sizes`, those are the sizes of y and d, or None if the host may not look.
    """
    return _in_metric(argmin, writes_d=True)


def _in_metric(argmin: Callable[..., Tensor], writes_d: bool) -> Callable[..., Tensor]:
    takes = {"root", "sizes"} & set(inspect.signature(argmin).parameters)

    @functools.wraps(argmin)
    @torch.no_grad()
    def checked(
        self: Any, y: Tensor, d: Tensor | float, root: Tensor | None = None, *, scratch: bool = False
    ) -> Tensor:
        metric = _metric_like(self, y, d)
        dtype = metric.dtype
        if y.numel() == 0:
            return y.clone()
        # On a GPU a look waits for the device. Of intervals, a coordinate that is not finite spoils no other one.
        unseen = torch.compiler.is_compiling() or (not self.waits and y.device.type != "cpu")
        wide, sizes = False, None
        if not unseen:
            sizes = sizes_of(y, metric)
            wide = not enough(self, y.dtype, sizes)
        if wide and sizes is not None:
            check_range(self, sizes)
            dtype = torch.float64
            if isinstance(self, ConvexSet):  # it asks for ratios alone
                metric = metric.double() / sizes.d_max
                sizes = Sizes(sizes.y, sizes.d_min / sizes.d_max, 1.0)
            metric = metric.double()
            if root is not None:  # that of these numbers may be beyond float32, in which it is kept
                root.zero_()
                root = None
        own = y if scratch and y.dtype == dtype else y.to(dtype, copy=True)
        if writes_d and metric is d and not (scratch and d.dim() > 0):
            metric = metric.clone()
        more = {"root": root, "sizes": sizes}
        solved = argmin(self, own, metric, **{name: more[name] for name in takes}).to(y.dtype)
        if wide and not bool(solved.isfinite().all()):
            raise ValueError(f"line 9 on {self} has a solution beyond the largest {y.dtype}: scale the problem down")
        return solved

    checked.takes_more = True  # type: ignore[attr-defined]
    return checked


def _metric_like(part: Any, y: Tensor, d: Tensor | float) -> Tensor:
    """d where y is, in the dtype for the solver."""
    if not y.is_floating_point():
        raise ValueError(f"y must be a real floating-point tensor, not {y.dtype}")
    dtype = torch.promote_types(y.dtype, torch.float32)
    if isinstance(d, Tensor) and d.dim() > 0:
        dtype = torch.promote_types(dtype, d.dtype)
    # Of a number, a fill and no copy from the host, which a CUDA graph cannot hold.
    metric = d.to(y.device, dtype) if isinstance(d, Tensor) else y.new_full((), d, dtype=dtype)
    if metric.shape not in ((), y.shape):
        raise ValueError(f"d must be a scalar or have the shape of y, {tuple(y.shape)}, not {tuple(metric.shape)}")
    if getattr(part, "scalar_metric", False) and metric.dim() > 0:
        raise ValueError(f"{type(part).__name__} {NEEDS_SCALAR}, so d must be a scalar")
    return metric


def vertex(lmo: Callable[..., Tensor]) -> Callable[..., Tensor]:
    """Check g, compute in float32 or float64, and return g's dtype."""

    @functools.wraps(lmo)
    @torch.no_grad()
    def checked(self: Any, g: Tensor) -> Tensor:
        if not g.is_floating_point():
            raise ValueError(f"g must be a real floating-point tensor, not {g.dtype}")
        if g.numel() == 0:
            return g.clone()
        if not torch.compiler.is_compiling() and g.device.type == "cpu" and not bool(g.isfinite().all()):
            raise ValueError("g must be finite")
        return lmo(self, g.to(torch.promote_types(g.dtype, torch.float32))).to(g.dtype)

    return checked


def by_slices(function: Callable[..., Tensor], dim: Dim, *tensors: Tensor) -> Tensor:
    """Apply to slices along `dim` a function whose slices are the last dimension."""
    x = tensors[0]
    axes = sorted({i % x.dim() for i in dims(x, dim)}) if x.dim() else []
    last = list(range(-len(axes), 0))
    moved = [t.movedim(axes, last) for t in tensors]
    shape = moved[0].shape
    flat = [t.reshape(*shape[: x.dim() - len(axes)], -1) for t in moved]
    return function(*flat).reshape(shape).movedim(last, axes)


def check_radius(r: float) -> None:
    check(0 <= r < math.inf, "r", r, "0 <= r < inf")


def check_finite(name: str, value: float | Tensor) -> None:
    check(bool(torch.as_tensor(value).isfinite().all()), name, value, "finite numbers")


def like(value: float | Tensor, y: Tensor) -> Tensor:
    """Return an option of a set, where y is: its dtype, device and shape."""
    value = value.to(y) if isinstance(value, Tensor) else y.new_full((), value)
    try:
        return value.expand_as(y)
    except RuntimeError:
        shapes = f"shape {tuple(value.shape)}, which does not broadcast to the parameter's {tuple(y.shape)}"
        raise ValueError(f"an option of the set has {shapes}") from None


def dims(y: Tensor, dim: Dim) -> tuple[int, ...]:
    """Return the dimensions to reduce over for one number per slice."""
    if dim is None:
        return tuple(range(y.dim()))
    return dim if isinstance(dim, tuple) else (dim,)


def slices_in_rows(x: Tensor, dim: Dim, *options: float | Tensor) -> bool:
    """Return whether each slice along `dim` lies within one x[i], and all x[i] have the same options."""
    return x.dim() > 1 and not any(isinstance(o, Tensor) for o in options) and all(i % x.dim() for i in dims(x, dim))


def slice_shape(x: Tensor, dim: Dim) -> torch.Size:
    """Return the shape of a tensor with one number for each slice."""
    reduced = {i % x.dim() for i in dims(x, dim)} if x.dim() else set()
    return torch.Size([1 if i in reduced else size for i, size in enumerate(x.shape)])


def largest(excess: Tensor) -> Tensor:
    """Return the largest element, or 0 if none is positive."""
    return excess.amax().clamp(min=0) if excess.numel() else excess.new_zeros(())


def relative(off: Tensor, size: Tensor) -> Tensor:
    """off / size, element by element; 0 where off is 0."""
    return torch.where(off > 0, off / size.clamp(min=1e-300), 0.0).to(torch.float64)


class Sizes(NamedTuple):
    """The largest |y|, and the least and largest d."""

    y: float
    d_min: float
    d_max: float


def sizes_of(y: Tensor, d: Tensor) -> Sizes:
    """Return the sizes of y and d. Raise an error if they are not finite."""
    # One look at all results: NaN fails every comparison. `aminmax` takes twice the time of `amin` and `amax`.
    sides = (y.amin(), y.amax(), *((d, d) if d.dim() == 0 else (d.amin(), d.amax())))
    y_min, y_max, d_min, d_max = torch.stack([side.to(d.dtype) for side in sides]).tolist()
    if not (d_min > 0 and d_max < math.inf):
        raise ValueError(f"d must be positive and finite; its least and largest are {d_min:g} and {d_max:g}")
    if not (-math.inf < y_min and y_max < math.inf):
        raise ValueError(f"y must be finite; its least and largest elements are {y_min:g} and {y_max:g}")
    return Sizes(max(-y_min, y_max), d_min, d_max)


def enough(part: Any, dtype: torch.dtype, sizes: Sizes) -> bool:
    """Return whether float32 is enough: no square, product or quotient in the solvers leaves its range.

    Otherwise the solvers run in float64, where they are correct for all float32 numbers. The result is then checked,
    because float16 may not be able to represent it.
    """
    (y, d_min, d_max), (least, most) = sizes, part.__dict__.get("_option_sizes") or _options(part)
    if dtype == torch.float16 or not (d_min >= 1e-15 and d_max <= 1e15 and most <= 1e9):
        return False
    ordinary = least >= 1e-9 and (y == 0 or 1e-12 <= y <= getattr(part, "reach", 1e9) * min(1.0, least))
    return part.separable or (ordinary and d_max <= 1e12 * d_min)


def unit_of(d: Tensor, sizes: Sizes | None) -> Tensor | float | None:
    """Return a divisor of d, its largest element, so that no sum overflows. None if its size is ordinary."""
    if sizes is None:
        return d.amax()
    return None if sizes.d_min >= 1e-9 and sizes.d_max <= 1e9 else sizes.d_max


def check_range(part: Any, sizes: Sizes) -> None:
    """Refuse numbers for which float64 is not enough. All float32 y and d pass."""
    (y, d_min, d_max), (least, most) = sizes, _options(part)
    ratio = part._kind == "constraint"
    d_fits = d_max <= 1e100 * d_min if ratio else d_min >= 1e-75 and d_max <= 1e75
    if not part.separable and not (max(y, most) <= 1e75 and least >= 1e-75 and d_fits):
        expected = "a ratio of at most 1e100 between those of d" if ratio else "d from 1e-75 to 1e75"
        raise ValueError(
            f"{part} solves line 9 for numbers of at most 1e75 in y, options from 1e-75 to 1e75, and {expected}; y has "
            f"up to {y:g}, the options {least:g} to {most:g}, d {d_min:g} to {d_max:g}: scale the problem"
        )


def _options(part: Any) -> tuple[float, float]:
    """Return the least and the largest size of a part's options, ignoring 0 and inf. Cached."""
    if "_option_sizes" not in part.__dict__:
        sizes = [float(v.abs().amax()) if isinstance(v, Tensor) else abs(v) for v in _numbers(part.spec())]
        counting = [size for size in sizes if 0 < size < math.inf] or [1.0]
        object.__setattr__(part, "_option_sizes", (min(counting), max(counting)))
    return cast(tuple[float, float], part.__dict__["_option_sizes"])


def _numbers(option: Any) -> Iterator[float | Tensor]:
    """Return the numbers and tensors in a part's spec, including nested parts."""
    if isinstance(option, dict):
        option = [value for name, value in option.items() if name not in ("dim", "group")]
    if isinstance(option, list | tuple):
        for value in option:
            yield from _numbers(value)
    elif isinstance(option, int | float | Tensor):
        yield option
