"""The names of tests are the same in every process, so that several can share them."""

from types import SimpleNamespace

import pytest


@pytest.fixture
def hooks(request):
    """conftest.py of all tests."""
    return next(p for p in request.config.pluginmanager.get_plugins() if hasattr(p, "TOGETHER"))


@pytest.mark.parametrize(
    "name", ["test[<function f at 0x7fe6f6c84a40>]", "test[{'f': <lambda>}]"], ids=["address", "lambda"]
)
def test_an_id_with_an_address_ends_the_collection(hooks, name):
    with pytest.raises(pytest.UsageError, match=r"not names.*a\.py::test\["):
        hooks.pytest_collection_modifyitems([SimpleNamespace(name=name, nodeid=f"a.py::{name}")])
    hooks.pytest_collection_modifyitems([SimpleNamespace(name="test[0x10-lambda]", nodeid="")])


@pytest.mark.parametrize("made", [lambda: 0, lambda: 1])
def test_a_lambda_is_called_after_the_parameter(request, made):
    assert request.node.callspec.id == f"made{made()}"
