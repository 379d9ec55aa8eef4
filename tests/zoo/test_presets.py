"""The presets are the paper's settings."""

import pytest
import torch

from superadam import create

# FACTS.md, section 1: the paper's settings.
CIFAR = {"adam": {"lr": 1e-3}, "amsgrad": {"lr": 1e-3}, "adabelief": {"lr": 1e-3}, "adam_plus": {}}

SETTINGS = {
    "cifar10": {
        **CIFAR,
        "adagrad_norm": {"lr": 17},
        "storm": {"omega": 6, "k": 10, "c": 100},
        "super_adam": {0: {"k": 1, "m": 100, "lr": 1e-3, "c": 20}, 1: {"k": 1, "m": 100, "lr": 1e-3, "c": 40}},
    },
    "cifar100": {
        **CIFAR,
        "adagrad_norm": {"lr": 10},
        "storm": {"omega": 3, "k": 10, "c": 100},
        "super_adam": {0: {"k": 1, "m": 100, "lr": 1e-3, "c": 20}, 1: {"k": 1, "m": 100, "lr": 1e-3, "c": 40}},
    },
    "imagenet": {
        **CIFAR,
        "adagrad_norm": {"lr": 30},
        "adam_plus": {"lr": 0.1},
        "storm": {"omega": 100, "k": 5, "c": 10},
        "super_adam": {0: {"k": 1, "m": 100, "lr": 0.04, "c": 4}, 1: {"k": 1, "m": 100, "lr": 0.01, "c": 40}},
    },
    "wikitext2-lstm": {
        "adam": {"lr": 1e-3},
        "amsgrad": {"lr": 1e-3},
        "adabelief": {"lr": 0.1},
        "adagrad_norm": {"lr": 40},
        "adam_plus": {"lr": 20},
        "storm": {"omega": 50, "k": 10, "c": 100},
        "super_adam": {0: {"k": 1, "m": 100, "lr": 0.01, "c": 20}, 1: {"k": 1, "m": 100, "lr": 1e-3, "c": 40}},
    },
    "wikitext2-transformer": {
        "adam": {"lr": 2e-4},
        "amsgrad": {"lr": 2e-4},
        "adabelief": {"lr": 1.0},
        "adagrad_norm": {"lr": 10},
        "adam_plus": {"lr": 20},
        "storm": {"omega": 100, "k": 12.5, "c": 10},
        "super_adam": {0: {"k": 1, "m": 100, "lr": 3e-3, "c": 20}, 1: {"k": 1, "m": 100, "lr": 2e-3, "c": 20}},
    },
}


@pytest.mark.parametrize("task", SETTINGS)
@pytest.mark.parametrize("name", ["adam", "amsgrad", "adabelief", "adagrad_norm", "adam_plus", "storm"])
def test_presets_are_the_papers_settings(name, task):
    group = create(name, torch.nn.Linear(2, 1), preset=task).param_groups[0]
    for option, value in SETTINGS[task][name].items():
        home = group
        if option in ("omega", "k"):
            home = group["matrix"]
        elif option == "c":
            home = group["schedule"]
        assert home[option] == value


@pytest.mark.parametrize("tau", [0, 1])
@pytest.mark.parametrize("task", SETTINGS)
def test_presets_of_super_adam(task, tau):
    group = create("super_adam", torch.nn.Linear(2, 1), preset=task, tau=tau).param_groups[0]
    expected = SETTINGS[task]["super_adam"][tau]
    assert group["lr"] == expected["lr"]
    assert group["tau"] == tau
    for option in ("k", "m", "c"):
        assert group["schedule"][option] == expected[option]
    assert group["matrix"]["type"] == "SecondMoment"


def test_explicit_options_win_over_a_preset():
    opt = create("storm", torch.nn.Linear(2, 1), preset="imagenet", c=3.0, lr=0.5)
    assert opt.param_groups[0]["schedule"]["c"] == 3.0
    assert opt.param_groups[0]["lr"] == 0.5
    assert opt.param_groups[0]["matrix"]["omega"] == 100
    opt = create("super_adam", torch.nn.Linear(2, 1), preset="imagenet", lr=0.5, tau=1, matrix="gradient_norm")
    assert opt.param_groups[0]["lr"] == 0.5
    assert opt.param_groups[0]["matrix"]["type"] == "GradientNorm"
    # and the preset itself is not changed by it
    assert create("storm", torch.nn.Linear(2, 1), preset="imagenet").param_groups[0]["schedule"]["c"] == 10


def test_unknown_presets_are_refused():
    with pytest.raises(ValueError, match="Unknown preset 'cifar': did you mean 'cifar10"):
        create("adam", torch.nn.Linear(2, 1), preset="cifar")
    with pytest.raises(ValueError, match="Unknown preset 'xyz': known: cifar10"):
        create("adam", torch.nn.Linear(2, 1), preset="xyz")
    with pytest.raises(ValueError, match="no settings of yogi for cifar10"):
        create("yogi", torch.nn.Linear(2, 1), preset="cifar10")
