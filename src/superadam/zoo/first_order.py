"""SGD, AdaGrad and their kin: the newest gradient or its momentum, scaled by the gradients so far."""

# mypy: disable-error-code="no-untyped-def"

from __future__ import annotations

from typing import Any

from superadam.estimators import HeavyBall, Nesterov, Summed
from superadam.iterates import Averaged, SAdaGrad
from superadam.matrices import (
    AccumulatedNorm,
    AdaDelta,
    Adafactor,
    AdaGrad,
    Centered,
    Identity,
    Rprop,
    SCAdaGrad,
    SecondMoment,
)
from superadam.methods import Parts, Twin
from superadam.parts import check
from superadam.schedules import Constant
from superadam.stepsizes import Decaying, DoG, TrustRatio
from superadam.zoo.registry import average, each_group, method

__all__ = [
    "adadelta", "adafactor", "adagrad", "adagrad_norm", "adaptive_sgd", "asgd", "dog", "lars", "rmsprop", "rprop",
    "sadagrad", "sc_adagrad", "sgd",
]  # fmt: skip


@method(
    "Robbins and Monro 1951, https://doi.org/10.1214/aoms/1177729586",
    twin=Twin(
        "torch.optim.SGD", ("momentum", "dampening"), {"momentum_buffer": "g"}, {"nesterov": False}, counts=False
    ),
)
def sgd(lr=None, momentum=0.0, dampening=0.0, weight_decay=0.0, nesterov=False) -> Parts:
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
    """
    check(0 <= momentum < 1, "momentum", momentum, "0 <= momentum < 1")
    check(0 <= dampening < 1, "dampening", dampening, "0 <= dampening < 1")
    if nesterov and (momentum == 0 or dampening != 0):
        raise ValueError("Nesterov momentum requires a momentum and zero dampening")
    ratio = (1 - momentum) / (1 - dampening) if momentum > 0 else 1.0
    estimator = {"estimator": Nesterov()} if nesterov else {}
    schedule = Constant(alpha=1 - momentum, first=ratio)
    return {**estimator, "matrix": Identity(ratio), "schedule": schedule, "decoupled_weight_decay": False}


@method("Polyak and Juditsky 1992, https://doi.org/10.1137/0330046")
def asgd(lr=1e-2, lambd=1e-4, alpha=0.75, t0=1e6, weight_decay=0.0, *, params=None) -> Parts:
    r"""ASGD: SGD with a falling learning rate, whose result is the average of the points after the first t0.

    $$x_{t+1} = (1 - \gamma_t (\lambda + w)) x_t - \gamma_t \hat g_t, \qquad
      \gamma_t = \gamma\, (1 + \lambda \gamma (t-1))^{-\alpha}$$

    Equals `torch.optim.ASGD`. `opt.at_x()`, `opt.eval()` and `flush()` bring the parameters to the average, torch's
    `state[p]["ax"]`. `weight_decay` of the groups is λ + w, because without momentum the two terms are the same.

    Args:
        lambd: λ, how fast γ_t falls; added to the weight decay.
        alpha: the power in γ_t.
        t0: number of steps before the average begins.
    """
    check(lambd >= 0, "lambd", lambd, "lambd >= 0")
    check(t0 >= 0 and t0 == int(t0), "t0", t0, "a whole number t0 >= 0")

    def decayed(group: dict[str, Any]) -> dict[str, Any]:
        return {**group, "weight_decay": group["weight_decay"] + lambd} if "weight_decay" in group else group

    return {
        "params": each_group(params, decayed),
        "matrix": Identity(),
        "schedule": Constant(alpha=1.0),
        "iterate": Averaged(1.0, int(t0) + 1),
        "stepsize": Decaying(lambd, alpha),
        "weight_decay": weight_decay + lambd,
    }


@method("You et al. 2017, arXiv 1708.03888")
def lars(lr=0.1, momentum=0.9, weight_decay=0.0, *, trust_coefficient=0.1) -> Parts:
    r"""LARS: SGD with momentum; each tensor's gradient is rescaled to the norm of its weights.

    $$b_t = \mathrm{momentum}\; b_{t-1} + c\, \frac{\|x_t\|}{\|\hat g_t\|}\, \hat g_t, \quad
      x_{t+1} = x_t - \gamma b_t$$

    For batches of thousands. Weight decay is part of $\hat g_t$. Vectors keep their gradient: c ‖x‖/‖g‖ is 1 for them.
    The authors use `trust_coefficient=1e-3` with learning rates of 10 and more.

    Args:
        trust_coefficient: c, the norm of a step divided by the norm of its tensor.
    """
    check(0 <= momentum < 1, "momentum", momentum, "0 <= momentum < 1")
    return {
        "stepsize": TrustRatio(trust_coefficient, of_gradient=True, least_dims=2),
        "matrix": Identity(1 - momentum),
        "schedule": average(momentum),
        "decoupled_weight_decay": False,
    }


@method("Ivgi et al. 2023, arXiv 2302.12022")
def dog(lr=1.0, weight_decay=0.0, *, reps_rel=1e-6) -> Parts:
    r"""DoG: SGD whose learning rate is the distance from x_1 divided by the root of the summed squared gradients.

    $$x_{t+1} = x_t - \gamma\, \frac{\max_{i \le t} \|x_i - x_1\|}{\sqrt{\sum_{i \le t} \|\hat g_i\|^2}}\, \hat g_t$$

    The authors evaluate an average of the points: `iterate=iterates.Averaged()`.

    Args:
        reps_rel: the distance is at least reps_rel × (1 + ‖x_1‖).
    """
    return {
        "stepsize": DoG(reps_rel),
        "matrix": Identity(),
        "schedule": Constant(alpha=1.0),
        "decoupled_weight_decay": False,
    }


@method(
    "Duchi et al. 2011, https://jmlr.org/papers/v12/duchi11a.html",
    twin=Twin("torch.optim.Adagrad", ("lr_decay", "initial_accumulator_value", "eps"), {"sum": "v"}, begins=True),
)
def adagrad(lr=1e-2, lr_decay=0.0, weight_decay=0.0, initial_accumulator_value=0.0, eps=1e-10) -> Parts:
    r"""AdaGrad: a learning rate for every coordinate, from all its squared gradients.

    $$x_{t+1} = x_t - \gamma \hat g_t / (\sqrt{\textstyle\sum_i \hat g_i^2} + \varepsilon)$$

    Equals `torch.optim.Adagrad`.

    Args:
        lr_decay: the learning rate falls like 1/(1 + (t - 1) lr_decay).
        initial_accumulator_value: first value of the sum of squares.
    """
    schedule = Constant(alpha=1.0, decay=lr_decay)
    matrix = AdaGrad(lam=eps, v_0=initial_accumulator_value)
    return {"matrix": matrix, "schedule": schedule, "decoupled_weight_decay": False}


@method("Mukkamala and Hein 2017, arXiv 1706.05507")
def sc_adagrad(lr=0.1, *, xi1=0.1, xi2=0.1) -> Parts:
    r"""SC-AdaGrad: AdaGrad without the root, for strongly convex problems.

    $$x_{t+1} = x_t - \gamma \hat g_t / (v_t + \xi_1 e^{-\xi_2 v_t}), \quad v_t = \textstyle\sum_i \hat g_i^2$$

    Args:
        xi1: ξ₁, added where v_t is zero.
        xi2: ξ₂, how fast that term falls with v_t.
    """
    return {"matrix": SCAdaGrad(xi1, xi2), "schedule": Constant(alpha=1.0)}


@method("Chen et al. 2018, https://proceedings.mlr.press/v80/chen18m.html")
def sadagrad(lr=1.0, *, length=100, growth=2.0, shrink=0.5, lam=1.0) -> Parts:
    r"""SAdaGrad: AdaGrad in stages, each from the average of the stage before.

    $$x_{t+1} = x_{\text{stage}} - \gamma_k H_t^{-1} \textstyle\sum_{i \text{ in stage}} \hat g_i, \quad
      H_t = \lambda + \sqrt{\textstyle\sum_{i \text{ in stage}} \hat g_i^2}$$

    The lengths of the stages are given.

    Args:
        length: number of steps of the first stage.
        growth: number of steps of a stage, divided by that of the stage before.
        shrink: learning rate of a stage, divided by that of the stage before.
        lam: λ, added to the root.
    """
    return {
        "estimator": Summed(),
        "iterate": SAdaGrad(length, growth, shrink),
        "matrix": AdaGrad(lam=lam),
        "schedule": Constant(alpha=1.0),
        "decoupled_weight_decay": False,
    }


@method(
    "Zeiler 2012, arXiv 1212.5701",
    twin=Twin("torch.optim.Adadelta", ("rho", "eps"), {"square_avg": "v", "acc_delta": "u"}),
)
def adadelta(lr=1.0, rho=0.9, eps=1e-6, weight_decay=0.0) -> Parts:
    r"""AdaDelta: the ratio of averaged steps to averaged gradients.

    $$x_{t+1} = x_t - \gamma \sqrt{u_{t-1}+\varepsilon}\, \hat g_t / \sqrt{v_t+\varepsilon}$$

    Equals `torch.optim.Adadelta`.

    Args:
        rho: weight of the old averages.
    """
    return {"matrix": AdaDelta(rho, eps), "schedule": Constant(alpha=1.0), "decoupled_weight_decay": False}


@method("Ward et al. 2019, arXiv 1806.01811")
def adagrad_norm(lr=1.0, *, b_0=0.1) -> Parts:
    r"""AdaGrad-Norm: one learning rate from the summed gradient norms.

    $$x_{t+1} = x_t - \gamma \hat g_t / b_t, \quad b_t^2 = b_0^2 + \textstyle\sum_{i \le t} \|\hat g_i\|^2$$

    Args:
        b_0: the root of the sum's first value.
    """
    return {"matrix": AccumulatedNorm(omega=b_0**2), "schedule": Constant(alpha=1.0)}


@method("Li and Orabona 2019, arXiv 1805.08114")
def adaptive_sgd(lr=1.0, *, k=1.0, omega=1.0, eps=0.0) -> Parts:
    r"""adaptive SGD: one learning rate from the norms of the past gradients only.

    $$x_{t+1} = x_t - k \hat g_t / (\omega + \textstyle\sum_{i < t} \|\hat g_i\|^2)^{1/2+\varepsilon}$$

    `lr` multiplies the step.

    Args:
        k: factor of the learning rate.
        omega: ω, the sum's first value.
        eps: ε, added to the power 1/2.
    """
    return {"matrix": AccumulatedNorm(0.5 + eps, omega, k, past=True), "schedule": Constant(alpha=1.0)}


@method("Hinton 2012, https://www.cs.toronto.edu/~tijmen/csc321/slides/lecture_slides_lec6.pdf")
def rmsprop(lr=1e-2, alpha=0.99, eps=1e-8, weight_decay=0.0, momentum=0.0, centered=False) -> Parts:
    r"""RMSprop: the newest gradient divided by the root of an average of squares.

    $$v_t = \alpha v_{t-1} + (1-\alpha) \hat g_t^2, \qquad
      b_t = \mathrm{momentum}\; b_{t-1} + \hat g_t/(\sqrt{v_t} + \varepsilon), \qquad x_{t+1} = x_t - \gamma b_t$$

    Equals `torch.optim.RMSprop`.

    Args:
        alpha: weight of the old average of squares.
        centered: subtract the square of an average of gradients from v_t.
    """
    estimator = {"estimator": HeavyBall(momentum)} if momentum != 0 else {}
    matrix = Centered(alpha, eps) if centered else SecondMoment(alpha, eps)
    return {**estimator, "matrix": matrix, "schedule": Constant(alpha=1.0), "decoupled_weight_decay": False}


@method("Riedmiller and Braun 1993, https://doi.org/10.1109/ICNN.1993.298623")
def rprop(lr=1e-2, etas=(0.5, 1.2), step_sizes=(1e-6, 50.0)) -> Parts:
    r"""Rprop: a step length for every coordinate, longer while its gradient keeps its sign.

    $$x_{t+1} = x_t - \gamma \delta_t\, \mathrm{sign}(\hat g_t), \qquad
      \delta_t = \eta^+ \delta_{t-1} \text{ where } \hat g_t \hat g_{t-1} > 0,\;
      \eta^- \delta_{t-1} \text{ and no step where } \hat g_t \hat g_{t-1} < 0$$

    For full batches. Equals `torch.optim.Rprop` while lr is constant. There lr is only the first step length; here it
    multiplies all of them.

    Args:
        etas: η⁻ and η⁺: factors of a step length after a change of sign, and without one.
        step_sizes: the shortest and the longest step.
    """
    shrink, grow = etas
    return {"matrix": Rprop(grow, shrink, *step_sizes), "schedule": Constant(alpha=1.0)}


@method("Shazeer and Stern 2018, arXiv 1804.04235")
def adafactor(lr=1e-2, beta2_decay=-0.8, eps=(None, 1e-3), d=1.0, weight_decay=0.0) -> Parts:
    r"""Adafactor: a second moment for rows and columns, with steps relative to the size of x.

    $$x_{t+1} = x_t - \min(\gamma, 1/\sqrt t)\, \max(\varepsilon_2, \mathrm{RMS}(x_t))\,
      \frac{U_t}{\max(1, \mathrm{RMS}(U_t)/d)}, \qquad U_t = \hat g_t/\sqrt{V_t}$$

    with $V_t$ as in `matrices.Adafactor`. Equals `torch.optim.Adafactor`. It keeps m + n numbers for an m × n matrix,
    and g, which holds the newest gradient.

    Args:
        beta2_decay: the newest gradient has the weight t^beta2_decay.
        eps: ε₁, the square root of the smallest second moment (None: the precision of the parameter), and ε₂, the
            smallest size of x_t.
        d: the largest root mean square of U_t.
    """
    eps1, eps2 = eps
    return {"matrix": Adafactor(-beta2_decay, eps1, eps2, d), "schedule": Constant(alpha=1.0)}
