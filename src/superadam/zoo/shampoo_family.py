"""Methods with factors for the rows and columns of each matrix: Shampoo, SOAP, KL-Shampoo, PSGD.

Vectors, embeddings, depthwise kernels and matrices that are too large have Adam's second moment, with the method's own
averages. Published implementations give embeddings factors, which take most of the time of a step if the vocabulary is
large; `layers=()` does the same here. The optimizer knows embeddings only if `params` is a module.
"""

from __future__ import annotations

from typing import Any

from superadam._state.recipes import recipe
from superadam.matrices import SOAP, AdaGrad, KLShampoo, Matrix, PSGDKron, Shampoo
from superadam.optimizer import SuperAdam
from superadam.parts import check
from superadam.schedules import BiasCorrected
from superadam.zoo.muon_family import EMBEDDINGS, Split, adams, divided
from superadam.zoo.registry import checked, compose, cook, corrected, method

__all__ = ["kl_shampoo", "psgd_kron", "shampoo", "soap"]


@recipe("shampoo", scale=corrected)
def _shampoo(
    betas: tuple[float, float],
    epsilon: float,
    max_preconditioner_dim: int | None,
    precondition_frequency: int,
    grafting: Any,
    layers: tuple[str, ...] = (),
    **where: Any,
) -> dict[str, Any]:
    beta1, beta2 = betas
    check(0 <= beta1 < 1 and 0 <= beta2 <= 1, "betas", betas, "0 <= beta1 < 1 and 0 <= beta2 <= 1")
    graft = None if grafting is None else Matrix.find(grafting)
    first = Shampoo(beta2, epsilon, precondition_frequency, grafting=graft, block=max_preconditioner_dim)
    others: Matrix = AdaGrad(lam=1e-8) if beta2 == 1 else adams(beta2)
    return {"matrix": divided(first, others, layers=layers, **where), "schedule": BiasCorrected(beta1)}


@method
def shampoo(
    params: Any,
    lr: Any = 3e-2,
    betas: tuple[float, float] = (0.9, 1.0),
    epsilon: float = 1e-12,
    weight_decay: float = 0.0,
    *,
    max_preconditioner_dim: int | None = 1024,
    precondition_frequency: int = 1,
    grafting: Matrix | str | None = None,
    split: Split = None,
    batch_dims: int | dict[str, int] = 0,
    names: tuple[str, ...] = (),
    layers: tuple[str, ...] = EMBEDDINGS,
    rate: float = 1.0,
    **options: Any,
) -> SuperAdam:
    r"""Shampoo: the fourth roots of two averages of squared gradients, one for the rows and one for the columns.

    $$x_{t+1} = x_t - \gamma L_t^{-1/4} g_t R_t^{-1/4}$$

    Gupta, Koren and Singer 2018, with the options of Meta's Distributed Shampoo (Shi et al. 2023): $\beta_2 = 1$ sums
    instead of averaging, and matrices are cut into blocks. `grafting=SecondMoment(bias_correction=True)` gives steps
    Adam's size, which is better with $\beta_2 < 1$.

    The default lr is 3e-2. The factors are sums, so steps shrink like $1/\sqrt t$: with Meta's 1e-2 a small network
    hardly trains in 150 batches (`tests/zoo/test_defaults.py`).

    Args:
        epsilon: ε, added to the eigenvalues of the factors.
        max_preconditioner_dim: largest number of rows and columns of a block; None does not cut.
        grafting: a matrix, such as `SecondMoment(bias_correction=True)`, whose step gives each step its size.

    >>> import torch
    >>> shampoo(torch.nn.Linear(3, 2)).param_groups[0]["matrix"]["first"]["block"]
    1024
    """
    own = {
        **{"betas": betas, "epsilon": epsilon, "max_preconditioner_dim": max_preconditioner_dim},
        "precondition_frequency": precondition_frequency,
        "grafting": grafting.spec() if isinstance(grafting, Matrix) else grafting,
        **{"split": split, "batch_dims": batch_dims, "names": names, "layers": layers, "rate": rate},
    }
    return cook("shampoo", own, params, lr, options, weight_decay=weight_decay)


def _sides(one_sided_above: int, largest: int) -> dict[str, Any]:
    """Which sides of a matrix have a factor."""
    return {"one_sided_above": min(one_sided_above, largest), "largest": largest}


@recipe("soap", scale=corrected)
def _soap(
    betas: tuple[float, float],
    shampoo_beta: float | None,
    eps: float,
    precondition_frequency: int,
    max_precond_dim: int,
    one_sided_above: int,
    layers: tuple[str, ...] = (),
    **where: Any,
) -> dict[str, Any]:
    beta1, beta2 = checked(betas)
    first = SOAP(beta2, eps, precondition_frequency, shampoo_beta, **_sides(one_sided_above, max_precond_dim))
    return {"matrix": divided(first, adams(beta2, eps), layers=layers, **where), "schedule": BiasCorrected(beta1)}


@method
def soap(
    params: Any,
    lr: Any = 3e-3,
    betas: tuple[float, float] = (0.95, 0.95),
    shampoo_beta: float | None = None,
    eps: float = 1e-8,
    weight_decay: float = 0.01,
    precondition_frequency: int = 10,
    max_precond_dim: int = 10_000,
    *,
    one_sided_above: int = 1024,
    split: Split = None,
    batch_dims: int | dict[str, int] = 0,
    names: tuple[str, ...] = (),
    layers: tuple[str, ...] = EMBEDDINGS,
    rate: float = 1.0,
    **options: Any,
) -> SuperAdam:
    r"""SOAP: Adam in the eigenbasis of Shampoo's two averages.

    $$x_{t+1} = (1 - \gamma w) x_t - \gamma\, Q_L \frac{Q_L^\top g_t Q_R}{\sqrt{v_t} + \varepsilon}\, Q_R^\top$$

    Vyas et al. 2024. Sides longer than `max_precond_dim` have no factor. The longer side of a matrix has none either if
    it is longer than `one_sided_above`: its factor would take most of the time and change little. The published code
    has no such option. It uses its first gradient for the factors only; here the first gradient is a step too. It
    gives embeddings factors; here they have Adam's second moment, unless `layers=()`.

    Args:
        shampoo_beta: weight of the old factors. None means β₂.

    >>> import torch
    >>> soap(torch.nn.Linear(3, 2)).param_groups[0]["matrix"]["first"]["every"]
    10
    """
    own = {
        **{"betas": betas, "shampoo_beta": shampoo_beta, "eps": eps, "precondition_frequency": precondition_frequency},
        **{"max_precond_dim": max_precond_dim, "one_sided_above": one_sided_above},
        **{"split": split, "batch_dims": batch_dims, "names": names, "layers": layers, "rate": rate},
    }
    return cook("soap", own, params, lr, options, weight_decay=weight_decay)


@recipe("kl_shampoo", scale=corrected)
def _kl_shampoo(
    betas: tuple[float, float],
    precondition_frequency: int,
    max_precond_dim: int,
    one_sided_above: int,
    layers: tuple[str, ...] = (),
    **where: Any,
) -> dict[str, Any]:
    beta1, beta2 = checked(betas)
    first = KLShampoo(beta2, precondition_frequency, **_sides(one_sided_above, max_precond_dim))
    return {"matrix": divided(first, adams(beta2), layers=layers, **where), "schedule": BiasCorrected(beta1)}


@method
def kl_shampoo(
    params: Any,
    lr: Any = 3e-3,
    betas: tuple[float, float] = (0.9, 0.98),
    weight_decay: float = 0.01,
    *,
    precondition_frequency: int = 10,
    max_precond_dim: int = 10_000,
    one_sided_above: int = 1024,
    split: Split = None,
    batch_dims: int | dict[str, int] = 0,
    names: tuple[str, ...] = (),
    layers: tuple[str, ...] = EMBEDDINGS,
    rate: float = 1.0,
    **options: Any,
) -> SuperAdam:
    r"""KL-Shampoo: Shampoo with factors that estimate the covariance of the gradients.

    $$x_{t+1} = (1 - \gamma w) x_t - \gamma\, S_L^{-1/2} g_t\, S_R^{-1/2}$$

    with the factors of `matrices.KLShampoo` (Lin et al. 2025), on one side only where the other is longer than
    `one_sided_above`.

    >>> import torch
    >>> kl_shampoo(torch.nn.Linear(3, 2)).param_groups[0]["matrix"]["first"]["beta"]
    0.98
    """
    own = {
        **{"betas": betas, "precondition_frequency": precondition_frequency, "max_precond_dim": max_precond_dim},
        **{"one_sided_above": one_sided_above},
        **{"split": split, "batch_dims": batch_dims, "names": names, "layers": layers, "rate": rate},
    }
    return cook("kl_shampoo", own, params, lr, options, weight_decay=weight_decay)


@method
def psgd_kron(
    params: Any,
    lr: Any = 1e-3,
    b1: float = 0.9,
    weight_decay: float = 0.0,
    *,
    precond_lr: float = 0.1,
    max_size_triangular: int = 8192,
    split: Split = None,
    batch_dims: int | dict[str, int] = 0,
    names: tuple[str, ...] = (),
    layers: tuple[str, ...] = EMBEDDINGS,
    rate: float = 1.0,
    **options: Any,
) -> SuperAdam:
    r"""PSGD-Kron: momentum, whitened by Kronecker factors that are learned by gradient steps.

    $$x_{t+1} = (1 - \gamma w) x_t - \gamma\, Q_L^\top Q_L\, g_t\, Q_R^\top Q_R$$

    Li 2018; Walters 2024. Vectors and embeddings have Adam's second moment; the published code whitens them too.

    The default lr is 1e-3. The published 3e-4 is for long runs of large models: with it a small network hardly trains
    in 150 batches (`tests/zoo/test_defaults.py`).

    Args:
        b1: weight of the old average of gradients.
        precond_lr: how fast the factors follow.
        max_size_triangular: sides longer than this have diagonal factors.

    >>> import torch
    >>> psgd_kron(torch.nn.Linear(3, 2)).param_groups[0]["matrix"]["first"]["precision"]
    0.1
    """
    check(0 <= b1 < 1, "b1", b1, "0 <= b1 < 1")
    first = PSGDKron(precond_lr, triangular=max_size_triangular)
    matrix = divided(first, adams(0.99, 1e-8), split, batch_dims, names, layers, rate)
    return compose(params, lr, options, matrix=matrix, schedule=BiasCorrected(b1), weight_decay=weight_decay)
