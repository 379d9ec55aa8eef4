"""Methods by name: `method` makes a record and a builder from a function, `create` and `list_methods` find them."""

from __future__ import annotations

import difflib
import fnmatch
import functools
import inspect
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Concatenate, ParamSpec, TypedDict, cast

from torch import Tensor, nn

from superadam.estimators import Estimator, Nesterov, NesterovRecursive
from superadam.iterates import Iterate
from superadam.matrices import Matrix
from superadam.methods import METHODS, Method, Parts, Twin, plain
from superadam.optimizer import SuperAdam
from superadam.options import OF_PARTS, OF_TORCH, instead_of
from superadam.parts import nearest
from superadam.penalties import Penalty
from superadam.schedules import BiasCorrected, Constant, Schedule
from superadam.sets import ConvexSet
from superadam.stepsizes import Stepsize
from superadam.zoo.presets import PRESETS

if TYPE_CHECKING:
    pass

__all__ = ["Lr", "Options", "Rest", "average", "checked", "create", "list_methods", "method", "typed"]

OF_SUPER_ADAM = inspect.signature(SuperAdam).parameters.keys() - {"unknown"}
Lr = float | Tensor | str | None
P = ParamSpec("P")


class Rest(TypedDict, total=False):
    """Options of `SuperAdam` for type checkers, without the options that methods name themselves."""

    estimator: Estimator | str | None
    schedule: Schedule | str | None
    iterate: Iterate | str | None
    stepsize: Stepsize | str | None
    constraint: ConvexSet | str | None
    penalty: Penalty | str | None
    decoupled_weight_decay: bool
    clip: float | None
    maximize: bool
    rounding: str
    foreach: bool | None
    fused: bool | None
    compile: bool
    capturable: bool


class Options(Rest, total=False):
    """All options of `SuperAdam` but lr and weight_decay."""

    tau: float
    matrix: Matrix | str | None


def method(
    paper: str = "", *, twin: Twin | None = None, follows: bool = True
) -> Callable[[Callable[..., Parts]], Callable[..., SuperAdam]]:
    """Make a function from options to parts a method, which `create` and `list_methods` know by the function's name.

    The function returns parts, and other options of `SuperAdam`, by name. Its parameters are lr, the method's own
    options, and those of `SuperAdam` that have another default here. The method takes params and all other options of
    `SuperAdam`, too. When a group or a scheduler changes an own option, the function is called again with the own
    options alone. The first line of its docstring says what the method is.

    Args:
        paper: authors and year, and arXiv number or address, with a comma between them.
        twin: the optimizer of torch that the method equals.
        follows: False if a changed option would have no meaning during training. Then the groups do not keep them.

    >>> @method()
    ... def plain(lr=1e-3):
    ...     "plain: steps along the gradient."
    ...     return {"matrix": "Identity", "schedule": Constant(alpha=1.0)}
    >>> list_methods("plain")
    {'plain': 'steps along the gradient'}
    >>> METHODS.pop("plain").name
    'plain'
    """

    def known(compose: Callable[..., Parts]) -> Callable[..., SuperAdam]:
        signature = inspect.signature(compose)
        named = [p for p in signature.parameters.values() if p.name != "params" and p.kind is not p.VAR_KEYWORD]
        own = tuple(p.name for p in named if p.name not in OF_SUPER_ADAM)
        record = METHODS[compose.__name__] = Method(compose.__name__, compose, own, paper, twin, follows)

        @functools.wraps(compose)
        def build(params: Any, *args: Any, **options: Any) -> SuperAdam:
            return _built(record, params, args, options)

        around = inspect.signature(build, follow_wrapped=False).parameters
        parameters = [around["params"], *named, around["options"]]
        cast(Any, build).__signature__ = signature.replace(parameters=parameters, return_annotation="SuperAdam")
        if paper:
            build.__doc__ = f"{inspect.getdoc(compose)}\n\nPaper: {paper}"
        return build

    return known


def typed(
    paper: str, *, twin: Twin | None = None
) -> Callable[[Callable[P, Parts]], Callable[Concatenate[Any, P], SuperAdam]]:
    """Do as `method`, for functions with all options in their signature: type checkers and editors know them."""
    decorator: Any = method(paper, twin=twin)
    return cast("Callable[[Callable[P, Parts]], Callable[Concatenate[Any, P], SuperAdam]]", decorator)


def _built(record: Method, params: Any, args: tuple[Any, ...], options: dict[str, Any]) -> SuperAdam:
    """Return the optimizer of a method. The user's options override the method's parts."""
    known = {*record.own, *OF_SUPER_ADAM} - {"params"}
    for option in options.keys() - known:
        misspelt = difflib.get_close_matches(option, record.own, cutoff=0.75)
        instead = instead_of(option, known, {} if misspelt else OF_TORCH | OF_PARTS)
        raise TypeError(f"{record.name} got an unknown option {option!r}: {instead}")
    signature = inspect.signature(record.compose)
    named = {name: options.pop(name) for name in options.keys() & signature.parameters.keys()}
    if "params" in signature.parameters:
        named["params"] = params
    try:
        bound = signature.bind(*args, **named)
    except TypeError as error:
        raise TypeError(f"{record.name} got {error}: pass options by name") from None
    bound.apply_defaults()
    given = {p.name: bound.arguments[p.name] for p in signature.parameters.values() if p.kind is not p.VAR_KEYWORD}
    made = record.compose(**given)
    own = {name: plain(made.pop(name, given[name])) for name in record.own}
    parts = {"params": params, **{name: given[name] for name in given.keys() & OF_SUPER_ADAM}, **made}
    tau, estimator = options.get("tau", 0), made.get("estimator")
    if tau != 0 and isinstance(estimator, Nesterov) and "estimator" not in options:
        parts["estimator"] = NesterovRecursive(float(options.pop("tau")), estimator.a)
    elif tau != 0 and estimator is not None and "estimator" not in options:
        raise ValueError(
            f"tau={tau} is for line 11, and this method has an estimator of its own, {estimator}. For variance "
            f"reduction with its matrix, write SuperAdam(params, lr, tau={tau}, matrix={parts['matrix']})"
        )
    if record.follows:
        parts["method"] = {"type": record.name, "options": own}
    return SuperAdam(**{**parts, **options})


# Names that people look for, and what there is instead.
ELSEWHERE = {
    "lbfgs": "torch.optim.LBFGS searches along a line, with many evaluations of one batch. For noisy gradients, use "
    '"sdlbfgs", or SuperAdam with matrix="DampedLBFGS"',
    "sparseadam": 'sparse gradients are not supported. Use torch.nn.Embedding(sparse=False) with "adam"',
    "lookahead": "it is an iterate: pass iterate=iterates.Lookahead() to a method",
    "ranger": 'use "radam" with iterate=iterates.Lookahead()',
}


def create(name: str, params: Any, lr: Lr = None, *, preset: str | None = None, **options: Any) -> SuperAdam:
    """Return the optimizer of a method by name, optionally with the settings of an experiment of the paper.

    Args:
        name: a name of `list_methods`.
        params: as for `SuperAdam`.
        lr: γ; default: the method's, or that of the preset.
        preset: "cifar10", "cifar100", "imagenet", "wikitext2-lstm" or "wikitext2-transformer". Other options given here
            override it.
        **options: options of the method, and of `SuperAdam`. Type checkers accept any name here, because the options
            depend on `name`; at run time an unknown one is a TypeError. They check those of `zoo.adamw(…)`.

    >>> import torch
    >>> opt = create("super_adam", torch.nn.Linear(3, 1), preset="imagenet", tau=1)
    >>> opt.param_groups[0]["lr"]
    0.01
    """
    if not isinstance(name, str):
        raise TypeError(
            f"create takes the name of a method first, got {type(name).__name__}: write "
            f"create({params if isinstance(params, str) else 'adamw'!r}, params)"
        )
    if name not in METHODS:
        instead = ELSEWHERE.get(name.lower().replace("_", "")) or nearest(name, METHODS)
        raise ValueError(f"Unknown method {name!r}: {instead}")
    if lr is not None:
        options["lr"] = lr
    if preset is not None:
        options = {**_preset(name, preset, options), **options}
    return _built(METHODS[name], params, (), options)


def list_methods(pattern: str = "*") -> dict[str, str]:
    """Return the methods whose names match a pattern, each with its summary.

    Args:
        pattern: which names, with * and ?.

    >>> list_methods("*storm*")
    {'storm': 'variance reduction with one learning rate from the summed gradient norms'}
    """
    names = fnmatch.filter(METHODS, pattern)
    if not names:
        raise ValueError(f"No method matches {pattern!r}: {nearest(pattern, METHODS)}")
    return {name: METHODS[name].summary for name in sorted(names)}


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
    """Return the averaging weights of a method, if there are `count` of them and each is in [0, 1)."""
    if not isinstance(betas, tuple | list) or len(betas) != count:
        expected = {2: "two numbers", 3: "three numbers"}[count]
        raise ValueError(f"Invalid betas: {betas} (expected {expected})")
    for i, beta in enumerate(betas):
        if not 0 <= beta < 1:
            raise ValueError(f"Invalid beta parameter at index {i}: {beta}")
    return betas


def average(beta: float, bias_correction: bool = False) -> Schedule:
    """Return Adam's first average, with or without the correction for its start at zero; without, g_1 = (1-β) ĝ_1."""
    return BiasCorrected(beta) if bias_correction else Constant(alpha=1 - beta, first=1 - beta)


def each_group(params: Any, change: Callable[[dict[str, Any]], dict[str, Any]]) -> Any:
    """Return params with every param group changed."""
    if params is None or isinstance(params, nn.Module):
        return params
    return [change(p) if isinstance(p, dict) else p for p in params]
