"""Loading a state: refused if it belongs to another composition, and in the dtypes it was saved in."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from superadam import options
from superadam.chunks import real, state_dtype
from superadam.options import Composition
from superadam.sharding import like

if TYPE_CHECKING:
    from superadam.base import ComposedOptimizer


def known_state(parts: Composition) -> set[str]:
    """What the state of a parameter may hold: the buffers and scalars of its parts, and the optimizer's own."""
    own = {"step", "gamma", "paired", "q", "dx", "master", "number", "root"}
    return own.union(parts.estimator.buffers, parts.matrix.buffers, parts.matrix.scalars)


def rejoined(state_dict: dict[str, Any]) -> dict[str, Any]:
    """A dict that `torch.distributed.checkpoint.load` has filled in, without the detour of its numbers.

    It loads tensors in place, but writes what is none under "0" where the dict says 0.
    """
    state = state_dict["state"]
    astray = {str(i) for i in state if isinstance(i, int)} & state.keys()
    found = {i: {**own, **state.get(str(i), {})} for i, own in state.items() if i not in astray}
    return {**state_dict, "state": found} if astray else state_dict


@contextmanager
def watched(opt: ComposedOptimizer) -> Iterator[None]:
    """See the dict that torch loads, after the user's own hooks, and refuse it before anything is changed."""
    loaded: dict[str, Any] = {}

    def look(_: Any, state_dict: dict[str, Any]) -> dict[str, Any]:
        names = [group.get("param_names") for group in opt.param_groups]
        state_dict = by_name(state_dict, [group.get("param_names") for group in state_dict["param_groups"]], names)
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


# What wrappers of a module put into the names of its parameters.
WRAPPERS = {"module", "_orig_mod", "_fsdp_wrapped_module", "_checkpoint_wrapped_module"}
Names = Sequence[Sequence[str] | None]


def _bare(names: Sequence[str]) -> list[str]:
    """The names without those of wrappers, if they are as different as before."""
    bare = [".".join(part for part in name.split(".") if part not in WRAPPERS) for name in names]
    return bare if len(set(bare)) == len(bare) else list(names)


def by_name(state_dict: dict[str, Any], there: Names, here: Names) -> dict[str, Any]:
    """An optimizer's `state_dict`, with the parameters of each group in the order of their names here.

    torch pairs parameters by position. A group without names on one side is left as it is.
    """
    if len(there) != len(here):
        return state_dict  # torch says it
    groups = []
    for i, (group, theirs, mine) in enumerate(zip(state_dict["param_groups"], there, here, strict=True)):
        if theirs is not None and mine is not None and len(theirs) == len(mine):
            place = {name: j for j, name in enumerate(_bare(theirs))}
            missing = [name for name in _bare(mine) if name not in place]
            if missing:
                raise ValueError(
                    f"The checkpoint belongs to another model: group {i} has a parameter {missing[0]!r} here, and none "
                    f"of that name there ({', '.join(list(place)[:5])}, ...). To load by position, drop the names "
                    "('param_names') from the checkpoint's param_groups."
                )
            order = [place[name] for name in _bare(mine)]
            group = {**group, "params": [group["params"][j] for j in order]}
            if "param_names" in group:
                group["param_names"] = [group["param_names"][j] for j in order]
        groups.append(group)
    return {**state_dict, "param_groups": groups}


def _check_composition(opt: ComposedOptimizer, state_dict: dict[str, Any]) -> None:
    if len(state_dict["param_groups"]) != len(opt.param_groups):
        return  # torch says it
    names = ["tau", "estimator", "matrix", "schedule", "constraint", "penalty"]
    if opt.defaults["schedule"] is None:  # nobody has asked for another: versions before had another default
        names.remove("schedule")
    for i, (group, saved) in enumerate(zip(opt.param_groups, state_dict["param_groups"], strict=True)):
        others = {} if "matrix" in saved else options.OF_TORCH.keys() & saved.keys()
        if others:
            raise ValueError(
                f"The checkpoint is not one of this composition: its group {i} has no matrix, but "
                f"{', '.join(sorted(others))}. Was it saved by another optimizer? Those of torch's are loaded by "
                'create("adamw"), "adam", "amsgrad", "sgd", "adagrad" and "adadelta".'
            )
        for name in names:
            mine, theirs = (g[name]["type"] if isinstance(g.get(name), dict) else g.get(name) for g in (group, saved))
            if name in saved and mine != theirs:
                raise ValueError(
                    f"The checkpoint belongs to another composition: group {i} has {name}={theirs} there and "
                    f"{name}={mine} here. Construct the optimizer as it was when the checkpoint was saved."
                )
        parts = Composition.of(options.normalised({**opt.defaults, **saved}))
        known = known_state(parts)
        for index, p in zip(saved["params"], group["params"], strict=False):
            state = state_dict["state"].get(index, {})
            for name in state.keys() - known:
                raise ValueError(
                    f"The checkpoint is not one of this composition: it has {name!r} for parameter {index}, where "
                    f"{', '.join(sorted(known))} are known. Was it saved by another optimizer?"
                )
            for name in {*parts.estimator.buffers, *parts.matrix.buffers, "master"} & state.keys():
                _check_shape(name, index, state[name], real(p).shape)
            if "root" in state:
                _check_shape("root", index, state["root"], parts.root_shape(p))
            for name in set(parts.matrix.scalars) & state.keys():
                _check_shape(name, index, state[name], ())


def _check_shape(name: str, index: Any, value: Tensor, expected: Any) -> None:
    if value.shape != expected:
        raise ValueError(
            f"The checkpoint does not fit the parameters: {name!r} of parameter {index} has shape "
            f"{tuple(value.shape)}, expected {tuple(expected)}"
        )


# In place of the γ of a pending move, in a checkpoint: no move is pending; nor is there a g (after `restart`).
NO_MOVE, NO_G = -1.0, -2.0


def complete(opt: ComposedOptimizer, groups: list[dict[str, Any]], states: dict[Any, dict[str, Any]]) -> None:
    """Let the states of a two-point optimizer hold the same names whenever they are saved.

    torch.distributed.checkpoint loads what the optimizer it loads into has a place for.
    """
    if not opt.two_point:
        return
    for group, saved in zip(opt.param_groups, groups, strict=True):
        for index, p in zip(saved["params"], group["params"], strict=True):
            if states.get(index):
                mark(group, p, opt._parts(group), states[index])


def mark(group: dict[str, Any], p: Tensor, parts: Composition, state: dict[str, Any]) -> None:
    """Say in the state of a parameter that no move is pending, if so, and give g a place."""
    if "gamma" in state:
        return
    gamma, why = options.gamma_of(group), NO_MOVE if "g" in state else NO_G
    state["gamma"] = torch.full_like(gamma, why).detach() if isinstance(gamma, Tensor) else why
    for name in set(parts.estimator.buffers) - state.keys():
        state[name] = torch.zeros_like(real(p), dtype=state_dtype(p)).detach()


def unmark(states: Iterable[dict[str, Any]]) -> None:
    for state in states:
        gamma = state.get("gamma", 0.0)
        if gamma < 0:
            del state["gamma"]
            if gamma == NO_G:
                del state["g"]


def keep_dtypes(opt: ComposedOptimizer, loaded: dict[str, Any]) -> None:
    """Undo torch's cast of every state tensor to its parameter's dtype, and share no memory with the checkpoint."""
    for group, saved in zip(opt.param_groups, loaded["param_groups"], strict=True):
        estimator, matrix, *_ = opt._parts(group)
        for index, p in zip(saved["params"], group["params"], strict=True):
            for name, value in loaded["state"].get(index, {}).items():
                if name == "step":
                    opt.state[p]["step"] = _step(value, p, group["capturable"])
                elif isinstance(value, Tensor):
                    # scalars and gamma have dtypes of their own
                    shaped = name in (*estimator.buffers, *matrix.buffers, "master", "root")
                    dtype = state_dtype(p) if shaped else value.dtype
                    value = value.detach().to(p.device, dtype, copy=True)
                    opt.state[p][name] = like(value, p) if shaped else value
            if "gamma" in loaded["state"].get(index, {}):
                opt.state[p].setdefault("gamma", loaded["state"][index]["gamma"])
                unmark([opt.state[p]])


def _step(value: int | Tensor, p: Tensor, capturable: bool) -> int | Tensor:
    if capturable:
        return torch.as_tensor(value, dtype=torch.float32, device=p.device).clone()
    return int(value)
