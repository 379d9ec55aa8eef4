"""`SuperAdam`: Algorithm 1 of the paper as a torch optimizer."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Hashable, Iterator
from contextlib import contextmanager
from typing import Any, cast, overload

import torch
from torch import Tensor, nn
from torch.optim.optimizer import ParamsT

from superadam import options, replay, steps
from superadam.base import ComposedOptimizer, State
from superadam.chunks import Chunk, Scalars, state_dtype
from superadam.estimators import Estimator
from superadam.matrices import Matrix
from superadam.penalties import Penalty
from superadam.schedules import Schedule
from superadam.sets import ConvexSet
from superadam.tensors import Scalar, norm2

__all__ = ["SuperAdam"]


class SuperAdam(ComposedOptimizer):
    r"""SUPER-ADAM: every adaptive gradient method is one algorithm with four choices.

    $$
    \begin{aligned}
    &g_1 = \nabla f(x_1; \xi_1) \\
    &\textbf{for } t = 1, 2, \dots \\
    &\quad H_t \text{ from } \nabla f(x_t; \xi_t) && \texttt{matrix} && \text{(4)} \\
    &\quad \tilde x_{t+1} = \arg\min_{x \in \mathcal{X}} \langle g_t, x\rangle
        + \tfrac{1}{2\gamma}(x-x_t)^\top H_t (x-x_t) + h(x)
        && \gamma = \texttt{lr}, \mathcal{X} = \texttt{constraint}, h = \texttt{penalty} && \text{(9)} \\
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
    gradients.

    Args:
        params: parameters, (name, parameter) pairs, param groups, or an `nn.Module`. Of a module the optimizer also
            knows the buffers, and gives both evaluations of a batch the same ones: BatchNorm sees each batch once.
            All options below can be set in a param group; a key that is none of them, and does not look like a
            misspelling of one, is kept as the user's own.
        lr: γ, a number or a tensor.
        tau: τ in [0, 1].
        estimator: g_t other than line 11's, one of `superadam.estimators` or its name; then τ is its own.
        matrix: H_t, one of `superadam.matrices` or its name; default `SecondMoment()`, case 1. Norms and inner products
            run over all parameters whose groups have an equal matrix.
        schedule: μ_t and α_t, one of `superadam.schedules` or its name; default `Paper()`.
        constraint: X, one of `superadam.sets`, for each parameter by itself. The parameters are put into the set at
            construction; line 9 keeps them there, by the exact minimiser in the metric of H_t. A gradient that is not
            finite is an error then: line 9 has no solution.
        penalty: h, one of `superadam.penalties`, which line 9 adds to f.
        weight_decay: w. x_{t+1} is moved by −γ μ_t w x_t in addition.
        decoupled_weight_decay: if False, w x_t is added to the gradient instead (the gradient of w/2 ‖x‖²).
        clip: bound on the norm of g_t, over all parameters whose groups have an equal bound.
        maximize: maximise f.
        foreach: work on lists of tensors; default: on accelerators.
        capturable: keep the step count on the device, for CUDA graphs.
        differentiable: let autograd differentiate through the step.

    >>> model = nn.Linear(2, 1)
    >>> opt = SuperAdam(model, lr=1e-2, tau=1.0)
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

    def __init__(
        self,
        params: ParamsT | nn.Module,
        lr: float | Tensor = 1e-3,
        *,
        tau: float = 0.0,
        estimator: Estimator | str | None = None,
        matrix: Matrix | str | None = None,
        schedule: Schedule | str | None = None,
        constraint: ConvexSet | str | None = None,
        penalty: Penalty | str | None = None,
        weight_decay: float = 0.0,
        decoupled_weight_decay: bool = True,
        clip: float | None = None,
        maximize: bool = False,
        foreach: bool | None = None,
        capturable: bool = False,
        differentiable: bool = False,
        **unknown: Any,
    ) -> None:
        defaults = {
            "lr": lr,
            "tau": tau,
            "estimator": estimator,
            "matrix": "SecondMoment" if matrix is None else matrix,
            "schedule": "Paper" if schedule is None else schedule,
            "constraint": constraint,
            "penalty": penalty,
            "weight_decay": weight_decay,
            "decoupled_weight_decay": decoupled_weight_decay,
            "clip": clip,
            "maximize": maximize,
            "foreach": foreach,
            "capturable": capturable,
            "differentiable": differentiable,
        }
        options.refuse_unknown(unknown, defaults)
        super().__init__(params, defaults)

    # ------------------------------------------------------------------------------------------------ the algorithm

    @overload
    def step(self, closure: None = None) -> None: ...
    @overload
    def step(self, closure: Callable[[], float]) -> float: ...
    def step(self, closure: Callable[[], float] | None = None) -> float | None:
        """Take in one batch. With a closure, return the loss of its first evaluation.

        Args:
            closure: clears the gradients, computes the loss, calls `backward` and returns the loss. Called once if
                τ = 0, twice if τ > 0 (once at the very first batch). Without it the gradients must be there already.
        """
        self._accelerator_graph_capture_health_check()
        with torch.set_grad_enabled(self.defaults["differentiable"]):
            if closure is None:
                self._half_step() if self.two_point else self._full_step(None)
                return None
            return self._both_halves(closure) if self.two_point else self._full_step(closure)

    def _full_step(self, closure: Callable[[], float] | None) -> float | None:
        """τ = 0: x_n to x_{n+1}."""
        if replay.current() is not None:
            warnings.warn(
                "step() in a `twice` loop, of an optimizer that takes one gradient per batch: it takes two steps with "
                "each. Loop over the loader itself.",
                stacklevel=3,
            )
        if self._pending():
            raise RuntimeError("A move is pending from when tau was larger: call opt.flush() before lowering it.")
        loss = None if closure is None else self._evaluate(closure)
        self._check_gradients()
        if closure is None:
            self.gradient_evaluations += 1
        self._absorb(then_move=True)
        return loss

    def _both_halves(self, closure: Callable[[], float]) -> float:
        """τ > 0 with a closure: x_{n-1} to x_n."""
        if self._open is not None:
            raise RuntimeError(
                "step(closure) between the two half-steps of a batch. Finish the batch with step() in the `twice` "
                "loop, or call opt.restart() to drop it."
            )
        again = replay.Replay(self._modules)
        self.zero_grad()  # what a closure that does not clear the gradients adds to would be part of q
        loss = self._evaluate(closure)
        self._check_gradients()
        if self._pending():
            self._to_next_point()
            try:
                again.restore()
                self.zero_grad()
                self._evaluate(closure)
                self._check_gradients()
            except BaseException:
                self._void()
                raise
        self._absorb(then_move=False)
        return loss

    def _half_step(self) -> None:
        """τ > 0 without a closure: one of two half-steps."""
        half = replay.current()
        if half is None:
            raise RuntimeError(
                "SuperAdam needs two gradients of every batch here (tau > 0, or a matrix such as BarzilaiBorwein), so "
                "step() must know which one this is. Write opt.step(closure), with a closure that clears the "
                "gradients, computes the loss and calls backward; or loop "
                "`for batch in superadam.twice(loader):`, where each batch comes twice."
            )
        if half.batch is self._dropped:
            raise RuntimeError("This batch was dropped by opt.restart(): go on with the next one of the `twice` loop.")
        if half == self._last:
            raise RuntimeError("Half-steps out of order: step() was called twice in one turn of the `twice` loop.")
        if self._open is not (half.batch if half.second else None):
            missed = "this batch's first turn" if half.second else "the last batch's second turn"
            raise RuntimeError(
                f"Half-steps out of order: {missed} had no step(). Call opt.step() in both turns of every batch of the "
                "`twice` loop, or opt.restart() to drop a batch that was left half done. (To accumulate gradients, use "
                "step(closure) with a closure that goes over the micro-batches.)"
            )
        self._check_gradients()
        self.gradient_evaluations += 1
        if half.second:
            self._absorb(then_move=False)
            self._open = None
        else:
            self._to_next_point()
            self._open = half.batch
        self._last = half

    def _evaluate(self, closure: Callable[[], float]) -> float:
        with torch.enable_grad():
            loss = closure()
        self.gradient_evaluations += 1
        return loss

    def _to_next_point(self) -> None:
        """The gradients are q = ∇f(x_{t-1}; ξ_t). Move to x_t (lines 9, 10) and take q into the estimator (line 11)."""

        def kind(p: Tensor, state: State) -> Hashable:
            if "gamma" not in state and (p.grad is None or "g" not in state):
                return None
            return p.grad is None, _key(state.get("gamma"))

        chunks = self._chunks(kind)
        steps.solve_jointly([c for c in chunks if "gamma" in c.states[0]])
        for c in chunks:
            q = c.grad if c.has_grad else None  # at x_{t-1}: weight decay may be part of it
            start = c.x.clone() if c.matrix.two_point and c.has_grad else None
            if "gamma" in c.states[0]:
                steps.move(c, c.states[0]["gamma"])
                c.drop("gamma")
            if q is not None:
                c.count()
                if start is not None:
                    c.store("dx", (c.x - start).to(state_dtype(c.params[0])))
                    c.store("q", q.clone())
                c.estimator.before(c, q)
                for state in c.states:
                    state["paired"] = True

    def _absorb(self, *, then_move: bool) -> None:
        """The gradients are ∇f(x_t; ξ_t). Form g_t (line 11) and H_t (line 4), and move to x_{t+1} now or later."""
        everyone = [(p, group) for group in self.param_groups for p in group["params"]]
        at_work = {self._parts(group).matrix for p, group in everyone if p.grad is not None}
        for p, group in everyone:
            if p.grad is not None:
                self._init_state(group, p)
            elif p in self.state:
                if self._parts(group).matrix in at_work:
                    self._parts(group).matrix.absent(self.state[p])
                if "paired" in self.state[p]:
                    self._forget(p)  # q without its counterpart: half of line 11 is no estimate

        def kind(p: Tensor, state: State) -> Hashable:
            return None if p.grad is None else ("paired" in state, "restarted" in state)

        chunks = self._chunks(kind)
        # Where nothing is summed over all of x, a chunk goes through all lines while it is in the cache.
        apart = not any(c.matrix.scalars or c.matrix.joint or c.group["clip"] is not None for c in chunks)
        totals: dict[Matrix, tuple[Tensor, ...]] = {}
        for c in chunks:
            if not c.paired:
                c.count()
            newest = c.grad
            estimated = c.estimator.after(c, newest)
            # A two-point matrix compares ∇f(x_t; ξ_t) with ∇f(x_{t-1}; ξ_t), whatever the estimator made of them.
            grad = newest if c.matrix.two_point else estimated
            c.matrix.update(c, grad)
            if c.matrix.scalars:
                home = self._scalars[c.matrix][c.matrix.scalars[0]]
                sums = tuple(s.to(home) for s in c.matrix.measure(c, grad))
                totals[c.matrix] = tuple(map(torch.add, totals[c.matrix], sums)) if c.matrix in totals else sums
            c.drop("paired", "restarted", "q", "dx")
            if then_move and apart:
                steps.move(c, _gamma(c.group))
        for matrix, total in totals.items():
            matrix.reduce(Scalars(self._scalars[matrix], rebind=self.defaults["differentiable"]), total)
        if self.defaults["differentiable"]:
            for p, group in everyone:
                if p in self.state:
                    self.state[p].update(self._scalars.get(self._parts(group).matrix, {}))
        self._clip(chunks)
        if not then_move:
            for c in chunks:
                gamma = _gamma(c.group)
                gamma = gamma.clone() if isinstance(gamma, Tensor) else gamma  # schedulers write into a tensor lr
                for state in c.states:
                    state["gamma"] = gamma
        elif not apart:
            steps.solve_jointly(chunks)
            for c in chunks:
                steps.move(c, _gamma(c.group))

    def _clip(self, chunks: list[Chunk]) -> None:
        """Bound the norm of g_t, over all parameters with an equal bound."""
        for bound in {c.group["clip"] for c in chunks} - {None}:
            clipped = [c for c in chunks if c.group["clip"] == bound]
            squares = [norm2(c.g.clone() if c.group["differentiable"] else c.g) for c in clipped]
            norm = torch.stack([s.to(squares[0]) for s in squares]).sum().sqrt()
            factor = (bound / norm).clamp(max=1.0)
            for c in clipped:
                c.g.mul_(factor.to(c.params[0].device))

    # ---------------------------------------------------------------------------------- ending and restarting

    def flush(self) -> None:
        """Take the moves that are still pending, at the end of training with τ > 0.

        Training can go on afterwards. The point before the move is gone, so the next batch is evaluated once, and
        enters g by momentum.
        """
        if self._open is not None:
            raise RuntimeError("flush() between the two half-steps of a batch: call it after the `twice` loop.")
        with torch.set_grad_enabled(self.defaults["differentiable"]):
            pending = self._chunks(lambda p, state: (_key(state["gamma"]),) if "gamma" in state else None)
            steps.solve_jointly(pending)
            for c in pending:
                steps.move(c, c.states[0]["gamma"])
                c.drop("gamma")
            for c in self._chunks(lambda p, state: True if "g" in state else None):
                c.estimator.settle(c)

    @torch.no_grad()
    def feasibility(self) -> float:
        """How far the parameters are from their sets, at the most: 0 where all constraints hold."""
        worst = [
            constraint.violation(p).item()
            for group in self.param_groups
            if (constraint := self._parts(group).constraint) is not None
            for p in group["params"]
        ]
        return max(worst, default=0.0)

    @contextmanager
    def at_x_tilde(self) -> Iterator[None]:
        """Have the parameters hold x̃ inside the `with`, and what they held before after it.

        x_t is a mixture of many x̃: it comes close to being sparse, or to the border of a set, where x̃ is there
        exactly. x̃ is the solution of line 9 from the parameters as they are, with the newest g and H. A copy of the
        parameters is kept meanwhile.
        """
        with torch.no_grad():
            chunks = self._chunks(lambda p, state: (_key(state.get("gamma")),) if "g" in state else None)
            chunks = [c for c in chunks if c.constraint is not None or c.penalty is not None]
            before = [c.x.clone() for c in chunks]
            for c in chunks:
                c.x.copy_(steps.x_tilde(c, c.states[0].get("gamma", _gamma(c.group))))
        try:
            yield
        finally:
            with torch.no_grad():
                for c, x in zip(chunks, before, strict=True):
                    c.x.copy_(x)

    def restart(self) -> None:
        """Forget g: the next gradient of every parameter is its g, as at the start. H and the step counts stay.

        Drops a batch that was left between its two half-steps. Pending moves are taken.
        """
        if self._open is not None:
            self._void()
        self.flush()
        for p in self.state:
            self.state[p].pop("g", None)

    def _void(self) -> None:
        """The second evaluation of a batch failed, after the move to x_t: keep x_t, which is as it should be, and drop
        the batch, of which g holds one half."""
        self._dropped, self._open, self._last = self._open, None, None
        for p, state in self.state.items():
            if "paired" in state:
                self._forget(p)

    def _forget(self, p: Tensor) -> None:
        state = self.state[p]
        for name in ("g", "q", "dx", "paired"):
            state.pop(name, None)
        state["step"] -= 1


def _gamma(group: dict[str, Any]) -> Scalar:
    """γ as a number where that needs no synchronisation with a device."""
    lr = group["lr"]
    if not isinstance(lr, Tensor):
        return cast(float, lr)
    on_host = lr.device.type == "cpu" and not group["capturable"] and not lr.requires_grad
    return float(lr) if on_host else lr.reshape(())


def _key(gamma: Scalar | None) -> Hashable:
    """What parameters must agree on for their pending moves to be taken together."""
    return id(gamma) if isinstance(gamma, Tensor) else gamma
