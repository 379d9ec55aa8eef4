"""`View`: some parameters with their gradients and state, as the lines of Algorithm 1 and the parts see them.

A view holds the parameters of a layout as one `TensorList`, or one of these parameters, or a piece of one. Complex
parameters appear as their real views. The state of low-precision parameters is float32.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from typing import TYPE_CHECKING, Any, cast

import torch
from torch import Tensor

from superadam._state.owners import Place, batches, unbatched
from superadam._state.phases import BETWEEN, RESTARTED
from superadam._state.sharding import Sharding, local, over_ranks
from superadam.lists import Scalar, TensorList, add_scaled, each, gamma_of, join, real, state_dtype
from superadam.matrices.base import Matrix

if TYPE_CHECKING:
    from superadam._state.options import Composition
    from superadam._step.layout import Layout
    from superadam.estimators import Estimator
    from superadam.iterates import Iterate
    from superadam.penalties import Penalty
    from superadam.schedules import Schedule
    from superadam.sets import ConvexSet
    from superadam.stepsizes import Stepsize

__all__ = ["Line", "State", "Sums", "View"]

State = dict[str, Any]
"""What the optimizer keeps for a parameter."""

Sums = tuple[Tensor, ...]
"""Sums over the coordinates of a view, for a matrix that needs them."""
Line = Callable[["View", Scalar], Sums]
"""Some lines of Algorithm 1: a function of a view and γ."""


class View:
    """Parameters with their gradients and state, and what this step knows about them. Parts see it as `s`.

    After `bound()`, `s` has x, the tensors of the state by their names (g, v, …) and the scalars of the matrix. An
    assignment `s.v = …` writes into the state.
    """

    # ------------------------------------------------------------------------------------ facts of every step

    _facts: dict[str, Any]
    """All of these, as `layout.facts` has found them."""
    group: dict[str, Any]
    parts: Composition
    estimator: Estimator
    matrix: Matrix
    schedule: Schedule
    iterate: Iterate
    stepsize: Stepsize | None
    constraint: ConvexSet | None
    penalty: Penalty | None
    layout: Layout
    names: tuple[str, ...]
    """The tensors of the state that the parts use."""
    narrow: tuple[str, ...]
    """Those that are kept in bfloat16."""
    plain: bool
    """Whether parameters and state have one real dtype, and none is sharded."""
    rate: float
    """γ of these parameters over the γ of their group."""
    sharding: Sharding
    """How the processes divide these parameters."""
    places: Sequence[Place]
    """Where the matrices of each tensor are worked on, for a matrix of each."""
    apart: bool
    """Whether some of these tensors have an owner among the processes, so that line 4 waits for all views."""
    _alone: bool
    """Whether this process works on all their matrices, and has all of the tensors."""
    free: bool
    """Whether X = R^d and h = 0."""
    decay: float
    """w of the decoupled weight decay, else 0."""
    decay_in_gradient: float
    """w of the weight decay that is part of the gradient, else 0."""

    # ------------------------------------------------------------------------------------ this batch

    params: list[Tensor]
    grads: list[Tensor | None]
    states: list[State]
    scalars: dict[str, Tensor]
    _weights: dict[Hashable, Scalar]
    """μ_t, α_t and t, computed when they are first asked for; pieces of a view share them."""
    x: Tensor
    g: Tensor

    moves = False
    """Whether this step ends with lines 9 and 10 (τ = 0), rather than with a pending move."""
    late = 0
    """Added to the step count, where the lines run before it is raised."""
    paired = False
    """Whether the estimator has seen this batch at the previous point."""
    restarted = False
    """Whether this gradient is the first after a restart, so that it is g."""
    factor: Tensor | None = None
    """What `clip` has multiplied g by, for an estimator that makes g_t of more than its buffer."""
    direction: Tensor | None = None
    """H⁻¹g, where it was solved for all views together."""
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
        facts: dict[str, Any],
        params: list[Tensor],
        grads: list[Tensor | None],
        states: list[State],
        scalars: dict[str, Tensor],
        **batch: Any,
    ) -> None:
        own = self.__dict__
        own.update(facts, _facts=facts, params=params, grads=grads, states=states, scalars=scalars, _weights={})
        own.update(batch)

    @classmethod
    def of(cls, layout: Layout, scalars: dict[str, Tensor], *, moves: bool) -> View:
        """The parameters of a layout with their present gradients."""
        phase, grads = layout.states[0].get("phase"), [p.grad for p in layout.params]
        batch = {"moves": moves, "paired": phase == BETWEEN, "restarted": phase == RESTARTED}
        return cls(layout.facts, layout.params, grads, layout.states, scalars, **batch)

    # ------------------------------------------------------------------------------------ state under its names

    def bound(self) -> View:
        """Set x, the tensors of the state and the scalars as attributes, and return the view."""
        own, layout = self.__dict__, self.layout
        if layout is None or layout.states is not self.states:
            own.update(self._tensors({}))
        else:
            own.update(layout.bound or layout.keep(self._tensors(layout.stacks)))
        for name, value in self.scalars.items():
            own[name] = value.to(self.params[0].device)
        return self

    def _tensors(self, stacks: State) -> State:
        """x and the tensors of the state, by their names."""
        states = self.states
        found = {"x": join(self.params if self.plain else [real(local(p)) for p in self.params]), **stacks}
        for name in self.names:
            if name in stacks:
                continue
            held = [s[name] for s in states] if self.plain else [local(s[name]) for s in states]
            if name in self.narrow:  # copies: the way that runs the lines writes them back
                held = [h.float() for h in held]
            found[name] = join(held)
        return found

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

    def replaced(self, params: list[Tensor], grads: list[Tensor | None], states: list[State], **other: Any) -> View:
        """The same view, of other tensors of the same parameters; with `other` facts, if they differ."""
        batch: dict[str, Any] = {"paired": self.paired, "restarted": self.restarted, "factor": self.factor}
        if not isinstance(states[0]["step"], Tensor):  # weights on the device differ between the tensors
            batch["_weights"] = self._weights
        return View({**self._facts, **other} if other else self._facts, params, grads, states, self.scalars, **batch)

    def some(self, which: list[int]) -> View:
        """A view of some of the parameters."""
        if len(which) == len(self.params):
            return self

        def some(values: Sequence[Any]) -> list[Any]:
            return [values[i] for i in which]

        places = {"places": some(self.places)} if self.places else {}
        part = self.replaced(some(self.params), some(self.grads), some(self.states), **places)
        for name in ("q", "dx", "direction"):
            if self.__dict__.get(name) is not None:
                part.__dict__[name] = join(some(list(each(self.__dict__[name]))))
        return part

    # ------------------------------------------------------------------------------------ facts

    @property
    def gamma(self) -> Scalar:
        """γ, as in `gamma_of`."""
        lr = self.group["lr"]
        lr = lr if isinstance(lr, float) else gamma_of(self.group)
        return lr if self.rate == 1 else lr * self.rate

    @property
    def one(self) -> Tensor:
        """1, in the dtype and on the device of the state."""
        return torch.ones((), dtype=state_dtype(self.params[0]), device=self.params[0].device)

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

    def descend(self, x: Tensor, g: Tensor, eta: Scalar, H: Tensor | None = None) -> None:
        """x ← x - η H_t⁻¹ g: `Matrix.solve`, in place where that is g / H. `H` is given where it is known already."""
        matrix = self.matrix
        if type(matrix).solve is not Matrix.solve:
            return add_scaled(x, matrix.solve(self, g), -eta)
        H = matrix.H(self) if H is None else H
        if matrix.multiple_of_identity:
            x.addcmul_(g, eta / H, value=-1)
        elif isinstance(eta, float):
            x.addcdiv_(g, H, value=-eta)
        else:
            x.addcdiv_(g * eta, H, value=-1)
        return None

    def matrices(self, like_x: Tensor) -> Tensor:
        """A tensor or list like x, as the batch of matrices that a matrix of each tensor works on."""
        return self.batch_of(list(each(like_x))) if self._alone else batches([self], [like_x])[0]

    def tensors(self, matrices: Tensor) -> Tensor:
        """The inverse of `matrices`: a tensor or a list like x, of what this process holds."""
        return join(cast(list[Tensor], self.wholes_of(matrices))) if self._alone else unbatched([self], [matrices])[0]

    def batch_of(self, wholes: Sequence[Tensor | None]) -> Tensor:
        """The matrices of some tensors, those that are here."""
        here = [whole for whole in wholes if whole is not None]
        shape = self.places[0].shape[1:]
        if not here:
            return self.one.new_empty((0, *shape))
        if self.matrix.reshapes:
            return (torch.stack(here) if len(here) > 1 else here[0]).reshape(-1, *shape)
        cut = [self.matrix.matrices(whole) for whole in here]
        return cut[0] if len(cut) == 1 else torch.cat(cut)

    def wholes_of(self, matrices: Tensor) -> list[Tensor | None]:
        """The inverse of `batch_of`: None for tensors that are not here."""
        if self.matrix.reshapes and all([place.here == place.shape[0] for place in self.places]):
            return list(matrices.reshape(len(self.params), *real(self.params[0]).shape).unbind())
        shards = torch.split(matrices, [place.here for place in self.places])
        return [
            self.matrix.tensor(shard, real(local(p) if place.within else p).shape)
            if place.here or not place.group
            else None
            for shard, p, place in zip(shards, self.params, self.places, strict=True)
        ]

    def whole_norm(self, tensor: Tensor) -> Tensor:
        """The norm of a tensor over all processes, of which `tensor` is what this process holds."""
        norm: Tensor = torch.linalg.vector_norm(tensor)
        return norm if self.sharding is None else over_ranks(norm.square(), self.sharding).sqrt()

    # ------------------------------------------------------------------------------------ weights

    @property
    def t(self) -> Scalar:
        """The step count that the matrix sees."""
        return self.once("t", lambda t, tau: self.iterate.age(t))

    @property
    def mu(self) -> Scalar:
        return self.once("mu", self.schedule.mu_t)

    @property
    def alpha(self) -> Scalar:
        return self.schedule.first if self.restarted else self.schedule.weight_of(self)

    def once(self, name: Hashable, formula: Callable[[Any, float], Any]) -> Scalar:
        """`at_step(formula)`, computed once in a step for the view and all its pieces."""
        key = name, self.late
        if key not in self._weights:
            self._weights[key] = self.at_step(formula)
        return self._weights[key]

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
