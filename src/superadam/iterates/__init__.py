"""At which point gradients are taken, and which point is the result: independent of how the gradient is estimated."""

from superadam.iterates.ahead import Ahead
from superadam.iterates.base import Iterate, Plain
from superadam.iterates.staged import Staged

__all__ = ["Ahead", "Iterate", "Plain", "Staged"]
