"""`View`: some parameters with their gradients and state, as the lines of Algorithm 1 and the parts see them.

A view holds the parameters of a layout as one `TensorList`, or one of these parameters, or a piece of one. Complex
parameters appear as their real views. The state of low-precision parameters is float32.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, cast

import torch
from torch import Tensor

from superadam._state.owners import Place, everywhere, from_owners, to_owners
from superadam._state.sharding import Sharding, local, over_ranks, sharding
from superadam._step.tensors import Scalar, TensorList, compiled_step, each, gamma_of, join, real, state_dtype

if TYPE_CHECKING:
    from superadam._state.options import Composition
    from superadam.estimators import Estimator
    from superadam.iterates import Iterate
    from superadam.matrices import Matrix
    from superadam.penalties import Penalty
    from superadam.schedules import Schedule
    from superadam.sets import ConvexSet
    from superadam.stepsizes import Stepsize

__all__ = ["Line", "Sums", "View", "batches", "each", "join", "real", "state_dtype", "unbatched"]

Sums = tuple[Tensor, ...]
"""Sums over the coordinates of a view, for a matrix that needs them."""
Line = Callable[["View", Scalar], Sums]
"""Some lines of Algorithm 1: a function of a view and γ."""


def batches(views: list[View], tensors: list[Tensor]) -> list[Tensor]:
    """`View.matrices` of several views, with one message for all."""
    parts = [part for tensor in tensors for part in each(tensor)]
    params, places = [p for v in views for p in v.params], [place for v in views for place in v.places]
    wholes = iter(to_owners(parts, params, places))
    return [view._batch([next(wholes) for _ in view.params]) for view in views]


def unbatched(views: list[View], matrices: list[Tensor]) -> list[Tensor]:
    """`View.tensors` of several views, with one message for all."""
    wholes = [whole for v, batch in zip(views, matrices, strict=True) for whole in v._wholes(batch)]
    params, places = [p for v in views for p in v.params], [place for v in views for place in v.places]
    parts = iter(from_owners(wholes, params, places))
    return [join([next(parts) for _ in view.params]) for view in views]


class View:
    """Parameters with their gradients and state, and what this step knows about them. Parts see it as `s`.

    After `bound()`, `s` has x, the tensors of the state by their names (g, v, …) and the scalars of the matrix. An
    assignment `s.v = …` writes into the state.
    """

    group: dict[str, Any]
    params: list[Tensor]
    grads: list[Tensor | None]
    states: list[dict[str, Any]]
    scalars: dict[str, Tensor]
    parts: Composition
    estimator: Estimator
    matrix: Matrix
    schedule: Schedule
    iterate: Iterate
    stepsize: Stepsize | None
    constraint: ConvexSet | None
    penalty: Penalty | None
    x: Tensor
    g: Tensor

    names: tuple[str, ...]
    """The tensors of the state that the parts use."""
    narrow: tuple[str, ...] = ()
    """Those that are kept in bfloat16."""
    layout: Any = None
    moves = False
    """Whether this step ends with lines 9 and 10 (τ = 0), rather than with a pending move."""
    plain = False
    """Whether parameters and state have one real dtype, and none is sharded."""
    late = 0
    """Added to the step count, where the lines run before it is raised."""
    paired = False
    """Whether the estimator has seen this batch at the previous point."""
    restarted = False
    """Whether this gradient is the first after a restart, so that it is g."""
    rate = 1.0
    """γ of these parameters over the γ of their group."""
    factor: Tensor | None = None
    """What `clip` has multiplied g by, for an estimator that makes g_t of more than its buffer."""
    direction: Tensor | None = None
    """H⁻¹g, where it was solved for all views together."""
    places: Sequence[Place] = ()
    """Where the matrices of each tensor are worked on, for a matrix of each."""
    apart = False
    """Whether some of these tensors have an owner among the processes, so that line 4 waits for all views."""
    arrived: Tensor | None = None
    """`estimates`, where they came with those of other views."""
    unused_grad: Tensor
    """The gradient that line 4 is waiting with."""
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
        own = self.__dict__
        own.update(group=group, parts=parts, params=params, grads=grads, states=states, scalars=scalars)
        own.update(zip(parts._fields, parts, strict=True))
        own.update(more)
        if "names" not in more and params:
            own["names"] = parts.names(params[0])
        if "places" not in more and parts.matrix.scope == "tensor":
            own["places"] = [everywhere(p, parts.matrix) for p in params]

    # ------------------------------------------------------------------------------------ state under its names

    def bound(self) -> View:
        """Set x, the tensors of the state and the scalars as attributes, and return the view."""
        own, states = self.__dict__, self.states
        here = self.params if self.plain else [real(local(p)) for p in self.params]
        own["x"] = TensorList(here) if len(here) > 1 else here[0]
        stacks = self.layout.stacks if self.layout is not None and len(states) > 1 else {}
        own.update(stacks)
        for name in self.names:
            if name in stacks:
                continue
            held = [s[name] for s in states] if self.plain else [local(s[name]) for s in states]
            if name in self.narrow:  # copies: the way that runs the lines writes them back
                held = [h.float() for h in held]
            own[name] = TensorList(held) if len(held) > 1 else held[0]
        for name, value in self.scalars.items():
            own[name] = value.to(self.params[0].device)
        return self

    def all(self, name: str) -> list[Tensor]:
        """The tensor of this name in the state of every parameter."""
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
        """The same view, of other tensors."""
        names = ("names", "narrow", "paired", "restarted", "plain", "layout", "factor", "rate", "places", "apart")
        kept = {name: getattr(self, name) for name in names}
        return View(self.group, self.parts, params, grads, states, self.scalars, **kept)

    def part(self, which: list[int]) -> View:
        """A view of some of the parameters."""
        if len(which) == len(self.params):
            return self

        def some(values: list[Any]) -> list[Any]:
            return [values[i] for i in which]

        part = self.replaced(some(self.params), some(self.grads), some(self.states))
        if self.places:
            part.places = [self.places[i] for i in which]
        for name in ("q", "dx", "direction"):
            if self.__dict__.get(name) is not None:
                part.__dict__[name] = join(some(list(each(self.__dict__[name]))))
        return part

    @classmethod
    def merged(cls, views: list[View]) -> View:
        """One view of all parameters of some views, which share their matrix."""
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
        """γ, as in `gamma_of`."""
        lr = self.group["lr"]
        lr = lr if isinstance(lr, float) else gamma_of(self.group)
        return lr if self.rate == 1 else lr * self.rate

    @property
    def aligned(self) -> bool:
        """Whether parameters, state and gradients have their coordinates in memory in one order."""
        there = self.grads[0] is not None
        return bool(self.layout.aligned_with(self.grads) if there else self.layout.aligned)

    @property
    def compiles(self) -> bool:
        """Whether kernels of our own are wanted: compile=True, or torch.compile(opt.step)."""
        return self.group["compile"] or compiled_step.get()

    @property
    def sharding(self) -> Sharding:
        """How the processes divide these parameters."""
        return None if self.plain else sharding(self.params[0])

    @property
    def one(self) -> Tensor:
        """1, in the dtype and on the device of the state."""
        return torch.ones((), dtype=state_dtype(self.params[0]), device=self.params[0].device)

    @property
    def free(self) -> bool:
        """Whether X = R^d and h = 0."""
        return self.constraint is None and self.penalty is None

    @property
    def decay(self) -> float:
        """w of the decoupled weight decay, else 0."""
        return float(self.group["weight_decay"]) if self.group["decoupled_weight_decay"] else 0.0

    @property
    def decay_in_gradient(self) -> float:
        """w of the weight decay that is part of the gradient, else 0."""
        return float(self.group["weight_decay"]) - self.decay

    @property
    def grad(self) -> Tensor:
        """The newest gradient of what is minimised, in the dtype of the state, with the weight decay that is in it."""
        grads = cast(list[Tensor], self.grads)
        if not self.plain:
            grads = [local(g) for g in grads]
        dtype = self.params[0].dtype if self.plain else state_dtype(self.params[0])
        grad = join([g if g.dtype is dtype else real(g.resolve_conj()).to(dtype) for g in grads])
        if self.group["maximize"]:
            grad = -grad
        if self.group["weight_decay"] != 0 and not self.group["decoupled_weight_decay"]:
            grad = grad + self.x * self.decay_in_gradient
        return grad if self.stepsize is None else self.stepsize.weighed(self, grad)

    @property
    def estimate(self) -> Tensor:
        """g_t, as line 9 takes it."""
        there = self.estimator.blends and self.grads[0] is not None
        return self.estimator.estimate(self) if there else self.g

    @property
    def estimates(self) -> Tensor:
        """g_t, as the batch of matrices that a matrix of each tensor works on."""
        return self.matrices(self.estimate) if self.arrived is None else self.arrived

    def matrices(self, like_x: Tensor) -> Tensor:
        """A tensor or list like x, as the batch of matrices that a matrix of each tensor works on."""
        return batches([self], [like_x])[0]

    def tensors(self, matrices: Tensor) -> Tensor:
        """The inverse of `matrices`: a tensor or a list like x, of what this process holds."""
        return unbatched([self], [matrices])[0]

    def _batch(self, wholes: list[Tensor | None]) -> Tensor:
        """The matrices of some tensors, those that are here."""
        here = [whole for whole in wholes if whole is not None]
        if not here:
            return self.one.new_empty((0, *self.places[0].shape[1:]))
        if self.matrix.reshapes and len(here) > 1:
            return torch.stack(here).reshape(-1, *self.places[0].shape[1:])
        cut = [self.matrix.matrices(whole) for whole in here]
        return cut[0] if len(cut) == 1 else torch.cat(cut)

    def _wholes(self, matrices: Tensor) -> list[Tensor | None]:
        """The inverse."""
        if self.matrix.reshapes and all([place.here == place.shape[0] for place in self.places]):
            return list(matrices.reshape(len(self.params), *real(self.params[0]).shape).unbind())
        parts = torch.split(matrices, [place.here for place in self.places])
        return [
            self.matrix.tensor(part, real(local(p) if place.within else p).shape)
            if place.here or not place.group
            else None
            for part, p, place in zip(parts, self.params, self.places, strict=True)
        ]

    def whole_norm(self, tensor: Tensor) -> Tensor:
        """The norm of a tensor over all processes, of which `tensor` is what this process holds."""
        norm: Tensor = torch.linalg.vector_norm(tensor)
        return norm if self.sharding is None else over_ranks(norm.square(), self.sharding).sqrt()

    # ------------------------------------------------------------------------------------ weights

    @property
    def t(self) -> Scalar:
        """The step count that the matrix sees."""
        return self.at_age(lambda t: t)

    @property
    def mu(self) -> Scalar:
        return self.at_step(self.schedule.mu_t)

    @property
    def alpha(self) -> Scalar:
        return self.schedule.first if self.restarted else self.schedule.weight_of(self)

    def number(self, name: str) -> Scalar:
        """A number of the iterate, as `Iterate.count` has left it."""
        first: Scalar = self.states[0][name]
        return join(self.all(name)) if isinstance(first, Tensor) else first

    def at_age(self, formula: Callable[[Any], Any]) -> Scalar:
        """A formula of the step count that the matrix sees. Unlike `formula(s.t)`, a kernel does not compute it."""
        return self.at_step(lambda t, tau: formula(self.iterate.age(t)))

    def at_step(self, formula: Callable[[Any, float], Any], ahead: int = 0) -> Scalar:
        """A formula of t and τ at the step count of these parameters, or `ahead` steps later."""
        step = self.states[0]["step"]
        if not isinstance(step, Tensor):
            return cast(Scalar, formula(step + ahead + self.late, self.estimator.tau))
        # float64 where the device has it, so that a capturable optimizer takes the same steps
        dtype = torch.float32 if step.device.type == "mps" else torch.float64
        steps = torch.stack(self.all("step")).to(dtype) + (ahead + self.late)
        values = torch.as_tensor(formula(steps, self.estimator.tau))
        return join(list(values.to(step.device, state_dtype(self.params[0])).expand(len(steps)).unbind()))
