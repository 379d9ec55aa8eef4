"""Adam and its variants: averages of the gradient and of a second moment."""

from __future__ import annotations

from typing import Any

from torch import Tensor, nn

from superadam.matrices import AdaBound, AdaGrad, AMSGrad, Belief, Matrix, SecondMoment, Yogi
from superadam.methods import Twin, recipe
from superadam.optimizer import SuperAdam
from superadam.schedules import BiasCorrected, Constant, Schedule
from superadam.zoo.registry import average, checked, compose, cook, corrected, method

__all__ = ["adabelief", "adabound", "adam", "adamw", "amsgrad", "generalized_adam", "padam", "yogi"]


@recipe(
    "adam",
    scale=corrected,
    twin=Twin("torch.optim.Adam", ("betas", "eps"), {"exp_avg": "g", "exp_avg_sq": "v"}, {"amsgrad": False}, True),
)
def _adam(betas: tuple[float, float], eps: float) -> dict[str, Any]:
    beta1, beta2 = checked(betas)
    return {"matrix": SecondMoment(beta2, eps, bias_correction=True), "schedule": BiasCorrected(beta1)}


@method
def adam(
    params: Any,
    lr: Any = 1e-3,
    betas: tuple[float, float] = (0.9, 0.999),
    eps: float = 1e-8,
    weight_decay: float = 0.0,
    **options: Any,
) -> SuperAdam:
    r"""Adam: averages of the gradient and of its square, both corrected for their start.

    $$x_{t+1} = x_t - \gamma \hat m_t / (\sqrt{\hat v_t} + \varepsilon)$$

    Kingma and Ba 2015. Equals `torch.optim.Adam`, whose weight decay is added to the gradient.

    >>> import torch
    >>> adam(torch.nn.Linear(3, 1)).param_groups[0]["matrix"]["bias_correction"]
    True
    """
    own = {"betas": betas, "eps": eps}
    return cook("adam", own, params, lr, options, weight_decay=weight_decay, decoupled_weight_decay=False)


@method
def adamw(
    params: Any,
    lr: Any = 1e-3,
    betas: tuple[float, float] = (0.9, 0.999),
    eps: float = 1e-8,
    weight_decay: float = 1e-2,
    **options: Any,
) -> SuperAdam:
    r"""AdamW: Adam with decoupled weight decay.

    $$x_{t+1} = (1 - \gamma w) x_t - \gamma \hat m_t / (\sqrt{\hat v_t} + \varepsilon)$$

    Loshchilov and Hutter 2019. Equals `torch.optim.AdamW`.

    >>> import torch
    >>> adamw(torch.nn.Linear(3, 1)).param_groups[0]["decoupled_weight_decay"]
    True
    """
    return adam(params, lr, betas, eps, weight_decay, **{"decoupled_weight_decay": True, **options})


@recipe(
    "amsgrad",
    scale=corrected,
    twin=Twin(
        "torch.optim.Adam(amsgrad=True)",
        ("betas", "eps"),
        {"exp_avg": "g", "exp_avg_sq": "v", "max_exp_avg_sq": "v_max"},
        {"amsgrad": True},
        decouples=True,
    ),
)
def _amsgrad(betas: tuple[float, float], eps: float, bias_correction: bool) -> dict[str, Any]:
    beta1, beta2 = checked(betas)
    matrix = AMSGrad(beta2, eps, bias_correction=bias_correction)
    return {"matrix": matrix, "schedule": average(beta1, bias_correction)}


@method
def amsgrad(
    params: Any,
    lr: Any = 1e-3,
    betas: tuple[float, float] = (0.9, 0.999),
    eps: float = 1e-8,
    weight_decay: float = 0.0,
    *,
    bias_correction: bool = True,
    **options: Any,
) -> SuperAdam:
    r"""AMSGrad: Adam whose second moment never shrinks.

    $$x_{t+1} = x_t - \gamma \hat m_t / (\sqrt{\max_{i \le t} v_i/(1-\beta_2^t)} + \varepsilon)$$

    Reddi et al. 2018. Equals `torch.optim.Adam(amsgrad=True)`; `bias_correction=False` is equation (4) of the
    SUPER-ADAM paper.

    >>> import torch
    >>> amsgrad(torch.nn.Linear(3, 1)).param_groups[0]["matrix"]["type"]
    'AMSGrad'
    """
    own = {"betas": betas, "eps": eps, "bias_correction": bias_correction}
    return cook("amsgrad", own, params, lr, options, weight_decay=weight_decay, decoupled_weight_decay=False)


@recipe("yogi", scale=corrected)
def _yogi(betas: tuple[float, float], eps: float, initial_accumulator: float, bias_correction: bool) -> dict[str, Any]:
    beta1, beta2 = checked(betas)
    matrix = Yogi(beta2, eps, initial_accumulator, bias_correction)
    return {"matrix": matrix, "schedule": average(beta1, bias_correction)}


@method
def yogi(
    params: Any,
    lr: Any = 1e-2,
    betas: tuple[float, float] = (0.9, 0.999),
    eps: float = 1e-3,
    weight_decay: float = 0.0,
    *,
    initial_accumulator: float = 1e-6,
    bias_correction: bool = False,
    **options: Any,
) -> SuperAdam:
    r"""Yogi: Adam whose second moment changes slowly in both directions.

    $$v_t = v_{t-1} - (1-\beta_2)\,\mathrm{sign}(v_{t-1} - \hat g_t^2)\, \hat g_t^2$$

    Zaheer et al. 2018. Published packages add Adam's corrections: `bias_correction=True`.

    Args:
        initial_accumulator: v before the first gradient.

    >>> import torch
    >>> yogi(torch.nn.Linear(3, 1)).param_groups[0]["matrix"]["v_0"]
    1e-06
    """
    own = {
        "betas": betas,
        "eps": eps,
        "initial_accumulator": initial_accumulator,
        "bias_correction": bias_correction,
    }
    return cook("yogi", own, params, lr, options, weight_decay=weight_decay, decoupled_weight_decay=False)


@recipe("padam", scale=corrected)
def _padam(
    betas: tuple[float, float], eps: float, partial: float, bias_correction: bool, eps_inside: bool
) -> dict[str, Any]:
    beta1, beta2 = checked(betas)
    matrix = AMSGrad(beta2, eps, partial, bias_correction, eps_inside)
    return {"matrix": matrix, "schedule": average(beta1, bias_correction)}


@method
def padam(
    params: Any,
    lr: Any = 0.1,
    betas: tuple[float, float] = (0.9, 0.999),
    eps: float = 1e-8,
    weight_decay: float = 0.0,
    *,
    partial: float = 0.125,
    bias_correction: bool = False,
    eps_inside: bool = False,
    **options: Any,
) -> SuperAdam:
    r"""Padam: AMSGrad with the second moment to a power p ≤ 1/2.

    $$x_{t+1} = x_t - \gamma m_t / (\hat v_t^{\,p} + \varepsilon)$$

    Chen and Gu 2018. `bias_correction` corrects $m_t$ and $\hat v_t$ as Adam does (published packages leave the factor
    $(1-\beta_2^t)^{1/2}$ outside of the power); `eps_inside` has $(\hat v_t^{1/2} + \varepsilon)^{2p}$.

    Args:
        partial: p, the power of the second moment.
        eps_inside: use (v̂_t^(1/2) + ε)^(2p) instead of v̂_t^p + ε.

    >>> import torch
    >>> padam(torch.nn.Linear(3, 1)).param_groups[0]["matrix"]["power"]
    0.125
    """
    own = {
        "betas": betas,
        "eps": eps,
        "partial": partial,
        "bias_correction": bias_correction,
        "eps_inside": eps_inside,
    }
    return cook("padam", own, params, lr, options, weight_decay=weight_decay, decoupled_weight_decay=False)


@method
def generalized_adam(
    params: Any,
    lr: Any = 3e-2,
    *,
    matrix: Matrix | str | None = None,
    schedule: Schedule | str | None = None,
    **options: Any,
) -> SuperAdam:
    r"""generalized Adam: momentum with any second moment; AdaFom by default.

    $$x_{t+1} = x_t - \gamma_t m_t / (\sqrt{\hat v_t} + \varepsilon), \quad
      \hat v_t = \tfrac1t \textstyle\sum_i \hat g_i^2, \quad
      \gamma_t = \gamma/\sqrt t$$

    Chen et al. 2019. The default lr is more than ten times that of other methods, because $\sqrt t$ divides it.

    >>> import torch
    >>> generalized_adam(torch.nn.Linear(3, 1)).param_groups[0]["matrix"]["mean"]
    True
    """
    matrix = matrix if matrix is not None else AdaGrad(lam=1e-8, mean=True)
    schedule = schedule if schedule is not None else Constant(alpha=0.1, first=0.1, power=0.5)
    return compose(params, lr, options, matrix=matrix, schedule=schedule)


def _number(lr: Any) -> float:
    if isinstance(lr, str):
        raise ValueError(f"Invalid lr: {lr!r} (expected a number: AdaBound's bounds are relative to it)")
    return float(lr.detach() if isinstance(lr, Tensor) else lr)


@recipe("adabound", scale=corrected)
def _adabound(
    betas: tuple[float, float], final_lr: float, gamma: float, eps: float, bias_correction: bool, base_lr: float
) -> dict[str, Any]:
    beta1, beta2 = checked(betas)
    if not base_lr > 0:
        raise ValueError(f"Invalid learning rate: {base_lr} (the bounds are relative to it, so it must be positive)")
    matrix = AdaBound(beta2, eps, final_lr / base_lr, gamma, bias_correction)
    return {"matrix": matrix, "schedule": average(beta1, bias_correction)}


@method
def adabound(
    params: Any,
    lr: float = 1e-3,
    betas: tuple[float, float] = (0.9, 0.999),
    final_lr: float = 0.1,
    gamma: float = 1e-3,
    eps: float = 1e-8,
    weight_decay: float = 0.0,
    *,
    bias_correction: bool = False,
    **options: Any,
) -> SuperAdam:
    r"""AdaBound: Adam's learning rates between bounds that close in on SGD's.

    $$x_{t+1} = x_t - \mathrm{clip}\bigl(\gamma/(\sqrt{v_t}+\varepsilon),\; \gamma^*(1-\tfrac{1}{st+1}),\;
      \gamma^*(1+\tfrac{1}{st})\bigr) m_t$$

    Luo et al. 2019. γ* = `final_lr`, s = `gamma`. `bias_correction` corrects $m_t$ and $v_t$. The published code
    also divides by $1-\beta_1^t$ inside the clip; this builder does not.

    Args:
        final_lr: γ*, the final learning rate.
        gamma: s, how fast the bounds close in.

    >>> import torch
    >>> adabound(torch.nn.Linear(3, 1)).param_groups[0]["matrix"]["final"]
    100.0
    """
    if not isinstance(params, nn.Module):  # the bounds are the same for groups with a learning rate of their own
        params = [{"base_lr": _number(p["lr"]), **p} if isinstance(p, dict) and "lr" in p else p for p in params]
    own = {
        "betas": betas,
        "final_lr": final_lr,
        "gamma": gamma,
        "eps": eps,
        "bias_correction": bias_correction,
        "base_lr": _number(lr),
    }
    return cook("adabound", own, params, lr, options, weight_decay=weight_decay, decoupled_weight_decay=False)


@recipe("adabelief", scale=corrected)
def _adabelief(betas: tuple[float, float], eps: float) -> dict[str, Any]:
    beta1, beta2 = checked(betas)
    return {"matrix": Belief(beta1, beta2, lam=eps, eps=eps, bias_correction=True), "schedule": BiasCorrected(beta1)}


@method
def adabelief(
    params: Any,
    lr: Any = 1e-3,
    betas: tuple[float, float] = (0.9, 0.999),
    eps: float = 1e-16,
    weight_decay: float = 0.0,
    **options: Any,
) -> SuperAdam:
    r"""AdaBelief: Adam with the gradient's distance to its average in place of its size.

    $$v_t = \beta_2 v_{t-1} + (1-\beta_2)(\hat g_t - m_t)^2 + \varepsilon, \qquad
      x_{t+1} = x_t - \gamma \hat m_t / (\sqrt{\hat v_t} + \varepsilon)$$

    Zhuang et al. 2020, decoupled weight decay.

    >>> import torch
    >>> adabelief(torch.nn.Linear(3, 1)).param_groups[0]["matrix"]["eps"]
    1e-16
    """
    return cook("adabelief", {"betas": betas, "eps": eps}, params, lr, options, weight_decay=weight_decay)
