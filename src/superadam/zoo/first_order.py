"""SGD, AdaGrad and its variants: the newest gradient, scaled by all gradients so far."""

from __future__ import annotations

from typing import Any

from superadam._state.recipes import recipe
from superadam._state.twins import Twin
from superadam.estimators import Nesterov, Summed
from superadam.iterates import Staged
from superadam.matrices import AccumulatedNorm, AdaDelta, AdaGrad, Identity, SCAdaGrad
from superadam.optimizer import SuperAdam
from superadam.parts import check
from superadam.schedules import Constant
from superadam.zoo.registry import compose, cook, method

__all__ = ["adadelta", "adagrad", "adagrad_norm", "adaptive_sgd", "sadagrad", "sc_adagrad", "sgd"]


def _ratio(t: Any, momentum: float, dampening: float, **others: Any) -> float:
    """g_t over torch's buffer b_t; 0 without momentum, where there is no buffer."""
    return (1 - momentum) / (1 - dampening) if momentum > 0 else 0.0


@recipe(
    "sgd",
    scale=_ratio,
    twin=Twin(
        "torch.optim.SGD", ("momentum", "dampening"), {"momentum_buffer": "g"}, {"nesterov": False}, counts=False
    ),
)
def _sgd(momentum: float, dampening: float, nesterov: bool = False) -> dict[str, Any]:
    check(0 <= momentum < 1, "momentum", momentum, "0 <= momentum < 1")
    check(0 <= dampening < 1, "dampening", dampening, "0 <= dampening < 1")
    if nesterov and (momentum == 0 or dampening != 0):
        raise ValueError("Nesterov momentum requires a momentum and zero dampening")
    ratio = _ratio(1, momentum, dampening) or 1.0
    estimator = {"estimator": Nesterov()} if nesterov else {}
    return {**estimator, "matrix": Identity(ratio), "schedule": Constant(alpha=1 - momentum, first=ratio)}


@method
def sgd(
    params: Any,
    lr: Any = None,
    momentum: float = 0.0,
    dampening: float = 0.0,
    weight_decay: float = 0.0,
    nesterov: bool = False,
    **options: Any,
) -> SuperAdam:
    r"""SGD: gradient descent with optional momentum.

    $$b_t = \mathrm{momentum}\; b_{t-1} + (1 - \mathrm{dampening}) \hat g_t, \quad b_1 = \hat g_1, \qquad
      x_{t+1} = x_t - \gamma b_t$$

    Here $g_t = b_t (1 - \mathrm{momentum})/(1 - \mathrm{dampening})$, with the factor in $H_t$; `clip` bounds $g_t$.
    With `nesterov` the step goes along $\hat g_t + \mathrm{momentum}\, b_t$. Equals `torch.optim.SGD`, except for the
    default lr: torch's 1e-3 hardly trains. `lr=None` is 0.1 without momentum; with momentum it is smaller, so that
    steps have the same length.

    Args:
        dampening: 1 - dampening is the weight of the newest gradient.
        nesterov: step along the newest gradient plus momentum times b_t.

    >>> import torch
    >>> sgd(torch.nn.Linear(3, 1), lr=0.1, momentum=0.9).param_groups[0]["schedule"]["alpha"]
    0.09999999999999998
    """
    own = {"momentum": momentum, "dampening": dampening, "nesterov": nesterov}
    return cook("sgd", own, params, lr, options, weight_decay=weight_decay, decoupled_weight_decay=False)


@recipe(
    "adagrad",
    twin=Twin("torch.optim.Adagrad", ("lr_decay", "initial_accumulator_value", "eps"), {"sum": "v"}, {}, begins=True),
)
def _adagrad(lr_decay: float, initial_accumulator_value: float, eps: float) -> dict[str, Any]:
    schedule = Constant(alpha=1.0, decay=lr_decay)
    return {"matrix": AdaGrad(lam=eps, v_0=initial_accumulator_value), "schedule": schedule}


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

    $$x_{t+1} = x_t - \gamma \hat g_t / (\sqrt{\textstyle\sum_i \hat g_i^2} + \varepsilon)$$

    Duchi et al. 2011. Equals `torch.optim.Adagrad`.

    Args:
        lr_decay: the learning rate falls like 1/(1 + (t - 1) lr_decay).
        initial_accumulator_value: first value of the sum of squares.

    >>> import torch
    >>> adagrad(torch.nn.Linear(3, 1)).param_groups[0]["matrix"]["type"]
    'AdaGrad'
    """
    own = {"lr_decay": lr_decay, "initial_accumulator_value": initial_accumulator_value, "eps": eps}
    return cook("adagrad", own, params, lr, options, weight_decay=weight_decay, decoupled_weight_decay=False)


@method
def sc_adagrad(params: Any, lr: Any = 0.1, *, xi1: float = 0.1, xi2: float = 0.1, **options: Any) -> SuperAdam:
    r"""SC-AdaGrad: AdaGrad without the root, for strongly convex problems.

    $$x_{t+1} = x_t - \gamma \hat g_t / (v_t + \xi_1 e^{-\xi_2 v_t}), \quad v_t = \textstyle\sum_i \hat g_i^2$$

    Mukkamala and Hein 2017.

    Args:
        xi1: ξ₁, added where v_t is zero.
        xi2: ξ₂, how fast that term falls with v_t.

    >>> import torch
    >>> sc_adagrad(torch.nn.Linear(3, 1), xi1=0.2).param_groups[0]["matrix"]["xi1"]
    0.2
    """
    return compose(params, lr, options, matrix=SCAdaGrad(xi1, xi2), schedule=Constant(alpha=1.0))


@method
def sadagrad(
    params: Any,
    lr: Any = 1.0,
    *,
    length: int = 100,
    growth: float = 2.0,
    shrink: float = 0.5,
    lam: float = 1.0,
    **options: Any,
) -> SuperAdam:
    r"""SAdaGrad: AdaGrad in stages, each from the average of the last one.

    $$x_{t+1} = x_{\text{stage}} - \gamma_k H_t^{-1} \textstyle\sum_{i \text{ in stage}} \hat g_i, \quad
      H_t = \lambda + \sqrt{\textstyle\sum_{i \text{ in stage}} \hat g_i^2}$$

    Chen et al. 2018, with stages whose lengths are given.

    Args:
        length: number of steps of the first stage.
        growth: number of steps of a stage, divided by that of the stage before.
        shrink: learning rate of a stage, divided by that of the stage before.
        lam: λ, added to the root.

    >>> import torch
    >>> sadagrad(torch.nn.Linear(3, 1), length=20).param_groups[0]["iterate"]["length"]
    20
    """
    return compose(
        params,
        lr,
        options,
        estimator=Summed(),
        iterate=Staged(length, growth, shrink),
        matrix=AdaGrad(lam=lam),
        schedule=Constant(alpha=1.0),
        decoupled_weight_decay=False,
    )


@recipe("adadelta", twin=Twin("torch.optim.Adadelta", ("rho", "eps"), {"square_avg": "v", "acc_delta": "u"}, {}))
def _adadelta(rho: float, eps: float) -> dict[str, Any]:
    return {"matrix": AdaDelta(rho, eps), "schedule": Constant(alpha=1.0)}


@method
def adadelta(
    params: Any, lr: Any = 1.0, rho: float = 0.9, eps: float = 1e-6, weight_decay: float = 0.0, **options: Any
) -> SuperAdam:
    r"""AdaDelta: the ratio of averaged steps to averaged gradients.

    $$x_{t+1} = x_t - \gamma \sqrt{u_{t-1}+\varepsilon}\, \hat g_t / \sqrt{v_t+\varepsilon}$$

    Zeiler 2012. Equals `torch.optim.Adadelta`.

    Args:
        rho: weight of the old averages.

    >>> import torch
    >>> adadelta(torch.nn.Linear(3, 1), rho=0.95).param_groups[0]["matrix"]["rho"]
    0.95
    """
    own = {"rho": rho, "eps": eps}
    return cook("adadelta", own, params, lr, options, weight_decay=weight_decay, decoupled_weight_decay=False)


@method
def adagrad_norm(params: Any, lr: Any = 1.0, *, b_0: float = 0.1, **options: Any) -> SuperAdam:
    r"""AdaGrad-Norm: one learning rate from the summed gradient norms.

    $$x_{t+1} = x_t - \gamma \hat g_t / b_t, \quad b_t^2 = b_0^2 + \textstyle\sum_{i \le t} \|\hat g_i\|^2$$

    Ward et al. 2019.

    Args:
        b_0: the root of the sum's first value.

    >>> import torch
    >>> adagrad_norm(torch.nn.Linear(3, 1), b_0=0.5).param_groups[0]["matrix"]["omega"]
    0.25
    """
    return compose(params, lr, options, matrix=AccumulatedNorm(omega=b_0**2), schedule=Constant(alpha=1.0))


@method
def adaptive_sgd(
    params: Any, lr: Any = 1.0, *, k: float = 1.0, omega: float = 1.0, eps: float = 0.0, **options: Any
) -> SuperAdam:
    r"""adaptive SGD: one learning rate from the norms of the past gradients only.

    $$x_{t+1} = x_t - k \hat g_t / (\omega + \textstyle\sum_{i < t} \|\hat g_i\|^2)^{1/2+\varepsilon}$$

    Li and Orabona 2019. `lr` multiplies the step.

    Args:
        k: factor of the learning rate.
        omega: ω, the sum's first value.
        eps: ε, added to the power 1/2.

    >>> import torch
    >>> adaptive_sgd(torch.nn.Linear(3, 1), eps=0.1).param_groups[0]["matrix"]["power"]
    0.6
    """
    matrix = AccumulatedNorm(0.5 + eps, omega, k, past=True)
    return compose(params, lr, options, matrix=matrix, schedule=Constant(alpha=1.0))
