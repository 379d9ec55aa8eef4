"""Methods by name."""

from __future__ import annotations

import fnmatch
import inspect
from collections.abc import Callable
from typing import Any

from torch import Tensor

from superadam._state.options import instead_of
from superadam._state.recipes import RECIPES
from superadam.estimators import Nesterov, NesterovRecursive, Recursive
from superadam.optimizer import SuperAdam
from superadam.parts import nearest
from superadam.schedules import BiasCorrected, Constant, Schedule
from superadam.zoo.presets import PRESETS

# Parameters of the builders that are not options.
HIDDEN = {"params", "options", "unknown"}

Builder = Callable[..., SuperAdam]
METHODS: dict[str, Builder] = {}
"""Every builder by name."""


def method(build: Builder) -> Builder:
    """Make a builder known to `create` and `list_methods`, under its own name.

    Args:
        build: a function of params, lr and options that returns a `SuperAdam`. The first line of its docstring says
            what it is.

    >>> @method
    ... def plain(params, lr=1e-3, **options):
    ...     "plain: steps along the gradient."
    ...     return compose(params, lr, options, matrix="Identity", schedule=Constant(alpha=1.0))
    >>> list_methods("plain")
    {'plain': 'steps along the gradient'}
    >>> METHODS.pop("plain") is plain
    True
    """
    METHODS[build.__name__] = build
    return build


def create(
    name: str, params: Any, lr: float | Tensor | None = None, *, preset: str | None = None, **options: Any
) -> SuperAdam:
    """A method by name, optionally with the settings of one of the paper's experiments.

    Args:
        name: a name of `list_methods`.
        params: as for `SuperAdam`.
        lr: γ; default: the method's, or that of the preset.
        preset: "cifar10", "cifar100", "imagenet", "wikitext2-lstm" or "wikitext2-transformer". Other options given here
            override it.
        **options: options of the builder, and of `SuperAdam`. Type checkers accept any name here, because the options
            depend on `name`; at run time an unknown one is a TypeError. Checkers know the options of `SuperAdam(…)`.

    >>> import torch
    >>> opt = create("super_adam", torch.nn.Linear(3, 1), preset="imagenet", tau=1)
    >>> opt.param_groups[0]["lr"]
    0.01
    """
    if name not in METHODS:
        raise ValueError(f"Unknown method {name!r}: {nearest(name, METHODS)}")
    if lr is not None:
        options["lr"] = lr
    if preset is not None:
        options = {**_preset(name, preset, options), **options}
    known = {*inspect.signature(METHODS[name]).parameters, *inspect.signature(SuperAdam).parameters}
    for option in options.keys() - known:
        raise TypeError(f"{name} got an unknown option {option!r}: {instead_of(option, known - HIDDEN)}")
    return METHODS[name](params, **options)


def list_methods(pattern: str = "*") -> dict[str, str]:
    """The methods whose names match a pattern, each with a line that says what it is.

    Args:
        pattern: which names, with * and ?.

    >>> list_methods("*storm*")
    {'storm': 'variance reduction with one learning rate from the summed gradient norms'}
    """
    names = fnmatch.filter(METHODS, pattern)
    if not names:
        raise ValueError(f"No method matches {pattern!r}: {nearest(pattern, METHODS)}")
    return {name: _headline(METHODS[name]) for name in sorted(names)}


def _headline(build: Builder) -> str:
    line = (inspect.getdoc(build) or "").partition("\n")[0]
    return line.split(": ", 1)[-1].rstrip(".")


def _preset(name: str, task: str, options: dict[str, Any]) -> dict[str, Any]:
    if task not in PRESETS:
        raise ValueError(f"Unknown preset {task!r}: {nearest(task, PRESETS)}")
    key = name
    if name == "super_adam":
        tau = options.get("tau", 0)
        if tau not in (0, 1):
            raise ValueError(f"The paper has settings for tau=0 and tau=1, not for tau={tau}")
        key = f"super_adam tau={int(tau)}"
    if key not in PRESETS[task]:
        raise ValueError(f"The paper has no settings of {name} for {task}: it has {', '.join(sorted(PRESETS[task]))}")
    return PRESETS[task][key]


def checked(betas: tuple[float, ...], count: int = 2) -> tuple[float, ...]:
    """The averaging weights of a method, if there are `count` of them and each is in [0, 1)."""
    if not isinstance(betas, tuple | list) or len(betas) != count:
        expected = {2: "two numbers", 3: "three numbers"}[count]
        raise ValueError(f"Invalid betas: {betas} (expected {expected})")
    for i, beta in enumerate(betas):
        if not 0 <= beta < 1:
            raise ValueError(f"Invalid beta parameter at index {i}: {beta}")
    return betas


def average(beta: float, bias_correction: bool) -> Schedule:
    """Adam's first average, with or without the correction for its start at zero; without, g_1 = (1-β) ĝ_1."""
    return BiasCorrected(beta) if bias_correction else Constant(alpha=1 - beta, first=1 - beta)


def corrected(t: Any, betas: tuple[float, float], bias_correction: bool = True, **others: Any) -> Any:
    """g_t divided by Adam's average m_t."""
    return 1 / (1 - betas[0] ** t) if bias_correction else 1.0


def compose(params: Any, lr: Any, options: dict[str, Any], **composition: Any) -> SuperAdam:
    """An optimizer with a method's composition. The user's options override it."""
    own = composition.get("estimator")
    if own == Recursive(0.0) and "tau" in options:  # line 11, which has the option itself
        del composition["estimator"]
        own = None
    if options.get("tau", 0) != 0 and isinstance(own, Nesterov) and "estimator" not in options:
        options = dict(options)
        composition["estimator"] = NesterovRecursive(float(options.pop("tau")), own.a)
    elif options.get("tau", 0) != 0 and own is not None and "estimator" not in options:
        raise ValueError(
            f"tau={options['tau']} is for line 11, and this method has an estimator of its own, {own}. For variance "
            f"reduction with its matrix, write SuperAdam(params, lr, tau={options['tau']}, "
            f"matrix={composition['matrix']})"
        )
    return SuperAdam(params, lr, **{**composition, **options})


def cook(
    name: str, own: dict[str, Any], params: Any, lr: Any, options: dict[str, Any], **composition: Any
) -> SuperAdam:
    """An optimizer whose parts a recipe builds from the method's own options. The param groups keep these options."""
    parts = RECIPES[name].parts(**own)
    return compose(params, lr, options, method={"type": name, "options": own}, **parts, **composition)
