"""Methods of the literature as records: which parts their options make, and which optimizer of torch they equal.

`superadam.zoo` fills `METHODS`, and the optimizer reads it. `group["method"]` has a method's name and the options that
made the group's parts. Schedulers of torch (OneCycleLR, CyclicLR) write into `group["betas"]` and
`group["momentum"]`; `follow` then makes the parts again before the next step.
"""

from __future__ import annotations

import dataclasses
import inspect
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from superadam.bucket import READY, RESTARTED, START
from superadam.estimators import Recursive
from superadam.lists import real, state_dtype
from superadam.matrices import Identity
from superadam.messages import warn
from superadam.parts import Part
from superadam.schedules import BiasCorrected, Constant

__all__ = ["METHODS", "Method", "Parts", "Twin", "follow", "from_torch", "plain", "torch_state_dict", "view"]

Parts = dict[str, Any]
"""Parts, and other options of `SuperAdam`, by name."""


@dataclasses.dataclass(frozen=True)
class Twin:
    """An optimizer of torch that a method equals."""

    name: str
    options: tuple[str, ...]
    """The options that have the same names in torch."""
    state: dict[str, str]
    """torch's name of each tensor of the state, and ours. torch keeps its average where we keep g_t."""
    fixed: dict[str, Any] = dataclasses.field(default_factory=dict)
    """Options of torch that must have this value."""
    decouples: bool = False
    """Whether torch has the option `decoupled_weight_decay`."""
    counts: bool = True
    """Whether torch counts the steps."""
    begins: bool = False
    """Whether torch creates the state before the first step."""


@dataclasses.dataclass(frozen=True)
class Method:
    """A method of the literature. `superadam.zoo.method` makes the record from a function."""

    name: str
    compose: Callable[..., Parts]
    """Return the parts that options make."""
    own: tuple[str, ...]
    """The names of its own options, which `SuperAdam` does not have."""
    paper: str = ""
    """Authors and year, and arXiv number or address."""
    twin: Twin | None = None
    follows: bool = True
    """Whether the param groups keep its own options, so that groups and schedulers can change them."""

    @property
    def summary(self) -> str:
        """The first line of the docstring, without the name."""
        line = (inspect.getdoc(self.compose) or "").partition("\n")[0]
        return line.split(": ", 1)[-1].rstrip(".")

    def parts(self, options: dict[str, Any]) -> Parts:
        """Return the parts that its own options make."""
        made = self.compose(**options)
        return {name: value for name, value in made.items() if name not in (*self.own, "params")}


METHODS: dict[str, Method] = {}
"""Every method by name."""

DEFAULT: dict[str, Any] = {"type": "adamw", "options": {"betas": (0.9, 0.999), "eps": 1e-8}}
"""The method of a plain `SuperAdam(params)`, whose steps are AdamW's."""


def plain(value: Any) -> Any:
    """Return a part as plain data, and anything else as it is."""
    return value.spec() if isinstance(value, Part) else value


def view(method: dict[str, Any] | None, options: dict[str, Any]) -> dict[str, Any]:
    """Return the entries of a group about its method: none with another schedule, for which its β₁ has no meaning."""
    chosen = method or DEFAULT
    made = METHODS[chosen["type"]].parts(chosen["options"])
    if method is not None:
        fits = plain(options["schedule"]) == plain(made.get("schedule"))
    else:
        fits = options["tau"] == 0 and options["estimator"] is options["iterate"] is None
        fits = fits and all(options[n] is None or plain(options[n]) == plain(made[n]) for n in ("matrix", "schedule"))
    return {"method": chosen, **chosen["options"]} if fits else {}


def follow(opt: Any) -> None:
    """Make the parts again, and scale g, where an option of a method changed since the last step."""
    for group in opt.param_groups:
        method = group.get("method")
        if method is not None and not method["options"].items() <= group.items():
            _follow(opt, group, method)


def _follow(opt: Any, group: dict[str, Any], method: dict[str, Any]) -> None:
    record, before = METHODS[method["type"]], method["options"]
    now = {name: group[name] for name in before}
    made, wanted = record.parts(before), record.parts(now)
    changed = ", ".join(n for n in now if now[n] != before[n])
    if made.keys() != wanted.keys() and any(opt.state.get(p, {}).get("phase", START) != START for p in group["params"]):
        raise ValueError(
            f"Changing {changed} of a param group after the first step would change the optimizer's state. Change it "
            f"before the first step, or construct the optimizer with a non-zero {changed}."
        )
    for name in made.keys() & wanted.keys():
        if made[name] != wanted[name] and plain(group[name]) != plain(made[name]):
            raise ValueError(
                f"{changed} of a param group was changed, but {record.name} did not construct the group's {name}. "
                f"Change group[{name!r}] instead, or restore {changed}."
            )
    if group["compile"] and opt.state:
        warn(
            "An option of the method changed, and compile=True would build a new kernel, which takes seconds. These "
            "parameters now run without compile=True. With OneCycleLR or CyclicLR, use cycle_momentum=False."
        )
        group["compile"] = False
    group.update(dict.fromkeys(made.keys() - wanted.keys()))
    group.update({name: plain(part) for name, part in wanted.items() if made.get(name) != part})
    group["method"] = {**method, "options": now}
    if _averages(group):
        _rescale(opt, group["params"], made, wanted)


def _averages(group: dict[str, Any]) -> bool:
    """Return whether g_t is a multiple of an average of gradients."""
    kind = (group["estimator"] or {}).get("type")
    return group["tau"] == 0 and kind in (None, "Mars", "Nesterov", "Recursive", "AdEMAMix")


def _scale(parts: Parts, t: int) -> float:
    """Return g_t divided by the average that the published method keeps; 0 if it keeps none."""
    schedule, matrix = parts.get("schedule"), parts.get("matrix")
    if isinstance(schedule, BiasCorrected):
        return 1 / (1 - schedule.beta**t)
    if isinstance(schedule, Constant) and isinstance(matrix, Identity):  # the momentum of SGD and LARS
        return matrix.scale if schedule.alpha < 1 else 0.0
    return 1.0


@torch.no_grad()
def _rescale(opt: Any, params: list[Tensor], made: Parts, wanted: Parts) -> None:
    """Scale g where the parts changed, because the average of the published method does not change."""
    together: dict[float, list[Tensor]] = {}
    for p in params:
        state = opt.state.get(p, {})
        t = int(state.get("step", 0))
        if t == 0 or state["phase"] in (START, RESTARTED):
            continue
        old, new = _scale(made, t), _scale(wanted, t)
        if old == 0 != new:
            state.update(g=torch.zeros_like(state["g"]), phase=RESTARTED)  # the average begins with the next gradient
        elif old != new:
            together.setdefault(new / old, []).append(state["g"])
    for factor, tensors in together.items():
        torch._foreach_mul_(tensors, factor)


# ------------------------------------------------------------------------------------ checkpoints of torch's optimizers

SHARED = ("lr", "weight_decay", "maximize")
# Options of torch for how a step runs. A checkpoint changes none of them here.
WAYS = ("foreach", "fused", "capturable", "differentiable")


def from_torch(opt: Any, state_dict: dict[str, Any]) -> dict[str, Any]:
    """Return a checkpoint of the torch optimizer that `opt` equals in our format, and any other dict as it is."""
    groups, saved = opt.param_groups, state_dict["param_groups"]
    foreign = len(groups) == len(saved) and not any("matrix" in group for group in saved)
    if not foreign or not all("method" in group for group in groups):
        return state_dict
    found: dict[str, Any] = {"state": {}, "param_groups": []}
    for i, (group, theirs) in enumerate(zip(groups, saved, strict=True)):
        states = [state_dict["state"].get(index, {}) for index in theirs["params"]]
        others = [n for n, m in METHODS.items() if m.twin and _difference(m.twin, None, theirs, states) is None]
        decoupled = theirs.get("decoupled_weight_decay", False)
        others.sort(key=lambda name: METHODS[name].parts({}).get("decoupled_weight_decay", True) != decoupled)
        record, why = METHODS[group["method"]["type"]], _unlike_torch(group)
        if record.twin is None or why is not None:
            raise ValueError(
                f"The checkpoint was saved by another optimizer, and no optimizer of torch equals this composition: "
                f"{why}. {_fitting(others) or 'Load it into the optimizer that saved it.'}"
            )
        if reason := _difference(record.twin, group, theirs, states):
            hint = _fitting([] if record.name in others else others)
            raise ValueError(
                f"The checkpoint was saved neither by this optimizer nor by {record.twin.name}, which it equals: group "
                f"{i} {reason}.{hint and ' '}{hint}"
            )
        options = {**group["method"]["options"], **{name: theirs[name] for name in record.twin.options}}
        parts = record.parts(options)
        unused = {*WAYS, *record.twin.fixed}
        found["param_groups"].append(
            {
                **{name: value for name, value in group.items() if name not in ("params", "param_names")},
                **{name: value for name, value in theirs.items() if name not in unused},
                **options,
                **{name: part.spec() for name, part in parts.items() if isinstance(part, Part)},
                "method": {**group["method"], "options": options},
            }
        )
        for index, state in zip(theirs["params"], states, strict=True):
            if ours := _ours(record.twin, parts, state):
                found["state"][index] = ours
    return found


def _fitting(names: list[str]) -> str:
    return f'It fits create("{names[0]}").' if names else ""


def _unlike_torch(group: dict[str, Any]) -> str | None:
    """Return why no optimizer of torch equals the composition of a group, or None."""
    method = group.get("method", {"type": "it", "options": {}})
    record = METHODS.get(method["type"])
    if record is None or record.twin is None:
        return f"torch has no {method['type']}"
    parts = record.parts(method["options"])
    if any(plain(parts[name]) != group[name] for name in ("matrix", "schedule")):
        return f"its matrix or schedule is not that of {method['type']}"
    if group["tau"] != 0 or group["estimator"] not in (None, Recursive().spec()) or group["iterate"] is not None:
        return "torch has no estimator but momentum, and no iterate but the plain one"
    if not method["options"].get("bias_correction", True):
        return "torch corrects both averages for their start"
    if group["weight_decay"] != 0 and group["decoupled_weight_decay"] and not record.twin.decouples:
        return "torch adds the weight decay to the gradient here"
    return None


def _difference(
    twin: Twin, group: dict[str, Any] | None, theirs: dict[str, Any], states: list[dict[str, Any]]
) -> str | None:
    """Return how a group of a checkpoint differs from a group of the twin, or None."""
    for name in (*twin.options, *twin.fixed):
        if name not in theirs:
            return f"has no {name}"
        if theirs[name] != twin.fixed.get(name, theirs[name]):
            return f"has {name}={theirs[name]}"
    mine = group["decoupled_weight_decay"] if group is not None else None
    decoupled = theirs.get("decoupled_weight_decay", mine if twin.decouples else False)  # torch has it since 2.7
    if mine is not None and theirs["weight_decay"] != 0 and decoupled != mine:
        return f"has decoupled_weight_decay={decoupled}, and {mine} here"
    known = {*twin.state, *(["step"] if twin.counts else [])}
    for state in states:
        for name in state.keys() - known:
            return f"has a parameter with {name!r}, where {', '.join(sorted(known))} are known"
        if state and not state.keys() >= known:
            return f"has a parameter without {', '.join(sorted(known - state.keys()))}"
    return None


def _ours(twin: Twin, parts: Parts, state: dict[str, Any]) -> dict[str, Any]:
    held: dict[str, Any] = {ours: state.get(theirs) for theirs, ours in twin.state.items()}
    if any(tensor is None for tensor in held.values()):  # no step was taken, or SGD has no momentum
        return {}
    t = int(state["step"]) if twin.counts else 1
    buffers = {ours: real(tensor).to(state_dtype(tensor), copy=True) for ours, tensor in held.items()}
    if "g" not in buffers:  # it is the newest gradient, and the next one takes its place
        buffers["g"] = torch.zeros_like(next(iter(buffers.values())))
    elif t > 0:
        buffers["g"] *= _scale(parts, t)
    return {"step": t, "phase": READY if t > 0 else START, **buffers}


def torch_state_dict(opt: Any) -> dict[str, Any]:
    """Return the state of a method that torch has, for `load_state_dict` of torch's optimizer.

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
    for group in opt.param_groups:
        if why := _unlike_torch(group):
            equal = ", ".join(f'"{name}"' for name, method in METHODS.items() if method.twin is not None)
            raise ValueError(
                f"No optimizer of torch equals this composition, so torch cannot use its checkpoints: {why}. "
                f"Use create with {equal}."
            )
    records: list[Any] = [METHODS[group["method"]["type"]] for group in opt.param_groups]
    if any(record.twin.begins for record in records):
        opt.init_state()
    mine = opt.state_dict()
    found: dict[str, Any] = {"state": {}, "param_groups": []}
    for record, group, saved in zip(records, opt.param_groups, mine["param_groups"], strict=True):
        own, twin = saved["method"]["options"], record.twin
        options = {name: own[name] for name in twin.options}
        if twin.decouples:
            options["decoupled_weight_decay"] = saved["decoupled_weight_decay"]
        ways = {"foreach": None, "fused": None, "capturable": saved.get("capturable", False), "differentiable": False}
        others = {name: value for name, value in saved.items() if name not in {*opt.defaults, *own, "method"}}
        shared = {name: saved[name] for name in SHARED}
        found["param_groups"].append({**shared, **options, **twin.fixed, **ways, **others})
        parts = record.parts(own)
        for index, p in zip(saved["params"], group["params"], strict=True):
            if state := mine["state"].get(index):
                found["state"][index] = _theirs(twin, parts, p, state)
    return found


def _theirs(twin: Twin, parts: Parts, p: Tensor, state: dict[str, Any]) -> dict[str, Any]:
    if state["phase"] == RESTARTED:
        raise ValueError("restart() has reset the average of the gradients: take a step first")
    t = int(state["step"])
    found: dict[str, Any] = {"step": torch.tensor(float(t))} if twin.counts else {}
    for theirs, ours in twin.state.items():
        scale = _scale(parts, t) if ours == "g" and t > 0 else 1.0
        tensor = state[ours] / scale if scale != 0 else None  # SGD without momentum
        if tensor is not None:
            tensor = torch.view_as_complex(tensor).to(p.dtype) if p.is_complex() else tensor.to(p.dtype)
        found[theirs] = tensor
    return found
