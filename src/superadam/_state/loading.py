"""Loading a checkpoint: refused if it belongs to another composition; in the dtypes that it was saved in."""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from superadam._state import options
from superadam._state.owners import restored
from superadam._state.plans import GroupPlan
from superadam._state.sharding import like
from superadam.lists import real

if TYPE_CHECKING:
    from superadam._state.composed import ComposedOptimizer
    from superadam._state.options import Composition


def known_state(parts: Composition, p: Tensor) -> set[str]:
    """The keys that the state of a parameter may have."""
    own = {"step", "phase", "gamma", "master", "number", "root"}
    aside = {f"aside_{name}" for name in ("x", "master", *parts.iterate.buffers)}  # after opt.eval()
    return own.union(parts.names(p), parts.scalars, parts.iterate.numbers, aside)


def rejoined(state_dict: dict[str, Any]) -> dict[str, Any]:
    """A state dict that `torch.distributed.checkpoint.load` has filled in, with its numbers where they belong.

    torch loads tensors in place, but numbers of the parameter 0 under "0".
    """
    state = state_dict["state"]
    astray = {str(i) for i in state if isinstance(i, int)} & state.keys()
    found = {i: {**own, **state.get(str(i), {})} for i, own in state.items() if i not in astray}
    return {**state_dict, "state": found} if astray else state_dict


@contextmanager
def watched(opt: ComposedOptimizer) -> Iterator[None]:
    """Check the dict that torch loads inside the `with`, after the user's own hooks and before anything changes."""
    loaded: dict[str, Any] = {}

    def look(_: Any, state_dict: dict[str, Any]) -> dict[str, Any]:
        names = [group.get("param_names") for group in opt.param_groups]
        before = [_older_layers(group) for group in state_dict["param_groups"]]
        state_dict = by_name(state_dict, [group.get("param_names") for group in state_dict["param_groups"]], names)
        for own, saved, older in zip(opt.param_groups, state_dict["param_groups"], before, strict=False):
            saved.pop("param_layers", None)
            if "param_layers" in own:  # those of the model at hand
                given = zip(saved.get("param_names", own["param_layers"]), own["param_layers"], strict=False)
                saved["param_layers"] = [older.get(name, layer) for name, layer in given]
        _check_composition(opt, state_dict)
        loaded.update(state_dict)
        return state_dict

    handles = [
        opt.register_load_state_dict_pre_hook(look),
        opt.register_load_state_dict_post_hook(lambda _: opt._loaded(loaded), prepend=True),
    ]
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()


def _older_layers(group: dict[str, Any]) -> dict[str, str]:
    """The layers by the names of the parameters, if they are types without those that they are derived from.

    Their parameters have the matrices that these types alone asked for.
    """
    layers = group.get("param_layers") or ()
    older = not any(" " in layer for layer in layers)
    return dict(zip(group.get("param_names") or (), layers, strict=False)) if older else {}


# What wrappers of a module put into the names of its parameters.
WRAPPERS = {"module", "_orig_mod", "_fsdp_wrapped_module", "_checkpoint_wrapped_module"}
Names = Sequence[Sequence[str] | None]


def _bare(names: Sequence[str]) -> list[str]:
    """The names without those of wrappers, unless two would become equal."""
    bare = [".".join(part for part in name.split(".") if part not in WRAPPERS) for name in names]
    return bare if len(set(bare)) == len(bare) else list(names)


def by_name(state_dict: dict[str, Any], there: Names, here: Names) -> dict[str, Any]:
    """A `state_dict` with the parameters of each group in the order of the names here: torch pairs them by position.

    A group without names on one side is left as it is.
    """
    groups = []
    for i, (group, theirs, mine) in enumerate(zip(state_dict["param_groups"], there, here, strict=False)):
        group = dict(group)
        if theirs is not None and mine is not None and len(theirs) == len(mine):
            place = {name: j for j, name in enumerate(_bare(theirs))}
            missing = [name for name in _bare(mine) if name not in place]
            if missing:
                raise ValueError(
                    f"The checkpoint belongs to another model: group {i}: parameter {missing[0]!r} is not in the "
                    f"checkpoint, which has {', '.join(list(place)[:5])}, ... To load by position, delete "
                    "'param_names' from the checkpoint's param_groups."
                )
            order = [place[name] for name in _bare(mine)]
            group = {**group, "params": [group["params"][j] for j in order]}
            if "param_names" in group:
                group["param_names"] = [group["param_names"][j] for j in order]
        groups.append(group)
    return {**state_dict, "param_groups": [*groups, *state_dict["param_groups"][len(groups) :]]}  # torch refuses more


def _check_composition(opt: ComposedOptimizer, state_dict: dict[str, Any]) -> None:
    if len(state_dict["param_groups"]) != len(opt.param_groups):
        return  # torch says it
    for i, (group, saved) in enumerate(zip(opt.param_groups, state_dict["param_groups"], strict=True)):
        others = {} if "matrix" in saved else options.OF_TORCH.keys() & saved.keys()
        if others:
            raise ValueError(
                f"The checkpoint was saved by another optimizer: its group {i} has no matrix, but "
                f"{', '.join(sorted(others))}. To load a checkpoint of torch's, construct the optimizer with "
                'create("adamw"), "adam", "amsgrad", "sgd", "adagrad" or "adadelta".'
            )
        for name in ("tau", *options.KINDS):
            mine, theirs = _types(group.get(name)), _types(saved.get(name))
            if name in saved and mine != theirs:
                raise ValueError(
                    f"The checkpoint belongs to another composition: group {i} has {name}={theirs} there and "
                    f"{name}={mine} here. Construct the optimizer as it was when the checkpoint was saved."
                )
        plan = GroupPlan({**options.normalised({**opt.defaults, **saved}), "params": group["params"]})
        for index, p in zip(saved["params"], group["params"], strict=False):
            _check_state(plan.of(p), p, index, state_dict["state"].get(index, {}))


def _types(choice: Any) -> Any:
    """The type of a part in a group, with the types of the parts that it has as options: `ByShape(SOAP, Yogi)`."""
    if isinstance(choice, list | tuple):
        found = [_types(other) for other in choice if isinstance(other, dict)]
        return found[0] if len(found) == 1 else f"({', '.join(found)})"
    if not isinstance(choice, dict):
        return choice
    within = [_types(option) for option in choice.values() if _has_parts(option)]
    return f"{choice['type']}({', '.join(within)})" if within else choice["type"]


def _has_parts(option: Any) -> bool:
    return isinstance(option, dict) or (isinstance(option, list | tuple) and any(map(_has_parts, option)))


def _check_state(parts: Composition, p: Tensor, index: Any, state: dict[str, Any]) -> None:
    known = known_state(parts, p)
    for name in state.keys() - known:
        raise ValueError(
            f"The checkpoint was saved by another composition: it has {name!r} for parameter {index}; this composition "
            f"has {', '.join(sorted(known))}. Construct the optimizer as it was when the checkpoint was saved."
        )
    shapes: dict[str, Any] = {name: slot.shape for name, slot in parts.slots(real(p)).items()}
    shapes |= {"master": real(p).shape, "root": parts.root_shape(p) or (), **parts.scalars}
    for name in shapes.keys() & state.keys():
        if tuple(state[name].shape) != tuple(shapes[name]):
            raise ValueError(
                f"The checkpoint does not fit the parameters: {name!r} of parameter {index} has shape "
                f"{tuple(state[name].shape)}, expected {tuple(shapes[name])}"
            )


def keep_dtypes(opt: ComposedOptimizer, loaded: dict[str, Any]) -> None:
    """Load the state tensors in their own dtypes, where torch has cast them to the parameter's, and as copies."""
    for group, saved in zip(opt.param_groups, loaded["param_groups"], strict=True):
        plan = opt._new_plan(group)
        gammas: dict[Hashable, Tensor] = {}
        for index, p in zip(saved["params"], group["params"], strict=True):
            factors = plan.factors(p)
            shaped = {*plan.of(p).names(p), "master", "root"}  # scalars have a dtype of their own
            for name, value in loaded["state"].get(index, {}).items():
                if name == "step":
                    opt.state[p]["step"] = _step(value, p, group["capturable"])
                elif isinstance(value, Tensor):
                    dtype = plan.dtype(p, name) if name in {*shaped, "gamma"} else value.dtype
                    value = value.detach().to(p.device, dtype, copy=True)
                    whole = name in shaped and value.shape == p.shape
                    if name == "gamma":  # shared again by the parameters that move together
                        value = gammas.setdefault((float(value), value.dtype, value.device), value)
                    if name in factors:
                        opt.state[p][name] = restored(value, p, plan.places[p])
                    else:
                        opt.state[p][name] = like(value, p) if whole or name == "root" else value


def _step(value: int | Tensor, p: Tensor, capturable: bool) -> int | Tensor:
    if capturable:
        return torch.as_tensor(value, dtype=torch.float32, device=p.device).clone()
    return int(value)
