"""The other methods of torch.optim."""

from __future__ import annotations

from typing import Any

from torch import nn

from superadam._state.recipes import recipe
from superadam._state.twins import Twin
from superadam.estimators import HeavyBall, NesterovAdam
from superadam.iterates import Averaged
from superadam.matrices import Adafactor, Centered, Identity, InfinityNorm, Rectified, Resilient, SecondMoment
from superadam.optimizer import SuperAdam
from superadam.parts import check
from superadam.schedules import BiasCorrected, Constant
from superadam.stepsizes import Decaying
from superadam.zoo.registry import average, checked, compose, cook, corrected, method

__all__ = ["adafactor", "adamax", "asgd", "nadam", "nadamw", "radam", "rmsprop", "rprop"]


@recipe("nadam")
def _nadam(betas: tuple[float, float], eps: float, momentum_decay: float) -> dict[str, Any]:
    beta1, beta2 = checked(betas)
    return {
        "estimator": NesterovAdam(beta1, momentum_decay),
        "matrix": SecondMoment(beta2, eps, bias_correction=True),
        "schedule": average(beta1, bias_correction=False),
    }


@method
def nadam(
    params: Any,
    lr: Any = 2e-3,
    betas: tuple[float, float] = (0.9, 0.999),
    eps: float = 1e-8,
    weight_decay: float = 0.0,
    momentum_decay: float = 4e-3,
    **options: Any,
) -> SuperAdam:
    r"""NAdam: Adam with Nesterov's momentum.

    $$x_{t+1} = x_t - \gamma \Bigl(\frac{\mu_{t+1} m_t}{1 - \prod_{i \le t+1} \mu_i}
      + \frac{(1-\mu_t) \hat g_t}{1 - \prod_{i \le t} \mu_i}\Bigr) \Big/ (\sqrt{\hat v_t} + \varepsilon), \quad
      \mu_t = \beta_1 (1 - \tfrac12 0.96^{t\psi})$$

    Dozat 2016. Equals `torch.optim.NAdam`; $\psi$ = `momentum_decay`.

    Args:
        momentum_decay: ψ, how fast the momentum rises to β₁.

    >>> import torch
    >>> nadam(torch.nn.Linear(3, 1)).param_groups[0]["estimator"]["decay"]
    0.004
    """
    own = {"betas": betas, "eps": eps, "momentum_decay": momentum_decay}
    return cook("nadam", own, params, lr, options, weight_decay=weight_decay, decoupled_weight_decay=False)


@method
def nadamw(
    params: Any,
    lr: Any = 2e-3,
    betas: tuple[float, float] = (0.9, 0.999),
    eps: float = 1e-8,
    weight_decay: float = 1e-2,
    momentum_decay: float = 4e-3,
    **options: Any,
) -> SuperAdam:
    r"""NAdamW: NAdam with decoupled weight decay.

    $$x_{t+1} = (1 - \gamma w) x_t - \gamma\, \text{(as in } \texttt{nadam} \text{)}$$

    Equals `torch.optim.NAdam(decoupled_weight_decay=True)`.

    Args:
        momentum_decay: ψ, as for `nadam`.

    >>> import torch
    >>> nadamw(torch.nn.Linear(3, 1)).param_groups[0]["decoupled_weight_decay"]
    True
    """
    return nadam(params, lr, betas, eps, weight_decay, momentum_decay, **{"decoupled_weight_decay": True, **options})


@recipe(
    "radam",
    scale=corrected,
    twin=Twin("torch.optim.RAdam", ("betas", "eps"), {"exp_avg": "g", "exp_avg_sq": "v"}, {}, decouples=True),
)
def _radam(betas: tuple[float, float], eps: float) -> dict[str, Any]:
    beta1, beta2 = checked(betas)
    return {"matrix": Rectified(beta2, eps), "schedule": BiasCorrected(beta1)}


@method
def radam(
    params: Any,
    lr: Any = 1e-3,
    betas: tuple[float, float] = (0.9, 0.999),
    eps: float = 1e-8,
    weight_decay: float = 0.0,
    **options: Any,
) -> SuperAdam:
    r"""RAdam: Adam that starts as plain momentum, until its second moment is reliable.

    $$x_{t+1} = x_t - \gamma\, r_t \hat m_t \sqrt{1-\beta_2^t}/(\sqrt{v_t} + \varepsilon), \text{ or }
      x_t - \gamma \hat m_t \text{ in the first steps}$$

    Liu et al. 2020, $r_t$ as in `matrices.Rectified`. Equals `torch.optim.RAdam`.

    >>> import torch
    >>> radam(torch.nn.Linear(3, 1)).param_groups[0]["matrix"]["type"]
    'Rectified'
    """
    own = {"betas": betas, "eps": eps}
    return cook("radam", own, params, lr, options, weight_decay=weight_decay, decoupled_weight_decay=False)


@recipe(
    "adamax",
    scale=corrected,
    twin=Twin("torch.optim.Adamax", ("betas", "eps"), {"exp_avg": "g", "exp_inf": "u"}, {}),
)
def _adamax(betas: tuple[float, float], eps: float) -> dict[str, Any]:
    beta1, beta2 = checked(betas)
    return {"matrix": InfinityNorm(beta2, eps), "schedule": BiasCorrected(beta1)}


@method
def adamax(
    params: Any,
    lr: Any = 2e-3,
    betas: tuple[float, float] = (0.9, 0.999),
    eps: float = 1e-8,
    weight_decay: float = 0.0,
    **options: Any,
) -> SuperAdam:
    r"""Adamax: Adam with the largest gradient in place of the second moment.

    $$u_t = \max(\beta_2 u_{t-1}, |\hat g_t| + \varepsilon), \qquad x_{t+1} = x_t - \gamma \hat m_t / u_t$$

    Kingma and Ba 2015. Equals `torch.optim.Adamax`.

    >>> import torch
    >>> adamax(torch.nn.Linear(3, 1)).param_groups[0]["matrix"]["type"]
    'InfinityNorm'
    """
    own = {"betas": betas, "eps": eps}
    return cook("adamax", own, params, lr, options, weight_decay=weight_decay, decoupled_weight_decay=False)


@recipe("adafactor")
def _adafactor(beta2_decay: float, eps: tuple[float | None, float], d: float) -> dict[str, Any]:
    return {"matrix": Adafactor(-beta2_decay, *eps, d), "schedule": Constant(alpha=1.0)}


@method
def adafactor(
    params: Any,
    lr: Any = 1e-2,
    beta2_decay: float = -0.8,
    eps: tuple[float | None, float] = (None, 1e-3),
    d: float = 1.0,
    weight_decay: float = 0.0,
    **options: Any,
) -> SuperAdam:
    r"""Adafactor: a second moment for rows and columns, with steps relative to the size of x.

    $$x_{t+1} = x_t - \min(\gamma, 1/\sqrt t)\, \max(\varepsilon_2, \mathrm{RMS}(x_t))\,
      \frac{U_t}{\max(1, \mathrm{RMS}(U_t)/d)}, \qquad U_t = \hat g_t/\sqrt{V_t}$$

    Shazeer and Stern 2018, $V_t$ as in `matrices.Adafactor`. Equals `torch.optim.Adafactor`. It keeps m + n numbers for
    an m × n matrix, and g, which holds the newest gradient.

    Args:
        beta2_decay: the newest gradient has the weight t^beta2_decay.
        eps: ε₁, the square root of the smallest second moment (None: the precision of the parameter), and ε₂, the
            smallest size of x_t.
        d: the largest root mean square of U_t.

    >>> import torch
    >>> adafactor(torch.nn.Linear(3, 1)).param_groups[0]["matrix"]["decay"]
    0.8
    """
    own = {"beta2_decay": beta2_decay, "eps": eps, "d": d}
    return cook("adafactor", own, params, lr, options, weight_decay=weight_decay)


@recipe("rmsprop")
def _rmsprop(alpha: float, eps: float, momentum: float = 0.0, centered: bool = False) -> dict[str, Any]:
    estimator = {"estimator": HeavyBall(momentum)} if momentum != 0 else {}
    matrix = Centered(alpha, eps) if centered else SecondMoment(alpha, eps)
    return {**estimator, "matrix": matrix, "schedule": Constant(alpha=1.0)}


@method
def rmsprop(
    params: Any,
    lr: Any = 1e-2,
    alpha: float = 0.99,
    eps: float = 1e-8,
    weight_decay: float = 0.0,
    momentum: float = 0.0,
    centered: bool = False,
    **options: Any,
) -> SuperAdam:
    r"""RMSprop: the newest gradient divided by the root of an average of squares.

    $$v_t = \alpha v_{t-1} + (1-\alpha) \hat g_t^2, \qquad
      b_t = \mathrm{momentum}\; b_{t-1} + \hat g_t/(\sqrt{v_t} + \varepsilon), \qquad x_{t+1} = x_t - \gamma b_t$$

    Hinton 2012. Equals `torch.optim.RMSprop`. `centered` subtracts the square of an average of gradients from $v_t$.

    Args:
        alpha: weight of the old average of squares.
        centered: subtract the square of an average of gradients from v_t.

    >>> import torch
    >>> rmsprop(torch.nn.Linear(3, 1), momentum=0.9).param_groups[0]["estimator"]["type"]
    'HeavyBall'
    """
    own = {"alpha": alpha, "eps": eps, "momentum": momentum, "centered": centered}
    return cook("rmsprop", own, params, lr, options, weight_decay=weight_decay, decoupled_weight_decay=False)


@recipe("rprop")
def _rprop(etas: tuple[float, float], step_sizes: tuple[float, float]) -> dict[str, Any]:
    shrink, grow = etas
    return {"matrix": Resilient(grow, shrink, *step_sizes), "schedule": Constant(alpha=1.0)}


@method
def rprop(
    params: Any,
    lr: Any = 1e-2,
    etas: tuple[float, float] = (0.5, 1.2),
    step_sizes: tuple[float, float] = (1e-6, 50.0),
    **options: Any,
) -> SuperAdam:
    r"""Rprop: a step length for every coordinate, longer while its gradient keeps its sign.

    $$x_{t+1} = x_t - \gamma \delta_t\, \mathrm{sign}(\hat g_t), \qquad
      \delta_t = \eta^+ \delta_{t-1} \text{ where } \hat g_t \hat g_{t-1} > 0,\;
      \eta^- \delta_{t-1} \text{ and no step where } \hat g_t \hat g_{t-1} < 0$$

    Riedmiller and Braun 1993, for full batches. Equals `torch.optim.Rprop` while lr is constant. There lr is only the
    first step length; here it multiplies all of them.

    Args:
        etas: η⁻ and η⁺: factors of a step length after a change of sign, and without one.
        step_sizes: the shortest and the longest step.

    >>> import torch
    >>> rprop(torch.nn.Linear(3, 1)).param_groups[0]["matrix"]["type"]
    'Resilient'
    """
    return cook("rprop", {"etas": etas, "step_sizes": step_sizes}, params, lr, options)


@method
def asgd(
    params: Any,
    lr: Any = 1e-2,
    lambd: float = 1e-4,
    alpha: float = 0.75,
    t0: float = 1e6,
    weight_decay: float = 0.0,
    **options: Any,
) -> SuperAdam:
    r"""ASGD: SGD with a falling learning rate, whose result is the average of the points after the first t0.

    $$x_{t+1} = (1 - \gamma_t (\lambda + w)) x_t - \gamma_t \hat g_t, \qquad
      \gamma_t = \gamma\, (1 + \lambda \gamma (t-1))^{-\alpha}$$

    Polyak and Juditsky 1992. Equals `torch.optim.ASGD`. `opt.at_x()`, `opt.eval()` and `flush()` bring the parameters
    to the average, torch's `state[p]["ax"]`. `weight_decay` of the groups is λ + w, because without momentum the two
    terms are the same.

    Args:
        lambd: λ, how fast γ_t falls; added to the weight decay.
        alpha: the power in γ_t.
        t0: number of steps before the average begins.

    >>> import torch
    >>> asgd(torch.nn.Linear(3, 1), t0=100).param_groups[0]["iterate"]["start"]
    101
    """
    check(lambd >= 0, "lambd", lambd, "lambd >= 0")
    check(t0 >= 0 and t0 == int(t0), "t0", t0, "a whole number t0 >= 0")
    if not isinstance(params, nn.Module):
        params = [
            {**p, "weight_decay": p["weight_decay"] + lambd} if isinstance(p, dict) and "weight_decay" in p else p
            for p in params
        ]
    return compose(
        params,
        lr,
        options,
        matrix=Identity(),
        schedule=Constant(alpha=1.0),
        iterate=Averaged(1.0, int(t0) + 1),
        stepsize=Decaying(lambd, alpha),
        weight_decay=weight_decay + lambd,
    )
