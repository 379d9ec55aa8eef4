"""Line 4: the adaptive matrices H_t."""

from superadam.lists import dot, norm2
from superadam.matrices.adam_kin import Adamax, Adopt, Centered, RAdam
from superadam.matrices.base import Diagonal, Joint, Matrix, MultipleOfIdentity, Scalar, Slot
from superadam.matrices.bounded import Rprop, Sign, Sophia, sampled_label_loss
from superadam.matrices.by_shape import ByShape
from superadam.matrices.diagonal import AdaBound, AdaDelta, AdaGrad, AMSGrad, Cautious, SCAdaGrad, Yogi
from superadam.matrices.factored import Adafactor, AdamMini
from superadam.matrices.kronecker import Shampoo
from superadam.matrices.muon import Muon
from superadam.matrices.paper import BarzilaiBorwein, Belief, BeliefNorm, GradientNorm, SecondMoment
from superadam.matrices.per_tensor import PerTensor
from superadam.matrices.psgd import PSGDKron
from superadam.matrices.quasi_newton import DampedLBFGS
from superadam.matrices.scalar import AccumulatedNorm, EstimateNorm, Identity
from superadam.matrices.soap import SOAP, KLShampoo
from superadam.matrices.zero import Zero

__all__ = [
    "SOAP",
    "AMSGrad",
    "AccumulatedNorm",
    "AdaBound",
    "AdaDelta",
    "AdaGrad",
    "Adafactor",
    "AdamMini",
    "Adamax",
    "Adopt",
    "BarzilaiBorwein",
    "Belief",
    "BeliefNorm",
    "ByShape",
    "Cautious",
    "Centered",
    "DampedLBFGS",
    "Diagonal",
    "EstimateNorm",
    "GradientNorm",
    "Identity",
    "Joint",
    "KLShampoo",
    "Matrix",
    "MultipleOfIdentity",
    "Muon",
    "PSGDKron",
    "PerTensor",
    "RAdam",
    "Rprop",
    "SCAdaGrad",
    "Scalar",
    "SecondMoment",
    "Shampoo",
    "Sign",
    "Slot",
    "Sophia",
    "Yogi",
    "Zero",
    "dot",
    "norm2",
    "sampled_label_loss",
]
