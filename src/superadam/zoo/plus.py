"""SUPER-ADAM⁺: the composition that this project's search chose."""

from __future__ import annotations

from typing import Any

from superadam.estimators import Nesterov
from superadam.matrices import SOAP
from superadam.methods import recipe
from superadam.optimizer import SuperAdam
from superadam.schedules import BiasCorrected
from superadam.zoo.muon_family import EMBEDDINGS, Split, adams, divided
from superadam.zoo.registry import checked, cook, corrected, method

__all__ = ["super_adam_plus"]


@recipe("super_adam_plus", scale=corrected)
def _super_adam_plus(
    betas: tuple[float, float],
    eps: float,
    precondition_frequency: int,
    one_sided_above: int,
    layers: tuple[str, ...] = EMBEDDINGS,
    **where: Any,
) -> dict[str, Any]:
    beta1, beta2 = checked(betas)
    first = SOAP(beta2, eps, precondition_frequency, one_sided_above=one_sided_above)
    matrix = divided(first, adams(beta2, eps), layers=layers, **where)
    return {"estimator": Nesterov(), "matrix": matrix, "schedule": BiasCorrected(beta1)}


@method
def super_adam_plus(
    params: Any,
    lr: Any = 1e-2,
    betas: tuple[float, float] = (0.95, 0.95),
    eps: float = 1e-8,
    weight_decay: float = 1e-2,
    *,
    precondition_frequency: int = 5,
    one_sided_above: int = 300,
    split: Split = None,
    batch_dims: int | dict[str, int] = 0,
    names: tuple[str, ...] = (),
    layers: tuple[str, ...] = EMBEDDINGS,
    rate: float = 1.0,
    **options: Any,
) -> SuperAdam:
    r"""SUPER-ADAM⁺: Nesterov's momentum, scaled by Adam's second moment in the eigenbasis of the gradients.

    $$\tilde g_t = (1-\alpha_t) g_t + \alpha_t \nabla f(x_t; \xi_t), \quad
      \alpha_t = \tfrac{1-\beta_1}{1-\beta_1^t}, \qquad
      x_{t+1} = (1 - \gamma w) x_t - \gamma\, Q_L \frac{Q_L^\top \tilde g_t Q_R}{\sqrt{v_t} + \varepsilon}\, Q_R^\top$$

    with Adam's average $g_t$ and the eigenvectors of `matrices.SOAP`. Matrices with a side longer than
    `one_sided_above` have eigenvectors on the shorter side alone, which keeps a step cheap. Vectors, embeddings (known
    from a module) and depthwise kernels have Adam's second moment. It is not in the paper. Our search over estimators,
    matrices and iterates found it, and we tested it on tasks that the search had not seen. It takes one gradient per
    batch, or two with `tau` > 0 (`estimators.NesterovRecursive`). Train with a warm-up of about 5 % of the steps.

    Args:
        precondition_frequency: number of steps between two updates of the eigenvectors.

    >>> import torch
    >>> opt = super_adam_plus(torch.nn.Sequential(torch.nn.Embedding(9, 4), torch.nn.Linear(4, 2)))
    >>> sum("SOAP" in line for line in opt.divisions()), len(opt.divisions())
    (1, 2)
    """
    own = {
        **{"betas": betas, "eps": eps, "precondition_frequency": precondition_frequency},
        **{"one_sided_above": one_sided_above},
        **{"split": split, "batch_dims": batch_dims, "names": names, "layers": layers, "rate": rate},
    }
    return cook("super_adam_plus", own, params, lr, options, weight_decay=weight_decay)
