"""Methods that are newer than the paper."""

from __future__ import annotations

import math
from typing import Any

from superadam._state.recipes import recipe
from superadam.estimators import GradientDifferences, HeavyBall, Nesterov, TwoAverages
from superadam.iterates import ScheduleFree
from superadam.matrices import AdamMini, Cautious, PastSecondMoment, SecondMoment, Sign, Sophia
from superadam.optimizer import SuperAdam
from superadam.parts import check
from superadam.schedules import BiasCorrected, Constant
from superadam.zoo.registry import average, checked, compose, cook, corrected, method

__all__ = ["adam_mini", "adan", "ademamix", "adopt", "cautious_adamw", "lion", "schedule_free_adamw", "sophia_g"]


@method
def schedule_free_adamw(
    params: Any,
    lr: Any = 2.5e-3,
    betas: tuple[float, float] = (0.9, 0.999),
    eps: float = 1e-8,
    weight_decay: float = 0.0,
    *,
    warmup_steps: int = 0,
    r: float = 0.0,
    weight_lr_power: float = 2.0,
    **options: Any,
) -> SuperAdam:
    r"""schedule-free AdamW: the result is an average of the points, and no schedule is needed.

    $$y_t = (1-\beta_1) z_t + \beta_1 x_t, \quad
      z_{t+1} = z_t - \gamma \bigl(\nabla f(y_t)/(\sqrt{\hat v_t} + \varepsilon) + w y_t\bigr), \quad
      x_{t+1} = (1 - c_t) x_t + c_t z_{t+1}$$

    Defazio et al. 2024. $c_t$ gives all points after the warm-up the same weight. During training the parameters hold
    $y_t$: evaluate inside `with opt.at_x():`, or between `opt.eval()` and `opt.train()`, and call `flush()` at the end.

    Args:
        warmup_steps: number of steps during which γ rises to its value.
        r: the weight of a point grows like t^r.
        weight_lr_power: the weight of a point is the largest γ so far to this power: points of a warm-up count less.

    >>> import torch
    >>> schedule_free_adamw(torch.nn.Linear(3, 1), warmup_steps=100).param_groups[0]["iterate"]["warmup"]
    100
    """
    beta1, beta2 = checked(betas)
    return compose(
        params,
        lr,
        options,
        iterate=ScheduleFree(beta1, r, weight_lr_power, warmup_steps),
        matrix=SecondMoment(beta2, eps, bias_correction=True),
        schedule=Constant(alpha=1.0),
        weight_decay=weight_decay,
    )


@recipe("lion")
def _lion(betas: tuple[float, float]) -> dict[str, Any]:
    beta1, beta2 = checked(betas)
    check(beta1 <= beta2, "betas", betas, "betas[0] <= betas[1]")
    a = 1 - beta1 / beta2 if beta2 > 0 else 1.0
    return {"estimator": Nesterov(a), "matrix": Sign(), "schedule": average(beta2, bias_correction=False)}


@method
def lion(
    params: Any, lr: Any = 5e-4, betas: tuple[float, float] = (0.9, 0.99), weight_decay: float = 0.0, **options: Any
) -> SuperAdam:
    r"""Lion: steps along the sign of a momentum.

    $$x_{t+1} = (1 - \gamma w) x_t - \gamma\, \mathrm{sign}\bigl(\beta_1 m_{t-1} + (1-\beta_1) \hat g_t\bigr), \qquad
      m_t = \beta_2 m_{t-1} + (1-\beta_2) \hat g_t$$

    Chen et al. 2023, with lr = 1e-4. It keeps one tensor for each parameter. With `tau` > 0 the step is the sign of
    $g_t$ from line 11, averaged with $\beta_1$.

    >>> import torch
    >>> lion(torch.nn.Linear(3, 1)).param_groups[0]["matrix"]["type"]
    'Sign'
    """
    if options.get("tau", 0) != 0:
        parts = {"matrix": Sign(), "schedule": BiasCorrected(checked(betas)[0])}
        return compose(params, lr, options, **parts, weight_decay=weight_decay)
    return cook("lion", {"betas": betas}, params, lr, options, weight_decay=weight_decay)


@recipe("ademamix")
def _ademamix(betas: tuple[float, float, float], eps: float, alpha: float, warmup: int) -> dict[str, Any]:
    beta1, beta2, beta3 = checked(betas, 3)
    return {
        "estimator": TwoAverages(alpha, beta3, warmup, start=beta1 or 1e-8),
        "matrix": SecondMoment(beta2, eps, bias_correction=True),
        "schedule": BiasCorrected(beta1),
    }


@method
def ademamix(
    params: Any,
    lr: Any = 1e-3,
    betas: tuple[float, float, float] = (0.9, 0.999, 0.9999),
    eps: float = 1e-8,
    weight_decay: float = 0.0,
    *,
    alpha: float = 2.0,
    warmup: int = 0,
    **options: Any,
) -> SuperAdam:
    r"""AdEMAMix: AdamW with a second, much slower average of the gradients.

    $$x_{t+1} = (1 - \gamma w) x_t - \gamma (\hat m_t + a_t n_t) / (\sqrt{\hat v_t} + \varepsilon), \qquad
      n_t = \beta_{3,t} n_{t-1} + (1-\beta_{3,t}) \hat g_t$$

    Pagliardini et al. 2024. $a_t$ and $\beta_{3,t}$ rise to `alpha` and `betas[2]` in `warmup` steps. The authors'
    warm-up is as long as training.

    Args:
        alpha: weight of the slow average, after the warm-up.
        warmup: number of steps during which `alpha` and β₃ rise.

    >>> import torch
    >>> ademamix(torch.nn.Linear(3, 1), warmup=500).param_groups[0]["estimator"]["warmup"]
    500
    """
    own = {"betas": betas, "eps": eps, "alpha": alpha, "warmup": warmup}
    return cook("ademamix", own, params, lr, options, weight_decay=weight_decay)


@recipe("adam_mini", scale=corrected)
def _adam_mini(betas: tuple[float, float], eps: float, rows: int) -> dict[str, Any]:
    beta1, beta2 = checked(betas)
    return {"matrix": AdamMini(beta2, eps, True, rows), "schedule": BiasCorrected(beta1)}


@method
def adam_mini(
    params: Any,
    lr: Any = 1e-3,
    betas: tuple[float, float] = (0.9, 0.999),
    eps: float = 1e-8,
    weight_decay: float = 0.0,
    *,
    rows: int = 1,
    **options: Any,
) -> SuperAdam:
    r"""Adam-mini: AdamW with one second moment for each row.

    $$v_t = \beta_2 v_{t-1} + (1-\beta_2)\, \mathrm{mean}_{\text{row}}\, \hat g_t^2, \qquad
      x_{t+1} = (1 - \gamma w) x_t - \gamma \hat m_t / (\sqrt{\hat v_t} + \varepsilon)$$

    Zhang et al. 2024. In the authors' code, all rows of a head of queries or keys share one second moment: give those
    parameters a group with the `rows` of a head.

    Args:
        rows: number of rows of a matrix that share a second moment.

    >>> import torch
    >>> adam_mini(torch.nn.Linear(3, 1)).param_groups[0]["matrix"]["type"]
    'AdamMini'
    """
    own = {"betas": betas, "eps": eps, "rows": rows}
    return cook("adam_mini", own, params, lr, options, weight_decay=weight_decay)


@recipe("sophia_g")
def _sophia_g(betas: tuple[float, float], rho: float, batch: int) -> dict[str, Any]:
    beta1, beta2 = checked(betas)
    return {"matrix": Sophia(beta2, rho, batch), "schedule": average(beta1, bias_correction=False)}


@method
def sophia_g(
    params: Any,
    lr: Any = 5e-4,
    betas: tuple[float, float] = (0.965, 0.99),
    rho: float = 0.04,
    weight_decay: float = 0.1,
    *,
    batch: int = 5120,
    **options: Any,
) -> SuperAdam:
    r"""Sophia-G: a curvature from labels that the model draws, and steps of at most γ.

    $$x_{t+1} = (1 - \gamma w) x_t - \gamma\, m_t / \max(\rho B h_t, |m_t|)$$

    Liu et al. 2023, with lr = 1e-4. h averages the squares of the gradients at each `opt.observe()`. Every ten steps,
    call `matrices.sampled_label_loss(model(x)).backward(); opt.observe(); opt.zero_grad()`. `batch` is B, the number of
    labels in that loss. Without `observe` every step is γ times a sign.

    Args:
        rho: ρ. A smaller ρ clips more coordinates.
        batch: B, the number of labels in the mean of the observed loss.

    >>> import torch
    >>> sophia_g(torch.nn.Linear(3, 1), batch=64).param_groups[0]["matrix"]["batch"]
    64
    """
    own = {"betas": betas, "rho": rho, "batch": batch}
    return cook("sophia_g", own, params, lr, options, weight_decay=weight_decay)


@recipe("cautious_adamw", scale=corrected)
def _cautious(betas: tuple[float, float], eps: float, kappa: float) -> dict[str, Any]:
    beta1, beta2 = checked(betas)
    return {"matrix": Cautious(beta2, eps, kappa, True, rescale=True), "schedule": BiasCorrected(beta1)}


@method
def cautious_adamw(
    params: Any,
    lr: Any = 1e-3,
    betas: tuple[float, float] = (0.9, 0.999),
    eps: float = 1e-8,
    weight_decay: float = 1e-2,
    *,
    kappa: float = math.inf,
    **options: Any,
) -> SuperAdam:
    r"""cautious AdamW: AdamW without steps where the newest gradient points the other way.

    $$x_{t+1} = (1 - \gamma w) x_t - \frac{\gamma}{\max(\mathrm{mean}(\phi_t), 10^{-3})}\,
      \phi_t\, \hat m_t / (\sqrt{\hat v_t} + \varepsilon), \quad
      \phi_t = 1 \text{ where } \hat m_t \hat g_t > 0, \text{ else } 1/\kappa$$

    Liang et al. 2024 ($\kappa = \infty$); the mean is that of each tensor. Their code subtracts the weight decay after
    the step; here it is $\gamma w x_t$. A finite $\kappa$ only shortens the steps against the gradient.

    Args:
        kappa: steps are κ times shorter where momentum and newest gradient disagree.

    >>> import torch
    >>> cautious_adamw(torch.nn.Linear(3, 1)).param_groups[0]["matrix"]["rescale"]
    True
    """
    own = {"betas": betas, "eps": eps, "kappa": kappa}
    return cook("cautious_adamw", own, params, lr, options, weight_decay=weight_decay)


@recipe("adan")
def _adan(betas: tuple[float, float, float], eps: float) -> dict[str, Any]:
    beta1, beta2, beta3 = checked(betas, 3)
    return {
        "estimator": GradientDifferences(beta2),
        "matrix": SecondMoment(beta3, eps, bias_correction=True),
        "schedule": BiasCorrected(beta1),
    }


@method
def adan(
    params: Any,
    lr: Any = 1e-3,
    betas: tuple[float, float, float] = (0.98, 0.92, 0.99),
    eps: float = 1e-8,
    weight_decay: float = 0.0,
    **options: Any,
) -> SuperAdam:
    r"""Adan: averages of the gradient, of its changes, and of the square of both.

    $$x_{t+1} = (1 - \gamma w) x_t - \gamma\, \frac{\hat m_t + \beta_2 \hat d_t}{\sqrt{\hat n_t} + \varepsilon}, \quad
      n_t = \beta_3 n_{t-1} + (1-\beta_3) \bigl(\hat g_t + \beta_2 (\hat g_t - \hat g_{t-1})\bigr)^2$$

    Xie et al. 2022. $\hat m_t$ and $\hat d_t$ are corrected averages of $\hat g_t$ and of $\hat g_t - \hat g_{t-1}$. By
    default the authors' code divides x by $1 + \gamma w$; this one multiplies by $1 - \gamma w$.

    >>> import torch
    >>> adan(torch.nn.Linear(3, 1)).param_groups[0]["estimator"]["beta"]
    0.92
    """
    return cook("adan", {"betas": betas, "eps": eps}, params, lr, options, weight_decay=weight_decay)


@recipe("adopt")
def _adopt(betas: tuple[float, float], eps: float, clip_power: float) -> dict[str, Any]:
    beta1, beta2 = checked(betas)
    return {
        "estimator": HeavyBall(beta1, dampening=beta1),
        "matrix": PastSecondMoment(beta2, eps, clip_power),
        "schedule": Constant(alpha=1.0),
    }


@method
def adopt(
    params: Any,
    lr: Any = 1e-3,
    betas: tuple[float, float] = (0.9, 0.9999),
    eps: float = 1e-6,
    weight_decay: float = 0.0,
    *,
    clip_power: float = 0.25,
    **options: Any,
) -> SuperAdam:
    r"""ADOPT: an average of steps, each the newest gradient scaled by the second moment of the earlier ones.

    $$m_t = \beta_1 m_{t-1} + (1-\beta_1)\, \mathrm{clip}\Bigl(\frac{\hat g_t}{\max(\sqrt{v_{t-1}}, \varepsilon)},
      \pm (t-1)^{1/4}\Bigr), \quad x_{t+1} = (1 - \gamma w) x_t - \gamma m_t, \quad
      v_t = \beta_2 v_{t-1} + (1-\beta_2) \hat g_t^2$$

    Taniguchi et al. 2024: convergence with any $\beta_2$. The first gradient only sets $v_1$; its step is weight decay
    alone. The authors keep $m_t$ and $v_t$; here the state also has $H_t$.

    Args:
        clip_power: the largest |ĝ/√v| is (t - 1)^clip_power.

    >>> import torch
    >>> adopt(torch.nn.Linear(3, 1)).param_groups[0]["matrix"]["type"]
    'PastSecondMoment'
    """
    own = {"betas": betas, "eps": eps, "clip_power": clip_power}
    return cook("adopt", own, params, lr, options, weight_decay=weight_decay)
