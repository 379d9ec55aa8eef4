import gc
import importlib.util
import random
import re

import pytest
import torch
from hypothesis import HealthCheck, settings

# Programs import trainers, which takes seconds: the tests that run them do it, not every process that collects tests.
collect_ignore = ["tests/programs"]
if importlib.util.find_spec("superadam_lab") is None:  # the site has pages of both packages
    collect_ignore += ["tests/docs", "lab"]

# `make test` draws the same examples on every machine, `make test-slow` many others each time
# (--hypothesis-profile=random). No example has a time limit: the machine may be busy.
COMMON = settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.register_profile("same", COMMON, derandomize=True, max_examples=25)
settings.register_profile("random", COMMON, max_examples=2000, print_blob=True)
settings.load_profile("same")


# Tests that share what is expensive to start or to import: one of xdist's processes runs them all.
TOGETHER = {
    "processes": r"test_distributed\.py",
    "processes of the lab": r"test_parallel(_failures)?\.py",
    "browser": r"test_(report|leaderboard)\.py",
    "trainers": r"test_(task_)?trainers\.py|\[with_(accelerate|lightning|transformers)\]|test_snippet_runs\[trainers",
}


def pytest_make_parametrize_id(val, argname):
    """A lambda has no name of its own: it is called what the parameter is called."""
    return argname if getattr(val, "__name__", None) == "<lambda>" else None


def pytest_collection_modifyitems(items):
    """An id with an address is another one in each process: xdist's processes could not share the tests."""
    if found := [item.nodeid for item in items if re.search(r"\bat 0x[0-9a-f]+|<lambda>", item.name)]:
        raise pytest.UsageError(f"ids of tests are not names, give them ids=: {', '.join(found)}")


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config, log):
    """Not by xdist's own groups, which pytest 9.2 ignores (xdist 3.8 writes a field that it does not read any more)."""
    from xdist.scheduler import LoadScopeScheduling

    class Together(LoadScopeScheduling):
        def _split_scope(self, nodeid):
            return next((name for name, pattern in TOGETHER.items() if re.search(pattern, nodeid)), nodeid)

        def mark_test_complete(self, node, item_index, duration=0):
            """As xdist's, but what is done is forgotten: it would be counted again with every test that follows."""
            nodeid = self.registered_collections[node][item_index]
            work, scope = self.assigned_work[node], self._split_scope(nodeid)
            if scope in work:  # not so for the second report of one test
                work[scope][nodeid] = True
                if all(work[scope].values()):
                    del work[scope]
            self._reschedule(node)

    return Together(config, log)


@pytest.hookimpl(wrapper=True)
def pytest_collection(session):
    """What is collected stays to the end: Python's garbage collector would look at it again and again."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.enable()


@pytest.fixture(scope="module", autouse=True)
def _frozen():
    """The collector skips all that a module finds: packages, mostly. Otherwise each call of it takes a second."""
    gc.collect()
    gc.freeze()


@pytest.fixture(autouse=True)
def _seeded():
    """Every test starts from the same generator, on one thread."""
    torch.manual_seed(0)


@pytest.fixture(params=range(4))
def dice(request):
    """Random numbers of a fuzz target, the same in every run; in four parts, for as many processes."""
    return random.Random(request.param)
