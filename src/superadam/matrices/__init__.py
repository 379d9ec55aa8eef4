"""Line 4: the adaptive matrices H_t."""

from superadam.matrices.base import Matrix, MultipleOfIdentity
from superadam.matrices.paper import BarzilaiBorwein, Belief, BeliefNorm, GradientNorm, SecondMoment

__all__ = [
    "BarzilaiBorwein",
    "Belief",
    "BeliefNorm",
    "GradientNorm",
    "Matrix",
    "MultipleOfIdentity",
    "SecondMoment",
]
