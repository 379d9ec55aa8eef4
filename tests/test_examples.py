"""What the examples of docs/constraints.md claim."""

import importlib.util
from pathlib import Path

import pytest

FOLDER = Path(__file__).resolve().parent.parent / "examples" / "constraints"


def example(name):
    spec = importlib.util.spec_from_file_location(f"constraints_{name}", FOLDER / f"{name}.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_mixture_weights_are_those_of_em():
    result = example("mixture_weights").main()
    assert -1e-12 < result["gap"] < 1e-4
    assert result["distance"] < 5e-3
    assert result["absent"] < 1e-3
    assert result["violation"] < 1e-12


def test_portfolio_is_that_of_slsqp():
    module = example("portfolio")
    result = module.main()
    assert -1e-9 < result["gap"] < 1e-3 < 0.02 * result["start"]
    assert module.CAP - 1e-3 < result["largest"] <= module.CAP + 1e-12
    assert result["violation"] < 1e-12


def test_nmf_is_as_good_as_that_of_sklearn():
    result = example("nmf").main()
    assert result["least"] >= 0
    assert result["error"] < 1.02 * result["sklearn"]
    assert result["zeros"] > 0.5


def test_monotone_network_is_monotone_and_the_free_one_is_not():
    result = example("monotone").main()
    assert result["monotone"]["violation"] == 0
    assert result["monotone"]["decreasing"] == 0 < result["free"]["decreasing"]
    assert result["monotone"]["error"] < result["free"]["error"]


def test_sparse_logistic_regression_is_that_of_sklearn():
    """The objective, and exact zeros at x̃; x_t has none."""
    result = example("sparse_logistic").main()
    assert -1e-6 < result["gap"] < 1e-3
    assert result["theirs"] <= result["chosen"]
    assert len(result["chosen"]) <= 15
    assert result["nonzero_x"] == 30
    assert result["accuracy"] > 0.96


def test_max_norm_bounds_every_row():
    result = example("max_norm").main(r=2.0, seeds=(0,))
    assert result["max-norm"]["largest"] <= 2 + 1e-5
    assert result["max-norm"]["violation"] <= 2e-6
    assert result["max-norm"]["accuracy"] > 0.96
    assert result["free"]["largest"] > 2


@pytest.mark.parametrize("path", sorted(FOLDER.glob("*.py")), ids=lambda p: p.stem)
def test_examples_are_short(path):
    assert len(path.read_text().splitlines()) < 80


def test_examples_are_all_tested():
    tested = Path(__file__).read_text()
    assert all(f'example("{p.stem}")' in tested for p in FOLDER.glob("*.py"))
