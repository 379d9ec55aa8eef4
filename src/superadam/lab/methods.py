"""Methods by name, with the settings of a task."""

from __future__ import annotations

import json
import re
from typing import Any

from superadam import SuperAdam, zoo
from superadam._state.parts import nearest
from superadam.lab.errors import deliberate
from superadam.lab.reading import json_of
from superadam.lab.tasks import Task
from superadam.lab.workloads import Workload
from superadam.zoo.presets import PRESETS

__all__ = ["PAPER", "SETTINGS", "make", "parse", "replays", "taus", "value"]

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


def parse(method: str) -> tuple[str, dict[str, Any]]:
    """A name of the zoo, and the options behind it.

    >>> parse("super_adam tau=1")
    ('super_adam', {'tau': 1})
    >>> parse('adam schedule={"type": "BiasCorrected", "beta": 0.8}')
    ('adam', {'schedule': {'type': 'BiasCorrected', 'beta': 0.8}})
    """
    name, *options = re.split(r"\s+(?=\w+=)", method.strip())
    if name not in zoo.METHODS:
        raise ValueError(f"Unknown method {name!r}: {nearest(name, zoo.METHODS)}")
    return name, dict(value(option) for option in options)


def value(setting: str) -> tuple[str, Any]:
    """A key and its value: a number, true, false, null, a list or a dict as in JSON, or a word.

    >>> value("lr=1e-3"), value("matrix=Belief"), value("betas=[0.9, 0.99]")
    (('lr', 0.001), ('matrix', 'Belief'), ('betas', [0.9, 0.99]))
    """
    key, equals, text = setting.partition("=")
    if not (key and equals and text):
        raise ValueError(f"Invalid setting {setting!r} (expected key=value, as in lr=0.01)")
    try:
        return key, json_of(text, key)
    except ValueError as error:
        if isinstance(error.__cause__, json.JSONDecodeError):
            return key, text
        raise


def replays(method: str) -> bool:
    """Whether both gradients of a batch see the same dropout masks. `replay=false` behind a name is for seeing why."""
    return bool(parse(method)[1].get("replay", True))


def taus(method: str) -> list[tuple[float, float]]:
    """How τ changes in a run: (from which part of it on, which τ), in this order; its own τ before the first of them.

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


def make(task: Task, workload: Workload, method: str, settings: str, options: dict[str, Any]) -> SuperAdam:
    """The optimizer of a run. What is given in `options` or with the method's name wins over all settings."""
    if settings not in SETTINGS:
        raise ValueError(f"Unknown preset {settings!r}: {nearest(settings, SETTINGS)}")
    name, own = parse(method)
    changes = bool(taus(method))
    for key in ("replay", "taus"):  # of the run, not of the method
        own.pop(key, None)
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
        opt = zoo.create(name, workload.model, **own)
    except Exception as error:
        if deliberate(error) or not given:
            raise
        raise ValueError(f"{name} cannot be made with {given}: {type(error).__name__}: {error}") from error
    if changes and opt.param_groups[0]["estimator"] is not None:
        raise ValueError(f"taus= changes the τ of line 11, and {name} has another estimator")
    return opt
