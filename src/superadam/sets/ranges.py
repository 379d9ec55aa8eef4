"""The sizes of y and d in line 9: whether float32 is enough for a solver, or float64."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any, NamedTuple, cast

import torch
from torch import Tensor

__all__ = ["Sizes", "check_range", "enough", "sizes_of", "unit_of"]


class Sizes(NamedTuple):
    """The largest |y|, and the least and largest d."""

    y: float
    d_min: float
    d_max: float


def sizes_of(y: Tensor, d: Tensor) -> Sizes:
    """Of y and d. Raises an error if they are not finite."""
    # One look at all results: NaN fails every comparison. `aminmax` takes twice the time of `amin` and `amax`.
    sides = (y.amin(), y.amax(), *((d, d) if d.dim() == 0 else (d.amin(), d.amax())))
    y_min, y_max, d_min, d_max = torch.stack([side.to(d.dtype) for side in sides]).tolist()
    if not (d_min > 0 and d_max < math.inf):
        raise ValueError(f"d must be positive and finite; its least and largest are {d_min:g} and {d_max:g}")
    if not (-math.inf < y_min and y_max < math.inf):
        raise ValueError(f"y must be finite; its least and largest elements are {y_min:g} and {y_max:g}")
    return Sizes(max(-y_min, y_max), d_min, d_max)


def enough(part: Any, dtype: torch.dtype, sizes: Sizes) -> bool:
    """Whether float32 is enough: no square, product or quotient in the solvers leaves its range.

    Otherwise the solvers run in float64, where they are correct for all float32 numbers. The result is then checked,
    because float16 may not be able to represent it.
    """
    (y, d_min, d_max), (least, most) = sizes, _options(part)
    if dtype == torch.float16 or not (d_min >= 1e-15 and d_max <= 1e15 and most <= 1e9):
        return False
    ordinary = least >= 1e-9 and (y == 0 or 1e-12 <= y <= getattr(part, "reach", 1e9) * min(1.0, least))
    return part.separable or (ordinary and d_max <= 1e12 * d_min)


def unit_of(d: Tensor, sizes: Sizes | None) -> Tensor | float | None:
    """What d is divided by, so that no sum overflows: its largest element. None if its size is ordinary."""
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
    """The least and the largest size of a part's options, ignoring 0 and inf. Cached."""
    if "_option_sizes" not in part.__dict__:
        sizes = [float(v.abs().amax()) if isinstance(v, Tensor) else abs(v) for v in _numbers(part.spec())]
        counting = [size for size in sizes if 0 < size < math.inf] or [1.0]
        object.__setattr__(part, "_option_sizes", (min(counting), max(counting)))
    return cast(tuple[float, float], part.__dict__["_option_sizes"])


def _numbers(option: Any) -> Iterator[float | Tensor]:
    """The numbers and tensors in a part's spec, including nested parts."""
    if isinstance(option, dict):
        option = [value for name, value in option.items() if name not in ("dim", "group")]
    if isinstance(option, list | tuple):
        for value in option:
            yield from _numbers(value)
    elif isinstance(option, int | float | Tensor):
        yield option
