r"""The methods of the literature, each a composition of the same parts.

Every builder returns a `SuperAdam`; what is not said in its signature (`maximize`, `foreach`, `clip`, …) is passed on. Where
torch has the method, names and defaults are torch's, and the result equals torch's.

>>> import torch
>>> model = torch.nn.Linear(3, 1)
>>> create("adamw", model, lr=1e-3, weight_decay=0.1)
SuperAdam(
  (11) g: Recursive(tau=0.0)
  (4)  H: SecondMoment(beta=0.999, lam=1e-08, bias_correction=True)
  (10) mu, alpha: BiasCorrected(beta=0.9, power=0.0)
  lr=0.001, weight_decay=0.1, clip=None, maximize=False
  2 tensors, 4 parameters
)
>>> for name, line in list_methods("ada*n*").items():
...     print(f"{name}: {line}")
adabound: Adam's learning rates between bounds that close in on SGD's
adagrad_norm: one learning rate from the summed gradient norms
"""

from __future__ import annotations

import fnmatch
import inspect
from collections.abc import Callable
from typing import Any

from superadam.estimators import Corrected, Staged, Transport
from superadam.matrices import (
    AccumulatedNorm,
    AdaBound,
    AdaDelta,
    AdaGrad,
    AMSGrad,
    Belief,
    DampedLBFGS,
    EstimateNorm,
    Identity,
    Matrix,
    SCAdaGrad,
    SecondMoment,
    Yogi,
)
from superadam.optimizer import SuperAdam
from superadam.parts import check, nearest
from superadam.presets import PRESETS
from superadam.schedules import BiasCorrected, Constant, Paper, Schedule, Storm

Builder = Callable[..., SuperAdam]
METHODS: dict[str, Builder] = {}
"""Every builder by name."""


def method(build: Builder) -> Builder:
    """Make a builder known to `create` and `list_methods`, under its own name."""
    METHODS[build.__name__] = build
    return build


def create(name: str, params: Any, *, preset: str | None = None, **options: Any) -> SuperAdam:
    """A method by name, optionally with the settings of one of the paper's experiments.

    Args:
        name: a name of `list_methods`.
        params: as for `SuperAdam`.
        preset: "cifar10", "cifar100", "imagenet", "wikitext2-lstm" or "wikitext2-transformer". Options given beside it win.
        options: the builder's, then those of `SuperAdam`.

    >>> import torch
    >>> opt = create("super_adam", torch.nn.Linear(3, 1), preset="imagenet", tau=1)
    >>> opt.param_groups[0]["lr"]
    0.01
    """
    if name not in METHODS:
        raise ValueError(f"Unknown method {name!r}: {nearest(name, METHODS)}")
    if preset is not None:
        options = {**_preset(name, preset, options), **options}
    return METHODS[name](params, **options)


def list_methods(pattern: str = "*") -> dict[str, str]:
    """The methods whose names match, each with a line on what it is.

    >>> list_methods("*storm*")
    {'storm': 'variance reduction with one learning rate from the summed gradient norms'}
    """
    names = fnmatch.filter(METHODS, pattern)
    if not names:
        raise ValueError(f"No method matches {pattern!r}: {nearest(pattern, METHODS)}")
    return {name: _headline(METHODS[name]) for name in sorted(names)}


def _headline(build: Builder) -> str:
    line = (inspect.getdoc(build) or "").splitlines()[0]
    return line.split(": ", 1)[1].rstrip(".")


def _preset(name: str, task: str, options: dict[str, Any]) -> dict[str, Any]:
    if task not in PRESETS:
        raise ValueError(f"Unknown preset {task!r}: {nearest(task, PRESETS)}")
    key = name
    if name == "super_adam":
        key = "super_adam tau=0" if options.get("tau", 0) == 0 else "super_adam tau=1"
    if key not in PRESETS[task]:
        raise ValueError(f"The paper has no settings of {name} for {task}: it has {', '.join(sorted(PRESETS[task]))}")
    return PRESETS[task][key]


def _betas(betas: tuple[float, float]) -> tuple[float, float]:
    for i, beta in enumerate(betas):
        if not 0 <= beta < 1:
            raise ValueError(f"Invalid beta parameter at index {i}: {beta}")
    return betas


@method
def super_adam(
    params: Any,
    lr: Any = 1e-3,
    *,
    tau: float = 0.0,
    k: float = 1.0,
    m: float = 100.0,
    c: float | None = None,
    matrix: Matrix | str = "SecondMoment",
    **options: Any,
) -> SuperAdam:
    r"""SUPER-ADAM: the paper's algorithm with the paper's schedules.

    $$x_{t+1} = x_t - \gamma\mu_t H_t^{-1} g_t$$ with any of the matrices, τ = 0 or 1 (Huang, Li and Huang 2021).

    >>> import torch
    >>> super_adam(torch.nn.Linear(3, 1), tau=1.0).two_point
    True
    """
    return SuperAdam(params, lr, tau=tau, matrix=matrix, schedule=Paper(k, m, c), **options)


@method
def sgd(
    params: Any,
    lr: Any = 1e-3,
    momentum: float = 0.0,
    dampening: float = 0.0,
    weight_decay: float = 0.0,
    **options: Any,
) -> SuperAdam:
    r"""SGD: momentum and nothing else.

    $$b_t = \mathrm{momentum}\; b_{t-1} + (1 - \mathrm{dampening}) \hat g_t, \quad b_1 = \hat g_1, \qquad x_{t+1} = x_t - \gamma b_t$$

    Here $g_t = b_t (1 - \mathrm{momentum})/(1 - \mathrm{dampening})$, with the factor in μ. Equals `torch.optim.SGD`.

    >>> import torch
    >>> sgd(torch.nn.Linear(3, 1), lr=0.1, momentum=0.9).param_groups[0]["schedule"]["alpha"]
    0.09999999999999998
    """
    check(0 <= momentum < 1, "momentum", momentum, "0 <= momentum < 1")
    check(0 <= dampening < 1, "dampening", dampening, "0 <= dampening < 1")
    ratio = (1 - momentum) / (1 - dampening) if momentum > 0 else 1.0
    return SuperAdam(
        params,
        lr,
        matrix=Identity(),
        schedule=Constant(mu=1 / ratio, alpha=1 - momentum, first=ratio),
        weight_decay=weight_decay,
        **{"decoupled_weight_decay": False, **options},
    )


@method
def adagrad(
    params: Any,
    lr: Any = 1e-2,
    lr_decay: float = 0.0,
    weight_decay: float = 0.0,
    initial_accumulator_value: float = 0.0,
    eps: float = 1e-10,
    **options: Any,
) -> SuperAdam:
    r"""AdaGrad: a learning rate for every coordinate, from all its squared gradients.

    $$x_{t+1} = x_t - \gamma \hat g_t / (\sqrt{\textstyle\sum_i \hat g_i^2} + \varepsilon)$$ (Duchi et al. 2011). Equals
    `torch.optim.Adagrad`.

    >>> import torch
    >>> adagrad(torch.nn.Linear(3, 1)).param_groups[0]["matrix"]["type"]
    'AdaGrad'
    """
    return SuperAdam(
        params,
        lr,
        matrix=AdaGrad(lam=eps, v_0=initial_accumulator_value),
        schedule=Constant(alpha=1.0, decay=lr_decay),
        weight_decay=weight_decay,
        **{"decoupled_weight_decay": False, **options},
    )


@method
def sc_adagrad(params: Any, lr: Any = 0.1, *, xi1: float = 0.1, xi2: float = 0.1, **options: Any) -> SuperAdam:
    r"""SC-AdaGrad: AdaGrad without the root, for strongly convex problems.

    $$x_{t+1} = x_t - \gamma \hat g_t / (v_t + \xi_1 e^{-\xi_2 v_t}), \quad v_t = \textstyle\sum_i \hat g_i^2$$
    (Mukkamala and Hein 2017).

    >>> import torch
    >>> sc_adagrad(torch.nn.Linear(3, 1), xi1=0.2).param_groups[0]["matrix"]["xi1"]
    0.2
    """
    return SuperAdam(params, lr, matrix=SCAdaGrad(xi1, xi2), schedule=Constant(alpha=1.0), **options)


@method
def sadagrad(
    params: Any,
    lr: Any = 0.1,
    *,
    length: int = 100,
    growth: float = 2.0,
    shrink: float = 0.5,
    lam: float = 1.0,
    **options: Any,
) -> SuperAdam:
    r"""SAdaGrad: AdaGrad in stages, each from the average of the last one.

    $$x_{t+1} = x_{\text{stage}} - \gamma_k H_t^{-1} \textstyle\sum_{i \text{ in stage}} \hat g_i, \quad
      H_t = \lambda + \sqrt{\textstyle\sum_{i \text{ in stage}} \hat g_i^2}$$ (Chen et al. 2018, with stages of given length).

    >>> import torch
    >>> sadagrad(torch.nn.Linear(3, 1), length=20).param_groups[0]["estimator"]["length"]
    20
    """
    return SuperAdam(
        params,
        lr,
        estimator=Staged(length, growth, shrink),
        matrix=AdaGrad(lam=lam),
        schedule=Constant(alpha=1.0),
        **options,
    )


@method
def adadelta(
    params: Any, lr: Any = 1.0, rho: float = 0.9, eps: float = 1e-6, weight_decay: float = 0.0, **options: Any
) -> SuperAdam:
    r"""AdaDelta: the ratio of averaged steps to averaged gradients.

    $$x_{t+1} = x_t - \gamma \sqrt{u_{t-1}+\varepsilon}\, \hat g_t / \sqrt{v_t+\varepsilon}$$ (Zeiler 2012). Equals
    `torch.optim.Adadelta`.

    >>> import torch
    >>> adadelta(torch.nn.Linear(3, 1), rho=0.95).param_groups[0]["matrix"]["rho"]
    0.95
    """
    return SuperAdam(
        params,
        lr,
        matrix=AdaDelta(rho, eps),
        schedule=Constant(alpha=1.0),
        weight_decay=weight_decay,
        **{"decoupled_weight_decay": False, **options},
    )


@method
def adam(
    params: Any,
    lr: Any = 1e-3,
    betas: tuple[float, float] = (0.9, 0.999),
    eps: float = 1e-8,
    weight_decay: float = 0.0,
    *,
    matrix: Matrix | None = None,
    **options: Any,
) -> SuperAdam:
    r"""Adam: averages of the gradient and of its square, both corrected for their start.

    $$x_{t+1} = x_t - \gamma \hat m_t / (\sqrt{\hat v_t} + \varepsilon)$$ (Kingma and Ba 2015). Equals `torch.optim.Adam`, whose
    weight decay is added to the gradient.

    >>> import torch
    >>> adam(torch.nn.Linear(3, 1)).param_groups[0]["matrix"]["bias_correction"]
    True
    """
    beta1, beta2 = _betas(betas)
    return SuperAdam(
        params,
        lr,
        matrix=matrix or SecondMoment(beta2, eps, bias_correction=True),
        schedule=BiasCorrected(beta1),
        weight_decay=weight_decay,
        **{"decoupled_weight_decay": False, **options},
    )


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

    $$x_{t+1} = (1 - \gamma w) x_t - \gamma \hat m_t / (\sqrt{\hat v_t} + \varepsilon)$$ (Loshchilov and Hutter 2019). Equals
    `torch.optim.AdamW`.

    >>> import torch
    >>> adamw(torch.nn.Linear(3, 1)).param_groups[0]["decoupled_weight_decay"]
    True
    """
    return adam(params, lr, betas, eps, weight_decay, **{"decoupled_weight_decay": True, **options})


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

    $$x_{t+1} = x_t - \gamma \hat m_t / (\sqrt{\max_{i \le t} v_i/(1-\beta_2^t)} + \varepsilon)$$ (Reddi et al. 2018). Equals
    `torch.optim.Adam(amsgrad=True)`; `bias_correction=False` is equation (4) of the SUPER-ADAM paper.

    >>> import torch
    >>> amsgrad(torch.nn.Linear(3, 1)).param_groups[0]["matrix"]["type"]
    'AMSGrad'
    """
    beta1, beta2 = _betas(betas)
    if not bias_correction:
        options = {"decoupled_weight_decay": False, "schedule": _uncorrected(beta1), **options}
        return SuperAdam(params, lr, matrix=AMSGrad(beta2, eps), weight_decay=weight_decay, **options)
    matrix = AMSGrad(beta2, eps, bias_correction=True)
    return adam(params, lr, betas, eps, weight_decay, matrix=matrix, **options)


def _uncorrected(beta: float) -> Constant:
    """An average that starts at zero and is left so: g_1 = (1-β) ĝ_1."""
    return Constant(alpha=1 - beta, first=1 - beta)


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

    $$v_t = v_{t-1} - (1-\beta_2)\,\mathrm{sign}(v_{t-1} - \hat g_t^2)\, \hat g_t^2$$ (Zaheer et al. 2018; published packages
    add Adam's corrections: `bias_correction=True`).

    >>> import torch
    >>> yogi(torch.nn.Linear(3, 1)).param_groups[0]["matrix"]["v_0"]
    1e-06
    """
    beta1, beta2 = _betas(betas)
    return SuperAdam(
        params,
        lr,
        matrix=Yogi(beta2, eps, initial_accumulator, bias_correction),
        schedule=BiasCorrected(beta1) if bias_correction else _uncorrected(beta1),
        weight_decay=weight_decay,
        **{"decoupled_weight_decay": False, **options},
    )


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

    $$x_{t+1} = x_t - \gamma m_t / (\hat v_t^{\,p} + \varepsilon)$$ (Chen and Gu 2018; their code adds Adam's corrections and has
    $(\hat v_t^{1/2} + \varepsilon)^{2p}$: `bias_correction=True, eps_inside=True`).

    >>> import torch
    >>> padam(torch.nn.Linear(3, 1)).param_groups[0]["matrix"]["power"]
    0.125
    """
    beta1, beta2 = _betas(betas)
    return SuperAdam(
        params,
        lr,
        matrix=AMSGrad(beta2, eps, partial, bias_correction, eps_inside),
        schedule=BiasCorrected(beta1) if bias_correction else _uncorrected(beta1),
        weight_decay=weight_decay,
        **{"decoupled_weight_decay": False, **options},
    )


@method
def generalized_adam(
    params: Any,
    lr: Any = 1e-3,
    *,
    matrix: Matrix | str | None = None,
    schedule: Schedule | str | None = None,
    **options: Any,
) -> SuperAdam:
    r"""generalized Adam: momentum with any second moment; AdaFom by default.

    $$x_{t+1} = x_t - \gamma_t m_t / \sqrt{\hat v_t}, \quad \hat v_t = \tfrac1t \textstyle\sum_i \hat g_i^2, \quad
      \gamma_t = \gamma/\sqrt t$$ (Chen et al. 2019).

    >>> import torch
    >>> generalized_adam(torch.nn.Linear(3, 1)).param_groups[0]["matrix"]["mean"]
    True
    """
    matrix = matrix if matrix is not None else AdaGrad(lam=1e-8, mean=True)
    schedule = schedule if schedule is not None else BiasCorrected(0.9, power=0.5)
    return SuperAdam(params, lr, matrix=matrix, schedule=schedule, **options)


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
      \gamma^*(1+\tfrac{1}{st})\bigr) m_t$$ (Luo et al. 2019), γ* = `final_lr`, s = `gamma`. `bias_correction` corrects
    $m_t$ and $v_t$. The published code also divides by $1-\beta_1^t$ inside the clip; that is not offered.

    >>> import torch
    >>> adabound(torch.nn.Linear(3, 1)).param_groups[0]["matrix"]["final"]
    100.0
    """
    beta1, beta2 = _betas(betas)
    if not lr > 0:
        raise ValueError(f"Invalid learning rate: {lr} (the bounds are relative to it, so it must be positive)")
    return SuperAdam(
        params,
        lr,
        matrix=AdaBound(beta2, eps, final_lr / float(lr), gamma, bias_correction),
        schedule=BiasCorrected(beta1) if bias_correction else _uncorrected(beta1),
        weight_decay=weight_decay,
        **{"decoupled_weight_decay": False, **options},
    )


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
      x_{t+1} = x_t - \gamma \hat m_t / (\sqrt{\hat v_t} + \varepsilon)$$ (Zhuang et al. 2020, decoupled weight decay).

    >>> import torch
    >>> adabelief(torch.nn.Linear(3, 1)).param_groups[0]["matrix"]["eps"]
    1e-16
    """
    beta1, beta2 = _betas(betas)
    matrix = Belief(beta1, beta2, lam=eps, eps=eps, bias_correction=True)
    return SuperAdam(params, lr, matrix=matrix, schedule=BiasCorrected(beta1), weight_decay=weight_decay, **options)


@method
def adagrad_norm(params: Any, lr: Any = 1.0, *, b_0: float = 0.1, **options: Any) -> SuperAdam:
    r"""AdaGrad-Norm: one learning rate from the summed gradient norms.

    $$x_{t+1} = x_t - \gamma \hat g_t / b_t, \quad b_t^2 = b_0^2 + \textstyle\sum_{i \le t} \|\hat g_i\|^2$$ (Ward et al. 2019).

    >>> import torch
    >>> adagrad_norm(torch.nn.Linear(3, 1), b_0=0.5).param_groups[0]["matrix"]["omega"]
    0.25
    """
    return SuperAdam(params, lr, matrix=AccumulatedNorm(omega=b_0**2), schedule=Constant(alpha=1.0), **options)


@method
def adaptive_sgd(
    params: Any, lr: Any = 1.0, *, k: float = 1.0, omega: float = 1.0, eps: float = 0.0, **options: Any
) -> SuperAdam:
    r"""adaptive SGD: one learning rate from the norms of the past gradients only.

    $$x_{t+1} = x_t - k \hat g_t / (\omega + \textstyle\sum_{i < t} \|\hat g_i\|^2)^{1/2+\varepsilon}$$ (Li and Orabona 2019), times
    `lr`.

    >>> import torch
    >>> adaptive_sgd(torch.nn.Linear(3, 1), eps=0.1).param_groups[0]["matrix"]["power"]
    0.6
    """
    matrix = AccumulatedNorm(0.5 + eps, omega, k, past=True)
    return SuperAdam(params, lr, matrix=matrix, schedule=Constant(alpha=1.0), **options)


@method
def storm(
    params: Any, lr: Any = 1.0, *, k: float = 10.0, omega: float = 6.0, c: float = 100.0, **options: Any
) -> SuperAdam:
    r"""STORM: variance reduction with one learning rate from the summed gradient norms.

    $$\eta_t = k/(\omega + \textstyle\sum_{i \le t} \|\hat g_i\|^2)^{1/3}, \quad x_{t+1} = x_t - \eta_t g_t, \quad
      g_{t+1} = \hat g_{t+1} + (1 - c\eta_t^2)(g_t - \nabla f(x_t; \xi_{t+1}))$$ (Cutkosky and Orabona 2019), with
    $c\eta_t^2$ capped at 1. `lr` multiplies the step only.

    >>> import torch
    >>> storm(torch.nn.Linear(3, 1)).two_point
    True
    """
    matrix = AccumulatedNorm(1 / 3, omega, k)
    return SuperAdam(params, lr, tau=1.0, matrix=matrix, schedule=Storm(c), **options)


@method
def nigt(params: Any, lr: Any = 1e-2, *, momentum: float = 0.9, **options: Any) -> SuperAdam:
    r"""NIGT: normalised momentum of gradients taken ahead.

    $$g_t = \beta g_{t-1} + (1-\beta) \nabla f\bigl(x_t + \tfrac{\beta}{1-\beta}(x_t - x_{t-1})\bigr), \quad
      x_{t+1} = x_t - \gamma g_t/\|g_t\|$$ (Cutkosky and Mehta 2020).

    >>> import torch
    >>> nigt(torch.nn.Linear(3, 1)).param_groups[0]["estimator"]["type"]
    'Transport'
    """
    check(0 <= momentum < 1, "momentum", momentum, "0 <= momentum < 1")
    schedule = Constant(alpha=1 - momentum)
    return SuperAdam(params, lr, estimator=Transport(), matrix=EstimateNorm(), schedule=schedule, **options)


@method
def adam_plus(
    params: Any, lr: Any = 0.1, *, beta: float = 0.1, a: float = 1.0, eps_0: float = 1e-8, **options: Any
) -> SuperAdam:
    r"""Adam⁺: gradients taken ahead, with the root of their norm as learning rate.

    $$z_{t+1} = (1-\beta) z_t + \beta \nabla f\bigl((1-\tfrac1\beta) x_t + \tfrac1\beta x_{t+1}\bigr), \quad
      x_{t+1} = x_t - \gamma\beta^a z_t / \max(\|z_t\|^{1/2}, \varepsilon_0)$$ (Liu et al. 2020).

    >>> import torch
    >>> adam_plus(torch.nn.Linear(3, 1)).param_groups[0]["matrix"]["power"]
    0.5
    """
    check(0 < beta <= 1, "beta", beta, "0 < beta <= 1")
    matrix = EstimateNorm(power=0.5, floor=eps_0, scale=beta**-a)
    return SuperAdam(params, lr, estimator=Transport(), matrix=matrix, schedule=Constant(alpha=beta), **options)


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
    previous_batch: bool = False,
    **options: Any,
) -> SuperAdam:
    r"""MARS: AdamW on a gradient that is corrected by a little variance reduction.

    $$c_t = \hat g_t + \gamma \tfrac{\beta_1}{1-\beta_1} (\hat g_t - \nabla f(x_{t-1}; \xi_t))$$, clipped to norm 1 in each tensor,
    takes the gradient's place in AdamW (Yuan et al. 2024).

    >>> import torch
    >>> mars(torch.nn.Linear(3, 1)).two_point
    True
    """
    beta1, beta2 = _betas(betas)
    return SuperAdam(
        params,
        lr,
        estimator=Corrected(gamma, 1 - beta1, clip_corrected, previous_batch),
        matrix=SecondMoment(beta2, eps, bias_correction=True),
        schedule=BiasCorrected(beta1),
        weight_decay=weight_decay,
        **options,
    )


@method
def mars_approx(params: Any, lr: Any = 3e-3, **options: Any) -> SuperAdam:
    r"""MARS-approx: MARS with the previous batch's gradient, one evaluation per step.

    $$c_t = \hat g_t + \gamma \tfrac{\beta_1}{1-\beta_1} (\hat g_t - \hat g_{t-1})$$ (Yuan et al. 2024).

    >>> import torch
    >>> mars_approx(torch.nn.Linear(3, 1)).two_point
    False
    """
    return mars(params, lr, previous_batch=True, **options)


@method
def sdlbfgs(
    params: Any,
    lr: Any = 0.1,
    *,
    history: int = 10,
    delta: float = 0.01,
    tau: float = 0.0,
    alpha: float = 1.0,
    **options: Any,
) -> SuperAdam:
    r"""SdLBFGS: stochastic damped L-BFGS, a matrix that is not diagonal.

    $$x_{t+1} = x_t - \gamma H_t^{-1} g_t$$ with $H_t^{-1}$ from the last pairs of moves and gradient differences (Wang et al.
    2017), with momentum (`alpha`) or variance reduction (`tau`) if asked.

    >>> import torch
    >>> sdlbfgs(torch.nn.Linear(3, 1)).two_point
    True
    """
    return SuperAdam(params, lr, tau=tau, matrix=DampedLBFGS(history, delta), schedule=Constant(alpha=alpha), **options)
