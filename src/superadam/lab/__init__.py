"""Section 6 of the paper as software: its tasks, models and data, on the paper's scale and on a laptop's.

Comes with `pip install superadam[lab]`; `import superadam` does not import it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from superadam.lab.own import task

__all__ = ["task"]


def __getattr__(name: str) -> Any:
    """`task`, imported when it is asked for."""
    if name == "task":
        from superadam.lab.own import task

        return task
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
