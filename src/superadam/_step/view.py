"""Some of the parameters, updated together, as the maths sees them.

A chunk is one parameter, or all parameters of a group that are alike (device, dtype, step count, …) as one
`TensorList`. Complex parameters appear as their real views; low-precision ones keep their state in float32.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, cast

import torch
from torch import Tensor

from superadam._state.sharding import Sharding, local, over_ranks, sharding
from superadam._step.tensors import Scalar, TensorList
from superadam.estimators import Estimator
from superadam.matrices import Matrix
from superadam.penalties import Penalty
from superadam.schedules import Schedule
from superadam.sets import ConvexSet

__all__ = ["Chunk", "Line", "Scalars", "Sums", "decoupled_decay", "real", "state_dtype"]


def real(x: Tensor) -> Tensor:
    """x itself, or the real view of a complex x."""
    return torch.view_as_real(x) if x.is_complex() else x


def state_dtype(x: Tensor) -> torch.dtype:
    """float64 for double precision, float32 for all others: bfloat16 cannot hold an average over a thousand steps."""
    return torch.float64 if x.dtype in (torch.float64, torch.complex128) else torch.float32


class Scalars:
    """0-d tensors by name. An assignment is written into the tensor, which all parameters share."""

    def __init__(self, tensors: dict[str, Tensor], *, rebind: bool = False) -> None:
        self.__dict__.update(tensors=tensors, rebind=rebind)

    def __getattr__(self, name: str) -> Tensor:
        try:
            return cast(Tensor, self.__dict__["tensors"][name])
        except KeyError:
            raise AttributeError(f"no scalar named {name!r}") from None

    def __setattr__(self, name: str, value: Tensor) -> None:
        if self.__dict__["rebind"]:  # autograd may have saved the tensor that was there
            self.__dict__["tensors"][name] = value.clone()
        elif value is not getattr(self, name):
            getattr(self, name).copy_(value)


class Chunk:
    """The coordinates of x held by `params`, their state, and the weights of this step.

    `c.v` is the buffer v of these parameters, or a scalar of their matrix; `c.v = …` writes into it.
    """

    group: dict[str, Any]
    params: list[Tensor]
    grads: list[Tensor | None]
    states: list[dict[str, Any]]
    scalars: dict[str, Tensor]
    estimator: Estimator
    matrix: Matrix
    schedule: Schedule
    constraint: ConvexSet | None
    penalty: Penalty | None

    late = 0
    """How many steps the step count of these parameters is behind."""

    def __init__(self, **fields: Any) -> None:
        self.__dict__.update(fields)

    @classmethod
    def merged(cls, chunks: list[Chunk]) -> Chunk:
        """Chunks that share their matrix as one."""
        return chunks[0].replaced(
            params=[p for c in chunks for p in c.params],
            grads=[grad for c in chunks for grad in c.grads],
            states=[state for c in chunks for state in c.states],
        )

    def replaced(self, **fields: Any) -> Chunk:
        """This chunk with other params, grads or states."""
        own = ("group", "scalars", "estimator", "matrix", "schedule", "constraint", "penalty")
        return Chunk(**{name: self.__dict__[name] for name in own}, **fields)

    def part(self, which: list[int]) -> Chunk:
        """Some of the parameters."""
        return self.replaced(
            params=[self.params[i] for i in which],
            grads=[self.grads[i] for i in which],
            states=[self.states[i] for i in which],
        )

    @property
    def names(self) -> tuple[str, ...]:
        """The buffers, by name."""
        return (*self.estimator.buffers, *self.matrix.buffers)

    def all(self, name: str) -> list[Tensor]:
        """One buffer of every parameter."""
        return [state[name] for state in self.states]

    def __getattr__(self, name: str) -> Any:
        if hasattr(type(self), name):  # a property raised the AttributeError that led here: let it be seen
            return object.__getattribute__(self, name)
        if name in self.scalars:
            return self.scalars[name].to(self.params[0].device)
        if name in self.states[0]:
            value = self.__dict__[name] = _join([local(state[name]) for state in self.states])
            return value
        raise AttributeError(f"{type(self.matrix).__name__} has no buffer or scalar named {name!r}")

    def __setattr__(self, name: str, value: Any) -> None:
        if self.group["differentiable"]:  # autograd may have saved the tensor that was there
            self.__dict__.pop(name, None)
            self.store(name, value.clone())
        elif value is not getattr(self, name):
            getattr(self, name).copy_(value)

    @property
    def x(self) -> Tensor:
        return _join([real(local(p)) for p in self.params])

    @property
    def sharding(self) -> Sharding:
        """How the processes divide these parameters."""
        return sharding(self.params[0])

    @property
    def one(self) -> Tensor:
        """1, where the state of these parameters is."""
        return torch.ones((), dtype=state_dtype(self.params[0]), device=self.params[0].device)

    @property
    def has_grad(self) -> bool:
        return self.grads[0] is not None

    @property
    def grad(self) -> Tensor:
        """The newest gradient, in the dtype of the state, with the sign of a minimisation."""
        dtype = state_dtype(self.params[0])
        grads = [local(g) for g in cast(list[Tensor], self.grads)]
        grad = _join([g if g.dtype is dtype else real(g.resolve_conj()).to(dtype) for g in grads])
        if self.grad_is_given:
            return grad
        if self.group["maximize"]:
            grad = -grad
        if self.group["weight_decay"] != 0 and not self.group["decoupled_weight_decay"]:
            grad = grad + self.x * self.group["weight_decay"]
        return grad

    @property
    def grad_is_given(self) -> bool:
        """Whether `grad` is what the user's `p.grad` holds, but for its precision."""
        coupled = self.group["weight_decay"] != 0 and not self.group["decoupled_weight_decay"]
        return not (self.group["maximize"] or coupled)

    @property
    def paired(self) -> bool:
        """Whether the estimator has seen this batch at the previous point."""
        return "paired" in self.states[0]

    @property
    def in_full_swing(self) -> bool:
        """Whether this is a step as most are: not the first one, nor one after a restart."""
        state = self.states[0]
        return "restarted" not in state and ("paired" in state or "gamma" in state or not self.estimator.two_point)

    @property
    def t(self) -> Scalar:
        """The step count, as the matrix shall see it."""
        return self.at_age(lambda t: t)

    @property
    def mu(self) -> Scalar:
        return self.at_step(self.schedule.mu_t)

    @property
    def alpha(self) -> Scalar:
        return self.schedule.first if "restarted" in self.states[0] else self.schedule.weight_of(self)

    def at_age(self, formula: Callable[[Any], Any]) -> Scalar:
        """A formula of t as the matrix shall see it; unlike `formula(s.t)`, it is not part of a compiled kernel."""
        return self.at_step(lambda t, tau: formula(self.estimator.age(t)))

    def whole_norm(self, tensor: Tensor) -> Tensor:
        """The norm of a tensor of which `tensor` is what this process holds."""
        norm: Tensor = torch.linalg.vector_norm(tensor)
        return norm if self.sharding is None else over_ranks(norm.square(), self.sharding).sqrt()

    def at_step(self, formula: Callable[[Any, float], Any], ahead: int = 0) -> Scalar:
        """A formula of t and τ, at the step count of these parameters or later."""
        steps = [state["step"] for state in self.states]
        if not isinstance(steps[0], Tensor):
            return cast(Scalar, formula(steps[0] + ahead + self.late, self.estimator.tau))
        # float64 where the device has it, so that a capturable optimizer takes the same steps
        dtype = torch.float32 if steps[0].device.type == "mps" else torch.float64
        values = torch.as_tensor(formula(torch.stack(steps).to(dtype) + (ahead + self.late), self.estimator.tau))
        return _join(list(values.to(steps[0].device, state_dtype(self.params[0])).expand(len(steps)).unbind()))

    def advance(self) -> None:
        """See the weights of the next step, before it is counted."""
        self.__dict__["late"] = 1

    def count(self) -> None:
        """Add one to the step counts."""
        self.__dict__["late"] = 0
        for state in self.states:
            state["step"] += 1

    def store(self, name: str, value: Tensor) -> None:
        """Keep a new tensor under `name` in the state of every parameter."""
        tensors = value.tensors if isinstance(value, TensorList) else [value]
        for state, tensor in zip(self.states, tensors, strict=True):
            state[name] = tensor

    def drop(self, *names: str) -> None:
        for name in names:
            self.__dict__.pop(name, None)
            for state in self.states:
                state.pop(name, None)


Sums = tuple[Tensor, ...]
"""Sums over the coordinates of a chunk, for a matrix that needs them."""
Line = Callable[[Chunk, Scalar], Sums]
"""Some lines of Algorithm 1 on a chunk, given γ."""


def decoupled_decay(c: Chunk) -> float:
    """The weight decay that is not part of the gradient."""
    return float(c.group["weight_decay"]) if c.group["decoupled_weight_decay"] else 0.0


def _join(tensors: list[Tensor]) -> Tensor:
    return tensors[0] if len(tensors) == 1 else cast(Tensor, TensorList(tensors))
