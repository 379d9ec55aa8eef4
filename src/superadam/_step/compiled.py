r"""`compile=True`: the lines that a piece of x goes through, as one kernel.

A kernel is made for each composition and each group of lines, from the same code that runs without it. The code is
traced once, on tensors of unknown length, and given to torch's inductor, which writes C++ for a CPU and Triton for a
GPU. γ and the formulas of t are 0-d tensors, so a kernel is made only once.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any, ClassVar, cast

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from superadam._state.phases import PENDING
from superadam._step import tiles
from superadam._step.dispatch import LISTS, TILES, Tiles, Way, aligned, compiles
from superadam._step.layout import facts
from superadam._step.view import Line, Sums, View
from superadam.lists import Scalar, TensorList, each, flattened, state_dtype, tracing

__all__ = ["Compiled"]

Formula = Callable[[Any, float], Any] | str  # of t and τ, or the name of a number of the iterate
# The options that the lines look at.
OPTIONS = ("weight_decay", "decoupled_weight_decay", "maximize", "rounding")
EXAMPLE = 1 << 20  # a length for which inductor uses several threads


def _example(t: Tensor, length: int = EXAMPLE) -> Tensor:
    if t.dim():
        return torch.ones(length, dtype=t.dtype, device=t.device)
    # NaN: of any other value of a 0-d float64 tensor the tracer makes a symbol. The second of two: a kernel that a GPU
    # has for scalars at the start of their memory takes copies of those that lie elsewhere.
    return torch.full((2,), math.nan, dtype=t.dtype, device=t.device).unbind()[1]


class _Traced(View):
    """A view that gets the values of the formulas of t from a list, in the order in which they are asked for."""

    values: Sequence[Tensor] | None
    formulas: list[tuple[Formula, int]]

    def at_step(self, formula: Formula, ahead: int = 0) -> Scalar:
        self.formulas.append((formula, ahead + self.late))
        return self.one if self.values is None else self.values[len(self.formulas) - 1]

    def number(self, name: str) -> Scalar:
        return self.at_step(name)


class _Uses(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Finds out whether operations read or write a tensor."""

    def __init__(self, tensor: Tensor) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.tensor, self.found = tensor, False

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.found |= any(leaf is self.tensor for leaf in tree_leaves((args, kwargs)))
        return func(*args, **(kwargs or {}))


class _Kernel:
    """One line for one composition: a function of x, gradient, buffers, scalars, values of the formulas of t, and γ."""

    def __init__(self, line: Line, view: View) -> None:
        self.line, self.has_grad, self.scalars = line, view.grads[0] is not None, list(view.scalars)
        self.group = {**{name: view.group[name] for name in OPTIONS}, "differentiable": False}
        self.parts, self.paired, self.held = view.parts, view.paired, view.names
        self.formulas: list[tuple[Formula, int]] = []
        tensors = [*self.tensors(view, 0), *self.numbers(view)]
        gamma = torch.zeros((), dtype=state_dtype(view.params[0]), device=view.params[0].device)
        token = tracing.set(True)
        try:
            short = [_example(t, 16) for t in tensors]
            with _Uses(short[0]) as of_x:
                self.traced(short, None, gamma, self.formulas)
            self.uses_x = of_x.found
            scalars, n = [gamma for _ in (*self.formulas, "gamma")], len(tensors)
            self.run = _compile(
                lambda *args: self.traced(args[:n], args[n:-1], args[-1], []),
                [_example(t) for t in (*tensors, *scalars)],
            )
        finally:
            tracing.reset(token)

    def traced(self, tensors: Sequence[Tensor], values: Sequence[Tensor] | None, gamma: Tensor, log: list[Any]) -> Sums:
        """Run the line on these tensors. The formulas that it asks for are appended to `log`."""
        rest = iter(tensors)
        params = [next(rest)]
        grads = [next(rest) if self.has_grad else None]
        state = {"step": 0, **{name: next(rest) for name in self.held}}
        scalars = {name: next(rest) for name in self.scalars}
        batch = {"paired": self.paired, "values": values, "formulas": log}
        s = _Traced(facts(self.group, self.parts, params), params, grads, [state], scalars, **batch)
        return self.line(s.bound(), gamma)

    def tensors(self, view: View, i: int) -> list[Tensor]:
        grad, state = view.grads[i], view.states[i]
        of_i = [view.params[i], *(() if grad is None else (grad,)), *(state[name] for name in self.held)]
        return [flattened(t) for t in of_i]

    def run_end_to_end(self, view: View, numbers: Sequence[Tensor]) -> list[int]:
        """Run it on all small tensors, in one call for each lot. Return those."""
        done: list[int] = []
        run = cast(Callable[..., Any], self.run)
        for which, sizes, vectors in view.layout.end_to_end:
            params = [flattened(view.params[i]) for i in which]
            # Where x is not used, only its length is.
            x = torch.cat(params) if self.uses_x else next(iter(vectors.values()))
            grad = [torch.cat([flattened(cast(Tensor, view.grads[i])) for i in which])] if self.has_grad else []
            run(x, *grad, *vectors.values(), *numbers)
            if self.uses_x:
                torch.split_with_sizes_copy(x, sizes, out=params)
            done += which
        return done

    def numbers(self, view: View) -> list[Tensor]:
        return [view.scalars[name].to(view.params[0].device) for name in self.scalars]

    def weights(self, view: View, gamma: Scalar) -> list[Sequence[Tensor]]:
        """For each parameter, the values of the formulas, and γ."""
        numbers = (view.number(f) if isinstance(f, str) else view.at_step(f, ahead) for f, ahead in self.formulas)
        weights, n = [*numbers, gamma], len(view.params)
        dtype, device = state_dtype(view.params[0]), view.params[0].device
        if not any(isinstance(w, Tensor | TensorList) for w in weights):
            # `torch.tensor(…, device=device)` would wait for the device.
            return [torch.tensor(weights, dtype=dtype).to(device, non_blocking=True).unbind()] * n

        def column(weight: Scalar) -> list[Tensor]:
            if isinstance(weight, Tensor | TensorList):
                return [w.to(device, dtype, non_blocking=True) for w in each(weight)]
            return [torch.full((), weight, dtype=dtype, device=device)]  # a CUDA graph holds no copy from the host

        columns = [column(weight) for weight in weights]
        if all(len(there) == 1 for there in columns):
            return [[there[0] for there in columns]] * n
        return list(zip(*(there if len(there) == n else there * n for there in columns), strict=True))


def _compile(function: Callable[..., Sums], example: list[Tensor]) -> Callable[..., Any] | None:
    """A kernel for tensors of any length, from a function that need not be known to torch.compile.

    None if the function asks for the length, so that a kernel would be for one length alone.
    """
    from torch._inductor import config  # takes seconds to import
    from torch._inductor.compile_fx import compile_fx
    from torch.fx.experimental.proxy_tensor import make_fx

    graph = make_fx(function, tracing_mode="symbolic")(*example)
    inputs = [node.meta["val"] for node in graph.graph.nodes if node.op == "placeholder"]
    if any(n.node.maybe_as_int() is not None for t in inputs for n in t.shape):
        return None
    if example[0].device.type != "cpu":
        torch._check(inputs[0].shape[0] % tiles.MULTIPLE == 0)  # type: ignore[no-untyped-call]
    # torch's cache of graphs would refuse this one, with a message. The compiled code is cached all the same.
    with config.patch(fx_graph_cache=False):
        return cast(Callable[..., Any], compile_fx(graph, inputs))


_kernels: dict[Any, _Kernel] = {}


def _call(line: Line, view: View, which: list[int], gamma: Scalar, *, small: bool) -> list[int]:
    """Run `line(view, gamma)` on some of the parameters by a kernel, and on all that are `small` if it can.

    Return those that it ran on: none if there is no kernel.
    """
    if not which:
        return []
    first = view.params[0]
    key = (
        line,
        view.parts,
        tuple(view.group[name] for name in OPTIONS),
        (view.paired, view.grads[0] is not None),
        (first.dtype, first.device),
        tuple(s.dtype for s in view.scalars.values()),  # may be that of other parameters with the same matrix
    )
    if key not in _kernels:
        _kernels[key] = _Kernel(line, view.some(which[:1]))
    kernel = _kernels[key]
    if kernel.run is None:
        return []
    numbers, weights = kernel.numbers(view), kernel.weights(view, gamma)
    # All arguments first: a kernel empties the cache, and Python is slow until its own data are back.
    calls = [(*kernel.tensors(view, i), *numbers, *weights[i]) for i in which]
    alike = weights[0] is weights[-1]
    done = kernel.run_end_to_end(view, [*numbers, *weights[0]]) if small and alike else []
    for args in calls:
        kernel.run(*args)
    return [*which, *done]


class Compiled(Tiles):
    """A kernel of our own for each line. On a CPU it takes the small tensors in one call; elsewhere they are a list."""

    name, rank = "compiled", 20
    devices: ClassVar[set[str]] = {"cpu", "cuda"}
    whole: ClassVar[tuple[str, ...]] = ("differentiable", "foreach")

    def objection(self, view: View) -> str | None:
        if not compiles(view):
            return "compile=False"
        if any(part is not None and part.on_host for part in view.parts):
            return "a part decides by the step count on the host"
        if not view.layout.elementwise[False]:
            return "a part looks at more than one coordinate"
        if view.estimator.blends and view.group["clip"] is not None:
            return "clip changes the newest gradient between two kernels"
        return super().objection(view) or (None if view.layout.large else "all tensors are small")

    def remark(self, view: View) -> str | None:
        small = tiles.lots_of_small(view) if self._of_others(view) is TILES else []
        others = len(view.params) - len(view.layout.large) - sum(map(len, small))
        return f"{others} of them by {self._of_others(view).name}: small, or laid out otherwise" if others else None

    def _of_others(self, view: View) -> Way:
        return LISTS if view.group["capturable"] or view.params[0].device.type != "cpu" else TILES

    def run(self, line: Line, view: View, gamma: Scalar, *, line_9: bool = True, reading: bool = False) -> list[Sums]:
        measured = view.parts.scalars and not line_9  # torch's own sums are faster than those of the kernels
        # A first step, and one after a restart, have other weights.
        usual = not view.restarted and (
            view.paired or not view.estimator.two_point or view.states[0]["phase"] == PENDING
        )
        done: list[int] = []
        if usual and not measured and view.layout.elementwise[line_9]:
            large, alike = view.layout.large, aligned(view)
            if not alike:
                large = [i for i in large if tiles.aligned(view, [i])]
            done = _call(line, view, large, gamma, small=alike and self._of_others(view) is TILES)
        if len(done) == len(view.params):
            return []
        left = sorted({*range(len(view.params))} - {*done})
        return self._of_others(view).run(line, view.some(left), gamma, line_9=line_9, reading=reading)
