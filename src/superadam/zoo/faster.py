"""SUPER-ADAM, variance reduction, gradients taken ahead, and L-BFGS."""

from __future__ import annotations

from typing import Any

from superadam._state.recipes import recipe
from superadam.estimators import Corrected
from superadam.iterates import Ahead
from superadam.matrices import AccumulatedNorm, DampedLBFGS, EstimateNorm, Matrix, SecondMoment
from superadam.optimizer import SuperAdam
from superadam.parts import check
from superadam.schedules import BiasCorrected, Constant, Paper, Storm
from superadam.zoo.adam_family import adamw
from superadam.zoo.registry import checked, compose, cook, corrected, method

__all__ = ["adam_plus", "adamw_ahead", "mars", "mars_approx", "nigt", "sdlbfgs", "storm", "super_adam"]


@method
def super_adam(
    params: Any,
    lr: Any = None,
    *,
    tau: float = 0.0,
    k: float = 1.0,
    m: float = 100.0,
    c: float | None = None,
    matrix: Matrix | str = "SecondMoment",
    **options: Any,
) -> SuperAdam:
    r"""SUPER-ADAM: the paper's algorithm with the paper's schedules.

    $$x_{t+1} = x_t - \gamma\mu_t H_t^{-1} g_t$$

    With any of the matrices, τ = 0 or 1 (Huang, Li and Huang 2021). `lr=None` is a learning rate that trains: 0.01 for
    τ = 0 and 0.005 for τ > 0, where the largest $\mu_t$ is 0.1 and 0.2. The presets have the paper's learning rates,
    such as 1e-3 on CIFAR.

    Args:
        k: k in μ_t = k/(m + t)^(1/2), or ^(1/3) with τ > 0.
        m: m in μ_t.
        c: c in α_{t+1} = c μ_t, or c μ_t² with τ > 0. None means 20 for τ = 0 and 40 for τ > 0.

    >>> import torch
    >>> super_adam(torch.nn.Linear(3, 1), tau=1.0).two_point
    True
    """
    return compose(params, lr, options, tau=tau, matrix=matrix, schedule=Paper(k, m, c))


@method
def storm(
    params: Any, lr: Any = 0.1, *, k: float = 10.0, omega: float = 6.0, c: float = 100.0, **options: Any
) -> SuperAdam:
    r"""STORM: variance reduction with one learning rate from the summed gradient norms.

    $$\eta_t = k/(\omega + \textstyle\sum_{i \le t} \|\hat g_i\|^2)^{1/3}, \quad x_{t+1} = x_t - \eta_t g_t, \quad
      g_{t+1} = \hat g_{t+1} + (1 - c\eta_t^2)(g_t - \nabla f(x_t; \xi_{t+1}))$$

    Cutkosky and Orabona 2019, with $c\eta_t^2$ capped at 1. `lr` multiplies the step only. The presets have `lr=1`,
    which is the formula as published; some of our networks diverge with it.

    Args:
        k: factor of η_t.
        omega: ω, first value of the sum of squared norms.
        c: factor of η_t² in the weight of the newest gradient.

    >>> import torch
    >>> storm(torch.nn.Linear(3, 1)).two_point
    True
    """
    matrix = AccumulatedNorm(1 / 3, omega, k)
    return compose(params, lr, options, tau=1.0, matrix=matrix, schedule=Storm(c))


@recipe("nigt")
def _nigt(momentum: float) -> dict[str, Any]:
    check(0 <= momentum < 1, "momentum", momentum, "0 <= momentum < 1")
    return {"iterate": Ahead(), "matrix": EstimateNorm(), "schedule": Constant(alpha=1 - momentum)}


@method
def nigt(params: Any, lr: Any = 3e-2, *, momentum: float = 0.9, **options: Any) -> SuperAdam:
    r"""NIGT: normalised momentum of gradients taken ahead.

    $$g_t = \beta g_{t-1} + (1-\beta) \nabla f\bigl(x_t + \tfrac{\beta}{1-\beta}(x_t - x_{t-1})\bigr), \quad
      x_{t+1} = x_t - \gamma g_t/\|g_t\|$$

    Cutkosky and Mehta 2020.

    >>> import torch
    >>> nigt(torch.nn.Linear(3, 1)).param_groups[0]["iterate"]["type"]
    'Ahead'
    """
    return cook("nigt", {"momentum": momentum}, params, lr, options)


@method
def adam_plus(
    params: Any, lr: Any = 1.0, *, beta: float = 0.1, a: float = 1.0, eps_0: float = 1e-8, **options: Any
) -> SuperAdam:
    r"""Adam⁺: gradients taken ahead, with the root of their norm as learning rate.

    $$z_{t+1} = (1-\beta) z_t + \beta \nabla f\bigl((1-\tfrac1\beta) x_t + \tfrac1\beta x_{t+1}\bigr), \quad
      x_{t+1} = x_t - \gamma\beta^a z_t / \max(\|z_t\|^{1/2}, \varepsilon_0)$$

    Liu et al. 2020, who recommend `lr=0.1`; the presets for CIFAR have it. With 0.1 our networks hardly train.

    Args:
        beta: weight of the newest gradient.
        a: the step is multiplied by β^a.
        eps_0: ε₀, the smallest root of the norm.

    >>> import torch
    >>> adam_plus(torch.nn.Linear(3, 1)).param_groups[0]["matrix"]["power"]
    0.5
    """
    check(0 < beta <= 1, "beta", beta, "0 < beta <= 1")
    matrix = EstimateNorm(power=0.5, floor=eps_0, scale=beta**-a)
    return compose(params, lr, options, iterate=Ahead(), matrix=matrix, schedule=Constant(alpha=beta))


@recipe("mars", scale=corrected)
def _mars(
    betas: tuple[float, float], eps: float, gamma: float, clip_corrected: float | None, previous_batch: bool
) -> dict[str, Any]:
    """AdamW on the corrected gradient."""
    beta1, beta2 = checked(betas)
    return {
        "estimator": Corrected(gamma, 1 - beta1, clip_corrected, previous_batch),
        "matrix": SecondMoment(beta2, eps, bias_correction=True),
        "schedule": BiasCorrected(beta1),
    }


@method
def mars(
    params: Any,
    lr: Any = 3e-3,
    betas: tuple[float, float] = (0.95, 0.99),
    eps: float = 1e-8,
    weight_decay: float = 0.0,
    *,
    gamma: float = 0.025,
    clip_corrected: float | None = 1.0,
    **options: Any,
) -> SuperAdam:
    r"""MARS: AdamW on a gradient that is corrected by a little variance reduction.

    $$c_t = \hat g_t + \gamma \tfrac{\beta_1}{1-\beta_1} (\hat g_t - \nabla f(x_{t-1}; \xi_t))$$

    $c_t$, clipped to norm 1 in each tensor, replaces the gradient in AdamW (Yuan et al. 2024).

    >>> import torch
    >>> mars(torch.nn.Linear(3, 1)).two_point
    True
    """
    own = {"betas": betas, "eps": eps, "gamma": gamma, "clip_corrected": clip_corrected, "previous_batch": False}
    return cook("mars", own, params, lr, options, weight_decay=weight_decay)


@method
def mars_approx(
    params: Any,
    lr: Any = 3e-3,
    betas: tuple[float, float] = (0.95, 0.99),
    eps: float = 1e-8,
    weight_decay: float = 0.0,
    *,
    gamma: float = 0.025,
    clip_corrected: float | None = 1.0,
    **options: Any,
) -> SuperAdam:
    r"""MARS-approx: MARS with the previous batch's gradient, one evaluation per step.

    $$c_t = \hat g_t + \gamma \tfrac{\beta_1}{1-\beta_1} (\hat g_t - \hat g_{t-1})$$

    Yuan et al. 2024.

    >>> import torch
    >>> mars_approx(torch.nn.Linear(3, 1)).two_point
    False
    """
    own = {"betas": betas, "eps": eps, "gamma": gamma, "clip_corrected": clip_corrected, "previous_batch": True}
    return cook("mars", own, params, lr, options, weight_decay=weight_decay)


@method
def adamw_ahead(
    params: Any,
    lr: Any = 1e-2,
    betas: tuple[float, float] = (0.9, 0.99),
    lam: float = 5e-4,
    weight_decay: float = 1e-2,
    **options: Any,
) -> SuperAdam:
    r"""AdamW, ahead: AdamW with gradients taken ahead, and with the paper's λ.

    $$\hat g_t = \nabla f\bigl(x_t + \tfrac{1-\alpha_t}{\alpha_t}(x_t - x_{t-1})\bigr), \quad
      \alpha_t = \tfrac{1-\beta_1}{1-\beta_1^t}, \quad
      x_{t+1} = (1 - \gamma w) x_t - \gamma \hat m_t / (\sqrt{\hat v_t} + \lambda)$$

    with Adam's averages of $\hat g_t$ and $\hat g_t^2$. Our first search, without warm-up, found it; with warm-up it is
    worse than AdamW. Our second search found `super_adam_plus`. `adamw_ahead` takes one gradient per batch and keeps
    one tensor more than AdamW. During training the parameters hold the point in the brackets: evaluate inside
    `with opt.at_x():`, and call `flush()` at the end.

    Args:
        lam: λ, used as Adam's ε.

    >>> import torch
    >>> adamw_ahead(torch.nn.Linear(3, 1)).param_groups[0]["matrix"]["lam"]
    0.0005
    """
    return adamw(params, lr, betas, lam, weight_decay, **{"iterate": Ahead(), **options})


@method
def sdlbfgs(
    params: Any,
    lr: Any = 0.3,
    *,
    history: int = 10,
    delta: float = 10.0,
    tau: float = 0.0,
    alpha: float = 1.0,
    **options: Any,
) -> SuperAdam:
    r"""SdLBFGS: stochastic damped L-BFGS, a matrix that is not diagonal.

    $$x_{t+1} = x_t - \gamma H_t^{-1} g_t$$

    $H_t^{-1}$ comes from the last pairs of moves and gradient differences (Wang et al. 2017). `alpha` adds momentum,
    `tau` variance reduction. A smaller `delta` takes longer steps where the curvature is small, and diverges where it
    is negative.

    Args:
        history: number of pairs to keep.
        delta: δ, the smallest curvature.
        alpha: weight of the newest gradient: 1 - momentum.

    >>> import torch
    >>> sdlbfgs(torch.nn.Linear(3, 1)).two_point
    True
    """
    return compose(params, lr, options, tau=tau, matrix=DampedLBFGS(history, delta), schedule=Constant(alpha=alpha))
