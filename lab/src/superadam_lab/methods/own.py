"""The user's own methods: functions that return optimizers, by name."""

from __future__ import annotations

import inspect
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch

from superadam_lab.methods.specs import read
from superadam_lab.user_code import executing

__all__ = ["MODELS", "OWN", "method", "parameters", "placed", "places"]

Build = Callable[..., torch.optim.Optimizer | Sequence[torch.optim.Optimizer]]
OWN: dict[str, Build] = {}
"""What `lab.method` was given, by name."""
_defined_in: dict[str, str | None] = {}
"""By name, the task file that called `lab.method`; None for any other code."""
MODELS = ("model", "module")


def method(name: str, build: Build) -> None:
    """Define a method of your own by name.

    The worker processes of a comparison know it if a task file calls this function. Otherwise they import `build`: it
    must be at the top level of a file or of a module, and its first argument must be called `model`.

    Args:
        name: the name of the method in `--methods` and in tables.
        build: a function of model, lr and the options after the name. It returns a torch optimizer, or several that
            share the model's parameters.

    >>> method("plain", lambda model, lr, **options: torch.optim.SGD(model.parameters(), lr, **options))
    >>> OWN.pop("plain") is not None
    True
    """
    if not name or any(c in name for c in " =+:"):
        raise ValueError(f"Invalid name of a method: {name!r} (expected a name without spaces, =, + and :)")
    if not executing or executing[-1].declares:
        OWN[name], _defined_in[name] = build, executing[-1].path if executing else None


def places() -> dict[str, str | None]:
    """By name, the import path of the function of each method of `lab.method`; None if it cannot be imported."""
    return {name: _place(build) for name, build in OWN.items()}


def _place(build: Any) -> str | None:
    module = sys.modules.get(getattr(build, "__module__", None) or "")
    name = getattr(build, "__qualname__", "")
    if getattr(module, name, None) is not build or next(iter(parameters(build)), "") not in MODELS:
        return None
    spec, file = getattr(module, "__spec__", None), getattr(module, "__file__", None)
    if spec is not None and spec.parent:  # of a package, whose modules may import each other
        return f"{spec.name}:{name}"
    return f"{Path(file).resolve()}:{name}" if file and file.endswith(".py") else None


def placed(method: str, known: Mapping[str, str | None], task_file: str | None) -> str:
    """The method in the form for worker processes: the import path, if `lab.method` was called outside the task file.

    Args:
        method: the method with its options.
        known: the `places` of the process that started the comparison.
        task_file: the task file that workers load.
    """
    target = read(method)[0].target
    by_task_file = task_file is not None and target in OWN and _defined_in.get(target) == task_file
    if target not in known or by_task_file:
        return method
    if (place := known[target]) is None:
        raise ValueError(
            f"Worker processes cannot import the method {target!r}, which lab.method has defined in this process: its "
            "function must be at the top level of a file or of a module, with a first argument called model. Or call "
            "lab.method in a file, and pass that as task_file="
        )
    return place + method.strip().removeprefix(target)


def parameters(made_by: Any) -> dict[str, inspect.Parameter]:
    """The parameters of an optimizer class, or of a function that returns optimizers."""
    try:
        return dict(inspect.signature(made_by).parameters)
    except (TypeError, ValueError):  # of C, or hidden by a wrapper
        return {}
