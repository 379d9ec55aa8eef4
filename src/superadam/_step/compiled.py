r"""`compile=True`: the lines that a piece of x goes through, as one kernel.

A kernel is made for each composition and each group of lines, from the same code that runs without it: the code is
traced once, on tensors of unknown length, and handed to torch's inductor. What changes from step to step (γ, and the
formulas of t) comes in as 0-d tensors, so a kernel is never made again.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any, cast

import torch
from torch import Tensor

from superadam._state.phases import PENDING
from superadam._step import tiles
from superadam._step.dispatch import Tiles
from superadam._step.tensors import Scalar, flattened, tracing
from superadam._step.view import Line, Sums, View, state_dtype

__all__ = ["Compiled"]

Formula = Callable[[Any, float], Any]
# What of a param group the lines look at.
OPTIONS = ("weight_decay", "decoupled_weight_decay", "maximize", "rounding")
EXAMPLE = 1 << 20  # a length at which more than one thread is worth while


def _example(t: Tensor) -> Tensor:
    # The tracer takes the value of a 0-d float64 tensor for a symbol of its own, unless it is none.
    return torch.full((EXAMPLE,) if t.dim() else (), 1.0 if t.dim() else math.nan, dtype=t.dtype, device=t.device)


class _Traced(View):
    """A view that is given the values of the formulas of t, in the order in which they are asked for."""

    values: Sequence[Tensor] | None
    formulas: list[tuple[Formula, int]]

    def at_step(self, formula: Formula, ahead: int = 0) -> Scalar:
        self.formulas.append((formula, ahead + self.late))
        return self.one if self.values is None else self.values[len(self.formulas) - 1]


class _Kernel:
    """One line for one composition. It takes x, the gradient, the buffers, the scalars, the values of the formulas of
    t, and γ."""

    def __init__(self, line: Line, view: View) -> None:
        self.line, self.has_grad, self.scalars = line, view.grads[0] is not None, list(view.scalars)
        self.group = {**{name: view.group[name] for name in OPTIONS}, "differentiable": False}
        self.parts, self.paired, self.held = view.parts, view.paired, view.names
        self.formulas: list[tuple[Formula, int]] = []
        example = [_example(t) for t in (*self.tensors(view, 0), *self.numbers(view))]
        gamma = torch.zeros((), dtype=state_dtype(view.params[0]), device=view.params[0].device)
        token = tracing.set(True)
        try:
            self.traced([t[:16].clone() if t.dim() else t for t in example], None, gamma, self.formulas)
            scalars = [_example(gamma) for _ in (*self.formulas, "gamma")]
            n = len(example)
            self.run = _compile(
                lambda *args: self.traced(args[:n], args[n:-1], args[-1], []),
                [*example, *scalars],
            )
        finally:
            tracing.reset(token)

    def traced(self, tensors: Sequence[Tensor], values: Sequence[Tensor] | None, gamma: Tensor, log: list[Any]) -> Sums:
        """The line, on other tensors; the formulas that it asks for go into the log."""
        rest = iter(tensors)
        params = [next(rest)]
        grads = [next(rest) if self.has_grad else None]
        state = {"step": 0, **{name: next(rest) for name in self.held}}
        scalars = {name: next(rest) for name in self.scalars}
        more = {"paired": self.paired, "values": values, "formulas": log}
        return self.line(_Traced(self.group, self.parts, params, grads, [state], scalars, **more).bound(), gamma)

    def tensors(self, view: View, i: int) -> list[Tensor]:
        grad, state = view.grads[i], view.states[i]
        of_i = [view.params[i], *(() if grad is None else (grad,)), *(state[name] for name in self.held)]
        return [t if t.dim() == 1 else flattened(t) for t in of_i]

    def numbers(self, view: View) -> list[Tensor]:
        return [view.scalars[name].to(view.params[0].device) for name in self.scalars]

    def weights(self, view: View, gamma: Scalar) -> list[Tensor]:
        """The values of the formulas, and γ."""
        weights = [*(view.at_step(formula, ahead) for formula, ahead in self.formulas), gamma]
        dtype, device = state_dtype(view.params[0]), view.params[0].device
        if any(isinstance(w, Tensor) for w in weights):
            return [torch.as_tensor(w, dtype=dtype, device=device) for w in weights]
        return list(torch.tensor(weights, dtype=dtype, device=device).unbind())


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
    # torch's cache of graphs does not take such a one, and says so; the compiled code is cached nevertheless.
    with config.patch(fx_graph_cache=False):
        return cast(Callable[..., Any], compile_fx(graph, inputs))


_kernels: dict[Any, _Kernel] = {}


def _call(line: Line, view: View, which: list[int], gamma: Scalar) -> list[int]:
    """`line(view, gamma)` for some of the parameters, by a kernel; for which of them there is one."""
    if not which:
        return []
    first = view.params[0]
    key = (
        line,
        view.parts,
        tuple(view.group[name] for name in OPTIONS),
        (view.paired, view.grads[0] is not None),
        (first.dtype, first.device),
        tuple(s.dtype for s in view.scalars.values()),  # that of other parameters which share the matrix
    )
    if key not in _kernels:
        _kernels[key] = _Kernel(line, view.part(which[:1]))
    kernel = _kernels[key]
    if kernel.run is None:
        return []
    common = [*kernel.numbers(view), *kernel.weights(view, gamma)]
    for i in which:
        kernel.run(*kernel.tensors(view, i), *common)
    return which


class Compiled(Tiles):
    """A kernel of our own for each line, for tensors that are not small; the others run as tiles."""

    name, rank = "compiled", 20

    def objection(self, view: View) -> str | None:
        if not view.group["compile"]:
            return "compile=False"
        if not tiles.elementwise(view, line_9=False):
            return "a part looks at more than one coordinate"
        return super().objection(view)

    def run(self, line: Line, view: View, gamma: Scalar, *, line_9: bool = True, reading: bool = False) -> list[Sums]:
        measured = view.matrix.scalars and not line_9  # torch's own sums are faster than those of the kernels
        # A first step, or one after a restart, has other weights.
        usual = not view.restarted and (
            view.paired or not view.estimator.two_point or view.states[0]["phase"] == PENDING
        )
        left = list(range(len(view.params)))
        if usual and not measured and tiles.elementwise(view, line_9=line_9):
            large = [i for i, x in enumerate(view.params) if x.numel() > tiles.SMALL and tiles.aligned(view, [i])]
            done = set(_call(line, view, large, gamma))
            left = [i for i in left if i not in done]
        return super().run(line, view.part(left), gamma, line_9=line_9, reading=reading) if left else []
