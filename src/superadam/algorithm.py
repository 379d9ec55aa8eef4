"""Algorithm 1, line by line, on the gradients that are there. How they come to be there is the optimizer's affair."""

from __future__ import annotations

import warnings
from collections.abc import Hashable, Iterator
from contextlib import contextmanager
from typing import cast

import torch
from torch import Tensor

from superadam import kernels, lines, refusals, steps
from superadam.base import ComposedOptimizer, State
from superadam.chunks import Chunk, Scalars, Sums, state_dtype
from superadam.compiled import eagerly
from superadam.estimators import Estimator
from superadam.matrices import Matrix
from superadam.options import gamma_of as _gamma
from superadam.pieces import run
from superadam.replay import put_back
from superadam.rounding import precisely
from superadam.sharding import Sharding, local, over_ranks, sharding, sums_over_ranks
from superadam.tensors import Scalar, norm2

__all__ = ["AlgorithmOne"]


class AlgorithmOne(ComposedOptimizer):
    """The lines of Algorithm 1, and what ends or restarts it."""

    def _to_next_point(self) -> None:
        """The gradients are q = ∇f(x_{t-1}; ξ_t). Move to x_t (lines 9, 10) and take q into the estimator (line 11)."""

        def kind(p: Tensor, state: State) -> Hashable:
            if "gamma" not in state and (p.grad is None or "g" not in state):
                return None
            return p.grad is None, _key(state.get("gamma"))

        chunks = self._chunks(kind)
        steps.solve_jointly([c for c in chunks if "gamma" in c.states[0]])
        for c in chunks:
            gamma = c.states[0].get("gamma")
            compared = c.matrix.two_point and c.has_grad
            if compared:
                start = c.x.clone()
                c.store("q", c.grad.clone())
            if gamma is None:
                run(lines.prepare, c, 0.0, line_9=False)
            else:
                run(lines.move_and_prepare if c.has_grad else lines.move, c, gamma)
                c.drop("gamma")
            if compared:
                c.store("dx", (c.x - start).to(state_dtype(c.params[0])))
            if c.has_grad:
                c.count()
                for state in c.states:
                    state["paired"] = True

    def _absorb(self, *, then_move: bool) -> None:
        """The gradients are ∇f(x_t; ξ_t). Form g_t (line 11) and H_t (line 4), and move to x_{t+1} now or later."""
        groups = [(group, self._parts(group)) for group in self.param_groups]
        at_work = {parts.matrix for group, parts in groups if any(p.grad is not None for p in group["params"])}
        for group, parts in groups:
            absent = parts.matrix.absent if parts.matrix in at_work else None
            needed = {"step", *parts.estimator.buffers, *parts.matrix.buffers, *parts.matrix.scalars}
            for p in group["params"]:
                if p.grad is not None:
                    if not needed <= self.state[p].keys():
                        self._init_state(group, parts, p)
                elif p in self.state:
                    if absent is not None:
                        absent(self.state[p])
                    if "paired" in self.state[p]:
                        self._forget(p)  # q without its counterpart: half of line 11 is no estimate

        def kind(p: Tensor, state: State) -> Hashable:
            return None if p.grad is None else ("paired" in state, "restarted" in state)

        chunks = self._chunks(kind)
        sums: dict[tuple[Matrix, Sharding], list[Sums]] = {}
        waiting: list[tuple[Chunk, float | None]] = []  # for the totals; with the weight of torch's kernel, if it moves
        for c in chunks:
            if not c.paired:
                c.count()
            gamma, kernel = _gamma(c.group), kernels.kernel_of(c) if then_move else None
            free = c.constraint is None and c.penalty is None
            # Where nothing is summed over all of x, a piece goes through all lines while it is in the cache.
            at_once = then_move and not (c.matrix.scalars or c.matrix.joint or c.group["clip"] is not None)
            if kernel == "adam" and free:
                kernels.adam(c, c.params, gamma * c.mu)
            elif kernel == "adam":
                run(lines.fused_and_mix, c, gamma)
            elif kernel == "adagrad":
                kernels.adagrad(c, gamma * c.mu)
            elif kernel == "sgd":
                waiting.append((c, cast(float, c.alpha)))
                if c.matrix.scalars:
                    reading = c.grad_is_given and not c.matrix.buffers
                    measured = run(lines.measure, c, gamma, line_9=False, reading=reading)
                    sums.setdefault((c.matrix, c.sharding), []).extend(measured)
            elif at_once:
                run(lines.absorb_and_move, c, gamma)
            else:
                waiting.append((c, None))
                sums.setdefault((c.matrix, c.sharding), []).extend(run(lines.absorb, c, gamma, line_9=False))
            c.drop("paired", "restarted", "q", "dx")
        totals: dict[tuple[Matrix, Sharding], Sums] = {}
        for (matrix, how), of_pieces in sums.items():
            if matrix.scalars:
                home = self._scalars[matrix][matrix.scalars[0]]
                columns = zip(*of_pieces, strict=True)
                totals[matrix, how] = tuple(torch.stack([s.to(home) for s in column]).sum() for column in columns)
        for matrix, total in sums_over_ranks(totals).items():
            matrix.reduce(Scalars(self._scalars[matrix], rebind=self.defaults["differentiable"]), total)
        if self.defaults["differentiable"]:
            for group, parts in groups:
                for p in group["params"]:
                    if p in self.state:
                        self.state[p].update(self._scalars.get(parts.matrix, {}))
        self._clip(chunks)
        if not then_move:
            for c in chunks:
                gamma = _gamma(c.group)
                gamma = gamma.clone() if isinstance(gamma, Tensor) else gamma  # schedulers write into a tensor lr
                for state in c.states:
                    state["gamma"] = gamma
            return
        steps.solve_jointly([c for c, _ in waiting])
        for c, alpha in waiting:
            if alpha is None:
                run(lines.move, c, _gamma(c.group))
            else:
                kernels.sgd(c, alpha, _gamma(c.group) * c.mu)

    def _clip(self, chunks: list[Chunk]) -> None:
        """Bound the norm of g_t, over all parameters with an equal bound."""
        for bound in {c.group["clip"] for c in chunks} - {None}:
            clipped = [c for c in chunks if c.group["clip"] == bound]
            squares = [norm2(c.g.clone() if c.group["differentiable"] else c.g) for c in clipped]
            sums: dict[tuple[None, Sharding], tuple[Tensor, ...]] = {}
            for how in dict.fromkeys(c.sharding for c in clipped):
                alike = [s.to(squares[0]) for c, s in zip(clipped, squares, strict=True) if c.sharding == how]
                sums[None, how] = (torch.stack(alike).sum(),)
            (norm2_,) = sums_over_ranks(sums)[None]
            factor = (bound / norm2_.sqrt()).clamp(max=1.0)
            for c in clipped:
                c.g.mul_(factor.to(c.params[0].device))

    @eagerly
    def flush(self) -> None:
        """Take the moves that are still pending, at the end of training with τ > 0.

        Training can go on afterwards. The point before the move is gone, so the next batch is evaluated once, and
        enters g by momentum. A batch that a `twice` loop has left between its two half-steps is dropped, with a
        warning; then the next gradient is g, as after `restart()`.
        """
        if self._open_batch is not None:
            warnings.warn(
                "flush() after the first of the two half-steps of a batch: the batch is dropped, and g with it. To "
                "keep g, leave a `twice` loop after the second turn of a batch; opt.restart() drops it on purpose.",
                stacklevel=2,
            )
            self._void()
        self._unmark()
        refusals.check_shapes(self)
        with torch.set_grad_enabled(self.defaults["differentiable"]):
            pending = self._chunks(lambda p, state: (_key(state["gamma"]),) if "gamma" in state else None)
            steps.solve_jointly(pending)
            for c in pending:
                run(lines.move, c, c.states[0]["gamma"])
                c.drop("gamma")
            for c in self._chunks(lambda p, state: True if "g" in state else None):
                precisely(c, c.estimator.settle)

    @torch.no_grad()
    def feasibility(self) -> float:
        """How far the parameters are from their sets, at the most: 0 where all constraints hold."""
        worst = [
            over_ranks(constraint.violation(local(p)), sharding(p), "max").item()
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
        chunks = self._chunks(lambda p, state: (_key(state.get("gamma")),) if "g" in state else None)
        chunks = [c for c in chunks if c.constraint is not None or c.penalty is not None]
        with put_back(p for c in chunks for p in c.params):
            with torch.no_grad():
                for c in chunks:
                    c.x.copy_(steps.x_tilde(c, c.states[0].get("gamma", _gamma(c.group))))
            yield

    @contextmanager
    def at_x(self) -> Iterator[None]:
        """Have the parameters hold x_t inside the `with`, and what they held before after it: to measure, or to export.

        With `Transport` (NIGT, Adam⁺, SUPER-ADAM⁺) they are ahead of x_t while gradients are taken; with all other
        estimators they hold x_t anyway. A copy of them and of the estimator's tensors is kept meanwhile. A checkpoint
        that training shall go on from is saved outside, where parameters and state belong together.
        """
        chunks = self._chunks(lambda p, state: True if "g" in state else None)
        chunks = [c for c in chunks if type(c.estimator).settle is not Estimator.settle]
        held = [
            tensor
            for c in chunks
            for p, state in zip(c.params, c.states, strict=True)
            for tensor in (p, *(state[name] for name in (*c.estimator.buffers, "master") if name in state))
        ]
        with put_back(held):
            with torch.no_grad():
                for c in chunks:
                    precisely(c, c.estimator.settle)
            yield

    @eagerly
    def restart(self) -> None:
        """Forget g: the next gradient of every parameter is its g, as at the start. H and the step counts stay.

        Drops a batch that was left between its two half-steps. Pending moves are taken. Numbers that are not finite are
        healed: a move along such a g is not taken, and a parameter whose H has them starts anew, from step 1.
        """
        if self._open_batch is not None:
            self._void()
        self._drop_what_is_not_finite()
        self.flush()
        for p in self.state:
            self.state[p].pop("g", None)

    @torch.no_grad()
    def _drop_what_is_not_finite(self) -> None:
        spoilt = {
            matrix
            for matrix, scalars in self._scalars.items()
            if not all(bool(value.isfinite().all()) for value in scalars.values())
        }
        for group in self.param_groups:
            parts = self._parts(group)
            for p in group["params"]:
                state = self.state.get(p, {})
                H_is_spoilt = parts.matrix in spoilt or not _finite(state, parts.matrix.buffers, p)
                dropped = {*parts.matrix.buffers, *parts.matrix.scalars} if H_is_spoilt else set()
                if H_is_spoilt or not _finite(state, parts.estimator.buffers, p):
                    dropped.update(parts.estimator.buffers, ["gamma"])
                for name in dropped & state.keys():
                    del state[name]
                if H_is_spoilt and state:
                    state["step"] = state["step"] * 0
        for matrix in spoilt:
            del self._scalars[matrix]

    def _void(self) -> None:
        """The second evaluation of a batch failed, after the move to x_t: keep x_t, which is as it should be, and drop
        the batch, of which g holds one half."""
        self._dropped_batch, self._open_batch, self._last_half = self._open_batch, None, None
        for p, state in self.state.items():
            if "paired" in state:
                self._forget(p)

    def _forget(self, p: Tensor) -> None:
        state = self.state[p]
        for name in ("g", "q", "dx", "paired"):
            state.pop(name, None)
        state["step"] -= 1


def _key(gamma: Scalar | None) -> Hashable:
    """What parameters must agree on for their pending moves to be taken together."""
    return id(gamma) if isinstance(gamma, Tensor) else gamma


def _finite(state: State, names: tuple[str, ...], p: Tensor) -> bool:
    """Whether the tensors of a state are finite, on all processes."""
    sums = [local(state[name]).sum(dtype=torch.float64) for name in names if name in state]
    if not sums:
        return True
    spoilt = torch.stack([~total.isfinite() for total in sums]).any()
    return not bool(over_ranks(spoilt.float(), sharding(p), "max"))
