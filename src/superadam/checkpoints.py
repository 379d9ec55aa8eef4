"""Loading a state: refused if it belongs to another composition, and in the dtypes it was saved in."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from superadam import options
from superadam.chunks import real, state_dtype
from superadam.options import Composition

if TYPE_CHECKING:
    from superadam.base import ComposedOptimizer


def known_state(parts: Composition) -> set[str]:
    """What the state of a parameter may hold: the buffers and scalars of its parts, and the optimizer's own."""
    own = {"step", "gamma", "paired", "q", "dx", "root"}
    return own.union(parts.estimator.buffers, parts.matrix.buffers, parts.matrix.scalars)


@contextmanager
def watched(opt: ComposedOptimizer) -> Iterator[None]:
    """See the dict that torch loads, after the user's own hooks, and refuse it before anything is changed."""
    loaded: dict[str, Any] = {}

    def look(_: Any, state_dict: dict[str, Any]) -> None:
        _check_composition(opt, state_dict)
        loaded.update(state_dict)

    handles = [
        opt.register_load_state_dict_pre_hook(look),
        opt.register_load_state_dict_post_hook(lambda _: opt._loaded(loaded), prepend=True),
    ]
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()


def _check_composition(opt: ComposedOptimizer, state_dict: dict[str, Any]) -> None:
    if len(state_dict["param_groups"]) != len(opt.param_groups):
        return  # torch says it
    for i, (group, saved) in enumerate(zip(opt.param_groups, state_dict["param_groups"], strict=True)):
        for name in ("tau", "estimator", "matrix", "schedule", "constraint", "penalty"):
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
            for name in {*parts.estimator.buffers, *parts.matrix.buffers} & state.keys():
                if state[name].shape != real(p).shape:
                    raise ValueError(
                        f"The checkpoint does not fit the parameters: {name!r} of parameter {index} has shape "
                        f"{tuple(state[name].shape)}, expected {tuple(real(p).shape)}"
                    )


def keep_dtypes(opt: ComposedOptimizer, loaded: dict[str, Any]) -> None:
    """Undo torch's cast of every state tensor to its parameter's dtype, and share no memory with the checkpoint."""
    for group, saved in zip(opt.param_groups, loaded["param_groups"], strict=True):
        estimator, matrix, *_ = opt._parts(group)
        for index, p in zip(saved["params"], group["params"], strict=True):
            for name, value in loaded["state"].get(index, {}).items():
                if name == "step":
                    opt.state[p]["step"] = _step(value, p, group["capturable"])
                elif isinstance(value, Tensor):
                    shaped = name in (*estimator.buffers, *matrix.buffers)  # scalars and gamma have dtypes of their own
                    dtype = state_dtype(p) if shaped else value.dtype
                    opt.state[p][name] = value.detach().to(p.device, dtype, copy=True)


def _step(value: int | Tensor, p: Tensor, capturable: bool) -> int | Tensor:
    if capturable:
        return torch.as_tensor(value, dtype=torch.float32, device=p.device).clone()
    return int(value)
