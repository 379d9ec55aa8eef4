import random

import pytest
import torch
from hypothesis import HealthCheck, settings

# `make test` draws the same examples on every machine, `make test-slow` many others each time
# (--hypothesis-profile=random). No example has a time limit: the machine may be busy.
COMMON = settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.register_profile("same", COMMON, derandomize=True, max_examples=100)
settings.register_profile("random", COMMON, max_examples=2000, print_blob=True)
settings.load_profile("same")


@pytest.fixture(autouse=True)
def _seeded():
    """Every test starts from the same generator, on one thread."""
    torch.manual_seed(0)


@pytest.fixture(params=range(4))
def dice(request):
    """Random numbers of a fuzz target, the same in every run; in four parts, for as many processes."""
    return random.Random(request.param)
