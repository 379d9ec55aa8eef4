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
  runs by torch's fused kernel
)
>>> for name, line in list_methods("adabo*").items():
...     print(f"{name}: {line}")
adabound: Adam's learning rates between bounds that close in on SGD's
"""

from superadam.methods import METHODS, torch_state_dict
from superadam.zoo import adam_family, first_order, of_matrices, variance_reduction
from superadam.zoo.adam_family import *  # noqa: F403
from superadam.zoo.first_order import *  # noqa: F403
from superadam.zoo.of_matrices import *  # noqa: F403
from superadam.zoo.registry import create, list_methods, method
from superadam.zoo.variance_reduction import *  # noqa: F403

__all__ = ["METHODS", "create", "list_methods", "method", "torch_state_dict"]
__all__ += adam_family.__all__
__all__ += first_order.__all__
__all__ += of_matrices.__all__
__all__ += variance_reduction.__all__
