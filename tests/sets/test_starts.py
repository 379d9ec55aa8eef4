"""Searches for a root: any start gives the answer of a cold start."""

import math

import pytest
import torch

from superadam import sets

A = torch.randn(4, 20, generator=torch.Generator().manual_seed(7), dtype=torch.float64)
# Of a radius r, for tensors of shape (4, 5).
PARTS = {
    "L2Ball": lambda r: sets.L2Ball(r),
    "L2Ball of columns": lambda r: sets.L2Ball(r, center=0.3, dim=0),
    "L1Ball": lambda r: sets.L1Ball(r),
    "L1Ball of rows": lambda r: sets.L1Ball(r, dim=-1),
    "Simplex": lambda r: sets.Simplex(r),
    "Simplex of all": lambda r: sets.Simplex(r, None),
    "CappedSimplex": lambda r: sets.CappedSimplex(r, 0.4 * r, low=-0.1 * r),
    "BoxSection": lambda r: sets.BoxSection(torch.linspace(-1, 2, 5), 0.3 * r, -r, r, dim=-1),
    "BoxSection without bounds": lambda r: sets.BoxSection(1.0, r, dim=-1),
    "BoxSection above 0": lambda r: sets.BoxSection(2.0, r, 0.0),
    "GroupL1Ball": lambda r: sets.GroupL1Ball(r),
    "L1InfBall": lambda r: sets.L1InfBall(r),
    "SecondOrderCone": lambda r: sets.SecondOrderCone(),
    "Sphere": lambda r: sets.Sphere(r),
    "Sphere of rows": lambda r: sets.Sphere(r, -1),
    "Polyhedron": lambda r: sets.Polyhedron(A, r * torch.ones(4)),
    "DoublyStochastic": lambda r: sets.DoublyStochastic(r),
    "Ordered, convex": lambda r: sets.Ordered("convex", -r, r),
    "Intersection, rows": lambda r: sets.Intersection(sets.Simplex(r, None), sets.Halfspace(A[0].view(4, 5), 0.3 * r)),
    "Intersection, ball": lambda r: sets.Intersection(sets.L2Ball(r), sets.Box(-0.3 * r, None)),
    "Intersection, two balls": lambda r: sets.Intersection(sets.L1Ball(2 * r), sets.L2Ball(0.8 * r)),
    "Intersection, ordered": lambda r: sets.Intersection(sets.Ordered(dim=None), sets.L1Ball(r)),
}
SLOW = ("Intersection", "DoublyStochastic", "Ordered", "Polyhedron")


def starts(own, other, uniform):
    """Return roots to start from: those of this problem and of another one, wrong by any factor, sign or number."""
    shape = own.shape
    signs = torch.where(uniform(*shape) < 0.5, -1.0, 1.0)
    return [
        own,
        other,
        -own,
        other * signs,
        1.3 * own,
        0.7 * own,
        own * (1 + 1e-6 * signs),
        own * 10 ** (16 * float(uniform(1)) - 8),
        own * 10 ** (12 * uniform(*shape) - 6),
        signs * 10 ** (60 * uniform(*shape) - 30),
        torch.where(uniform(*shape) < 0.3, 0.0, own),
        *(torch.full(shape, value) for value in (1e-38, 3e38, math.inf, -math.inf, math.nan)),
    ]


@pytest.mark.parametrize("problems", [10, pytest.param(400, marks=pytest.mark.slow)])
@pytest.mark.parametrize("name", PARTS)
def test_any_start_gives_the_answer_of_a_cold_start(name, problems):
    generator = torch.Generator().manual_seed(1)

    def uniform(*shape):
        return torch.rand(*shape, generator=generator, dtype=torch.float64)

    few = 4 if name.startswith(SLOW) else 1
    for k in range(max(problems // few, 2)):
        dtype, r = (torch.float32, torch.float64)[k % 2], 10 ** (4 * float(uniform(1)) - 2)
        part, spread = PARTS[name](r), int(4 * uniform(1)) * (1 if few > 1 else 2)
        y = r * 10 ** (4 * float(uniform(1)) - 2) * torch.randn(4, 5, generator=generator, dtype=torch.float64)
        y = y * (uniform(4, 5) < (0.5, 1.0, 1.0)[k % 3])
        y = (y * 10 ** (4 * float(uniform(1)) * (uniform(4, 5) - 0.5))).to(dtype)
        d = 10 ** (spread * (uniform(4, 5) - 0.5) + 8 * uniform(1) - 4).to(dtype)
        cold = part.argmin(y, d)
        own = torch.zeros(part.root_shape(y), dtype=dtype)
        assert torch.equal(part.argmin(y, d, root=own), cold)
        other = own.clone()
        part.argmin(y * 10 ** (4 * float(uniform(1)) - 2), d * 10 ** (2 * uniform(4, 5)).to(dtype), root=other)
        weight = (d / d.max()).double().sqrt()
        size = (weight * cold).norm() + (weight * (cold - y)).norm()
        for i, start in enumerate(starts(own, other, uniform)):
            x = part.argmin(y, d, root=start.to(dtype).clone())
            off = (weight * (x.double() - cold)).norm() / size
            assert off <= (1e-9 if dtype == torch.float64 else 2e-5), f"problem {k}, start {i}"


@pytest.mark.parametrize("size", [0.1, 1.0, 100.0])
def test_an_intersection_of_an_order_and_an_l1_ball_is_solved_the_same_way_twice(size):
    """Equal to the polyhedron of all signs, with the same bits each time."""
    generator = torch.Generator().manual_seed(0)
    signs = torch.cartesian_prod(*[torch.tensor([-1.0, 1.0])] * 5)
    steps = torch.eye(5)[:-1] - torch.eye(5)[1:]
    rows = sets.Polyhedron(torch.cat([signs, steps]), torch.cat([torch.ones(32), torch.zeros(4)]))
    part = sets.Intersection(sets.Ordered(dim=None), sets.L1Ball(1.0))
    for spread in (0, 2, 4, 6):
        y = size * torch.randn(5, generator=generator, dtype=torch.float64)
        d = 10 ** (spread * torch.rand(5, generator=generator, dtype=torch.float64))
        x = part.argmin(y, d)
        assert torch.equal(part.argmin(y, d), x)
        torch.testing.assert_close(x, rows.argmin(y, d), rtol=0, atol=1e-8)


def test_an_order_and_a_simplex_are_rows():
    part = sets.Intersection(sets.Ordered(), sets.Simplex())
    x = part.argmin(torch.tensor([50.0, -30.0, 20.0, 10.0]), torch.tensor([1.0, 100.0, 1.0, 10.0]))
    assert torch.equal(x.sort().values, x)
    assert part.violation(x) < 1e-7


@pytest.mark.parametrize("order", [sets.Ordered("convex"), sets.Ordered(dim=0)], ids=["convex", "of columns"])
def test_an_order_without_a_known_step_beside_an_l1_ball_is_refused_at_construction(order):
    with pytest.raises(ValueError, match="no step is known"):
        sets.Intersection(order, sets.L1Ball(1.0))
