"""Line 9: sets that constrain the parameters."""

from typing import NoReturn

from superadam.parts import nearest
from superadam.sets.balls import L1Ball, L2Ball
from superadam.sets.base import IF_MISSING, ConvexSet
from superadam.sets.cones import SecondOrderCone
from superadam.sets.groups import GroupL1Ball, L1InfBall
from superadam.sets.intersection import Intersection
from superadam.sets.linear import Affine, Halfspace, Hyperplane
from superadam.sets.ordered import Ordered
from superadam.sets.polyhedra import Polyhedron
from superadam.sets.sections import BoxSection
from superadam.sets.semidefinite import PSD, Correlation, Spectrahedron
from superadam.sets.separable import Box, LInfBall, NonNegative
from superadam.sets.simplices import CappedSimplex, Simplex
from superadam.sets.spectral import NuclearBall, SpectralBall
from superadam.sets.spheres import Sphere
from superadam.sets.transport import DoublyStochastic

__all__ = [
    "PSD",
    "Affine",
    "Box",
    "BoxSection",
    "CappedSimplex",
    "ConvexSet",
    "Correlation",
    "DoublyStochastic",
    "GroupL1Ball",
    "Halfspace",
    "Hyperplane",
    "Intersection",
    "L1Ball",
    "L1InfBall",
    "L2Ball",
    "LInfBall",
    "NonNegative",
    "NuclearBall",
    "Ordered",
    "Polyhedron",
    "SecondOrderCone",
    "Simplex",
    "Spectrahedron",
    "SpectralBall",
    "Sphere",
]


def __getattr__(name: str) -> NoReturn:
    hint = "" if name.startswith("_") else f": {nearest(name, __all__)} ({IF_MISSING})"
    raise AttributeError(f"superadam.sets has no {name!r}{hint}")
