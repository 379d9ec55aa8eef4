"""`ComposedOptimizer`: a torch optimizer whose groups name parts. Groups, state and checkpoints; no algorithm yet."""

from __future__ import annotations

from collections.abc import Iterator, MutableMapping
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer
from torch.optim.optimizer import ParamsT
from torch.utils.weak import WeakIdKeyDictionary

from superadam import methods
from superadam._state import formats, loading, options, owners, precision, twice
from superadam._state.options import Composition
from superadam._state.pairing import Pairing
from superadam._state.phases import BETWEEN, PENDING, START
from superadam._state.plans import GroupPlan, layers_of, options_of, warn_of_unmatched_names
from superadam._state.sharding import joined, local
from superadam._state.sharding import objection as sharding_objection
from superadam._state.torch_versions import check_fsdp2
from superadam._step.view import State
from superadam.lists import gamma_of, real, state_dtype
from superadam.matrices import Matrix
from superadam.sets import ConvexSet
from superadam.stepsizes import Stepsize

__all__ = ["ComposedOptimizer"]


class ComposedOptimizer(Optimizer):
    """A torch optimizer whose param groups name their parts, and whose state is what the parts declare."""

    found_inf: Tensor | None = None  # a tensor while a GradScaler calls step()

    def __init__(self, params: ParamsT | nn.Module, defaults: dict[str, Any]) -> None:
        self.gradient_evaluations = 0
        self._modules: list[nn.Module] = []
        self._met: MutableMapping[nn.Module, None] = WeakIdKeyDictionary()  # others that evaluations have run
        self._pairing = Pairing()
        self._open_batch: twice.Batch | None = None  # between its two half-steps
        self._last_half: twice.Half | None = None
        self._dropped_batch: twice.Batch | None = None  # by restart(), flush(), or an overflow in its first half-step
        self._plans: list[GroupPlan] = []
        self._scalars: dict[Matrix | Stepsize, dict[str, Tensor]] = {}
        self._places: dict[Tensor, owners.Place] = {}
        self._processes: Any = None  # that divide the matrices of parameters which all of them hold
        self._inside: list[ConvexSet | None] = []  # the sets that the parameters of each group have been put into
        self._within: dict[Tensor, tuple[Tensor, Tensor]] = {}  # q and x_t - x_{t-1}, between the gradients of a batch
        if isinstance(params, nn.Module):
            check_fsdp2(params.modules())
            self.protect(params)
            named, layers = list(params.named_parameters()), layers_of(params)
            params = [{"params": named, "param_layers": [layers[p] for _, p in named]}] if named else []
        # None stands for the composition's own value, and a group may have another composition.
        left_open = {name: None for name in ("lr", "schedule") if defaults[name] is None}
        super().__init__(params, {**options.normalised(defaults), **left_open})
        warn_of_unmatched_names(self._plans)
        twice.register(self)  # last: a refused optimizer may live on in a traceback

    def protect(self, module: nn.Module) -> None:
        """Give both evaluations of a batch the same buffers of `module`, as is done for a module given as `params`."""
        self._modules.append(module)

    def _buffered(self) -> list[nn.Module]:
        """The modules whose buffers are the same in both evaluations of a batch."""
        return [*self._modules, *self._met]

    # ------------------------------------------------------------------------------------ parts

    def _parameters(self) -> list[Tensor]:
        return [p for group in self.param_groups for p in group["params"]]

    def _parts(self, group: dict[str, Any]) -> Composition:
        return self._plan(group).parts

    def _plan(self, group: dict[str, Any]) -> GroupPlan:
        return next(plan for plan in self._current_plans() if plan.group is group)

    def _current_plans(self) -> list[GroupPlan]:
        """A plan for each group, made again if an option has changed."""
        plans, groups = self._plans, self.param_groups
        try:
            known = len(plans) == len(groups) and all(
                [plan.group is group and plan.options == options_of(group) for plan, group in zip(plans, groups)]  # noqa: B905
            )
        except RuntimeError:  # options that are tensors: `==` has no truth value
            known = False
        if not known:
            self._normalise()
        return self._plans

    def _new_plan(self, group: dict[str, Any]) -> GroupPlan:
        plan = GroupPlan(group)
        self._place(plan)
        return plan

    def _place(self, plan: GroupPlan) -> None:
        """Find out which process works on the matrices of each tensor."""
        self._places.update(owners.places(plan, self._processes, self._places))
        plan.places = self._places
        self._divided = any(place.group is not None for place in self._places.values())

    def _normalise(self) -> None:
        """Options have changed: turn new parts into plain data, and fit the state to them."""
        methods.follow(self)
        for group in self.param_groups:
            group.update(options.normalised(group))
        self._plans = [self._new_plan(group) for group in self.param_groups]
        for plan in self._plans:
            for p in plan.group["params"]:
                state = self.state.get(p)
                if state:
                    for name in state.keys() - loading.known_state(plan.of(p), p):
                        del state[name]
                    slots = plan.slots(p) if plan.of(p).matrix.scope != "coordinate" else {}
                    shapes: dict[str, Any] = {name: slot.shape for name, slot in slots.items()}
                    shapes |= {**plan.of(p).scalars, "root": plan.parts.root_shape(p)}
                    for name in shapes.keys() & state.keys():
                        if tuple(state[name].shape) != shapes[name]:
                            del state[name]
                    self._complete(plan, p)
        self._tie_scalars()

    @property
    def two_point(self) -> bool:
        """Whether a step takes two gradients of its batch."""
        return any([plan.two_point for plan in self._current_plans()])

    def _pending(self) -> bool:
        """Whether a move is pending."""
        return any([state.get("phase") == PENDING for state in self.state.values()])

    def _with_state(self) -> Iterator[tuple[GroupPlan, Tensor, State]]:
        """Every parameter that has a state."""
        for plan in self._current_plans():
            for p in plan.group["params"]:
                if self.state.get(p):
                    yield plan, p, self.state[p]

    # ------------------------------------------------------------------------------------ state

    def _complete(self, plan: GroupPlan, p: Tensor) -> None:
        """Create the missing entries of a parameter's state."""
        state, group, parts = self.state[p], plan.group, plan.of(p)
        if "step" not in state:
            capturable = group["capturable"]
            state["step"] = torch.zeros((), dtype=torch.float32, device=p.device) if capturable else 0
            state["phase"] = START
        for name, slot in plan.slots(p).items():
            if name not in state:
                state[name] = plan.new(p, name, slot)
        for name in parts.iterate.numbers:
            if name not in state:
                state[name] = torch.zeros((), dtype=state_dtype(p), device=p.device) if group["capturable"] else 0.0
        if parts.two_point and "gamma" not in state:
            gamma = gamma_of(group)  # of any dtype: torch.distributed.checkpoint puts a float32 zero here for a while
            state["gamma"] = gamma.new_zeros((), dtype=state_dtype(p)) if isinstance(gamma, Tensor) else 0.0
        shape, here = parts.root_shape(p), parts.root_shape(local(p))
        if shape is not None and here is not None and "root" not in state:
            state["root"] = joined(torch.zeros(here, dtype=state_dtype(p), device=p.device), shape, p)
        precision.prepare(group, p, state, number=len(self.state))
        for part in parts.sharing:
            if not state.keys() >= set(part.scalars):
                state.update(self._shared(part))

    def init_state(self) -> None:
        """Create the state that training would create, as it is before the first step: to load a checkpoint into."""
        for plan in self._current_plans():
            for p in plan.group["params"]:
                if p.requires_grad:
                    self._complete(plan, p)

    def _shared(self, part: Matrix | Stepsize) -> dict[str, Tensor]:
        """The scalars of a matrix or a step size, which all its parameters share; created if there are none."""
        if self._scalars.get(part, {}).keys() != set(part.scalars):
            params = [p for plan in self._plans for p in plan.group["params"] if part in plan.of(p).sharing]
            dtype = torch.float64 if any(state_dtype(p) is torch.float64 for p in params) else torch.float32
            self._scalars[part] = {
                name: torch.full(part.scalar_shape(name), part.initial(name), dtype=dtype, device=params[0].device)
                for name in part.scalars
            }
        return self._scalars[part]

    def _tie_scalars(self) -> None:
        """Have all parameters of a matrix or a step size share its scalars, after loading or a change of options."""
        self._scalars = {}
        for plan in self._plans:
            plan.layouts = None
        taken: set[int] = set()
        for plan in self._plans:
            for p in plan.group["params"]:
                state: State = self.state.get(p, {})
                for part in plan.of(p).sharing if state else ():
                    if part not in self._scalars:
                        held = {n: state[n] for n in part.scalars if n in state}
                        own = {n: value.clone() if id(value) in taken else value for n, value in held.items()}
                        taken.update(map(id, own.values()))
                        self._scalars[part] = {**self._shared(part), **own}
                    state.update(self._scalars[part])

    # ------------------------------------------------------------------------------------ groups

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        """Add a group of parameters, with any option of its own."""
        left_open = False
        if isinstance(param_group, dict):
            options.refuse_misspelt(param_group, self.defaults)
            param_group = {**self.defaults, **param_group}
            left_open = param_group["lr"] is None
            param_group = options.normalised(param_group)
        super().add_param_group(param_group)
        group = self.param_groups[-1]
        try:
            methods.follow(self)  # the group may have other options of the method
            plan = GroupPlan(group)
            self._plans.append(plan)
            if left_open:
                group["lr"] = plan.parts.lr
            self._check_parameters(plan)
            self._enter_set(plan)
            self._place(plan)
        except (TypeError, ValueError):  # the parameters may be complex, not finite, or of a shape that the set refuses
            self.param_groups.pop()
            del self._plans[len(self.param_groups) :]
            raise
        self._inside.append(plan.parts.constraint)

    def _check_parameters(self, plan: GroupPlan) -> None:
        """Refuse a group whose parts cannot work on its parameters: their shape, dtype, sharding or devices."""
        group, parts, names = plan.group, plan.parts, plan.group.get("param_names")
        for j, p in enumerate(group["params"]):
            reason, matrix = precision.objection(group, p), plan.of(p).matrix
            if sharded := sharding_objection(plan.of(p), group, p):
                reason = f"it is sharded, and {sharded}"
            if not matrix.accepts(real(p)):
                reason = f"{matrix} is not for shape {tuple(p.shape)}: use matrices.ByShape, with another for it"
            if reason is not None:
                raise ValueError(f"Parameter {names[j] if names else j}: {reason}")
        if parts.matrix.scope == "all":
            sharing = [other.group["params"] for other in self._plans if other.parts.matrix == parts.matrix]
            devices = sorted({str(p.device) for params in sharing for p in params})
            if len(devices) > 1:
                raise ValueError(
                    f"{parts.matrix} solves for all its parameters at once, so they must be on one device; they are "
                    f"on {', '.join(devices)}. Use a diagonal or a scalar matrix."
                )

    @torch.no_grad()
    def _enter_set(self, plan: GroupPlan) -> None:
        """x_1 must be feasible: project the parameters of a group onto their set, all of them or none."""
        constraint, params = plan.parts.constraint, plan.group["params"]
        if constraint is not None:
            points = [constraint.entry(local(p).to(state_dtype(p))) for p in params]
            for p, x in zip(params, points, strict=True):
                local(p).copy_(x)

    def _enter_changed_sets(self) -> None:
        """Project x onto a set that the user has given to a group since: line 10 assumes that x is feasible."""
        for i, plan in enumerate(self._current_plans()):
            constraint = plan.parts.constraint
            if constraint is not self._inside[i]:
                if constraint != self._inside[i]:
                    self._check_parameters(plan)
                    self._enter_set(plan)
                self._inside[i] = constraint

    # ------------------------------------------------------------------------------------ saving and loading

    def state_dict(self) -> dict[str, Any]:
        """The state as plain numbers, strings and tensors. Refused between the two half-steps of a batch.

        If the processes have divided the matrices of tensors, all of them must call it.
        """
        self._current_plans()
        if self._open_batch is not None or any(state.get("phase") == BETWEEN for state in self.state.values()):
            raise RuntimeError(
                "state_dict() was called between the two half-steps of a batch; training could not resume from there. "
                "Call it after the second step() of a batch."
            )
        state = super().state_dict()
        for group in state["param_groups"]:  # copies, which do not change as training goes on
            group.update({name: dict(value) for name, value in group.items() if isinstance(value, dict)})
        by_param = {index: dict(values) for index, values in state["state"].items()}
        params = [(plan, p) for plan in self._plans for p in plan.group["params"]]
        for index, (plan, p) in enumerate(params):
            for name in sorted(plan.factors(p) & by_param.get(index, {}).keys()):
                by_param[index][name] = owners.saved(by_param[index][name], p, plan.places[p])
        return {**state, "state": by_param, "gradient_evaluations": self.gradient_evaluations}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Load what `state_dict` returned. Its options take effect; another composition is refused.

        Where both sides know the names of the parameters (from a module, or from `named_parameters()`), each parameter
        gets the state that was saved under its name, and other names are refused. Without names, as in torch,
        parameters are paired by position: the model must define its layers in the same order.

        A method that torch has (`create("adamw")`, …) loads the checkpoints of torch's optimizer too.
        """
        self._current_plans()
        state_dict = methods.from_torch(self, formats.current(loading.rejoined(state_dict)))
        with loading.watched(self):
            super().load_state_dict(state_dict)

    def _loaded(self, loaded: dict[str, Any]) -> None:
        """After torch has loaded a state, before the user's own hooks."""
        loading.keep_dtypes(self, loaded)
        self._reset()
        for plan, p, _ in self._with_state():  # what an older version did not keep
            self._complete(plan, p)
        self.gradient_evaluations = loaded.get("gradient_evaluations", 0)

    def _reset(self) -> None:
        """Rebuild everything that depends on the groups and the state, after they were replaced."""
        self._open_batch = self._last_half = self._dropped_batch = None
        self._within = {}
        self._plans = [self._new_plan(group) for group in self.param_groups]
        self._tie_scalars()
        self._inside = [plan.parts.constraint for plan in self._plans]

    def __getstate__(self) -> dict[str, Any]:
        methods.follow(self)
        own = ("gradient_evaluations", "_modules", "_open_batch", "_within", "_processes")
        return {**super().__getstate__(), **{name: getattr(self, name) for name in own}}

    def __setstate__(self, state: dict[str, Any]) -> None:
        super().__setstate__(state)
        self.defaults = {**options.ADDED_LATER, **self.defaults}
        open_batch, within = self._open_batch, self._within
        self._places, self._processes = {}, state.get("_processes")
        self._met, self._pairing = WeakIdKeyDictionary(), Pairing()
        for p, own in self.state.items():
            self.state[p] = formats.renewed(own)
        for group in self.param_groups:  # options that are newer than the checkpoint
            group.update(options.normalised({**self.defaults, **group}))
        self._reset()
        self._open_batch, self._within = open_batch, within
        twice.register(self)

    def __repr__(self) -> str:
        return options.describe(self)
