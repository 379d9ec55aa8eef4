"""Methods are found by name and by pattern, and refuse what is unknown or out of range."""

import functools
import inspect

import pytest
import torch

from superadam import SuperAdam, create, list_methods, zoo
from superadam.zoo.registry import Options

NAMES = [
    "sgd",
    "adagrad",
    "sc_adagrad",
    "sadagrad",
    "adadelta",
    "adam",
    "adamw",
    "amsgrad",
    "yogi",
    "padam",
    "generalized_adam",
    "adabound",
    "adabelief",
    "adagrad_norm",
    "adaptive_sgd",
    "storm",
    "nigt",
    "adam_plus",
    "mars",
    "mars_approx",
    "sdlbfgs",
    "super_adam",
    "super_adam_plus",
    "adamw_ahead",
    "adafactor",
    "adam_mini",
    "adan",
    "dog",
    "lamb",
    "lars",
    "prodigy",
    "adamax",
    "ademamix",
    "adopt",
    "cautious_adamw",
    "lion",
    "nadam",
    "nadamw",
    "radam",
    "rmsprop",
    "rprop",
    "asgd",
    "schedule_free_adamw",
    "sophia_g",
    "stable_adamw",
    "muon",
    "shampoo",
    "soap",
    "kl_shampoo",
    "psgd_kron",
    "mars_m",
    "mars_shampoo",
    "limuon",
]


def test_every_method_is_listed_and_can_be_created():
    assert set(list_methods()) == set(NAMES) == set(zoo.METHODS)
    for name, line in list_methods().items():
        assert len(line) > 10
        assert not line.endswith(".")
        opt = create(name, torch.nn.Linear(2, 1))
        assert isinstance(opt, SuperAdam)
        assert getattr(zoo, name).__name__ == zoo.METHODS[name].name == name


def test_the_learning_rate_may_come_third():
    """As in torch.optim; and it wins over that of a preset."""
    for preset in (None, "cifar10"):
        opt = zoo.create("super_adam", torch.nn.Linear(2, 1), 0.5, preset=preset)
        assert opt.param_groups[0]["lr"] == 0.5


def test_the_types_of_options_are_those_of_super_adam():
    """Methods with typed signatures take every option of `SuperAdam`."""
    known = inspect.signature(SuperAdam).parameters.keys()
    assert Options.__annotations__.keys() == known - {"params", "lr", "weight_decay", "unknown"}


def test_methods_are_listed_by_pattern():
    assert list(list_methods("ada*")) == sorted(n for n in NAMES if n.startswith("ada"))
    assert list(list_methods("*storm*")) == ["storm"]
    assert list(list_methods("mars*")) == ["mars", "mars_approx", "mars_m", "mars_shampoo"]
    assert list(list_methods("adam?")) == ["adamw"]
    with pytest.raises(ValueError, match="No method matches 'lyons'"):
        list_methods("lyons")


@pytest.mark.parametrize(("wrong", "right"), [("addam", "adam"), ("AdamW", "adamw"), ("stormy", "storm")])
def test_unknown_methods_get_a_suggestion(wrong, right):
    with pytest.raises(ValueError, match=f"Unknown method {wrong!r}: did you mean {right!r}"):
        create(wrong, torch.nn.Linear(2, 1))


def test_unknown_methods_without_a_likeness_get_the_list():
    with pytest.raises(ValueError, match=r"known: .*adam.*yogi"):
        create("zzz", torch.nn.Linear(2, 1))


def test_swapped_arguments_are_named():
    with pytest.raises(TypeError, match=r"the name of a method first, got Linear: write create\('yogi', params\)"):
        create(torch.nn.Linear(2, 1), "yogi")


@pytest.mark.parametrize(
    ("name", "instead"),
    [("lbfgs", 'use "sdlbfgs"'), ("SparseAdam", "sparse=False"), ("Lookahead", "iterates.Lookahead")],
)
def test_names_that_are_no_method_get_what_there_is_instead(name, instead):
    with pytest.raises(ValueError, match=f"Unknown method {name!r}: .*{instead}"):
        create(name, torch.nn.Linear(2, 1))


def test_unknown_options_get_a_suggestion():
    for build in (functools.partial(create, "adam"), zoo.adam):
        with pytest.raises(TypeError, match="adam got an unknown option 'foreahc': did you mean 'foreach'"):
            build(torch.nn.Linear(2, 1), foreahc=True)
        with pytest.raises(TypeError, match="unknown option 'beta': did you mean 'betas'"):
            build(torch.nn.Linear(2, 1), beta=(0.9, 0.99))
    with pytest.raises(TypeError, match="adam got too many positional arguments: pass options by name"):
        zoo.adam(torch.nn.Linear(2, 1), 1e-3, (0.9, 0.99), 1e-8, 0.0, True)


@pytest.mark.parametrize(
    ("name", "options"),
    [
        ("adam", {"betas": (1.0, 0.9)}),
        ("adam", {"betas": (0.9, -0.1)}),
        ("adam", {"eps": -1.0}),
        ("adam", {"lr": -1.0}),
        ("sgd", {"momentum": 1.0}),
        ("sgd", {"momentum": 0.9, "dampening": 1.0}),
        ("adabound", {"lr": 0.0}),
        ("adabound", {"final_lr": 0.0}),
        ("nigt", {"momentum": 1.0}),
        ("adam_plus", {"beta": 0.0}),
        ("mars", {"gamma": 2.0}),
        ("padam", {"partial": 0.7}),
        ("sadagrad", {"length": 0}),
        ("sc_adagrad", {"xi1": 0.0}),
        ("storm", {"c": 0.0}),
        ("sdlbfgs", {"history": 0}),
        ("yogi", {"initial_accumulator": -1.0}),
        ("adaptive_sgd", {"omega": 0.0}),  # the first step would divide by ω + an empty sum
    ],
    ids=str,
)
def test_options_out_of_range_are_refused(name, options):
    with pytest.raises(ValueError, match="Invalid"):
        create(name, torch.nn.Linear(2, 1), **options)
