import random

import pytest


@pytest.fixture(params=range(4))
def dice(request):
    """Random numbers, the same in every run of the tests; in four parts, for as many processes."""
    return random.Random(request.param)


@pytest.fixture(autouse=True)
def _cache(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
