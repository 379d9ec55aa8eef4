"""`SuperAdam`: Algorithm 1 of the paper as a torch optimizer."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any, overload

import torch
from torch import Tensor, nn
from torch.optim.optimizer import ParamsT

from superadam import theory
from superadam._state import options, recipes, refusals, replay
from superadam._state import scaler as scaling
from superadam._step.algorithm import eagerly
from superadam._step.evaluations import Evaluations
from superadam._step.view import View
from superadam.estimators import Estimator
from superadam.iterates import Iterate
from superadam.matrices import Matrix
from superadam.monitor.composer import PerParameterMetrics
from superadam.penalties import Penalty
from superadam.schedules import Schedule
from superadam.sets import ConvexSet
from superadam.theory.checks import check_optimizer

__all__ = ["SuperAdam"]


class SuperAdam(Evaluations, PerParameterMetrics):
    r"""SUPER-ADAM: every adaptive gradient method is one algorithm with four choices.

    $$
    \begin{aligned}
    &g_1 = \nabla f(x_1; \xi_1) \\
    &\textbf{for } t = 1, 2, \dots \\
    &\quad H_t \text{ from } \nabla f(x_t; \xi_t) && \texttt{matrix} && \text{(4)} \\
    &\quad \tilde x_{t+1} = \arg\min_{x \in \mathcal{X}} \langle g_t, x\rangle
        + \tfrac{1}{2\gamma}(x-x_t)^\top H_t (x-x_t) + h(x)
        && \texttt{lr}, \texttt{constraint}, \texttt{penalty} && \text{(9)} \\
    &\quad x_{t+1} = (1-\mu_t) x_t + \mu_t \tilde x_{t+1} && \texttt{schedule} && \text{(10)} \\
    &\quad g_{t+1} = \alpha_{t+1} \nabla f(x_{t+1}; \xi_{t+1}) + (1-\alpha_{t+1})
        \bigl[g_t + \tau(\nabla f(x_{t+1}; \xi_{t+1}) - \nabla f(x_t; \xi_{t+1}))\bigr] && \texttt{tau} && \text{(11)}
    \end{aligned}
    $$

    With τ = 0 this is momentum, and `step()` is called as that of any optimizer. With τ > 0 it is variance reduction,
    and every batch is evaluated at two points: call `step(closure)`, where the closure clears the gradients, computes
    the loss and calls `backward`, or loop over `twice(loader)` and call `step()` in each turn.

    Call n of `step` sees the batch ξ_n. With τ = 0 it takes the parameters from x_n to x_{n+1}. With τ > 0 a move
    waits for the next batch, which is needed on both sides of it: call n finds x_{n-1}, evaluates ξ_n there, moves to
    x_n, evaluates ξ_n again and leaves x_n. No copy of x_{n-1} is kept: the state is g and v, as in Adam. `flush()`
    takes the move that is still pending when training ends.

    Parameters without a gradient are left alone, and every parameter counts its own steps: its g_t is line 11 over the
    batches that had a gradient for it. A move that is pending is taken with the next batch even if that batch has no
    gradient for the parameter.

    Gradients that are not finite spread into the parameters, as in torch.optim: to look for them would cost a
    synchronisation with the device in every step. Look at the loss, or at `torch.nn.utils.get_total_norm` of the
    gradients; `restart()` takes out of g and H what is not finite.

    Args:
        params: parameters, (name, parameter) pairs, param groups, or an `nn.Module`. Of a module the optimizer also
            knows the buffers, and gives both evaluations of a batch the same ones: BatchNorm sees each batch once. (It
            finds other modules that an evaluation runs by itself, unless they are part of a compiled function.)
            All options below can be set in a param group; a key that is none of them, and does not look like a
            misspelling of one, is kept as the user's own.
        lr: γ, a number or a tensor. None takes the composition's own, a number that trains: 1e-3 for matrices like
            Adam's with the default schedule, ten times that with the paper's, `matrix.lr` in general.
        tau: τ in [0, 1].
        estimator: g_t other than line 11's, one of `superadam.estimators` or its name; then τ is its own.
        matrix: H_t, one of `superadam.matrices` or its name; default `SecondMoment()`, case 1. Norms and inner products
            run over all parameters whose groups have an equal matrix.
        schedule: μ_t and α_t, one of `superadam.schedules` or its name; default `BiasCorrected(0.9)`, Adam's, and with
            τ > 0 at construction `BiasCorrected(0.5)`. `Paper()` has the paper's.
        iterate: at which point gradients are taken and which point is the result, one of `superadam.iterates` or its
            name; default `Plain()`, x_t for both.
        constraint: X, one of `superadam.sets`, for each parameter by itself. The parameters are put into the set at
            construction; line 9 keeps them there, by the exact minimiser in the metric of H_t. A gradient that is not
            finite is an error then, which drops the batch: line 9 has no solution. (On a GPU, a set of intervals does
            not look for one.)
        penalty: h, one of `superadam.penalties`, which line 9 adds to f.
        weight_decay: w. x_{t+1} is moved by −γ μ_t w x_t in addition.
        decoupled_weight_decay: if False, w x_t is added to the gradient instead (the gradient of w/2 ‖x‖²).
        clip: bound on the norm of g_t, over all parameters whose groups have an equal bound.
        maximize: maximise f.
        rounding: how an update of low-precision parameters, computed in float32, is rounded: to "nearest", which loses
            small ones; "stochastic" (bfloat16 only), up or down at random with the right mean; "master" keeps x in
            float32 too. Parameters in float32 or float64 are not concerned.
        foreach: work on lists of tensors; default: on accelerators. False takes every tensor by itself.
        fused: torch's fused kernels; default: where the composition coincides with one (case 1, AMSGrad, AdaGrad, and
            H_t = b I, all with τ = 0). True where it does not is a warning, and changes nothing.
        compile: a kernel of our own, on the CPU, for compositions that treat every coordinate by itself; it is made in
            the first steps, which takes seconds. A set does not look for numbers that are not finite then.
        capturable: keep the step count on the device, for CUDA graphs.
        differentiable: let autograd differentiate through the step.

    >>> model = nn.Linear(2, 1)
    >>> opt = SuperAdam(model, lr=1e-2, tau=1.0, schedule="Paper")
    >>> inputs, targets = torch.tensor([[1.0, 2.0], [3.0, 4.0]]), torch.tensor([[1.0], [2.0]])
    >>> def closure():
    ...     opt.zero_grad()
    ...     loss = (model(inputs) - targets).square().mean()
    ...     loss.backward()
    ...     return loss
    >>> losses = [opt.step(closure).item() for _ in range(100)]
    >>> opt.flush()
    >>> losses[-1] < 0.1 * losses[0]
    True
    >>> opt
    SuperAdam(
      (11) g: Recursive(tau=1.0)
      (4)  H: SecondMoment(beta=0.999, lam=0.0005, bias_correction=False)
      (10) mu, alpha: Paper(k=1.0, m=100.0, c=None, cap=0.9)
      lr=0.01, weight_decay=0.0, clip=None, maximize=False
      2 tensors, 3 parameters
    )
    """

    # torch.amp.GradScaler then leaves to step() to unscale, and to skip what has overflowed: half-steps stay in phase
    _step_supports_amp_scaling = True

    def __init__(
        self,
        params: ParamsT | nn.Module,
        lr: float | Tensor | None = None,
        *,
        tau: float = 0.0,
        estimator: Estimator | str | None = None,
        matrix: Matrix | str | None = None,
        schedule: Schedule | str | None = None,
        iterate: Iterate | str | None = None,
        constraint: ConvexSet | str | None = None,
        penalty: Penalty | str | None = None,
        weight_decay: float = 0.0,
        decoupled_weight_decay: bool = True,
        clip: float | None = None,
        maximize: bool = False,
        rounding: str = "nearest",
        foreach: bool | None = None,
        fused: bool | None = None,
        compile: bool = False,
        capturable: bool = False,
        differentiable: bool = False,
        **unknown: Any,
    ) -> None:
        defaults = {
            "lr": lr,
            "tau": tau,
            "estimator": estimator,
            "matrix": "SecondMoment" if matrix is None else matrix,
            "schedule": schedule,
            "iterate": iterate,
            "constraint": constraint,
            "penalty": penalty,
            "weight_decay": weight_decay,
            "decoupled_weight_decay": decoupled_weight_decay,
            "clip": clip,
            "maximize": maximize,
            "rounding": rounding,
            "foreach": foreach,
            "fused": fused,
            "compile": compile,
            "capturable": capturable,
            "differentiable": differentiable,
        }
        method = unknown.pop("method", None)  # from the zoo: which one, with what options of its own
        options.refuse_unknown(unknown, defaults)
        super().__init__(params, {**defaults, **recipes.view(method, defaults)})

    @overload
    def step(self, closure: None = None) -> None: ...
    @overload
    def step(self, closure: Callable[[], float]) -> float: ...
    @eagerly
    def step(self, closure: Callable[[], float] | None = None) -> float | None:
        """Take in one batch. With a closure, return the loss of its first evaluation.

        Args:
            closure: clears the gradients, computes the loss, calls `backward` and returns the loss. Called once if
                τ = 0, twice if τ > 0 (at the very first batch at the same point, to see whether it gives the same
                gradient). If it leaves no gradient, and returns None or a loss without a graph, the batch is left out.
                Without it the gradients must be there already.
        """
        self._accelerator_graph_capture_health_check()
        if closure is not None and getattr(self, "found_inf", None) is not None:
            raise RuntimeError(
                "GradScaler looks at the gradients before step(closure) has any. Call scaler.step(opt) without a "
                "closure, with tau > 0 in a loop over `superadam.twice(loader)`."
            )
        if closure is None and not self.state and replay.current() is None and self._nothing_to_learn():
            self.init_state()
            return None
        if any(["method" in group for group in self.param_groups]):
            recipes.follow(self)
        plans = self._plans_of_now()
        two_point = any([plan.two_point for plan in plans])
        if any([plan.parts.constraint is not inside for plan, inside in zip(plans, self._inside, strict=True)]):
            self._enter_changed_sets()
        with torch.set_grad_enabled(self.defaults["differentiable"]):
            if closure is None:
                self._half_step() if two_point else self._full_step(None)
                return None
            return self._both_halves(closure) if two_point else self._full_step(closure)

    def _full_step(self, closure: Callable[[], float] | None) -> float | None:
        """τ = 0: x_n to x_{n+1}."""
        if replay.here.halves:
            warnings.warn(
                "step() in a `twice` loop, of an optimizer that takes one gradient per batch: it takes two steps with "
                "each. Loop over the loader itself.",
                stacklevel=3,
            )
        loss = None if closure is None else self._evaluate(closure)
        views = self._with_gradients(moves=True)
        if closure is None:
            self.gradient_evaluations += 1
        scaled = getattr(self, "found_inf", None) is not None
        overflow = scaling.unscale(self) if scaled else None
        free = all([plan.free for plan in self._plans])
        if overflow is not None and self.defaults["capturable"] and free:
            with scaling.undone(self, where=overflow):
                self._absorb(views)
        elif not overflow:
            if not free:  # line 9 on a set waits for the device in any case
                refusals.check_finite(self)
            self._absorb(views)
        return loss

    def _both_halves(self, closure: Callable[[], float]) -> float:
        """τ > 0 with a closure: x_{n-1} to x_n."""
        if self._open_batch is not None:
            raise RuntimeError(
                "step(closure) between the two half-steps of a batch. Finish the batch with step() in the `twice` "
                "loop, or call opt.restart() to drop it."
            )
        loss, again = self._first_evaluation(closure)
        if refusals.left_out(self, loss):
            return loss
        if self._pending():
            self._to_next_point(self._usable_gradients())
            try:
                again.restore()
                self.zero_grad()
                if refusals.left_out(self, self._evaluate(closure)):
                    self._void()
                    return loss
                views = self._usable_gradients()
                again.check()
            except BaseException:
                self._void()
                raise
        else:
            refusals.check_gradients(self)
            refusals.check_finite(self)
            if not self._evaluate_again(closure, again):
                return loss
            views = self._usable_gradients()
        self._absorb(views)
        self._used = replay.Used(self._parameters())
        self._pairing.end()  # last, as warnings may be errors
        return loss

    def _usable_gradients(self) -> list[View]:
        """The gradients of one of two evaluations, if there are any and all can be used."""
        views = self._with_gradients(moves=False)
        if not views:
            refusals.check_gradients(self)
        if not all([plan.free for plan in self._plans]):
            refusals.check_finite(self)
        return views

    def _half_step(self) -> None:
        """τ > 0 without a closure: one of two half-steps."""
        half = self._this_half()
        views = self._with_gradients(moves=False)
        if not views:
            refusals.check_gradients(self)
        self._turn_evaluated(half)
        self.gradient_evaluations += 1
        overflow = bool(scaling.unscale(self))
        self._last_half = half
        refused: ValueError | None = None
        if not overflow and self._dropped_batch is not half.batch:
            try:
                refusals.check_finite(self)
            except ValueError as error:  # the batch is dropped as an overflow is, and the loop can go on
                overflow, refused = True, error
        if half.second:
            if overflow and self._dropped_batch is not half.batch:
                self._void()
            elif self._dropped_batch is not half.batch:
                self._pairing.compare()
                self._absorb(views)
            self._open_batch = None
        else:
            if overflow:  # nothing is touched: the pending move waits for the next batch
                self._dropped_batch = half.batch
            else:
                if not (self._pairing.compared or self._pending()):  # the second half finds x where it is
                    self._pairing.keep(self._parameters())
                self._to_next_point(views)
            self._open_batch = half.batch
        if refused is not None:
            raise refused
        if half.second:
            self._pairing.end()  # last, as warnings may be errors

    def check_theory(self, problem: theory.Problem) -> theory.Conditions:
        """The conditions of theorem 1 or 2 on this optimizer, and what of it the theorems are not about.

        >>> opt = SuperAdam(nn.Linear(2, 1), lr=1e-4, tau=1.0, schedule="Paper")
        >>> print(opt.check_theory(theory.Problem(L=1.0, sigma=1.0, rho=None, gap=1.0)))
        Theorem 1 with the cap 0.9 applies
          holds  k³ ≤ m                                   1 ≤ 100
          holds  3/2 ≤ m                                  1.5 ≤ 100
          holds  γ ≤ ρ m^(1/3)/(4kL)                      0.0001 ≤ 0.0005802
          holds  1/k³ + 10L²γ²/ρ² ≤ c                     1.4 ≤ 40
          holds  1/k³ + 10L²γ²/ρ² ≤ cap (m+1)^(2/3)/k²    1.4 ≤ 19.52
          note   rho = 0.0005, from the matrix
        """
        return check_optimizer(self, problem)
