"""Loading a state: refused if it belongs to another composition, and in the dtypes it was saved in."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from superadam.chunks import real, state_dtype

if TYPE_CHECKING:
    from superadam.base import ComposedOptimizer

# What a parameter's state may hold besides the buffers and scalars of its parts.
_ALWAYS = {"step", "gamma", "restarted"}


@contextmanager
def watched(opt: ComposedOptimizer) -> Iterator[dict[str, Any]]:
    """See the dict that torch loads, after the user's own hooks, and refuse it before anything is changed."""
    loaded: dict[str, Any] = {}

    def look(_: Any, state_dict: dict[str, Any]) -> None:
        _check_composition(opt, state_dict)
        loaded.update(state_dict)

    handle = opt.register_load_state_dict_pre_hook(look)
    try:
        yield loaded
    finally:
        handle.remove()


def _check_composition(opt: ComposedOptimizer, state_dict: dict[str, Any]) -> None:
    if len(state_dict["param_groups"]) != len(opt.param_groups):
        return  # torch says it
    for i, (group, saved) in enumerate(zip(opt.param_groups, state_dict["param_groups"], strict=True)):
        for name in ("tau", "estimator", "matrix", "schedule"):
            mine, theirs = (g[name]["type"] if isinstance(g.get(name), dict) else g.get(name) for g in (group, saved))
            if name in saved and mine != theirs:
                raise ValueError(
                    f"The checkpoint belongs to another composition: group {i} has {name}={theirs} there and "
                    f"{name}={mine} here. Construct the optimizer as it was when the checkpoint was saved."
                )
        estimator, matrix, _ = opt._parts(group)
        known = _ALWAYS.union(estimator.buffers, matrix.buffers, matrix.scalars)
        for index, p in zip(saved["params"], group["params"], strict=False):
            state = state_dict["state"].get(index, {})
            for name in state.keys() - known:
                raise ValueError(
                    f"The checkpoint is not one of this composition: it has {name!r} for parameter {index}, where "
                    f"{', '.join(sorted(known))} are known. Was it saved by another optimizer?"
                )
            for name in {*estimator.buffers, *matrix.buffers} & state.keys():
                if state[name].shape != real(p).shape:
                    raise ValueError(
                        f"The checkpoint does not fit the parameters: {name!r} of parameter {index} has shape "
                        f"{tuple(state[name].shape)}, expected {tuple(real(p).shape)}"
                    )


def keep_dtypes(opt: ComposedOptimizer, saved: dict[Any, dict[str, Any]]) -> None:
    """Undo torch's cast of every state tensor to its parameter's dtype, and share no memory with the checkpoint."""
    params = [p for group in opt.param_groups for p in group["params"]]
    capturable = {p: group["capturable"] for group in opt.param_groups for p in group["params"]}
    for index, p in enumerate(params):
        for name, value in saved.get(index, {}).items():
            if name == "step":
                opt.state[p]["step"] = _step(value, p, capturable[p])
            elif isinstance(value, Tensor):
                opt.state[p][name] = value.detach().to(p.device, state_dtype(p), copy=True)


def _step(value: int | Tensor, p: Tensor, capturable: bool) -> int | Tensor:
    if capturable:
        return torch.as_tensor(value, dtype=torch.float32, device=p.device).clone()
    return int(value)
