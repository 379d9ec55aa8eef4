"""The parameters for an optimizer of matrices, and those for another one."""

from __future__ import annotations

from torch import nn

__all__ = ["hidden_matrices"]


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
