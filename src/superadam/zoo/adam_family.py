"""Adam and its variants: averages of the gradient and of a second moment."""

# mypy: disable-error-code="no-untyped-def"

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

from torch import Tensor

from superadam.estimators import Adan, AdEMAMix, HeavyBall, NAdam, Nesterov
from superadam.iterates import ScheduleFree
from superadam.matrices import (
    AdaBound,
    AdaGrad,
    Adamax,
    AdamMini,
    Adopt,
    AMSGrad,
    Belief,
    Cautious,
    RAdam,
    SecondMoment,
    Sign,
    Sophia,
    Yogi,
)
from superadam.methods import Parts, Twin
from superadam.parts import check
from superadam.schedules import BiasCorrected, Constant
from superadam.stepsizes import Prodigy, TrustRatio, UpdateClipping
from superadam.zoo.registry import Lr, Options, average, checked, each_group, method, typed

if TYPE_CHECKING:
    from typing_extensions import Unpack  # Python 3.10 has none in typing

__all__ = [
    "adabelief", "adabound", "adam", "adam_mini", "adamax", "adamw", "adan", "ademamix", "adopt", "amsgrad",
    "cautious_adamw", "generalized_adam", "lamb", "lion", "nadam", "nadamw", "padam", "prodigy", "radam",
    "schedule_free_adamw", "sophia_g", "stable_adamw", "yogi",
]  # fmt: skip

Betas = tuple[float, float]
MOMENTS = {"exp_avg": "g", "exp_avg_sq": "v"}


def averages(betas: Betas, eps: float) -> Parts:
    """Return Adam's two averages."""
    beta1, beta2 = checked(betas)
    return {"matrix": SecondMoment(beta2, eps, bias_correction=True), "schedule": BiasCorrected(beta1)}


@method(
    "Kingma and Ba 2015, arXiv 1412.6980",
    twin=Twin("torch.optim.Adam", ("betas", "eps"), MOMENTS, {"amsgrad": False}, decouples=True),
)
def adam(lr=1e-3, betas=(0.9, 0.999), eps=1e-8, weight_decay=0.0) -> Parts:
    r"""Adam: averages of the gradient and of its square, both corrected for their start.

    $$x_{t+1} = x_t - \gamma \hat m_t / (\sqrt{\hat v_t} + \varepsilon)$$

    Equals `torch.optim.Adam`, whose weight decay is added to the gradient.
    """
    return {**averages(betas, eps), "decoupled_weight_decay": False}


@typed(
    "Loshchilov and Hutter 2019, arXiv 1711.05101",
    twin=Twin("torch.optim.AdamW", ("betas", "eps"), MOMENTS, {"amsgrad": False}, decouples=True),
)
def adamw(
    lr: Lr = 1e-3,
    betas: Betas = (0.9, 0.999),
    eps: float = 1e-8,
    weight_decay: float = 1e-2,
    **options: Unpack[Options],
) -> Parts:
    r"""AdamW: Adam with decoupled weight decay.

    $$x_{t+1} = (1 - \gamma w) x_t - \gamma \hat m_t / (\sqrt{\hat v_t} + \varepsilon)$$

    Equals `torch.optim.AdamW`.

    >>> import torch
    >>> adamw(torch.nn.Linear(3, 1)).param_groups[0]["betas"]
    (0.9, 0.999)
    """
    return averages(betas, eps)


@method(
    "Reddi et al. 2018, arXiv 1904.09237",
    twin=Twin(
        "torch.optim.Adam(amsgrad=True)",
        ("betas", "eps"),
        {**MOMENTS, "max_exp_avg_sq": "v_max"},
        {"amsgrad": True},
        decouples=True,
    ),
)
def amsgrad(lr=1e-3, betas=(0.9, 0.999), eps=1e-8, weight_decay=0.0, *, bias_correction=True) -> Parts:
    r"""AMSGrad: Adam whose second moment never shrinks.

    $$x_{t+1} = x_t - \gamma \hat m_t / (\sqrt{\max_{i \le t} v_i/(1-\beta_2^t)} + \varepsilon)$$

    Equals `torch.optim.Adam(amsgrad=True)`; `bias_correction=False` is equation (4) of the SUPER-ADAM paper.
    """
    beta1, beta2 = checked(betas)
    matrix = AMSGrad(beta2, eps, bias_correction=bias_correction)
    return {"matrix": matrix, "schedule": average(beta1, bias_correction), "decoupled_weight_decay": False}


@method("Zaheer et al. 2018, https://papers.nips.cc/paper/8186-adaptive-methods-for-nonconvex-optimization")
def yogi(
    lr=1e-2, betas=(0.9, 0.999), eps=1e-3, weight_decay=0.0, *, initial_accumulator=1e-6, bias_correction=False
) -> Parts:
    r"""Yogi: Adam whose second moment changes slowly in both directions.

    $$v_t = v_{t-1} - (1-\beta_2)\,\mathrm{sign}(v_{t-1} - \hat g_t^2)\, \hat g_t^2$$

    Published packages add Adam's corrections: `bias_correction=True`.

    Args:
        initial_accumulator: v before the first gradient.
    """
    beta1, beta2 = checked(betas)
    matrix = Yogi(beta2, eps, initial_accumulator, bias_correction)
    return {"matrix": matrix, "schedule": average(beta1, bias_correction), "decoupled_weight_decay": False}


@method("Chen and Gu 2018, arXiv 1806.06763")
def padam(
    lr=0.1, betas=(0.9, 0.999), eps=1e-8, weight_decay=0.0, *, partial=0.125, bias_correction=False, eps_inside=False
) -> Parts:
    r"""Padam: AMSGrad with the second moment to a power p ≤ 1/2.

    $$x_{t+1} = x_t - \gamma m_t / (\hat v_t^{\,p} + \varepsilon)$$

    `bias_correction` corrects $m_t$ and $\hat v_t$ as Adam does (published packages leave the factor
    $(1-\beta_2^t)^{1/2}$ outside of the power); `eps_inside` has $(\hat v_t^{1/2} + \varepsilon)^{2p}$.

    Args:
        partial: p, the power of the second moment.
        eps_inside: use (v̂_t^(1/2) + ε)^(2p) instead of v̂_t^p + ε.
    """
    beta1, beta2 = checked(betas)
    matrix = AMSGrad(beta2, eps, partial, bias_correction, eps_inside)
    return {"matrix": matrix, "schedule": average(beta1, bias_correction), "decoupled_weight_decay": False}


@method("Chen et al. 2019, arXiv 1808.02941")
def generalized_adam(lr=3e-2) -> Parts:
    r"""generalized Adam: momentum with any second moment; AdaFom by default.

    $$x_{t+1} = x_t - \gamma_t m_t / (\sqrt{\hat v_t} + \varepsilon), \quad
      \hat v_t = \tfrac1t \textstyle\sum_i \hat g_i^2, \quad
      \gamma_t = \gamma/\sqrt t$$

    `matrix` and `schedule` choose another second moment and another momentum. The default lr is more than ten times
    that of other methods, because $\sqrt t$ divides it.
    """
    return {"matrix": AdaGrad(lam=1e-8, mean=True), "schedule": Constant(alpha=0.1, first=0.1, power=0.5)}


def _number(lr: Any) -> float:
    if lr is None or isinstance(lr, str):
        raise ValueError(f"Invalid lr: {lr!r} (expected a number: AdaBound's bounds are relative to it)")
    return float(lr.detach() if isinstance(lr, Tensor) else lr)


@method("Luo et al. 2019, arXiv 1902.09843")
def adabound(
    lr=1e-3,
    betas=(0.9, 0.999),
    final_lr=0.1,
    gamma=1e-3,
    eps=1e-8,
    weight_decay=0.0,
    *,
    bias_correction=False,
    base_lr=None,
    params=None,
) -> Parts:
    r"""AdaBound: Adam's learning rates between bounds that close in on SGD's.

    $$x_{t+1} = x_t - \mathrm{clip}\bigl(\gamma/(\sqrt{v_t}+\varepsilon),\; \gamma^*(1-\tfrac{1}{st+1}),\;
      \gamma^*(1+\tfrac{1}{st})\bigr) m_t$$

    γ* = `final_lr`, s = `gamma`. `bias_correction` corrects $m_t$ and $v_t$. The published code also divides by
    $1-\beta_1^t$ inside the clip; this method does not.

    Args:
        final_lr: γ*, the final learning rate.
        gamma: s, how fast the bounds close in.
        base_lr: the learning rate that `final_lr` belongs to; with another lr the bounds are in proportion. None means
            lr, in each group its own.
    """
    base = _number(lr if base_lr is None else base_lr)
    beta1, beta2 = checked(betas)
    if not base > 0:
        raise ValueError(f"Invalid learning rate: {base} (the bounds are relative to it, so it must be positive)")
    return {
        "params": each_group(params, lambda p: {"base_lr": _number(p["lr"]), **p} if "lr" in p else p),
        "base_lr": base,
        "matrix": AdaBound(beta2, eps, final_lr / base, gamma, bias_correction),
        "schedule": average(beta1, bias_correction),
        "decoupled_weight_decay": False,
    }


@method("Zhuang et al. 2020, arXiv 2010.07468")
def adabelief(lr=1e-3, betas=(0.9, 0.999), eps=1e-16, weight_decay=0.0) -> Parts:
    r"""AdaBelief: Adam with the gradient's distance to its average in place of its size.

    $$v_t = \beta_2 v_{t-1} + (1-\beta_2)(\hat g_t - m_t)^2 + \varepsilon, \qquad
      x_{t+1} = x_t - \gamma \hat m_t / (\sqrt{\hat v_t} + \varepsilon)$$

    Weight decay is decoupled.
    """
    beta1, beta2 = checked(betas)
    return {"matrix": Belief(beta1, beta2, lam=eps, eps=eps, bias_correction=True), "schedule": BiasCorrected(beta1)}


NADAM = "Dozat 2016, https://openreview.net/forum?id=OM0jvwB8jIp57ZJjtNEZ"


def _nadam(betas: Betas, eps: float, momentum_decay: float) -> Parts:
    estimator = NAdam(checked(betas)[0], momentum_decay)
    return {**averages(betas, eps), "estimator": estimator, "schedule": average(betas[0])}


@method(NADAM)
def nadam(lr=2e-3, betas=(0.9, 0.999), eps=1e-8, weight_decay=0.0, momentum_decay=4e-3) -> Parts:
    r"""NAdam: Adam with Nesterov's momentum.

    $$x_{t+1} = x_t - \gamma \Bigl(\frac{\mu_{t+1} m_t}{1 - \prod_{i \le t+1} \mu_i}
      + \frac{(1-\mu_t) \hat g_t}{1 - \prod_{i \le t} \mu_i}\Bigr) \Big/ (\sqrt{\hat v_t} + \varepsilon), \quad
      \mu_t = \beta_1 (1 - \tfrac12 0.96^{t\psi})$$

    Equals `torch.optim.NAdam`; $\psi$ = `momentum_decay`.

    Args:
        momentum_decay: ψ, how fast the momentum rises to β₁.
    """
    return {**_nadam(betas, eps, momentum_decay), "decoupled_weight_decay": False}


@method(NADAM)
def nadamw(lr=2e-3, betas=(0.9, 0.999), eps=1e-8, weight_decay=1e-2, momentum_decay=4e-3) -> Parts:
    r"""NAdamW: NAdam with decoupled weight decay.

    $$x_{t+1} = (1 - \gamma w) x_t - \gamma\, \text{(as in } \texttt{nadam} \text{)}$$

    Equals `torch.optim.NAdam(decoupled_weight_decay=True)`.

    Args:
        momentum_decay: ψ, as for `nadam`.
    """
    return _nadam(betas, eps, momentum_decay)


@method(
    "Liu et al. 2020, arXiv 1908.03265",
    twin=Twin("torch.optim.RAdam", ("betas", "eps"), MOMENTS, decouples=True),
)
def radam(lr=1e-3, betas=(0.9, 0.999), eps=1e-8, weight_decay=0.0) -> Parts:
    r"""RAdam: Adam that starts as plain momentum, until its second moment is reliable.

    $$x_{t+1} = x_t - \gamma\, r_t \hat m_t \sqrt{1-\beta_2^t}/(\sqrt{v_t} + \varepsilon), \text{ or }
      x_t - \gamma \hat m_t \text{ in the first steps}$$

    with $r_t$ as in `matrices.RAdam`. Equals `torch.optim.RAdam`.
    """
    beta1, beta2 = checked(betas)
    return {"matrix": RAdam(beta2, eps), "schedule": BiasCorrected(beta1), "decoupled_weight_decay": False}


@method(
    "Kingma and Ba 2015, arXiv 1412.6980",
    twin=Twin("torch.optim.Adamax", ("betas", "eps"), {"exp_avg": "g", "exp_inf": "u"}),
)
def adamax(lr=2e-3, betas=(0.9, 0.999), eps=1e-8, weight_decay=0.0) -> Parts:
    r"""Adamax: Adam with the largest gradient in place of the second moment.

    $$u_t = \max(\beta_2 u_{t-1}, |\hat g_t| + \varepsilon), \qquad x_{t+1} = x_t - \gamma \hat m_t / u_t$$

    Equals `torch.optim.Adamax`.
    """
    beta1, beta2 = checked(betas)
    return {"matrix": Adamax(beta2, eps), "schedule": BiasCorrected(beta1), "decoupled_weight_decay": False}


@method("Zhang et al. 2024, arXiv 2406.16793")
def adam_mini(lr=1e-3, betas=(0.9, 0.999), eps=1e-8, weight_decay=0.0, *, rows=1) -> Parts:
    r"""Adam-mini: AdamW with one second moment for each row.

    $$v_t = \beta_2 v_{t-1} + (1-\beta_2)\, \mathrm{mean}_{\text{row}}\, \hat g_t^2, \qquad
      x_{t+1} = (1 - \gamma w) x_t - \gamma \hat m_t / (\sqrt{\hat v_t} + \varepsilon)$$

    In the authors' code, all rows of a head of queries or keys share one second moment: give these parameters a group
    with the `rows` of a head.

    Args:
        rows: number of rows of a matrix that share a second moment.
    """
    beta1, beta2 = checked(betas)
    return {"matrix": AdamMini(beta2, eps, True, rows), "schedule": BiasCorrected(beta1)}


@method("Xie et al. 2022, arXiv 2208.06677")
def adan(lr=1e-3, betas=(0.98, 0.92, 0.99), eps=1e-8, weight_decay=0.0) -> Parts:
    r"""Adan: averages of the gradient, of its changes, and of the square of both.

    $$x_{t+1} = (1 - \gamma w) x_t - \gamma\, \frac{\hat m_t + \beta_2 \hat d_t}{\sqrt{\hat n_t} + \varepsilon}, \quad
      n_t = \beta_3 n_{t-1} + (1-\beta_3) \bigl(\hat g_t + \beta_2 (\hat g_t - \hat g_{t-1})\bigr)^2$$

    $\hat m_t$ and $\hat d_t$ are corrected averages of $\hat g_t$ and of $\hat g_t - \hat g_{t-1}$. By default the
    authors' code divides x by $1 + \gamma w$; this one multiplies by $1 - \gamma w$.
    """
    beta1, beta2, beta3 = checked(betas, 3)
    return {**averages((beta1, beta3), eps), "estimator": Adan(beta2)}


@method("Pagliardini et al. 2024, arXiv 2409.03137")
def ademamix(lr=1e-3, betas=(0.9, 0.999, 0.9999), eps=1e-8, weight_decay=0.0, *, alpha=2.0, warmup=0) -> Parts:
    r"""AdEMAMix: AdamW with a second, much slower average of the gradients.

    $$x_{t+1} = (1 - \gamma w) x_t - \gamma (\hat m_t + a_t n_t) / (\sqrt{\hat v_t} + \varepsilon), \qquad
      n_t = \beta_{3,t} n_{t-1} + (1-\beta_{3,t}) \hat g_t$$

    $a_t$ and $\beta_{3,t}$ rise to `alpha` and `betas[2]` in `warmup` steps. The authors' warm-up is as long as
    training.

    Args:
        alpha: weight of the slow average, after the warm-up.
        warmup: number of steps during which `alpha` and β₃ rise.
    """
    beta1, beta2, beta3 = checked(betas, 3)
    return {**averages((beta1, beta2), eps), "estimator": AdEMAMix(alpha, beta3, warmup, start=beta1 or 1e-8)}


@method("Taniguchi et al. 2024, arXiv 2411.02853")
def adopt(lr=1e-3, betas=(0.9, 0.9999), eps=1e-6, weight_decay=0.0, *, clip_power=0.25) -> Parts:
    r"""ADOPT: an average of steps, each the newest gradient scaled by the second moment of the earlier ones.

    $$m_t = \beta_1 m_{t-1} + (1-\beta_1)\, \mathrm{clip}\Bigl(\frac{\hat g_t}{\max(\sqrt{v_{t-1}}, \varepsilon)},
      \pm (t-1)^{1/4}\Bigr), \quad x_{t+1} = (1 - \gamma w) x_t - \gamma m_t, \quad
      v_t = \beta_2 v_{t-1} + (1-\beta_2) \hat g_t^2$$

    It converges with any $\beta_2$. The first gradient only sets $v_1$; its step is weight decay alone. The authors
    keep $m_t$ and $v_t$; here the state also has $H_t$.

    Args:
        clip_power: the largest |ĝ/√v| is (t - 1)^clip_power.
    """
    beta1, beta2 = checked(betas)
    return {
        "estimator": HeavyBall(beta1, dampening=beta1),
        "matrix": Adopt(beta2, eps, clip_power),
        "schedule": Constant(alpha=1.0),
    }


@method("Liang et al. 2024, arXiv 2411.16085")
def cautious_adamw(lr=1e-3, betas=(0.9, 0.999), eps=1e-8, weight_decay=1e-2, *, kappa=math.inf) -> Parts:
    r"""cautious AdamW: AdamW without steps where the newest gradient points the other way.

    $$x_{t+1} = (1 - \gamma w) x_t - \frac{\gamma}{\max(\mathrm{mean}(\phi_t), 10^{-3})}\,
      \phi_t\, \hat m_t / (\sqrt{\hat v_t} + \varepsilon), \quad
      \phi_t = 1 \text{ where } \hat m_t \hat g_t > 0, \text{ else } 1/\kappa$$

    The authors have $\kappa = \infty$; the mean is that of each tensor. Their code subtracts the weight decay after the
    step; here it is $\gamma w x_t$. A finite $\kappa$ only shortens the steps against the gradient.

    Args:
        kappa: steps are κ times shorter where momentum and newest gradient disagree.
    """
    beta1, beta2 = checked(betas)
    return {"matrix": Cautious(beta2, eps, kappa, True, rescale=True), "schedule": BiasCorrected(beta1)}


@method("Wortsman et al. 2023, arXiv 2304.13013")
def stable_adamw(lr=1e-3, betas=(0.9, 0.99), eps=1e-8, weight_decay=1e-2) -> Parts:
    r"""StableAdamW: AdamW with shorter steps for tensors whose newest gradient is unusually large.

    $$x_{t+1} = (1 - \gamma_t w) x_t - \gamma_t \hat m_t / (\sqrt{\hat v_t} + \varepsilon), \qquad
      \gamma_t = \gamma \big/ \max\bigl(1, \mathrm{RMS}(\hat g_t / (\sqrt{\hat v_t} + \varepsilon))\bigr)$$

    The authors' root mean square is that of $\hat g_t / \max(\sqrt{\hat v_t}, \varepsilon)$.
    """
    return {**averages(betas, eps), "stepsize": UpdateClipping()}


@method("You et al. 2020, arXiv 1904.00962")
def lamb(lr=1e-2, betas=(0.9, 0.999), eps=1e-6, weight_decay=1e-2) -> Parts:
    r"""LAMB: AdamW with steps proportional to the norm of each tensor.

    $$x_{t+1} = x_t - \gamma\, \frac{\|x_t\|}{\|u_t\|}\, u_t, \qquad
      u_t = \hat m_t / (\sqrt{\hat v_t} + \varepsilon) + w x_t$$

    For batches of thousands. Each tensor has its own norms.
    """
    return {**averages(betas, eps), "stepsize": TrustRatio()}


@method("Mishchenko and Defazio 2024, arXiv 2306.06101")
def prodigy(lr=1.0, betas=(0.9, 0.999), beta3=None, eps=1e-8, weight_decay=0.0, *, d0=1e-6, d_coef=1.0) -> Parts:
    r"""Prodigy: AdamW with a learning rate that is estimated while training.

    $$x_{t+1} = (1 - \gamma d_t w) x_t - \gamma d_t m_t / (\sqrt{v_t} + d_1 \varepsilon), \quad
      d_{t+1} = \max\Bigl(d_t, \frac{r_t}{\|s_t\|_1}\Bigr)$$

    m and v average $d_t \hat g_t$ and its square, without correction for their start; `stepsizes.Prodigy` defines r and
    s. The published code multiplies ε by $d_t$, this one by d₁. The state holds m/d₁ and v/d₁². `lr="auto"` gives the
    same estimate to other compositions.

    Args:
        beta3: weight of the past in the estimate of d. None means √β₂.
        d0: d_1, the first guess of the distance.
        d_coef: factor of every new estimate.
    """
    beta1, beta2 = checked(betas)
    stepsize = Prodigy(d0, math.sqrt(beta2) if beta3 is None else beta3, d_coef, weigh=True)
    return {"stepsize": stepsize, "matrix": SecondMoment(beta2, eps), "schedule": average(beta1)}


@method("Defazio et al. 2024, arXiv 2405.15682", follows=False)
def schedule_free_adamw(
    lr=2.5e-3, betas=(0.9, 0.999), eps=1e-8, weight_decay=0.0, *, warmup_steps=0, r=0.0, weight_lr_power=2.0
) -> Parts:
    r"""schedule-free AdamW: the result is an average of the points, and no schedule is needed.

    $$y_t = (1-\beta_1) z_t + \beta_1 x_t, \quad
      z_{t+1} = z_t - \gamma \bigl(\nabla f(y_t)/(\sqrt{\hat v_t} + \varepsilon) + w y_t\bigr), \quad
      x_{t+1} = (1 - c_t) x_t + c_t z_{t+1}$$

    $c_t$ gives all points after the warm-up the same weight. During training the parameters hold $y_t$: evaluate inside
    `with opt.at_x():`, or between `opt.eval()` and `opt.train()`, and call `flush()` at the end.

    Args:
        warmup_steps: number of steps during which γ rises to its value.
        r: the weight of a point grows like t^r.
        weight_lr_power: the weight of a point is the largest γ so far to this power: points of a warm-up count less.
    """
    iterate = ScheduleFree(checked(betas)[0], r, weight_lr_power, warmup_steps)
    return {**averages(betas, eps), "schedule": Constant(alpha=1.0), "iterate": iterate}


@method("Chen et al. 2023, arXiv 2302.06675")
def lion(lr=5e-4, betas=(0.9, 0.99), weight_decay=0.0, *, tau=0.0) -> Parts:
    r"""Lion: steps along the sign of a momentum.

    $$x_{t+1} = (1 - \gamma w) x_t - \gamma\, \mathrm{sign}\bigl(\beta_1 m_{t-1} + (1-\beta_1) \hat g_t\bigr), \qquad
      m_t = \beta_2 m_{t-1} + (1-\beta_2) \hat g_t$$

    The authors have lr = 1e-4. It keeps one tensor for each parameter. With `tau` > 0 the step is the sign of $g_t$
    from line 11, averaged with $\beta_1$.
    """
    beta1, beta2 = checked(betas)
    if tau != 0:
        return {"matrix": Sign(), "schedule": BiasCorrected(beta1)}
    check(beta1 <= beta2, "betas", betas, "betas[0] <= betas[1]")
    a = 1 - beta1 / beta2 if beta2 > 0 else 1.0
    return {"estimator": Nesterov(a), "matrix": Sign(), "schedule": average(beta2)}


@method("Liu et al. 2023, arXiv 2305.14342")
def sophia_g(lr=5e-4, betas=(0.965, 0.99), rho=0.04, weight_decay=0.1, *, batch=5120) -> Parts:
    r"""Sophia-G: a curvature from labels that the model draws, and steps of at most γ.

    $$x_{t+1} = (1 - \gamma w) x_t - \gamma\, m_t / \max(\rho B h_t, |m_t|)$$

    The authors have lr = 1e-4. h averages the squares of the gradients at each `opt.observe()`. Every ten steps, call
    `matrices.sampled_label_loss(model(x)).backward(); opt.observe(); opt.zero_grad()`. `batch` is B, the number of
    labels in that loss. Without `observe` every step is γ times a sign.

    Args:
        rho: ρ. A smaller ρ clips more coordinates.
        batch: B, the number of labels in the mean of the observed loss.
    """
    beta1, beta2 = checked(betas)
    return {"matrix": Sophia(beta2, rho, batch), "schedule": average(beta1)}
