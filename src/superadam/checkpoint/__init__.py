"""Checkpoints on disk, including the position of a run in its data."""

from superadam.checkpoint.files import content_of, load_checkpoint, save_checkpoint
from superadam.checkpoint.resumable import Resumable

__all__ = ["Resumable", "content_of", "load_checkpoint", "save_checkpoint"]
