"""Learning rates of the paper's methods at `laptop` scale, chosen by research/lab_results/lab_settings.py.

A task that is not listed here, and every task at `paper` scale, uses the settings of the most similar experiment of the
paper, if there is one.
"""

from typing import Any

__all__ = ["LAPTOP"]

LAPTOP: dict[str, dict[str, dict[str, Any]]] = {
    "digits-mlp": {
        "sgd": {"lr": 0.3},
        "adam": {"lr": 0.003},
        "amsgrad": {"lr": 0.003},
        "adagrad_norm": {"lr": 3.0},
        "adam_plus": {"lr": 3.0},
        "storm": {"lr": 0.3},
        "adabelief": {"lr": 0.001},
        "super_adam tau=0": {"lr": 0.03},
        "super_adam tau=1": {"lr": 0.01},
    },
    "cifar10-resnet18": {
        "sgd": {"lr": 0.3},
        "adam": {"lr": 0.001},
        "amsgrad": {"lr": 0.001},
        "adagrad_norm": {"lr": 1.0},
        "adam_plus": {"lr": 1.0},
        "storm": {"lr": 0.1},
        "adabelief": {"lr": 0.001},
        "super_adam tau=0": {"lr": 0.003},
        "super_adam tau=1": {"lr": 0.003},
    },
    "wikitext2-lstm": {
        "sgd": {"lr": 10.0},
        "adam": {"lr": 0.01},
        "amsgrad": {"lr": 0.01},
        "adagrad_norm": {"lr": 30.0},
        "adam_plus": {"lr": 30.0},
        "storm": {"lr": 3.0},
        "adabelief": {"lr": 0.01},
        "super_adam tau=0": {"lr": 0.3},
        "super_adam tau=1": {"lr": 0.1},
    },
}
"""Task → method → options."""
