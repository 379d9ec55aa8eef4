"""SUPER-ADAM, variance reduction, gradients taken ahead, and L-BFGS."""

# mypy: disable-error-code="no-untyped-def"

from __future__ import annotations

from typing import TYPE_CHECKING

from superadam.estimators import Mars
from superadam.iterates import Nigt
from superadam.matrices import AccumulatedNorm, DampedLBFGS, EstimateNorm, Matrix
from superadam.methods import Parts
from superadam.parts import check
from superadam.schedules import Constant, Paper, Storm
from superadam.zoo.adam_family import Betas, averages
from superadam.zoo.registry import Lr, Rest, checked, method, typed

if TYPE_CHECKING:
    from typing_extensions import Unpack  # Python 3.10 has none in typing

__all__ = ["adam_plus", "adamw_ahead", "mars", "mars_approx", "nigt", "sdlbfgs", "storm", "super_adam"]

MARS = "Yuan et al. 2024, arXiv 2411.10438"


@typed("Huang et al. 2021, arXiv 2106.08208")
def super_adam(
    lr: Lr = None,
    *,
    tau: float = 0.0,
    k: float = 1.0,
    m: float = 100.0,
    c: float | None = None,
    matrix: Matrix | str | None = "SecondMoment",
    weight_decay: float = 0.0,
    **options: Unpack[Rest],
) -> Parts:
    r"""SUPER-ADAM: the paper's algorithm with the paper's schedules.

    $$x_{t+1} = x_t - \gamma\mu_t H_t^{-1} g_t$$

    With any `matrix`, and `tau` 0 or 1. `lr=None` is a learning rate that trains: 0.01 for τ = 0 and 0.005 for τ > 0,
    where the largest $\mu_t$ is 0.1 and 0.2. The presets have the paper's learning rates, such as 1e-3 on CIFAR.

    Args:
        k: k in μ_t = k/(m + t)^(1/2), or ^(1/3) with τ > 0.
        m: m in μ_t.
        c: c in α_{t+1} = c μ_t, or c μ_t² with τ > 0. None means 20 for τ = 0 and 40 for τ > 0.

    >>> import torch
    >>> super_adam(torch.nn.Linear(3, 1), tau=1.0).two_point
    True
    """
    return {"schedule": Paper(k, m, c)}


@method("Cutkosky and Orabona 2019, arXiv 1905.10018")
def storm(lr=0.1, *, k=10.0, omega=6.0, c=100.0) -> Parts:
    r"""STORM: variance reduction with one learning rate from the summed gradient norms.

    $$\eta_t = k/(\omega + \textstyle\sum_{i \le t} \|\hat g_i\|^2)^{1/3}, \quad x_{t+1} = x_t - \eta_t g_t, \quad
      g_{t+1} = \hat g_{t+1} + (1 - c\eta_t^2)(g_t - \nabla f(x_t; \xi_{t+1}))$$

    with $c\eta_t^2$ capped at 1. `lr` multiplies the step only. The presets have `lr=1`, which is the formula as
    published; some of our networks diverge with it.

    Args:
        k: factor of η_t.
        omega: ω, first value of the sum of squared norms.
        c: factor of η_t² in the weight of the newest gradient.
    """
    return {"tau": 1.0, "matrix": AccumulatedNorm(1 / 3, omega, k), "schedule": Storm(c)}


@method("Cutkosky and Mehta 2020, arXiv 2002.03305")
def nigt(lr=3e-2, *, momentum=0.9) -> Parts:
    r"""NIGT: normalised momentum of gradients taken ahead.

    $$g_t = \beta g_{t-1} + (1-\beta) \nabla f\bigl(x_t + \tfrac{\beta}{1-\beta}(x_t - x_{t-1})\bigr), \quad
      x_{t+1} = x_t - \gamma g_t/\|g_t\|$$
    """
    check(0 <= momentum < 1, "momentum", momentum, "0 <= momentum < 1")
    return {"iterate": Nigt(), "matrix": EstimateNorm(), "schedule": Constant(alpha=1 - momentum)}


@method("Liu et al. 2020, arXiv 2011.11985")
def adam_plus(lr=1.0, *, beta=0.1, a=1.0, eps_0=1e-8) -> Parts:
    r"""Adam⁺: gradients taken ahead, with the root of their norm as learning rate.

    $$z_{t+1} = (1-\beta) z_t + \beta \nabla f\bigl((1-\tfrac1\beta) x_t + \tfrac1\beta x_{t+1}\bigr), \quad
      x_{t+1} = x_t - \gamma\beta^a z_t / \max(\|z_t\|^{1/2}, \varepsilon_0)$$

    The authors recommend `lr=0.1`; the presets for CIFAR have it. With 0.1 our networks hardly train.

    Args:
        beta: weight of the newest gradient.
        a: the step is multiplied by β^a.
        eps_0: ε₀, the smallest root of the norm.
    """
    check(0 < beta <= 1, "beta", beta, "0 < beta <= 1")
    matrix = EstimateNorm(power=0.5, floor=eps_0, scale=beta**-a)
    return {"iterate": Nigt(), "matrix": matrix, "schedule": Constant(alpha=beta)}


def _mars(betas: Betas, eps: float, gamma: float, bound: float | None, previous_batch: bool) -> Parts:
    estimator = Mars(gamma, 1 - checked(betas)[0], bound, previous_batch)
    return {**averages(betas, eps), "estimator": estimator}


@method(MARS)
def mars(lr=3e-3, betas=(0.95, 0.99), eps=1e-8, weight_decay=0.0, *, gamma=0.025, clip_corrected=1.0) -> Parts:
    r"""MARS: AdamW on a gradient that is corrected by a little variance reduction.

    $$c_t = \hat g_t + \gamma \tfrac{\beta_1}{1-\beta_1} (\hat g_t - \nabla f(x_{t-1}; \xi_t))$$

    $c_t$, clipped to norm 1 in each tensor, replaces the gradient in AdamW.
    """
    return _mars(betas, eps, gamma, clip_corrected, previous_batch=False)


@method(MARS)
def mars_approx(lr=3e-3, betas=(0.95, 0.99), eps=1e-8, weight_decay=0.0, *, gamma=0.025, clip_corrected=1.0) -> Parts:
    r"""MARS-approx: MARS with the previous batch's gradient, one evaluation per step.

    $$c_t = \hat g_t + \gamma \tfrac{\beta_1}{1-\beta_1} (\hat g_t - \hat g_{t-1})$$
    """
    return _mars(betas, eps, gamma, clip_corrected, previous_batch=True)


@method("this project 2026, ../research/first_search/README.md")
def adamw_ahead(lr=1e-2, betas=(0.9, 0.99), lam=5e-4, weight_decay=1e-2) -> Parts:
    r"""AdamW, ahead: AdamW with gradients taken ahead, and with the paper's λ.

    $$\hat g_t = \nabla f\bigl(x_t + \tfrac{1-\alpha_t}{\alpha_t}(x_t - x_{t-1})\bigr), \quad
      \alpha_t = \tfrac{1-\beta_1}{1-\beta_1^t}, \quad
      x_{t+1} = (1 - \gamma w) x_t - \gamma \hat m_t / (\sqrt{\hat v_t} + \lambda)$$

    with Adam's averages of $\hat g_t$ and $\hat g_t^2$. Our first search, without warm-up, found it; with warm-up it is
    worse than AdamW. It takes one gradient per batch and keeps one tensor more than AdamW. During training the
    parameters hold the point in the brackets: evaluate inside `with opt.at_x():`, and call `flush()` at the end.

    Args:
        lam: λ, used as Adam's ε.
    """
    return {**averages(betas, lam), "iterate": Nigt()}


@method("Wang et al. 2017, arXiv 1607.01231")
def sdlbfgs(lr=0.3, *, history=10, delta=10.0, alpha=1.0) -> Parts:
    r"""SdLBFGS: stochastic damped L-BFGS, a matrix that is not diagonal.

    $$x_{t+1} = x_t - \gamma H_t^{-1} g_t$$

    $H_t^{-1}$ comes from the last pairs of moves and gradient differences. `alpha` adds momentum, `tau` variance
    reduction. A smaller `delta` takes longer steps where the curvature is small, and diverges where it is negative.

    Args:
        history: number of pairs to keep.
        delta: δ, the smallest curvature.
        alpha: weight of the newest gradient: 1 - momentum.
    """
    return {"matrix": DampedLBFGS(history, delta), "schedule": Constant(alpha=alpha)}
