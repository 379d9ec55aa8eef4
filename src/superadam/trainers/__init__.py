"""Support for τ > 0 in trainers that own the training loop and call `step()` without a closure."""

from superadam.trainers.two_point import TwoPoint

__all__ = ["TwoPoint"]
