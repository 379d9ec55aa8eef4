"""Methods with matrices per tensor, here and in other packages, with the same refresh interval for all."""

from __future__ import annotations

import importlib
import importlib.metadata
import importlib.util
import statistics
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor

from superadam import zoo
from superadam_lab.bench import candidates, measures
from superadam_lab.bench.models import Shapes

__all__ = ["EVERY", "OPTIONS", "measure", "rivals", "versions"]

EVERY = 10
LARGEST = 2048  # sides beyond have diagonal factors: HeavyBall's default
OPTIONS: dict[str, dict[str, Any]] = {
    "muon": {"weight_decay": 0.0},
    "shampoo": {"betas": (0.9, 0.99), "precondition_frequency": EVERY, "max_preconditioner_dim": 512},
    "soap": {"precondition_frequency": EVERY},
    "psgd_kron": {"max_size_triangular": LARGEST},
}
"""The zoo's methods, and the options by which they do what the packages do."""

Build = Callable[[list[Tensor]], Any]


class Several:
    """Optimizers that step together."""

    def __init__(self, *optimizers: Any) -> None:
        self.optimizers = optimizers

    def step(self) -> None:
        for opt in self.optimizers:
            opt.step()


def rivals(method: str, shapes: Shapes) -> dict[str, Build]:
    """The versions of a zoo method in the installed packages."""
    found = dict(_torch(method, shapes))
    if importlib.util.find_spec("pytorch_optimizer") is not None:
        found |= _pytorch_optimizer(method)
    if importlib.util.find_spec("heavyball") is not None:
        found |= _heavyball(method)
    return found


def versions() -> dict[str, str]:
    """The versions of the packages."""
    found = {}
    for name in ("pytorch_optimizer", "heavyball"):
        there = importlib.util.find_spec(name) is not None
        found[name] = importlib.metadata.version(name) if there else "not installed"
    return found


def _divided(params: list[Tensor]) -> tuple[list[Tensor], list[Tensor]]:
    return [p for p in params if p.dim() > 1], [p for p in params if p.dim() <= 1]


def _torch(method: str, shapes: Shapes) -> Iterator[tuple[str, Build]]:
    def muon(params: list[Tensor]) -> Several:
        hidden, others = _divided(params)
        return Several(torch.optim.Muon(hidden, weight_decay=0.0), torch.optim.AdamW(others, fused=True))

    if method == "muon" and max(map(len, shapes)) == 2 and min(map(len, shapes)) < 2:  # it takes no kernels
        yield "torch", muon


def _pytorch_optimizer(method: str) -> dict[str, Build]:
    package = importlib.import_module("pytorch_optimizer")

    def muon(params: list[Tensor]) -> Any:
        hidden, others = _divided(params)
        return package.Muon([{"params": hidden, "use_muon": True}, {"params": others, "use_muon": False}])

    def shampoo(params: list[Tensor]) -> Any:
        return package.ScalableShampoo(params, preconditioning_compute_steps=EVERY, start_preconditioning_step=1)

    def soap(params: list[Tensor]) -> Any:
        return package.SOAP(params, precondition_frequency=EVERY)

    def kron(params: list[Tensor]) -> Any:
        return package.Kron(params, max_size_triangular=LARGEST)

    return {"pytorch_optimizer": {"muon": muon, "shampoo": shampoo, "soap": soap, "psgd_kron": kron}[method]}


def _heavyball(method: str) -> dict[str, Build]:
    package = importlib.import_module("heavyball")
    package.utils.compile_mode = None  # compilation takes minutes

    def soap(params: list[Tensor]) -> Any:
        return package.SOAP(params, precondition_frequency=EVERY)

    known = {"muon": package.MuonAdamW, "soap": soap, "psgd_kron": package.PSGDKron}
    return {"HeavyBall": known[method]} if method in known else {}


def _named(params: list[Tensor]) -> list[tuple[str, Tensor]]:
    """Parameters with names, as in a model: names let tensors of one shape refresh in different steps."""
    return [(f"layer{i}", p) for i, p in enumerate(params)]


def _step(build: Build, gradients: list[Tensor], start: list[Tensor]) -> Callable[[], None]:
    params = [x.clone().requires_grad_() for x in start]
    opt = build(params)

    def step() -> None:
        for p, g in zip(params, gradients, strict=True):
            p.grad = g  # some optimizers take it away
        opt.step()

    return step


def measure(shapes: Shapes, rounds: int) -> dict[str, Any]:
    """A step of each method here and in each package, over whole refresh intervals."""
    first, second = candidates.gradients(shapes)
    made: dict[str, Any] = {}
    for method, options in OPTIONS.items():
        builds: dict[str, Build] = {"superadam": lambda p, m=method, o=options: zoo.create(m, _named(p), **o)}  # type: ignore[misc]
        builds |= rivals(method, shapes)
        steps = {name: _step(build, first, second) for name, build in builds.items()}
        times = measures.interleaved(steps, EVERY * -(-rounds // EVERY))
        made[method] = {name: summary(of) for name, of in times.items()}
    return {"tensors": len(shapes), "parameters": sum(torch.Size(s).numel() for s in shapes), "methods": made}


def summary(times: list[float]) -> dict[str, float]:
    """Milliseconds. A large maximum shows that all refreshes happen in one step.

    >>> summary([0.001, 0.002, 0.009])
    {'median_ms': 2.0, 'minimum_ms': 1.0, 'mean_ms': 4.0, 'maximum_ms': 9.0}
    """
    more = {"mean_ms": statistics.mean(times), "maximum_ms": max(times)}
    return {**measures.summary(times), **{key: measures.short(1e3 * value) for key, value in more.items()}}
