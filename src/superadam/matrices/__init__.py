"""Line 4: the adaptive matrices H_t."""

from superadam.matrices.base import Matrix, MultipleOfIdentity
from superadam.matrices.diagonal import AdaBound, AdaDelta, AdaGrad, AMSGrad, Cautious, SCAdaGrad, Yogi
from superadam.matrices.paper import BarzilaiBorwein, Belief, BeliefNorm, GradientNorm, SecondMoment
from superadam.matrices.quasi_newton import DampedLBFGS
from superadam.matrices.scalar import AccumulatedNorm, EstimateNorm, Identity

__all__ = [
    "AMSGrad",
    "AccumulatedNorm",
    "AdaBound",
    "AdaDelta",
    "AdaGrad",
    "BarzilaiBorwein",
    "Belief",
    "BeliefNorm",
    "Cautious",
    "DampedLBFGS",
    "EstimateNorm",
    "GradientNorm",
    "Identity",
    "Matrix",
    "MultipleOfIdentity",
    "SCAdaGrad",
    "SecondMoment",
    "Yogi",
]
