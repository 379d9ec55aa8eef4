"""`SuperAdam`: Algorithm 1 of the paper as a torch optimizer."""

from __future__ import annotations

import weakref
import zlib
from collections.abc import Callable, Iterable, Iterator, MutableMapping
from contextlib import contextmanager, nullcontext
from typing import TYPE_CHECKING, Any, TypedDict, TypeVar, cast, overload

import torch
from torch import Tensor, nn
from torch._compile import _disable_dynamo
from torch.optim.optimizer import ParamsT
from torch.utils.weak import WeakIdKeyDictionary

from superadam import bucket, checks, distributed, evaluations, loading, methods, options, step, theory
from superadam import rounding as rounding_
from superadam.bucket import BETWEEN, PENDING, READY, RESTARTED, START, UNESTIMATED, Bucket, State
from superadam.distributed import local, over_ranks, sharding
from superadam.estimators import Estimator
from superadam.iterates import Iterate
from superadam.lists import real, state_dtype
from superadam.matrices import Matrix, Slot
from superadam.messages import warn
from superadam.options import Plan
from superadam.penalties import Penalty
from superadam.schedules import Schedule
from superadam.sets import ConvexSet
from superadam.stepsizes import Stepsize
from superadam.theory.checks import check_optimizer

if TYPE_CHECKING:
    from typing_extensions import Unpack  # Python 3.10 has none in typing

__all__ = ["SuperAdam"]

Loss = TypeVar("Loss", bound="float | Tensor | None")  # what a closure returns; None leaves its batch out


class OfZoo(TypedDict, total=False):
    """The argument that `superadam.zoo` passes to `SuperAdam` besides its options."""

    method: dict[str, Any]


class SuperAdam(torch.optim.Optimizer):
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
    the parameter, or if it was frozen since: call `flush()` before parameters are frozen.

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
        matrix: H_t, one of `superadam.matrices` or its name. Default: Adam's, `SecondMoment(lam=1e-8,
            bias_correction=True)`. `SecondMoment()` is the paper's case 1. Norms and inner products
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
            "stochastic" (bfloat16 only) rounds up or down at random, with the right mean. It has no effect on float32
            and float64.
        foreach: work on lists of tensors. Default: on accelerators. False takes one tensor at a time.
        fused: use torch's fused kernels. Default: if one computes the same step (case 1, AMSGrad, AdaGrad, and
            H_t = b I, all with τ = 0). If no kernel matches, `fused=True` warns and has no effect.
        compile: run the lines by torch.compile, where all parts treat each coordinate by itself. The first steps build
            the kernels, which takes seconds.
        capturable: refused if True: step counts are on the host.

    >>> model = nn.Linear(2, 1)
    >>> opt = SuperAdam(model, lr=1e-2, tau=1.0, matrix="SecondMoment", schedule="Paper")
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
      runs by lists (Recursive takes more than an average of gradients)
    )
    """

    # torch.amp.GradScaler then always calls step(), which unscales and skips overflows: half-steps stay in order
    _step_supports_amp_scaling = True
    found_inf: Tensor | None = None  # a tensor while a GradScaler calls step()
    _evaluating = False  # between eval() and train()
    _at_x = False  # inside of at_x()
    _told = False  # that the parameters do not hold x_t

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
        foreach: bool | None = None,
        fused: bool | None = None,
        compile: bool = False,
        capturable: bool = False,
        **unknown: Unpack[OfZoo],  # so type checkers refuse any other name; at run time `refuse_unknown` does
    ) -> None:
        defaults: dict[str, Any] = {
            "lr": lr,
            "tau": tau,
            "estimator": estimator,
            "matrix": matrix,
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
            "foreach": foreach,
            "fused": fused,
            "compile": compile,
            "capturable": capturable,
        }
        method = unknown.pop("method", None)  # of the zoo: its name and its options
        options.refuse_unknown({**unknown}, defaults)
        defaults |= methods.view(method, defaults)
        self.gradient_evaluations = 0
        self.sample_gradients = 0  # counted by `anchored` loops, whose batches differ in size
        self._modules: list[nn.Module] = []
        self._met: MutableMapping[nn.Module, None] = WeakIdKeyDictionary()  # others that evaluations have run
        self._plans: list[Plan] = []
        self._shared: dict[Any, dict[str, Tensor]] = {}  # the scalars of matrices and step sizes
        self._places: dict[Tensor, distributed.Place] = {}
        self._turns: dict[Tensor, int] = {}
        self._processes: Any = None  # that divide the matrices of parameters which all of them hold
        self._inside: list[ConvexSet | None] = []  # the sets that the parameters of each group have been put into
        self._batch = evaluations.Progress()
        self._batches = 0  # how many have begun, of those that are evaluated twice
        self._used = evaluations.UsedGradients()
        if isinstance(params, nn.Module):
            self.protect(params)
            named, layers = list(params.named_parameters()), options.layers_of(params)
            params = [{"params": named, "param_layers": [layers[p] for _, p in named]}] if named else []
        elif isinstance(params, type):
            raise TypeError(
                f"SuperAdam got the class {params.__name__}: give it a model, {params.__name__}(…), or parameters"
            )
        # None stands for the composition's own value, and a group may have another composition.
        left_open = {name: None for name in ("lr", "schedule", "matrix") if defaults[name] is None}
        super().__init__(params, {**options.normalised(defaults), **left_open})
        options.unmatched_names(self._plans)
        options.stacked_vectors(self._plans)
        for module in self._modules:
            self._watch(module)
        evaluations.register(self)  # last: a refused optimizer may live on in a traceback

    # ------------------------------------------------------------------------------------ step

    @overload
    def step(self, closure: None = None) -> None: ...
    @overload
    def step(self, closure: Callable[[], Loss], *, anchor: Callable[[], Loss] | None = None) -> Loss: ...
    @_disable_dynamo  # torch.compiler.disable imports the compiler at once, which takes a second
    def step(
        self, closure: Callable[[], Loss] | None = None, *, anchor: Callable[[], Loss] | None = None
    ) -> Loss | None:
        """Use one batch. With a closure, return the loss of its first evaluation.

        Args:
            closure: clears the gradients, computes the loss, calls `backward` and returns the loss. `step` calls it
                once if τ = 0 and twice if τ > 0. If it leaves no gradient, and returns None or a loss without a graph,
                the batch is skipped. Without a closure, `step` uses the gradients in `p.grad`.
            anchor: with `estimators.Page`, the same for the large batch. `step` calls it instead of `closure`, once,
                where an anchor is due.
        """
        if self._evaluating:
            raise RuntimeError(
                "step() after opt.eval(): the parameters hold x_t, and the gradients are not those of the point where "
                "training stands. Call opt.train() before the gradients are computed."
            )
        if closure is not None and self.found_inf is not None:
            raise RuntimeError(
                "GradScaler inspects the gradients before step(closure) computes them. Call scaler.step(opt) without a "
                "closure; with tau > 0, in a loop over `superadam.twice(loader)`."
            )
        if closure is None and not self.state and evaluations.current() is None and self._nothing_to_learn():
            self.init_state()
            return None
        plans = self._current_plans()
        with torch.no_grad():
            if any([plan.two_point for plan in plans]):
                if closure is not None:
                    due = self._is_anchor(anchor)
                    return self._at_anchor(cast(Any, anchor)) if due else self._both_halves(closure)
                self._half_step()
                return None
            return self._full_step(closure)

    def _full_step(self, closure: Callable[[], Loss] | None) -> Loss | None:
        """Take a step with τ = 0: x_n to x_{n+1}."""
        if evaluations.here.halves:
            warn(
                "step() was called in a `twice` loop, but this optimizer uses one gradient per batch, so it takes two "
                "steps with each batch. Loop over the loader itself."
            )
        loss = None if closure is None else self._evaluate(closure)
        buckets = bucket.buckets(self, moves=True)
        self.gradient_evaluations += closure is None
        if self.found_inf is None or not self._unscaled_overflow():
            if self._looks:
                checks.check_finite(self._plans, self._name)
            step.absorb(buckets, {}, self._shared)
        return loss

    def _both_halves(self, closure: Callable[[], Loss]) -> Loss:
        """Take a step with τ > 0 and a closure: x_{n-1} to x_n."""
        if self._batch.open is not None:
            raise RuntimeError(
                "step(closure) was called between the two half-steps of a batch. Finish the batch with step() in the "
                "`twice` loop, or call opt.restart() to drop it."
            )
        self._batches += 1
        again, due = evaluations.Replay(self._buffered()), evaluations.is_due(self._batches)
        with again.buffers.watch(due):
            loss = self._cleared(closure)
        if due:
            self._met.update(again.buffers.owners())
        if self._left_out(loss):
            return loss
        buckets = self._usable_buckets()
        within: dict[Tensor, Any] = {}
        try:
            if self._is_pending():
                step.to_next_point(buckets + self._idle(), within)
                again.restore()
                self.zero_grad()
                if self._left_out(self._evaluate(closure)):
                    self._void()
                    return loss
                buckets = self._usable_buckets()
            self._absorb(buckets, within)
        except BaseException:
            self._void()
            raise
        self._used = evaluations.UsedGradients(self._parameters())
        return loss

    def anchor_due(self, share: float | None = None) -> bool:
        """Return whether the next batch is an anchor of `estimators.Page`: the first is, if no move is pending.

        Args:
            share: the probability of an anchor, where `Page` leaves it open.
        """
        pages = [plan.parts.estimator for plan in self._current_plans() if plan.parts.estimator.anchored]
        if not pages:
            raise ValueError(f"{self._plans[0].parts.estimator} has no anchors: use estimator=estimators.Page(…)")
        if any(page != pages[0] for page in pages):
            raise ValueError(f"The groups have different anchors, {pages[0]} and others: give them equal estimators")
        t = 1 + max((state["step"] for state in self.state.values() if "step" in state), default=0)
        return not self._is_pending() or pages[0].due(t, share)

    def _is_anchor(self, anchor: object) -> bool:
        """Return whether this call of `step(closure, anchor=…)` is to evaluate the large batch."""
        if not any(plan.parts.estimator.anchored for plan in self._plans):
            if anchor is not None:
                raise TypeError("step(anchor=…) is for estimator=estimators.Page(…): leave anchor out")
            return False
        if anchor is None:
            raise TypeError(
                "estimators.Page needs the large batch: write opt.step(closure, anchor=full_closure), or loop over "
                "superadam.anchored(loader, opt) and call step() without a closure"
            )
        return self.anchor_due()

    def _at_anchor(self, anchor: Callable[[], Loss]) -> Loss:
        """Take a step whose g_t is the gradient of a large batch."""
        self.arrive()
        loss = self._cleared(anchor)
        if not self._left_out(loss):
            self._absorb(self._usable_buckets(), {})
            self._used = evaluations.UsedGradients(self._parameters())
        return loss

    @torch.no_grad()
    def arrive(self) -> None:
        """Take the pending moves, so that the parameters are at x_t before an anchor is evaluated."""
        self._current_plans()
        pending = self._pending()
        step.take_moves(pending)
        for s in pending:
            for state in s.states:
                state["phase"] = READY

    def _half_step(self) -> None:
        """Take a half-step of a batch: τ > 0 without a closure."""
        batch, half = self._batch, self._this_half()
        buckets = self._usable_buckets(check=False)
        self.gradient_evaluations += 1
        overflow, dropped = self.found_inf is not None and self._unscaled_overflow(), batch.dropped is half.batch
        batch.last = half
        refused: ValueError | None = None
        if not overflow and not dropped:
            try:
                checks.check_finite(self._plans, self._name)
            except ValueError as error:  # the batch is dropped, as after an overflow, and the loop can go on
                overflow, refused = True, error
        rates = [float(lr) for lr in (group["lr"] for group in self.param_groups) if not _on_device(lr)]
        if not half.anchor and not half.second and not self._is_pending() and self._plans[0].parts.estimator.anchored:
            raise RuntimeError(
                "An anchor is due, and a `twice` loop has none: loop over superadam.anchored(loader, opt)."
            )
        if half.anchor:
            if not overflow:
                self._absorb(buckets, {})
        elif not half.second:
            batch.open, batch.within, batch.rates = half.batch, {}, rates
            if overflow:  # the pending move waits for the next batch
                batch.dropped = half.batch
            else:
                step.to_next_point(buckets + self._idle(), batch.within)
        else:
            if overflow and not dropped:
                self._void()
            elif not dropped:
                self._absorb(buckets, batch.within)
            if rates != batch.rates and not batch.told:
                batch.told = True
                warn(
                    "The learning rate changed between the two turns of a batch of the `twice` loop: a scheduler that "
                    "steps in each turn runs twice as fast. Call it once a batch: `if i % 2: scheduler.step()`, with "
                    "`for i, batch in enumerate(twice(loader))`."
                )
            batch.open = None
        if refused is not None:
            raise refused

    def _absorb(self, buckets: list[Bucket], within: dict[Tensor, Any]) -> None:
        """Take the gradients at x_t into g_t and H_t."""
        if any([p.grad is None for p in self._parameters()]):
            in_use = {s.matrix for s in buckets}
            for plan, p, state in self._with_state():
                if p.grad is None and plan.matrix(p) in in_use:
                    plan.matrix(p).absent(state)
                if p.grad is None and state["phase"] == BETWEEN:
                    _drop_half(state)
        step.absorb(buckets, within, self._shared)

    def _void(self) -> None:
        """Drop the batch whose second evaluation failed. x_t stays: the move to it does not depend on this batch."""
        if self._batch.open is not None:
            self._batch.dropped, self._batch.open, self._batch.last = self._batch.open, None, None
        for _, _, state in self._with_state():
            if state["phase"] == BETWEEN:
                _drop_half(state)

    # ------------------------------------------------------------------------------------ gradients of a batch

    def _evaluate(self, closure: Callable[[], Loss]) -> Loss:
        with torch.enable_grad():
            loss = closure()
        self.gradient_evaluations += 1
        return loss

    def _cleared(self, closure: Callable[[], Loss]) -> Loss:
        """Clear the gradients and evaluate. Otherwise a closure that does not clear them would add to old ones.

        If gradients came since the last step, they may be of other micro-batches, which must not be lost. Then a NaN in
        one of them tells whether the closure adds to them: it is still there afterwards. Such a closure is refused.
        """
        newer = self._used.newer(self._parameters())
        self.zero_grad()
        if newer is None:
            return self._evaluate(closure)
        if newer.grad is None:
            newer.grad = torch.zeros_like(newer)
        newer.grad.fill_(torch.nan)
        try:
            loss = self._evaluate(closure)
        except BaseException:
            self.zero_grad()
            raise
        if newer.grad is not None and bool(local(newer.grad).isnan().any()):
            self.zero_grad()
            raise RuntimeError(
                "step(closure) found gradients, and the closure does not clear them but adds to them. With tau > 0 "
                "micro-batches must be evaluated at two points, all of them inside the closure. (In Lightning: "
                "accumulate_grad_batches=1 and larger batches, or manual optimization with such a closure.) If they "
                "are not meant to count, clear the gradients in the closure."
            )
        return loss

    def _left_out(self, loss: object) -> bool:
        """Return whether the closure left this batch out on purpose: no gradient, and no loss to take one of.

        Lightning does so in the last pass of its SWA, and where `training_step` returns None. A closure that forgets
        `backward` is another case: it leaves no gradient in the first step, or returns a loss that has a graph.
        """
        if any([p.grad is not None for p in self._parameters()]):
            return False
        if loss is not None and (not self.state or (isinstance(loss, Tensor) and loss.requires_grad)):
            return False
        self.gradient_evaluations -= 1
        return True

    def _usable_buckets(self, *, check: bool = True) -> list[Bucket]:
        """Return the buckets of an evaluation; refused if it left no gradient, or a gradient that cannot be used."""
        buckets = bucket.buckets(self)
        if not buckets:
            raise RuntimeError(
                "No parameter has a gradient. With tau > 0 every evaluation must compute gradients: does the closure "
                "call loss.backward(), and does the `twice` loop call it in both turns?"
            )
        if check and self._looks:
            try:
                checks.check_finite(self._plans, self._name)
            except checks.NotFiniteError:
                self._used = evaluations.UsedGradients(self._parameters())  # they are of no other micro-batch
                raise
        return buckets

    def _unscaled_overflow(self) -> bool:
        """Divide the gradients by a GradScaler's scale, in place. Return whether they have overflowed."""
        scale: Tensor | None = getattr(self, "grad_scale", None)  # None if the user has called `scaler.unscale_`
        by_device: dict[torch.device, list[Tensor]] = {}
        for p in self._parameters() if scale is not None else ():
            if p.grad is not None:
                by_device.setdefault(p.device, []).append(local(p.grad))
        for device, grads in by_device.items():
            torch._foreach_mul_(grads, cast(Tensor, scale).float().reciprocal().to(device))
        return bool(self.found_inf)

    def _this_half(self) -> evaluations.Half:
        """Return the half-step that is due; refused if there is none, or if it is out of order."""
        half, batch = evaluations.current(), self._batch
        if half is None:
            raise RuntimeError(
                "SuperAdam needs two gradients of every batch here (tau > 0, or a matrix such as BarzilaiBorwein), so "
                "step() must know which one this is. Write opt.step(closure), with a closure that clears the "
                "gradients, computes the loss and calls backward; or loop, in the thread that calls step(), "
                "`for batch in superadam.twice(loader):`, where each batch comes twice. In Hugging Face's Trainer "
                "mix in superadam.trainers.TwoPoint: `class MyTrainer(TwoPoint, Trainer): pass`."
            )
        if half == batch.last:
            raise RuntimeError("Half-steps out of order: step() was called twice in one turn of the `twice` loop.")
        if half.done < half.size:
            raise RuntimeError(
                f"step() after micro-batch {half.done} of {half.size}: with `twice(loader, accumulate=...)` call it "
                "when all of them have been added up, `if turns.complete:`, where turns is what twice() returned. "
                f"(With accelerator.accumulate(): Accelerator(gradient_accumulation_steps={half.size}).)"
            )
        if half.batch is batch.dropped and batch.open is None:
            raise RuntimeError(
                "This batch was dropped by opt.restart() or opt.flush(): go on with the next one of the `twice` loop."
            )
        if batch.open is not (half.batch if half.second else None):
            missed = "this batch's first turn" if half.second else "the last batch's second turn"
            raise RuntimeError(
                f"Half-steps out of order: {missed} had no step(). Call opt.step() in both turns of every batch of the "
                "`twice` loop, or opt.restart() to drop a batch that was left half done. (To accumulate gradients, "
                "loop over `twice(loader, accumulate=n)`, or use step(closure) with a closure that goes over the "
                "micro-batches.)"
            )
        return half

    def _nothing_to_learn(self) -> bool:
        """Return whether γ = 0 and all gradients are 0, as torch.distributed.checkpoint steps to make the state."""
        if any(_on_device(lr) or lr != 0 for lr in (group["lr"] for group in self.param_groups)):
            return False
        seen = [(p, p.grad) for p in self._parameters() if p.grad is not None]
        if not seen or any(grad.layout is not torch.strided for _, grad in seen):
            return False
        return not any(over_ranks(local(grad).count_nonzero(), sharding(p)) for p, grad in seen)

    # ------------------------------------------------------------------------------------ buckets

    def buckets(self, *, with_grad: bool = True) -> list[Bucket]:
        """Return the parameters with a gradient, or with a state, in buckets.

        Args:
            with_grad: take the parameters with a gradient, and give those that are new a state.
        """
        self._current_plans()
        found = bucket.buckets(self, with_grad=with_grad)
        for s in found:
            if s.states[0]["step"] > 0:
                step.set_numbers(s)
            step.newest(s)
        return found

    def _pending(self, *, idle: bool = False) -> list[Bucket]:
        """Return the parameters with a pending move in buckets, whose numbers are set; `idle`: without a gradient."""
        found = bucket.buckets(self, with_grad=False, idle=idle)
        pending = [s for s in found if s.phase == PENDING]
        for s in pending:
            step.set_numbers(s)
        return pending

    def _idle(self) -> list[Bucket]:
        """Return buckets of the parameters that have a pending move and no gradient: the move does not wait for it."""
        some = any([p.grad is None for p in self._parameters()])
        return self._pending(idle=True) if some else []

    # ------------------------------------------------------------------------------------ parts and state

    def _parameters(self) -> list[Tensor]:
        return [p for group in self.param_groups for p in group["params"]]

    def _buffered(self) -> list[nn.Module]:
        """Return the modules whose buffers are the same in both evaluations of a batch."""
        return [*self._modules, *self._met]

    def _name(self, p: Tensor) -> str:
        """Return the name of a parameter for an error."""
        for i, group in enumerate(self.param_groups):
            for j, other in enumerate(group["params"]):
                if other is p:
                    names = group.get("param_names")
                    return str(names[j]) if names else f"{j} of group {i}"
        raise KeyError(p)

    def _current_plans(self) -> list[Plan]:
        """Return a plan for each group, made again if an option has changed."""
        plans, groups = self._plans, self.param_groups
        if any(["method" in group for group in groups]):
            methods.follow(self)
        if len(plans) != len(groups) or not all(
            [plan.group is g and plan.is_current() for plan, g in zip(plans, groups, strict=True)]
        ):
            self._replan()
        return self._plans

    def _replan(self) -> None:
        """Turn changed options into plain data and plans, refuse them or fit the state to them."""
        given = [options.normalised(group) for group in self.param_groups]
        plans = [Plan({**group, **found}) for group, found in zip(self.param_groups, given, strict=True)]
        before = {p: type(plan.matrix(p)) for plan in self._plans for p in plan.group["params"]}
        changed = {p for plan in plans for p in plan.group["params"] if before.get(p) is not type(plan.matrix(p))}
        options.check_groups(plans)
        if any(self.state.get(p, {}).get("phase") in (PENDING, BETWEEN) for p in changed):
            raise ValueError("A move along the old H_t is pending: call opt.flush() before changing the matrix.")
        for group, found in zip(self.param_groups, given, strict=True):
            group.update(found)
        self._plans = [Plan(group) for group in self.param_groups]
        self._place()
        for plan in self._plans:
            for p in plan.group["params"]:
                state = self.state.get(p)
                if not state:
                    continue
                new = p in changed and p in before  # another H_t begins with step 1
                expected = {
                    **plan.expected(p),
                    **{n: tuple(s.shape) for n, s in plan.slots(p, self._places).items()},
                }
                for name in list(state):
                    shape = expected.get(name)
                    misfit = name not in expected or (shape is not None and tuple(state[name].shape) != shape)
                    if misfit or (new and name not in ("number", "root")):
                        del state[name]
                self._complete(plan, p)
        self._tie_scalars()
        for i, plan in enumerate(self._plans):  # x must be feasible in a set that the user has given to a group since
            if plan.parts.constraint != self._inside[i]:
                self._enter_set(plan)
            self._inside[i] = plan.parts.constraint

    def _place(self) -> None:
        """Find out which process works on the matrices of each tensor, and when each is refreshed."""
        keys: dict[Tensor, tuple[int, str]] = {}
        for plan in self._plans:
            names = plan.group.get("param_names") or [""] * len(plan.group["params"])
            matrices = {p: plan.matrix(p) for p in plan.group["params"] if plan.matrix(p).per_tensor}
            self._places.update(distributed.places(matrices, self._processes, self._places))
            # by size and name, so that neither the order of the parameters nor their groups matter
            keys |= {
                p: (-p.numel(), f"{name} {tuple(p.shape)}")
                for p, name in zip(plan.group["params"], names, strict=True)
                if p in matrices
            }
        turn = {key: i for i, key in enumerate(sorted(set(keys.values())))}
        self._turns = {p: turn[key] for p, key in keys.items()}
        self._looks = any(not plan.free or plan.any_factors for plan in self._plans)  # whether a step looks for NaN
        self._divided = any(place.group is not None for place in self._places.values())

    @property
    def two_point(self) -> bool:
        """Whether a step takes two gradients of its batch."""
        return any([plan.two_point for plan in self._current_plans()])

    def _is_pending(self) -> bool:
        """Return whether a move is pending."""
        return any([state.get("phase") == PENDING for state in self.state.values()])

    def _with_state(self) -> Iterator[tuple[Plan, Tensor, State]]:
        """Return every parameter that has a state."""
        return ((plan, p, self.state[p]) for plan in self._plans for p in plan.group["params"] if self.state.get(p))

    def _complete(self, plan: Plan, p: Tensor) -> None:
        """Create the missing entries of a parameter's state."""
        state, parts, factors = self.state[p], plan.of(p), plan.factors(p)
        state.setdefault("step", 0)
        state.setdefault("phase", START)
        for name, slot in plan.slots(p, self._places).items():
            if name not in state:
                state[name] = _new(p, slot, factor=name in factors)
        for name in parts.iterate.numbers:
            state.setdefault(name, 0.0)
        if parts.two_point and "gamma" not in state:
            state["gamma"] = 0.0
        if plan.group["rounding"] == "stochastic" and p.dtype is torch.bfloat16 and "number" not in state:
            names = plan.group.get("param_names")
            place = [other is p for other in plan.group["params"]].index(True)
            # of the name where it is known, so that the order of the parameters does not matter
            state["number"] = zlib.crc32(names[place].encode()) if names else len(self.state)
        shape, here = parts.root_shape(p), parts.root_shape(local(p))
        if shape is not None and here is not None and "root" not in state:
            state["root"] = distributed.joined(torch.zeros(here, dtype=state_dtype(p), device=p.device), shape, p)
        for part in parts.sharing:
            if not state.keys() >= set(part.scalars):
                state.update(self._scalars_of(part))

    def init_state(self) -> None:
        """Create the state that training would create, as it is before the first step: to load a checkpoint into."""
        for plan in self._current_plans():
            for p in plan.group["params"]:
                if p.requires_grad:
                    self._complete(plan, p)

    def _check_state(self, plan: Plan, p: Tensor, state: State) -> None:
        """Refuse a parameter whose shape or precision is not that of its state: a kernel would write beyond its end."""
        for name, slot in plan.slots(p, self._places).items():
            was, now = (tuple(state[name].shape), state[name].dtype), (tuple(slot.shape), state_dtype(p))
            if was != now:
                raise RuntimeError(
                    f"Parameter {self._name(p)} has shape {tuple(p.shape)} and is {p.dtype}, but its state was "
                    f"created for another shape or precision: {name!r} is {was[0]} {was[1]}, expected {now[0]} "
                    f"{now[1]}. Construct a new optimizer, or `del opt.state[p]` to reset this parameter."
                )

    def _scalars_of(self, part: Any) -> dict[str, Tensor]:
        """Return the scalars of a matrix or a step size, which all its parameters share; created if there are none."""
        if self._shared.get(part, {}).keys() != set(part.scalars):
            params = [p for plan in self._plans for p in plan.group["params"] if part in plan.of(p).sharing]
            dtype = torch.float64 if any(state_dtype(p) is torch.float64 for p in params) else torch.float32
            self._shared[part] = {
                name: torch.full(part.scalar_shape(name), part.initial(name), dtype=dtype, device=params[0].device)
                for name in part.scalars
            }
        return self._shared[part]

    def _tie_scalars(self) -> None:
        """Have all parameters of a matrix or a step size share its scalars, after loading or a change of options."""
        self._shared = {}
        taken: set[int] = set()
        for plan, p, state in self._with_state():
            for part in plan.of(p).sharing:
                if part not in self._shared:
                    held = {n: state[n] for n in part.scalars if n in state}
                    own = {n: value.clone() if id(value) in taken else value for n, value in held.items()}
                    taken.update(map(id, own.values()))
                    self._shared[part] = {**self._scalars_of(part), **own}
                state.update(self._shared[part])

    # ------------------------------------------------------------------------------------ groups

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        """Add a group of parameters, with any option of its own."""
        left_open = False
        if isinstance(param_group, dict):
            options.refuse_misspelt(param_group, self.defaults)
            param_group = {**self.defaults, **param_group}
            left_open = param_group["lr"] is None
            param_group = self._named(options.normalised(param_group))
        super().add_param_group(param_group)
        group = self.param_groups[-1]
        try:
            if "method" in group:
                methods.follow(self)  # the group may have other options of the method
            plan = Plan(group)
            self._plans.append(plan)
            if left_open:
                group["lr"] = plan.parts.lr
            options.check_groups(self._plans)
            self._enter_set(plan)
            self._place()
        except (TypeError, ValueError):  # the parameters may be complex, not finite, or of a shape that the set refuses
            self.param_groups.pop()
            del self._plans[len(self.param_groups) :]
            raise
        self._inside.append(plan.parts.constraint)
        options.missing_kernel(plan)

    def _named(self, group: dict[str, Any]) -> dict[str, Any]:
        """Return a group of bare parameters with the names and layers that the optimizer's modules know."""
        params = group["params"]
        if isinstance(params, set):  # torch refuses it
            return group
        params = [params] if isinstance(params, Tensor) else list(params)
        named = any("param_names" in other for other in self.param_groups)
        if not named or not params or not all(isinstance(p, Tensor) for p in params):
            return {**group, "params": params}
        known: dict[Tensor, tuple[str, str]] = {}
        for module in self._modules:
            of = options.layers_of(module)
            known |= {p: (name, of[p]) for name, p in module.named_parameters()}
        taken = {name for other in self.param_groups for name in other.get("param_names", ())}
        start = len(self._parameters())
        found = [known.get(p, (f"parameter {start + i}", "")) for i, p in enumerate(params)]
        names = [name if name not in taken else f"parameter {start + i}" for i, (name, _) in enumerate(found)]
        layers = {"param_layers": [layer for _, layer in found]} if self._modules else {}
        return {**group, **layers, "params": list(zip(names, params, strict=True))}

    @torch.no_grad()
    def _enter_set(self, plan: Plan) -> None:
        """Project the parameters of a group onto their set, all of them or none: x_1 must be feasible."""
        constraint, params = plan.parts.constraint, plan.group["params"]
        if constraint is not None:
            points = [constraint.entry(local(p).to(state_dtype(p))) for p in params]
            for p, x in zip(params, points, strict=True):
                local(p).copy_(x)

    def protect(self, module: nn.Module) -> None:
        """Give both evaluations of a batch the same buffers of `module`, as is done for a module given as `params`.

        With an iterate whose parameters do not hold the result while training (`ScheduleFree`, `Averaged`, `Lookahead`,
        `Nigt`), evaluating `module` at the wrong point also gives a warning.
        """
        self._modules.append(module)
        self._watch(module)

    def _watch(self, module: nn.Module) -> None:
        """Warn if `module` is evaluated where gradients are taken, for as long as this optimizer lives."""
        if any(plan.settles for plan in self._plans):
            hook = module.register_forward_pre_hook(_Notice(self))
            weakref.finalize(self, hook.remove).atexit = False

    def divide_matrices(self, process_group: Any = None) -> None:
        """With DDP, divide the work of a matrix of each tensor (Muon, SOAP, …), and its factors, among the processes.

        By default every process does all of it, which sends nothing. After this call each tensor has an owner, which
        alone keeps the factors and solves, and one message per step gives the steps to all: the results are the same.
        It is a method and no option, as it belongs to a run and not to a composition: a checkpoint of any number of
        processes is loaded by any other, divided or not. All processes must call it, and then `state_dict()` too. They
        must have gradients for the same parameters: a step refuses others on all of them. Parameters that FSDP2 has cut
        are divided without it.

        Args:
            process_group: those that hold the same parameters; all processes if None.
        """
        group = torch.distributed.group.WORLD if process_group is None else process_group
        if group is None:
            raise RuntimeError(
                "divide_matrices() before torch.distributed.init_process_group(): there are no processes"
            )
        self._processes = group if group.size() > 1 else None
        self._current_plans()
        self._place()
        for plan, p, state in self._with_state():
            for name in plan.factors(p) & state.keys():
                state[name] = distributed.restored(state[name], p, self._places[p])

    def divisions(self) -> list[str]:
        """Say which parameters have which matrix, where a `ByShape` chooses; a line for each."""
        return [line for plan in self._current_plans() for line in plan.divisions()]

    def __repr__(self) -> str:
        return options.describe(self._current_plans(), self._places, self._is_pending())

    # ------------------------------------------------------------------------------------ other points, ends, restarts

    @torch.no_grad()
    def flush(self) -> None:
        """Take the pending moves, at the end of training with τ > 0.

        Training can continue afterwards. The point before the move is gone, so the next batch enters g by momentum.
        If a batch is between its two half-steps, `flush` drops it with a warning, and the next gradient becomes g, as
        after `restart()`.
        """
        if self._batch.open is not None:
            warn(
                "flush() after the first of the two half-steps of a batch: the batch is dropped, and g with it. To "
                "keep g, leave a `twice` loop after the second turn of a batch; opt.restart() drops it on purpose."
            )
            self._void()
        self.train()
        self.arrive()
        self._settle()

    def _settle(self) -> None:
        for s in bucket.buckets(self, with_grad=False):
            if s.plan.settles:
                if s.states[0]["step"] > 0:
                    step.set_numbers(s)
                with rounding_.widened(s):
                    s.iterate.settle(s)

    @torch.no_grad()
    def restart(self) -> None:
        """Drop g: the next gradient of every parameter becomes its g, as at the start. H and the step counts stay.

        A batch between its two half-steps is dropped. Pending moves are taken, except along a g that is not finite. A
        parameter with an H that is not finite starts again from step 1.
        """
        self._current_plans()
        self._void()
        self._drop_what_is_not_finite()
        self.flush()
        for plan, p, state in self._with_state():
            for name in plan.of(p).estimator.buffers:
                local(state[name]).zero_()
            if state["phase"] != START:
                _forget(state)

    def _drop_what_is_not_finite(self) -> None:
        spoilt = {
            part for part, held in self._shared.items() if not all(bool(v.isfinite().all()) for v in held.values())
        }
        for plan, p, state in list(self._with_state()):
            parts = plan.of(p)
            others = {*parts.estimator.buffers, *parts.iterate.buffers}
            of_matrix = [name for name in parts.slots(real(p)) if name not in others]
            if spoilt.intersection(parts.sharing) or not _finite(state, of_matrix, p, self._places.get(p)):
                for name in state.keys() - {"number", "root"}:
                    del state[name]
            elif not _finite(state, others, p):
                _forget(state)
        for part in spoilt:
            del self._shared[part]
        for plan in self._plans:
            for p in plan.group["params"]:
                if p in self.state:
                    self._complete(plan, p)

    @torch.no_grad()
    def feasibility(self) -> float:
        """Return the largest distance of a coordinate from its set: 0 where all constraints hold."""
        worst = [
            over_ranks(plan.parts.constraint.violation(local(p)), sharding(p), "max").item()
            for plan in self._current_plans()
            if plan.parts.constraint is not None
            for p in plan.group["params"]
        ]
        return max(worst, default=0.0)

    @contextmanager
    def at_x_tilde(self) -> Iterator[None]:
        """Put the parameters to x̃ inside the `with`, and back afterwards.

        x̃ is the solution of line 9 from the parameters as they are, with the newest g and H. It can be exactly sparse,
        or exactly on the border of a set. x_t, a mixture of many x̃, only comes close to that. The `with` keeps a copy
        of the parameters.
        """
        with torch.no_grad():
            estimated = [s for s in self.buckets(with_grad=False) if s.phase not in UNESTIMATED]
            buckets = [s for s in estimated if not s.free]
            held = [t for s in buckets for p, state in zip(s.params, s.states, strict=True) for t in _held(s, p, state)]
            with evaluations.put_back(held):
                for s in estimated:
                    step.set_numbers(s)
                step.solve_jointly(estimated)
                for s in buckets:
                    gamma = step.gamma_of_move(s)
                    s.iterate.rebase(s)
                    s.x.copy_(step.x_tilde(s, gamma))
                with torch.enable_grad():
                    yield

    @contextmanager
    def at_x(self, batches: Iterable[Any] | None = None) -> Iterator[None]:
        """Put the parameters to x_t inside the `with`, to evaluate or export, and back afterwards.

        With `iterates.Nigt` (NIGT, Adam⁺) they are ahead of x_t while gradients are taken, with
        `ScheduleFree` between x_t and z_t. With `Averaged` and `Lookahead` x_t is the average or the slow point. With
        `iterates.Plain` they hold x_t anyway. The `with` keeps a copy of the parameters and of the iterate's tensors.
        Save checkpoints to resume from outside of it: inside, parameters and state do not belong together.

        Args:
            batches: inputs, or tuples that begin with one, for BatchNorm: its statistics are those of the points where
                gradients are taken. Inside the `with` they are those of x_t over these batches.
        """
        if batches is not None and not self._modules:
            raise ValueError("at_x(batches) needs the model: give it to the optimizer, or to opt.protect(model)")
        self._current_plans()
        held = [t for plan, p, state in self._with_state() if plan.settles for t in _held(plan.parts, p, state)]
        with evaluations.put_back(held):
            with torch.no_grad():
                self._settle()
            before, self._at_x = self._at_x, True
            try:
                with nullcontext() if batches is None else evaluations.aside(self._buffered(), batches):
                    if batches is not None:
                        for module in self._modules:
                            torch.optim.swa_utils.update_bn(batches, module)
                    yield
            finally:
                self._at_x = before

    @torch.no_grad()
    def eval(self) -> None:
        """Move the parameters to x_t until `train()`: like `at_x()`, for programs that call `opt.eval()`.

        The state keeps what they held before, so a checkpoint saved in between resumes normally.
        """
        if not self._evaluating:
            self._current_plans()
            for plan, p, state in self._with_state():
                if plan.settles:
                    names = ("x", *plan.parts.iterate.buffers)
                    held = zip(names, _held(plan.parts, p, state), strict=True)
                    state.update({f"aside_{name}": tensor.detach().clone() for name, tensor in held})
                    self._evaluating = True
            self._settle()

    @torch.no_grad()
    def train(self, mode: bool = True) -> None:
        """Undo `eval()`, bit for bit. Without one it does nothing."""
        if not mode:
            return self.eval()
        for plan, p, state in self._with_state() if self._evaluating else ():
            names = ("x", *plan.parts.iterate.buffers)
            for name, tensor in zip(names, _held(plan.parts, p, state), strict=True):
                if f"aside_{name}" in state:
                    tensor.copy_(state.pop(f"aside_{name}"))
        self._evaluating = False
        return None

    @torch.no_grad()
    def observe(self) -> None:
        """Give the current gradients to matrices that need gradients of their own (`matrices.Sophia`), without a step.

        They come from another loss than f, such as `matrices.sampled_label_loss`. Clear them afterwards.
        """
        seen = self.buckets()
        if not seen:
            raise RuntimeError("opt.observe() found no gradient: call backward() of the loss for H_t before")
        observing = [s for s in seen if type(s.matrix).observe is not Matrix.observe]
        if not observing:
            raise RuntimeError(
                f"opt.observe() is for matrices that ask for a gradient of their own, such as Sophia, and "
                f"{type(seen[0].matrix).__name__} does not: leave the call out"
            )
        for s in observing:
            s.matrix.observe(s, step.newest(s))

    def _is_elsewhere(self) -> bool:
        """Return whether the parameters hold another point than x_t: after `flush()`, and at first, they do not."""
        return any(
            bool(local(state[name]).any())
            for plan, _, state in self._with_state()
            if plan.settles
            for name in plan.parts.iterate.buffers
        )

    def check_theory(self, problem: theory.Problem) -> theory.Conditions:
        """Check the conditions of theorem 1 or 2, and list the options that the theorems do not cover.

        >>> opt = SuperAdam(nn.Linear(2, 1), lr=1e-4, tau=1.0, matrix="SecondMoment", schedule="Paper")
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

    # ------------------------------------------------------------------------------------ checkpoints

    def state_dict(self) -> dict[str, Any]:
        """Return the state as plain numbers, strings and tensors. Refused between the two half-steps of a batch.

        If the processes have divided the matrices of tensors, all of them must call it.
        """
        self._current_plans()
        if self._batch.open is not None or any(state.get("phase") == BETWEEN for state in self.state.values()):
            raise RuntimeError(
                "state_dict() was called between the two half-steps of a batch; training could not resume from there. "
                "Call it after the second step() of a batch."
            )
        state = super().state_dict()
        for group in state["param_groups"]:  # copies, which do not change as training goes on
            group.update({name: dict(value) for name, value in group.items() if isinstance(value, dict)})
        by_param = {index: dict(values) for index, values in state["state"].items()}
        params = [(plan, p) for plan in self._plans for p in plan.group["params"]]
        for index, (plan, p) in enumerate(params):
            for name in sorted(plan.factors(p) & by_param.get(index, {}).keys()):
                by_param[index][name] = distributed.saved(by_param[index][name], p, self._places[p])
        counts = {name: getattr(self, name) for name in _COUNTS}
        return {**state, "state": by_param, **counts}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Load a result of `state_dict`. Its options take effect; another composition is refused.

        Where both sides know the names of the parameters (from a module, or from `named_parameters()`), each parameter
        gets the state that was saved under its name, and other names are refused. Without names, as in torch,
        parameters are paired by position: the model must define its layers in the same order.

        A method that torch has (`create("adamw")`, …) loads the checkpoints of torch's optimizer too.
        """
        self._current_plans()
        state_dict = methods.from_torch(self, loading.rejoined(state_dict))
        loaded: dict[str, Any] = {}

        def look(_: Any, state_dict: dict[str, Any]) -> dict[str, Any]:
            """Check the dict that torch loads, after the user's own hooks and before anything changes."""
            loaded.update(loading.fitted(self, state_dict))
            return loaded

        handles = [
            self.register_load_state_dict_pre_hook(look),
            self.register_load_state_dict_post_hook(lambda _: self._loaded(loaded), prepend=True),
        ]
        try:
            super().load_state_dict(state_dict)
        finally:
            for handle in handles:
                handle.remove()

    def _loaded(self, loaded: dict[str, Any]) -> None:
        """Fit the loaded state, before the user's own hooks run."""
        self._plans = [Plan(group) for group in self.param_groups]
        self._place()
        loading.keep_dtypes(self, loaded)
        self._reset()
        for name in _COUNTS:
            setattr(self, name, loaded.get(name, 0))

    def _reset(self) -> None:
        """Make everything anew that depends on the groups and the state, after they were replaced."""
        self._batch, self._batches, self._used = evaluations.Progress(), 0, evaluations.UsedGradients()
        self._plans = [Plan(group) for group in self.param_groups]
        self._place()
        self._tie_scalars()
        self._inside = [plan.parts.constraint for plan in self._plans]
        self._evaluating = any("aside_x" in state for state in self.state.values())
        for plan, p, _ in self._with_state():
            self._complete(plan, p)

    def __getstate__(self) -> dict[str, Any]:
        self._current_plans()
        own = (*_COUNTS, "_modules", "_batch", "_processes")
        return {**super().__getstate__(), **{name: getattr(self, name) for name in own}}

    def __setstate__(self, state: dict[str, Any]) -> None:
        super().__setstate__(state)
        self.defaults.pop("differentiable", None)  # torch adds it
        self._places, self._met = {}, WeakIdKeyDictionary()
        self._processes = state["_processes"] if "_processes" in state else getattr(self, "_processes", None)
        for group in self.param_groups:
            group.update(options.normalised({**self.defaults, **group}))
        batch = state.get("_batch", evaluations.Progress())
        self._reset()
        self._batch = batch
        evaluations.register(self)


_COUNTS = ("gradient_evaluations", "sample_gradients")


def _on_device(lr: object) -> bool:
    """Return whether the host would wait for a learning rate."""
    return isinstance(lr, Tensor) and lr.device.type != "cpu"


def _new(p: Tensor, slot: Slot, *, factor: bool) -> Tensor:
    """Return a tensor of the state of a parameter, with its strides and sharding if it is no factor."""
    dtype = state_dtype(p)
    if tuple(slot.shape) == tuple(real(p).shape) and not factor:
        return torch.full_like(real(p), slot.fill, dtype=dtype, memory_format=torch.preserve_format).detach()
    if slot.eye:
        made = torch.eye(slot.shape[-1], dtype=dtype, device=p.device).mul_(slot.fill)
        return made.expand(slot.shape).clone()
    return torch.full(slot.shape, slot.fill, dtype=dtype, device=p.device)


def _forget(state: State) -> None:
    """Have the next gradient be g."""
    state["g"] = torch.zeros_like(state["g"])
    state["phase"] = RESTARTED


def _drop_half(state: State) -> None:
    """Drop g, which holds the first half of line 11 and is no estimate: the next gradient is g."""
    state["step"] -= 1
    _forget(state)


def _held(parts: Any, p: Tensor, state: State) -> list[Tensor]:
    """Return a parameter and the tensors of its state that change when it is put elsewhere."""
    return [p, *(state[name] for name in parts.iterate.buffers if name in state)]


def _finite(state: State, names: Iterable[str], p: Tensor, place: distributed.Place | None = None) -> bool:
    """Return whether the tensors of a state are finite, on all processes."""
    sums = [local(state[name]).sum(dtype=torch.float64) for name in names if name in state]
    if not sums:
        return True
    spoilt = torch.stack([~total.isfinite() for total in sums]).any()
    spoilt = over_ranks(spoilt.float(), sharding(p), "max")
    if place is not None and place.group is not None and place.dim is None:
        torch.distributed.all_reduce(spoilt, torch.distributed.ReduceOp.MAX, group=place.group)
    return not bool(spoilt)


class _Notice:
    """A hook of a module whose parameters do not hold x_t while it is trained: to evaluate it then is a mistake."""

    def __init__(self, opt: SuperAdam | None = None) -> None:
        self.opt = (lambda: None) if opt is None else weakref.ref(opt)

    def __reduce__(self) -> Any:  # a copy of the module is not the module that is trained
        return _Notice, ()

    def __call__(self, module: nn.Module, args: Any) -> None:
        if module.training or torch.compiler.is_compiling():
            return
        opt = self.opt()
        if opt is None or opt._evaluating or opt._told or opt._at_x or not opt._is_elsewhere():
            return
        opt._told = True
        iterate = next(plan.parts.iterate for plan in opt._plans if plan.settles)
        warn(
            f"The model is in eval mode, but its parameters hold the point where {iterate} takes gradients, not the "
            "result: evaluate inside `with opt.at_x():`, or call opt.eval() before and opt.train() afterwards."
        )
