"""`TensorList`: arithmetic on lists of tensors, so that the maths of the other modules reads as maths.

The lines of Algorithm 1 are written once, with the operators and methods of `torch.Tensor`. They run on a tensor, or on
a `TensorList`, which passes them to the `torch._foreach_*` kernels. Code for both says `Tensor` in its annotations. It
uses element-wise operations only, and the reductions `dot` and `norm2` of this module.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator
from contextvars import ContextVar
from typing import Any, cast

import torch
from torch import Tensor

__all__ = [
    "Scalar",
    "TensorList",
    "add_scaled",
    "clip",
    "compiled_step",
    "dot",
    "each",
    "flattened",
    "gamma_of",
    "join",
    "mix",
    "norm2",
    "over",
    "plus",
    "power",
    "real",
    "state_dtype",
    "tracing",
]

# Whether a kernel is being made: operations are traced, and no value may be looked at.
tracing: ContextVar[bool] = ContextVar("tracing", default=False)
# Whether torch.compile has compiled the step that is being taken: kernels are wanted, as with compile=True.
compiled_step: ContextVar[bool] = ContextVar("compiled_step", default=False)

# A number, or a 0-d tensor that must not leave the device, or a TensorList of these.
Scalar = float | Tensor


def real(x: Tensor) -> Tensor:
    """x itself, or the real view of a complex x."""
    return torch.view_as_real(x) if x.is_complex() else x


def state_dtype(x: Tensor) -> torch.dtype:
    """The dtype of the state of x: float64 for double precision, else float32. bfloat16 would lose a long average."""
    return torch.float64 if x.dtype in (torch.float64, torch.complex128) else torch.float32


def gamma_of(group: dict[str, Any]) -> Scalar:
    """γ of a param group: a number, or a tensor where a number would need a synchronisation with the device."""
    lr = group["lr"]
    if not isinstance(lr, Tensor):
        return cast(float, lr)
    on_host = lr.device.type == "cpu" and not group["capturable"] and not lr.requires_grad
    return float(lr) if on_host else lr.reshape(())


class TensorList:
    """Several tensors that behave as one, with all element-wise methods of `torch.Tensor`.

    A method uses its `torch._foreach_*` kernel if there is one, and is mapped over the tensors otherwise.

    >>> x = TensorList([torch.tensor([1.0, 4.0]), torch.tensor(9.0)])
    >>> (x.sqrt() + 1) * x
    TensorList([tensor([ 2., 12.]), tensor(36.)])
    >>> _ = x.addcmul_(x, x, value=-1)
    >>> torch.maximum(x, x * 2)
    TensorList([tensor([  0., -12.]), tensor(-72.)])
    """

    __slots__ = ("tensors",)

    def __init__(self, tensors: Iterable[Tensor]) -> None:
        self.tensors = list(tensors)

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


def join(tensors: list[Tensor]) -> Tensor:
    """Several tensors as one."""
    return tensors[0] if len(tensors) == 1 else cast(Tensor, TensorList(tensors))


def each(value: Tensor) -> Iterable[Tensor]:
    """The tensors of a list, or the one tensor."""
    return value if isinstance(value, TensorList) else [value]


# The kernels that take a 0-d tensor in place of a number. The others are mapped when they meet one.
_TAKES_0D = {"mul", "mul_", "div", "div_"}


def _apply(func: str | Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any] | None = None) -> TensorList:
    """func over the tensors of every TensorList in args, by a foreach kernel if there is one."""
    kwargs = kwargs or {}
    name = func if isinstance(func, str) else func.__name__
    plain, lists, tensors = [], [], bool(kwargs) and any([isinstance(a, Tensor) for a in kwargs.values()])
    for a in args:
        if type(a) is TensorList:
            lists.append(a)
            plain.append(a.tensors)
        else:
            tensors = tensors or isinstance(a, Tensor)
            plain.append(a)
    n = len(lists[0].tensors)
    for a in lists:
        if len(a.tensors) != n:
            raise ValueError(f"{name} got lists of {', '.join(str(len(a)) for a in lists)} tensors")
    kernel = getattr(torch, f"_foreach_{name}", None)
    broadcasts = tensors and name not in _TAKES_0D
    # some kernels have no derivative
    if kernel is not None and type(args[0]) is TensorList and not broadcasts and not torch.is_grad_enabled():
        out = kernel(*plain, **kwargs)
    else:
        one = getattr(Tensor, func) if isinstance(func, str) else func
        columns = [p if type(a) is TensorList else [a] * n for a, p in zip(args, plain, strict=True)]
        out = [one(*row, **kwargs) for row in zip(*columns, strict=True)]
    return lists[0] if name.endswith("_") and not name.endswith("__") else TensorList(out)


def _method(name: str) -> Callable[..., TensorList]:
    return lambda self, *args, **kwargs: _apply(name, (self, *args), kwargs)


_OPERATORS = {
    "__add__": "add", "__sub__": "sub", "__mul__": "mul", "__truediv__": "div", "__pow__": "pow",
    "__radd__": "add", "__rmul__": "mul", "__neg__": "neg", "__abs__": "abs",
    "__iadd__": "add_", "__isub__": "sub_", "__imul__": "mul_", "__itruediv__": "div_",
    "__eq__": "eq", "__ne__": "ne", "__lt__": "lt", "__le__": "le", "__gt__": "gt", "__ge__": "ge",
}  # fmt: skip
# The methods that steps use most. `__getattr__` finds the others.
_METHODS = ("add_", "sub_", "mul_", "div_", "lerp_", "addcmul_", "addcdiv_", "copy_", "sqrt", "square", "abs")
for _name, _operation in (*_OPERATORS.items(), *zip(_METHODS, _METHODS, strict=True)):
    setattr(TensorList, _name, _method(_operation))


def dot(x: Tensor, y: Tensor) -> Tensor:
    """⟨x, y⟩ over all coordinates, as a 0-d tensor on the device of x.

    >>> dot(torch.tensor([1.0, 2.0]), torch.tensor([3.0, 4.0]))
    tensor(11.)
    """
    if isinstance(x, TensorList):
        return torch.stack([a.sum() for a in x * y]).sum()
    return (x * y).sum()


def norm2(x: Tensor) -> Tensor:
    """‖x‖² over all coordinates, as a 0-d tensor on the device of x.

    >>> norm2(torch.tensor([3.0, 4.0]))
    tensor(25.)
    """
    if isinstance(x, TensorList):
        x = torch.stack(torch._foreach_norm(x.tensors))
    norm: Tensor = torch.linalg.vector_norm(x)
    return norm.square()


def add_scaled(x: Tensor, y: Tensor, a: Scalar) -> None:
    """x += a y. torch's own `alpha=` takes no tensor."""
    if isinstance(a, Tensor | TensorList):
        x.add_(y * a)
    else:
        x.add_(y, alpha=a)


def mix(x: Tensor, y: Tensor, weight: Scalar) -> None:
    """x ← (1 - weight) x + weight y."""
    if tracing.get():  # lerp has two formulas, and a kernel would compute both
        add_scaled(x, y - x, weight)
    else:
        x.lerp_(y, weight)


def plus(x: Tensor, a: float) -> Tensor:
    """x + a, in place of an x that nobody else needs, unless autograd may have saved it."""
    return x + a if torch.is_grad_enabled() else x.add_(a)


def over(x: Tensor, a: Scalar) -> Tensor:
    """x / a, in place as `plus`."""
    return x / a if torch.is_grad_enabled() else x.div_(a)


def power(x: Tensor, p: float) -> Tensor:
    """xᵖ, by square roots if p is 1, 1/2, 1/4 or so on: that is ten times as fast.

    >>> power(torch.tensor([0.0, 16.0]), 1 / 4), power(torch.tensor([0.0, 256.0]), 1 / 8)
    (tensor([0., 2.]), tensor([0., 2.]))
    """
    mantissa, exponent = math.frexp(p)
    if mantissa != 0.5 or p > 1:
        return x**p
    roots = 1 - exponent
    if not tracing.get() and not torch.is_grad_enabled():
        for _ in range(roots // 2):
            x = x.rsqrt().rsqrt_()  # two roots; MKL's sqrt takes longer (scripts/step_profile.py)
        roots %= 2
    for _ in range(roots):
        x = x.sqrt()
    return x


def clip(x: Tensor, low: Scalar, high: Scalar) -> Tensor:
    """x, kept between two bounds, in place as `plus`."""
    if isinstance(low, float) and isinstance(high, float):
        return x.clamp(low, high) if torch.is_grad_enabled() else x.clamp_(low, high)
    return torch.minimum(torch.maximum(x, cast(Tensor, low)), cast(Tensor, high))


def flattened(x: Tensor) -> Tensor:
    """x as a vector, without a copy: the coordinates in the order in which they lie in memory."""
    if not x.is_contiguous():
        return x.as_strided((x.numel(),), (1,))
    return x if x.dim() == 1 else x.view(-1)
