"""Matrices with a learning rate for every coordinate, from the literature."""

from __future__ import annotations

import math
from dataclasses import field
from typing import Any

import torch
from torch import Tensor

from superadam.bucket import Bucket
from superadam.lists import TensorList, power
from superadam.matrices import fused
from superadam.matrices.base import STILL, Diagonal, check_options
from superadam.matrices.paper import root
from superadam.parts import check
from superadam.schedules import Constant

__all__ = ["AMSGrad", "AdaBound", "AdaDelta", "AdaGrad", "Cautious", "SCAdaGrad", "Yogi"]


class AdaGrad(Diagonal):
    r"""The sum of all squared gradients (Duchi et al. 2011).

    $$v_t = v_0 + \sum_{i \le t} \nabla f(x_i; \xi_i)^2, \qquad H_t = \mathrm{diag}(\sqrt{v_t} + \lambda)$$

    Args:
        lam: λ, added to the root of the second moment. It bounds H_t from below, and so the steps from above.
        v_0: v before the first gradient.
        mean: divide v_t by t. With γ_t = γ/√t this is the same method; with momentum it is AdaFom (Chen et al. 2019).

    >>> AdaGrad()
    AdaGrad(lam=1e-10, v_0=0.0, mean=False)
    """

    lam: float = 1e-10
    v_0: float = 0.0
    mean: bool = False

    lr = 1e-2
    buffers = ("v",)
    homogeneous = True
    elementwise = True

    def __post_init__(self) -> None:
        check_options(self)

    def initial(self, name: str) -> float:
        return self.v_0 if name == "v" else 0.0

    def update(self, s: Bucket, grad: Any) -> None:
        s.v.addcmul_(grad, grad)

    def H(self, s: Bucket) -> Any:
        v = s.v / s.t if self.mean else s.v
        return v.sqrt().add_(self.lam)

    def has_kernel(self, schedule: Any) -> bool:
        plain = type(schedule) is Constant and schedule.alpha == schedule.first == 1
        return type(self) is AdaGrad and plain

    def fused_step(self, s: Bucket) -> bool:
        return fused.adagrad(s, self.lam, math.sqrt(s.t) if self.mean else 1.0)


class SCAdaGrad(Diagonal):
    r"""AdaGrad for strongly convex problems, without the root (Mukkamala and Hein 2017).

    $$v_t = \sum_{i \le t} \nabla f(x_i; \xi_i)^2, \qquad H_t = \mathrm{diag}(v_t + \xi_1 e^{-\xi_2 v_t})$$

    Args:
        xi1: ξ₁, the value added where v_t is zero.
        xi2: ξ₂, how fast this value falls with v_t.

    >>> SCAdaGrad()
    SCAdaGrad(xi1=0.1, xi2=0.1)
    """

    xi1: float = 0.1
    xi2: float = 0.1

    lr = 0.1
    no_auto = "its steps shrink like 1/t: give lr a number, such as 0.1"
    buffers = ("v",)
    elementwise = True

    def __post_init__(self) -> None:
        check(self.xi1 > 0, "xi1", self.xi1, "xi1 > 0")
        check(self.xi2 >= 0, "xi2", self.xi2, "xi2 >= 0")

    @property
    def lower_bound(self) -> float:
        product = self.xi1 * self.xi2
        return self.xi1 if product <= 1 else (1 + math.log(product)) / self.xi2  # the minimum of v + ξ₁exp(-ξ₂v)

    def update(self, s: Bucket, grad: Any) -> None:
        s.v.addcmul_(grad, grad)

    def H(self, s: Bucket) -> Any:
        v: Tensor = s.v
        return v + (v * -self.xi2).exp() * self.xi1


class AdaDelta(Diagonal):
    r"""The ratio of two averages, of squared gradients and of squared steps (Zeiler 2012).

    $$v_t = \rho v_{t-1} + (1-\rho) \nabla f(x_t; \xi_t)^2, \qquad
      H_t = \mathrm{diag}\Bigl(\sqrt{v_t + \varepsilon} \Big/ \sqrt{u_{t-1} + \varepsilon}\Bigr), \qquad
      u_t = \rho u_{t-1} + (1-\rho) (H_t^{-1} g_t)^2$$

    Args:
        rho: ρ, weight of the old averages.
        eps: ε, added to both averages. It sets the size of the first steps.

    >>> AdaDelta()
    AdaDelta(rho=0.9, eps=1e-06)
    """

    rho: float = 0.9
    eps: float = 1e-6

    lr = 1.0
    no_auto = "its steps get their size from earlier steps: give lr a number, such as 1.0"
    buffers = ("v", "u")
    watches_steps = True
    elementwise = True

    def __post_init__(self) -> None:
        check_options(self)

    def update(self, s: Bucket, grad: Any) -> None:
        s.v.mul_(self.rho).addcmul_(grad, grad, value=1 - self.rho)

    def H(self, s: Bucket) -> Any:
        ratio: Tensor = (s.v + self.eps) / (s.u + self.eps)
        return ratio.sqrt()

    def moved(self, s: Bucket, step: Any) -> None:
        s.u.mul_(self.rho).addcmul_(step, step, value=1 - self.rho)


class AMSGrad(Diagonal):
    r"""A second moment that never shrinks (Reddi et al. 2018), to a power p (Padam: Chen and Gu 2018).

    $$v_t = \beta v_{t-1} + (1-\beta) \nabla f(x_t; \xi_t)^2, \qquad \hat v_t = \max(\hat v_{t-1}, v_t), \qquad
      H_t = \mathrm{diag}(\hat v_t^{\,p} + \lambda)$$

    Args:
        beta: weight of the old average; 1 - β is that of the newest gradient.
        lam: λ, added to the root of the second moment. It bounds H_t from below, and so the steps from above.
        power: p: 1/2 for AMSGrad, less for Padam.
        bias_correction: divide the largest v by 1 - β^t, as torch does; equation (4) of the paper does not.
        lam_inside: take the power of the root plus λ, as in Padam's published code: H_t = diag((v̂_t^(1/2) + λ)^(2p)).

    >>> AMSGrad(power=0.125)
    AMSGrad(beta=0.999, lam=0.0005, power=0.125, bias_correction=False, lam_inside=False)
    """

    beta: float = 0.999
    lam: float = 5e-4
    power: float = 0.5
    bias_correction: bool = False
    lam_inside: bool = False

    buffers = ("v", "v_max")
    elementwise = True

    def __post_init__(self) -> None:
        check_options(self)
        check(0 < self.power <= 0.5, "power", self.power, "0 < power <= 1/2")

    @property
    def homogeneous(self) -> bool:  # type: ignore[override]
        return self.power == 0.5

    @property
    def lower_bound(self) -> float:
        return float(self.lam ** (2 * self.power)) if self.lam_inside else self.lam

    def update(self, s: Bucket, grad: Any) -> None:
        s.v.mul_(self.beta).addcmul_(grad, grad, value=1 - self.beta)
        s.v_max.clamp_min_(s.v)

    def H(self, s: Bucket) -> Any:
        h = root(s, s.v_max, self.beta, self.bias_correction)
        p = 2 * self.power
        return power(h.add_(self.lam), p) if self.lam_inside else power(h, p).add_(self.lam)

    def has_kernel(self, schedule: Any) -> bool:
        return type(self) is AMSGrad and self.power == 0.5

    def fused_step(self, s: Bucket) -> bool:
        return fused.adam(s, self.beta, self.lam, self.bias_correction, "v_max")


class Cautious(Diagonal):
    r"""Case 1, with shorter steps where the newest gradient has the opposite sign (after Liang et al. 2024).

    $$H_t = \mathrm{diag}\bigl(\kappa_t (\sqrt{v_t} + \lambda)\bigr), \qquad
      \kappa_{t,i} = \begin{cases} 1 & g_{t,i} \nabla_i f(x_t; \xi_t) > 0 \\ \kappa & \text{otherwise}\end{cases}$$

    with $v_t$ as in `SecondMoment`. $g_t$ averages older gradients. Where the newest gradient has the opposite sign, a
    step along $g_t$ would go uphill. The published method is `Cautious(kappa=inf, rescale=True)`: no step there, and
    longer steps elsewhere. The sign of `v` in the state marks these coordinates, so the state is as large as Adam's.

    Args:
        beta: weight of the old average; 1 - β is that of the newest gradient.
        lam: λ, added to the root of the second moment. It bounds H_t from below, and so the steps from above.
        kappa: steps are κ times shorter where g_t and the newest gradient disagree. `inf` means 1e15: those coordinates
            do not move.
        bias_correction: divide v_t by 1 - β^t, as Adam does.
        rescale: multiply H_t of each tensor by max(mean(1/κ_t), 1e-3), which makes the other steps longer.

    >>> Cautious(beta=0.99)
    Cautious(beta=0.99, lam=0.0005, kappa=100.0, bias_correction=False)
    >>> Cautious(kappa=math.inf, rescale=True)
    Cautious(beta=0.999, lam=0.0005, kappa=inf, bias_correction=False, rescale=True)
    """

    beta: float = 0.999
    lam: float = 5e-4
    kappa: float = 100.0
    bias_correction: bool = False
    rescale: bool = field(default=False, repr=False)

    buffers = ("v",)
    homogeneous = True

    def __post_init__(self) -> None:
        check_options(self)
        check(self.kappa >= 1, "kappa", self.kappa, "kappa >= 1")

    @property
    def elementwise(self) -> bool:  # type: ignore[override]
        return not self.rescale  # which needs a mean over each tensor

    @property
    def lower_bound(self) -> float:
        return self.lam * (1e-3 if self.rescale else 1.0)

    def update(self, s: Bucket, grad: Any) -> None:
        v = s.v.abs() * self.beta
        v.addcmul_(grad, grad, value=1 - self.beta)
        s.v = torch.where(s.g * grad > 0, v, -v)

    def H(self, s: Bucket) -> Any:
        h = root(s, s.v.abs(), self.beta, self.bias_correction).add_(self.lam)
        h = torch.where(s.v > 0, h, h * min(self.kappa, STILL))
        return h * self._mean(s) if self.rescale else h

    def _mean(self, s: Bucket) -> Any:
        """max(mean(1/κ_t), 1e-3) for each tensor, over all processes."""
        means = []
        for p, v in zip(s.params, s.v, strict=True):
            whole = max(1, p.numel() * (2 if p.is_complex() else 1))
            agree = s.whole_norm((v > 0).to(v.dtype)).square() / whole
            means.append((agree + (1 - agree) / self.kappa).clamp(min=1e-3))
        return TensorList(means)


class Yogi(Diagonal):
    r"""A second moment that changes slowly in both directions (Zaheer et al. 2018).

    $$v_t = v_{t-1} - (1-\beta)\, \mathrm{sign}\bigl(v_{t-1} - \nabla f(x_t; \xi_t)^2\bigr)
      \nabla f(x_t; \xi_t)^2, \qquad H_t = \mathrm{diag}(\sqrt{v_t} + \lambda)$$

    Args:
        beta: 1 - β is how fast v_t changes.
        lam: λ, added to the root of the second moment. It bounds H_t from below, and so the steps from above.
        v_0: v before the first gradient.
        bias_correction: divide v_t by 1 - β^t, as Adam does.

    >>> Yogi()
    Yogi(beta=0.999, lam=0.001, v_0=1e-06, bias_correction=False)
    """

    beta: float = 0.999
    lam: float = 1e-3
    v_0: float = 1e-6
    bias_correction: bool = False

    buffers = ("v",)
    homogeneous = True
    elementwise = True

    def __post_init__(self) -> None:
        check_options(self)

    def initial(self, name: str) -> float:
        return self.v_0 if name == "v" else 0.0

    def update(self, s: Bucket, grad: Any) -> None:
        squared = grad * grad
        s.v.addcmul_((s.v - squared).sign_(), squared, value=self.beta - 1)

    def H(self, s: Bucket) -> Any:
        return root(s, s.v, self.beta, self.bias_correction).add_(self.lam)


class AdaBound(Diagonal):
    r"""Adam's learning rates, kept between bounds that close in on SGD's (Luo et al. 2019).

    $$v_t = \beta v_{t-1} + (1-\beta) \nabla f(x_t; \xi_t)^2, \qquad
      \gamma H_t^{-1} = \mathrm{clip}\Bigl(\frac{\gamma}{\sqrt{v_t} + \lambda},\;
      \gamma r\bigl(1 - \tfrac{1}{st+1}\bigr),\; \gamma r\bigl(1 + \tfrac{1}{st}\bigr)\Bigr)$$

    Args:
        beta: weight of the old average; 1 - β is that of the newest gradient.
        lam: λ, added to the root of the second moment. It bounds H_t from below, and so the steps from above.
        final: r, the final learning rate divided by γ.
        speed: s, how fast the bounds close in. None means 1 - β.
        bias_correction: divide v_t by 1 - β^t, as Adam does.

    >>> AdaBound()
    AdaBound(beta=0.999, lam=1e-08, final=100.0, speed=None, bias_correction=False)
    """

    beta: float = 0.999
    lam: float = 1e-8
    final: float = 100.0
    speed: float | None = None
    bias_correction: bool = False

    buffers = ("v",)
    elementwise = True

    def __post_init__(self) -> None:
        check_options(self)
        check(self.final > 0, "final", self.final, "final > 0")
        check(self.speed is None or 0 < self.speed < 1, "speed", self.speed, "0 < speed < 1, or None for 1 - beta")

    @property
    def lower_bound(self) -> float:
        return min(self.lam, 1 / self.final)

    def update(self, s: Bucket, grad: Any) -> None:
        s.v.mul_(self.beta).addcmul_(grad, grad, value=1 - self.beta)

    def H(self, s: Bucket) -> Any:
        h = root(s, s.v, self.beta, self.bias_correction).add_(self.lam)
        speed = 1 - self.beta if self.speed is None else self.speed
        low = 1 / (self.final * (1 + 1 / (speed * s.t)))
        return h.clamp_(low, 1 / (self.final * (1 - 1 / (speed * s.t + 1))))
