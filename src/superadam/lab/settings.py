"""Options of the paper's methods on the embedded tasks, at `laptop` scale. scripts/lab_settings.py has chosen them."""

from typing import Any

__all__ = ["EMBEDDED"]

EMBEDDED: dict[str, dict[str, dict[str, Any]]] = {}
"""Task → method → options."""
