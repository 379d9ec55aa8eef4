"""What a composed optimizer keeps, apart from the algorithm it runs: options, parts, state, checkpoints."""

from __future__ import annotations

from collections.abc import Callable, Hashable
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer
from torch.optim.optimizer import ParamsT

from superadam import buffers, checkpoints, options, recipes, replay, rounding, steps, twins
from superadam.chunks import Chunk, real, state_dtype
from superadam.matrices import Matrix
from superadam.options import Composition
from superadam.pairing import Pairing
from superadam.sets import ConvexSet
from superadam.sharding import joined, local, sharding
from superadam.sharding import objection as sharding_objection

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
        self._never_stepped: dict[int, State] = {}  # what init_state has created, by id
        self._parts_of: dict[Hashable, Composition] = {}
        self._scalars: dict[Matrix, dict[str, Tensor]] = {}
        self._inside: list[ConvexSet | None] = []  # the set that the parameters of a group have been put into
        replay.register(self)
        if isinstance(params, nn.Module):
            self.protect(params)
            params = list(params.named_parameters())
        # What is the composition's own is left open here: a group may have another composition.
        left_open = {name: None for name in ("lr", "schedule") if defaults[name] is None}
        super().__init__(params, {**options.normalised(defaults), **left_open})

    def protect(self, module: nn.Module) -> None:
        """Give both evaluations of a batch the same buffers of `module`, as is done for a module given as `params`."""
        self._modules.append(module)

    def _buffered(self) -> list[nn.Module]:
        """The modules whose buffers are the same in both evaluations of a batch."""
        return [*self._modules, *self._met]

    @property
    def two_point(self) -> bool:
        """Whether a step takes two gradients of its batch."""
        return any(self._parts(group).two_point for group in self.param_groups)

    def _pending(self) -> bool:
        return any("gamma" in state and id(state) not in self._never_stepped for state in self.state.values())

    def _parts(self, group: dict[str, Any]) -> Composition:
        specs = [group[name] for name in ("estimator", "matrix", "schedule", "constraint", "penalty")]
        if not all(spec is None or isinstance(spec, dict) for spec in specs):
            self._normalise()
            return self._parts(group)
        key = (group["tau"], *(spec and tuple(spec.items()) for spec in specs))
        if key not in self._parts_of:
            self._parts_of[key] = Composition.of(group)
        return self._parts_of[key]

    def _normalise(self) -> None:
        """Turn parts that the user has assigned to a group into plain data, and drop what only the old ones knew."""
        recipes.follow(self)
        for group in self.param_groups:
            group.update(options.normalised(group))
            parts = self._parts(group)
            known = checkpoints.known_state(parts)
            for p in group["params"]:
                state = self.state.get(p, {})
                for name in state.keys() - known:
                    del state[name]
                if "root" in state and state["root"].shape != parts.root_shape(p):
                    del state["root"]

    def _chunks(self, kind: Callable[[Tensor, State], Hashable]) -> list[Chunk]:
        """The parameters that are of some kind (not None), together where they are alike."""
        chunks = []
        for group in self.param_groups:
            parts = self._parts(group)
            if parts.matrix.scalars and parts.matrix not in self._scalars:
                self._tie_scalars()
            scalars = self._scalars.get(parts.matrix, {})
            alike: dict[Hashable, list[Tensor]] = {}
            differentiable, capturable = group["differentiable"], group["capturable"]
            together = group["foreach"] is not False and not differentiable
            for p in group["params"]:
                state = self.state.get(p, {})
                of_kind = kind(p, state)
                if of_kind is None:
                    continue
                if differentiable:  # what autograd has saved must not be written into
                    shared = parts.matrix.scalars
                    state.update({k: v.clone() for k, v in state.items() if isinstance(v, Tensor) and k not in shared})
                if together:
                    step = None if capturable else state["step"]
                    alike.setdefault((p.device, p.dtype, sharding(p), step, of_kind), []).append(p)
                else:
                    alike[p] = [p]
            shared_parts = parts._asdict()
            chunks += [
                Chunk(
                    group=group,
                    params=params,
                    grads=[p.grad for p in params],
                    states=[self.state[p] for p in params],
                    **shared_parts,
                    scalars=scalars,
                )
                for params in alike.values()
            ]
        return chunks

    def _init_state(self, group: dict[str, Any], parts: Composition, p: Tensor) -> None:
        """What is missing in the state of a parameter: all of it at first, g after a restart."""
        state = self.state[p]
        estimator, matrix, *_ = parts
        if "step" not in state:
            capturable = group["capturable"]
            state["step"] = torch.zeros((), dtype=torch.float32, device=p.device) if capturable else 0
        elif "g" not in state:
            state["restarted"] = True
        for name in (*estimator.buffers, *matrix.buffers):
            if name not in state:
                state[name] = torch.full_like(
                    real(p),
                    matrix.initial(name) if name in matrix.buffers else 0.0,
                    dtype=state_dtype(p),
                    memory_format=torch.preserve_format,
                ).detach()
        shape, here = parts.root_shape(p), parts.root_shape(local(p))
        if shape is not None and here is not None and "root" not in state:
            state["root"] = joined(torch.zeros(here, dtype=state_dtype(p), device=p.device), shape, p)
        rounding.prepare(group, p, state, number=len(self.state))
        if not state.keys() >= set(matrix.scalars):
            state.update(self._shared(matrix))

    def init_state(self) -> None:
        """Create the state that training would create, as it is before the first step: something to load into."""
        for group in self.param_groups:
            parts = self._parts(group)
            for p in group["params"]:
                new = p not in self.state
                if p.requires_grad:
                    self._init_state(group, parts, p)
                if new and p in self.state and self.two_point:
                    self._never_stepped[id(self.state[p])] = self.state[p]
        self._mark()

    def _mark(self) -> None:
        """Say in the states that `init_state` has created that no move is pending, in the dtype of the present lr."""
        for group in self.param_groups if self._never_stepped else ():
            for p in group["params"]:
                state = self._never_stepped.get(id(self.state.get(p)))
                if state is not None:
                    state.pop("gamma", None)
                    checkpoints.mark(group, p, self._parts(group), state)

    def _unmark(self) -> None:
        """Training goes on without what `init_state` has put in place of a pending move."""
        for state in self._never_stepped.values():
            state.pop("gamma", None)
        self._never_stepped = {}

    def _shared(self, matrix: Matrix) -> dict[str, Tensor]:
        """The scalars of a matrix, one tensor each for all its parameters."""
        if self._scalars.get(matrix, {}).keys() != set(matrix.scalars):
            params = [p for g in self.param_groups if self._parts(g).matrix == matrix for p in g["params"]]
            dtype = torch.float64 if any(state_dtype(p) is torch.float64 for p in params) else torch.float32
            self._scalars[matrix] = {
                name: torch.full((), matrix.initial(name), dtype=dtype, device=params[0].device)
                for name in matrix.scalars
            }
        return self._scalars[matrix]

    def _tie_scalars(self) -> None:
        """One tensor for all parameters of a matrix, after loading, or after a change of a matrix's options."""
        self._scalars = {}
        taken: set[int] = set()
        for group in self.param_groups:
            matrix = self._parts(group).matrix
            for p in group["params"]:
                state = self.state.get(p, {})
                if not state or not matrix.scalars:
                    continue
                if matrix not in self._scalars:
                    own = {
                        n: state[n].clone() if id(state[n]) in taken else state[n] for n in matrix.scalars if n in state
                    }
                    taken.update(map(id, own.values()))
                    self._scalars[matrix] = {**self._shared(matrix), **own}
                state.update(self._scalars[matrix])

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
            if left_open:
                group["lr"] = self._parts(group).lr
            self._check_places(group)
            self._enter(group)
        except (TypeError, ValueError):  # say, of the set: complex or not finite, or of a shape that it is not for
            self.param_groups.pop()
            raise
        self._inside.append(self._parts(group).constraint)
        options.warn_of_fused(self._parts(group), group)

    def _check_places(self, group: dict[str, Any]) -> None:
        """Refuse a group whose parts cannot work on parameters where these are."""
        parts, names = self._parts(group), group.get("param_names")
        for j, p in enumerate(group["params"]):
            reason = rounding.objection(group, p)
            if sharded := sharding_objection(parts, group, p):
                reason = f"it is sharded, and {sharded}"
            if reason is not None:
                raise ValueError(f"Parameter {names[j] if names else j}: {reason}")
        if parts.matrix.joint:
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
            points = [steps.nearest_point(constraint, p) for p in group["params"]]
            for p, x in zip(group["params"], points, strict=True):
                local(p).copy_(x)

    def _enter_changed_sets(self) -> None:
        """Where the user has given a group another set, put x there first: line 10 keeps x only where it is."""
        for i, group in enumerate(self.param_groups):
            constraint = self._parts(group).constraint
            if constraint is not self._inside[i]:
                if constraint != self._inside[i]:
                    self._check_places(group)
                    self._enter(group)
                self._inside[i] = constraint

    def state_dict(self) -> dict[str, Any]:
        """The state as plain numbers, strings and tensors. Refused between the two half-steps of a batch."""
        self._normalise()
        self._mark()
        if self._open_batch is not None:
            raise RuntimeError(
                "state_dict() between the two half-steps of a batch, which could not be resumed from. Save after the "
                "second step() of a batch."
            )
        state = super().state_dict()
        for group in state["param_groups"]:  # the dicts that are returned do not change as training goes on
            group.update({name: dict(value) for name, value in group.items() if isinstance(value, dict)})
        by_param = {index: dict(values) for index, values in state["state"].items()}
        checkpoints.complete(self, state["param_groups"], by_param)
        return {**state, "state": by_param, "gradient_evaluations": self.gradient_evaluations}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Load what `state_dict` returned. Options are those that were saved; a different composition is refused.

        Where both sides know the names of the parameters (of a module, or of `named_parameters()`), each parameter gets
        the state that was saved under its name, and other names are refused. Without names, as in torch, parameters
        are paired by their position, and the model must define its layers in the same order.

        A method that torch has (`create("adamw")`, …) loads the checkpoints of torch's optimizer too.
        """
        self._normalise()
        state_dict = twins.from_torch(self, checkpoints.rejoined(state_dict))
        with checkpoints.watched(self):
            super().load_state_dict(state_dict)

    def _loaded(self, loaded: dict[str, Any]) -> None:
        """Before the user's own post hooks."""
        checkpoints.keep_dtypes(self, loaded)
        self._open_batch = self._last_half = None
        self._never_stepped = {}
        recipes.adopt(self, loaded["param_groups"])
        self._tie_scalars()
        self._inside = [self._parts(group).constraint for group in self.param_groups]
        self.gradient_evaluations = loaded.get("gradient_evaluations", 0)

    def __getstate__(self) -> dict[str, Any]:
        recipes.follow(self)
        own = ("gradient_evaluations", "_modules", "_open_batch")
        return {**super().__getstate__(), **{name: getattr(self, name) for name in own}}

    def __setstate__(self, state: dict[str, Any]) -> None:
        super().__setstate__(state)
        self.defaults = {**options.ADDED_LATER, **self.defaults}
        self._parts_of = {}
        self._last_half = self._dropped_batch = None
        self._used, self._met, self._pairing = replay.Used(), buffers.Modules(), Pairing()
        self._never_stepped = {}
        checkpoints.unmark(self.state.values())
        for group in self.param_groups:  # options that are newer than the checkpoint
            group.update(options.normalised({**self.defaults, **group}))
        self._tie_scalars()
        self._inside = [self._parts(group).constraint for group in self.param_groups]
        replay.register(self)

    def __repr__(self) -> str:
        return options.describe(self)
