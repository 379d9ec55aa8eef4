"""`SuperAdam`: Algorithm 1 of the paper as a torch optimizer."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, TypedDict

import torch
from torch import Tensor, nn
from torch.optim.optimizer import ParamsT

from superadam import methods, theory
from superadam._state import options
from superadam._step.evaluations import Evaluations
from superadam.estimators import Estimator
from superadam.iterates import Iterate
from superadam.matrices import Matrix
from superadam.penalties import Penalty
from superadam.schedules import Schedule
from superadam.sets import ConvexSet
from superadam.stepsizes import Stepsize
from superadam.theory.checks import check_optimizer

if TYPE_CHECKING:
    from typing_extensions import Unpack  # Python 3.10 has none in typing

__all__ = ["SuperAdam"]


class OfZoo(TypedDict, total=False):
    """What `superadam.zoo` passes to `SuperAdam` besides its options."""

    method: dict[str, Any]


class SuperAdam(Evaluations):
    r"""SUPER-ADAM, Algorithm 1 of the paper: one algorithm for adaptive gradient methods, with a part for each choice.

    $$
    \begin{aligned}
    &g_1 = \nabla f(x_1; \xi_1) \\
    &\textbf{for } t = 1, 2, \dots \\
    &\text{(4)} \quad H_t \text{ from } \nabla f(x_t; \xi_t) \\
    &\text{(9)} \quad \tilde x_{t+1} = \arg\min_{x \in \mathcal{X}} \langle g_t, x\rangle
        + \tfrac{1}{2\gamma}(x-x_t)^\top H_t (x-x_t) + h(x) \\
    &\text{(10)} \quad x_{t+1} = (1-\mu_t) x_t + \mu_t \tilde x_{t+1} \\
    &\text{(11)} \quad g_{t+1} = \alpha_{t+1} \nabla f(x_{t+1}; \xi_{t+1}) \\
    &\qquad\qquad + (1-\alpha_{t+1})
        \bigl[g_t + \tau(\nabla f(x_{t+1}; \xi_{t+1}) - \nabla f(x_t; \xi_{t+1}))\bigr]
    \end{aligned}
    $$

    `matrix` sets H_t, `constraint` X, `penalty` h, `lr` γ, `schedule` μ_t and α_t, `tau` τ.

    With τ = 0 this is momentum: call `step()` as with any optimizer. With τ > 0 it is variance reduction, which
    evaluates every batch at two points. Call `step(closure)` with a closure that clears the gradients, computes the
    loss and calls `backward`. Or loop over `twice(loader)` and call `step()` in each turn.

    Call n of `step` gets the batch ξ_n. With τ = 0 it moves the parameters from x_n to x_{n+1}. With τ > 0 each move
    waits for the next batch: call n starts at x_{n-1}, evaluates ξ_n, moves to x_n, evaluates ξ_n again and ends at
    x_n. It needs no copy of x_{n-1}: the state is g and v, as in Adam. After training, `flush()` takes the last
    pending move.

    `step` skips parameters without a gradient. Every parameter counts its own steps, and its g_t averages only the
    batches with a gradient for it. A pending move is taken with the next batch, even if that batch has no gradient for
    the parameter.

    A non-finite gradient spreads into the parameters, as in torch.optim, because a check would synchronise with
    the device in every step. Check the loss, or `torch.nn.utils.get_total_norm` of the gradients. `restart()` removes
    NaN and infinity from g and H. Matrices with factors (SOAP, …) never use such a gradient: see `matrices.PerTensor`.

    Args:
        params: parameters, (name, parameter) pairs, param groups, or an `nn.Module`. With a module, both evaluations
            of a batch start from the same buffers: BatchNorm counts each batch once. (The optimizer finds other modules
            that an evaluation runs, unless they are part of a compiled function.) A param group can set all options
            below. Other keys are allowed unless they resemble an option (a likely typo).
        lr: γ, a number or a tensor. None means `matrix.lr`, divided by the largest μ_t of the schedule. For matrices
            like Adam's this is 1e-3 with the default schedule, and 1e-2 with the paper's.
        tau: τ in [0, 1].
        estimator: replaces line 11: one of `superadam.estimators` or its name. It has its own τ.
        matrix: H_t, one of `superadam.matrices` or its name; default `SecondMoment()`, case 1. Norms and inner products
            are taken over all param groups with an equal matrix.
        schedule: μ_t and α_t, one of `superadam.schedules` or its name. Default: `BiasCorrected(0.9)`, as in Adam;
            with τ > 0 at construction, `BiasCorrected(0.5)`. `Paper()` is the paper's.
        iterate: where gradients are evaluated and which point is returned, one of `superadam.iterates` or its name;
            default `Plain()`, x_t for both.
        stepsize: a factor of γ, computed during training, one of `superadam.stepsizes` or its name. `lr="auto"` is
            `stepsize="Prodigy"` with γ = 1.
        constraint: X, one of `superadam.sets`, for each parameter separately. The constructor projects the parameters
            onto the set. Line 9 keeps them there, with the exact minimiser in the metric of H_t. A non-finite
            gradient then raises an error and drops the batch, because line 9 has no solution. (Sets of intervals on
            a GPU do not check for it.)
        penalty: h, one of `superadam.penalties`. Line 9 adds it to f.
        weight_decay: w. A step also subtracts γ μ_t w x_t.
        decoupled_weight_decay: if False, w x_t is added to the gradient instead (the gradient of w/2 ‖x‖²).
        clip: largest norm of g_t, taken over all param groups with an equal bound.
        maximize: maximise f.
        rounding: how to round the float32 updates of low-precision parameters. "nearest" loses small updates;
            "stochastic" (bfloat16 only) rounds up or down at random, with the right mean; "master" keeps a float32
            copy of x. It has no effect on float32 and float64.
        state_dtype: torch.bfloat16 stores g_t and the diagonal of H_t in two bytes per number instead of four. A step
            computes in float32 and rounds these at random, with the right mean. Factors of a matrix per tensor, the
            points of an iterate, and the state of double-precision parameters keep their precision.
        foreach: work on lists of tensors. Default: on accelerators. False takes one tensor at a time.
        fused: use torch's fused kernels. Default: if one computes the same step (case 1, AMSGrad, AdaGrad, and
            H_t = b I, all with τ = 0). If no kernel matches, `fused=True` warns and has no effect.
        compile: build our own kernel, on CPUs and CUDA devices, if all parts work on each coordinate separately. The
            first steps build it, which takes seconds. Sets then do not check for numbers that are not finite.
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
      2 tensors, 3 parameters, 8 bytes of state for each
    )
    """

    # torch.amp.GradScaler then always calls step(), which unscales and skips overflows: half-steps stay in order
    _step_supports_amp_scaling = True

    def __init__(
        self,
        params: ParamsT | nn.Module,
        lr: float | Tensor | str | None = None,
        *,
        tau: float = 0.0,
        estimator: Estimator | str | None = None,
        matrix: Matrix | str | None = None,
        schedule: Schedule | str | None = None,
        iterate: Iterate | str | None = None,
        stepsize: Stepsize | str | None = None,
        constraint: ConvexSet | str | None = None,
        penalty: Penalty | str | None = None,
        weight_decay: float = 0.0,
        decoupled_weight_decay: bool = True,
        clip: float | None = None,
        maximize: bool = False,
        rounding: str = "nearest",
        state_dtype: torch.dtype | str | None = None,
        foreach: bool | None = None,
        fused: bool | None = None,
        compile: bool = False,
        capturable: bool = False,
        differentiable: bool = False,
        **unknown: Unpack[OfZoo],  # so type checkers refuse any other name; at run time `refuse_unknown` does
    ) -> None:
        defaults = {
            "lr": lr,
            "tau": tau,
            "estimator": estimator,
            "matrix": "SecondMoment" if matrix is None else matrix,
            "schedule": schedule,
            "iterate": iterate,
            "stepsize": stepsize,
            "constraint": constraint,
            "penalty": penalty,
            "weight_decay": weight_decay,
            "decoupled_weight_decay": decoupled_weight_decay,
            "clip": clip,
            "maximize": maximize,
            "rounding": rounding,
            "state_dtype": state_dtype,
            "foreach": foreach,
            "fused": fused,
            "compile": compile,
            "capturable": capturable,
            "differentiable": differentiable,
        }
        method = unknown.pop("method", None)  # of the zoo: its name and its options
        options.refuse_unknown({**unknown}, defaults)
        super().__init__(params, {**defaults, **methods.view(method, defaults)})

    def check_theory(self, problem: theory.Problem) -> theory.Conditions:
        """Check the conditions of theorem 1 or 2, and list the options that the theorems do not cover.

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
