"""The tasks by name, each in three sizes; and those of your own."""

from superadam_lab.tasks import paper, varied
from superadam_lab.tasks.registry import SCALES, TASKS, Task, find

__all__ = ["SCALES", "TASKS", "Task", "find", "paper", "varied"]
