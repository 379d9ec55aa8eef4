"""Methods with a matrix for each tensor: Muon, Shampoo, SOAP, PSGD and their kin.

Vectors, embeddings and depthwise kernels have Adam's second moment, with the method's own averages; with Muon and its
kin also the head. The optimizer knows embeddings and the head only if `params` is a module. Published implementations
of Shampoo and its kin give embeddings factors, which take most of the time of a step if the vocabulary is large;
`layers=()` does the same here.
"""

# mypy: disable-error-code="no-untyped-def"

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from superadam.estimators import Mars, Nesterov
from superadam.matrices import SOAP, AdaGrad, ByShape, KLShampoo, Matrix, Muon, PSGDKron, SecondMoment, Shampoo
from superadam.methods import Parts
from superadam.parts import check
from superadam.schedules import BiasCorrected, Constant
from superadam.zoo.adam_family import Betas
from superadam.zoo.registry import Lr, Options, average, checked, method, typed

if TYPE_CHECKING:
    from typing_extensions import Unpack  # Python 3.10 has none in typing

__all__ = [
    "kl_shampoo", "limuon", "mars_m", "mars_shampoo", "muon", "psgd_kron", "shampoo", "soap", "super_adam_plus",
]  # fmt: skip

Split = dict[str, int | tuple[int, ...]] | str | None
Dims = int | dict[str, int]
Names = tuple[str, ...]
EMBEDDINGS = ("Embedding", "EmbeddingBag")
HEADS_TOO = (*EMBEDDINGS, "head")


def divided(
    first: Matrix, others: Matrix, split: Split, batch_dims: Dims, names: Names, layers: Names, rate: float
) -> ByShape:
    """Return `first` for the tensors that it accepts, cut as `split` and `batch_dims` say, `others` for the rest."""
    parts: Any = {"*qkv*": 3} if split == "qkv" else split or {}
    expected = "'qkv', or numbers of matrices by patterns of names, such as {'*qkv*': 3}"
    check(isinstance(parts, dict), "split", repr(split), expected)
    for_all, by_pattern = (batch_dims, {}) if isinstance(batch_dims, int) else (0, batch_dims)
    by_name: dict[str, dict[str, Any]] = {pattern: {"split": count} for pattern, count in parts.items()}
    for pattern, dims in by_pattern.items():
        by_name.setdefault(pattern, {})["batch_dims"] = dims
    spec = {**first.spec(), "batch_dims": for_all}
    first = Matrix.find(spec)
    for pattern, cut in by_name.items():
        first = ByShape(first, Matrix.find({**spec, **cut}), names=(pattern,), layers=())
    names, layers = (tuple(given) if isinstance(given, list) else given for given in (names, layers))
    return ByShape(first, others, names, layers, rate=rate)


def adams(beta: float, eps: float = 1e-8) -> SecondMoment:
    """Return Adam's second moment."""
    return SecondMoment(beta, eps, bias_correction=True)


@typed("Jordan et al. 2024, https://kellerjordan.github.io/posts/muon/")
def muon(
    lr: Lr = 1e-3,
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
    batch_dims: Dims = 0,
    names: Names = (),
    layers: Names = HEADS_TOO,
    **options: Unpack[Options],
) -> Parts:
    r"""Muon: orthogonalised momentum for the hidden matrices; Adam's second moment for the rest.

    $$x_{t+1} = (1 - \gamma w) x_t - \gamma s\, U V^\top, \qquad g_t = U \Sigma V^\top$$

    Equals `torch.optim.Muon` on matrices; `adjust_lr_fn` is torch's name for s: "original" or "match_rms_adamw".
    Embeddings, the head, vectors and depthwise kernels have the same momentum and Adam's matrix, with the learning rate
    `rate` · lr. Give `params` as a module: only then the optimizer knows which layers are embeddings and the head. With
    a list of parameters they have Muon's step too; exclude them with `names=("embed*", "head*")`. `tau` > 0 reduces the
    variance of g_t (`estimators.NesterovRecursive`).

    Args:
        nesterov: step along a mixture of momentum and newest gradient.
        coefficients: which polynomials approximate U Vᵀ, as for `matrices.Muon`.
        ns_coefficients: torch's name for the coefficients (a, b, c) of one polynomial. None means `coefficients`.
        eps: the smallest norm by which a matrix is divided.
        ns_steps: number of polynomials.
        adjust_lr_fn: torch's name for s: "original" (None), "match_rms_adamw" or "spectral".

    >>> import torch
    >>> opt = muon(torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.Linear(8, 8), torch.nn.Linear(8, 2)))
    >>> sum("Muon" in line for line in opt.divisions()), len(opt.divisions())
    (1, 2)
    """
    check(0 <= momentum < 1, "momentum", momentum, "0 <= momentum < 1")
    chosen: Any = coefficients if ns_coefficients is None else tuple(ns_coefficients)
    first = Muon(chosen, ns_steps, "original" if adjust_lr_fn is None else adjust_lr_fn, eps=eps)
    return {
        **({"estimator": Nesterov()} if nesterov else {}),
        "matrix": divided(first, adams(beta2), split, batch_dims, names, layers, rate),
        "schedule": average(momentum),
    }


def _mars(beta: float, gamma: float, exact: bool) -> Parts:
    return {"estimator": Mars(gamma, 1 - beta, 1.0, previous_batch=not exact), "schedule": average(beta)}


@method("Liu et al. 2025, arXiv 2510.21800")
def mars_m(
    lr=3e-3,
    beta=0.95,
    weight_decay=0.1,
    *,
    gamma=0.025,
    exact=False,
    beta2=0.999,
    rate=1.0,
    split=None,
    batch_dims=0,
    names=(),
    layers=HEADS_TOO,
) -> Parts:
    r"""MARS-M: Muon along a gradient that is corrected by a little variance reduction.

    $$c_t = \hat g_t + \gamma \tfrac{\beta}{1-\beta} (\hat g_t - \hat g_{t-1}), \qquad
      g_t = \beta g_{t-1} + (1-\beta)\, \tilde c_t$$

    with $c_t$ clipped to norm 1 in each tensor, and steps of AdamW's size. `exact` uses $\nabla f(x_{t-1}; \xi_t)$
    instead of $\hat g_{t-1}$, which takes two gradients per batch. The default lr is 3e-3. The published 1e-3 is for
    long runs of language models: with it a small network hardly trains in 150 batches (`tests/zoo/test_defaults.py`).
    """
    matrix = divided(Muon(scale="match_rms_adamw"), adams(beta2), split, batch_dims, names, layers, rate)
    return {"matrix": matrix, **_mars(beta, gamma, exact)}


@method("Yuan et al. 2024, arXiv 2411.10438")
def mars_shampoo(
    lr=3e-3,
    beta=0.95,
    weight_decay=0.0,
    *,
    gamma=0.025,
    exact=False,
    beta2=0.999,
    rate=1.0,
    split=None,
    batch_dims=0,
    names=(),
    layers=HEADS_TOO,
) -> Parts:
    r"""MARS-Shampoo: MARS-M with Muon's own step size.

    $$x_{t+1} = x_t - \gamma \sqrt{\max(1, m/n)}\; U V^\top, \qquad g_t = U \Sigma V^\top$$

    for m × n matrices, with $g_t$ as in MARS-M.
    """
    matrix = divided(Muon(), adams(beta2), split, batch_dims, names, layers, rate)
    return {"matrix": matrix, **_mars(beta, gamma, exact)}


@method("Huang et al. 2025, arXiv 2509.14562")
def limuon(
    lr=0.02, *, alpha=0.1, beta2=0.999, rate=0.05, split=None, batch_dims=0, names=(), layers=HEADS_TOO
) -> Parts:
    r"""LiMuon: Muon along a variance-reduced gradient.

    $$g_t = \hat g_t + (1-\alpha)\bigl(g_{t-1} - \nabla f(x_{t-1}; \xi_t)\bigr), \qquad
      x_{t+1} = x_t - \gamma s\, U V^\top$$

    STORM's estimator with Muon's step: the first of the paper's two variants.

    Args:
        alpha: α, weight of the newest gradient.
    """
    matrix = divided(Muon(), adams(beta2), split, batch_dims, names, layers, rate)
    return {"tau": 1.0, "matrix": matrix, "schedule": Constant(alpha=alpha)}


@method("Gupta et al. 2018, arXiv 1802.09568")
def shampoo(
    lr=3e-2,
    betas=(0.9, 1.0),
    epsilon=1e-12,
    weight_decay=0.0,
    *,
    max_preconditioner_dim=1024,
    precondition_frequency=1,
    grafting=None,
    split=None,
    batch_dims=0,
    names=(),
    layers=EMBEDDINGS,
    rate=1.0,
) -> Parts:
    r"""Shampoo: the fourth roots of two averages of squared gradients, one for the rows and one for the columns.

    $$x_{t+1} = x_t - \gamma L_t^{-1/4} g_t R_t^{-1/4}$$

    With the options of Meta's Distributed Shampoo (Shi et al. 2023): $\beta_2 = 1$ sums instead of averaging, and
    matrices are cut into blocks. `grafting=SecondMoment(bias_correction=True)` gives steps Adam's size, which is better
    with $\beta_2 < 1$. The default lr is 3e-2. The factors are sums, so steps shrink like $1/\sqrt t$: with Meta's 1e-2
    a small network hardly trains in 150 batches (`tests/zoo/test_defaults.py`).

    Args:
        epsilon: ε, added to the eigenvalues of the factors.
        max_preconditioner_dim: largest number of rows and columns of a block; None does not cut.
        grafting: a matrix, such as `SecondMoment(bias_correction=True)`, whose step gives each step its size.
    """
    beta1, beta2 = betas
    check(0 <= beta1 < 1 and 0 <= beta2 <= 1, "betas", betas, "0 <= beta1 < 1 and 0 <= beta2 <= 1")
    graft = None if grafting is None else Matrix.find(grafting)
    first = Shampoo(beta2, epsilon, precondition_frequency, grafting=graft, block=max_preconditioner_dim)
    others: Matrix = AdaGrad(lam=1e-8) if beta2 == 1 else adams(beta2)
    matrix = divided(first, others, split, batch_dims, names, layers, rate)
    return {"matrix": matrix, "schedule": BiasCorrected(beta1)}


@typed("Vyas et al. 2024, arXiv 2409.11321")
def soap(
    lr: Lr = 3e-3,
    betas: Betas = (0.95, 0.95),
    shampoo_beta: float | None = None,
    eps: float = 1e-8,
    weight_decay: float = 0.01,
    precondition_frequency: int = 10,
    max_precond_dim: int = 10_000,
    *,
    one_sided_above: int = 1024,
    split: Split = None,
    batch_dims: Dims = 0,
    names: Names = (),
    layers: Names = EMBEDDINGS,
    rate: float = 1.0,
    **options: Unpack[Options],
) -> Parts:
    r"""SOAP: Adam in the eigenbasis of Shampoo's two averages.

    $$x_{t+1} = (1 - \gamma w) x_t - \gamma\, Q_L \frac{Q_L^\top g_t Q_R}{\sqrt{v_t} + \varepsilon}\, Q_R^\top$$

    Sides longer than `max_precond_dim` have no factor. The longer side of a matrix has none either if it is longer than
    `one_sided_above`: its factor would take most of the time and change little. The published code has no such option.
    It uses its first gradient for the factors only; here the first gradient is a step too. It gives embeddings factors;
    here they have Adam's second moment, unless `layers=()`.

    Args:
        shampoo_beta: weight of the old factors. None means β₂.

    >>> import torch
    >>> soap(torch.nn.Linear(3, 2)).param_groups[0]["matrix"]["first"]["every"]
    10
    """
    beta1, beta2 = checked(betas)
    above = min(one_sided_above, max_precond_dim)
    first = SOAP(beta2, eps, precondition_frequency, shampoo_beta, one_sided_above=above, largest=max_precond_dim)
    matrix = divided(first, adams(beta2, eps), split, batch_dims, names, layers, rate)
    return {"matrix": matrix, "schedule": BiasCorrected(beta1)}


@method("Lin et al. 2025, arXiv 2509.03378")
def kl_shampoo(
    lr=3e-3,
    betas=(0.9, 0.98),
    weight_decay=0.01,
    *,
    precondition_frequency=10,
    max_precond_dim=10_000,
    one_sided_above=1024,
    split=None,
    batch_dims=0,
    names=(),
    layers=EMBEDDINGS,
    rate=1.0,
) -> Parts:
    r"""KL-Shampoo: Shampoo with factors that estimate the covariance of the gradients.

    $$x_{t+1} = (1 - \gamma w) x_t - \gamma\, S_L^{-1/2} g_t\, S_R^{-1/2}$$

    with the factors of `matrices.KLShampoo`, on one side only where the other is longer than `one_sided_above`.
    """
    beta1, beta2 = checked(betas)
    above = min(one_sided_above, max_precond_dim)
    first = KLShampoo(beta2, precondition_frequency, one_sided_above=above, largest=max_precond_dim)
    matrix = divided(first, adams(beta2), split, batch_dims, names, layers, rate)
    return {"matrix": matrix, "schedule": BiasCorrected(beta1)}


@method("Li 2018, arXiv 1512.04202")
def psgd_kron(
    lr=1e-3,
    b1=0.9,
    weight_decay=0.0,
    *,
    precond_lr=0.1,
    max_size_triangular=8192,
    split=None,
    batch_dims=0,
    names=(),
    layers=EMBEDDINGS,
    rate=1.0,
) -> Parts:
    r"""PSGD-Kron: momentum, whitened by Kronecker factors that are learned by gradient steps.

    $$x_{t+1} = (1 - \gamma w) x_t - \gamma\, Q_L^\top Q_L\, g_t\, Q_R^\top Q_R$$

    With the options of Walters 2024. Vectors and embeddings have Adam's second moment; the published code whitens them
    too. The default lr is 1e-3. The published 3e-4 is for long runs of large models: with it a small network hardly
    trains in 150 batches (`tests/zoo/test_defaults.py`).

    Args:
        b1: weight of the old average of gradients.
        precond_lr: how fast the factors follow.
        max_size_triangular: sides longer than this have diagonal factors.
    """
    check(0 <= b1 < 1, "b1", b1, "0 <= b1 < 1")
    first = PSGDKron(precond_lr, triangular=max_size_triangular)
    matrix = divided(first, adams(0.99), split, batch_dims, names, layers, rate)
    return {"matrix": matrix, "schedule": BiasCorrected(b1)}


@typed("this project 2026, results.md#is-super-adam-faster-than-tuned-adamw")
def super_adam_plus(
    lr: Lr = 1e-2,
    betas: Betas = (0.95, 0.95),
    eps: float = 1e-8,
    weight_decay: float = 1e-2,
    *,
    precondition_frequency: int = 5,
    one_sided_above: int = 300,
    split: Split = None,
    batch_dims: Dims = 0,
    names: Names = (),
    layers: Names = EMBEDDINGS,
    rate: float = 1.0,
    **options: Unpack[Options],
) -> Parts:
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
    beta1, beta2 = checked(betas)
    first = SOAP(beta2, eps, precondition_frequency, one_sided_above=one_sided_above)
    matrix = divided(first, adams(beta2, eps), split, batch_dims, names, layers, rate)
    return {"estimator": Nesterov(), "matrix": matrix, "schedule": BiasCorrected(beta1)}
