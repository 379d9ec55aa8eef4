"""Line 9 with a penalty: minimise f(x) + h(x), where h need not be differentiable."""

from superadam.penalties.base import Penalty, combined_argmin, pair_objection
from superadam.penalties.groups import GroupLasso, OverlappingGroupLasso
from superadam.penalties.nuclear import Nuclear
from superadam.penalties.separable import L1, L2, ElasticNet, Huber
from superadam.penalties.variation import TotalVariation

__all__ = [
    "L1",
    "L2",
    "ElasticNet",
    "GroupLasso",
    "Huber",
    "Nuclear",
    "OverlappingGroupLasso",
    "Penalty",
    "TotalVariation",
    "combined_argmin",
    "pair_objection",
]
