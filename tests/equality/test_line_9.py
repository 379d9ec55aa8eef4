"""Line 9 for an H that is not diagonal: the step meets its optimality conditions for every pair of a matrix and a set
or penalty that is not refused, and compositions equal Algorithm 1 with a dense H."""

import itertools

import pytest
import torch

from problems import Stochastic, train
from superadam import Monitor, SuperAdam, matrices, penalties, reference, schedules, sets
from superadam.iterates import ScheduleFree
from superadam.lists import TensorList
from superadam.matrices import (
    SOAP,
    Adafactor,
    AdamMini,
    ByShape,
    DampedLBFGS,
    KLShampoo,
    Muon,
    PSGDKron,
    SecondMoment,
    Shampoo,
)  # fmt: skip
from superadam.penalties import combined_argmin
from superadam.sets.linear import multipliers
from superadam.step import merged

SHAPE = (4, 3)
SCHEDULE = schedules.Constant(mu=0.5, alpha=0.3)
GRAFTED = {"eps": 1e-2, "every": 2, "grafting": SecondMoment(bias_correction=True)}
# Those of 4 × 3 tensors; what is said of their sides is of the smaller one, the columns.
MATRICES = {
    "Muon": Muon(),
    "Muon, λ": Muon(lam=0.1),
    "Muon, λ, heads": Muon(lam=0.1, split=2),
    "Shampoo": Shampoo(eps=1e-2, every=2),
    "Shampoo, one side": Shampoo(eps=1e-2, every=2, one_sided_above=0),
    "Shampoo, grafted": Shampoo(**GRAFTED),
    "Shampoo, grafted heads": Shampoo(**GRAFTED, split=2),
    "Shampoo, blocks": Shampoo(eps=1e-2, block=2),
    "SOAP": SOAP(lam=1e-2, every=2),
    "SOAP, one side": SOAP(lam=1e-2, every=2, one_sided_above=0),
    "SOAP, experts": SOAP(lam=1e-2, every=2, batch_dims=1),
    "KLShampoo": KLShampoo(every=2),
    "PSGDKron": PSGDKron(bound=0.1),
    "PSGDKron, heads": PSGDKron(bound=0.1, split=2, triangular=2),
    "DampedLBFGS": DampedLBFGS(history=2, delta=1.0),
    "Adafactor": Adafactor(relative=False),
    "AdamMini": AdamMini(),
}
GENERATOR = torch.Generator().manual_seed(3)
CENTER = torch.randn(3, generator=GENERATOR, dtype=torch.float64)
A = torch.randn(2, 12, generator=GENERATOR, dtype=torch.float64)
PARTS = {
    "Box": sets.Box(-0.1, 0.1),
    "NonNegative": sets.NonNegative(),
    "LInfBall": sets.LInfBall(0.1),
    "L1Ball": sets.L1Ball(0.3),
    "L2Ball": sets.L2Ball(0.3),
    "L2Ball elsewhere": sets.L2Ball(0.3, CENTER),
    "L2Ball of rows": sets.L2Ball(0.2, 0.1, dim=1),
    "L2Ball of columns": sets.L2Ball(0.2, dim=0),
    "L2Ball of all dims": sets.L2Ball(0.3, dim=(-1, 0)),
    "Simplex": sets.Simplex(),
    "CappedSimplex": sets.CappedSimplex(1.0, 0.5),
    "Halfspace": sets.Halfspace(A[0].view(SHAPE), -9.0),
    "Hyperplane": sets.Hyperplane(1.0, 2.0),
    "Affine": sets.Affine(A, torch.ones(2)),
    "SpectralBall": sets.SpectralBall(0.2),
    "NuclearBall": sets.NuclearBall(0.3),
    "BoxSection": sets.BoxSection(A[0].view(SHAPE), 0.1, -0.2, 0.3),
    "Ordered": sets.Ordered(),
    "GroupL1Ball of rows": sets.GroupL1Ball(0.3, group=1),
    "L1InfBall": sets.L1InfBall(0.3),
    "SecondOrderCone": sets.SecondOrderCone(),
    "Sphere": sets.Sphere(0.3),
    "Polyhedron": sets.Polyhedron(torch.cat([A, -A]), torch.tensor([0.5, 0.5, -0.2, 1.0])),
    "DoublyStochastic": sets.DoublyStochastic(),
    "PSD": sets.PSD(),
    "Spectrahedron": sets.Spectrahedron(),
    "Correlation": sets.Correlation(),
    "Intersection": sets.Intersection(sets.Simplex(dim=None), sets.Box(0, 0.2)),
    "Intersection of rows": sets.Intersection(sets.Hyperplane(1.0, 2.0), sets.Halfspace(A[0].view(SHAPE), -1.0)),
    "L1": penalties.L1(0.1),
    "L2": penalties.L2(0.7),
    "ElasticNet": penalties.ElasticNet(0.1, 0.1),
    "GroupLasso of rows": penalties.GroupLasso(0.5, dim=1),
    "GroupLasso": penalties.GroupLasso(0.9, dim=(0, 1)),
    "OverlappingGroupLasso": penalties.OverlappingGroupLasso(0.3, [[0, 1, 2], [2, 3], [3, 4, 5]]),
    "Huber": penalties.Huber(0.3, delta=0.2),
    "TotalVariation": penalties.TotalVariation(0.1),
    "Nuclear": penalties.Nuclear(0.3),
}


def known(kind):
    return {part for part in kind._names.values() if part.__module__.startswith("superadam.")}


def test_every_matrix_and_every_set_is_here():
    of_tensors = {
        matrix for matrix in known(matrices.Matrix) if issubclass(matrix, matrices.base.OfTensors | matrices.Joint)
    }
    assert {type(matrix) for matrix in MATRICES.values()} == of_tensors
    assert {type(part) for part in PARTS.values()} == known(sets.ConvexSet) | known(penalties.Penalty)


def supported(matrix, part):
    """What is exact, for tensors of shape 4 × 3."""
    if matrix == "Muon":
        return False  # singular
    if matrix in ("Adafactor", "AdamMini"):
        return not getattr(PARTS[part], "scalar_metric", False)  # diagonal
    if part in ("Halfspace", "Hyperplane", "Affine", "Polyhedron", "Intersection of rows"):
        return True
    if "PSGD" in matrix or matrix in ("DampedLBFGS", "Shampoo, blocks"):  # blocks of 2 × 2 do not divide 3 columns
        return False
    if "of rows" in part:
        return "one side" in matrix or matrix == "Muon, λ"
    return part in ("L2Ball", "L2Ball elsewhere", "L2Ball of all dims", "Sphere", "L2", "GroupLasso") or (
        part == "L2Ball of columns" and matrix == "Muon, λ, heads"  # of 2 × 3
    )


PAIRS = [
    (matrix, part)
    for matrix, part in itertools.product(MATRICES, PARTS)
    if matrix != "SOAP, experts"  # of three dimensions
]


def options(part):
    return {"penalty" if isinstance(part, penalties.Penalty) else "constraint": part}


def composed(matrix, part, shape=SHAPE, **more):
    """An optimizer of two tensors after some steps."""
    generator = torch.Generator().manual_seed(0)
    params = [torch.randn(shape, generator=generator, dtype=torch.float64, requires_grad=True) for _ in range(2)]
    opt = SuperAdam(params, **{"lr": 0.3, "matrix": matrix, "schedule": SCHEDULE} | options(part) | more)
    for n in range(4):
        away = [torch.randn(shape, generator=generator, dtype=torch.float64) for _ in params]

        def closure(away=away, n=n):
            for i, (p, a) in enumerate(zip(params, away, strict=True)):
                p.grad = (1 + i + n) * (p.detach() - a) + (params[1 - i].detach().sin() if n else 0)
            return 0.0

        opt.step(closure)
    return opt, params


def flat(tensors):
    return torch.cat([t.flatten() for t in tensors])


def dense_inverse(opt, params):
    """H⁻¹ over the coordinates of all tensors, and H⁻¹g by `solve`."""
    buckets = opt.buckets(with_grad=False)
    n = params[0].numel()
    columns, solved = [], []
    for i, p in enumerate(params):
        (found,) = [b for b in buckets if any(q is p for q in b.params)]
        if found.matrix.joint:
            s = merged(buckets)
            g = torch.stack([opt.state[q]["g"] for q in params])
            units = torch.eye(2 * n, dtype=torch.float64).view(-1, *g.shape)
            inverse = s.matrix.inverse(s)
            step = flat(s.matrix.solve(s, TensorList(list(g))))
            return torch.stack([flat(inverse(TensorList(list(unit)))) for unit in units], 1), step
        (j,) = [j for j, q in enumerate(found.params) if q is p]
        s = found.some([j])
        inverse = s.matrix.inverse(s)
        units = torch.eye(n, dtype=torch.float64).view(-1, *p.shape)
        own = torch.stack([flat(s.tensors(inverse(s.matrices(TensorList([unit]))))) for unit in units], 1)
        columns.append(torch.nn.functional.pad(own, (0, 0, i * n, (1 - i) * n)))
        solved.append(flat(s.tensors(s.matrix.solve(s, s.matrices(s.g)))))
    return torch.cat(columns, 1), torch.cat(solved)


def check_optimal(opt, params, part, gamma=0.3, decay=0.0, tol=1e-8):
    """x̃ is the only point that a projected gradient step leaves where it is; no feasible point is better."""
    inverse, solved = dense_inverse(opt, params)
    torch.testing.assert_close(inverse, inverse.T, rtol=tol, atol=tol)
    H = torch.linalg.inv(inverse)
    values = torch.linalg.eigvalsh(H)
    assert values[0] > 0
    g = torch.cat([opt.state[p]["g"].flatten() for p in params])
    torch.testing.assert_close(inverse @ g, solved, rtol=tol, atol=tol)

    start = (1 - gamma * decay) * torch.cat([p.detach().flatten() for p in params])
    with opt.at_x_tilde():
        x = torch.cat([p.detach().flatten() for p in params])

    def prox(v, step):
        constraint, penalty = (options(part).get(name) for name in ("constraint", "penalty"))
        halves = v.view(2, *params[0].shape)
        return torch.cat([combined_argmin(constraint, penalty, half, 1 / step).flatten() for half in halves])

    slope = g + H @ (x - start) / gamma
    step = float(gamma / values[-1])
    torch.testing.assert_close(prox(x - step * slope, step), x, rtol=0, atol=tol * step)
    free = start - gamma * inverse @ g
    assert (x - free).norm() > 1e-3  # the set is in the way
    if isinstance(part, sets.ConvexSet) and part.convex:
        for _ in range(5):
            z = prox(x + torch.randn_like(x), 1.0)
            assert slope @ (z - x) >= -tol


@pytest.mark.parametrize(("matrix", "part"), [pair for pair in PAIRS if supported(*pair)])
def test_line_9_meets_its_optimality_conditions(matrix, part):
    opt, params = composed(MATRICES[matrix], PARTS[part], weight_decay=0.1)
    check_optimal(opt, params, PARTS[part], decay=0.1)


@pytest.mark.parametrize("matrix", MATRICES)
def test_other_pairs_are_refused_by_name(matrix):
    for part in (part for other, part in PAIRS if other == matrix and not supported(matrix, part)):
        with pytest.raises(ValueError, match=r"line 9|of H_t|one learning rate") as refused:
            composed(MATRICES[matrix], PARTS[part])
        assert type(PARTS[part]).__name__ in str(refused.value) or matrix == "Muon"
        assert type(MATRICES[matrix]).__name__ in str(refused.value)


def test_a_refusal_says_what_works():
    with pytest.raises(
        ValueError, match=r"SOAP goes with Affine, .*Halfspace, Hyperplane,.* L2Ball, Polyhedron.*Box goes with diag"
    ):
        composed(SOAP(), sets.Box(0, 1))
    with pytest.raises(ValueError, match=r"PSGDKron goes with no penalty; L2 goes with diagonal and scalar"):
        composed(PSGDKron(), penalties.L2(0.1))
    with pytest.raises(ValueError, match=r"along dim=0, and Muon.* along 1, .* use slices that hold 1 in full"):
        composed(Muon(lam=0.1), sets.L2Ball(1.0, dim=0))
    with pytest.raises(ValueError, match=r"use iterates.Plain"):
        composed(DampedLBFGS(), sets.Hyperplane(1.0, 0.0), iterate=ScheduleFree())
    with pytest.raises(ValueError, match=r"which Shampoo.* has not for a tensor of shape \(4, 3\)"):
        composed(Shampoo(block=2), sets.L2Ball(1.0))


def test_every_matrix_that_a_parameter_may_get_is_checked():
    matrix = ByShape(SOAP(lam=0.01), SecondMoment())
    with pytest.raises(ValueError, match="for Box"):
        composed(matrix, sets.Box(0, 1))
    p = torch.randn(3, dtype=torch.float64, requires_grad=True)
    opt, params = composed(matrix, sets.L2Ball(0.3))
    opt.add_param_group({"params": [p]})
    for q in (*params, p):
        q.grad = torch.randn_like(q)
    opt.step()
    assert opt.feasibility() < 1e-12


def test_a_matrix_that_is_given_later_is_checked_too():
    opt, params = composed(Shampoo(one_sided_above=0), sets.L2Ball(1.0, dim=1))
    opt.param_groups[0]["matrix"] = Shampoo()
    params[0].grad = params[1].grad = torch.ones(SHAPE).double()
    with pytest.raises(ValueError, match="along 0 and 1"):
        opt.step()


@pytest.mark.parametrize(
    ("matrix", "dim"),
    [
        (SOAP(lam=0.01, batch_dims=1), (1, 2)),
        (SOAP(lam=0.01, batch_dims=1), None),
        (SOAP(lam=0.01, batch_dims=1, one_sided_above=0), 1),
        (Shampoo(eps=0.01), None),
        (Shampoo(eps=0.01, one_sided_above=0), 0),
        (Muon(lam=0.1, batch_dims=1), (0, 1)),
    ],
    ids=str,
)
def test_balls_of_tensors_with_more_dimensions(matrix, dim):
    """(2, 3, 4) as two experts of 3 × 4, or as 2 × 12: H mixes along whichever dimensions the smaller side has."""
    part = sets.L2Ball(0.3, dim=dim)
    check_optimal(*composed(matrix, part, shape=(2, 3, 4)), part)
    if dim is not None:
        with pytest.raises(ValueError, match="slices along dim=2"):
            composed(matrix, sets.L2Ball(0.3, dim=2), shape=(2, 3, 4))


def test_a_feasible_y_comes_back_bit_for_bit():
    for part in (sets.L2Ball(1e3, CENTER), sets.Halfspace(1.0, 1e3)):
        on_set, free = (composed(SOAP(lam=0.01), None, **of)[1] for of in ({"constraint": part}, {"constraint": None}))
        for x, y in zip(on_set, free, strict=True):
            torch.testing.assert_close(x.detach(), y.detach(), rtol=1e-15, atol=1e-15)


@pytest.mark.parametrize("part", ["L2Ball elsewhere", "Hyperplane"])
@pytest.mark.parametrize("matrix", ["SOAP", "Shampoo, grafted", "PSGDKron", "Muon, λ"])
def test_one_by_one_in_float32_and_with_a_tensor_lr(matrix, part):
    """`foreach=False`, and a tensor as lr, take the same steps; float32 nearly, with feasible points."""
    if not supported(matrix, part):
        return
    matrix, part = MATRICES[matrix], PARTS[part]
    together = composed(matrix, part)[1]
    for more in ({"foreach": False}, {"lr": torch.tensor(0.3, dtype=torch.float64)}):
        for p, q in zip(together, composed(matrix, part, **more)[1], strict=True):
            torch.testing.assert_close(p, q, rtol=1e-9, atol=1e-9)


def test_float32_stays_feasible():
    generator = torch.Generator().manual_seed(0)
    for matrix, part in [(SOAP(), sets.L2Ball(0.5)), (PSGDKron(), sets.Hyperplane(1.0, 2.0))]:
        p = torch.randn(8, 5, generator=generator, requires_grad=True)
        opt = SuperAdam([p], lr=0.1, matrix=matrix, constraint=part)
        for _ in range(50):
            p.grad = p.detach() - torch.randn(8, 5, generator=generator)
            opt.step()
        assert opt.feasibility() < 1e-6


def test_gamma_zero_stays():
    for name in ("SOAP", "PSGDKron", "DampedLBFGS"):
        opt, params = composed(MATRICES[name], sets.Hyperplane(1.0, 2.0), lr=0.0)
        before = [p.detach().clone() for p in params]
        opt.flush()
        assert all(torch.equal(p, x) for p, x in zip(params, before, strict=True))


@pytest.mark.filterwarnings("ignore:.*:superadam.monitor.MonitorWarning")
def test_the_monitor_measures_the_step_on_a_set():
    for matrix, part in [(SOAP(lam=0.01), sets.L2Ball(0.5)), (DampedLBFGS(), sets.Hyperplane(1.0, 2.0))]:
        p = torch.randn(4, 3, dtype=torch.float64, requires_grad=True)
        opt = SuperAdam([p], lr=0.1, matrix=matrix, constraint=part, schedule=schedules.Constant(alpha=1.0))
        monitor = Monitor(opt, every=1)

        def closure(p=p):
            p.grad = p.detach() - 1
            return 0.0

        opt.step(closure)
        opt.step(closure)
        before = p.detach().clone()
        opt.step(closure)
        moved = (p.detach() - before).norm() / 0.1  # with one gradient per batch, x̃ itself
        if not opt.two_point:
            torch.testing.assert_close(monitor.history[-1]["gradient_mapping"], float(moved), rtol=1e-8, atol=0)
        assert monitor.history[-1]["feasibility"] < 1e-12


# ----------------------------------------------------------------------------------------- one matrix over all


def test_sets_of_several_groups_share_one_matrix():
    """Halfspaces of some parameters, a hyperplane of others, none of the rest: one H⁻¹ couples them."""
    generator = torch.Generator().manual_seed(0)
    params = [torch.randn(3, generator=generator, dtype=torch.float64, requires_grad=True) for _ in range(4)]
    groups = [
        {"params": params[:2], "constraint": sets.Halfspace(1.0, -1.0)},
        {"params": params[2:3], "constraint": sets.Hyperplane(1.0, 1.0)},
        {"params": params[3:]},
    ]
    opt = SuperAdam(groups, lr=0.5, matrix=DampedLBFGS(history=3, delta=1.0), schedule=SCHEDULE)
    for _ in range(5):
        away = [torch.randn(3, generator=generator, dtype=torch.float64) for _ in params]

        def closure(away=away):
            total = sum(p.detach().sum() for p in params)
            for i, (p, a) in enumerate(zip(params, away, strict=True)):
                p.grad = (i + 1) * (p.detach() - a + 1) + 0.5 * total
            return 0.0

        opt.step(closure)
    s = merged(opt.buckets(with_grad=False))
    inverse = s.matrix.inverse(s)
    units = torch.eye(12, dtype=torch.float64).view(-1, 4, 3)
    K = torch.stack([flat(inverse(TensorList(list(unit)))) for unit in units], 1)
    x, g = (torch.cat([t.detach() for t in ts]) for ts in (params, [opt.state[p]["g"] for p in params]))
    with opt.at_x_tilde():
        on_sets = torch.cat([p.detach().clone() for p in params[:3]])
    opt.flush()
    z = 2 * torch.cat([p.detach() for p in params]) - x
    torch.testing.assert_close(z[:9], on_sets, rtol=1e-10, atol=1e-10)
    slope = g + torch.linalg.solve(K, z - x) / 0.5
    assert K[:3, 9:].abs().max() > 1e-3  # coupled
    assert slope[9:].abs().max() < 1e-8  # free
    sums = z.view(4, 3).sum(1)
    assert abs(float(sums[2]) - 1) < 1e-10
    torch.testing.assert_close(slope[6:9], slope[6].expand(3), rtol=1e-8, atol=1e-8)
    for i in (0, 1):
        part = slope.view(4, 3)[i]
        torch.testing.assert_close(part, part[0].expand(3), rtol=1e-8, atol=1e-8)
        assert sums[i] <= -1 + 1e-10
        assert part[0] <= 1e-9  # pushed against the halfspace, or not at all
        assert abs(float(part[0] * (sums[i] + 1))) < 1e-8


def test_one_matrix_needs_one_lr_on_a_set():
    params = [torch.ones(3, requires_grad=True) for _ in range(2)]
    groups = [{"params": params[:1], "constraint": sets.Hyperplane(1.0, 3.0)}, {"params": params[1:], "lr": 0.1}]
    opt = SuperAdam(groups, lr=0.5, matrix=DampedLBFGS())

    def closure():
        for p in params:
            p.grad = torch.ones(3)
        return 0.0

    opt.step(closure)
    with pytest.raises(ValueError, match="one lr for all"):
        opt.step(closure)


@pytest.mark.parametrize("seed", range(20))
def test_multipliers_solve_their_complementarity_problem(seed):
    generator = torch.Generator().manual_seed(seed)
    n = 1 + seed % 7
    B = torch.randn(n, n + 1, generator=generator, dtype=torch.float64)
    S, e = B @ B.T, torch.randn(n, generator=generator, dtype=torch.float64)
    inequality = torch.rand(n, generator=generator) < 0.7
    lam = multipliers(S, e, inequality)
    left = S @ lam - e
    assert left[~inequality].abs().sum() < 1e-9
    assert (lam[inequality] >= 0).all()
    assert (left[inequality] > -1e-9).all()
    assert (lam * left).abs().max() < 1e-9


# -------------------------------------------------------------------------------------------- Algorithm 1, dense H


def power(B, p):
    values, Q = torch.linalg.eigh(B)
    return Q @ values.clamp(min=0).pow(p).diag() @ Q.T


def shampoo_rule(m, n, *, left):
    """Of 4 × 3 tensors, one after the other: R^¼ on both sides, or R^½ on that of the columns."""
    factors = None

    def rule(t, newest, g):
        nonlocal factors
        tensors = newest.view(-1, m, n)
        new = [(G @ G.T, G.T @ G) for G in tensors]
        factors = [
            tuple(0.9 * old + 0.1 * now for old, now in zip(pair, fresh, strict=True))
            for pair, fresh in zip(factors or [(0.0, 0.0)] * len(new), new, strict=True)
        ]
        blocks = []
        for L, R in factors:
            L, R = (B / (1 - 0.9**t) + 0.1 * torch.eye(len(B), dtype=B.dtype) for B in (L, R))
            one = torch.kron(torch.eye(m, dtype=L.dtype), power(R, 0.5))
            blocks.append(torch.kron(power(L, 0.25), power(R, 0.25)) if left else one)
        return torch.block_diag(*blocks)

    return rule


def spectral_rule(m, n):
    def rule(t, newest, g):
        eye, scale = torch.eye(m, dtype=g.dtype), max(1.0, m / n) ** 0.5
        return torch.block_diag(*[
            torch.kron(eye, power(G.T @ G, 0.5) / scale) + 0.2 * torch.eye(m * n, dtype=g.dtype)
            for G in g.view(-1, m, n)
        ])  # fmt: skip

    return rule


def zero_rule(t, newest, g):
    return torch.zeros_like(g)


COMPOSITIONS = {
    "Shampoo": (Shampoo(0.9, 0.1, 1), lambda: shampoo_rule(4, 3, left=True), sets.L2Ball(0.8, 0.3)),
    "one side": (
        Shampoo(0.9, 0.1, 1, one_sided_above=0),
        lambda: shampoo_rule(4, 3, left=False),
        sets.L2Ball(0.5, dim=1),
    ),
    "affine": (Shampoo(0.9, 0.1, 1), lambda: shampoo_rule(4, 3, left=True), sets.Affine(A, torch.ones(2))),
    "Muon": (Muon(lam=0.2), lambda: spectral_rule(4, 3), sets.Halfspace(1.0, -5.0)),
}


@pytest.mark.parametrize("tau", [0.0, 1.0])
@pytest.mark.parametrize("name", COMPOSITIONS)
def test_equals_the_reference_with_a_dense_matrix(name, tau):
    matrix, rule, constraint = COMPOSITIONS[name]
    problem = Stochastic(shapes=[SHAPE, SHAPE])

    def project(z):
        return torch.cat([constraint.argmin(half, 1.0).flatten() for half in z.view(2, *SHAPE)])

    start = project(problem.x_1)
    weights = {"mu": lambda t: 0.5, "alpha": lambda t: 0.3}
    run = reference.super_adam(
        *(problem.grad, start, range(6)),
        case=rule(), tau=tau, gamma=0.2, argmin=reference.on_set(project), **weights,
    )  # fmt: skip
    params = problem.params()
    opt = SuperAdam(params, lr=0.2, tau=tau, matrix=matrix, constraint=constraint, schedule=SCHEDULE)
    _, last = train(problem, opt, params, range(6))
    torch.testing.assert_close(last, run.x[7], rtol=1e-9, atol=1e-9)
    assert (last - start).norm() > 0.1
    free = reference.super_adam(problem.grad, start, range(6), case=rule(), tau=tau, gamma=0.2, **weights)
    assert (last - free.x[7]).norm() > 0.01  # the set is in the way


@pytest.mark.parametrize("tau", [0.0, 1.0])
def test_zero_equals_the_reference_with_a_vanishing_matrix(tau):
    constraint = sets.SpectralBall(2.0)
    problem = Stochastic(shapes=[SHAPE, SHAPE])

    def vertex(g, x, H, gamma):
        return torch.cat([constraint.lmo(half).flatten() for half in g.view(2, *SHAPE)])

    start = torch.cat([constraint.argmin(half, 1.0).flatten() for half in problem.x_1.view(2, *SHAPE)])
    run = reference.super_adam(
        *(problem.grad, start, range(10)),
        case=zero_rule, tau=tau, mu=lambda t: 0.1, alpha=lambda t: 0.3, argmin=vertex,
    )  # fmt: skip
    params = problem.params()
    schedule = schedules.Constant(mu=0.1, alpha=0.3)
    opt = SuperAdam(params, tau=tau, matrix=matrices.Zero(), constraint=constraint, schedule=schedule)
    _, last = train(problem, opt, params, range(10))
    torch.testing.assert_close(last, run.x[11], rtol=1e-10, atol=1e-10)
