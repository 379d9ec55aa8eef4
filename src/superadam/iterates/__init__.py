"""At which point gradients are taken, and which point is the result. Both are independent of line 11."""

from superadam.iterates.averages import Averaged, Lookahead, ScheduleFree
from superadam.iterates.base import Iterate, Plain
from superadam.iterates.nigt import Nigt
from superadam.iterates.sadagrad import SAdaGrad

__all__ = ["Averaged", "Iterate", "Lookahead", "Nigt", "Plain", "SAdaGrad", "ScheduleFree"]
