"""Methods by name, with the settings of a task."""

from __future__ import annotations

import dataclasses
import inspect
from collections.abc import Callable, Iterable
from typing import Any

from superadam import SuperAdam, zoo
from superadam.zoo.presets import PRESETS
from superadam_lab.errors import deliberate, nearest
from superadam_lab.methods.foreign import Foreign, build
from superadam_lab.methods.own import OWN
from superadam_lab.methods.specs import OF_THE_RUN, Bounds, filled, prefixes, read, value
from superadam_lab.runs.folders import DECAYS
from superadam_lab.tasks import Task
from superadam_lab.tasks.workloads import Workload

__all__ = ["PAPER", "SETTINGS", "decay", "label", "make", "parse", "replays", "space", "taus", "value"]

PAPER = {
    "sgd": "SGD",
    "adam": "Adam",
    "amsgrad": "AMSGrad",
    "adagrad_norm": "AdaGrad-Norm",
    "adam_plus": "Adam⁺",
    "storm": "STORM",
    "adabelief": "AdaBelief",
    "super_adam tau=0": "SUPER-ADAM τ=0",
    "super_adam tau=1": "SUPER-ADAM τ=1",
}
"""The eight optimizers of the paper's experiments, the last with both τ, by name; and how the paper writes them."""

SETTINGS = ("lab", "paper", "default")
"""Where a method's options come from, if they are not given: the task, the paper's experiment, the method itself."""


def label(method: str) -> str:
    """The method's name as in the paper."""
    return {"adamw": "AdamW", **PAPER}.get(method, method)


def parse(method: str, names: Iterable[str] = ()) -> tuple[str, dict[str, Any]]:
    """The first target of a method, and its options. `names` are further suggestions for a misspelt name.

    >>> parse("super_adam tau=1")
    ('super_adam', {'tau': 1})
    >>> parse('adam schedule={"type": "BiasCorrected", "beta": 0.8}')
    ('adam', {'schedule': {'type': 'BiasCorrected', 'beta': 0.8}})
    """
    specs = read(method)
    for spec in specs:
        if not spec.foreign and spec.target not in zoo.METHODS and spec.target not in OWN:
            raise ValueError(f"Unknown method {spec.target!r}: {nearest(spec.target, [*zoo.METHODS, *OWN, *names])}")
    if len(specs) > 1 and not all(spec.foreign for spec in specs):
        named = next(spec.target for spec in specs if not spec.foreign)
        raise ValueError(
            f"{named!r} cannot be used with +: expected two import paths, as in torch.optim.Muon + torch.optim.AdamW"
        )
    return specs[0].target, dict(specs[0].options)


def space(method: str) -> dict[str, Bounds]:
    """The ranges that the method itself declares for tuning. Those of a second optimizer have its name as prefix:
    AdamW.lr.

    >>> space("torch.optim.Muon lr=1e-3:1 + torch.optim.AdamW lr=1e-4:0.1")
    {'lr': (0.001, 1.0), 'AdamW.lr': (0.0001, 0.1)}
    """
    specs = read(method)
    found = dict(specs[0].space)
    for spec, prefix in list(zip(specs, prefixes(specs), strict=True))[1:]:
        found |= {f"{prefix}{k}": v for k, v in spec.space.items()}
    return found


def decay(method: str) -> str | None:
    """The method's own decay of the learning rate, such as none for a schedule-free method."""
    found = parse(method)[1].get("decay")
    if found is not None and found not in DECAYS:
        raise ValueError(f"Unknown decay {found!r}: {nearest(str(found), DECAYS)}")
    return found


def replays(method: str) -> bool:
    """Whether both gradients of a batch use the same dropout masks. `replay=false` after a name turns it off."""
    return bool(parse(method)[1].get("replay", True))


def taus(method: str) -> list[tuple[float, float]]:
    """How τ changes during a run: pairs (fraction of the run, τ from there on), in order. Before the first it is the
    method's.

    >>> taus("super_adam tau=1 taus=[[0.25, 0.5], [0.5, 0]]")
    [(0.25, 0.5), (0.5, 0.0)]
    """
    given = parse(method)[1].get("taus", [])
    try:
        found = [(float(start), float(tau)) for start, tau in given]
    except (TypeError, ValueError):
        found = [(-1.0, 0.0)]
    if found != sorted(found) or not all(0 <= start <= 1 and 0 <= tau <= 1 for start, tau in found):
        raise ValueError(
            f"Invalid taus: {given!r} (expected pairs of a part of the run and a tau, as in [[0.25, 0.5], [0.5, 0]])"
        )
    return found


def make(task: Task, workload: Workload, method: str, settings: str, options: dict[str, Any]) -> SuperAdam | Foreign:
    """The optimizer of a run. `options` and the options after the method's name override all settings."""
    if settings not in SETTINGS:
        raise ValueError(f"Unknown preset {settings!r}: {nearest(settings, SETTINGS)}")
    name, own = parse(method)
    changes = bool(taus(method))
    for key in OF_THE_RUN:
        own.pop(key, None)
    if name not in zoo.METHODS or name in OWN:
        return _foreign(task, workload, method, options, changes)
    given = {**own, **options}
    own = {**workload.options, **given}
    if settings == "paper":
        if task.preset not in PRESETS:
            raise ValueError(f"{task.name} is not in the paper: leave --preset paper out, and --set what you want")
        own["preset"] = task.preset
    elif settings == "lab":
        key = f"super_adam tau={1 if own.get('tau') else 0}" if name == "super_adam" else name
        own = {**workload.settings.get(key, {}), **own}
    try:
        opt = zoo.create(name, workload.model, **filled(own, _default_of(name)))
    except Exception as error:
        if deliberate(error) or not given:
            raise
        raise ValueError(f"{name} cannot be built with {given}: {type(error).__name__}: {error}") from error
    if changes and opt.param_groups[0]["estimator"] is not None:
        raise ValueError(f"taus= changes the τ of line 11, and {name} has another estimator")
    return opt


def _foreign(
    task: Task, workload: Workload, method: str, options: dict[str, Any], changes: bool
) -> SuperAdam | Foreign:
    """An optimizer of another package, or of the user."""
    specs = read(method)
    own = {k: v for k, v in specs[0].options.items() if k not in OF_THE_RUN}
    specs[0] = dataclasses.replace(specs[0], options=own)
    opt = build(specs, workload.model, options)
    if isinstance(opt, Foreign) and workload.options:
        raise ValueError(f"{task.name} needs {', '.join(workload.options)}, which only methods of superadam have")
    if changes:
        raise ValueError(f"taus= changes the τ of line 11, which {specs[0].target} does not have")
    return opt


def _default_of(name: str) -> Callable[[str], Any]:
    parameters = inspect.signature(zoo.METHODS[name].compose).parameters
    return lambda option: parameters[option].default if option in parameters else None
