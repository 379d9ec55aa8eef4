"""Checkpoints on disk, including the position of a run in its data."""

from superadam.checkpoint.files import content_of, load_checkpoint, save_checkpoint
from superadam.checkpoint.resumable import Resumable, default_generators, set_default_generators

__all__ = [
    "Resumable",
    "content_of",
    "default_generators",
    "load_checkpoint",
    "save_checkpoint",
    "set_default_generators",
]
