"""The intersection of several sets."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterable
from typing import ClassVar, cast

import torch
from torch import Tensor

from superadam.parts import check
from superadam.sets.balls import L1Ball, L2Ball
from superadam.sets.base import ConvexSet, dims, in_metric, like
from superadam.sets.linear import Halfspace, LinearSet
from superadam.sets.ordered import ORDERS, Ordered
from superadam.sets.polyhedra import OnRows, joined, without_repeated
from superadam.sets.separable import Bound, Box, Intervals
from superadam.sets.simplices import CappedSimplex, Simplex

__all__ = ["Intersection"]

MAX_SWEEPS = 2000
MEMORY = 10  # sweeps from which the next start is extrapolated
MAX_ROOT = 100  # values of a ball's multiplier ν that are tried


class Intersection(ConvexSet):
    r"""$x \in \mathcal{X}_1 \cap \dots \cap \mathcal{X}_k$, in any metric that all the sets support.

    All linear sets together are rows $A x \le b$, and all bounds are one box. A simplex is a row and bounds (see
    `pieces`), and so is an l1 ball if no coordinate may be negative. If one other set is left, such as the box,
    Newton's method finds the multipliers $\lambda$ of the rows:

    $$x = \arg\min_{x \in \mathcal{X}_1} \|x - y + D^{-1} A^\top \lambda\|_d, \qquad 0 \le \lambda \perp A x - b \le 0$$

    An l2 ball of a whole tensor adds one unknown number $\nu$: x is on the ball if it is the point of the other sets
    nearest to $(d y + \nu c) / (d + \nu)$ in the metric $d + \nu$, for the $\nu$ that gives $\|x - c\| = r$.

    If more sets remain, Dykstra's method cycles through them. With $p_i$ the part of $y - x$ due to set i,

    $$x_i = \arg\min_{x \in \mathcal{X}_i} \|x - (x_{i-1} + p_i)\|_d, \qquad p_i \leftarrow x_{i-1} + p_i - x_i$$

    Anderson's extrapolation speeds it up, as long as the dual rises. $d\,p_i$ is normal to set i in $x_i$, and
    $y - x_k$ is the sum of the $p_i$: $x_k$ is the minimiser as soon as all $x_i$ are equal. The certificate is, with
    ε = 1e-12 in float64 and 1e-8 in float32: bounds hold exactly; each row is off by at most
    $\varepsilon (\sum_j |A_{ij} x_j| + |b_i|)$; the $x_i$ differ by at most ε times the largest |x|; a ball is off by
    at most ε r. Rounding errors of y, and of x in y's dtype, add to these. At the end each set checks x with its
    `violation`. The next step starts from the $\lambda$, $\nu$ and $p_i$ of this one. If all sets are linear, every
    matrix is supported.

    It raises an error if the intersection is empty, or not found in 2,000 rounds. It needs many rounds if sets meet at
    a small angle, or if d spans more than four orders of magnitude.

    Args:
        sets: the sets.

    >>> from superadam.sets import Halfspace, Simplex
    >>> few = Intersection(Simplex(), Halfspace(torch.tensor([1.0, 1.0, 0.0]), 0.5))
    >>> few.argmin(torch.tensor([0.8, 0.2, 0.0]), 1.0)
    tensor([0.5000, 0.0000, 0.5000])
    """

    sets: tuple[ConvexSet, ...]

    no_lmo: ClassVar[str] = (
        "it would be a linear or convex program in every step. Use an adaptive matrix, for which line 9 on it is "
        "exact; of a box and a sum, CappedSimplex and BoxSection have an lmo"
    )

    def __init__(self, *members: ConvexSet, sets: Iterable[ConvexSet] = ()) -> None:
        object.__setattr__(self, "sets", (*members, *sets))
        check(
            len(self.sets) > 0 and all(isinstance(each, ConvexSet) for each in self.sets),
            "sets",
            self.sets,
            "sets one after the other, as in Intersection(Simplex(), Box(0, 0.3))",
        )
        for each in self.sets:
            check(each.convex, "sets", self.sets, f"convex sets, which {type(each).__name__} is not: no step is known")
        kinds = [type(each) for each in self.sets]
        if Ordered in kinds and L1Ball in kinds:
            known = len(kinds) == 2 and all(each.dim is None or each.dim == -1 for each in self.sets)  # type: ignore[attr-defined]
            known = known and any(isinstance(each, Ordered) and each.order in ORDERS for each in self.sets)
            expected = "an Ordered beside an L1Ball to increase or decrease, both of whole tensors, and no third set"
            check(known, "sets", self.sets, f"{expected}; for others no step is known")

    @property
    def scalar_metric(self) -> bool:  # type: ignore[override]
        return any(each.scalar_metric for each in self.sets)

    @property
    def separable(self) -> bool:  # type: ignore[override]
        return all(each.separable for each in self.sets)

    @property
    def needs(self) -> str:  # type: ignore[override]
        return "inverse" if all(each.needs == "inverse" for each in self.sets) else "diagonal"

    def rows(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Return a and b of the linear sets, and which rows are inequalities."""
        return joined(cast(list[LinearSet], [each for each in self.sets if each.needs == "inverse"]), x)

    def pieces(self, x: Tensor) -> tuple[ConvexSet, ...]:
        return tuple(piece for each in self.sets for piece in each.pieces(x))

    def split(self, x: Tensor) -> tuple[list[LinearSet], list[ConvexSet], L1Ball | L2Ball | None]:
        """Return the rows, the other sets, as few as possible (all bounds are one box), and a ball beside them."""
        pieces = self.pieces(x)
        ordered = [each for each in pieces if isinstance(each, Ordered)]
        if not (len(pieces) == 2 and len(ordered) == 1 and any(isinstance(each, L1Ball) for each in pieces)):
            pieces = tuple(
                piece for each in pieces for piece in (each.steps(x) if isinstance(each, Ordered) else (each,))
            )
        rows = [each for each in pieces if isinstance(each, LinearSet)]
        bounds = [each.bounds() for each in pieces if isinstance(each, Intervals) if each != Box()]
        low, high = _bounds(bounds, x)
        box = [Box(low, high)] if bounds else []
        curved = [each for each in pieces if not isinstance(each, LinearSet | Intervals)]
        box, curved = _capped(box, curved)
        if bool((low >= 0).all()):  # where no x is negative, the l1 norm is a sum
            sums = [each for each in curved if isinstance(each, L1Ball) and _whole(each, x)]
            rows += [Halfspace(1.0, each.r) for each in sums]
            curved = [each for each in curved if each not in sums]
        others = [*box, *curved]
        whole = [each for each in curved if isinstance(each, L1Ball | L2Ball) and _whole(each, x) and each.r > 0]
        ball: L1Ball | L2Ball | None = next(
            (each for each in whole if isinstance(each, L2Ball) and len(others) > 1), None
        )
        if len(others) == 2 and not rows and any(isinstance(each, Ordered) for each in curved):
            ball = ball or next((each for each in whole if isinstance(each, L1Ball)), None)
        return rows, [each for each in others if each is not ball], ball

    def root_shape(self, x: Tensor) -> torch.Size | None:
        rows, curved, ball = self.split(x)
        m = len(without_repeated(joined(rows, x.double()))[0]) if rows else 0
        return torch.Size([m + (ball is not None) + max(0, len(curved) - 1) * x.numel()])

    @in_metric
    def argmin(self, y: Tensor, d: Tensor, root: Tensor | None) -> Tensor:
        accept = 1e-12 if y.dtype == torch.float64 else 1e-8
        if bool(self.relative_violation(y) <= accept):
            return y
        z, metric = y.double(), d.double() / d.amax().double()
        rows, curved, ball = self.split(z)
        on_rows = OnRows(without_repeated(joined(rows, z)), curved[:1], metric, accept) if rows else None
        first = on_rows or curved[0].argmin
        in_ball = None if ball is None else InBall(ball, first, accept / 10)
        m = 0 if on_rows is None else len(on_rows.lam)
        n = m + (in_ball is not None)
        p = torch.zeros(max(0, len(curved) - 1), *y.shape, dtype=torch.float64, device=y.device)
        if root is not None and bool((root.abs() <= 100 * z.abs().amax() * metric.amin()).all()):  # not far away
            if on_rows is not None:
                on_rows.lam.copy_(root[:m])
            if in_ball is not None:
                in_ball.nu = max(0.0, float(root[m]))
            p.copy_(root[n:].view(p.shape)).div_(metric)
        if len(p):
            x, p = Sweep(in_ball or first, curved[1:], z, metric).solved(p, accept, self)
        else:
            x = (in_ball or first)(z, metric)
        if root is not None:
            root[n:] = p.mul_(metric).flatten()
            if on_rows is not None:
                root[:m] = on_rows.lam
            if in_ball is not None:
                root[m] = in_ball.nu
        self._certify(x, z, accept)
        return x

    def _certify(self, x: Tensor, y: Tensor, accept: float) -> None:
        """Raise an error if x violates a set, by that set's own measure, by more than the rounding errors of y and
        x."""
        # Those of y are relative to y, which may be far larger than x.
        limit = 10 * accept + 1e-14 * float(y.abs().amax() / x.abs().amax().clamp(min=1e-300))
        for each in self.sets:
            if not bool(each.relative_violation(x) <= limit):
                raise ValueError(
                    f"the Intersection was solved, but {each} does not hold: it is off by "
                    f"{float(each.violation(x)):.2g}, which is more than rounding errors. Do its `argmin` and "
                    "`violation` describe the same set?"
                )

    def violation(self, x: Tensor) -> Tensor:
        return torch.stack([each.violation(x).double() for each in self.sets]).amax()

    def relative_violation(self, x: Tensor) -> Tensor:
        """Return the largest of all sets and their pieces.

        A bound of a simplex is compared with a coordinate, not with a sum."""
        parts = {id(part): part for part in (*self.sets, *self.pieces(x))}
        return torch.stack([each.relative_violation(x) for each in parts.values()]).amax()


def _capped(box: list[Box], curved: list[ConvexSet]) -> tuple[list[Box], list[ConvexSet]]:
    """Join a box and the first simplex of slices into one set."""
    simplex = next((each for each in curved if isinstance(each, Simplex | CappedSimplex)), None)
    if not box or simplex is None:
        return box, curved
    low, high = cast(Tensor, box[0].lo), cast(Tensor, box[0].hi)
    bounds = (0.0, simplex.total) if isinstance(simplex, Simplex) else (simplex.low, simplex.cap)
    low, high = low.maximum(like(bounds[0], low)), high.minimum(like(bounds[1], high))
    if bool((low > high).any()):
        raise ValueError("the Intersection is empty: a lower bound of one set is above the upper bound of another")
    both = CappedSimplex(simplex.total, high, simplex.dim, low)
    return [], [both, *(each for each in curved if each is not simplex)]


def _whole(ball: L1Ball | L2Ball, x: Tensor) -> bool:
    """Return whether it is a ball of all coordinates, not of slices."""
    return len(dims(x, ball.dim)) == x.dim()


def _bounds(bounds: list[tuple[Bound, Bound]], x: Tensor) -> tuple[Tensor, Tensor]:
    """Return the largest lower bounds and the smallest upper bounds."""
    low = torch.stack([like(-math.inf if lo is None else lo, x) for lo, _ in [(None, None), *bounds]]).amax(0)
    high = torch.stack([like(math.inf if hi is None else hi, x) for _, hi in [(None, None), *bounds]]).amin(0)
    if bool((low > high).any()):
        raise ValueError("the Intersection is empty: a lower bound of one set is above the upper bound of another")
    return low, high


class InBall:
    """The point nearest to y in a ball and in the set that `first` solves, as a function of y.

    ν is the ball's multiplier. The last one is the next start. Of an l1 ball it is a threshold, and `first` is the
    argmin of a monotone order: x has the positive part of the solution for y - ν/d, and the negative part of that for
    y + ν/d.
    """

    def __init__(self, ball: L1Ball | L2Ball, first: Callable[..., Tensor], accept: float) -> None:
        self.ball, self.first, self.accept, self.nu = ball, first, accept, 0.0

    def at(self, nu: float) -> tuple[Tensor, float]:
        """x(ν), and r/‖x(ν) - c‖ - 1, which rises with ν, nearly in proportion; of an l1 ball 1 - ‖x(ν)‖/r."""
        y, d, center = self.y, self.d, self.center
        if isinstance(self.ball, L1Ball):
            x = self.first(y - nu / d, d).clamp(min=0) + self.first(y + nu / d, d).clamp(max=0)
            return x, float(1 - x.abs().sum() / self.ball.r)
        # A copy of y: `first` may write into it. The metric as a ratio, so that ν may be large.
        point, metric = (y.clone(), d) if nu == 0 else ((d * y + nu * center) / (d + nu), (d + nu) / (d.amax() + nu))
        x = self.first(point, metric).to(y.dtype)
        distance = float(torch.linalg.vector_norm(x - center))
        return x, self.ball.r / distance - 1 if distance else math.inf

    def __call__(self, y: Tensor, d: Tensor) -> Tensor:
        self.y, self.d, self.center = y, d, like(getattr(self.ball, "center", 0.0), y)
        mean, nu = float(d.mean()), self.nu
        low, high, last = -1.0, math.inf, (0.0, 0.0)  # bounds of ν; ν = 0 itself was not tried yet
        for i in range(MAX_ROOT):
            x, slack = self.at(nu)
            if abs(slack) <= self.accept or (nu == 0 and slack > 0) or 0 < high - low <= 1e-15 * low:
                self.nu = nu
                return x
            low, high = (nu, high) if slack < 0 else (low, nu)
            # First the slope of a ball alone, with one d for all coordinates; then that of the secant.
            slope = (1 + slack) / (mean + nu) if i == 0 else (slack - last[1]) / (nu - last[0])
            guess = nu - slack / slope if 0 < slope < math.inf else math.inf
            guess, last = max(guess, 0.0) if low < 0 else guess, (nu, slack)
            if high == math.inf:
                nu = min(guess, 1e3 * (nu + mean))
            elif low < guess < high and i % 4 != 3:
                nu = guess
            else:
                nu = math.sqrt(low * high) if low > 0 else high / 10
        distance = float(torch.linalg.vector_norm(x - self.center, 1 if isinstance(self.ball, L1Ball) else 2))
        raise ValueError(
            f"no point of the other sets of the Intersection was found in {self.ball}: the nearest one is {distance:g} "
            "from its center. Is there such a point?"
        )


class Sweep:
    """Dykstra's method as a map from the p of all sets but the first to their new values."""

    def __init__(self, first: Callable[..., Tensor], others: list[ConvexSet], y: Tensor, d: Tensor) -> None:
        self.first, self.others, self.y, self.d = first, others, y, d

    def once(self, p: Tensor) -> tuple[Tensor, Tensor, float, float]:
        """Return the last x, the new p, the largest difference between two x (relative to the last), and the dual."""
        x = self.first(self.y - p.sum(0), self.d)
        left, new = self.y - p.sum(0) - x, torch.empty_like(p)  # the p of the first set, then their sum
        off, dual = x.new_zeros(()), (self.d * left * (self.y - x)).sum()
        for i, each in enumerate(self.others):
            z = self.y - left - p[i + 1 :].sum(0)
            last, x = x, each.argmin(z, self.d).to(z.dtype)
            new[i] = z - x
            left = left + new[i]
            off = off.maximum((x - last).abs().amax())
            dual = dual + (self.d * new[i] * (self.y - x)).sum()
        dual = dual - (self.d * left * left).sum() / 2
        off, size, dual = torch.stack([off, x.abs().amax(), dual]).tolist()
        return x, new, off / max(size, 1e-300) if off else 0.0, dual

    def solved(self, p: Tensor, tol: float, part: Intersection) -> tuple[Tensor, Tensor]:
        weight = self.d.sqrt()
        history: list[tuple[Tensor, Tensor]] = []
        best, least, after, extrapolated = -float("inf"), float("inf"), 0, False
        for _ in range(MAX_SWEEPS):
            x, new, off, dual = self.once(p)
            # A few sweeps more reach the last digits of float64; float32 has not as many.
            if off <= (4e-15 if tol < 1e-10 else tol) or (off <= tol and after >= 10):
                return x, new
            after += off <= tol
            # Near the solution rounding errors hide whether the dual rises, and the distance decides.
            if extrapolated and dual < best and (off >= least or dual < best - 1e-9 * abs(best)):
                # On by a plain sweep, which always raises the dual.
                p, extrapolated = history[-1][0], False
                continue
            best, least = max(best, dual), min(least, off)
            history = [*history[-MEMORY:], (new, ((new - p) * weight).flatten())]
            extrapolated = len(history) > 1
            p = _extrapolated(history, 1e20 * float(self.y.abs().amax())) if extrapolated else new
        names = ", ".join(type(each).__name__ for each in part.sets)
        raise ValueError(
            f"the Intersection of {names} was not solved in {MAX_SWEEPS} rounds: the points of two sets still differ "
            f"by {least:g} of the largest coordinate; the tolerance is {tol:g}. Either no x is in all of them, or they "
            "meet at a very small angle in the metric d, which happens if d spans many orders of magnitude"
        )


def _extrapolated(history: list[tuple[Tensor, Tensor]], most: float) -> Tensor:
    """Return the combination of the last results whose combined change is smallest (Anderson's method), up to a size
    that only sets without a common point reach."""
    results, changes = zip(*history, strict=True)
    differences = torch.stack([b - a for a, b in itertools.pairwise(changes)], 1)
    length = torch.linalg.vector_norm(differences, dim=0).clamp(min=1e-300)
    # The default driver gives other last digits for the same numbers.
    share = (
        torch.linalg.lstsq(differences / length, changes[-1][:, None], rcond=1e-12, driver="gelsd").solution.flatten()
        / length
    )
    moved = torch.stack([b - a for a, b in itertools.pairwise(results)])
    mixed: Tensor = results[-1] - torch.tensordot(share, moved, 1)
    return mixed if bool((mixed.abs() <= most).all()) else results[-1]
