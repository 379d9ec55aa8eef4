"""Checkpoints in the format of torch's optimizers, loaded and made, for the methods that torch has too."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch import Tensor

from superadam._state.phases import READY, RESTARTED, START
from superadam._state.recipes import RECIPES, Recipe
from superadam.estimators import Recursive
from superadam.lists import real, state_dtype

if TYPE_CHECKING:
    from superadam._state.composed import ComposedOptimizer

__all__ = ["Twin", "from_torch", "torch_state_dict"]

# Options that both sides have; options of torch for how a step runs, of which a checkpoint changes none here.
SHARED = ("lr", "weight_decay", "maximize")
WAYS = ("foreach", "fused", "capturable", "differentiable")


class Twin(NamedTuple):
    """An optimizer of torch that a method equals."""

    name: str
    options: tuple[str, ...]
    """The options that have the same names in torch."""
    buffers: dict[str, str]
    """torch's name of each tensor of the state, and ours. Our g is torch's average times `Recipe.scale`."""
    fixed: dict[str, Any]
    """Options of torch that must have this value."""
    decouples: bool = False
    """Whether torch has the option `decoupled_weight_decay`."""
    counts: bool = True
    """Whether torch counts the steps."""
    begins: bool = False
    """Whether torch creates the state before the first step."""


def from_torch(opt: ComposedOptimizer, state_dict: dict[str, Any]) -> dict[str, Any]:
    """A checkpoint of the torch optimizer that `opt` equals, in our format. Any other dict is returned as it is."""
    groups, saved = opt.param_groups, state_dict["param_groups"]
    foreign = len(groups) == len(saved) and not any("matrix" in group for group in saved)
    if not foreign or not all("method" in group for group in groups):
        return state_dict
    found: dict[str, Any] = {"state": {}, "param_groups": []}
    for i, (group, theirs) in enumerate(zip(groups, saved, strict=True)):
        recipe, states = _recipe(group), [state_dict["state"].get(index, {}) for index in theirs["params"]]
        reason = _difference(recipe.twin, group, theirs, states)
        if reason is not None:
            others = [n for n, r in RECIPES.items() if r.twin and _difference(r.twin, None, theirs, states) is None]
            hint = f' It fits create("{others[0]}").' if others and RECIPES[others[0]] is not recipe else ""
            raise ValueError(
                f"The checkpoint was saved neither by this optimizer nor by {recipe.twin.name}, which it equals: group "
                f"{i} {reason}.{hint}"
            )
        method = group["method"]
        now = {**method["options"], **{name: theirs[name] for name in recipe.twin.options}}
        parts = {name: part.spec() for name, part in recipe.parts(**now).items()}
        known = {*WAYS, *recipe.twin.fixed}
        found["param_groups"].append(
            {
                **{name: value for name, value in group.items() if name not in ("params", "param_names")},
                **{name: value for name, value in theirs.items() if name not in known},
                **now,
                **parts,
                "method": {**method, "options": now},
            }
        )
        for index, state in zip(theirs["params"], states, strict=True):
            ours = _ours(recipe, now, state)
            if ours:
                found["state"][index] = ours
    return found


def _recipe(group: dict[str, Any]) -> Any:
    """The recipe of a group that equals an optimizer of torch."""
    method = group.get("method", {"type": "it", "options": {}})
    recipe = RECIPES.get(method["type"])
    why = None
    if recipe is None or recipe.twin is None:
        why = f"torch has no {method['type']}"
    elif any(recipe.parts(**method["options"])[name].spec() != group[name] for name in ("matrix", "schedule")):
        why = f"its matrix or schedule is not that of {method['type']}"
    elif group["tau"] != 0 or group["estimator"] not in (None, Recursive().spec()) or group["iterate"] is not None:
        why = "torch has no estimator but momentum, and no iterate but the plain one"
    elif not method["options"].get("bias_correction", True):
        why = "torch corrects both averages for their start"
    elif group["weight_decay"] != 0 and group["decoupled_weight_decay"] and not recipe.twin.decouples:
        why = "torch adds the weight decay to the gradient here"
    if why is not None:
        raise ValueError(
            f"No optimizer of torch equals this composition, so torch cannot use its checkpoints: {why}. "
            'Use create("sgd"), "adagrad", "adadelta", "adam", "adamw", "amsgrad", "radam" or "adamax".'
        )
    return recipe


def _difference(
    twin: Twin, group: dict[str, Any] | None, theirs: dict[str, Any], states: list[dict[str, Any]]
) -> str | None:
    """How a group of a checkpoint differs from one of the twin, or None."""
    for name in twin.options:
        if name not in theirs:
            return f"has no {name}"
    for name, value in twin.fixed.items():
        if name not in theirs or theirs[name] != value:
            return f"has {name}={theirs[name]}" if name in theirs else f"has no {name}"
    mine = group["decoupled_weight_decay"] if group is not None else None
    decoupled = theirs.get("decoupled_weight_decay", mine if twin.decouples else False)  # torch has it since 2.7
    if mine is not None and theirs["weight_decay"] != 0 and decoupled != mine:
        return f"has decoupled_weight_decay={decoupled}, and {mine} here"
    known = {*twin.buffers, *(["step"] if twin.counts else [])}
    for state in states:
        for name in state.keys() - known:
            return f"has a parameter with {name!r}, where {', '.join(sorted(known))} are known"
        if state and not state.keys() >= known:
            return f"has a parameter without {', '.join(sorted(known - state.keys()))}"
    return None


def _ours(recipe: Recipe, options: dict[str, Any], state: dict[str, Any]) -> dict[str, Any]:
    twin: Any = recipe.twin
    held: dict[str, Any] = {ours: state.get(theirs) for theirs, ours in twin.buffers.items()}
    if any(tensor is None for tensor in held.values()):  # no step was taken, or SGD has no momentum
        return {}
    t = int(state["step"]) if twin.counts else 1
    buffers = {ours: real(tensor).to(state_dtype(tensor), copy=True) for ours, tensor in held.items()}
    if "g" not in buffers:  # it is the newest gradient, and the next one takes its place
        buffers["g"] = torch.zeros_like(next(iter(buffers.values())))
    elif recipe.scale is not None and t > 0:
        buffers["g"] *= recipe.scale(t, **options)
    return {"step": t, "phase": READY if t > 0 else START, **buffers}


def torch_state_dict(opt: ComposedOptimizer) -> dict[str, Any]:
    """The state of a method that torch has, for `load_state_dict` of torch's optimizer.

    The methods are "sgd", "adagrad", "adadelta", "adam", "adamw", "radam", "adamax" and "amsgrad" (torch.optim.Adam or
    AdamW with `amsgrad=True`). In the other direction, `opt.load_state_dict` loads a checkpoint of torch's optimizer as
    it is.

    >>> from superadam import create
    >>> x = torch.ones(2, requires_grad=True)
    >>> opt = create("adamw", [x], lr=0.1)
    >>> x.square().sum().backward()
    >>> opt.step()
    >>> theirs = torch.optim.AdamW([x])
    >>> theirs.load_state_dict(torch_state_dict(opt))
    >>> theirs.param_groups[0]["lr"], theirs.state[x]["exp_avg"]
    (0.1, tensor([0.2000, 0.2000]))
    """
    recipes = [_recipe(group) for group in opt.param_groups]
    if any(recipe.twin.begins for recipe in recipes):
        opt.init_state()
    mine = opt.state_dict()
    found: dict[str, Any] = {"state": {}, "param_groups": []}
    for recipe, group, saved in zip(recipes, opt.param_groups, mine["param_groups"], strict=True):
        own, twin = saved["method"]["options"], recipe.twin
        options = {name: own[name] for name in twin.options}
        if twin.decouples:
            options["decoupled_weight_decay"] = saved["decoupled_weight_decay"]
        ways = {name: saved[name] if name in ("capturable", "differentiable") else None for name in WAYS}
        others = {name: value for name, value in saved.items() if name not in {*opt.defaults, *own, "method"}}
        shared = {name: saved[name] for name in SHARED}
        found["param_groups"].append({**shared, **options, **twin.fixed, **ways, **others})
        for index, p in zip(saved["params"], group["params"], strict=True):
            state = mine["state"].get(index)
            if state:
                found["state"][index] = _theirs(recipe, own, p, state)
    return found


def _theirs(recipe: Any, options: dict[str, Any], p: Tensor, state: dict[str, Any]) -> dict[str, Any]:
    t = int(state["step"])
    found: dict[str, Any] = {"step": torch.tensor(float(t))} if recipe.twin.counts else {}
    for theirs, ours in recipe.twin.buffers.items():
        if state["phase"] == RESTARTED:
            raise ValueError("restart() has reset the average of the gradients: take a step first")
        tensor = state[ours].clone()
        if ours == "g" and recipe.scale is not None and t > 0:
            scale = recipe.scale(t, **options)
            tensor = tensor / scale if scale != 0 else None
        if tensor is not None:
            tensor = torch.view_as_complex(tensor).to(p.dtype) if p.is_complex() else tensor.to(p.dtype)
        found[theirs] = tensor
    return found
