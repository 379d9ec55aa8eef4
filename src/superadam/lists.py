"""`TensorList`: arithmetic on lists of tensors, so that a formula reads as a formula.

The lines of Algorithm 1 are written with the operators and methods of `torch.Tensor`. A `TensorList` passes them to
torch's `_foreach_` functions, or to each tensor where torch has none.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

__all__ = ["Scalar", "TensorList", "add_scaled", "dot", "each", "mix", "norm2", "power", "real", "state_dtype"]

# A number, a 0-d tensor that must not leave the device, or a TensorList with a 0-d tensor for each tensor.
Scalar = float | Tensor


def real(x: Tensor) -> Tensor:
    """Return x, or the real view of a complex x."""
    return torch.view_as_real(x) if x.is_complex() else x


def state_dtype(x: Tensor) -> torch.dtype:
    """Return float64 for double precision, else float32: bfloat16 would lose a long average."""
    return torch.float64 if x.dtype in (torch.float64, torch.complex128) else torch.float32


class TensorList:
    """Several tensors with the element-wise methods of `torch.Tensor`.

    >>> x = TensorList([torch.tensor([1.0, 4.0]), torch.tensor(9.0)])
    >>> (x.sqrt() + 1) * x
    TensorList([tensor([ 2., 12.]), tensor(36.)])
    >>> _ = x.addcmul_(x, x, value=-1)
    >>> torch.maximum(x, x * 2)
    TensorList([tensor([  0., -12.]), tensor(-72.)])
    """

    __slots__ = ("tensors",)

    if TYPE_CHECKING:  # made below

        def _binary(self, other: Any) -> TensorList: ...
        def _unary(self) -> TensorList: ...

        __add__ = __radd__ = __sub__ = __mul__ = __rmul__ = __truediv__ = __pow__ = _binary
        __lt__ = __le__ = __gt__ = __ge__ = _binary
        __neg__ = __abs__ = _unary

    def __init__(self, tensors: Iterable[Tensor]) -> None:
        self.tensors = tensors if type(tensors) is list else list(tensors)

    def __len__(self) -> int:
        return len(self.tensors)

    def __iter__(self) -> Iterator[Tensor]:
        return iter(self.tensors)

    def __repr__(self) -> str:
        return f"TensorList({self.tensors})"

    def __bool__(self) -> bool:
        raise TypeError("a list of tensors is neither true nor false: compare numbers, or look at each of its tensors")

    def __getattr__(self, name: str) -> Callable[..., TensorList]:
        if name.startswith("__") or not callable(getattr(Tensor, name, None)):
            raise AttributeError(f"a list of tensors has no {name!r}: it has the element-wise methods of torch.Tensor")
        return lambda *args, **kwargs: _apply(name, (self, *args), kwargs)

    @classmethod
    def __torch_function__(
        cls,
        func: Callable[..., Any],
        types: Any,
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> TensorList:
        # A tensor's own operators (scalar * list) arrive here too, as Tensor.mul or Tensor.__rsub__.
        return _apply(func, args, kwargs or {})

    def __rsub__(self, other: Any) -> TensorList:
        return _apply("add", (_apply("neg", (self,)), other))

    def __rtruediv__(self, other: Any) -> TensorList:
        return _apply("mul", (_apply("reciprocal", (self,)), other))

    def __rpow__(self, other: Any) -> TensorList:
        return _apply(torch.pow, (other, self))


# The functions that take a 0-d tensor in place of a number. The others are mapped when they meet a tensor.
_TAKES_0D = {"mul", "mul_", "div", "div_"}


def name_of(func: Callable[..., Any]) -> str:
    """Return the name of a function; none to torch's compiler, which knows no names."""
    return "" if torch.compiler.is_compiling() else func.__name__


def _apply(func: str | Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any] | None = None) -> TensorList:
    """Apply func to the tensors of every TensorList in args, by a `_foreach_` function where torch has it."""
    kwargs = kwargs or {}
    name = func if isinstance(func, str) else name_of(func)
    plain, lists, tensors = [], [], False
    for a in args:
        if type(a) is TensorList:
            lists.append(a)
            plain.append(a.tensors)
        else:
            tensors = tensors or isinstance(a, Tensor)
            plain.append(a)
    for a in kwargs.values():
        tensors = tensors or isinstance(a, Tensor)
    n = len(lists[0].tensors)
    for a in lists:
        if len(a.tensors) != n:
            raise ValueError(f"{name} got lists of {', '.join(str(len(a)) for a in lists)} tensors")
    kernel = getattr(torch, f"_foreach_{name}", None)
    if kernel is not None and type(args[0]) is TensorList and not (tensors and name not in _TAKES_0D):
        out = kernel(*plain, **kwargs)
    else:
        one = getattr(Tensor, func) if isinstance(func, str) else func
        columns = [p if type(a) is TensorList else [a] * n for a, p in zip(args, plain, strict=True)]
        out = [one(*row, **kwargs) for row in zip(*columns, strict=True)]
    if name.endswith("_") and not name.endswith("__"):
        return lists[0]
    found = TensorList.__new__(TensorList)
    found.tensors = list(out)
    return found


def _method(name: str) -> Callable[..., TensorList]:
    return lambda self, *args, **kwargs: _apply(name, (self, *args), kwargs)


_OPERATORS = {
    "__add__": "add", "__sub__": "sub", "__mul__": "mul", "__truediv__": "div", "__pow__": "pow",
    "__radd__": "add", "__rmul__": "mul", "__neg__": "neg", "__abs__": "abs",
    "__iadd__": "add_", "__isub__": "sub_", "__imul__": "mul_", "__itruediv__": "div_",
    "__eq__": "eq", "__ne__": "ne", "__lt__": "lt", "__le__": "le", "__gt__": "gt", "__ge__": "ge",
}  # fmt: skip
# The methods that steps use most. `__getattr__` finds the others.
_METHODS = (
    "add_",
    "sub_",
    "mul_",
    "div_",
    "lerp_",
    "addcmul_",
    "addcdiv_",
    "copy_",
    "sqrt",
    "square",
    "abs",
    "sign_",
    "clamp_",
    "clamp_min_",
    "lerp",
    "neg",
)
for _name, _operation in (*_OPERATORS.items(), *zip(_METHODS, _METHODS, strict=True)):
    setattr(TensorList, _name, _method(_operation))


def each(value: Tensor) -> Iterable[Tensor]:
    """Return the tensors of a list, or the tensor in a list."""
    return value if isinstance(value, TensorList) else [value]


def dot(x: Tensor, y: Tensor) -> Tensor:
    """Return ⟨x, y⟩ over all coordinates, as a 0-d tensor on the device of x.

    >>> dot(torch.tensor([1.0, 2.0]), torch.tensor([3.0, 4.0]))
    tensor(11.)
    """
    if isinstance(x, TensorList):
        return torch.stack([a.sum() for a in x * y]).sum()
    return (x * y).sum()


def norm2(x: Tensor) -> Tensor:
    """Return ‖x‖² over all coordinates, as a 0-d tensor on the device of x.

    >>> norm2(torch.tensor([3.0, 4.0]))
    tensor(25.)
    """
    if isinstance(x, TensorList):
        x = torch.stack(torch._foreach_norm(x.tensors))
    norm: Tensor = torch.linalg.vector_norm(x)
    return norm.square()


def add_scaled(x: Tensor, y: Tensor, a: Scalar) -> None:
    """Add a y to x in place. torch's own `alpha=` takes no tensor."""
    if isinstance(a, Tensor | TensorList):
        x.add_(y * a)
    else:
        x.add_(y, alpha=a)


def mix(x: Tensor, y: Tensor, weight: Scalar) -> None:
    """Set x to (1 - weight) x + weight y in place."""
    x.lerp_(y, weight)


def power(x: Tensor, p: float) -> Tensor:
    """Return xᵖ, by square roots if p is 1, 1/2, 1/4 or so on: that is ten times as fast.

    >>> power(torch.tensor([0.0, 16.0]), 1 / 4), power(torch.tensor([0.0, 256.0]), 1 / 8)
    (tensor([0., 2.]), tensor([0., 2.]))
    """
    mantissa, exponent = math.frexp(p)
    if mantissa != 0.5 or p > 1:
        return x**p
    roots = 1 - exponent
    for _ in range(roots // 2):
        x = x.rsqrt().rsqrt_()  # two roots: MKL's sqrt takes longer
    return x.sqrt() if roots % 2 else x
