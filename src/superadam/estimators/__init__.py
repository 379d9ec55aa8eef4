r"""Line 11: the gradient estimator $g_t$.

An estimator gets the two gradients of a batch one after the other, with the move from $x_{t-1}$ to $x_t$ between them.
It stores neither of them. `s` is the state of the parameters being updated: `s.g`, and the weight
`s.alpha` = $\alpha_t$.
"""

from superadam.estimators.anchors import Page
from superadam.estimators.base import Blend, Estimator
from superadam.estimators.blends import Adan, AdEMAMix, HeavyBall, NAdam
from superadam.estimators.line_11 import Averaged, Mars, Nesterov, NesterovRecursive, Recursive, Summed

__all__ = [
    "AdEMAMix",
    "Adan",
    "Averaged",
    "Blend",
    "Estimator",
    "HeavyBall",
    "Mars",
    "NAdam",
    "Nesterov",
    "NesterovRecursive",
    "Page",
    "Recursive",
    "Summed",
]
