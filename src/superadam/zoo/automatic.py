"""Learning rates that are estimated while training, or that differ between tensors."""

from __future__ import annotations

import math
from typing import Any

from superadam._state.recipes import recipe
from superadam.matrices import Identity, SecondMoment
from superadam.optimizer import SuperAdam
from superadam.parts import check
from superadam.schedules import BiasCorrected, Constant
from superadam.stepsizes import DoG, Prodigy, TrustRatio, UpdateClipping
from superadam.zoo.registry import average, checked, compose, cook, corrected, method

__all__ = ["dog", "lamb", "lars", "prodigy", "stable_adamw"]


@recipe("prodigy")
def _prodigy(betas: tuple[float, float], beta3: float | None, eps: float, d0: float, d_coef: float) -> dict[str, Any]:
    beta1, beta2 = checked(betas)
    return {
        "stepsize": Prodigy(d0, math.sqrt(beta2) if beta3 is None else beta3, d_coef, weigh=True),
        "matrix": SecondMoment(beta2, eps),
        "schedule": average(beta1, bias_correction=False),
    }


@method
def prodigy(
    params: Any,
    lr: Any = 1.0,
    betas: tuple[float, float] = (0.9, 0.999),
    beta3: float | None = None,
    eps: float = 1e-8,
    weight_decay: float = 0.0,
    *,
    d0: float = 1e-6,
    d_coef: float = 1.0,
    **options: Any,
) -> SuperAdam:
    r"""Prodigy: AdamW with a learning rate that is estimated while training.

    $$x_{t+1} = (1 - \gamma d_t w) x_t - \gamma d_t m_t / (\sqrt{v_t} + d_1 \varepsilon), \quad
      d_{t+1} = \max\Bigl(d_t, \frac{r_t}{\|s_t\|_1}\Bigr)$$

    Mishchenko and Defazio 2024. m and v average $d_t \hat g_t$ and its square, without correction for their start; r
    and s are those of `stepsizes.Prodigy`. The published code multiplies ε by $d_t$, this one by d₁. The state holds
    m/d₁ and v/d₁². `lr="auto"` gives the same estimate to other compositions.

    Args:
        beta3: weight of the past in the estimate of d. None means √β₂.
        d0: d_1, the first guess of the distance.
        d_coef: factor of every new estimate.

    >>> import torch
    >>> prodigy(torch.nn.Linear(3, 1)).param_groups[0]["stepsize"]["d0"]
    1e-06
    """
    own = {"betas": betas, "beta3": beta3, "eps": eps, "d0": d0, "d_coef": d_coef}
    return cook("prodigy", own, params, lr, options, weight_decay=weight_decay)


@method
def dog(params: Any, lr: Any = 1.0, weight_decay: float = 0.0, *, reps_rel: float = 1e-6, **options: Any) -> SuperAdam:
    r"""DoG: SGD whose learning rate is the distance from x_1 divided by the root of the summed squared gradients.

    $$x_{t+1} = x_t - \gamma\, \frac{\max_{i \le t} \|x_i - x_1\|}{\sqrt{\sum_{i \le t} \|\hat g_i\|^2}}\, \hat g_t$$

    Ivgi, Hinder and Carmon 2023. The authors evaluate an average of the points: `iterate=iterates.Averaged()`.

    Args:
        reps_rel: the distance is at least reps_rel × (1 + ‖x_1‖).

    >>> import torch
    >>> dog(torch.nn.Linear(3, 1)).param_groups[0]["stepsize"]["reach"]
    1e-06
    """
    composition = {"stepsize": DoG(reps_rel), "matrix": Identity(), "schedule": Constant(alpha=1.0)}
    return compose(params, lr, options, **composition, weight_decay=weight_decay, decoupled_weight_decay=False)


@recipe("lamb")
def _lamb(betas: tuple[float, float], eps: float) -> dict[str, Any]:
    beta1, beta2 = checked(betas)
    return {
        "stepsize": TrustRatio(),
        "matrix": SecondMoment(beta2, eps, bias_correction=True),
        "schedule": BiasCorrected(beta1),
    }


@method
def lamb(
    params: Any,
    lr: Any = 1e-2,
    betas: tuple[float, float] = (0.9, 0.999),
    eps: float = 1e-6,
    weight_decay: float = 1e-2,
    **options: Any,
) -> SuperAdam:
    r"""LAMB: AdamW with steps proportional to the norm of each tensor.

    $$x_{t+1} = x_t - \gamma\, \frac{\|x_t\|}{\|u_t\|}\, u_t, \qquad
      u_t = \hat m_t / (\sqrt{\hat v_t} + \varepsilon) + w x_t$$

    You et al. 2020, for batches of thousands. Each tensor has its own norms.

    >>> import torch
    >>> lamb(torch.nn.Linear(3, 1)).param_groups[0]["stepsize"]["type"]
    'TrustRatio'
    """
    return cook("lamb", {"betas": betas, "eps": eps}, params, lr, options, weight_decay=weight_decay)


@recipe("lars")
def _lars(momentum: float, trust_coefficient: float) -> dict[str, Any]:
    check(0 <= momentum < 1, "momentum", momentum, "0 <= momentum < 1")
    return {
        "stepsize": TrustRatio(trust_coefficient, of_gradient=True, least_dims=2),
        "matrix": Identity(1 - momentum),
        "schedule": average(momentum, bias_correction=False),
    }


@method
def lars(
    params: Any,
    lr: Any = 0.1,
    momentum: float = 0.9,
    weight_decay: float = 0.0,
    *,
    trust_coefficient: float = 0.1,
    **options: Any,
) -> SuperAdam:
    r"""LARS: SGD with momentum; each tensor's gradient is rescaled to the norm of its weights.

    $$b_t = \mathrm{momentum}\; b_{t-1} + c\, \frac{\|x_t\|}{\|\hat g_t\|}\, \hat g_t, \quad
      x_{t+1} = x_t - \gamma b_t$$

    You et al. 2017, for batches of thousands. Weight decay is part of $\hat g_t$. Vectors keep their gradient: c
    ‖x‖/‖g‖ is 1 for them. The authors use `trust_coefficient=1e-3` with learning rates of 10 and more.

    Args:
        trust_coefficient: c, the norm of a step divided by the norm of its tensor.

    >>> import torch
    >>> lars(torch.nn.Linear(3, 1)).param_groups[0]["stepsize"]["of_gradient"]
    True
    """
    own = {"momentum": momentum, "trust_coefficient": trust_coefficient}
    return cook("lars", own, params, lr, options, weight_decay=weight_decay, decoupled_weight_decay=False)


@recipe("stable_adamw", scale=corrected)
def _stable_adamw(betas: tuple[float, float], eps: float) -> dict[str, Any]:
    beta1, beta2 = checked(betas)
    return {
        "stepsize": UpdateClipping(),
        "matrix": SecondMoment(beta2, eps, bias_correction=True),
        "schedule": BiasCorrected(beta1),
    }


@method
def stable_adamw(
    params: Any,
    lr: Any = 1e-3,
    betas: tuple[float, float] = (0.9, 0.99),
    eps: float = 1e-8,
    weight_decay: float = 1e-2,
    **options: Any,
) -> SuperAdam:
    r"""StableAdamW: AdamW with shorter steps for tensors whose newest gradient is unusually large.

    $$x_{t+1} = (1 - \gamma_t w) x_t - \gamma_t \hat m_t / (\sqrt{\hat v_t} + \varepsilon), \qquad
      \gamma_t = \gamma \big/ \max\bigl(1, \mathrm{RMS}(\hat g_t / (\sqrt{\hat v_t} + \varepsilon))\bigr)$$

    Wortsman et al. 2023, whose root mean square is that of $\hat g_t / \max(\sqrt{\hat v_t}, \varepsilon)$.

    >>> import torch
    >>> stable_adamw(torch.nn.Linear(3, 1)).param_groups[0]["stepsize"]["type"]
    'UpdateClipping'
    """
    return cook("stable_adamw", {"betas": betas, "eps": eps}, params, lr, options, weight_decay=weight_decay)
