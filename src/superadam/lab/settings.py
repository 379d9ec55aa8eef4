"""Learning rates of the paper's methods on embedded tasks, at `laptop` scale. scripts/lab_settings.py has chosen them.

A task that is not here has the settings of the paper's experiment of the same shape, if there is one.
"""

from typing import Any

__all__ = ["EMBEDDED"]

EMBEDDED: dict[str, dict[str, dict[str, Any]]] = {}
"""Task → method → options."""
