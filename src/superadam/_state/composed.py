"""What a composed optimizer keeps, apart from the algorithm it runs: options, parts, state, checkpoints."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer
from torch.optim.optimizer import ParamsT

from superadam._state import buffers, formats, loading, options, precision, recipes, replay, twins
from superadam._state.options import Composition
from superadam._state.pairing import Pairing
from superadam._state.phases import BETWEEN, PENDING, START
from superadam._state.plans import Plan, options_of
from superadam._state.sharding import joined, local
from superadam._state.sharding import objection as sharding_objection
from superadam._step import line_9
from superadam._step.view import gamma_of, real, state_dtype
from superadam.matrices import Matrix
from superadam.sets import ConvexSet

__all__ = ["ComposedOptimizer"]

State = dict[str, Any]


class ComposedOptimizer(Optimizer):
    """A torch optimizer whose param groups name their parts, and whose state is what the parts declare."""

    found_inf: Tensor  # only while a GradScaler calls step()

    def __init__(self, params: ParamsT | nn.Module, defaults: dict[str, Any]) -> None:
        self.gradient_evaluations = 0
        self._modules: list[nn.Module] = []
        self._met = buffers.Modules()  # which evaluations have run, beside those
        self._pairing = Pairing()
        self._open_batch: replay.Batch | None = None  # its first half-step is done
        self._last_half: replay.Half | None = None
        self._dropped_batch: replay.Batch | None = None  # left half done by restart(), or by an overflow
        self._used = replay.Used()
        self._plans: list[Plan] = []
        self._scalars: dict[Matrix, dict[str, Tensor]] = {}
        self._inside: list[ConvexSet | None] = []  # the set that the parameters of a group have been put into
        self._within: dict[Tensor, tuple[Tensor, Tensor]] = {}  # q and x_t - x_{t-1}, between two gradients of a batch
        replay.register(self)
        if isinstance(params, nn.Module):
            self.protect(params)
            layers = {p: type(layer).__name__ for layer in params.modules() for p in layer.parameters(recurse=False)}
            named = list(params.named_parameters())
            params = [{"params": named, "param_layers": [layers[p] for _, p in named]}] if named else []
        # What is the composition's own is left open here: a group may have another composition.
        left_open = {name: None for name in ("lr", "schedule") if defaults[name] is None}
        super().__init__(params, {**options.normalised(defaults), **left_open})

    def protect(self, module: nn.Module) -> None:
        """Give both evaluations of a batch the same buffers of `module`, as is done for a module given as `params`."""
        self._modules.append(module)

    def _buffered(self) -> list[nn.Module]:
        """The modules whose buffers are the same in both evaluations of a batch."""
        return [*self._modules, *self._met]

    # ------------------------------------------------------------------------------------ parts

    def _parts(self, group: dict[str, Any]) -> Composition:
        """The parts of a group, anew if its options have changed."""
        return self._plan(group).parts

    def _plan(self, group: dict[str, Any]) -> Plan:
        return self._plans_of_now()[self._index(group)]

    def _index(self, group: dict[str, Any]) -> int:
        return next(i for i, own in enumerate(self.param_groups) if own is group)

    def _plans_of_now(self) -> list[Plan]:
        """A plan for each group, with its options as they are now."""
        plans, groups = self._plans, self.param_groups
        try:
            known = len(plans) == len(groups) and all(
                [plan.group is group and plan.options == options_of(group) for plan, group in zip(plans, groups)]  # noqa: B905
            )
        except RuntimeError:  # tensors that are not the same object cannot be compared so
            known = False
        if not known:
            self._normalise()
        return self._plans

    def _normalise(self) -> None:
        """Turn parts that the user has assigned to a group into plain data, and drop what only the old ones knew."""
        recipes.follow(self)
        for group in self.param_groups:
            group.update(options.normalised(group))
        self._plans = [Plan(group) for group in self.param_groups]
        for plan in self._plans:
            for p in plan.group["params"]:
                state = self.state.get(p)
                if state:
                    for name in state.keys() - loading.known_state(plan.of(p), p):
                        del state[name]
                    slots = plan.of(p).matrix.slots(real(p)) if plan.of(p).matrix.scope != "coordinate" else {}
                    shapes = {name: slot.shape for name, slot in slots.items()} | {"root": plan.parts.root_shape(p)}
                    for name in shapes.keys() & state.keys():
                        if tuple(state[name].shape) != shapes[name]:
                            del state[name]
                    self._complete(plan, p)
        self._tie_scalars()

    @property
    def two_point(self) -> bool:
        """Whether a step takes two gradients of its batch."""
        return any([plan.two_point for plan in self._plans_of_now()])

    def _pending(self) -> bool:
        return any([state.get("phase") == PENDING for state in self.state.values()])

    def _everything(self) -> Iterator[tuple[Plan, Tensor, State]]:
        """Every parameter that has a state."""
        for plan in self._plans_of_now():
            for p in plan.group["params"]:
                if self.state.get(p):
                    yield plan, p, self.state[p]

    # ------------------------------------------------------------------------------------ state

    def _complete(self, plan: Plan, p: Tensor) -> None:
        """Create what is missing in the state of a parameter: all of it, at first."""
        state, group, parts = self.state[p], plan.group, plan.of(p)
        if "step" not in state:
            capturable = group["capturable"]
            state["step"] = torch.zeros((), dtype=torch.float32, device=p.device) if capturable else 0
            state["phase"] = START
        for name, slot in parts.slots(real(p)).items():
            if name not in state:
                state[name] = _made(slot, p)
        if parts.two_point and "gamma" not in state:
            gamma = gamma_of(group)
            state["gamma"] = torch.zeros_like(gamma).detach() if isinstance(gamma, Tensor) else 0.0
        shape, here = parts.root_shape(p), parts.root_shape(local(p))
        if shape is not None and here is not None and "root" not in state:
            state["root"] = joined(torch.zeros(here, dtype=state_dtype(p), device=p.device), shape, p)
        precision.prepare(group, p, state, number=len(self.state))
        if not state.keys() >= set(parts.matrix.scalars):
            state.update(self._shared(parts.matrix))

    def init_state(self) -> None:
        """Create the state that training would create, as it is before the first step: something to load into."""
        for plan in self._plans_of_now():
            for p in plan.group["params"]:
                if p.requires_grad:
                    self._complete(plan, p)

    def _shared(self, matrix: Matrix) -> dict[str, Tensor]:
        """The scalars of a matrix, one tensor each for all its parameters."""
        if self._scalars.get(matrix, {}).keys() != set(matrix.scalars):
            params = [p for plan in self._plans for p in plan.group["params"] if plan.of(p).matrix == matrix]
            dtype = torch.float64 if any(state_dtype(p) is torch.float64 for p in params) else torch.float32
            self._scalars[matrix] = {
                name: torch.full((), matrix.initial(name), dtype=dtype, device=params[0].device)
                for name in matrix.scalars
            }
        return self._scalars[matrix]

    def _tie_scalars(self) -> None:
        """One tensor for all parameters of a matrix, after loading, or after a change of a matrix's options."""
        self._scalars = {}
        for plan in self._plans:
            plan.layouts = None
        taken: set[int] = set()
        for plan in self._plans:
            for p in plan.group["params"]:
                state, matrix = self.state.get(p), plan.of(p).matrix
                if not state or not matrix.scalars:
                    continue
                if matrix not in self._scalars:
                    own = {
                        n: state[n].clone() if id(state[n]) in taken else state[n] for n in matrix.scalars if n in state
                    }
                    taken.update(map(id, own.values()))
                    self._scalars[matrix] = {**self._shared(matrix), **own}
                state.update(self._scalars[matrix])

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
            recipes.follow(self)  # a group may have a method's options of its own
            self._plans.append(Plan(group))
            if left_open:
                group["lr"] = self._parts(group).lr
            self._check_places(group)
            self._enter(group)
        except (TypeError, ValueError):  # say, of the set: complex or not finite, or of a shape that it is not for
            self.param_groups.pop()
            del self._plans[len(self.param_groups) :]
            raise
        self._inside.append(self._parts(group).constraint)
        options.warn_of_fused(self._parts(group), group)

    def _check_places(self, group: dict[str, Any]) -> None:
        """Refuse a group whose parts cannot work on its parameters, where these are."""
        parts, names = self._parts(group), group.get("param_names")
        plan = self._plans[self._index(group)]
        for j, p in enumerate(group["params"]):
            reason, matrix = precision.objection(group, p), plan.of(p).matrix
            if sharded := sharding_objection(plan.of(p), group, p):
                reason = f"it is sharded, and {sharded}"
            if not matrix.accepts(real(p)):
                reason = f"{matrix} is not for shape {tuple(p.shape)}: use matrices.ByShape, with another for it"
            if reason is not None:
                raise ValueError(f"Parameter {names[j] if names else j}: {reason}")
        if parts.matrix.scope == "all":
            sharing = [g for g in self.param_groups if self._parts(g).matrix == parts.matrix]
            devices = sorted({str(p.device) for g in sharing for p in g["params"]})
            if len(devices) > 1:
                raise ValueError(
                    f"{parts.matrix} solves for all its parameters at once, which must be on one device, and they are "
                    f"on {', '.join(devices)}: use a diagonal or a scalar matrix"
                )

    @torch.no_grad()
    def _enter(self, group: dict[str, Any]) -> None:
        """x_1 must be feasible: put the parameters of a group into their set, all of them or none."""
        constraint = self._parts(group).constraint
        if constraint is not None:
            points = [line_9.nearest_point(constraint, p) for p in group["params"]]
            for p, x in zip(group["params"], points, strict=True):
                local(p).copy_(x)

    def _enter_changed_sets(self) -> None:
        """Where the user has given a group another set, put x there first: line 10 keeps x only where it is."""
        for i, plan in enumerate(self._plans_of_now()):
            constraint = plan.parts.constraint
            if constraint is not self._inside[i]:
                if constraint != self._inside[i]:
                    self._check_places(plan.group)
                    self._enter(plan.group)
                self._inside[i] = constraint

    # ------------------------------------------------------------------------------------ saving and loading

    def state_dict(self) -> dict[str, Any]:
        """The state as plain numbers, strings and tensors. Refused between the two half-steps of a batch."""
        self._plans_of_now()
        if self._open_batch is not None or any(state.get("phase") == BETWEEN for state in self.state.values()):
            raise RuntimeError(
                "state_dict() between the two half-steps of a batch, which could not be resumed from. Save after the "
                "second step() of a batch."
            )
        state = super().state_dict()
        for group in state["param_groups"]:  # the dicts that are returned do not change as training goes on
            group.update({name: dict(value) for name, value in group.items() if isinstance(value, dict)})
        by_param = {index: dict(values) for index, values in state["state"].items()}
        return {**state, "state": by_param, "gradient_evaluations": self.gradient_evaluations}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Load what `state_dict` returned. Options are those that were saved; a different composition is refused.

        Where both sides know the names of the parameters (of a module, or of `named_parameters()`), each parameter gets
        the state that was saved under its name, and other names are refused. Without names, as in torch, parameters
        are paired by their position, and the model must define its layers in the same order.

        A method that torch has (`create("adamw")`, …) loads the checkpoints of torch's optimizer too.
        """
        self._plans_of_now()
        state_dict = twins.from_torch(self, formats.current(loading.rejoined(state_dict)))
        with loading.watched(self):
            super().load_state_dict(state_dict)

    def _loaded(self, loaded: dict[str, Any]) -> None:
        """Before the user's own post hooks."""
        loading.keep_dtypes(self, loaded)
        recipes.adopt(self, loaded["param_groups"])
        self._as_new()
        for plan, p, _ in self._everything():  # what an older version did not keep
            self._complete(plan, p)
        self.gradient_evaluations = loaded.get("gradient_evaluations", 0)

    def _as_new(self) -> None:
        """After the groups and the state have been replaced."""
        self._open_batch = self._last_half = self._dropped_batch = None
        self._within = {}
        self._plans = [Plan(group) for group in self.param_groups]
        self._tie_scalars()
        self._inside = [plan.parts.constraint for plan in self._plans]

    def __getstate__(self) -> dict[str, Any]:
        recipes.follow(self)
        own = ("gradient_evaluations", "_modules", "_open_batch", "_within")
        return {**super().__getstate__(), **{name: getattr(self, name) for name in own}}

    def __setstate__(self, state: dict[str, Any]) -> None:
        super().__setstate__(state)
        self.defaults = {**options.ADDED_LATER, **self.defaults}
        open_batch, within = self._open_batch, self._within
        self._used, self._met, self._pairing = replay.Used(), buffers.Modules(), Pairing()
        for group in self.param_groups:  # options that are newer than the checkpoint
            group.update(options.normalised({**self.defaults, **group}))
        self._as_new()
        self._open_batch, self._within = open_batch, within
        replay.register(self)

    def __repr__(self) -> str:
        return options.describe(self)


def _made(slot: Any, p: Tensor) -> Tensor:
    """A tensor of the state of p: laid out and sharded as p if it has its shape, or else whole on every process."""
    dtype, like_p = state_dtype(p), tuple(slot.shape) == tuple(real(p).shape)
    if like_p and not slot.eye:
        return torch.full_like(real(p), slot.fill, dtype=dtype, memory_format=torch.preserve_format).detach()
    if slot.eye:
        made = torch.eye(slot.shape[-1], dtype=dtype, device=p.device).mul_(slot.fill)
        return made.expand(slot.shape).clone()
    return torch.full(slot.shape, slot.fill, dtype=dtype, device=p.device)
