"""The candidates: torch's optimizers, the paper's cases, the zoo."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor
from torch.optim import Optimizer

from superadam import SuperAdam, matrices, zoo

__all__ = ["ADAMW_FOREACH", "ADAMW_FUSED", "Candidate", "Gradients", "Trial", "compiled", "everything", "way"]

Gradients = tuple[list[Tensor], list[Tensor]]


@dataclass(frozen=True)
class Candidate:
    """An optimizer by name; `peer` is torch's optimizer for the same method."""

    name: str
    kind: str
    build: Callable[[list[Tensor]], Optimizer]
    peer: Candidate | None = None


class Trial:
    """An optimizer with parameters of given shapes, and gradients that all candidates share.

    `step` is a whole step through the public interface. The gradients exist before. If a step needs two, a closure
    assigns them, one assignment per parameter. So with τ = 1 a step consists of both half-steps, without forward and
    backward.
    """

    def __init__(self, candidate: Candidate, gradients: Gradients) -> None:
        first, second = gradients
        self.params = [(0.1 * g).requires_grad_() for g in second]
        self.opt = candidate.build(self.params)
        self._next, self._other = first, second
        for p, g in zip(self.params, first, strict=True):
            p.grad = g
        self.two_point = isinstance(self.opt, SuperAdam) and self.opt.two_point
        self.step: Callable[[], Any] = self._two_gradients if self.two_point else self.opt.step

    def _two_gradients(self) -> None:
        def closure() -> float:
            for p, g in zip(self.params, self._next, strict=True):
                p.grad = g
            if self.opt.state:  # the first batch is evaluated twice at one point
                self._next, self._other = self._other, self._next
            return 0.0

        self.opt.step(closure)

    @property
    def state_bytes(self) -> int:
        """The bytes of the state. Tensors that parameters share count once."""
        held = {id(t): t for state in self.opt.state.values() for t in state.values() if isinstance(t, Tensor)}
        return sum(t.nbytes for t in held.values())


def gradients(shapes: Sequence[tuple[int, ...]]) -> Gradients:
    """Two gradients for each shape, shared by all candidates, because no optimizer writes into them."""
    generator = torch.Generator().manual_seed(0)
    first, second = ([torch.randn(shape, generator=generator) for shape in shapes] for _ in range(2))
    return first, second


ADAMW_FUSED = Candidate("torch AdamW, fused", "torch", lambda p: torch.optim.AdamW(p, fused=True))
ADAMW_FOREACH = Candidate("torch AdamW, foreach", "torch", lambda p: torch.optim.AdamW(p, foreach=True))
PEERS = {
    "adadelta": Candidate("torch Adadelta, foreach", "torch", lambda p: torch.optim.Adadelta(p, foreach=True)),
    "adagrad": Candidate("torch Adagrad, fused", "torch", lambda p: torch.optim.Adagrad(p, fused=True)),
    "amsgrad": Candidate(
        "torch AdamW, amsgrad, fused", "torch", lambda p: torch.optim.AdamW(p, amsgrad=True, fused=True)
    ),
    "sgd": Candidate("torch SGD, fused", "torch", lambda p: torch.optim.SGD(p, momentum=0.9, fused=True)),
}
"""What torch has for methods other than AdamW."""

OPTIONS: dict[str, dict[str, Any]] = {"sgd": {"momentum": 0.9}}
"""Where a method's defaults are not what is meant."""

CASES: dict[str, matrices.Matrix] = {
    "1": matrices.SecondMoment(),
    "2": matrices.GradientNorm(),
    "3": matrices.BarzilaiBorwein(),
    "4a": matrices.Belief(),
    "4b": matrices.BeliefNorm(),
}


def paper_cases(*, compile: bool = False) -> list[Candidate]:
    """The paper's five cases, with τ = 0 and τ = 1."""

    def build(matrix: matrices.Matrix, tau: float) -> Callable[[list[Tensor]], Optimizer]:
        return lambda p: SuperAdam(p, matrix=matrix, tau=tau, compile=compile)

    return [
        Candidate(f"case {case}, τ = {tau}", "paper", build(matrix, float(tau)))
        for case, matrix in CASES.items()
        for tau in (0, 1)
    ]


def zoo_methods(*, compile: bool = False) -> list[Candidate]:
    """Every method of the zoo, with its defaults."""

    def build(name: str) -> Callable[[list[Tensor]], Optimizer]:
        return lambda p: zoo.create(name, p, compile=compile, **OPTIONS.get(name, {}))

    return [Candidate(name, "zoo", build(name), PEERS.get(name)) for name in zoo.list_methods()]


def compiled(candidates: list[Candidate], counterparts: list[Candidate]) -> list[Candidate]:
    """The same candidates with `compile=True`, if that changes how their step runs."""
    different = []
    for eager, counterpart in zip(candidates, counterparts, strict=True):
        if way(counterpart) != way(eager):
            different.append(replace(counterpart, name=f"{eager.name}, compiled"))
    return different


def everything(*, compile: bool = False) -> list[Candidate]:
    """All candidates except the two baselines."""
    eager = [*paper_cases(), *zoo_methods()]
    if not compile:
        return eager
    return [*eager, *compiled(eager, [*paper_cases(compile=True), *zoo_methods(compile=True)])]


def way(candidate: Candidate) -> str:
    """Say how a step for matrices and vectors runs on a CPU.

    >>> way(next(candidate for candidate in zoo_methods() if candidate.name == "soap"))
    'lists and a fused kernel'
    """
    large = [torch.zeros(shape, requires_grad=True) for shape in ((300, 300), (90_000,))]  # small ones are not compiled
    opt = candidate.build(large)
    if not isinstance(opt, SuperAdam):
        return "torch"
    (said,) = (line.strip() for line in repr(opt).splitlines() if line.strip().startswith("runs by "))
    return said.removeprefix("runs by ").split(" (")[0].removesuffix(", not torch.compile")
