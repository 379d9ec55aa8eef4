r"""The lines of Algorithm 1 on buckets, in the paper's order.

$$\begin{aligned}
&\text{(11)} && g_t = \alpha_t \nabla f(x_t; \xi_t) + (1-\alpha_t)
    \bigl[g_{t-1} + \tau(\nabla f(x_t; \xi_t) - \nabla f(x_{t-1}; \xi_t))\bigr] \\
&\text{(4)} && H_t \text{ from } \nabla f(x_t; \xi_t) \text{, or from } g_t \\
&\text{(9)} && \tilde x_{t+1} = \arg\min_{x \in \mathcal{X}} \langle g_t, x\rangle
    + \tfrac{1}{2\gamma}(x - x_t)^\top H_t (x - x_t) + h(x) \\
&\text{(10)} && x_{t+1} = (1 - \mu_t) x_t + \mu_t \tilde x_{t+1}
\end{aligned}$$

`absorb` takes a gradient at x_t into g_t and H_t, and moves to x_{t+1} if τ = 0. With τ > 0 the move waits for the next
batch: `to_next_point` has its gradient q at x_{t-1}, moves to x_t, and takes q into the first half of line 11.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from typing import Any, cast

import torch
from torch import Tensor

from superadam import checks, distributed, rounding
from superadam.bucket import BETWEEN, PENDING, READY, SMALL, UNESTIMATED, Bucket
from superadam.lists import TensorList, add_scaled, norm2, state_dtype
from superadam.penalties import combined_argmin
from superadam.sets.base import like
from superadam.sets.linear import correction

__all__ = [
    "absorb",
    "gamma_of_move",
    "newest",
    "set_numbers",
    "solve_jointly",
    "take_moves",
    "to_next_point",
    "x_tilde",
]

Sums = tuple[Tensor, ...]
"""Sums over the coordinates of a bucket, for a part that needs sums over all of x."""

# ---------------------------------------------------------------------------------------- all buckets of a step


def to_next_point(buckets: list[Bucket], within: dict[Tensor, Any]) -> None:
    """Take the pending moves to x_t (lines 9, 10), and q = ∇f(x_{t-1}; ξ_t) into the first half of line 11."""
    for s in buckets:
        if s.states[0]["step"] > 0:
            set_numbers(s)
    if any([s.apart or s.matrix.joint for s in buckets]):
        solve_jointly([s for s in buckets if s.phase == PENDING])
    for s in buckets:
        has_grad = s.grads is not None
        if s.phase in UNESTIMATED:
            continue
        compared = s.matrix.two_point and has_grad
        if compared:
            start, q = s.x.clone(), newest(s).clone()
        if s.phase == PENDING:
            run(move_and_prepare if has_grad else move, s)
        else:
            run(prepare, s, line_9=False)
        if compared:
            dx = [(x - x0).to(state_dtype(p)) for p, x, x0 in zip(s.params, s.x, start, strict=True)]
            within.update(zip(s.params, zip(q, dx, strict=True), strict=True))
        for state in s.states:
            state["phase"] = BETWEEN if has_grad else READY
            state["step"] += has_grad


def absorb(buckets: list[Bucket], within: dict[Tensor, Any], shared: dict[Any, dict[str, Tensor]]) -> None:
    """Form g_t (line 11) and H_t (line 4) from ∇f(x_t; ξ_t), and move to x_{t+1} now or with the next batch."""
    waiting: list[Bucket] = []
    sums: dict[tuple[Any, distributed.Sharding], list[Sums]] = {}
    for s in buckets:
        _begin(s, within)
        if s.moves and s.at_once:
            if not s.fused or not s.matrix.fused_step(s):
                run(all_lines, s)
        else:
            waiting.append(s)
            of_pieces = run(lines_11_and_4, s, line_9=False)
            for part, which in s.summed:
                sums.setdefault((part, s.sharding), []).extend([of_piece[which] for of_piece in of_pieces])
    if waiting:
        _all_together(waiting, sums, shared)
    for s in buckets:
        gamma = s.gamma.clone() if isinstance(s.gamma, Tensor) else s.gamma  # schedulers write into a tensor lr
        for state in s.states:
            if not s.moves:
                state["gamma"] = gamma
            state["phase"] = READY if s.moves else PENDING


def _begin(s: Bucket, within: dict[Tensor, Any]) -> None:
    """Count the step of a bucket."""
    if not s.paired:
        for state in s.states:
            state["step"] += 1
    elif s.matrix.two_point:
        s.q, s.dx = (TensorList([within[p][i] for p in s.params]) for i in (0, 1))
    set_numbers(s)
    if s.iterate.numbers:
        s.iterate.count(s)


def _all_together(buckets: list[Bucket], sums: dict[Any, list[Sums]], shared: dict[Any, dict[str, Tensor]]) -> None:
    """Finish the work on all of x: matrices at their owners, sums, `clip`; then the move."""
    apart = [s for s in buckets if s.apart and s.matrix.updates]
    if apart:
        for s, grad in zip(apart, _at_owners(apart, [s.unused_grad for s in apart]), strict=True):
            update_matrices(s, grad)
    for (part, _), of_pieces in sums.items():
        home = next(iter(shared[part].values()))
        of_pieces[:] = [tuple(value.to(home) for value in of_piece) for of_piece in of_pieces]
    for part, totals in distributed.sums_over_ranks(sums).items() if sums else ():
        part.reduce(Bucket(**shared[part], names=(), shared=shared[part]), totals)
    if any([s.group["clip"] is not None for s in buckets]):
        _clip(buckets)
    if buckets[0].moves:
        take_moves(buckets)


def take_moves(buckets: list[Bucket]) -> None:
    """Take the moves along g_t (lines 9 and 10), whose numbers are set."""
    if any([s.apart or s.matrix.joint for s in buckets]):
        solve_jointly(buckets)
    for s in buckets:
        run(move, s)


def _clip(buckets: list[Bucket]) -> None:
    """Bound the norm of g_t, over all parameters with an equal bound."""
    for bound in dict.fromkeys(s.group["clip"] for s in buckets if s.group["clip"] is not None):
        clipped = [s for s in buckets if s.group["clip"] == bound]
        sums: dict[Any, list[Sums]] = {}
        for s in clipped:
            newest(s)
            square = norm2(s.estimate)
            sums.setdefault((None, s.sharding), []).append((square.to(clipped[0].g.tensors[0]),))
        (total,) = distributed.sums_over_ranks(sums)[None]
        factor = (bound / total.sqrt()).clamp(max=1.0)
        for s in clipped:
            s.factor = factor.to(s.params[0].device)
            s.g.mul_(s.factor)


# ---------------------------------------------------------------------------------------- the lines


def set_numbers(s: Bucket) -> None:
    """Compute t, μ_t and α_t of this step, once."""
    own, n, tau = s.__dict__, s.states[0]["step"], s.estimator.tau
    own["step"], own["t"], own["mu"] = n, n if s.plain else s.iterate.age(n), s.schedule.mu_t(n, tau)
    own["alpha"] = s.schedule.first if s.restarted else s.schedule.weight_of(s)


def prepare(s: Bucket) -> Sums:
    """Take q = ∇f(x_{t-1}; ξ_t) into the first half of line 11."""
    s.estimator.before(s, newest(s))
    return ()


def move_and_prepare(s: Bucket) -> Sums:
    """Take the pending move (lines 9 and 10), and q into the first half of line 11."""
    q = newest(s)  # before x changes: weight decay may be part of it
    move(s)
    s.estimator.before(s, q)
    return ()


def all_lines(s: Bucket) -> Sums:
    """Run all lines, where nothing is summed over all of x."""
    lines_11_and_4(s)
    return move(s)


def lines_11_and_4(s: Bucket) -> Sums:
    """Form g_t and H_t. Return sums for the matrix and for the step size."""
    grad = newest(s)
    if not s.plain:
        s.iterate.begin(s)
    seen = s.estimator.after(s, grad)
    # A two-point matrix compares ∇f(x_t; ξ_t) with ∇f(x_{t-1}; ξ_t), whatever the estimator made of them.
    seen = grad if s.matrix.two_point else seen
    if s.matrix.per_tensor:
        seen = s.estimate if s.matrix.of_estimate else seen
        if s.apart:
            s.unused_grad = seen
        elif s.matrix.updates:
            update_matrices(s, s.matrices(seen))
    else:
        s.matrix.update(s, seen)
    sums = s.matrix.measure(s, seen) if s.matrix.scalars else ()
    return sums if s.stepsize is None else (*sums, *s.stepsize.measure(s, grad))


def move(s: Bucket) -> Sums:
    """Take the step: lines 9 and 10."""
    if s.watched:
        checks.check_matrix(s, direction)
    if s.wide:
        with rounding.widened(s):
            _move(s)
    else:
        _move(s)
    return ()


def _move(s: Bucket) -> None:
    if s.grads is not None and (s.estimator.blends or s.stepsize is not None):
        newest(s)  # which they look at
    gamma = s.gamma if s.stepsize is None else s.gamma * s.stepsize.factor(s)
    if not s.plain:
        s.iterate.rebase(s)
        gamma = gamma * s.iterate.rate(s)
    if s.free:
        _free_move(s, gamma)
    else:
        _move_on_set(s, gamma)
    if not s.plain:
        s.iterate.moved(s)


def _free_move(s: Bucket, gamma: Any) -> None:
    """Take lines 9 and 10 for X = R^d and h = 0: x_{t+1} = x_t - γ μ_t H_t⁻¹ g_t."""
    eta, g = gamma * s.mu, s.estimate if s.estimator.blends else s.g
    if s.decay != 0:
        s.iterate.take_decay(s, eta * s.decay)
    if s.direction is None and not (s.watches or s.matrix.per_tensor):
        s.matrix.descend(s, s.x, g, eta)
    else:
        step = direction(s, g)
        add_scaled(s.x, step, -eta)
        if s.watches:
            s.matrix.moved(s, step)
            s.estimator.moved(s, step)


def _move_on_set(s: Bucket, gamma: Any) -> None:
    """Take line 9, the exact minimiser in the metric of H_t, and line 10."""
    target = x_tilde(s, gamma, warm=True)
    if s.watches:
        still = isinstance(gamma, int | float) and gamma == 0
        step = direction(s, s.estimate) if still else (s.x - target) / gamma
        s.matrix.moved(s, step)
        s.estimator.moved(s, step)
    if isinstance(s.mu, float) and s.mu == 1:
        s.x.copy_(target)
    else:
        s.x.lerp_(target, s.mu)
    X = s.constraint
    # Every mixing rounds x a little out of its set; now and then it is put back.
    if X is not None and (not X.convex or isinstance(s.step, Tensor) or s.step % REPROJECT_EVERY == 0):
        for x in s.x:
            x.copy_(X.argmin(x, 1.0))


REPROJECT_EVERY = 100

# ---------------------------------------------------------------------------------------- line 11: the gradient


def newest(s: Bucket) -> TensorList:
    """Return the newest gradient of the minimised function, and keep it as `s.grad`."""
    if s.grads is None:
        return TensorList([])
    grad = TensorList([g.to(s.dtype) for g in s.grads] if s.wide else s.grads)
    if s.group["maximize"]:
        grad = -grad
    if s.decay_in_gradient != 0:
        grad = grad + s.x * s.decay_in_gradient
    s.__dict__["grad"] = grad if s.stepsize is None else s.stepsize.weighed(s, grad)
    return cast(TensorList, s.grad)


# ---------------------------------------------------------------------------------------- line 4: matrices


def update_matrices(s: Bucket, grad: Tensor) -> None:
    """Bring H_t of each tensor up to date, and refresh the tensors that are due."""
    if s.has_factors and checks.waits(grad):
        checks.check_left_out(s)
        grad = checks.finite(s, grad)
    if s.matrix.refreshes_first:
        _refresh(s)
    s.matrix.update(s, grad)
    if not s.matrix.refreshes_first:
        _refresh(s)


def _refresh(s: Bucket) -> None:
    """Refresh all tensors in the first step, then each in its turn: no step takes much longer than others."""
    every = s.every
    if every is None:
        return
    due = [i for i, turn in enumerate(s.turns) if every == 1 or s.step == 1 or (s.step - 1 - turn) % every == 0]
    if not due:
        return
    start = time.perf_counter()
    s.matrix.refresh(s.some(due))  # tensors that are due together follow each other
    s.plan.refresh_seconds += time.perf_counter() - start


def _at_owners(buckets: list[Bucket], lists: list[Any]) -> list[Tensor]:
    """Apply `Bucket.matrices` to the lists of several buckets, with one message for all."""
    params, places = [p for s in buckets for p in s.params], [place for s in buckets for place in s.places]
    wholes = iter(distributed.to_owners([t for tensors in lists for t in tensors], params, places))
    return [s.batch_of([next(wholes) for _ in s.params]) for s in buckets]


def _from_owners(buckets: list[Bucket], matrices: list[Tensor]) -> list[TensorList]:
    """Apply `Bucket.tensors` to the batches of several buckets, with one message for all."""
    params, places = [p for s in buckets for p in s.params], [place for s in buckets for place in s.places]
    wholes = [whole for s, batch in zip(buckets, matrices, strict=True) for whole in s.wholes_of(batch)]
    parts = iter(distributed.from_owners(wholes, params, places))
    return [TensorList([next(parts) for _ in s.params]) for s in buckets]


# ---------------------------------------------------------------------------------------- line 9: the step


def direction(s: Bucket, g: Any) -> Any:
    """Return H_t⁻¹ g_t."""
    if s.direction is not None:
        return s.direction
    if not s.matrix.per_tensor:
        return s.matrix.solve(s, g)
    batch = s.matrices(g)
    if s.has_factors and checks.waits(batch):
        batch = checks.finite(s, batch)
    return s.tensors(s.matrix.solve(s, batch))


def x_tilde(s: Bucket, gamma: Any, *, warm: bool = False) -> Any:
    """Return the exact minimiser of line 9 in the metric of H_t. Decoupled weight decay w first shrinks x_t by 1 - γw.

    With `warm`, root searches start from the roots of the last step, and leave theirs.
    """
    roots = [distributed.local(state["root"]) if warm and "root" in state else None for state in s.states]
    if s.matrix.vanishes:  # H → 0: x_t + γ (lmo(g_t) - x_t), where γ is at most 1
        vertex = TensorList([s.constraint.lmo(g) for g in s.estimate])
        return s.x.lerp(vertex, min(gamma, 1.0) if isinstance(gamma, int | float) else gamma.clamp(max=1.0))
    y = s.x.clone()
    if s.decay != 0:
        y.mul_(1 - gamma * s.decay)
    if s.direction is not None or s.matrix.per_tensor:
        add_scaled(y, direction(s, s.estimate), -gamma)
    else:
        s.matrix.descend(s, y, s.estimate, gamma)
    if s.matrix.joint or (isinstance(gamma, int | float) and gamma == 0):
        return y  # `solve_jointly` has solved for the set; with γ = 0 the metric H/γ is infinite
    if not s.matrix.is_diagonal:
        needs = {part.needs for part in (s.constraint, s.penalty) if part is not None}
        return _in_eigenvectors(s, y, gamma, roots) if needs == {"eigen"} else _by_inverse(s, y)
    if s.penalty is None and s.constraint.separable:
        d = [s.one] * len(y)  # intervals do not ask for the metric
    else:
        H = s.tensors(s.matrix.H(s).contiguous()) if s.matrix.per_tensor else s.matrix.H(s)
        H = H if s.penalty is None else H / gamma  # the size of the metric does not matter to a set
        d = list(H) if isinstance(H, TensorList) else [H] * len(y)
    kept = {id(value) for state in s.states for value in state.values()}
    return TensorList(
        [
            combined_argmin(s.constraint, s.penalty, a, b, root=root, scratch=id(b) not in kept)
            for a, b, root in zip(y, d, roots, strict=True)
        ]
    )


def _in_eigenvectors(s: Bucket, y: Any, gamma: Any, roots: list[Tensor | None]) -> Any:
    """Solve in the basis of the eigenvectors, where H is diagonal, and the set and the penalty are the same."""
    rotate, d, back = s.matrix.eigen(s)
    center, X = (0.0, None) if s.constraint is None else s.constraint.centered()
    Y = rotate(s.matrices(TensorList([t - like(center, t) for t in y])))
    d = (d if s.penalty is None else d / gamma).expand_as(Y)
    solved = [
        combined_argmin(X, s.penalty, a, b, root=root)
        for a, b, root in zip(s.tensors(Y), s.tensors(d), roots, strict=True)
    ]
    return y + s.tensors(back(s.matrices(TensorList(solved)) - Y))  # a feasible y comes back as it is


def _by_inverse(s: Bucket, y: Any) -> Any:
    """Solve for linear sets, tensor by tensor."""

    def solved(i: int, tensor: Tensor) -> Tensor:
        one = s.some([i])
        inverse = one.matrix.inverse(one)
        (onto,) = correction(
            [s.constraint], [tensor], lambda v: [one.tensors(inverse(one.matrices(TensorList(v)))).tensors[0]]
        )
        return tensor - onto

    return TensorList([solved(i, tensor) for i, tensor in enumerate(y)])


def solve_jointly(buckets: list[Bucket]) -> None:
    """Set `direction` = H_t⁻¹ g_t of all buckets with a matrix over all parameters, or with owners of their matrices.

    g_t gets to the owners in one message, and the steps back in another.
    """
    apart = [s for s in buckets if s.apart]
    if apart:
        for s, g in zip(apart, _at_owners(apart, [s.estimate for s in apart]), strict=True):
            s.arrived = g
        solved = [s.matrix.solve(s, checks.finite(s, s.estimates)) for s in apart]
        for s, step in zip(apart, _from_owners(apart, solved), strict=True):
            s.direction = step
    for matrix in dict.fromkeys(s.matrix for s in buckets if s.matrix.joint):
        sharing = [s for s in buckets if s.matrix == matrix]
        whole = merged(sharing)
        checks.check_matrix(whole, matrix.solve)
        steps = iter(matrix.solve(whole, TensorList([g for s in sharing for g in s.estimate])))
        for s in sharing:
            s.direction = TensorList([next(steps) for _ in s.params])
        _on_sets_jointly(whole, sharing)


def merged(buckets: list[Bucket]) -> Bucket:
    """Return a bucket of all parameters of some buckets, which share their matrix."""
    names = tuple(buckets[0].matrix.slots(buckets[0].x.tensors[0]))
    lists = {name: TensorList([t for s in buckets for t in getattr(s, name)]) for name in ("x", "g", *names)}
    params, states = [p for s in buckets for p in s.params], [state for s in buckets for state in s.states]
    return buckets[0].like(params=params, states=states, names=("g", *names), **lists)


def _on_sets_jointly(whole: Bucket, buckets: list[Bucket]) -> None:
    """Turn `direction` = H⁻¹g into (x_t - x̃)/γ, for linear sets and one H over all parameters of some buckets."""
    gammas = [gamma_of_move(s) for s in buckets]
    if all(s.constraint is None for s in buckets) or not all(map(float, gammas)):
        return
    if len(set(map(float, gammas))) > 1:
        raise ValueError(f"{whole.matrix} is one matrix over all parameters: on a set they need one lr for all of them")
    y = [
        x * (1 - gamma * s.decay) - step * gamma
        for s, gamma in zip(buckets, gammas, strict=True)
        for x, step in zip(s.x, s.direction, strict=True)
    ]
    sets = [s.constraint for s in buckets for _ in s.params]
    onto = iter(correction(sets, y, lambda v: list(whole.matrix.inverse(whole)(TensorList(v)))))
    for s, gamma in zip(buckets, gammas, strict=True):
        s.direction = s.direction + TensorList([next(onto) for _ in s.params]) / gamma


def gamma_of_move(s: Bucket) -> Any:
    """Return γ of the move that g_t and H_t are for."""
    gamma = s.gamma if s.stepsize is None else s.gamma * s.stepsize.factor(s)
    return gamma * s.iterate.rate(s)


# ---------------------------------------------------------------------------------------- lists, chunks, torch.compile

CHUNK = 1 << 20
"""Coordinates of a piece: on a CPU a few megabytes stay in the cache from line to line."""


def run(line: Callable[[Bucket], Sums], s: Bucket, *, line_9: bool = True) -> list[Sums]:
    """Run a line on a bucket: compiled, or on lists; on CPUs long lists in pieces. Return the sums of every piece."""
    if s.group["compile"] and s.compilable:
        return [compiled(line, s)]
    if not s.long:
        return [line(s)]
    return [line(piece) for piece in pieces(s, s.elementwise if line_9 else s.elementwise_11_and_4)]


def pieces(s: Bucket, cut: bool) -> Iterator[Bucket]:
    """Cut lists into pieces of about `CHUNK` coordinates: small tensors together, large ones alone or in parts."""
    lot: list[int] = []
    held = 0
    for i in sorted(range(len(s.params)), key=lambda i: s.x.tensors[i].numel() > SMALL):
        n = s.x.tensors[i].numel()
        if lot and (held + n > CHUNK or n > SMALL):
            yield s.some(lot)
            lot, held = [], 0
        if cut and n >= 1.5 * CHUNK and _alike(s, i):
            yield from _cut(s.some([i]), n)
        else:
            lot, held = [*lot, i], held + n
    if lot:
        yield s.some(lot)


def _alike(s: Bucket, i: int) -> bool:
    """Return whether a parameter, its gradient and its state have their coordinates in memory in one order, no gaps."""
    x = s.x.tensors[i]
    others = [getattr(s, name).tensors[i] for name in s.names] + ([] if s.grads is None else [s.grads[i]])
    return all([t.stride() == x.stride() for t in (*others, torch.empty_like(x, device="meta"))])


def _cut(s: Bucket, n: int) -> Iterator[Bucket]:
    """Cut the one tensor of a bucket, and all of its state, into parts of equal length."""
    length = -(-n // round(n / CHUNK))
    own = s.__dict__

    def parts(t: Tensor) -> tuple[Tensor, ...]:
        return torch.split(t.as_strided((n,), (1,)), length)

    lists = {name: parts(own[name].tensors[0]) for name in ("x", *s.names)}
    grads = None if s.grads is None else parts(s.grads[0])
    for k in range(len(lists["x"])):
        yield s.like(
            grads=None if grads is None else [grads[k]],
            offset=k * length,
            **{name: TensorList([of[k]]) for name, of in lists.items()},
        )


_COMPILED: dict[Any, Callable[..., Sums]] = {}
# What differs from step to step. The count of steps must be exact: 1 - β^t is its difference to 1.
NUMBERS = {"step": torch.float64, "t": torch.float64, "mu": None, "alpha": None, "gamma": None}
OWN = {"params", "states", "grads", "places", "turns", "x", "grad", "plan", "group", "factor", "direction"}


def compiled(line: Callable[[Bucket], Sums], s: Bucket) -> Sums:
    """Run a line by torch.compile: a function of lists of tensors for each composition, whose numbers are tensors."""
    facts = {name: fact for name, fact in s.__dict__.items() if name not in OWN and name not in s.names}
    facts["group"] = {"maximize": s.group["maximize"], "rounding": s.group["rounding"]}  # not the parameters
    given = {
        name: torch.as_tensor(value, dtype=dtype or s.dtype, device=s.params[0].device)
        for name, dtype in NUMBERS.items()
        if (value := facts.pop(name, None)) is not None
    }
    lists = {name: getattr(s, name).tensors for name in ("x", *s.names)}
    options = (s.decay, s.decay_in_gradient, s.group["maximize"], s.rate)
    key = (line, s.parts, options, s.wide, s.dtype, s.paired, s.restarted, s.moves, s.grads is None)
    if key not in _COMPILED:

        def function(lists: dict[str, list[Tensor]], grads: Any, given: dict[str, Tensor]) -> Sums:
            of = {name: TensorList(tensors) for name, tensors in lists.items()}
            return line(Bucket(**facts, **given, **of, params=lists["x"], states=[{}] * len(lists["x"]), grads=grads))

        function.__code__ = function.__code__.replace()  # torch counts compilations by code, and stops after eight
        _COMPILED[key] = torch.compile(function, dynamic=False)
    return _COMPILED[key](lists, s.grads, given)
