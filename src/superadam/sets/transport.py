"""Non-negative matrices with given row and column sums."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from superadam.parts import check
from superadam.sets.base import ConvexSet, check_finite, in_metric, largest, vertex

__all__ = ["DoublyStochastic"]

MAX_NEWTON = 200
AT_ONCE = 40  # iterations for y itself, before smaller multiples of it come first
GROWTH = 4.0  # from one multiple of y to the next
MAX_ROOT = 100
TINY = 1e-300  # to divide by


class DoublyStochastic(ConvexSet):
    r"""$x \ge 0$ with given row and column sums: by default 1, the Birkhoff polytope.

    `rows` and `columns` are numbers or vectors (marginals of transport plans); `columns=None` gives every column the
    same sum. The last two dimensions are the matrix. With u and v such that x has these sums,

    $$x_{ij} = \max(0, y_{ij} + (u_i + v_j) / d_{ij})$$

    The dual is convex and smooth. Each iteration minimises it over u, then over v, and takes a Newton step in both.
    About five iterations are enough, starting from the u and v of the last step. x has this form by construction, so it
    is the minimiser as soon as it has the given sums.

    `lmo` is a cheapest transport plan, by shortest augmenting paths on the host; a permutation where all sums are 1.
    For n × n matrices that takes O(n³), with some calls of torch for each of O(n²) columns.

    Args:
        rows: row sums: a number, or a vector.
        columns: column sums: a number, or a vector; None gives every column the same sum.

    >>> DoublyStochastic().argmin(torch.tensor([[1.0, 0.0], [0.5, 0.0]]), 1.0)
    tensor([[0.6250, 0.3750],
            [0.3750, 0.6250]])
    """

    rows: float | Tensor = 1.0
    columns: float | Tensor | None = None

    def __post_init__(self) -> None:
        for name, sums in (("rows", self.rows), ("columns", self.columns)):
            if sums is not None:
                check_finite(name, sums)
                check((torch.as_tensor(sums) >= 0).all(), name, sums, f"{name} >= 0")

    def marginals(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """Return the row and column sums of each matrix, in float64."""
        if x.dim() < 2:
            raise ValueError(f"{self} is a set of matrices, and the tensor has the shape {tuple(x.shape)}")
        r = self._spread("rows", self.rows, x.shape[:-1], x)
        total = r.sum(-1, keepdim=True)
        if self.columns is None:
            return r, (total / x.shape[-1]).expand(*x.shape[:-2], x.shape[-1])
        c = self._spread("columns", self.columns, torch.Size([*x.shape[:-2], x.shape[-1]]), x)
        other = c.sum(-1, keepdim=True)
        if bool(((total - other).abs() > 1e-5 * total).any()):
            raise ValueError(
                f"DoublyStochastic is empty for a tensor of shape {tuple(x.shape)}: the rows sum to {total.max():g}, "
                f"the columns to {other.max():g}. columns=None gives every column the same share"
            )
        return r, c * (total / other.clamp(min=TINY))  # vectors in float32 have equal sums up to rounding errors

    def _spread(self, name: str, sums: float | Tensor, shape: torch.Size, x: Tensor) -> Tensor:
        sums = torch.as_tensor(sums, dtype=torch.float64, device=x.device)
        try:
            return sums.expand(shape)
        except RuntimeError:
            raise ValueError(
                f"{name} of shape {tuple(sums.shape)} do not fit a tensor of shape {tuple(x.shape)}"
            ) from None

    def root_shape(self, x: Tensor) -> torch.Size | None:
        return torch.Size([*x.shape[:-2], x.shape[-2] + x.shape[-1]]) if x.dim() > 1 else None

    def in_rows(self, x: Tensor) -> bool:
        return x.dim() > 2 and not isinstance(self.rows, Tensor) and not isinstance(self.columns, Tensor)

    @in_metric
    def argmin(self, y: Tensor, d: Tensor, root: Tensor | None) -> Tensor:
        r, c = self.marginals(y)
        most, m = d.amax().double(), y.shape[-2]
        goal = (1e-7 if y.dtype == torch.float32 else 1e-13) * float(r.amax().maximum(c.amax()))
        if bool((y >= 0).all()) and _error(y.double().sum(-1) - r, y.double().sum(-2) - c) <= 10 * goal:
            return y
        z = y.double()
        potentials = [z.new_zeros(r.shape), z.new_zeros(c.shape)]
        if root is not None and bool((root.abs() <= 1e3 * (1 + z.abs().amax()) * most).all()):
            start = root.double() / most
            potentials = [start[..., :m], start[..., m:]]
        plan = _Plan(z, (most / d.double()).expand_as(z).contiguous(), r, c)
        u, v = plan.solve(potentials[0], potentials[1], goal)
        if root is not None:
            root.copy_(torch.cat([plan.before[0] + u, plan.before[1] + v], -1) * most)
        return plan.at(u, v)

    @vertex
    def lmo(self, g: Tensor) -> Tensor:
        """Return a plan of the least cost g."""
        r, c = (sums.reshape(-1, sums.shape[-1]).cpu() for sums in self.marginals(g))
        costs = g.double().cpu().reshape(-1, *g.shape[-2:])
        plans = [_cheapest(*problem) for problem in zip(costs, r, c, strict=True)]
        return torch.stack(plans).view(g.shape).to(g)

    def _size(self, x: Tensor) -> Tensor:
        return largest(x.abs().sum(-1)).maximum(largest(x.abs().sum(-2)))

    def violation(self, x: Tensor) -> Tensor:
        if x.numel() == 0:
            return x.new_zeros(())
        r, c = self.marginals(x)
        x = x.double()
        return torch.stack([largest((x.sum(-1) - r).abs()), largest((x.sum(-2) - c).abs()), largest(-x)]).amax()


def _cheapest(cost: Tensor, r: Tensor, c: Tensor) -> Tensor:
    """Return the x ≥ 0 with sums r and c and the least ⟨cost, x⟩.

    Row by row, the rest of r goes along a shortest path to a column that still lacks mass: forward along any element,
    back along those with x > 0. With the potentials u and v, no element of cost - u - v is negative, so Dijkstra's
    method finds the path.
    """
    cost = cost / cost.abs().amax().clamp(min=TINY)
    x, left, missing = torch.zeros_like(cost), r.clone(), c.clone()
    u, v = torch.zeros_like(left), cost.amin(0)
    nothing = 1e-15 * float(r.sum()) * sum(cost.shape)
    for i in range(len(cost)):
        while left[i] > nothing and bool((missing > nothing).any()):
            path, rows, columns = _shortest(cost - u[:, None] - v, x > nothing, missing > nothing, i)
            u, v = u + rows, v - columns
            forth, back = path[::2], path[1::2]
            amount = min(float(of) for of in (left[i], missing[path[0][1]], *(x[element] for element in back)))
            for element in forth:
                x[element] += amount
            for element in back:
                x[element] -= amount
            left[i] -= amount
            missing[path[0][1]] -= amount
    return x


def _shortest(
    length: Tensor, returns: Tensor, ends: Tensor, start: int
) -> tuple[list[tuple[int, int]], Tensor, Tensor]:
    """Return a shortest path from a row to a column of `ends`, last first, and how much nearer rows and columns are.

    Rows and columns that are not nearer than that end have 0."""
    m, n = length.shape
    far, via = length[start].clone(), [start] * n  # columns: how far, and from which row
    reached, entered = {start: 0.0}, {start: -1}  # rows: how far, and from which column
    done = torch.zeros(n, dtype=torch.bool)
    while True:
        j = int(far.masked_fill(done, math.inf).argmin())
        distance, done[j] = float(far[j]), True
        if ends[j]:
            break
        for k in [k for k in returns[:, j].nonzero().flatten().tolist() if k not in reached]:
            reached[k], entered[k] = distance, j
            better = (distance + length[k] < far) & ~done
            far = torch.where(better, distance + length[k], far)
            for other in better.nonzero().flatten().tolist():
                via[other] = k
    path = [(via[j], j)]
    while path[-1][0] != start:
        k = path[-1][0]
        path += [(k, entered[k]), (via[entered[k]], entered[k])]
    rows = torch.zeros(m, dtype=length.dtype)
    for k, at in reached.items():
        rows[k] = distance - at
    return path, rows, torch.where(done, distance - far, 0.0)


def _error(rows: Tensor, columns: Tensor) -> float:
    return float(torch.maximum(rows.abs().amax(), columns.abs().amax()))


class _Plan:
    """x = max(0, y + w (u + v)) with sums r and c. u and v minimise the dual

    φ = ½ Σ x²/w - r·u - c·v.
    """

    def __init__(self, y: Tensor, w: Tensor, r: Tensor, c: Tensor) -> None:
        self.y, self.w, self.r, self.c = y, w, r, c
        self.base, self.buffer = torch.empty_like(y), torch.empty_like(y)
        self.before = torch.zeros_like(r), torch.zeros_like(c)  # the u and v that are in y already

    def at(self, u: Tensor, v: Tensor) -> Tensor:
        both = torch.add(u[..., None], v[..., None, :], out=self.buffer)
        return both.mul_(self.w).add_(self.y).relu_()

    def solve(self, u: Tensor, v: Tensor, goal: float) -> tuple[Tensor, Tensor]:
        """Return u and v, besides the potentials already in y, for which no sum is off by more than `goal`.

        For a y far larger than the sums, line 9 is nearly a linear program: few elements of x are positive, and
        Newton's method does not find them from far away. Then it solves for small multiples of y first; u and v grow
        with y.
        """
        y, nothing, size = self.y, self.before, float(self.r.amax().maximum(self.c.amax()))
        u, v, solved = self.newton(u, v, goal, AT_ONCE)
        if solved:
            return u, v
        u, v = nothing
        share = min(1.0, size / float(y.abs().amax()))
        while share < 1:
            self.y, self.before = share * y, nothing
            u, v, _ = self.newton(u, v, max(goal, 1e-6 * size), MAX_NEWTON)
            growth = min(GROWTH, 1 / share)
            u, v, share = growth * (self.before[0] + u), growth * (self.before[1] + v), min(1.0, GROWTH * share)
        self.y, self.before = y, nothing
        u, v, solved = self.newton(u, v, goal, MAX_NEWTON)
        if not solved:
            x = self.at(u, v)
            raise ValueError(
                f"DoublyStochastic was not solved in {MAX_NEWTON} iterations: a sum is off by "
                f"{_error(x.sum(-1) - self.r, x.sum(-2) - self.c):g}, more than the tolerance {goal:g}. Do d or y span "
                "more than twelve orders of magnitude?"
            )
        return u, v

    def newton(self, u: Tensor, v: Tensor, goal: float, iterations: int) -> tuple[Tensor, Tensor, bool]:
        """Better u and v, and whether no sum is off by more than `goal`."""
        full, last = True, math.inf
        for _ in range(iterations):
            # Where full steps are too long, new elements become positive one by one, and this would undo it.
            if full:
                u, v = self.swept(u, v, goal)
            x = self.at(u, v)
            rows, columns = x.sum(-1) - self.r, x.sum(-2) - self.c
            error = _error(rows, columns)
            if error <= goal or last / 2 <= error <= 10 * goal:  # or at the level of rounding errors
                return u, v, True
            last = error
            P = x.sign_().mul_(self.w)
            R, C = P.sum(-1), P.sum(-2)
            if error <= 1e-15 * _error(R * u, C * v):  # the rounding errors of u and v: go on from where x is
                self.y = self.y.addcmul(self.w, u[..., None] + v[..., None, :])
                self.before = self.before[0] + u, self.before[1] + v
                u, v = torch.zeros_like(u), torch.zeros_like(v)
                full = True
            elif bool(((R == 0) & (rows < 0)).any() | ((C == 0) & (columns < 0)).any()):
                # Newton's method says nothing about rows and columns without a positive element.
                above, beside = self.swept(u, v, goal)
                u, v, full = torch.where(R == 0, above, u), torch.where(C == 0, beside, v), False
            else:
                u, v, full = self.descended(P, u, v, rows, columns)
        return u, v, False

    def swept(self, u: Tensor, v: Tensor, goal: float) -> tuple[Tensor, Tensor]:
        """Minimise φ over u, then over v."""
        u = self.balanced(v[..., None, :], u, self.r, -1, goal)
        return u, self.balanced(u[..., None], v, self.c, -2, goal)

    def balanced(self, others: Tensor, t: Tensor, sums: Tensor, dim: int, goal: float) -> Tensor:
        """Return the t for which all sums along `dim` are met, given the potentials of the other dimension.

        The sum is increasing, convex and piecewise linear in t. Newton's method is above the root after one step, and
        then decreases to it. If nothing is positive, t moves to where the first coordinate alone gives the sum.
        """
        base = torch.addcmul(self.y, self.w, others, out=self.base)
        for _ in range(MAX_ROOT):
            x = torch.addcmul(base, self.w, t.unsqueeze(dim), out=self.buffer).relu_()
            error = x.sum(dim) - sums
            if bool((error.abs() <= goal / 4).all()):
                break
            slope = x.sign_().mul_(self.w).sum(dim)
            t = torch.where(slope > 0, t - error / slope.clamp(min=TINY), t)
            if bool((slope == 0).any()):
                alone = (sums.unsqueeze(dim) - base).div_(self.w).amin(dim)
                t = torch.where((slope == 0) & (error < 0), alone, t)
        return t

    def descended(self, P: Tensor, u: Tensor, v: Tensor, rows: Tensor, columns: Tensor) -> tuple[Tensor, Tensor, bool]:
        """Return a Newton step, shortened where φ would rise along it, and whether it is a full step."""
        du, dv = _newton(P, rows, columns)
        first = (rows * du).sum(-1) + (columns * dv).sum(-1)

        def slope(t: Tensor) -> Tensor:
            x = self.at(u + t[..., None] * du, v + t[..., None] * dv)
            return ((x.sum(-1) - self.r) * du).sum(-1) + ((x.sum(-2) - self.c) * dv).sum(-1)

        # A step can be far too long: where columns share no rows, nothing holds them together.
        t, low, high = torch.ones_like(first), torch.zeros_like(first), torch.ones_like(first)
        for _ in range(60):
            now = slope(t)
            done = (now <= -first / 10) & ((now >= first / 10) | (t == 1) | (high <= 1.01 * low))
            if bool(done.all()):
                break
            low, high = torch.where(now < 0, t, low), torch.where(now < 0, high, t)
            t = torch.where(done, t, torch.where(low > 0, (low * high).sqrt(), high / 10))
        t = torch.where(done, t, low)[..., None]
        return u + t * du, v + t * dv, bool((t == 1).all())


def _newton(P: Tensor, rows: Tensor, columns: Tensor) -> tuple[Tensor, Tensor]:
    """Return the step for the gradient (rows, columns) and the Hessian [[R, P], [Pᵀ, C]], where R and C are P's sums.

    u is eliminated. The remaining matrix for v is the Laplacian of a graph whose edges are columns that share rows. It
    is singular for constants on each connected component, so a tiny diagonal is added.
    """
    R, C = P.sum(-1), P.sum(-2)
    one_over_R = torch.where(R > 0, 1 / R, 0.0)  # nothing is positive in the others: `balanced` has to find the first
    shared = P.mT @ (one_over_R[..., None] * P)
    diagonal = shared.diagonal(dim1=-2, dim2=-1)
    degree = shared.sum(-1) - diagonal
    extra = 1e-12 * torch.where(C > 0, C, 1.0)
    laplacian = shared.neg_()
    laplacian.diagonal(dim1=-2, dim2=-1).copy_(degree + extra)
    right = (P.mT @ (one_over_R * rows)[..., None])[..., 0] - columns
    factor, _ = torch.linalg.cholesky_ex(laplacian)
    dv = torch.cholesky_solve(right[..., None], factor)
    du = -one_over_R * (rows + (P @ dv)[..., 0])
    return du, dv[..., 0]
