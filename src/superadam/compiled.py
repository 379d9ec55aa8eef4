r"""`compile=True`: the lines that a piece of x goes through, as one kernel.

A kernel is made for each composition and each group of lines, from the same code that runs without it: the code is
traced once, on tensors of unknown length, and handed to torch's inductor. What changes from step to step (γ, and the
formulas of t) comes in as 0-d tensors, so a kernel is never made again.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Sequence
from typing import Any, TypeVar, cast

import torch
from torch import Tensor

from superadam.chunks import Chunk, Line, Sums, state_dtype
from superadam.tensors import Scalar, flattened, tracing

__all__ = ["call", "eagerly"]

Method = TypeVar("Method", bound=Callable[..., Any])


def eagerly(method: Method) -> Method:
    """Let torch.compile, of a method or of a function that calls it, leave the method as it is.

    A step chooses kernels itself, and torch's fused ones cannot be traced.
    """

    @functools.wraps(method)
    def call(*args: Any, **options: Any) -> Any:
        if torch.compiler.is_compiling():
            return torch.compiler.disable(method)(*args, **options)  # type: ignore[no-untyped-call]
        return method(*args, **options)

    return cast(Method, call)


Formula = Callable[[Any, float], Any]
# What of a param group the lines look at.
OPTIONS = ("weight_decay", "decoupled_weight_decay", "maximize", "rounding")
EXAMPLE = 1 << 20  # a length at which more than one thread is worth while


def _example(t: Tensor) -> Tensor:
    # The tracer takes the value of a 0-d float64 tensor for a symbol of its own, unless it is none.
    return torch.full((EXAMPLE,) if t.dim() else (), 1.0 if t.dim() else math.nan, dtype=t.dtype, device=t.device)


class _Traced(Chunk):
    """A chunk that is given the values of the formulas of t, in the order in which they are asked for."""

    values: Sequence[Tensor] | None
    formulas: list[tuple[Formula, int]]

    def at_step(self, formula: Formula, ahead: int = 0) -> Scalar:
        self.formulas.append((formula, ahead + self.late))
        return self.one if self.values is None else self.values[len(self.formulas) - 1]


class _Kernel:
    """One line for one composition. It takes x, the gradient, the buffers, the scalars, the values of the formulas of
    t, and γ."""

    def __init__(self, line: Line, c: Chunk) -> None:
        self.line, self.has_grad, self.scalars = line, c.has_grad, list(c.scalars)
        self.group = {**{name: c.group[name] for name in OPTIONS}, "differentiable": False}
        self.parts = {n: getattr(c, n) for n in ("estimator", "matrix", "schedule", "constraint", "penalty")}
        self.flags = {name: True for name in ("paired", "restarted") if name in c.states[0]}
        self.held = [name for name in c.names if name in c.states[0]]
        self.formulas: list[tuple[Formula, int]] = []
        example = [_example(t) for t in (*self.tensors(c, 0), *self.numbers(c))]
        gamma = torch.zeros((), dtype=state_dtype(c.params[0]), device=c.params[0].device)
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
        chunk = _Traced(
            group=self.group,
            params=[next(rest)],
            grads=[next(rest) if self.has_grad else None],
            states=[{"step": 0, **self.flags, **{name: next(rest) for name in self.held}}],
            scalars={name: next(rest) for name in self.scalars},
            values=values,
            formulas=log,
            **self.parts,
        )
        return self.line(chunk, gamma)

    def tensors(self, c: Chunk, i: int) -> list[Tensor]:
        grad, state = c.grads[i], c.states[i]
        of_i = [c.params[i], *(() if grad is None else (grad,)), *(state[name] for name in self.held)]
        return [t if t.dim() == 1 else flattened(t) for t in of_i]

    def numbers(self, c: Chunk) -> list[Tensor]:
        return [getattr(c, name) for name in self.scalars]

    def weights(self, c: Chunk, gamma: Scalar) -> list[Tensor]:
        """The values of the formulas, and γ."""
        weights = [*(c.at_step(formula, ahead) for formula, ahead in self.formulas), gamma]
        dtype, device = state_dtype(c.params[0]), c.params[0].device
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


def call(line: Line, c: Chunk, which: list[int], gamma: Scalar) -> list[int]:
    """`line(c, gamma)` for some of the parameters, by a kernel; for which of them there is one."""
    if not which:
        return []
    first = c.params[0]
    key = (
        line,
        (c.estimator, c.matrix, c.schedule, c.constraint, c.penalty),
        tuple(c.group[name] for name in OPTIONS),
        ("paired" in c.states[0], "restarted" in c.states[0], c.has_grad),
        (first.dtype, first.device),
        tuple(s.dtype for s in c.scalars.values()),  # that of other parameters which share the matrix
    )
    if key not in _kernels:
        _kernels[key] = _Kernel(line, c.part(which[:1]))
    kernel = _kernels[key]
    if kernel.run is None:
        return []
    common = [*kernel.numbers(c), *kernel.weights(c, gamma)]
    for i in which:
        kernel.run(*kernel.tensors(c, i), *common)
    return which
