r"""The methods of the literature, each a composition of the same parts.

Every builder returns a `SuperAdam`; what is not said in its signature (`maximize`, `foreach`, `clip`, …) is passed
on. Where torch has the method, names and defaults are torch's (SGD's lr apart, which hardly moves), the result equals
torch's, and checkpoints go both ways (`load_state_dict`, `torch_state_dict`). `betas`, `momentum` and the options that
come with them are kept in the param groups, where they can be set for each group and be changed by schedulers. The
default lr of every method trains; the values of the paper's experiments are the presets.

>>> import torch
>>> model = torch.nn.Linear(3, 1)
>>> create("adamw", model, lr=1e-3, weight_decay=0.1)
SuperAdam(
  (11) g: Recursive(tau=0.0)
  (4)  H: SecondMoment(beta=0.999, lam=1e-08, bias_correction=True)
  (10) mu, alpha: BiasCorrected(beta=0.9, power=0.0)
  lr=0.001, weight_decay=0.1, clip=None, maximize=False
  2 tensors, 4 parameters
)
>>> for name, line in list_methods("ada*n*").items():
...     print(f"{name}: {line}")
adabound: Adam's learning rates between bounds that close in on SGD's
adagrad_norm: one learning rate from the summed gradient norms
"""

from superadam._state.twins import torch_state_dict
from superadam.zoo.adam_family import adabelief, adabound, adam, adamw, amsgrad, generalized_adam, padam, yogi
from superadam.zoo.faster import adam_plus, mars, mars_approx, nigt, sdlbfgs, storm, super_adam, super_adam_plus
from superadam.zoo.first_order import adadelta, adagrad, adagrad_norm, adaptive_sgd, sadagrad, sc_adagrad, sgd
from superadam.zoo.registry import METHODS, create, list_methods, method

__all__ = [
    "METHODS",
    "adabelief",
    "adabound",
    "adadelta",
    "adagrad",
    "adagrad_norm",
    "adam",
    "adam_plus",
    "adamw",
    "adaptive_sgd",
    "amsgrad",
    "create",
    "generalized_adam",
    "list_methods",
    "mars",
    "mars_approx",
    "method",
    "nigt",
    "padam",
    "sadagrad",
    "sc_adagrad",
    "sdlbfgs",
    "sgd",
    "storm",
    "super_adam",
    "super_adam_plus",
    "torch_state_dict",
    "yogi",
]
