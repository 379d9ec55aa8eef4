"""Loading a checkpoint: refused if it belongs to another composition or model; in the dtypes that it was saved in."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from torch import Tensor

from superadam import options
from superadam.distributed import like, restored
from superadam.lists import state_dtype
from superadam.options import Plan

__all__ = ["by_name", "fitted", "keep_dtypes", "rejoined"]

# What wrappers of a module put into the names of its parameters.
WRAPPERS = {"module", "_orig_mod", "_fsdp_wrapped_module", "_checkpoint_wrapped_module"}
Names = Sequence[Sequence[str] | None]


def rejoined(state_dict: dict[str, Any]) -> dict[str, Any]:
    """Return a state dict that `torch.distributed.checkpoint.load` has filled in, with its numbers where they belong.

    torch loads tensors in place, but numbers of the parameter 0 under "0".
    """
    if not isinstance(state_dict, dict) or not {"state", "param_groups"} <= state_dict.keys():
        raise ValueError(
            "load_state_dict() got no state of an optimizer: it has no 'state' and 'param_groups'. Give it what "
            "opt.state_dict() returned, such as checkpoint['optimizer']"
        )
    state = state_dict["state"]
    astray = {str(i) for i in state if isinstance(i, int)} & state.keys()
    found = {i: {**own, **state.get(str(i), {})} for i, own in state.items() if i not in astray}
    return {**state_dict, "state": found} if astray else state_dict


def fitted(opt: Any, state_dict: dict[str, Any]) -> dict[str, Any]:
    """Return the dict with its parameters in the order of the optimizer's, after checks of names and composition."""
    names = [group.get("param_names") for group in opt.param_groups]
    state_dict = by_name(state_dict, [group.get("param_names") for group in state_dict["param_groups"]], names)
    for own, saved in zip(opt.param_groups, state_dict["param_groups"], strict=False):
        saved.pop("param_layers", None)
        if "param_layers" in own:  # those of the model at hand
            saved["param_layers"] = own["param_layers"]
    _check_composition(opt, state_dict)
    return state_dict


def _bare(names: Sequence[str]) -> list[str]:
    """Return the names without the names of wrappers, unless two would become equal."""
    bare = [".".join(part for part in name.split(".") if part not in WRAPPERS) for name in names]
    return bare if len(set(bare)) == len(bare) else list(names)


def by_name(state_dict: dict[str, Any], there: Names, here: Names) -> dict[str, Any]:
    """Return the dict with the parameters of each group in the order of the names here: torch pairs them by position.

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
        elif theirs is not None and mine is not None:
            raise ValueError(
                f"The checkpoint belongs to another model: group {i} has {len(theirs)} parameters there, "
                f"{len(mine)} here."
            )
        groups.append(group)
    return {**state_dict, "param_groups": [*groups, *state_dict["param_groups"][len(groups) :]]}  # torch refuses more


def _check_composition(opt: Any, state_dict: dict[str, Any]) -> None:
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
        plan = Plan({**options.normalised({**opt.defaults, **saved}), "params": group["params"]})
        for index, p in zip(saved["params"], group["params"], strict=False):
            _check_state(opt, plan, p, index, state_dict["state"].get(index, {}))


def _types(choice: Any) -> Any:
    """Return the type of a part in a group, with the types of the parts that are its options: `ByShape(SOAP, Yogi)`."""
    if isinstance(choice, list | tuple):
        found = [_types(other) for other in choice if isinstance(other, dict)]
        return found[0] if len(found) == 1 else f"({', '.join(found)})"
    if not isinstance(choice, dict):
        return choice
    within = [_types(option) for option in choice.values() if _has_parts(option)]
    return f"{choice['type']}({', '.join(within)})" if within else choice["type"]


def _has_parts(option: Any) -> bool:
    return isinstance(option, dict) or (isinstance(option, list | tuple) and any(map(_has_parts, option)))


def _check_state(opt: Any, plan: Plan, p: Tensor, index: Any, state: dict[str, Any]) -> None:
    """Refuse a state with names or shapes that the composition does not have."""
    known = plan.expected(p)
    for name in state.keys() - known.keys():
        raise ValueError(
            f"The checkpoint was saved by another composition: it has {name!r} for parameter {index}; this composition "
            f"has {', '.join(sorted(known))}. Construct the optimizer as it was when the checkpoint was saved."
        )
    for name in known.keys() & state.keys():
        if known[name] is not None and tuple(state[name].shape) != known[name]:
            raise ValueError(
                f"The checkpoint does not fit the parameters: {name!r} of parameter {index} has shape "
                f"{tuple(state[name].shape)}, expected {known[name]}"
            )


def keep_dtypes(opt: Any, loaded: dict[str, Any]) -> None:
    """Put the state tensors into their own dtypes, where torch has cast them to the parameter's, and copy them."""
    gammas: dict[Any, Tensor] = {}
    for plan, saved in zip(opt._plans, loaded["param_groups"], strict=True):
        for index, p in zip(saved["params"], plan.group["params"], strict=True):
            factors, shared = plan.factors(p), plan.of(p).scalars
            for name, value in loaded["state"].get(index, {}).items():
                if name == "step":
                    opt.state[p]["step"] = int(value)
                elif isinstance(value, Tensor):
                    dtype = value.dtype if name in shared or name.startswith("aside_") else state_dtype(p)
                    value = value.detach().to(p.device, dtype, copy=True)
                    if name == "gamma":  # shared again by the parameters that move together
                        value = gammas.setdefault((float(value), value.dtype, value.device), value)
                    if name in factors:
                        value = restored(value, p, opt._places[p])
                    elif value.shape == p.shape or name == "root":
                        value = like(value, p)
                    opt.state[p][name] = value
