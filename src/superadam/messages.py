"""Warnings that point at the user's line."""

from __future__ import annotations

import os
import sys
import warnings
from pathlib import Path
from types import FrameType

import torch

__all__ = ["warn"]

INSIDE = tuple(f"{folder}{os.sep}" for folder in (Path(__file__).parent, Path(torch.__file__).parent))


def warn(message: str, category: type[Warning] = UserWarning) -> None:
    """Warn at the innermost line that is neither superadam's nor torch's.

    Python 3.12 has `skip_file_prefixes` for this.
    """
    level = 1
    frame: FrameType | None = sys._getframe()
    while frame is not None and frame.f_code.co_filename.startswith(INSIDE):
        level, frame = level + 1, frame.f_back
    warnings.warn(message, category, stacklevel=level)
