"""The exact step of line 9 on spheres, which are not convex."""

import math
from fractions import Fraction

import mpmath
import pytest
import torch
from hypothesis import given, settings

from sets.wide import DIMS, all_scales, big, check_rows, fraction, root_of
from superadam import Monitor, SuperAdam, iterates, schedules, sets, theory

PROPERTY = settings(deadline=None)


def exact_sphere(r, y, d):
    """For a y that is not 0 where d is least."""
    with mpmath.workdps(60):
        p, w, top = big(y), big(d), mpmath.mpf(r.numerator) / r.denominator
        least = min(w)
        size = mpmath.norm([a * b for a, b in zip(p, w, strict=True)]) / top
        c = root_of(
            lambda c: sum((a * b / (b - least + c)) ** 2 for a, b in zip(p, w, strict=True)) - top**2,
            size * mpmath.mpf(10) ** -200,
            size * 2,
        )
        return [fraction(a * b / (b - least + c)) for a, b in zip(p, w, strict=True)]


@PROPERTY
@given(all_scales().filter(lambda p: bool((p[0] != 0).all())), DIMS)
def test_sphere(problem, dim):
    r = Fraction(problem[2])
    check_rows(sets.Sphere(problem[2], dim), problem, dim, lambda y, d: (exact_sphere(r, y, d), r))


def test_a_sphere_without_a_nearest_point():
    """Where y does not say which one, some nearest point."""
    assert sets.Sphere(2.0).argmin(torch.zeros(3), 1.0).tolist() == [2.0, 0.0, 0.0]
    x = sets.Sphere(2.0).argmin(torch.tensor([0.0, 1.0, 0.0]), torch.tensor([3.0, 2.0, 1.0]))
    torch.testing.assert_close(x, torch.tensor([0.0, 2.0, 0.0]))
    x = sets.Sphere(2.0).argmin(torch.tensor([0.0, 0.3, 0.0]), torch.tensor([3.0, 2.0, 1.0]))
    torch.testing.assert_close(x, torch.tensor([0.0, 0.6, math.sqrt(4 - 0.36)]))  # d x + ν x = d y with ν = -1


def test_a_sphere_is_said_not_to_be_convex():
    x = torch.nn.Parameter(torch.tensor([0.0, 2.0]))
    opt = SuperAdam([x], lr=0.1, schedule=schedules.Constant(mu=0.5, alpha=1.0), constraint=sets.Sphere())
    assert x.tolist() == [0.0, 1.0]
    stated = opt.check_theory(theory.Problem(L=1.0, sigma=1.0, rho=None, gap=1.0))
    assert any("not convex" in text for text in stated.outside)
    monitor = Monitor(opt, every=1)
    for _ in range(150):
        x.grad = torch.tensor([-1.0, 0.5])
        opt.step()
        assert opt.feasibility() < 1e-6
    torch.testing.assert_close(x.detach(), torch.tensor([1.0, -0.5]) / math.sqrt(1.25), rtol=1e-3, atol=1e-3)
    assert monitor.history[-1]["feasibility"] < 1e-6
    with pytest.raises(ValueError, match=r"use iterates\.Plain"):
        SuperAdam([x], constraint=sets.Sphere(), iterate=iterates.ScheduleFree())
