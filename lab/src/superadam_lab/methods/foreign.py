"""Optimizers of other packages and of your own, with the interface of the training loop."""

from __future__ import annotations

import importlib
import inspect
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, TypeGuard

import torch
from torch import nn

from superadam import SuperAdam
from superadam.checkpoint import default_generators, set_default_generators
from superadam_lab.errors import deliberate, nearest, place_and
from superadam_lab.methods.own import MODELS, OWN, parameters
from superadam_lab.methods.specs import BASE, Spec, filled, prefixes
from superadam_lab.user_code import executed, file_of

__all__ = ["Foreign", "build", "defaults", "hidden_matrices"]

Named = list[tuple[str, nn.Parameter]]
NAMES = ("named_parameters", "named_params")


class Foreign(torch.optim.Optimizer):
    """One or several optimizers for the parameters of one model. The loop counts the gradients that they use.

    An optimizer that works without a closure gets gradients, as in most loops. One that needs a closure, such as
    L-BFGS, may call it any number of times. One with `first_step` and `second_step`, such as SAM, gets gradients before
    each. Every evaluation counts, and all of a batch see the same dropout masks and the same buffers of `model`.
    """

    two_point = False

    def __init__(self, optimizers: Sequence[torch.optim.Optimizer], model: nn.Module | None = None) -> None:
        self.optimizers, self._model = list(optimizers), model
        for opt in self.optimizers:
            _check(opt)
        groups = [group for opt in self.optimizers for group in opt.param_groups]
        super().__init__(list(dict.fromkeys(p for group in groups for p in group["params"])), {})
        self.param_groups = groups
        self.gradient_evaluations = self.most = 0
        """`most` is the largest number of gradients that a step has taken."""
        self._several = [has_two_calls(opt) or _needs_closure(opt) for opt in self.optimizers]
        if any(self._several) and len(self._several) > 1:
            name = type(self.optimizers[self._several.index(True)]).__name__
            raise ValueError(f"{name} evaluates a batch several times, and cannot share a model")
        self._modes: list[Any] = [
            opt for opt in self.optimizers if callable(getattr(opt, "eval", None)) and hasattr(opt, "train")
        ]
        for opt in self._modes:
            opt.train()

    def step(self, closure: Any = None) -> Any:
        """One batch."""
        before, first = self.gradient_evaluations, self.optimizers[0]
        again = _Start(self._model) if self._several[0] else None

        def counted() -> Any:
            if again is not None and self.gradient_evaluations > before:
                again.restore()
            self.gradient_evaluations += 1
            with torch.enable_grad():
                return closure()

        loss: Any
        if has_two_calls(first):
            loss = counted()
            first.first_step()
            counted()
            first.second_step()
        elif again is not None:
            loss = first.step(counted)
        else:
            loss = counted()
            for opt in self.optimizers:
                opt.step()
        self.most = max(self.most, self.gradient_evaluations - before)
        return loss

    def zero_grad(self, set_to_none: bool = True) -> None:
        for opt in self.optimizers:
            opt.zero_grad(set_to_none)

    @contextmanager
    def at_x(self) -> Iterator[None]:
        """Inside, the parameters hold the point that is evaluated: schedule-free optimizers take gradients at another
        one."""
        params = [p for opt in self._modes for group in opt.param_groups for p in group["params"]]
        kept = [p.detach().clone() for p in params]
        for opt in self._modes:
            opt.eval()
        try:
            yield
        finally:
            for opt in self._modes:
                opt.train()
            with torch.no_grad():
                for p, old in zip(params, kept, strict=True):
                    p.copy_(old)  # there and back again is not exact

    def state_dict(self) -> dict[str, Any]:
        return {
            "param_groups": [],
            "optimizers": [opt.state_dict() for opt in self.optimizers],
            "bases": [None if base is None else base.state_dict() for base in map(_base, self.optimizers)],
            "counts": [self.gradient_evaluations, self.most],
        }

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        for opt, state in zip(self.optimizers, state_dict["optimizers"], strict=True):
            opt.load_state_dict(state)
        for opt, state in zip(self.optimizers, state_dict.get("bases", ()), strict=False):  # older ones have none
            if (base := _base(opt)) is not None:
                base.load_state_dict(state)
                base.param_groups = opt.param_groups  # of which torch has just made a copy
        self.param_groups = [group for opt in self.optimizers for group in opt.param_groups]
        self.gradient_evaluations, self.most = state_dict["counts"]

    def __repr__(self) -> str:
        return " + ".join(map(repr, self.optimizers))


class _Start:
    """What the first evaluation of a batch starts from, so that others start from it, too: generators and buffers."""

    def __init__(self, model: nn.Module | None) -> None:
        self._generators, self._model = default_generators(), model
        self._buffers = {} if model is None else {name: b.clone() for name, b in model.named_buffers()}

    @torch.no_grad()
    def restore(self) -> None:
        set_default_generators(self._generators)
        if self._model is not None:
            for name, buffer in self._model.named_buffers():
                buffer.copy_(self._buffers[name])


def _check(opt: Any) -> None:
    """Raise an error for an optimizer that the loop cannot run."""
    name = type(opt).__name__
    if not (callable(getattr(opt, "step", None)) and hasattr(opt, "param_groups")):
        raise ValueError(f"{name} is not an optimizer: expected step() and param_groups, as in torch.optim.Optimizer")
    if has_two_calls(opt):
        if hasattr(opt, "third_step"):
            raise ValueError(f"{name} has a third_step; only first_step and second_step are supported")
        for call in (opt.first_step, opt.second_step):
            if wanted := _required(call):
                said = f"{name}.{call.__name__} needs {', '.join(wanted)}"
                raise ValueError(f"{said}: expected no argument, as SAM has it")
    for group in opt.param_groups:
        if "lr" not in group:
            raise ValueError(f"{name} has no 'lr' in its param_groups, but comparisons tune and decay it")


def has_two_calls(opt: Any) -> TypeGuard[Any]:
    """Whether it steps like SAM: `first_step` goes uphill, `second_step` goes back and then down."""
    return hasattr(opt, "first_step") and hasattr(opt, "second_step")


def _base(opt: Any) -> torch.optim.Optimizer | None:
    """The optimizer that this one is built on, whose state is its own; None if there is none."""
    found = getattr(opt, "base_optimizer", None)
    return found if isinstance(found, torch.optim.Optimizer) else None


def _required(call: Any) -> list[str]:
    """The arguments without a default."""
    given = [p for p in inspect.signature(call).parameters.values() if p.kind in (p.POSITIONAL_OR_KEYWORD,)]
    return [p.name for p in given if p.default is p.empty]


def _needs_closure(opt: Any) -> bool:
    required = _required(opt.step)
    if len(required) > 1 or (required and "closure" not in required[0]):
        raise ValueError(
            f"{type(opt).__name__}.step needs {', '.join(required)}: expected step() or step(closure), as torch has it"
        )
    return bool(required)


# ------------------------------------------------------------------------------------------------ making them


def build(specs: Sequence[Spec], model: nn.Module, options: dict[str, Any]) -> SuperAdam | Foreign:
    """The optimizers of a method.

    Of two optimizers, the first gets the `hidden_matrices`, the second all other parameters. Options without a prefix
    are for both; AdamW.lr is for the one named AdamW. If both have the same name, the second is SGD2.
    """
    if len(specs) == 1 and specs[0].target in OWN:
        given = {**specs[0].options, **options}
        made = _listed(OWN[specs[0].target](model, **{"lr": None, **given} if "lr" not in given else given))
    else:
        shares: list[Named] = [list(model.named_parameters())] if len(specs) == 1 else _split(specs, model)
        made = []
        for i, (spec, share) in enumerate(zip(specs, shares, strict=True)):
            made += _listed(_one(spec, share, model, _given(i, specs, options)))
    if len(made) == 1 and isinstance(made[0], SuperAdam):
        return made[0]
    if any(isinstance(opt, SuperAdam) and opt.two_point for opt in made):
        raise ValueError("A method with two gradients per batch cannot share a model with another")
    found = Foreign(made, model)
    _check_cover(found, model)
    return found


def _listed(made: Any) -> list[Any]:
    """The result of a function as a list: one optimizer, or several."""
    return list(made) if isinstance(made, Iterable) and not hasattr(made, "param_groups") else [made]


def _split(specs: Sequence[Spec], model: nn.Module) -> list[Named]:
    if len(specs) > 2:
        raise ValueError(
            f"{' + '.join(s.name for s in specs)}: expected two optimizers at the most, for matrices and for the rest; "
            "for another split write superadam_lab.method(name, build)"
        )
    matrices = set(hidden_matrices(model))
    shares = [[pair for pair in model.named_parameters() if (pair[0] in matrices) is first] for first in (True, False)]
    for spec, share, what in zip(specs, shares, ("hidden matrix", "other parameter"), strict=True):
        if not share:
            raise ValueError(f"The model has no {what} for {spec.name}: give the other optimizer alone")
    return shares


def _given(i: int, specs: Sequence[Spec], options: dict[str, Any]) -> dict[str, Any]:
    """The options of one of them."""
    every, spec = prefixes(specs), specs[i]
    shared = {k: v for k, v in options.items() if not k.startswith(tuple(every))}
    own = {k.removeprefix(every[i]): v for k, v in options.items() if k.startswith(every[i])}
    both = {**spec.options, **shared} if i == 0 else {**shared, **spec.options}
    return {**both, **own}


def _one(spec: Spec, share: Named, model: nn.Module, given: dict[str, Any]) -> Any:
    cls = _found(spec)
    first = next(iter(parameters(cls)), "params")
    if first in MODELS and len(share) < len(list(model.parameters())):
        raise ValueError(f"{spec.name} needs the whole model, and cannot share it with another optimizer")
    params: Any = model if first in MODELS else share if first in NAMES else [p for _, p in share]
    whole = filled(given, lambda name: defaults(spec).get(name))
    base = {BASE: _found(Spec(whole[BASE], {}, {}))} if isinstance(whole.get(BASE), str) else {}
    try:
        return cls(params, **whole | base)
    except Exception as error:
        if deliberate(error):
            raise
        why = place_and(error) or f"{type(error).__name__}: {error}"
        hint = f'. Give them a second optimizer: "{spec.target} + torch.optim.AdamW"' if "2D" in why else ""
        raise ValueError(f"{spec.target} cannot be built with {whole}: {why}{hint}") from error


def defaults(spec: Spec) -> dict[str, Any]:
    """The options of a foreign optimizer that have a default."""
    return {name: p.default for name, p in parameters(_found(spec)).items() if p.default is not p.empty}


def _found(spec: Spec) -> Any:
    """The optimizer class, or a function that returns an optimizer."""
    module, name = _module(spec.target)
    if not hasattr(module, missing := name):
        known = [n for n in dir(module) if n[:1].isupper()]
        name = max((n for n in known if len(n) > 2 and name.endswith(n)), key=len, default=name)  # ForeachSOAP is SOAP
        raise ValueError(f"{module.__name__} has no {missing!r}: {nearest(name, known) if known else 'it has none'}")
    found = getattr(module, name)
    if not _makes_optimizers(found, own=file_of(spec.target) is not None):
        raise ValueError(
            f"{spec.target} is a {type(found).__name__} (expected an optimizer class, such as torch.optim.AdamW, or a "
            "function that returns optimizers and whose first parameter is called params, named_parameters or model)"
        )
    return found


def _makes_optimizers(found: Any, *, own: bool) -> bool:
    """Whether to call an object is safe: it is an optimizer class, or a function for parameters or a model.

    Any function of a file of one's `own` is.
    """
    if isinstance(found, type):
        return callable(getattr(found, "step", None))
    first = next(iter(parameters(found)), "")
    return callable(found) and (own or first in ("params", "parameters", *NAMES, *MODELS))


_files: dict[str, Any] = {}


def _module(target: str) -> tuple[Any, str]:
    place, colon, name = target.rpartition(":")
    if not colon:
        place, _, name = target.rpartition(".")
    if (file := file_of(target)) is not None:
        key = str(file.resolve())
        if key not in _files:
            _files[key] = executed(file, "file with an optimizer")
        return _files[key], name
    try:
        return importlib.import_module(place), name
    except ModuleNotFoundError as error:
        if error.name and place.startswith(error.name):
            raise ValueError(
                f"There is no module {place!r} for {target}: pip install it, or write a file as my_file.py:{name}"
            ) from None
        raise ValueError(f"{place} cannot be imported: {error}") from error
    except Exception as error:
        raise ValueError(f"{place} cannot be imported: {type(error).__name__}: {error}") from error


def _check_cover(opt: Foreign, model: nn.Module) -> None:
    """Check that every parameter of the model belongs to exactly one optimizer."""
    held = [p for group in opt.param_groups for p in group["params"]]
    missing = [name for name, p in model.named_parameters() if p.requires_grad and not any(p is q for q in held)]
    if missing:
        raise ValueError(f"No optimizer has the parameters {', '.join(missing[:3])}")
    if len({id(p) for p in held}) < len(held):
        raise ValueError("Two optimizers have the same parameter")


def hidden_matrices(model: nn.Module) -> list[str]:
    """The names of the weights with two dimensions that Muon takes: those of neither an embedding nor the head.

    The rule is that of `create("muon")`. Kernels of convolutions have more dimensions, which torch's Muon refuses.

    >>> hidden_matrices(nn.Sequential(nn.Embedding(9, 4), nn.Linear(4, 4), nn.LayerNorm(4), nn.Linear(4, 9)))
    ['1.weight']
    """
    layers = [layer for layer in model.modules() if getattr(getattr(layer, "weight", None), "ndim", 0) > 1]
    left_out: list[nn.Module] = [layer for layer in layers if isinstance(layer, (nn.Embedding, nn.EmbeddingBag))]
    if len(layers) > 1 and isinstance(layers[-1], nn.Linear):
        left_out.append(layers[-1])
    others = {id(layer.weight) for layer in left_out}
    named = model.named_parameters()
    return [name for name, p in named if p.requires_grad and p.ndim == 2 and id(p) not in others]
