"""Searches for a root: from any start, with and without a look from the host."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from penalties import test_groups
from sets import test_balls, test_linear, test_simplices
from sets.conditions import TOL
from sets.wide import magnitudes
from superadam import sets
from superadam.sets import groups, roots, sections, simplices

PROPERTY = settings(deadline=None)


@PROPERTY
@given(st.integers(0, 10**6), st.sampled_from([1e-30, 1e-10, 1.0, 1e10, 1e30]))
def test_roots_of_another_set(seed, size):
    """A root that belongs to quite another equation changes nothing but the time."""
    gen = torch.Generator().manual_seed(seed)
    y, d = torch.randn(4, 6, generator=gen), torch.rand(4, 6, generator=gen) + 0.1
    for part in (
        sets.Simplex(),
        sets.L1Ball(1.0, dim=1),
        sets.L2Ball(1.0, dim=1),
        sets.CappedSimplex(1.0, 0.4, low=-0.1),
        sets.BoxSection(2.0, 1.0, -0.1, dim=1),
        sets.GroupL1Ball(1.0, group=1, dim=(1,)),
        sets.L1InfBall(1.0, group=1, dim=1),
        sets.SecondOrderCone(),
        sets.Sphere(dim=1),
    ):
        root = size * torch.randn(4, 1, generator=gen)
        torch.testing.assert_close(part.argmin(y, d, root), part.argmin(y, d), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("warm", [False, True])
@pytest.mark.parametrize("dim", [1, 0])
def test_rows_that_need_more_iterations_go_on_by_themselves(warm, dim):
    """Some rows in a hundred have a d over eight orders of magnitude; of the l1 ball, some are inside."""
    gen = torch.Generator().manual_seed(0)
    y = 3 * torch.randn(400, 30, generator=gen, dtype=torch.float64)
    y[::3] *= 0.01
    d = torch.where((torch.arange(400) % 50 == 0)[:, None], magnitudes(gen, (400, 30), 0, 8), torch.ones(()))
    y, d = (t.movedim(1, dim) for t in (y, d))
    for part in (sets.Simplex(dim=dim), sets.L1Ball(2.0, dim=dim), sets.L2Ball(2.0, dim=dim)):
        alone = [part.argmin(*(t.movedim(dim, 1)[i : i + 1].movedim(1, dim) for t in (y, d))) for i in range(400)]
        root = None
        if warm:
            root = torch.zeros(part.root_shape(y))
            part.argmin((1.01 * y).float(), d.float(), root)
        x = part.argmin(y.float(), d.float(), root)
        torch.testing.assert_close(x.double(), torch.cat(alone, 1 - dim), rtol=1e-5, atol=2e-6)
        assert part.violation(x) < 2e-6


@pytest.fixture
def no_looks(monkeypatch):
    """The form of the solvers for a GPU: fixed iterations."""
    for module in (roots, simplices, sections, groups):
        monkeypatch.setattr(module, "may_look", lambda x: False)


@pytest.mark.parametrize(
    "test",
    [
        test_simplices.test_simplex_over_the_whole_range,
        test_balls.test_l1_ball_over_the_whole_range,
        test_balls.test_l2_ball_over_the_whole_range,
        test_groups.test_group_lasso_over_the_whole_range,
        test_linear.test_halfspace_and_hyperplane_over_the_whole_range,
        test_linear.test_affine_over_the_whole_range,
    ],
    ids=lambda test: test.__name__,
)
def test_exact_answers_without_looks(test, no_looks):
    test()


ORDINARY = {
    "CappedSimplex": sets.CappedSimplex(1.0, 0.4),
    "CappedSimplex, lower bounds": sets.CappedSimplex(1.0, 0.4, low=0.05),
    "BoxSection": sets.BoxSection(2.0, 0.5, -0.3, 0.6, dim=-1),
    "BoxSection without bounds": sets.BoxSection(-1.0, 0.5),
    "SecondOrderCone": sets.SecondOrderCone(),
    "Sphere": sets.Sphere(2.0, dim=-1),
    "GroupL1Ball": sets.GroupL1Ball(0.7),
    "L1InfBall": sets.L1InfBall(0.7),
}


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("warm", [False, True])
@pytest.mark.parametrize("spread", [0, 1, 4])
@pytest.mark.parametrize("name", ORDINARY)
def test_the_same_answers_without_looks(name, spread, warm, dtype, monkeypatch):
    """As with looks, which other tests compare with exact answers. d spans up to four orders of magnitude."""
    part, gen = ORDINARY[name], torch.Generator().manual_seed(spread)
    for size in (1e-3, 1.0, 30.0):
        y = (size * torch.randn(4, 7, generator=gen, dtype=torch.float64)).to(dtype)
        d = magnitudes(gen, (4, 7), 0, spread).to(dtype)
        root = torch.zeros(part.root_shape(y), dtype=dtype) if warm else None
        if warm:
            part.argmin(1.1 * y, d, root)
        expected = part.argmin(y, d)
        with monkeypatch.context() as patch:
            for module in (roots, simplices, sections, groups):
                patch.setattr(module, "may_look", lambda x: False)
            x = part.argmin(y, d, root)
        scale = float(expected.abs().max())
        torch.testing.assert_close(x, expected, rtol=0, atol=TOL[dtype] * scale)
        assert part.violation(x) <= 1e-6 * max(1.0, scale)


@pytest.mark.parametrize("size", [1e6, 1e18, 1e30])
def test_a_section_stays_feasible_when_its_iterations_end(size, no_looks):
    y = torch.tensor([size, size, 0.0, -size, size, 1.0])
    for part in (sets.CappedSimplex(1.0, 0.3), sets.BoxSection(1.0, 0.2, -1.0, 0.5)):
        assert part.violation(part.argmin(y, 1.0)) <= 1e-6


@pytest.mark.parametrize("trials", [150, pytest.param(5000, marks=pytest.mark.slow)])
@pytest.mark.parametrize(
    "part",
    [sets.L2Ball(1.0), sets.L2Ball(1e-6), sets.L1Ball(1.0), sets.Simplex(), sets.SecondOrderCone()],
    ids=str,
)
def test_the_root_of_a_far_problem_changes_nothing(part, trials):
    """A warm start may be wrong by orders of magnitude, as after a change of the learning rate."""
    generator = torch.Generator().manual_seed(0)
    uniform = lambda *shape: torch.rand(*shape, generator=generator)  # noqa: E731
    for _ in range(trials):
        shape = (3, int(2 + 10 * uniform(1)))
        y = torch.randn(shape, generator=generator) * 10 ** (4 * uniform(1) - 1)
        d = 10 ** (8 * uniform(*shape) - 4)
        root = torch.zeros(part.root_shape(y))
        part.argmin(y * 10 ** (6 * uniform(1) - 3), d.clone(), root)
        x, exact = part.argmin(y.clone(), d.clone(), root).double(), part.argmin(y.double(), d.double())
        weight = d.double().sqrt()
        size = (weight * exact).norm() + (weight * (exact - y)).norm()
        assert (weight * (x - exact)).norm() <= 1e-5 * size
        assert part.relative_violation(x) <= 1e-5


@pytest.mark.parametrize(
    ("part", "y", "d", "root", "x"),
    [
        (
            sets.L2Ball(1.0),
            [0.64, 3.71],
            [1.0, 0.001],
            100.0,
            [0.6376, 0.7704],
        ),  # float32 loses the variance of 1/(α + c)
        (sets.Simplex(), [-0.467, 0.273], [1e-4, 1e5], 0.001, [0.727, 0.273]),  # one step from the root is 7e4 long
    ],
)
def test_roots_from_which_a_first_step_misleads(part, y, d, root, x):
    found = part.argmin(torch.tensor(y), torch.tensor(d), torch.tensor([root]))
    torch.testing.assert_close(found, torch.tensor(x), rtol=1e-3, atol=1e-6)
