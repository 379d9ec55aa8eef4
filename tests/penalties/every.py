"""An example of every penalty."""

import torch

from superadam import penalties

EVERY = {
    "L1": penalties.L1(0.7),
    "L2": penalties.L2(0.7),
    "ElasticNet": penalties.ElasticNet(0.7, 0.4),
    "GroupLasso": penalties.GroupLasso(0.7, None),
    "GroupLasso of rows": penalties.GroupLasso(0.7, -1),
    "OverlappingGroupLasso": penalties.OverlappingGroupLasso(0.7, [[0, 1, 2], [2, 3], [3, 4]]),
    "Huber": penalties.Huber(0.7, 0.5),
    "TotalVariation": penalties.TotalVariation(0.7),
    "TotalVariation of columns": penalties.TotalVariation(0.7, dim=0),
    "Nuclear": penalties.Nuclear(0.7),
}


ANY_SIZE = [name for name in EVERY if name != "OverlappingGroupLasso"]


def metric_of(penalty, d):
    """A number where the penalty needs one."""
    return float(d.mean()) if penalty.scalar_metric else d


def example(seed, shape=(5,), dtype=torch.float64):
    gen = torch.Generator().manual_seed(seed)
    y = 2 * torch.randn(shape, generator=gen, dtype=torch.float64)
    return y.to(dtype), (torch.rand(shape, generator=gen, dtype=torch.float64) * 3 + 0.2).to(dtype)


def objective(penalty, x, y, d):
    return 0.5 * (d * (x - y) ** 2).sum() + penalty.value(x)
