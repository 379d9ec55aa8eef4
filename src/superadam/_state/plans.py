"""A param group as the optimizer reads it: its options, turned into parts, once."""

from __future__ import annotations

import operator
from typing import TYPE_CHECKING, Any

from torch import Tensor

from superadam._state.options import KINDS, Composition
from superadam._step.view import real
from superadam.matrices import ByShape

if TYPE_CHECKING:
    from superadam._step.layout import Layout

__all__ = ["Plan", "options_of"]

# The options of a group but for the learning rate.
options_of = operator.itemgetter(
    *("tau", *KINDS, "weight_decay", "decoupled_weight_decay", "clip", "maximize", "rounding"),
    *("foreach", "fused", "compile", "capturable", "differentiable"),
)


class Plan:
    """A param group: the parts that its options name, and its parameters as the last step has grouped them."""

    layouts: list[Layout] | None = None
    params: list[Tensor]
    """Those with a gradient, which the layouts are of."""

    def __init__(self, group: dict[str, Any]) -> None:
        self.group, self.parts = group, Composition.of(group)
        self._chosen: dict[Tensor, Composition] | None = None
        if isinstance(self.parts.matrix, ByShape):
            self._chosen = self._by_parameter(self.parts.matrix)
        self.two_point = self.parts.two_point
        self.free = self.parts.constraint is None and self.parts.penalty is None
        # Parts are plain data that a user may write into: keep a copy.
        self.options = tuple(dict(value) if isinstance(value, dict) else value for value in options_of(group))

    def _by_parameter(self, matrix: ByShape) -> dict[Tensor, Composition]:
        params = self.group["params"]
        names, layers = (self.group.get(key) or [""] * len(params) for key in ("param_names", "param_layers"))
        chosen = [matrix.choose(real(p), *of) for p, *of in zip(params, names, layers, strict=True)]
        return {p: self.parts._replace(matrix=own) for p, own in zip(params, chosen, strict=True)}

    def of(self, p: Tensor) -> Composition:
        """The parts of one of the parameters."""
        return self.parts if self._chosen is None else self._chosen[p]
