"""Some of the parameters, updated together, as the lines of Algorithm 1 and the parts see them.

A view is all parameters of a group that are alike (device, dtype, step count, phase) as one `TensorList`, one of
them, or a piece of one. Complex parameters appear as their real views; low-precision ones keep their state in float32.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any, cast

import torch
from torch import Tensor

from superadam._state.sharding import Sharding, local, over_ranks, sharding
from superadam._step.tensors import Scalar, TensorList

if TYPE_CHECKING:
    from superadam._state.options import Composition
    from superadam.estimators import Estimator
    from superadam.iterates import Iterate
    from superadam.matrices import Matrix
    from superadam.penalties import Penalty
    from superadam.schedules import Schedule
    from superadam.sets import ConvexSet

__all__ = ["Line", "Scalars", "Sums", "View", "each", "join", "real", "state_dtype"]

Sums = tuple[Tensor, ...]
"""Sums over the coordinates of a view, for a matrix that needs them."""


def real(x: Tensor) -> Tensor:
    """x itself, or the real view of a complex x."""
    return torch.view_as_real(x) if x.is_complex() else x


def state_dtype(x: Tensor) -> torch.dtype:
    """float64 for double precision, float32 for all others: bfloat16 cannot hold an average over a thousand steps."""
    return torch.float64 if x.dtype in (torch.float64, torch.complex128) else torch.float32


def gamma_of(group: dict[str, Any]) -> Scalar:
    """γ of a param group, as a number where that needs no synchronisation with a device."""
    lr = group["lr"]
    if not isinstance(lr, Tensor):
        return cast(float, lr)
    on_host = lr.device.type == "cpu" and not group["capturable"] and not lr.requires_grad
    return float(lr) if on_host else lr.reshape(())


def join(tensors: list[Tensor]) -> Tensor:
    """Several tensors as one."""
    return tensors[0] if len(tensors) == 1 else cast(Tensor, TensorList(tensors))


def each(value: Tensor) -> Iterable[Tensor]:
    """The tensors of a list, or the one tensor."""
    return value if isinstance(value, TensorList) else [value]


class Scalars:
    """The 0-d tensors that all parameters of a matrix share, as `reduce` sees them.

    An assignment is written into the tensor.
    """

    def __init__(self, tensors: dict[str, Tensor], *, rebind: bool = False) -> None:
        self.__dict__.update(tensors)
        self.__dict__["_shared"] = tensors
        self.__dict__["_rebind"] = rebind  # autograd may have saved the tensor that was there

    def __setattr__(self, name: str, value: Tensor) -> None:
        own = self.__dict__
        if own["_rebind"]:
            own["_shared"][name] = own[name] = value.clone()
        elif value is not own[name]:
            own[name].copy_(value)


class View:
    """Parameters with their gradients and state, and what this step knows about them.

    Parts see it as `s`. It has x and every tensor of the state that the parts have named (g, v, …); `s.v = …` is
    written into the state. A matrix finds its scalars, and, if it compares two gradients of a batch, `q` and `dx`.
    """

    group: dict[str, Any]
    params: list[Tensor]
    grads: list[Tensor | None]
    states: list[dict[str, Any]]
    scalars: dict[str, Tensor]
    parts: Composition
    x: Tensor
    g: Tensor

    names: tuple[str, ...]
    """What is kept for these parameters."""
    layout: Any = None
    moves = False
    """Whether this step includes lines 9 and 10."""
    alike = False
    """Whether parameters, gradients and state lie in memory alike."""
    plain = False
    """Whether parameters and state are tensors of one real dtype, none of them sharded."""
    late = 0
    """How many steps the step count of these parameters is behind."""
    paired = False
    """Whether the estimator has seen this batch at the previous point."""
    restarted = False
    """Whether this gradient is the first after a restart, so that it is g."""
    direction: Tensor | None = None
    """H⁻¹g, where it takes all parameters at once."""
    q: Tensor
    r"""$\nabla f(x_{t-1}; \xi_t)$, for a matrix that compares it with $\nabla f(x_t; \xi_t)$."""
    dx: Tensor
    r"""$x_t - x_{t-1}$, for the same."""

    def __init__(
        self,
        group: dict[str, Any],
        parts: Composition,
        params: list[Tensor],
        grads: list[Tensor | None],
        states: list[dict[str, Any]],
        scalars: dict[str, Tensor],
        **more: Any,
    ) -> None:
        set_ = self.__dict__
        set_.update(group=group, parts=parts, params=params, grads=grads, states=states, scalars=scalars)
        set_.update(zip(("estimator", "matrix", "schedule", "iterate", "constraint", "penalty"), parts, strict=True))
        set_.update(more)
        if "names" not in more and params:
            set_["names"] = parts.names(params[0])

    if TYPE_CHECKING:  # the parts, one by one
        estimator: Estimator
        matrix: Matrix
        schedule: Schedule
        iterate: Iterate
        constraint: ConvexSet | None
        penalty: Penalty | None

    # ------------------------------------------------------------------------------------ state under its names

    def bound(self) -> View:
        """This view with its tensors under their names."""
        own, states = self.__dict__, self.states
        here = self.params if self.plain else [real(local(p)) for p in self.params]
        own["x"] = TensorList(here) if len(here) > 1 else here[0]
        for name in self.names:
            held = [s[name] for s in states] if self.plain else [local(s[name]) for s in states]
            own[name] = TensorList(held) if len(held) > 1 else held[0]
        for name, value in self.scalars.items():
            own[name] = value.to(self.params[0].device)
        return self

    def all(self, name: str) -> list[Tensor]:
        """One tensor of the state of every parameter."""
        return [state[name] for state in self.states]

    def __setattr__(self, name: str, value: Any) -> None:
        held = self.__dict__.get(name)
        if held is None or name not in self.states[0]:
            self.__dict__[name] = value
        elif self.group["differentiable"]:  # autograd may have saved the tensor that was there
            self.__dict__[name] = value = value.clone()
            for state, tensor in zip(self.states, value if isinstance(value, TensorList) else [value], strict=True):
                state[name] = tensor
        elif value is not held:
            held.copy_(value)

    def __getattr__(self, name: str) -> Any:
        if hasattr(type(self), name):  # a property raised the AttributeError that led here: let it be seen
            return object.__getattribute__(self, name)
        matrix = type(self.__dict__.get("matrix")).__name__
        raise AttributeError(f"{matrix} has no buffer or scalar named {name!r}, nor has the estimator or the iterate")

    # ------------------------------------------------------------------------------------ other views

    def replaced(self, params: list[Tensor], grads: list[Tensor | None], states: list[dict[str, Any]]) -> View:
        """This view of other tensors."""
        kept = {name: getattr(self, name) for name in ("names", "paired", "restarted", "plain", "layout")}
        return View(self.group, self.parts, params, grads, states, self.scalars, **kept)

    def part(self, which: list[int]) -> View:
        """Some of the parameters."""
        if len(which) == len(self.params):
            return self

        def some(values: list[Any]) -> list[Any]:
            return [values[i] for i in which]

        part = self.replaced(some(self.params), some(self.grads), some(self.states))
        for name in ("q", "dx", "direction"):
            if self.__dict__.get(name) is not None:
                part.__dict__[name] = join(some(list(each(self.__dict__[name]))))
        return part

    @classmethod
    def merged(cls, views: list[View]) -> View:
        """Views that share their matrix as one."""
        merged = views[0].replaced(
            [p for view in views for p in view.params],
            [grad for view in views for grad in view.grads],
            [state for view in views for state in view.states],
        )
        merged.plain = all(view.plain for view in views)
        merged.names = ("g", *merged.matrix.slots(real(merged.params[0])))  # estimators may differ
        return merged

    # ------------------------------------------------------------------------------------ facts

    @property
    def gamma(self) -> Scalar:
        """γ, as a number where that needs no synchronisation with a device."""
        lr = self.group["lr"]
        return lr if isinstance(lr, float) else gamma_of(self.group)

    @property
    def sharding(self) -> Sharding:
        """How the processes divide these parameters."""
        return None if self.plain else sharding(self.params[0])

    @property
    def one(self) -> Tensor:
        """1, where the state of these parameters is."""
        return torch.ones((), dtype=state_dtype(self.params[0]), device=self.params[0].device)

    @property
    def free(self) -> bool:
        """Whether X = R^d and h = 0."""
        return self.constraint is None and self.penalty is None

    @property
    def decay(self) -> float:
        """The weight decay that is not part of the gradient."""
        return float(self.group["weight_decay"]) if self.group["decoupled_weight_decay"] else 0.0

    @property
    def decay_in_gradient(self) -> float:
        return float(self.group["weight_decay"]) - self.decay

    @property
    def grad(self) -> Tensor:
        """The newest gradient, in the dtype of the state, with the sign of a minimisation."""
        grads = cast(list[Tensor], self.grads)
        if not self.plain:
            grads = [local(g) for g in grads]
        dtype = self.params[0].dtype if self.plain else state_dtype(self.params[0])
        grad = join([g if g.dtype is dtype else real(g.resolve_conj()).to(dtype) for g in grads])
        if self.group["maximize"]:
            grad = -grad
        if self.group["weight_decay"] != 0 and not self.group["decoupled_weight_decay"]:
            grad = grad + self.x * self.decay_in_gradient
        return grad

    def whole_norm(self, tensor: Tensor) -> Tensor:
        """The norm of a tensor of which `tensor` is what this process holds."""
        norm: Tensor = torch.linalg.vector_norm(tensor)
        return norm if self.sharding is None else over_ranks(norm.square(), self.sharding).sqrt()

    # ------------------------------------------------------------------------------------ weights

    @property
    def t(self) -> Scalar:
        """The step count, as the matrix shall see it."""
        return self.at_age(lambda t: t)

    @property
    def mu(self) -> Scalar:
        return self.at_step(self.schedule.mu_t)

    @property
    def alpha(self) -> Scalar:
        return self.schedule.first if self.restarted else self.schedule.weight_of(self)

    def at_age(self, formula: Callable[[Any], Any]) -> Scalar:
        """A formula of t as the matrix shall see it; unlike `formula(s.t)`, it is not part of a compiled kernel."""
        return self.at_step(lambda t, tau: formula(self.iterate.age(t)))

    def at_step(self, formula: Callable[[Any, float], Any], ahead: int = 0) -> Scalar:
        """A formula of t and τ, at the step count of these parameters or later."""
        step = self.states[0]["step"]
        if not isinstance(step, Tensor):
            return cast(Scalar, formula(step + ahead + self.late, self.estimator.tau))
        # float64 where the device has it, so that a capturable optimizer takes the same steps
        dtype = torch.float32 if step.device.type == "mps" else torch.float64
        steps = torch.stack(self.all("step")).to(dtype) + (ahead + self.late)
        values = torch.as_tensor(formula(steps, self.estimator.tau))
        return join(list(values.to(step.device, state_dtype(self.params[0])).expand(len(steps)).unbind()))


Line = Callable[[View, Scalar], Sums]
"""Some lines of Algorithm 1 on a view, given γ."""
