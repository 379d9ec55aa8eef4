"""Methods of the literature that keep options of their own, such as `betas` or `momentum`, in the param groups.

torch's schedulers (OneCycleLR, CyclicLR) write into `group["betas"]` and `group["momentum"]`. `group["method"]` says of
which options the parts were made. Where the two differ, `follow` makes the parts again before the next step.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch import Tensor

from superadam._state.phases import START, UNESTIMATED, forget
from superadam.lists import compiled_step
from superadam.messages import warn
from superadam.parts import Part

if TYPE_CHECKING:
    from superadam._state.composed import ComposedOptimizer
    from superadam._state.twins import Twin

__all__ = ["RECIPES", "Recipe", "adopt", "follow", "recipe", "view"]

Parts = dict[str, Any]


class Recipe(NamedTuple):
    """How a method turns its own options into parts."""

    parts: Callable[..., Parts]
    """The parts by the names of `SuperAdam`'s options, given the method's."""
    scale: Callable[..., Any] | None
    """g_t divided by the average that the method itself keeps, given t and the options; 0 if it keeps none. When an
    option changes, the average stays."""
    twin: Twin | None
    """The optimizer of torch that the method equals."""


RECIPES: dict[str, Recipe] = {}


def recipe(
    name: str, *, scale: Callable[..., Any] | None = None, twin: Twin | None = None
) -> Callable[[Callable[..., Parts]], Callable[..., Parts]]:
    """Register a function from options to parts as the recipe of a method."""

    def known(parts: Callable[..., Parts]) -> Callable[..., Parts]:
        RECIPES[name] = Recipe(parts, scale, twin)
        return parts

    return known


def view(method: dict[str, Any] | None, options: dict[str, Any]) -> dict[str, Any]:
    """What a group keeps of its method; nothing if the schedule is another one, for which its β₁ has no meaning."""
    if method is None:
        return {}
    mine = RECIPES[method["type"]].parts(**method["options"])
    return {"method": method, **method["options"]} if _same(options["schedule"], mine["schedule"]) else {}


def follow(opt: ComposedOptimizer) -> None:
    """Make the parts again, and scale g, where options of a method were changed since the last step."""
    for group in opt.param_groups:
        method = group.get("method")
        if method is not None and not method["options"].items() <= group.items():
            _follow(opt, group, method)


def _follow(opt: ComposedOptimizer, group: dict[str, Any], method: dict[str, Any]) -> None:
    recipe, before = RECIPES[method["type"]], method["options"]
    now = {name: group[name] for name in before}
    made, wanted = recipe.parts(**before), recipe.parts(**now)
    changed = ", ".join(n for n in now if now[n] != before[n])
    if made.keys() != wanted.keys() and any(opt.state.get(p, {}).get("phase", START) != START for p in group["params"]):
        raise ValueError(
            f"Changing {changed} of a param group after the first step would change the optimizer's state. Change it "
            f"before the first step, or construct the optimizer with a non-zero {changed}."
        )
    for name in made.keys() & wanted.keys():
        if made[name] != wanted[name] and not _same(group[name], made[name]):
            raise ValueError(
                f"{changed} of a param group was changed, but {method['type']} did not construct the group's {name}. "
                f"Change group[{name!r}] instead, or restore {changed}."
            )
    compiled_step.set(False)  # it would be another kernel in every step of a schedule
    if group["compile"] and opt.state:
        warn(
            "An option of the method changed, and compile=True would build a new kernel, which takes seconds. These "
            "parameters now run without compile=True. With OneCycleLR or CyclicLR, use cycle_momentum=False."
        )
        group["compile"] = False
    group.update(dict.fromkeys(made.keys() - wanted.keys()))
    group.update({name: part.spec() for name, part in wanted.items() if made.get(name) != part})
    group["method"] = {**method, "options": now}
    if recipe.scale is not None and _averages(group):
        _rescale(opt, group, recipe.scale, before, now)


def _same(choice: object, part: Part) -> bool:
    return (choice.spec() if isinstance(choice, Part) else choice) == part.spec()


def _averages(group: dict[str, Any]) -> bool:
    """Whether g_t is a multiple of an average of gradients."""
    estimator = group["estimator"]
    return group["tau"] == 0 and (
        estimator is None or estimator["type"] in ("Corrected", "Nesterov", "Recursive", "TwoAverages")
    )


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
        elif on_device or group["differentiable"]:  # not in place: autograd may have saved g
            factor = torch.where(t > 0, new / old, 1.0) if isinstance(old, Tensor) else new / old
            state["g"] = state["g"] * factor
        elif new != old:
            together.setdefault(new / old, []).append(state["g"])
    for factor, tensors in together.items():
        torch._foreach_mul_(tensors, factor)


def adopt(opt: ComposedOptimizer, saved: list[dict[str, Any]]) -> None:
    """Groups of checkpoints from before there were recipes got the options that `opt` was made with. Delete these
    options where they do not belong to the loaded parts."""
    for group, theirs in zip(opt.param_groups, saved, strict=True):
        method = group.get("method")
        if method is not None and "method" not in theirs:
            made = RECIPES[method["type"]].parts(**method["options"])
            if not all(_same(group[name], made[name]) for name in made):
                for name in ("method", *method["options"]):
                    del group[name]
