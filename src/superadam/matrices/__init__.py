"""Line 4: the adaptive matrices H_t."""

from superadam._step.tensors import dot, norm2
from superadam.matrices.base import Matrix, MultipleOfIdentity, Slot
from superadam.matrices.by_shape import ByShape
from superadam.matrices.diagonal import AdaBound, AdaDelta, AdaGrad, AMSGrad, Cautious, SCAdaGrad, Yogi
from superadam.matrices.paper import BarzilaiBorwein, Belief, BeliefNorm, GradientNorm, SecondMoment
from superadam.matrices.quasi_newton import DampedLBFGS
from superadam.matrices.scalar import AccumulatedNorm, EstimateNorm, Identity
from superadam.matrices.shampoo import OneSidedShampoo

__all__ = [
    "AMSGrad",
    "AccumulatedNorm",
    "AdaBound",
    "AdaDelta",
    "AdaGrad",
    "BarzilaiBorwein",
    "Belief",
    "BeliefNorm",
    "ByShape",
    "Cautious",
    "DampedLBFGS",
    "EstimateNorm",
    "GradientNorm",
    "Identity",
    "Matrix",
    "MultipleOfIdentity",
    "OneSidedShampoo",
    "SCAdaGrad",
    "SecondMoment",
    "Slot",
    "Yogi",
    "dot",
    "norm2",
]
