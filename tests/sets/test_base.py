"""What holds for every set: idempotent, feasible, plain data; any shape, slices, scales, refusals."""

import math

import pytest
import torch

from sets.every import BOUNDED, EVERY, INEQUALITIES, OF_ROWS, OF_SCIPY, example
from sets.wide import MAX
from superadam import SuperAdam, create, penalties, sets
from superadam.parts import Part


@pytest.mark.parametrize("name", OF_SCIPY)
def test_equals_scipy(name):
    constraint, reference = OF_SCIPY[name]
    for seed in range(20):
        gen = torch.Generator().manual_seed(seed)
        y = torch.randn(5, generator=gen, dtype=torch.float64) * 2
        d = torch.rand(5, generator=gen, dtype=torch.float64) * 3 + 0.2
        x = constraint.argmin(y, d)
        torch.testing.assert_close(x, reference(y, d), rtol=0, atol=2e-6)
        assert constraint.contains(x)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32], ids=str)
@pytest.mark.parametrize("name", EVERY)
def test_idempotent(name, dtype):
    constraint = EVERY[name]
    for seed in range(10):
        y, d = example(constraint, dtype, seed)
        x = constraint.argmin(y, d)
        again = constraint.argmin(x, d)
        digits = (
            1e-9 if isinstance(constraint, sets.Intersection) and dtype == torch.float64 else 0.0
        )  # found by iterations
        torch.testing.assert_close(again, x, rtol=0, atol=max(digits, 20 * torch.finfo(dtype).eps))
        assert constraint.contains(x, tol=4e-6)
        assert not constraint.contains(y)


@pytest.mark.parametrize("name", INEQUALITIES)
def test_feasible_point_comes_back_bit_for_bit(name):
    constraint = EVERY[name]
    y, d = example(constraint)
    inner = {"L2Ball of rows": 0.5, "Halfspace": -3.0}.get(name, 0.0)
    for dtype in (torch.float64, torch.float32, torch.bfloat16, torch.float16):
        clipped = name.startswith(("Box", "NonNegative", "Ordered", "SecondOrderCone"))
        feasible = constraint.argmin(y, d).to(dtype) if clipped else (0.02 * y + inner).to(dtype)
        if name == "SecondOrderCone":
            feasible[:, -1] += 1
        x = constraint.argmin(feasible, d)
        assert torch.equal(x, feasible)
        assert x.data_ptr() != feasible.data_ptr()
        assert constraint.violation(x) == 0


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
@pytest.mark.parametrize("name", EVERY)
def test_low_precision_is_the_rounded_exact_step(name, dtype):
    constraint = EVERY[name]
    y, d = example(constraint, dtype)
    x = constraint.argmin(y, d)
    assert x.dtype == dtype
    exact = constraint.argmin(y.double(), d.double())
    torch.testing.assert_close(x.double(), exact, rtol=torch.finfo(dtype).eps, atol=1e-5)


@pytest.mark.parametrize("name", EVERY)
def test_scale_of_the_metric_does_not_matter(name):
    constraint = EVERY[name]
    y, d = example(constraint)
    torch.testing.assert_close(constraint.argmin(y, 1e8 * d), constraint.argmin(y, d), rtol=1e-12, atol=1e-12)
    torch.testing.assert_close(constraint.argmin(y, 3.0), constraint.argmin(y, torch.tensor(3.0)))
    if not constraint.scalar_metric:
        torch.testing.assert_close(constraint.argmin(y, 3.0), constraint.argmin(y, torch.full_like(y, 3.0)))


@pytest.mark.parametrize("name", EVERY)
def test_violation_is_positive_outside(name):
    constraint = EVERY[name]
    y, d = example(constraint)
    x = constraint.argmin(y, d)
    outside, inside = constraint.violation(y), constraint.violation(x)
    assert outside.dim() == inside.dim() == 0
    assert outside > 0.01
    assert 0 <= inside < 1e-12
    # The farther, the more.
    assert constraint.violation(x + 2 * (y - x)) > outside


@pytest.mark.parametrize("name", EVERY)
def test_bad_input(name):
    constraint = EVERY[name]
    y, d = example(constraint)
    for bad in (math.nan, math.inf, -math.inf):
        with pytest.raises(ValueError, match="y must be finite"):
            constraint.argmin(y.index_fill(1, torch.tensor([2]), bad), d)
    for bad in (math.nan, math.inf, 0.0, -1.0):
        with pytest.raises(ValueError, match="d must be positive and finite"):
            constraint.argmin(y, bad)
    if not constraint.scalar_metric:
        with pytest.raises(ValueError, match="d must be positive and finite"):
            constraint.argmin(y, d * (torch.arange(5) > 0))
        with pytest.raises(ValueError, match="shape of y"):
            constraint.argmin(y, d[0])
    with pytest.raises(ValueError, match="floating-point"):
        constraint.argmin(y.long(), 1.0)


@pytest.mark.parametrize("name", EVERY)
def test_spec_is_the_set(name):
    constraint = EVERY[name]
    found = sets.ConvexSet.find(constraint.spec())
    assert found == constraint
    assert hash(found) == hash(constraint)
    assert found is not constraint
    y, d = example(constraint)
    assert torch.equal(found.argmin(y, d), constraint.argmin(y, d))


def test_parts_with_different_tensors_differ():
    a = torch.ones(3)
    assert sets.Halfspace(a, 1.0) == sets.Halfspace(a.clone(), 1.0)
    assert sets.Halfspace(a, 1.0) != sets.Halfspace(2 * a, 1.0)
    assert sets.Halfspace(a, 1.0) != sets.Halfspace(1.0, 1.0)
    assert sets.Halfspace(a, 1.0) != sets.Hyperplane(a, 1.0)
    assert issubclass(sets.Halfspace, Part)


@pytest.mark.parametrize(
    "build",
    [
        lambda dim: sets.Simplex(1.0, dim),
        lambda dim: sets.CappedSimplex(1.0, 0.2, dim),
        lambda dim: sets.L1Ball(1.0, dim),
        lambda dim: sets.L2Ball(1.0, dim=dim),
        lambda dim: sets.CappedSimplex(1.0, 0.2, dim, low=0.01),
        lambda dim: sets.BoxSection(2.0, 1.0, -0.3, None, dim),
        lambda dim: sets.Ordered(dim=dim),
        lambda dim: sets.SecondOrderCone(dim),
        lambda dim: sets.Sphere(1.0, dim),
    ],
    ids=["Simplex", "CappedSimplex", "L1Ball", "L2Ball", "from below", "BoxSection", "Ordered", "cone", "Sphere"],
)
def test_slices_are_solved_on_their_own(build):
    """A thousand rows at once are the rows one by one, whatever the dimension they run along."""
    gen = torch.Generator().manual_seed(0)
    y = torch.randn(1000, 12, generator=gen, dtype=torch.float64) * 10 ** torch.linspace(-3, 3, 1000).double()[:, None]
    d = 10 ** (12 * torch.rand(1000, 12, generator=gen, dtype=torch.float64) - 6)
    x = build(-1).argmin(y, d)
    assert build(-1).contains(x, tol=1e-11)
    for i in range(0, 1000, 37):
        torch.testing.assert_close(x[i], build(None).argmin(y[i], d[i]), rtol=1e-9, atol=1e-12)
    torch.testing.assert_close(build(0).argmin(y.T, d.T), x.T, rtol=1e-9, atol=1e-12)
    y, d = (t.view(1000, 3, 4).movedim(0, 1) for t in (y, d))
    torch.testing.assert_close(build((0, 2)).argmin(y, d).movedim(1, 0).reshape(1000, 12), x, rtol=1e-9, atol=1e-12)


def test_any_shape():
    for constraint in (
        sets.Box(-1, 1),
        sets.NonNegative(),
        sets.LInfBall(1.0),
        sets.L2Ball(1.0),
        sets.L2Ball(1.0, dim=-1),
        sets.L1Ball(1.0),
        sets.Simplex(),
        sets.Simplex(dim=None),
        sets.CappedSimplex(1.0, 1.0),
        sets.Halfspace(1.0, 1.0),
        sets.Hyperplane(1.0, 1.0),
        sets.Affine(torch.ones(1, 1), torch.ones(1)),
        sets.SpectralBall(1.0),
        sets.NuclearBall(1.0),
        sets.BoxSection(2.0, 2.0),
        sets.Ordered(high=1.0),
        sets.GroupL1Ball(1.0),
        sets.L1InfBall(1.0),
        sets.SecondOrderCone(),
        sets.Sphere(1.0),
    ):
        for y in (torch.tensor(3.0), torch.tensor([3.0]), torch.full((1, 1, 1), 3.0)):
            x = constraint.argmin(y, 2.0)
            assert x.shape == y.shape
            assert float(x) == (3.0 if constraint in (sets.NonNegative(), sets.SecondOrderCone()) else 1.0)
        for shape in ((0,), (0, 3), (3, 0)):
            assert constraint.argmin(torch.zeros(shape), 2.0).shape == shape
        assert constraint.violation(torch.zeros(0, 3)) >= 0


@pytest.mark.parametrize("y", [torch.tensor([1.0, -2.0]), torch.zeros(2)], ids=["somewhere", "there already"])
def test_radius_zero(y):
    d = torch.tensor([1e-6, 1e6])
    for constraint in (
        sets.LInfBall(0.0),
        sets.L2Ball(0.0),
        sets.L1Ball(0.0),
        sets.Simplex(0.0),
        sets.CappedSimplex(0.0, 1.0),
        sets.CappedSimplex(0.0, 0.0),
        sets.Box(0, 0),
        sets.BoxSection(1.0, 0.0, 0.0),
        sets.GroupL1Ball(0.0),
        sets.L1InfBall(0.0),
    ):
        assert torch.equal(constraint.argmin(y, d).abs(), torch.zeros(2))
    assert torch.equal(sets.L2Ball(0.0, center=3.0).argmin(y, d), torch.full((2,), 3.0))
    assert torch.equal(sets.SpectralBall(0.0).argmin(y, 1.0).abs(), torch.zeros(2))
    assert torch.equal(sets.NuclearBall(0.0).argmin(y, 1.0).abs(), torch.zeros(2))


def test_no_gradient_is_recorded_and_y_is_kept():
    y = torch.tensor([3.0, 4.0], requires_grad=True)
    x = sets.L2Ball(1.0).argmin(y, torch.ones(2))
    assert not x.requires_grad
    assert y.tolist() == [3.0, 4.0]


def test_wrong_metric_gives_another_point():
    """What the exact step is for: the Euclidean projection is not the minimiser."""
    y, d = torch.tensor([1.0, 1.0]), torch.tensor([1.0, 9.0])
    assert sets.Simplex().argmin(y, 1.0).tolist() == [0.5, 0.5]
    torch.testing.assert_close(sets.Simplex().argmin(y, d), torch.tensor([0.1, 0.9]))


@pytest.mark.parametrize(
    ("build", "message"),
    [
        (lambda: sets.Box(1, 0), "lo <= hi"),
        (lambda: sets.Box(torch.tensor([0.0, 2.0]), 1), "lo <= hi"),
        (lambda: sets.Box(math.nan, 1), "lo <= hi"),
        (lambda: sets.Box(math.inf, None), "lo <= hi"),
        (lambda: sets.LInfBall(-1.0), "0 <= r"),
        (lambda: sets.L2Ball(-1.0), "0 <= r"),
        (lambda: sets.L2Ball(1.0, center=torch.tensor([math.nan])), "finite"),
        (lambda: sets.L1Ball(math.inf), "0 <= r"),
        (lambda: sets.SpectralBall(-1.0), "0 <= r"),
        (lambda: sets.NuclearBall(math.nan), "0 <= r"),
        (lambda: sets.Simplex(-1.0), "0 <= total"),
        (lambda: sets.CappedSimplex(-1.0, 1.0), "0 <= total"),
        (lambda: sets.CappedSimplex(1.0, torch.tensor([1.0, -1.0])), "cap >= 0"),
        (lambda: sets.CappedSimplex(1.0, 0.3).argmin(torch.zeros(3), 1.0), "caps sum to 0.9, less than the total 1"),
        (lambda: sets.Halfspace(torch.zeros(3), 1.0), "a != 0"),
        (lambda: sets.Hyperplane(1.0, math.inf), "finite"),
        (lambda: sets.Halfspace(torch.ones(3), 1.0).argmin(torch.zeros(4), 1.0), "does not broadcast"),
        (lambda: sets.Affine(torch.ones(2, 3), torch.ones(2)), "independent rows"),
        (lambda: sets.Affine(torch.ones(1, 3), torch.ones(2)), r"\(m, n\)"),
        (lambda: sets.Affine(torch.ones(1, 3), torch.ones(1)).argmin(torch.zeros(4), 1.0), "3 coordinates.* has 4"),
    ],
)
def test_impossible_sets_are_refused(build, message):
    with pytest.raises(ValueError, match=message):
        build()


def test_set_of_ones_own():
    """Only argmin is needed."""

    class Ray(sets.ConvexSet):
        def argmin(self, y, d):
            d = torch.as_tensor(d).expand_as(y)
            return ((d * y).sum() / d.sum()).clamp(min=0).expand_as(y)

    try:
        assert Ray().violation(torch.tensor([-1.0, -3.0])) == 3
        assert Ray().contains(torch.tensor([2.0, 2.0]))
        assert not Ray().contains(torch.tensor([2.0, 2.1]))
        assert sets.ConvexSet.find("ray") == Ray()
    finally:
        del sets.ConvexSet._names["Ray"]


def test_which_sets_are_bounded():
    unbounded = {"NonNegative", "Halfspace", "Hyperplane", "Affine", "Polyhedron", "Ordered", "SecondOrderCone"}
    unbounded |= {"Intersection of balls", "Simplex in a box"}  # bounded, without lmo
    assert set(BOUNDED) == EVERY.keys() - unbounded
    for part in (*map(EVERY.get, unbounded), sets.Box(0, None), sets.Box(-1, torch.tensor([1.0, math.inf]))):
        assert not part.bounded
        with pytest.raises((ValueError, NotImplementedError), match=r"bounded|program in every step\. Use an adaptive"):
            part.lmo(torch.ones(3, 5))


OF_ANY_SIZE = {
    "Box": sets.Box(-0.5, 0.5),
    "Box far away": sets.Box(-MAX, -0.9 * MAX),
    "NonNegative": sets.NonNegative(),
    "LInfBall": sets.LInfBall(0.5),
    "L2Ball": sets.L2Ball(1.0),
    "L2Ball of rows": sets.L2Ball(0.7, center=0.5, dim=1),
    "L1Ball": sets.L1Ball(2.0),
    "Simplex": sets.Simplex(),
    "CappedSimplex": sets.CappedSimplex(1.0, 0.6),
    "Halfspace": sets.Halfspace(torch.tensor([1.0, 1e-3, 1e3]), -40.0),
    "Hyperplane": sets.Hyperplane(1.0, 1.0),
    "Affine": sets.Affine(torch.eye(6)[:2], torch.ones(2)),
    "SpectralBall": sets.SpectralBall(0.6),
    "NuclearBall": sets.NuclearBall(1.0),
    "BoxSection": sets.BoxSection(1.0, 0.5, -0.5, 0.5),
    "Ordered": sets.Ordered(low=-1.0, high=1.0),
    "GroupL1Ball": sets.GroupL1Ball(1.0),
    "L1InfBall": sets.L1InfBall(1.0),
    "Sphere": sets.Sphere(),
    "SecondOrderCone": sets.SecondOrderCone(),
    "Polyhedron": sets.Polyhedron(torch.tensor([[1.0, 2.0] * 3, [-1.0, 1.0] * 3, [-1.0, -2.0] * 3]), torch.ones(3)),
    "DoublyStochastic": sets.DoublyStochastic(),
    "Intersection": sets.Intersection(sets.L1Ball(1.0), sets.Hyperplane(1.0, 0.5)),
}


@pytest.mark.parametrize("name", OF_ANY_SIZE)
def test_violation_of_the_largest_numbers(name):
    """It is finite, and grows with x, up to the largest float32."""
    for sign in (1, -1):
        last = -1.0
        for size in (0.0, 1e18, 1e25, 1e36, MAX):
            found = OF_ANY_SIZE[name].violation(torch.full((2, 3), sign * size))
            assert found.isfinite()
            feasible = name == "Box far away" or (sign, name) in [(1, "NonNegative"), (-1, "Halfspace")]
            assert feasible or found > last
            last = found


@pytest.mark.parametrize("name", [name for name in OF_ANY_SIZE if "Box" not in name])
def test_what_float64_is_not_enough_for_is_refused(name):
    """In double precision there are numbers beyond: never NaN, but an error that says what can be solved."""
    part, y = OF_ANY_SIZE[name], torch.ones(2, 3, dtype=torch.float64)
    if part.separable:
        assert part.argmin(1e300 * y, 1.0).isfinite().all()
        return
    with pytest.raises(ValueError, match=r"at most 1e75 in y.*y has up to 1e\+300.*scale the problem"):
        part.argmin(1e300 * y, 1.0)
    torch.testing.assert_close(part.argmin(2 * y, 1e-300), part.argmin(2 * y, 1.0))
    if not part.scalar_metric:
        d = y.clone()
        d[0, 0] = 1e-150
        with pytest.raises(ValueError, match="a ratio of at most 1e100"):
            part.argmin(y, d)


def test_an_answer_that_does_not_fit_is_refused():
    with pytest.raises(ValueError, match=r"beyond the largest torch\.float32"):
        sets.Box(torch.tensor(1e39, dtype=torch.float64), None).argmin(torch.zeros(2), 1.0)
    with pytest.raises(ValueError, match=r"beyond the largest torch\.float16"):
        sets.Hyperplane(1.0, 1e6).argmin(torch.zeros(2, dtype=torch.float16), 1.0)


@pytest.mark.parametrize("name", [name for name in OF_ROWS if name not in ("BoxSection", "Ordered", "SecondOrderCone")])
def test_violation_of_the_largest_numbers_is_finite(name):
    for sign in (1, -1):
        assert OF_ROWS[name].violation(torch.full((2, 6), sign * MAX)).isfinite()


@pytest.mark.parametrize(
    ("build", "message"),
    [
        (lambda: sets.BoxSection(0.0, 1.0), "a != 0"),
        (lambda: sets.BoxSection(1.0, math.inf), "finite"),
        (lambda: sets.BoxSection(1.0, 1.0, 1.0, 0.0), "low <= high"),
        (lambda: sets.BoxSection(1.0, 4.0, 0.0, 1.0).argmin(torch.zeros(3), 1.0), r"aᵀx is 0 to 3, never b = 4"),
        (lambda: sets.BoxSection(1.0, 4.0, 0.0).lmo(torch.ones(3)), "not bounded"),
        (lambda: sets.CappedSimplex(1.0, 0.1, low=0.2), "low <= cap"),
        (lambda: sets.CappedSimplex(1.0, 1.0, low=0.4).argmin(torch.zeros(3), 1.0), "bounds sum to 1.2, more than"),
        (lambda: sets.Ordered("bent"), "'increasing', 'decreasing', 'convex' or 'concave'"),
        (lambda: sets.Ordered("convex", 0.0).lmo(torch.ones(3)), "Give it low and high"),
        (lambda: sets.Ordered("convex").argmin(torch.ones(2, 501), 1.0), "at most 500 coordinates, and these have 501"),
        (lambda: sets.Ordered(low=1.0, high=0.0), "low <= high"),
        (lambda: sets.Ordered(low=1.0).lmo(torch.ones(3)), "Give it low and high"),
        (lambda: sets.GroupL1Ball(-1.0), "0 <= r"),
        (lambda: sets.L1InfBall(1.0, group=None), "dimensions of a group"),
        (lambda: sets.GroupL1Ball(1.0, group=1, dim=0).argmin(torch.ones(2, 2), 1.0), "must include the dimensions"),
        (lambda: sets.Sphere(0.0), "0 < r"),
    ],
)
def test_impossible_sets_of_rows_are_refused(build, message):
    with pytest.raises(ValueError, match=message):
        build()


@pytest.mark.parametrize(
    ("build", "message"),
    [
        (lambda: sets.Polyhedron(torch.ones(2, 3), torch.ones(3)), r"\(m, n\)"),
        (lambda: sets.Polyhedron(torch.zeros(1, 3), torch.ones(1)), "rows that are not 0"),
        (lambda: sets.Polyhedron(torch.ones(1, 3) / 0, torch.ones(1)), "finite"),
        (
            lambda: sets.Polyhedron(torch.tensor([[1.0], [-1.0]]), torch.tensor([-1.0, -1.0])),
            "the set is empty.*[0, 1]",
        ),
        (lambda: sets.Polyhedron(torch.ones(1, 3), torch.ones(1)).argmin(torch.ones(4), 1.0), "3 coordinates.* has 4"),
        (lambda: sets.DoublyStochastic(-1.0), "rows >= 0"),
        (lambda: sets.DoublyStochastic(1.0, torch.tensor([torch.nan])), "finite"),
        (lambda: sets.DoublyStochastic(1.0, 1.0).argmin(torch.ones(2, 3), 1.0), "rows sum to 2, the columns to 3"),
        (lambda: sets.DoublyStochastic(torch.ones(3)).argmin(torch.ones(2, 3), 1.0), "rows of shape .* do not fit"),
        (lambda: sets.DoublyStochastic().argmin(torch.ones(3), 1.0), r"a set of matrices.*\(3,\)"),
        (lambda: sets.Spectrahedron(-1.0), "0 <= trace"),
        (lambda: sets.Intersection(), "one after the other"),
        (lambda: sets.Intersection([sets.Simplex(), sets.Box(0, 1)]), "one after the other"),
        (lambda: sets.Intersection(sets.Box(0, 1), sets.Box(2, 3)).argmin(torch.zeros(3), 1.0), "empty"),
        (
            lambda: sets.Intersection(sets.Hyperplane(1.0, 1.0), sets.Hyperplane(1.0, 2.0)).argmin(torch.zeros(3), 1.0),
            "equations .1. contradict",
        ),
        (
            lambda: sets.Intersection(sets.Box(0, 0.1), sets.Simplex()).argmin(torch.zeros(3), 1.0),
            "no point of Box that meets all rows",
        ),
    ],
)
def test_impossible_coupled_sets_are_refused(build, message):
    with pytest.raises(ValueError, match=message):
        build()


def test_a_set_that_is_missing_is_an_error_that_says_how_to_write_it():
    with pytest.raises(
        ValueError, match=r"Unknown constraint 'Polytope'.*argmin\(self, y, d\).*Intersection.*Your own set"
    ):
        SuperAdam([torch.nn.Parameter(torch.ones(2))], constraint="Polytope")
    with pytest.raises(AttributeError, match=r"no 'Simplx': did you mean 'Simplex'\?.*Intersection"):
        sets.Simplx  # noqa: B018
    assert not hasattr(sets, "__wrapped__")


# ------------------------------------------------------------------------------------------------ why line 9 is exact

Q = torch.tensor([10.0, 1.0, 0.1], dtype=torch.float64)


def ends(constraint, a, *, exact):
    """Where RMSprop with γ/√t ends on ½ Σ qᵢ (xᵢ - aᵢ)²: with the exact step, or projected afterwards."""
    x, v = torch.full_like(Q, 0.3), torch.zeros_like(Q)
    for t in range(1, 401):
        g = Q * (x - a)
        v = 0.99 * v + 0.01 * g * g
        H, gamma = (v / (1 - 0.99**t)).sqrt() + 1e-3, 0.3 / t**0.5
        x = constraint.argmin(x - gamma * g / H, H / gamma if exact else 1.0)
    return x


@pytest.mark.parametrize(
    ("constraint", "a", "right"),
    [
        (sets.L2Ball(1.0), (0.2, 0.5, -0.4), True),  # the minimum is inside
        (sets.Box(-0.5, 0.5), (0.2, 2.0, -3.0), True),  # clips every coordinate by itself
        (sets.L2Ball(1.0), (0.5, 2.0, 3.0), False),
    ],
    ids=["inside", "box", "border"],
)
def test_projecting_after_an_adaptive_step_is_right_inside_and_on_boxes_only(constraint, a, right):
    """docs/constraints.md, "Why the metric matters"."""
    a = torch.tensor(a, dtype=torch.float64)
    minimum = constraint.argmin(a, Q)
    assert torch.dist(ends(constraint, a, exact=True), minimum) < 1e-2
    distance = torch.dist(ends(constraint, a, exact=False), minimum)
    assert distance < 1e-2 if right else distance > 0.1


# ------------------------------------------------------------------------------------------------ shapes


@pytest.mark.parametrize(
    ("part", "message"),
    [
        ({"constraint": sets.L2Ball(1.0, dim=1)}, r"does not fit shape \(4,\).*p.dim\(\) > 1"),
        ({"penalty": penalties.GroupLasso(0.1, dim=1)}, r"does not fit shape \(4,\)"),
        ({"penalty": penalties.OverlappingGroupLasso(0.1, [[0, 12]])}, "index 12, and a parameter of shape"),
    ],
    ids=["set", "penalty", "groups"],
)
def test_a_part_that_does_not_fit_a_tensor_is_refused_at_construction(part, message):
    with pytest.raises(ValueError, match=message):
        SuperAdam(torch.nn.Linear(3, 4), **part)


def test_the_cures_of_a_set_that_does_not_fit_work():
    model, rows = torch.nn.Linear(3, 4), sets.L2Ball(1.0, dim=1)
    with pytest.raises(ValueError, match="'matrix': 'SecondMoment', 'constraint'"):
        create("super_adam_plus", [{"params": [model.weight], "constraint": rows}, {"params": [model.bias]}])
    matrix = {"params": [p for p in model.parameters() if p.dim() > 1], "constraint": rows}
    bias = {"params": [p for p in model.parameters() if p.dim() <= 1]}
    for opt in (SuperAdam([matrix, bias]), create("super_adam_plus", [{**matrix, "matrix": "SecondMoment"}, bias])):
        model(torch.ones(3)).sum().backward()
        opt.step()
        assert rows.contains(model.weight.detach())
