"""The parameters for an optimizer of matrices, and those for another one."""

from __future__ import annotations

from torch import nn

from superadam._state.plans import layers_of
from superadam.matrices import ByShape

__all__ = ["hidden_matrices"]


def hidden_matrices(model: nn.Module) -> list[str]:
    """The names of the weights with two dimensions that Muon takes: those of neither an embedding nor the head.

    The rule is that of `create("muon")`. Kernels of convolutions have more dimensions, which torch's Muon refuses.

    >>> hidden_matrices(nn.Sequential(nn.Embedding(9, 4), nn.Linear(4, 4), nn.LayerNorm(4), nn.Linear(4, 9)))
    ['1.weight']
    """
    layers = layers_of(model)
    named = [(name, p) for name, p in model.named_parameters() if p.requires_grad and p.ndim == 2]
    return [name for name, p in named if not set(layers[p].split()).intersection(ByShape.layers)]
