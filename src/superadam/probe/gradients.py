"""Gradients of batches at several points, their moments and curvatures, for `probe`."""

from __future__ import annotations

import functools
import math
import operator
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from superadam.evaluations import Replay, aside
from superadam.lists import TensorList, dot, norm2, real, state_dtype

__all__ = [
    "Evaluator",
    "LossFn",
    "Moments",
    "differences",
    "directions",
    "gradients",
    "largest_curvature",
    "ratio",
    "untouched",
]

LossFn = Callable[[nn.Module, Any], Tensor]
List = Any  # a TensorList like the parameters


@contextmanager
def untouched(model: nn.Module, loader: object = None) -> Iterator[Replay]:
    """Restore the model and the random generators at the end. Yield the state of generators and buffers."""
    modes = [(module, module.training) for module in model.modules()]
    kept = [(p, p.grad, p.detach().clone()) for p in model.parameters()]
    with aside([model], loader) as start:
        try:
            for p, _, _ in kept:
                p.grad = None
            yield start
        finally:
            with torch.no_grad():
                for p, grad, value in kept:
                    p.copy_(value)
                    p.grad = grad
            for module, training in modes:
                module.training = training


def gradients(loss: Tensor, params: Sequence[Tensor], source: str, hint: str = "") -> tuple[Tensor | None, ...]:
    """Return the gradients of a loss without using `p.grad`; None for a parameter on which it does not depend.

    For errors, `source` names the user's function that has returned the loss, and `hint` says what else may be wrong.
    """
    if not isinstance(loss, Tensor) or loss.numel() != 1 or not loss.requires_grad:
        raise TypeError(
            f"{source} must return the loss, a differentiable tensor with one element, and must not call backward(); "
            f"it returned {loss!r}"
        )
    found = torch.autograd.grad(loss, params, allow_unused=True)
    if all(grad is None for grad in found):
        raise ValueError(
            f"The loss of {source} depends on no parameter of the model. Is it the loss of another model?{hint}"
        )
    return found


class Evaluator:
    """Gradients of batches at x or at x + step, in the dtype of the state, as in line 11."""

    def __init__(self, model: nn.Module, loss_fn: LossFn) -> None:
        self.model, self.loss_fn, self.count = model, loss_fn, 0
        self.params = [p for p in model.parameters() if p.requires_grad]
        if not self.params:
            raise ValueError("probe got a model in which no parameter requires a gradient")
        for dtype in {p.dtype for p in self.params if p.dtype.itemsize < 4}:
            raise ValueError(
                f"probe compares gradients over small steps, which {dtype} rounds away: pass copy.deepcopy(model)."
                "float(), and use torch.autocast in loss_fn"
            )
        self.x = [p.detach().clone() for p in self.params]

    def __call__(self, batch: Any) -> List:
        with torch.enable_grad():
            loss = self.loss_fn(self.model, batch)
            grads = gradients(loss, self.params, "loss_fn")
        self.loss, self.count = float(loss.detach()), self.count + 1
        found = [torch.zeros_like(p) if g is None else g for p, g in zip(self.params, grads, strict=True)]
        return TensorList([real(g.resolve_conj()).to(state_dtype(g)) for g in found])

    @torch.no_grad()
    def move(self, step: List = None) -> None:
        """Move the parameters to x + step."""
        for i, (p, x) in enumerate(zip(self.params, self.x, strict=True)):
            p.copy_(x)
            if step is not None:
                real(p).add_(step.tensors[i])


class Moments:
    """Running mean and variance of gradients, in the Euclidean norm and in that of H⁻¹."""

    def __init__(self, H: List) -> None:
        self.H, self.n = H, 0
        self.squares = {False: 0.0, True: 0.0}

    def add(self, g: List) -> None:
        self.n += 1
        self.mean: List = g if self.n == 1 else self.mean + (g - self.mean) / self.n
        for weighted in (False, True):
            self.squares[weighted] += self._norm2(g, weighted)

    def variance(self, weighted: bool = False) -> float:
        """Return E‖g - E g‖², unbiased."""
        return max(self.squares[weighted] - self.n * self._norm2(self.mean, weighted), 0.0) / (self.n - 1)

    def mean2(self, weighted: bool = False) -> float:
        """Return ‖E g‖² minus the variance of the mean, at least 0."""
        return max(self._norm2(self.mean, weighted) - self.variance(weighted) / self.n, 0.0)

    def _norm2(self, g: List, weighted: bool) -> float:
        return float(dot(g / self.H, g) if weighted else norm2(g))


def directions(at: Evaluator, samples: list[Any], lam: float) -> tuple[List, List, List]:
    """Return the mean gradient, a mean of the noise only (with alternating signs), and H."""
    new = g = u = at(samples[0])
    v = new * new
    for i, batch in enumerate(samples[1:], start=1):
        new = at(batch)
        g, u, v = g + new, u + new * (-1.0) ** i, v + new * new
    if len(samples) % 2:
        u = u - new  # as many of either sign, so that the gradient itself cancels
    n = len(samples)
    return g / n, u / n, (v / n).sqrt() + lam


def differences(at: Evaluator, samples: list[Any], steps: dict[str, List], H: List) -> tuple[dict[str, Moments], float]:
    """Return moments of gradients at x, of their changes over the steps "gradient" and "noise", and of their change
    over "gradient" with fresh masks; and the loss at x."""
    seen, loss = {name: Moments(H) for name in ("at x", "fresh", "gradient", "noise")}, 0.0
    for batch in samples:
        start = Replay([at.model])
        at_x = at(batch)
        loss += at.loss / len(samples)
        seen["at x"].add(at_x)
        at.move(steps["gradient"])
        seen["fresh"].add(at(batch) - at_x)  # generators and buffers are where the last evaluation has left them
        for name, step in steps.items():
            at.move(step)
            start.restore()
            seen[name].add(at(batch) - at_x)
        at.move()
    return seen, loss


def largest_curvature(at: Evaluator, samples: list[Any], start: List, H: List, iterations: int) -> float:
    """Return the largest eigenvalue of H⁻¹∇²f over some batches, from differences of gradients over steps of `start`'s
    length."""
    origin = Replay([at.model])

    def gradient() -> List:
        origin.restore()
        return functools.reduce(operator.add, map(at, samples)) / len(samples)

    def length(step: List) -> float:
        return math.sqrt(float(dot(step * H, step)))

    v, size, value, at_x = start, length(start), 0.0, gradient()
    for _ in range(iterations):
        at.move(v)
        difference = gradient() - at_x
        at.move()
        value = ratio(dot(difference, v), dot(v * H, v))
        v = difference / H
        v = v * (size / max(length(v), 1e-30))
    return value


def ratio(a: float | Tensor, b: float | Tensor) -> float:
    """Return a/b, or 0 if both are 0."""
    a, b = float(a), float(b)
    return a / b if b != 0 else (math.inf if a > 0 else 0.0)
