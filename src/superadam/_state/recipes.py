"""Methods of the literature under their own options: which parts `betas` or `momentum` make, and what becomes of g.

A param group of such a method holds its options beside its parts, `group["betas"]`, where torch's schedulers
(OneCycleLR, CyclicLR) and others write. `group["method"]` says which options the parts were made of: where the two
differ, the parts follow before the next step.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch import Tensor

from superadam._state.parts import Part
from superadam._state.phases import START, UNESTIMATED, forget

if TYPE_CHECKING:
    from superadam._state.composed import ComposedOptimizer
    from superadam._state.twins import Twin

__all__ = ["RECIPES", "Recipe", "adopt", "follow", "recipe", "view"]

Parts = dict[str, Any]


class Recipe(NamedTuple):
    """What a method makes of its own options."""

    parts: Callable[..., Parts]
    """The parts by the names of `SuperAdam`'s options, given the method's."""
    scale: Callable[..., Any] | None
    """g_t over the average that the method itself keeps, given t and the options: the average stays when they change. 0
    where the method keeps none."""
    twin: Twin | None
    """The optimizer of torch that the method equals."""


RECIPES: dict[str, Recipe] = {}


def recipe(
    name: str, *, scale: Callable[..., Any] | None = None, twin: Twin | None = None
) -> Callable[[Callable[..., Parts]], Callable[..., Parts]]:
    """Make a function from options to parts known as the recipe of a method."""

    def known(parts: Callable[..., Parts]) -> Callable[..., Parts]:
        RECIPES[name] = Recipe(parts, scale, twin)
        return parts

    return known


def view(method: dict[str, Any] | None, options: dict[str, Any]) -> dict[str, Any]:
    """What a group holds of its method, unless the schedule is not the method's: then its β₁ would mean nothing."""
    if method is None:
        return {}
    mine = RECIPES[method["type"]].parts(**method["options"])
    return {"method": method, **method["options"]} if _same(options["schedule"], mine["schedule"]) else {}


def follow(opt: ComposedOptimizer) -> None:
    """Let the parts, and g, follow the options of a method that were changed since the last step."""
    for group in opt.param_groups:
        method = group.get("method")
        if method is not None and not method["options"].items() <= group.items():
            _follow(opt, group, method)


def _follow(opt: ComposedOptimizer, group: dict[str, Any], method: dict[str, Any]) -> None:
    recipe, before = RECIPES[method["type"]], method["options"]
    now = {name: group[name] for name in before}
    made, wanted = recipe.parts(**before), recipe.parts(**now)
    for name in wanted:
        if made[name] != wanted[name] and not _same(group[name], made[name]):
            changed = ", ".join(n for n in now if now[n] != before[n])
            raise ValueError(
                f"{changed} of a param group was changed, but its {name} is not the one that {method['type']} makes of "
                f"it: change group[{name!r}] instead, or leave {changed} as it was"
            )
    if group["compile"] and opt.state:
        warnings.warn(
            "A change of the options of a method asks for a new compiled kernel, which takes seconds: these parameters "
            "go on without compile=True. With OneCycleLR or CyclicLR, cycle_momentum=False keeps it.",
            stacklevel=2,
        )
        group["compile"] = False
    group.update({name: wanted[name].spec() for name in wanted if made[name] != wanted[name]})
    group["method"] = {**method, "options": now}
    if recipe.scale is not None and _averages(group):
        _rescale(opt, group, recipe.scale, before, now)


def _same(choice: object, part: Part) -> bool:
    return (choice.spec() if isinstance(choice, Part) else choice) == part.spec()


def _averages(group: dict[str, Any]) -> bool:
    """Whether g_t is a multiple of an average of gradients, and of nothing else."""
    estimator = group["estimator"]
    return group["tau"] == 0 and (estimator is None or estimator["type"] in ("Corrected", "Recursive"))


@torch.no_grad()
def _rescale(
    opt: ComposedOptimizer,
    group: dict[str, Any],
    scale: Callable[..., Any],
    before: dict[str, Any],
    now: dict[str, Any],
) -> None:
    together: dict[float, list[Tensor]] = {}
    for p in group["params"]:
        state = opt.state.get(p, {})
        t = state.get("step", 0)
        on_device = isinstance(t, Tensor)
        if state.get("phase", START) in UNESTIMATED or (not on_device and t == 0):
            continue
        if on_device:
            t = t.to(torch.float32 if t.device.type == "mps" else torch.float64)
        old, new = scale(t, **before), scale(t, **now)
        if not isinstance(old, Tensor) and old == 0:
            forget(state)  # the average begins with the next gradient
        elif on_device or group["differentiable"]:  # what autograd has saved must not be written into
            factor = torch.where(t > 0, new / old, 1.0) if isinstance(old, Tensor) else new / old
            state["g"] = state["g"] * factor
        elif new != old:
            together.setdefault(new / old, []).append(state["g"])
    for factor, tensors in together.items():
        torch._foreach_mul_(tensors, factor)


def adopt(opt: ComposedOptimizer, saved: list[dict[str, Any]]) -> None:
    """Groups from checkpoints that are older than this module have got the options that `opt` was made with. Keep them
    if they are those of their parts."""
    for group, theirs in zip(opt.param_groups, saved, strict=True):
        method = group.get("method")
        if method is not None and "method" not in theirs:
            made = RECIPES[method["type"]].parts(**method["options"])
            if not all(_same(group[name], made[name]) for name in made):
                for name in ("method", *method["options"]):
                    del group[name]
