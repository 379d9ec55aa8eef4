r"""The dual of line 9 on linear rows: $0 \le \lambda \perp S \lambda - e \ge 0$, in float64.

With $S = A D^{-1} A^\top$ and $e = A y - b$, the step is $x = y - D^{-1} A^\top \lambda$.
"""

from __future__ import annotations

import torch
from torch import Tensor

__all__ = ["active_set", "independent", "multipliers", "root_of"]

GUESSES = 20  # rounds in which many rows change at once
DEPENDENT = 1e-6  # a row this close to the span of others, relative to its length, counts as one of their mixtures


def multipliers(S: Tensor, e: Tensor, inequality: Tensor, gram: Tensor | None = None) -> Tensor:
    r"""Return $\lambda$ with $S \lambda = e$. For inequalities, $0 \le \lambda \perp S \lambda - e \ge 0$.

    S is positive semidefinite. It is singular only if rows are linearly dependent. `gram` is $A A^\top$, by default S.

    >>> S, e = torch.tensor([[2.0, 1.0], [1.0, 2.0]]).double(), torch.tensor([2.0, -5.0]).double()
    >>> multipliers(S, e, torch.tensor([True, True])).round(decimals=9)
    tensor([1., 0.], dtype=torch.float64)
    """
    gram = S if gram is None else gram
    length = gram.diagonal().sqrt()
    scale = torch.outer(length, length)
    S, gram, e = S / scale, gram / scale, e / length
    small = torch.full_like(e, torch.finfo(e.dtype).eps * len(e) * float(e.abs().max()))
    lam = torch.zeros_like(e)
    return active_set(root_of(S), root_of(gram), e, inequality, lam, ~inequality, small) / length


def root_of(S: Tensor, least: float = 0.0) -> Tensor:
    """Return a matrix B with BᵀB = S, for a positive semidefinite S. Eigenvalues below `least` are raised to it."""
    values, Q = torch.linalg.eigh(S)
    B: Tensor = values.clamp(min=least).sqrt()[:, None] * Q.T
    return B


def active_set(
    B: Tensor, C: Tensor, e: Tensor, inequality: Tensor, start: Tensor, guess: Tensor, small: Tensor
) -> Tensor:
    r"""Return $\delta$ for which $v = e - S \delta \le 0$, with $v = 0$ where $\lambda = \lambda_0 + \delta \ne 0$.

    For equations v is 0 too, and $\lambda$ may have any sign.
    This is the dual method of Goldfarb and Idnani (1983). It adds the most violated row to the active set, and removes
    rows whose multiplier would become negative. It adds each row at the minimum over the active ones, so the dual
    increases, and no active set occurs twice.

    $S = B^\top B$; $\lambda_0$ is `start`. The columns of C have length 1 and the same linear dependencies as the rows
    of A. `guess` is the initial active set. A v of at most `small`, or of rounding errors, counts as 0.
    """
    active = _improved(independent(C, guess & inequality, ~inequality), B, C, e, inequality, start, small)
    while True:  # rows of the guess whose multipliers are not positive are none of the solution's
        delta = _solved(B, e, start, active)
        negative = active & inequality & (start + delta <= 0)
        if not bool(negative.any()):
            break
        active = active & ~negative
    length, held = torch.linalg.vector_norm(B, dim=0), torch.zeros_like(inequality)
    for _ in range(50 * (len(e) + 1)):
        v = e - B.T @ (B @ delta)
        noise = small + 8 * torch.finfo(e.dtype).eps * (B.abs().T @ (B.abs() @ delta.abs()))
        _check_equations(v, inequality, active, noise)
        violated = torch.where(inequality & ~active & ~held & (v > noise), v / length, 0.0)
        if not bool(violated.any()):
            return delta
        p = int(violated.argmax())
        try:
            delta, active = _take_in(p, B, C, e, inequality, start, delta, active)
        except ValueError:  # of the opposite of an active row, only rounding errors are left
            if bool(v[p] > 1e5 * small[p]):
                raise
            held[p] = True
    raise ValueError(
        f"line 9 on {len(e)} rows found no set of active rows in {50 * (len(e) + 1)} tries: it could not reach the "
        "required accuracy because of rounding. Rescale d, if it spans more than twelve orders of magnitude, or remove "
        "nearly parallel rows"
    )


def _improved(
    active: Tensor, B: Tensor, C: Tensor, e: Tensor, inequality: Tensor, start: Tensor, small: Tensor
) -> Tensor:
    """Return a better guess: all rows with a negative multiplier leave at once, and all that are violated come in.

    It is often the solution after a few rounds, and may go in circles as well.
    """
    for _ in range(GUESSES):
        delta = _solved(B, e, start, active)
        wanted = inequality & torch.where(active, start + delta > 0, e - B.T @ (B @ delta) > small)
        if torch.equal(wanted, active & inequality):
            break
        active = independent(C, wanted, ~inequality)
    return active


def _take_in(
    p: int, B: Tensor, C: Tensor, e: Tensor, inequality: Tensor, start: Tensor, delta: Tensor, active: Tensor
) -> tuple[Tensor, Tensor]:
    """Add row p to the active set: λ_p grows until the row holds. Rows whose λ reaches 0 on the way leave the set."""
    while True:
        rows = active.nonzero().flatten()
        r, left = _mixture(C[:, rows], C[:, p])
        room = torch.tensor(torch.inf, dtype=e.dtype, device=e.device)
        if left.norm() > DEPENDENT:
            r, left = _mixture(B[:, rows], B[:, p])
            room = (e[p] - B[:, p] @ (B @ delta)).clamp(min=0) / left.square().sum()
        leaving = inequality[rows] & (r > 0)
        share = torch.where(leaving, (start + delta)[rows].clamp(min=0) / r, torch.inf)
        t = torch.cat([share, room[None]]).min()
        if bool(t.isinf()):
            against = sorted([p, *rows[r.abs() > DEPENDENT].tolist()])
            raise ValueError(f"the set is empty: no x meets the rows {against} at once")
        delta = delta.index_add(0, rows, r * -t)
        delta[p] += t
        if bool(t == room):
            break
        out = rows[share <= t]
        delta[out] = -start[out]
        active = active.index_fill(0, out, False)
    active = active.index_fill(0, torch.tensor([p], device=e.device), True)
    return _solved(B, e, start, active), active  # without the rounding errors of the way


def _solved(B: Tensor, e: Tensor, start: Tensor, active: Tensor) -> Tensor:
    """Return δ with v = 0 in the active rows, and λ = 0 in the others."""
    delta = torch.where(active, 0.0, 0.0 - start)
    if bool(active.any()):
        R = torch.linalg.qr(B[:, active], mode="r").R
        v = (e - B.T @ (B @ delta))[active, None]
        lower = torch.linalg.solve_triangular(R.T, v, upper=False)
        delta[active] = torch.linalg.solve_triangular(R, lower, upper=True).flatten()
    return delta


def _mixture(M: Tensor, column: Tensor) -> tuple[Tensor, Tensor]:
    """Return the r for which M r is nearest to the column, and the residual."""
    Q, R = torch.linalg.qr(M)
    along = Q.T @ column
    left = column - Q @ along
    more = Q.T @ left  # once more: the first left rounding errors
    r = torch.linalg.solve_triangular(R, (along + more)[:, None], upper=True).flatten()
    return r, left - Q @ more


def independent(C: Tensor, wanted: Tensor, first: Tensor) -> Tensor:
    """Return the rows that do not depend on earlier rows; `first` come first."""
    order = torch.cat([first.nonzero(), wanted.nonzero()]).flatten()
    while len(order):
        diagonal = torch.linalg.qr(C[:, order], mode="r").R.diagonal().abs()
        dependent = torch.nn.functional.pad(diagonal, (0, len(order) - len(diagonal))) <= DEPENDENT
        if not bool(dependent.any()):
            break
        # What comes after a column that depends on others is not known, until that is gone.
        order = torch.cat([order[: (place := int(dependent.int().argmax()))], order[place + 1 :]])
    return torch.zeros_like(wanted).index_fill(0, order, True)


def _check_equations(v: Tensor, inequality: Tensor, active: Tensor, small: Tensor) -> None:
    wrong = ~inequality & ~active & (v.abs() > 1e3 * small)
    if bool(wrong.any()):
        raise ValueError(f"the set is empty: equations {wrong.nonzero().flatten().tolist()} contradict the others")
