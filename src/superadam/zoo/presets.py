"""The settings of the paper's experiments (section 6 and supplement): task → method → options.

SGD's learning rates are not in the paper. Adam⁺ on CIFAR used "the recommended tuning parameters" of its authors.
"""

from typing import Any

__all__ = ["PRESETS"]


_ADAM_PLUS = {"lr": 0.1, "beta": 0.1, "a": 1.0}  # its authors' recommendation


def _storm(omega: float, k: float, c: float) -> dict[str, float]:
    return {"lr": 1.0, "omega": omega, "k": k, "c": c}


def _super(c: float, lr: float, **more: Any) -> dict[str, Any]:
    return {"k": 1.0, "m": 100.0, "c": c, "lr": lr, **more}


def _all(lr: float, norm_lr: float, storm: dict[str, float], **more: dict[str, Any]) -> dict[str, dict[str, Any]]:
    """Adam and AMSGrad have the same learning rate in every experiment; AdaBelief too, unless given."""
    adaptive = {name: {"lr": lr} for name in ("adam", "amsgrad", "adabelief")}
    return {**adaptive, "adagrad_norm": {"lr": norm_lr}, "storm": storm, **more}


PRESETS: dict[str, dict[str, dict[str, Any]]] = {
    "cifar10": _all(1e-3, 17.0, _storm(6, 10, 100), adam_plus=_ADAM_PLUS)
    | {"super_adam tau=0": _super(20, 1e-3), "super_adam tau=1": _super(40, 1e-3)},
    "cifar100": _all(1e-3, 10.0, _storm(3, 10, 100), adam_plus=_ADAM_PLUS)
    | {"super_adam tau=0": _super(20, 1e-3), "super_adam tau=1": _super(40, 1e-3)},
    "imagenet": _all(1e-3, 30.0, _storm(100, 5, 10), adam_plus={"lr": 0.1})
    | {"super_adam tau=0": _super(4, 0.04), "super_adam tau=1": _super(40, 0.01)},
    "wikitext2-lstm": _all(1e-3, 40.0, _storm(50, 10, 100), adabelief={"lr": 0.1}, adam_plus={"lr": 20.0})
    | {"super_adam tau=0": _super(20, 0.01), "super_adam tau=1": _super(40, 1e-3)},
    "wikitext2-transformer": _all(2e-4, 10.0, _storm(100, 12.5, 10), adabelief={"lr": 1.0}, adam_plus={"lr": 20.0})
    | {"super_adam tau=0": _super(20, 3e-3), "super_adam tau=1": _super(20, 2e-3)},
}
