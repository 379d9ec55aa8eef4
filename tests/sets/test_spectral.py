"""The exact step of line 9 on balls of matrix norms."""

import pytest
import torch
from hypothesis import given, settings

from sets.conditions import TOL, positive, problems, relative
from sets.wide import all_scales, solve
from superadam import matrices, sets
from superadam.estimators import Recursive
from superadam.iterates import Plain
from superadam.options import Composition
from superadam.schedules import Paper


def dual_of_ball(r, y, x, norm, dual):
    """⟨y - x, x⟩ = r ‖y - x‖*, and ‖x‖ ≤ r."""
    if norm(y) <= r:
        return relative(x - y, y)
    gap = r * dual(y - x) - ((y - x) * x).sum()
    return max(float(gap.abs() / (r * dual(y))), float(positive(norm(x) / r - 1)) if r else float(norm(x)))


@given(problems(scalar_metric=True))
def test_matrix_norm_balls(problem):
    y, d, r, _ = problem

    def spectral(m):
        return torch.linalg.svdvals(m).max()

    def nuclear(m):
        return torch.linalg.svdvals(m).sum()

    for constraint, norm, dual in [
        (sets.SpectralBall(r), spectral, nuclear),
        (sets.NuclearBall(r), nuclear, spectral),
    ]:
        x = constraint.argmin(y, d)
        size = y.shape[-2:].numel() if y.dim() > 1 else y.numel()
        shape = y.shape[-2:] if y.dim() > 1 else (1, -1)
        for before, after in zip(y.double().reshape(-1, size), x.double().reshape(-1, size), strict=True):
            assert dual_of_ball(r, before.view(shape), after.view(shape), norm, dual) < TOL[y.dtype]


def beside(matrix):
    """The parts of a composition with this matrix."""
    return Composition(Recursive(), matrix, Paper(), Plain(), None, None, None)


@pytest.mark.parametrize("constraint", [sets.SpectralBall(1.0), sets.NuclearBall(1.0)], ids=["spectral", "nuclear"])
def test_matrix_norm_balls_need_a_scalar_metric(constraint):
    with pytest.raises(ValueError, match="one learning rate for all coordinates, so d must be a scalar"):
        constraint.argmin(torch.ones(2, 2), torch.ones(2, 2))
    names = {"GradientNorm", "BarzilaiBorwein", "BeliefNorm", "AccumulatedNorm", "EstimateNorm", "Identity"}
    said = str(constraint.objection(beside(matrices.SecondMoment()), {}))
    for name in names:
        assert name in said
        assert constraint.objection(beside(getattr(matrices, name)()), {}) is None
    assert "SecondMoment has many" in constraint.objection(beside(matrices.SecondMoment()), {})
    assert sets.L2Ball(1.0).objection(beside(matrices.SecondMoment()), {}) is None


PROPERTY = settings(deadline=None)


def spectral(sigma):
    return sigma.max()


def nuclear(sigma):
    return sigma.sum()


@PROPERTY
@given(all_scales())
def test_matrix_norm_balls_over_the_whole_range(problem):
    """⟨y - x, x⟩ = r ‖y - x‖*, and ‖x‖ ≤ r."""
    y, d, r, _, scratch = problem
    d = d.flatten()[0]
    for part, norm, dual in [(sets.SpectralBall(r), spectral, nuclear), (sets.NuclearBall(r), nuclear, spectral)]:
        x = solve(part, y, d, scratch=scratch)
        before, after = (t.double().view(-1, y.shape[-1]) for t in (y, x))
        sigma = torch.linalg.svdvals(before)
        if norm(sigma) <= r:
            assert torch.equal(x, y)
            continue
        away = before - after
        gap = r * dual(torch.linalg.svdvals(away)) - (away * after).sum()
        assert gap.abs() <= TOL[y.dtype] * r * dual(sigma)
        assert norm(torch.linalg.svdvals(after)) <= r * (1 + TOL[y.dtype])
        assert part.violation(x) <= r * TOL[y.dtype]
