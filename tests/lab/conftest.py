import pytest


@pytest.fixture(autouse=True)
def _cache(tmp_path, monkeypatch):
    """Archives in folders that are read-only are unpacked here, not into the user's cache."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
