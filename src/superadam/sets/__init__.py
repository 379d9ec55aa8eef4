"""Line 9: the sets to which the iterates are confined."""

from superadam.sets.balls import L1Ball, L2Ball
from superadam.sets.base import ConvexSet
from superadam.sets.linear import Affine, Halfspace, Hyperplane
from superadam.sets.separable import Box, LInfBall, NonNegative
from superadam.sets.simplices import CappedSimplex, Simplex
from superadam.sets.spectral import NuclearBall, SpectralBall

__all__ = [
    "Affine",
    "Box",
    "CappedSimplex",
    "ConvexSet",
    "Halfspace",
    "Hyperplane",
    "L1Ball",
    "L2Ball",
    "LInfBall",
    "NonNegative",
    "NuclearBall",
    "Simplex",
    "SpectralBall",
]
