r"""torch's own fused kernels, for the compositions that coincide with one of them.

Line 11 with τ = 0 is the average of Adam's and SGD's kernels for $\beta_1 = 1 - \alpha_t$; Adam divides that average by
$1 - \beta_1^t$, which is 1 at an infinite step count. What is left of Adam's update is that of case 1,

$$x \leftarrow (1 - \eta w)\,x - \eta\, g_t / (\sqrt{v_t / s^2} + \lambda)
    = \Bigl(1 - \eta s \frac{w}{s}\Bigr) x - \eta s\, g_t / (\sqrt{v_t} + \lambda s),
  \qquad \eta = \gamma\mu_t,\quad s^2 = 1 - \beta^t \text{ or } 1$$
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any, ClassVar, cast

import torch
from torch import Tensor
from torch.autograd.graph import increment_version  # the kernels do not tell autograd what they write into

from superadam._step import dispatch
from superadam._step.dispatch import Tiles, Way
from superadam._step.layout import facts
from superadam._step.view import Sums, View
from superadam._step.workspace import scratch
from superadam.estimators import Recursive
from superadam.iterates import Plain
from superadam.lists import Scalar, join
from superadam.matrices import AccumulatedNorm, AdaGrad, AMSGrad, BeliefNorm, GradientNorm, Identity, SecondMoment
from superadam.messages import warn
from superadam.schedules import Constant, Schedule
from superadam.sets.separable import Intervals

if TYPE_CHECKING:
    from superadam._state.options import Composition

__all__ = ["Fused", "FusedAdagrad", "FusedAdam", "FusedSGD", "there_is_a_kernel"]

# Typed by their first overloads, which take a tensor as lr.
_adam: Any = torch._fused_adam_
_adamw: Any = torch._fused_adamw_
_sgd: Any = torch._fused_sgd_
_adagrad: Any = torch._fused_adagrad_


def _steps(view: View, value: float) -> list[Tensor]:
    """The step counts that a kernel asks for."""
    return [view.params[0].new_full((), value, dtype=torch.float32)] * len(view.params)


def _rate(view: View, gamma: Scalar) -> Scalar:
    """η = γ μ_t, on the device of the parameters."""
    eta = gamma * view.mu
    return eta.to(view.params[0].device) if isinstance(eta, Tensor) else eta


def _decay(view: View, eta: Scalar) -> None:
    if view.decay != 0:
        torch._foreach_mul_(view.params, 1 - eta * view.decay)


class Fused(Tiles, abstract=True):
    """What torch's kernels have in common: τ = 0, the plain iterate, a step that moves, aligned tensors."""

    def objection(self, view: View) -> str | None:
        reason = self.difference(view)
        if reason is None and not view.moves:
            reason = "the move waits for the next batch"
        if reason is None and not dispatch.aligned(view):
            reason = "parameters, gradients and state do not lie alike in memory, in float32 or float64"
        if reason is None and not {t.device.type for t in (view.params[0], *view.scalars.values())} <= self.devices:
            reason = f"used on {', '.join(sorted(self.devices))} only"
        return reason

    def difference(self, view: View) -> str | None:
        """Why the composition does not coincide with the kernel, or None."""
        group, estimator = view.group, view.estimator
        if group["fused"] is False:
            return "fused=False"
        for option in ("clip", "capturable", "differentiable", "foreach", "state_dtype"):
            if group[option]:
                return f"{option}={group[option]}"
        if type(estimator) is not Recursive or estimator.tau > 0:
            return f"{estimator} takes more than an average of gradients"
        if type(view.iterate) is not Plain:
            return f"{view.iterate} moves the parameters in a way of its own"
        if view.stepsize is not None:
            return f"{view.stepsize} measures, and has a factor of its own"
        if type(view.schedule).weight_of is not Schedule.weight_of:
            return f"{view.schedule} makes weights on the device"
        return None


class FusedAdam(Fused):
    """Case 1 and AMSGrad; on a set, the kernel makes y = x_t - γ H_t⁻¹ g_t."""

    name, rank = "torch's fused Adam", 10
    devices: ClassVar[set[str]] = {"cpu", "cuda"}

    def difference(self, view: View) -> str | None:
        H: Any = view.matrix
        if not (type(H) is SecondMoment or (type(H) is AMSGrad and H.power == 0.5)):
            return f"{type(H).__name__} is not Adam's matrix"
        if dispatch.compiles(view) and not view.free and view.parts.elementwise(line_9=True):
            return "compile=True makes a kernel that includes line 9"
        return super().difference(view)

    def absorb_and_move(self, view: View, gamma: Scalar) -> None:
        alpha = cast(float, view.alpha)
        if not 0 <= 1 - alpha < 1:  # the kernel's 1 - β₁^∞ is 1 for these β₁ only
            super().absorb_and_move(view, gamma)
        elif view.free:
            self.kernel(view, view.params, _rate(view, gamma), alpha)
        else:
            self.run(self._on_set, view, gamma)

    def _on_set(self, s: View, gamma: Scalar) -> Sums:
        rate = gamma.to(s.params[0].device) if isinstance(gamma, Tensor) else gamma
        alpha, H = cast(float, s.alpha), cast(Any, s.matrix)
        clips = isinstance(s.constraint, Intervals) and type(s.constraint).argmin is Intervals.argmin
        if clips and s.penalty is None and s.mu == 1 and H.lam > 0:
            self.kernel(s, s.params, rate, alpha)  # x̃ is x_{t+1}; λ > 0, so that y is finite
            for x in s.params:
                cast(Intervals, s.constraint).clip_(x)
            return ()
        y = [scratch("y", x).copy_(x) if len(s.params) == 1 else x.clone() for x in s.params]
        self.kernel(s, y, rate, alpha)
        return dispatch.move(s, gamma, join(y))

    @staticmethod
    def kernel(view: View, x: list[Tensor], eta: Scalar, alpha: float) -> None:
        """Bring g_t and H_t up to date, and take x to (1 - ηw) x - η H_t⁻¹ g_t."""
        H: Any = view.matrix
        s = math.sqrt(1 - H.beta**view.t) if H.bias_correction else 1.0
        amsgrad = isinstance(H, AMSGrad)
        kernel = _adamw if view.group["decoupled_weight_decay"] else _adam
        kernel(
            x,
            view.grads,
            view.all("g"),
            view.all("v"),
            view.all("v_max") if amsgrad else [],
            _steps(view, math.inf),
            lr=eta * s,
            beta1=1 - alpha,
            beta2=H.beta,
            weight_decay=view.decay / s + view.decay_in_gradient,
            eps=H.lam * s,
            amsgrad=amsgrad,
            maximize=view.group["maximize"],
        )
        increment_version(x)


class FusedAdagrad(Fused):
    """AdaGrad without momentum: lines 11, 4, 9 and 10."""

    name, rank = "torch's fused Adagrad", 11

    def difference(self, view: View) -> str | None:
        schedule = view.schedule
        if type(view.matrix) is not AdaGrad:
            return f"{type(view.matrix).__name__} is not AdaGrad's matrix"
        if type(schedule) is not Constant or not schedule.alpha == schedule.first == 1:
            return f"{schedule} has momentum"
        return super().difference(view) if view.free else "a set or a penalty"

    def absorb_and_move(self, view: View, gamma: Scalar) -> None:
        H: Any = view.matrix
        s, eta = math.sqrt(cast(float, view.t)) if H.mean else 1.0, _rate(view, gamma)
        g = view.all("g")  # becomes the gradient, without the new tensors of `view.grad`
        torch._foreach_copy_(g, cast(list[Tensor], view.grads))
        if view.group["maximize"]:
            torch._foreach_neg_(g)
        if view.decay_in_gradient != 0:
            torch._foreach_add_(g, view.params, alpha=view.decay_in_gradient)
        _decay(view, eta)
        _adagrad(
            view.params,
            view.grads,
            view.all("v"),
            _steps(view, 1.0),
            lr=eta * s,
            lr_decay=0.0,
            weight_decay=view.decay_in_gradient,
            eps=H.lam * s,
            maximize=view.group["maximize"],
        )
        increment_version(view.params)


class FusedSGD(Fused):
    """H_t = b I. `absorb` only sums, `reduce` makes b, and then the kernel runs lines 11, 9 and 10."""

    name, rank = "torch's fused SGD", 12

    def difference(self, view: View) -> str | None:
        if type(view.matrix) not in (Identity, GradientNorm, BeliefNorm, AccumulatedNorm):
            return f"{type(view.matrix).__name__} is not a multiple of the identity from gradients"
        return super().difference(view) if view.free else "a set or a penalty"

    def absorb(self, view: View, gamma: Scalar) -> list[Sums]:
        if not view.matrix.scalars:
            return []
        given = not view.group["maximize"] and view.decay_in_gradient == 0  # the gradients are only read
        return self.run(dispatch.measure, view, gamma, line_9=False, reading=given and not view.matrix.buffers)

    def move(self, view: View, gamma: Scalar) -> None:
        eta, alpha = _rate(view, gamma), cast(float, view.alpha)
        rate = eta / view.bound().matrix.H(view)
        _decay(view, eta)
        _sgd(
            view.params,
            view.grads,
            view.all("g"),
            weight_decay=view.decay_in_gradient,
            momentum=1 - alpha or 0.5,  # without effect in a first step, but 0 would leave no buffer
            lr=float(rate),
            dampening=1 - alpha,
            nesterov=False,
            maximize=view.group["maximize"],
            is_first_step=alpha == 1,
        )
        increment_version(view.params)

    def absorb_and_move(self, view: View, gamma: Scalar) -> None:
        self.move(view, gamma)


def there_is_a_kernel(options: dict[str, Any], parts: Composition) -> bool:
    """Whether a composition coincides with one of the kernels."""
    view = View(facts(options, parts), [], [], [], {})
    return any(isinstance(way, Fused) and not way.difference(view) for way in Way.known)


def warn_if_none(parts: Composition, options: dict[str, Any]) -> None:
    """Warn of a `fused=True` without a kernel. It is no error: programs pass it to any optimizer."""
    if not options["fused"] or there_is_a_kernel(options, parts):
        return
    instead = "the kernel of compile=True" if options["compile"] else "torch's other operations"
    hint = "" if options["compile"] else " compile=True makes a kernel for most compositions."
    warn(
        f"fused=True: torch has no fused kernel for this composition ({parts.estimator}, {parts.matrix}, "
        f"{parts.schedule}, and the options). Its steps run by {instead}, as without fused=True.{hint}"
    )
