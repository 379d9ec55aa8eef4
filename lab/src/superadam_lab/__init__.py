"""Section 6 of the paper as software: its tasks, models and data, on the paper's scale and on a laptop's.

Comes with `pip install superadam-lab`; `import superadam` does not import it.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from superadam_lab.comparison.engine import compare
    from superadam_lab.methods.own import method
    from superadam_lab.tasks.own import task
    from superadam_lab.tasks.trainers import huggingface, lightning

__all__ = ["compare", "huggingface", "lightning", "method", "task"]

_HOMES = {
    "compare": "superadam_lab.comparison.engine",
    "huggingface": "superadam_lab.tasks.trainers",
    "lightning": "superadam_lab.tasks.trainers",
    "method": "superadam_lab.methods.own",
    "task": "superadam_lab.tasks.own",
}


def __getattr__(name: str) -> Any:
    """Import a public name on first use, because modules of this package import the package themselves."""
    if name in _HOMES:
        return getattr(import_module(_HOMES[name]), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
