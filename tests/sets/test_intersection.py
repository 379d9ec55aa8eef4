"""Intersections equal the polyhedron of all their rows, or meet the conditions of their parts."""

import io
import itertools

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from sets.coupled import from_cone, metric, nearly, numbers
from superadam import sets

N = 8


ROW = numbers(5, (N,))


EYE = torch.eye(N, dtype=torch.float64)


ONES = torch.ones(1, N, dtype=torch.float64)


PAIRS = EYE[::2] + EYE[1::2]


def rows(*pairs):
    b = [torch.full((len(A),), bound, dtype=torch.float64) for A, bound in pairs]
    return sets.Polyhedron(torch.cat([A for A, _ in pairs]), torch.cat(b))


SUM_IS_ONE = ((ONES, 1.0), (-ONES, -1.0))


# Each beside its rows.
POLYHEDRA = {
    "simplex and halfspace": (
        sets.Intersection(sets.Simplex(), sets.Halfspace(ROW, -0.2)),
        rows(*SUM_IS_ONE, (-EYE, 0.0), (ROW[None], -0.2)),
    ),
    "simplex and box": (
        sets.Intersection(sets.Simplex(), sets.Box(0.02, 0.3)),
        rows(*SUM_IS_ONE, (-EYE, -0.02), (EYE, 0.3)),
    ),
    "capped simplex between two halfspaces": (
        sets.Intersection(sets.CappedSimplex(1.0, 0.4), sets.Halfspace(ROW, 0.1), sets.Halfspace(-ROW, 0.1)),
        rows(*SUM_IS_ONE, (-EYE, 0.0), (EYE, 0.4), (ROW[None], 0.1), (-ROW[None], 0.1)),
    ),
    "capped simplex with lower bounds and a halfspace": (
        sets.Intersection(sets.CappedSimplex(1.0, 0.4, low=0.05), sets.Halfspace(ROW, 0.1)),
        rows(*SUM_IS_ONE, (-EYE, -0.05), (EYE, 0.4), (ROW[None], 0.1)),
    ),
    "capped simplex with negative lower bounds for each coordinate, and a box": (
        sets.Intersection(sets.CappedSimplex(1.0, 0.5 + 0 * ROW, low=-0.1 * ROW.abs()), sets.Box(None, 0.3)),
        sets.Polyhedron(
            torch.cat([ONES, -ONES, -EYE, EYE]),
            torch.cat([torch.tensor([1.0, -1.0]), 0.1 * ROW.abs(), torch.full_like(ROW, 0.3)]),
        ),
    ),
    "box section and halfspace": (
        sets.Intersection(sets.BoxSection(ROW, 0.3, low=-0.2, high=0.6), sets.Halfspace(1.0, 0.4)),
        rows((ROW[None], 0.3), (-ROW[None], -0.3), (-EYE, 0.2), (EYE, 0.6), (ONES, 0.4)),
    ),
    "capped simplex and the sums of pairs, which add up to one": (
        sets.Intersection(sets.CappedSimplex(1.0, 0.25), sets.Polyhedron(PAIRS, torch.full((N // 2,), 0.3))),
        rows(*SUM_IS_ONE, (-EYE, 0.0), (EYE, 0.25), (PAIRS, float(torch.tensor(0.3)))),
    ),
    "an intersection within one": (
        sets.Intersection(
            sets.Intersection(sets.Simplex(), sets.Halfspace(ROW, -0.2)), sets.CappedSimplex(1.0, 0.5, low=0.01)
        ),
        rows(*SUM_IS_ONE, (-EYE, -0.01), (EYE, 0.5), (ROW[None], -0.2)),
    ),
    "box and affine": (
        sets.Intersection(sets.Box(-1, 1), sets.Affine(torch.stack([ROW, EYE[0]]), torch.tensor([0.5, 0.25]))),
        rows((EYE, 1.0), (-EYE, 1.0), (ROW[None], 0.5), (-ROW[None], -0.5), (EYE[:1], 0.25), (-EYE[:1], -0.25)),
    ),
    "linear sets": (
        sets.Intersection(sets.Hyperplane(1.0, 1.0), sets.Halfspace(ROW, 0.1), sets.Polyhedron(EYE, torch.ones(N))),
        rows(*SUM_IS_ONE, (ROW[None], 0.1), (EYE, 1.0)),
    ),
    "boxes": (sets.Intersection(sets.Box(-0.5, None), sets.LInfBall(0.7)), rows((EYE, 0.7), (-EYE, 0.5))),
}


@pytest.mark.parametrize("name", POLYHEDRA)
@settings(derandomize=True, deadline=None, max_examples=8)
@given(st.integers(0, 10**6), st.sampled_from([0, 2, 4, 8, 12]), st.sampled_from([1.0, 50.0]))
def test_intersections_equal_their_rows(name, seed, spread, size):
    part, same = POLYHEDRA[name]
    y, d = size * numbers(seed, (N,)), metric(seed + 1, (N,), spread)
    x = part.argmin(y, d)
    torch.testing.assert_close(x, same.argmin(y, d), rtol=0, atol=1e-9)
    assert part.violation(x) < 1e-11
    nearly(part, y, d)


CURVED = {
    "l1 and l2 balls": sets.Intersection(sets.L1Ball(1.5), sets.L2Ball(0.8)),
    "two l2 balls": sets.Intersection(sets.L2Ball(1.0, 0.3), sets.L2Ball(1.2)),
    "l1, l2 and linf balls": sets.Intersection(sets.L1Ball(1.5), sets.L2Ball(0.8), sets.LInfBall(0.5)),
    "ball, halfspace, non-negative": sets.Intersection(sets.NonNegative(), sets.L2Ball(1.0), sets.Halfspace(ROW, -0.4)),
    "l1 ball, halfspace, non-negative": sets.Intersection(
        sets.NonNegative(), sets.L1Ball(1.0), sets.Halfspace(ROW, -0.4)
    ),
    "l2 ball and hyperplane": sets.Intersection(sets.L2Ball(1.0), sets.Hyperplane(ROW, 0.5)),
}


def normals(part, x):
    """Vectors whose cone is the normal cone of a set at x."""
    if isinstance(part, sets.Intersection):
        return [normal for each in part.sets for normal in normals(each, x)]
    if isinstance(part, sets.L2Ball):
        away = x - part.center
        return [away] if away.norm() >= part.r - 1e-9 else []
    if isinstance(part, sets.L1Ball):
        zero = x.abs() < 1e-10
        signs = [[-1.0, 1.0] if at else [float(v.sign())] for v, at in zip(x, zero, strict=True)]
        return [torch.tensor(v).double() for v in itertools.product(*signs)] if x.abs().sum() >= part.r - 1e-9 else []
    if isinstance(part, sets.NonNegative):
        return list(-EYE[x < 1e-10])
    if isinstance(part, sets.LInfBall):
        return list((EYE * x.sign())[x.abs() > part.r - 1e-10])
    if isinstance(part, sets.Hyperplane):
        return [part.a, -part.a]
    return [part.a] if part.a @ x >= part.b - 1e-9 else []


@pytest.mark.parametrize("name", CURVED)
@settings(derandomize=True, deadline=None, max_examples=8)
@given(st.integers(0, 10**6), st.sampled_from([0, 2, 4]), st.sampled_from([0.3, 1.0, 3.0]))
def test_curved_intersections(name, seed, spread, size):
    """D(y - x) is in the sum of the sets' normal cones."""
    part = CURVED[name]
    y, d = size * numbers(seed, (N,)), metric(seed + 1, (N,), spread)
    x = part.argmin(y, d)
    assert part.violation(x) < 1e-11
    if part.violation(y) == 0:
        assert torch.equal(x, y)
    else:
        assert from_cone(torch.stack(normals(part, x)), y, d, x) < 1e-9
    nearly(part, y, d)


def test_lower_bounds_of_a_capped_simplex_hold_in_an_intersection():
    part = sets.Intersection(sets.CappedSimplex(1.0, 0.6, low=0.05), sets.Halfspace(torch.tensor([1.0, 0, 0, 0]), 0.5))
    x = part.argmin(torch.tensor([2.0, -1.0, 0.3, 0.1]), 1.0)
    torch.testing.assert_close(x, torch.tensor([0.5, 0.05, 0.325, 0.125]))


def test_the_certificate_is_each_sets_own_violation(monkeypatch):
    """Pieces that are not the whole set give an x that is outside of it: an error, no silent result."""
    part = sets.Intersection(sets.CappedSimplex(1.0, 0.6, low=0.05), sets.Halfspace(torch.tensor([1.0, 0, 0, 0]), 0.5))
    monkeypatch.setattr(sets.CappedSimplex, "pieces", lambda self, x: (sets.Hyperplane(1.0, 1.0), sets.Box(0, 0.6)))
    with pytest.raises(ValueError, match=r"CappedSimplex\(.*\) does not hold: it is off by 0\.05"):
        part.argmin(torch.tensor([2.0, -1.0, 0.3, 0.1]), 1.0)


@pytest.mark.parametrize("n", [200_000, 1_000_000])
def test_the_certificate_does_not_weaken_with_the_number_of_coordinates(n):
    """One negative coordinate among a million is outside, however large the sum of all coordinates is."""
    y = torch.full((n,), 0.5)
    y[0] = -8e-4
    x = sets.Intersection(sets.NonNegative(), sets.Halfspace(1.0, 1e7)).argmin(y, 1.0)
    assert torch.equal(x, y.clamp(min=0))
    capped = sets.Intersection(sets.Simplex(), sets.Box(0, 2 / n), sets.Halfspace(numbers(0, (n,)), -0.1))
    x = capped.argmin(numbers(1, (n,)).float(), metric(2, (n,), 1))
    assert capped.violation(x) <= 1e-7  # the rounding errors of float32 in a sum of 1
    assert float(x.min()) >= 0
    assert float(x.max()) <= 2 / n * (1 + 1e-7)


def test_equations_that_say_the_same_twice():
    same = sets.Intersection(sets.Simplex(2.0), sets.CappedSimplex(2.0, 0.5), sets.Hyperplane(-3.0, -6.0))
    y, d = numbers(0, (N,)), metric(1, (N,), 3)
    torch.testing.assert_close(same.argmin(y, d), sets.CappedSimplex(2.0, 0.5).argmin(y, d), rtol=0, atol=1e-11)
    with pytest.raises(ValueError, match=r"empty: equations .1. contradict"):
        sets.Intersection(sets.Simplex(1.0), sets.Simplex(2.0)).argmin(y, d)


@pytest.mark.parametrize("low", [0.0, 0.05])
def test_a_simplex_of_rows_and_a_box_are_the_capped_simplex(low):
    """One set, solved once, and not by sweeps."""
    y, d = numbers(0, (3, N)), metric(1, (3, N), 6)
    simplex = sets.CappedSimplex(1.0, 0.9, dim=-1, low=low) if low else sets.Simplex(dim=-1)
    x = sets.Intersection(simplex, sets.Box(0.01, 0.3)).argmin(y, d)
    torch.testing.assert_close(
        x, sets.CappedSimplex(1.0, 0.3, dim=-1, low=max(low, 0.01)).argmin(y, d), rtol=0, atol=1e-12
    )
    with pytest.raises(ValueError, match="CappedSimplex is empty: the caps sum to"):
        sets.Intersection(simplex, sets.Box(0, 0.1)).argmin(y, d)


def test_an_intersection_refuses_what_is_not_convex():
    with pytest.raises(ValueError, match="expected convex sets, which Sphere is not"):
        sets.Intersection(sets.Sphere(), sets.NonNegative())


def test_an_intersection_says_what_it_needs_and_checkpoints_its_sets():
    simple, balls = (
        sets.Intersection(sets.Simplex(), sets.Box(0, 0.5)),
        sets.Intersection(sets.PSD(), sets.SpectralBall(1.0)),
    )
    assert sets.Intersection(sets.Halfspace(1.0, 1.0), sets.Hyperplane(ROW, 0.0)).needs == "inverse"
    assert simple.needs == balls.needs == "diagonal"
    assert balls.scalar_metric
    assert not simple.scalar_metric
    assert sets.Intersection(sets.Box(0, 1), sets.NonNegative()).separable
    assert not simple.separable
    assert not simple.bounded
    nested = sets.Intersection(simple, sets.Halfspace(ROW, 1.0))
    stored = io.BytesIO()
    torch.save(nested.spec(), stored)
    stored.seek(0)
    found = sets.ConvexSet.find(torch.load(stored, weights_only=True))
    assert found == nested
    assert hash(found) == hash(nested)
    assert found != sets.Intersection(simple, sets.Halfspace(2 * ROW, 1.0))
    assert nested != simple
    y = numbers(0, (N,))
    assert torch.equal(found.argmin(y, 1.0), nested.argmin(y, 1.0))
    x = balls.argmin(numbers(1, (4, 4)), 1.0)
    assert torch.linalg.eigvalsh(x).amin() > -1e-12
    assert torch.linalg.eigvalsh(x).amax() < 1 + 1e-12


def test_a_set_of_ones_own_in_an_intersection():
    class Rising(sets.ConvexSet):
        def argmin(self, y, d):
            d = torch.as_tensor(d).expand_as(y)
            mean = (d * y).sum() / d.sum()
            return torch.where(y[0] > y[-1], mean, y)

    try:
        part = sets.Intersection(Rising(), sets.Simplex())
        torch.testing.assert_close(part.argmin(torch.tensor([0.9, 0.3]), 1.0), torch.tensor([0.5, 0.5]))
    finally:
        del sets.ConvexSet._names["Rising"]


def test_sets_that_do_not_meet(monkeypatch):
    with pytest.raises(ValueError, match=r"was found in L2Ball.*: the nearest one is 4\.19615 from its center"):
        sets.Intersection(sets.L2Ball(1.0), sets.L2Ball(1.0, center=3.0)).argmin(torch.ones(3), 1.0)
    monkeypatch.setattr("superadam.sets.intersection.MAX_SWEEPS", 50)
    with pytest.raises(ValueError, match="the Intersection of L1Ball, Box was not solved in 50 rounds"):
        sets.Intersection(sets.L1Ball(1.0), sets.Box(-3.0, -2.0)).argmin(torch.ones(3), 1.0)
