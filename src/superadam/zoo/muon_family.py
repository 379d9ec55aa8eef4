"""Muon, and methods that combine its step with variance reduction.

Hidden matrices have Muon's step. Embeddings, heads, vectors and depthwise kernels have Adam's second moment, with the
method's own averages.
"""

from __future__ import annotations

from typing import Any

from superadam._state.recipes import recipe
from superadam.estimators import Corrected, Nesterov, Recursive
from superadam.matrices import ByShape, Matrix, SecondMoment, Spectral
from superadam.optimizer import SuperAdam
from superadam.parts import check
from superadam.schedules import Constant
from superadam.zoo.registry import compose, cook, method

__all__ = ["EMBEDDINGS", "adams", "divided", "limuon", "mars_m", "mars_shampoo", "muon"]

Split = dict[str, int | tuple[int, ...]] | str | None
EMBEDDINGS = ("Embedding", "EmbeddingBag")
HEADS_TOO = (*EMBEDDINGS, "head")


def divided(
    first: Matrix,
    others: Matrix,
    split: Split = None,
    batch_dims: int | dict[str, int] = 0,
    names: tuple[str, ...] = (),
    layers: tuple[str, ...] = HEADS_TOO,
    rate: float = 1.0,
) -> ByShape:
    """A matrix for the tensors that it accepts, cut by name as in `split` and `batch_dims`; `others` for the rest."""
    parts: Any = {"*qkv*": 3} if split == "qkv" else split or {}
    expected = "'qkv', or numbers of matrices by patterns of names, such as {'*qkv*': 3}"
    check(isinstance(parts, dict), "split", repr(split), expected)
    for_all, by_pattern = (batch_dims, {}) if isinstance(batch_dims, int) else (0, batch_dims)
    by_name: dict[str, dict[str, Any]] = {pattern: {"split": count} for pattern, count in parts.items()}
    for pattern, dims in by_pattern.items():
        by_name.setdefault(pattern, {})["batch_dims"] = dims
    plain = {**first.spec(), "batch_dims": for_all}
    first = Matrix.find(plain)
    for pattern, cut in by_name.items():
        first = ByShape(first, Matrix.find({**plain, **cut}), names=(pattern,), layers=())
    names, layers = (tuple(given) if isinstance(given, list) else given for given in (names, layers))
    return ByShape(first, others, names, layers, rate=rate)


def adams(beta: float, eps: float = 1e-8) -> SecondMoment:
    return SecondMoment(beta, eps, bias_correction=True)


@recipe("muon")
def _muon(
    momentum: float,
    nesterov: bool,
    coefficients: str,
    eps: float,
    ns_steps: int,
    adjust_lr_fn: str | None,
    beta2: float,
    ns_coefficients: tuple[float, float, float] | None = None,
    **where: Any,
) -> dict[str, Any]:
    check(0 <= momentum < 1, "momentum", momentum, "0 <= momentum < 1")
    scale = "original" if adjust_lr_fn is None else adjust_lr_fn
    chosen: Any = coefficients if ns_coefficients is None else tuple(ns_coefficients)
    first = Spectral(chosen, ns_steps, scale, eps=eps)
    return {
        "estimator": Nesterov() if nesterov else Recursive(),
        "matrix": divided(first, adams(beta2), **where),
        "schedule": Constant(alpha=1 - momentum, first=1 - momentum),
    }


@method
def muon(
    params: Any,
    lr: Any = 1e-3,
    weight_decay: float = 0.1,
    momentum: float = 0.95,
    nesterov: bool = True,
    *,
    coefficients: str = "jordan",
    ns_coefficients: tuple[float, float, float] | None = None,
    eps: float = 1e-7,
    ns_steps: int = 5,
    adjust_lr_fn: str | None = None,
    beta2: float = 0.999,
    rate: float = 1.0,
    split: Split = None,
    batch_dims: int | dict[str, int] = 0,
    names: tuple[str, ...] = (),
    layers: tuple[str, ...] = HEADS_TOO,
    **options: Any,
) -> SuperAdam:
    r"""Muon: orthogonalised momentum for the hidden matrices; Adam's second moment for the rest.

    $$x_{t+1} = (1 - \gamma w) x_t - \gamma s\, U V^\top, \qquad g_t = U \Sigma V^\top$$

    Jordan et al. 2024. Equals `torch.optim.Muon` on matrices; `adjust_lr_fn` is torch's name for s: "original" or
    "match_rms_adamw". Embeddings, the head, vectors and depthwise kernels have the same momentum and Adam's matrix,
    with the learning rate `rate` · lr. Give `params` as a module: only then the optimizer knows which layers are
    embeddings and the head. With a list of parameters they have Muon's step too; exclude them with
    `names=("embed*", "head*")`. `tau` > 0 reduces the variance of g_t (`estimators.NesterovRecursive`).

    Args:
        nesterov: step along a mixture of momentum and newest gradient.
        coefficients: which polynomials approximate U Vᵀ, as for `matrices.Spectral`.
        ns_coefficients: torch's name for the coefficients (a, b, c) of one polynomial. None means `coefficients`.
        eps: the smallest norm by which a matrix is divided.
        ns_steps: number of polynomials.
        adjust_lr_fn: torch's name for s: "original" (None), "match_rms_adamw" or "spectral".

    >>> import torch
    >>> opt = muon(torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.Linear(8, 8), torch.nn.Linear(8, 2)))
    >>> sum("Spectral" in line for line in opt.divisions()), len(opt.divisions())
    (1, 2)
    """
    own = {
        **{"momentum": momentum, "nesterov": nesterov, "coefficients": coefficients, "eps": eps, "ns_steps": ns_steps},
        **{"adjust_lr_fn": adjust_lr_fn, "beta2": beta2, "ns_coefficients": ns_coefficients},
        **{"split": split, "batch_dims": batch_dims, "names": names, "layers": layers, "rate": rate},
    }
    return cook("muon", own, params, lr, options, weight_decay=weight_decay)


def _mars(beta: float, gamma: float, exact: bool) -> dict[str, Any]:
    estimator = Corrected(gamma, 1 - beta, 1.0, previous_batch=not exact)
    return {"estimator": estimator, "schedule": Constant(alpha=1 - beta, first=1 - beta)}


@method
def mars_m(
    params: Any,
    lr: Any = 3e-3,
    beta: float = 0.95,
    weight_decay: float = 0.1,
    *,
    gamma: float = 0.025,
    exact: bool = False,
    beta2: float = 0.999,
    rate: float = 1.0,
    split: Split = None,
    batch_dims: int | dict[str, int] = 0,
    names: tuple[str, ...] = (),
    layers: tuple[str, ...] = HEADS_TOO,
    **options: Any,
) -> SuperAdam:
    r"""MARS-M: Muon along a gradient that is corrected by a little variance reduction.

    $$c_t = \hat g_t + \gamma \tfrac{\beta}{1-\beta} (\hat g_t - \hat g_{t-1}), \qquad
      g_t = \beta g_{t-1} + (1-\beta)\, \tilde c_t$$

    with $c_t$ clipped to norm 1 in each tensor, and steps of AdamW's size (Liu et al. 2025). `exact` uses $\nabla
    f(x_{t-1}; \xi_t)$ instead of $\hat g_{t-1}$, which takes two gradients per batch.

    The default lr is 3e-3. The published 1e-3 is for long runs of language models: with it a small network hardly
    trains in 150 batches (`tests/zoo/test_defaults.py`).

    >>> import torch
    >>> mars_m(torch.nn.Linear(3, 2), exact=True).two_point
    True
    """
    first = Spectral(scale="match_rms_adamw")
    matrix = divided(first, adams(beta2), split, batch_dims, names, layers, rate)
    return compose(params, lr, options, matrix=matrix, weight_decay=weight_decay, **_mars(beta, gamma, exact))


@method
def mars_shampoo(
    params: Any,
    lr: Any = 3e-3,
    beta: float = 0.95,
    weight_decay: float = 0.0,
    *,
    gamma: float = 0.025,
    exact: bool = False,
    beta2: float = 0.999,
    rate: float = 1.0,
    split: Split = None,
    batch_dims: int | dict[str, int] = 0,
    names: tuple[str, ...] = (),
    layers: tuple[str, ...] = HEADS_TOO,
    **options: Any,
) -> SuperAdam:
    r"""MARS-Shampoo: MARS-M with Muon's own step size.

    $$x_{t+1} = x_t - \gamma \sqrt{\max(1, m/n)}\; U V^\top, \qquad g_t = U \Sigma V^\top$$

    for m × n matrices, with $g_t$ as in MARS-M (Yuan et al. 2024).

    >>> import torch
    >>> mars_shampoo(torch.nn.Linear(3, 2)).two_point
    False
    """
    matrix = divided(Spectral(), adams(beta2), split, batch_dims, names, layers, rate)
    return compose(params, lr, options, matrix=matrix, weight_decay=weight_decay, **_mars(beta, gamma, exact))


@method
def limuon(
    params: Any,
    lr: Any = 0.02,
    *,
    alpha: float = 0.1,
    beta2: float = 0.999,
    rate: float = 0.05,
    split: Split = None,
    batch_dims: int | dict[str, int] = 0,
    names: tuple[str, ...] = (),
    layers: tuple[str, ...] = HEADS_TOO,
    **options: Any,
) -> SuperAdam:
    r"""LiMuon: Muon along a variance-reduced gradient.

    $$g_t = \hat g_t + (1-\alpha)\bigl(g_{t-1} - \nabla f(x_{t-1}; \xi_t)\bigr), \qquad
      x_{t+1} = x_t - \gamma s\, U V^\top$$

    Huang, Luo and Chen 2025: STORM's estimator with Muon's step. This is the first of the paper's two variants.

    Args:
        alpha: α, weight of the newest gradient.

    >>> import torch
    >>> limuon(torch.nn.Linear(3, 2)).two_point
    True
    """
    matrix = divided(Spectral(), adams(beta2), split, batch_dims, names, layers, rate)
    return compose(params, lr, options, tau=1.0, matrix=matrix, schedule=Constant(alpha=alpha))
