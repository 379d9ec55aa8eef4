r"""The methods of the literature, each a composition of the same parts.

Every method is a function that returns a `SuperAdam`, and takes its options too (`maximize`, `foreach`, `clip`, …).
Where torch has the method, names and defaults are torch's, except for SGD's lr; the steps equal torch's, and
checkpoints go both ways (`load_state_dict`, `torch_state_dict`). The param groups hold `betas`, `momentum` and the
other options of the method, so that groups can have their own and schedulers can change them. The default lr of every
method trains. The presets have the values of the paper's experiments.

Options that several methods have:

Args:
    params: parameters, (name, parameter) pairs, param groups, or a module, as for `SuperAdam`.
    lr: γ, the learning rate. None means the composition's own default.
    betas: weights of the old averages: of the gradients, of their squares, then of others.
    eps: ε, added to the root of the second moment: the matrix's λ.
    weight_decay: w, decoupled as in AdamW or added to the gradient as in Adam, whichever the method's authors use.
    bias_correction: correct the averages for their start at zero, as Adam does.
    momentum: weight of the old average of gradients.
    gamma: share of the correction by a second gradient: τ.
    clip_corrected: largest norm of a corrected gradient, for each tensor. None does not clip.
    beta: weight of the old average of corrected gradients.
    exact: take both gradients of every batch, instead of the previous batch's gradient.
    beta2: weight of the old second moment, for the parameters with Adam's matrix.
    rate: learning rate of the parameters with Adam's matrix, divided by lr.
    split: patterns of parameter names, and the number of matrices to cut their rows into: `{"*qkv*": 3}`, for which
        "qkv" is short; for torch's MultiheadAttention, `{"*in_proj_weight": 3}`. A tuple gives the rows of each, for
        grouped-query attention: `{"*qkv*": (4096, 1024, 1024)}`.
        Pass the number of heads to make each head a matrix, or the number of groups of a convolution.
    batch_dims: number of leading dimensions that index separate matrices; for some parameters only: `{"*experts*": 1}`.
        If a name matches several patterns, the last one counts. A pattern may be both here and in `split`.
    names: patterns of the names of parameters that always have Adam's matrix.
    layers: types of layers whose parameters always have Adam's matrix; this needs a module as `params`. "head" is the
        last linear layer. () means none.
    precondition_frequency: number of steps between two updates of the eigenvectors.
    max_precond_dim: sides longer than this have no factor.
    one_sided_above: if a side is longer than this, only the smaller side has a factor.
    **options: options of `SuperAdam`. They replace the parts of the composition.

>>> import torch
>>> model = torch.nn.Linear(3, 1)
>>> create("adamw", model, lr=1e-3, weight_decay=0.1)
SuperAdam(
  (11) g: Recursive(tau=0.0)
  (4)  H: SecondMoment(beta=0.999, lam=1e-08, bias_correction=True)
  (10) mu, alpha: BiasCorrected(beta=0.9, power=0.0)
  lr=0.001, weight_decay=0.1, clip=None, maximize=False
  2 tensors, 4 parameters, 8 bytes of state for each
)
>>> for name, line in list_methods("adabo*").items():
...     print(f"{name}: {line}")
adabound: Adam's learning rates between bounds that close in on SGD's
"""

from superadam.methods import METHODS, torch_state_dict
from superadam.zoo.adam_family import (
    adabelief,
    adabound,
    adam,
    adam_mini,
    adamax,
    adamw,
    adan,
    ademamix,
    adopt,
    amsgrad,
    cautious_adamw,
    generalized_adam,
    lamb,
    lion,
    nadam,
    nadamw,
    padam,
    prodigy,
    radam,
    schedule_free_adamw,
    sophia_g,
    stable_adamw,
    yogi,
)  # fmt: skip
from superadam.zoo.first_order import (
    adadelta,
    adafactor,
    adagrad,
    adagrad_norm,
    adaptive_sgd,
    asgd,
    dog,
    lars,
    rmsprop,
    rprop,
    sadagrad,
    sc_adagrad,
    sgd,
)  # fmt: skip
from superadam.zoo.of_matrices import (
    kl_shampoo,
    limuon,
    mars_m,
    mars_shampoo,
    muon,
    psgd_kron,
    shampoo,
    soap,
    super_adam_plus,
)  # fmt: skip
from superadam.zoo.registry import create, list_methods, method
from superadam.zoo.variance_reduction import (
    adam_plus,
    adamw_ahead,
    mars,
    mars_approx,
    nigt,
    sdlbfgs,
    storm,
    super_adam,
)  # fmt: skip

__all__ = [
    "METHODS", "adabelief", "adabound", "adadelta", "adafactor", "adagrad", "adagrad_norm", "adam", "adam_mini",
    "adam_plus", "adamax", "adamw", "adamw_ahead", "adan", "adaptive_sgd", "ademamix", "adopt", "amsgrad", "asgd",
    "cautious_adamw", "create", "dog", "generalized_adam", "kl_shampoo", "lamb", "lars", "limuon", "lion",
    "list_methods", "mars", "mars_approx", "mars_m", "mars_shampoo", "method", "muon", "nadam", "nadamw", "nigt",
    "padam", "prodigy", "psgd_kron", "radam", "rmsprop", "rprop", "sadagrad", "sc_adagrad", "schedule_free_adamw",
    "sdlbfgs", "sgd", "shampoo", "soap", "sophia_g", "stable_adamw", "storm", "super_adam", "super_adam_plus",
    "torch_state_dict", "yogi",
]  # fmt: skip
