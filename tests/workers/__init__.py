"""What the processes of tests/test_distributed.py run: every scenario in one start, since a start takes long."""

from workers import checkpoints, messages, owners, replicated, sharded  # each adds its scenarios
from workers.scenarios import SCENARIOS, SLOW, run_all

__all__ = ["SCENARIOS", "SLOW", "checkpoints", "messages", "owners", "replicated", "run_all", "sharded"]
