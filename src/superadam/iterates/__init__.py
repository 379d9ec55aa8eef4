"""At which point gradients are taken, and which point is the result. Both are independent of line 11."""

from superadam.iterates.ahead import Ahead
from superadam.iterates.averages import Averaged, Lookahead, ScheduleFree
from superadam.iterates.base import Iterate, Plain
from superadam.iterates.staged import Staged

__all__ = ["Ahead", "Averaged", "Iterate", "Lookahead", "Plain", "ScheduleFree", "Staged"]
