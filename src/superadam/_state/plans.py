"""`GroupPlan`: a param group as the optimizer reads it, with its options turned into parts once."""

from __future__ import annotations

import fnmatch
import operator
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from superadam._state.options import FLAGS, KINDS, Composition
from superadam.lists import real, state_dtype
from superadam.matrices import ByShape, Matrix
from superadam.matrices.base import Slot
from superadam.messages import warn

if TYPE_CHECKING:
    from superadam._state.owners import Place
    from superadam._step.layout import Layout

__all__ = ["GroupPlan", "layers_of", "options_of", "warn_of_unmatched_names"]

# All options of a group except the learning rate.
options_of = operator.itemgetter(
    *("tau", *KINDS, "weight_decay", "clip", "rounding", "state_dtype", *FLAGS),
)


class GroupPlan:
    """A param group, the parts that its options name, and the layouts of its parameters in the last step."""

    layouts: list[Layout] | None = None
    refresh_seconds = 0.0
    """Spent on `Matrix.refresh` so far, for the monitor."""
    params: list[Tensor]
    """The parameters of the layouts: those that had a gradient."""

    places: dict[Tensor, Place]
    """Where the matrices of each tensor are worked on."""

    def __init__(self, group: dict[str, Any]) -> None:
        self.group, self.parts = group, Composition.of(group)
        self._chosen: dict[Tensor, Composition] | None = None
        self._rates: dict[Tensor, float] = {}
        if isinstance(self.parts.matrix, ByShape):
            self._chosen = self._by_parameter(self.parts.matrix)
        for p in group["params"]:
            self.of(p).check_shape(real(p))
        self.two_point = self.parts.two_point
        self.free = self.parts.constraint is None and self.parts.penalty is None
        self.takes_any = self.free and not any(self.of(p).matrix.has_factors for p in group["params"])
        # A copy: the user may write into the plain data of a part.
        self.options = tuple(dict(value) if isinstance(value, dict) else value for value in options_of(group))

    def _by_parameter(self, matrix: ByShape) -> dict[Tensor, Composition]:
        params = self.group["params"]
        names, layers = (self.group.get(key) or [""] * len(params) for key in ("param_names", "param_layers"))
        chosen = {p: matrix.choose(real(p), *of) for p, *of in zip(params, names, layers, strict=True)}
        self._rates = {p: rate for p, (_, rate) in chosen.items()}
        return {p: self.parts._replace(matrix=own) for p, (own, _) in chosen.items()}

    def of(self, p: Tensor) -> Composition:
        """The parts of one of the parameters."""
        return self.parts if self._chosen is None else self._chosen[p]

    def factors(self, p: Tensor) -> set[str]:
        """The tensors of the state of a matrix of each tensor: who works on the matrix has them."""
        matrix = self.of(p).matrix
        return set(matrix.slots(real(p))) if matrix.scope == "tensor" else set()

    def slots(self, p: Tensor) -> dict[str, Slot]:
        """The tensors of the state of one of the parameters, as this process has them."""
        factors = self.factors(p)
        return {
            name: slot._replace(shape=(self.places[p].here, *slot.shape[1:])) if name in factors else slot
            for name, slot in self.of(p).slots(real(p)).items()
        }

    def dtype(self, p: Tensor, name: str) -> torch.dtype:
        """The dtype of a tensor of the state of one of the parameters."""
        return torch.bfloat16 if name in self.of(p).narrow(self.group, p) else state_dtype(p)

    def new(self, p: Tensor, name: str, slot: Slot) -> Tensor:
        """A tensor of the state of one of the parameters, with its strides and sharding if it is no factor."""
        dtype = self.dtype(p, name)
        if tuple(slot.shape) == tuple(real(p).shape) and name not in self.factors(p):
            return torch.full_like(real(p), slot.fill, dtype=dtype, memory_format=torch.preserve_format).detach()
        if slot.eye:
            made = torch.eye(slot.shape[-1], dtype=dtype, device=p.device).mul_(slot.fill)
            return made.expand(slot.shape).clone()
        return torch.full(slot.shape, slot.fill, dtype=dtype, device=p.device)

    def rate(self, p: Tensor) -> float:
        """γ of one of the parameters over γ of the group."""
        return self._rates.get(p, 1.0)

    def divisions(self) -> list[str]:
        """Which parameters have which of several matrices, in words."""
        if self._chosen is None:
            return []
        params = self.group["params"]
        names = self.group.get("param_names") or [f"{tuple(p.shape)}" for p in params]
        by_matrix: dict[tuple[Matrix, float], list[str]] = {}
        for p, name in zip(params, names, strict=True):
            by_matrix.setdefault((self._chosen[p].matrix, self.rate(p)), []).append(name)
        return [
            f"{matrix}{'' if rate == 1 else f', lr times {rate:g}'}: {len(of)} tensors, {_few(of)}"
            for (matrix, rate), of in by_matrix.items()
        ]


def _few(names: list[str], most: int = 6) -> str:
    return ", ".join(names[:most]) + (", …" if len(names) > most else "")


def warn_of_unmatched_names(plans: list[GroupPlan]) -> None:
    """Warn of `names` of a `ByShape` that match no parameter: they have no effect."""
    for matrix in dict.fromkeys(plan.parts.matrix for plan in plans):
        groups = [plan.group for plan in plans if plan.parts.matrix == matrix]
        names = [name for group in groups for name in group.get("param_names") or ()]
        for pattern in _patterns(matrix):
            if not fnmatch.filter(names, pattern):
                known = f"such as {names[0]!r}" if names else "and has none: give it the module or named_parameters()"
                warn(f"ByShape: {pattern!r} matches no parameter. The optimizer looks at their names, {known}.")


def _patterns(matrix: Matrix) -> tuple[str, ...]:
    if not isinstance(matrix, ByShape):
        return ()
    return (*matrix.names, *(name for other in (*matrix.firsts, matrix.otherwise) for name in _patterns(other)))


def layers_of(module: nn.Module) -> dict[Tensor, str]:
    """The type of layer that each parameter belongs to, followed by those that it is derived from, as one string.

    "head" for the last linear layer of several with matrices.
    """
    layers: dict[Tensor, str] = {}
    last = None
    for layer in module.modules():
        for p in layer.parameters(recurse=False):
            layers.setdefault(p, _types(layer))  # a head that shares the embedding's weights is an embedding
        weight = getattr(layer, "weight", None)
        if isinstance(weight, Tensor) and weight.dim() > 1:
            several, last = last is not None, layer
    if isinstance(last, nn.Linear) and several and layers.get(last.weight) == _types(last):
        layers[last.weight] = "head"
    return layers


def _types(layer: nn.Module) -> str:
    return " ".join(kind.__name__ for kind in type(layer).__mro__ if issubclass(kind, nn.Module))
