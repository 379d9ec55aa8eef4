import random
import re

import pytest
import torch
from hypothesis import HealthCheck, settings

# Programs import trainers, which takes seconds: the tests that run them do it, not every process that collects tests.
collect_ignore = ["programs"]

# `make test` draws the same examples on every machine, `make test-slow` many others each time
# (--hypothesis-profile=random). No example has a time limit: the machine may be busy.
COMMON = settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.register_profile("same", COMMON, derandomize=True, max_examples=50)
settings.register_profile("random", COMMON, max_examples=2000, print_blob=True)
settings.load_profile("same")


# Tests that share what is expensive to start or to import: one of xdist's processes runs them all.
TOGETHER = {
    "processes": r"test_distributed\.py",
    "processes of the lab": r"test_parallel\.py",
    "browser": r"test_(report|leaderboard)\.py",
    "trainers": r"test_trainers(_tasks)?\.py|\[with_(accelerate|lightning|transformers)\]|test_snippet_runs\[trainers",
}


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config, log):
    """Not by xdist's own groups, which pytest 9.2 ignores (xdist 3.8 writes a field that it does not read any more)."""
    from xdist.scheduler import LoadScopeScheduling

    class Together(LoadScopeScheduling):
        def _split_scope(self, nodeid):
            return next((name for name, pattern in TOGETHER.items() if re.search(pattern, nodeid)), nodeid)

    return Together(config, log)


@pytest.fixture(autouse=True)
def _seeded():
    """Every test starts from the same generator, on one thread."""
    torch.manual_seed(0)


@pytest.fixture(params=range(4))
def dice(request):
    """Random numbers of a fuzz target, the same in every run; in four parts, for as many processes."""
    return random.Random(request.param)
