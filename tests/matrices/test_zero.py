"""H → 0: Frank and Wolfe's algorithm, and Scion, Muon and Lion with weight decay as line 9 on a bounded set."""

import math

import pytest
import torch

from superadam import Monitor, SuperAdam, create, estimators, matrices, penalties, schedules, sets, stepsizes
from superadam.matrices import Zero

LR, DECAY = 0.02, 0.1


def gradients(shape, steps, seed=0):
    generator = torch.Generator().manual_seed(seed)
    return [torch.randn(shape, generator=generator, dtype=torch.float64) for _ in range(steps)]


def start(shape):
    return 0.1 * torch.randn(shape, generator=torch.Generator().manual_seed(9), dtype=torch.float64)


def after(build, shape, steps=30):
    """x after steps along given gradients."""
    p = start(shape).requires_grad_()
    opt = build([p])
    for grad in gradients(shape, steps):
        p.grad = grad + p.detach()
        opt.step()
    return p.detach(), opt


def equal(actual, expected, tol=1e-12):
    torch.testing.assert_close(actual, expected, rtol=tol, atol=tol)


def on(constraint, lr=None, **options):
    return lambda params: SuperAdam(params, lr=lr, matrix=Zero(), constraint=constraint, **options)


# -------------------------------------------------------------------------------------------------- the usual forms


def test_frank_wolfe():
    """μ_t = 2/(t+2), whole gradients: the usual loop, and its rate f(x_t) - f* ≤ 2LD²/(t+2)."""
    target = torch.tensor([0.5, 0.3, 0.2, -0.4, 0.1], dtype=torch.float64)
    best = sets.Simplex().argmin(target, 1.0)
    p = torch.full((5,), 0.2, dtype=torch.float64, requires_grad=True)
    schedule = schedules.Constant(mu=2 / 3, alpha=1.0, decay=1 / 3)
    opt = on(sets.Simplex(), schedule=schedule)([p])
    x = p.detach().clone()
    for t in range(1, 201):
        opt.zero_grad()
        (0.5 * (p - target).square().sum()).backward()
        opt.step()
        vertex = torch.nn.functional.one_hot((x - target).argmin(), 5).double()
        x = (1 - 2 / (t + 2)) * x + 2 / (t + 2) * vertex
        equal(p.detach(), x)
        gap = ((x - target).square().sum() - (best - target).square().sum()) / 2
        assert gap <= 2 * 2 / (t + 3)
    assert opt.feasibility() < 1e-12


@pytest.mark.parametrize("shape", [(4, 6), (6, 4), (5, 5)])
@pytest.mark.parametrize("nesterov", [True, False])
def test_muon_with_weight_decay(shape, nesterov):
    """x ← (1 - lr w) x - lr s U Vᵀ is line 10 with μ = lr w, and the lmo on the ball of radius s/w."""
    s = math.sqrt(max(1.0, shape[0] / shape[1]))
    momentum = schedules.Constant(alpha=0.05, first=0.05)
    estimator = estimators.Nesterov() if nesterov else None
    build = on(sets.SpectralBall(s / DECAY), LR * DECAY, estimator=estimator, schedule=momentum)
    x, m, y = start(shape), torch.zeros(shape).double(), after(build, shape)[0]
    for grad in gradients(shape, 30):
        grad = grad + x
        m = 0.95 * m + 0.05 * grad
        U, _, V = torch.linalg.svd(0.95 * m + 0.05 * grad if nesterov else m, full_matrices=False)
        x = (1 - LR * DECAY) * x - LR * s * U @ V
    equal(y, x)
    # with polynomials for the polar factor, up to what they are off
    options = {"coefficients": "polar_express", "ns_steps": 8, "nesterov": nesterov}
    equal(after(lambda p: create("muon", p, lr=LR, weight_decay=DECAY, **options), shape)[0], x, 1e-5)
    # the step size as a μ: the same with lr=None
    same = schedules.Constant(mu=LR * DECAY, alpha=0.05, first=0.05)
    equal(after(on(sets.SpectralBall(s / DECAY), estimator=estimator, schedule=same), shape)[0], x)


def test_lion_with_weight_decay():
    """x ← (1 - lr w) x - lr sign(β₁m + (1-β₁)∇f), m by β₂, on the ball of radius 1/w."""
    estimator, average = estimators.Nesterov(1 - 0.9 / 0.99), schedules.Constant(alpha=0.01, first=0.01)
    build = on(sets.LInfBall(1 / DECAY), LR * DECAY, estimator=estimator, schedule=average)
    x, m = start((7, 2)), torch.zeros(7, 2).double()
    for grad in gradients((7, 2), 30):
        grad = grad + x
        x = (1 - LR * DECAY) * x - LR * torch.sign(0.9 * m + 0.1 * grad)
        m = 0.99 * m + 0.01 * grad
    equal(after(build, (7, 2))[0], x)
    equal(after(lambda p: create("lion", p, lr=LR, weight_decay=DECAY), (7, 2))[0], x)


def test_scion_has_a_norm_for_each_layer():
    """Constrained Scion (Pethick et al. 2025): d ← (1-α)d + α∇f, x ← (1-γ)x + γ lmo(d), a set for each layer."""
    shapes = [(6, 4), (3, 6), (3,)]
    balls = [sets.SpectralBall(5 * math.sqrt(6 / 4)), sets.LInfBall(2.0), sets.L2Ball(1.0)]
    params = [start(shape).requires_grad_() for shape in shapes]
    groups = [{"params": [p], "constraint": ball} for p, ball in zip(params, balls, strict=True)]
    opt = SuperAdam(groups, lr=0.05, matrix=Zero(), schedule=schedules.Constant(alpha=0.1))
    x = [ball.argmin(start(shape), 1.0) for shape, ball in zip(shapes, balls, strict=True)]
    d = [None] * 3
    for n in range(20):
        for i, shape in enumerate(shapes):
            grad = gradients(shape, 1, seed=n)[0] + x[i]
            params[i].grad = grad
            d[i] = grad if d[i] is None else 0.9 * d[i] + 0.1 * grad
            if i == 0:
                U, _, V = torch.linalg.svd(d[i], full_matrices=False)
                vertex = -balls[0].r * U @ V
            else:
                vertex = -2.0 * d[i].sign() if i == 1 else -d[i] / d[i].norm()
            x[i] = 0.95 * x[i] + 0.05 * vertex
        opt.step()
        for p, expected in zip(params, x, strict=True):
            equal(p.detach(), expected)
    assert opt.feasibility() < 1e-12


@pytest.mark.parametrize("dim", [None, 1])
def test_a_step_on_the_sphere_is_normalised(dim):
    """Hyperball (2026): x ← r norm(x - lr r norm(g)), a step on the sphere, is lmo, mixture and projection."""
    r, eta = 2.0, LR / (1 + LR)
    build = on(sets.Sphere(r, dim), eta, schedule=schedules.Constant(alpha=0.3))

    def norm(z):
        return z / torch.linalg.vector_norm(z, dim=dim, keepdim=True)

    x, m = r * norm(start((4, 3))), None
    for grad in gradients((4, 3), 30):
        grad = grad + x
        m = grad if m is None else 0.7 * m + 0.3 * grad
        x = r * norm(x - LR * r * norm(m))
    equal(after(build, (4, 3))[0], x)


def test_a_soft_permutation_becomes_one():
    """Frank and Wolfe's steps on the Birkhoff polytope: the distance falls by 1 - μ_t."""
    goal = torch.eye(5, dtype=torch.float64)[torch.tensor([2, 0, 4, 1, 3])]
    x = torch.full((5, 5), 0.2, dtype=torch.float64, requires_grad=True)
    opt = on(sets.DoublyStochastic(), schedule=schedules.Constant(mu=2 / 3, alpha=1.0, decay=1 / 3))([x])
    for t in range(1, 21):
        distance = (x.detach() - goal).abs().max()
        x.grad = x.detach() - goal
        opt.step()
        equal((x.detach() - goal).abs().max(), (1 - 2 / (t + 2)) * distance)
    assert opt.feasibility() < 1e-12


# -------------------------------------------------------------------------------------------------------- promises


def test_lr_is_a_share_of_the_way():
    ball = sets.L1Ball(3.0)
    schedule = schedules.Constant(mu=0.1, alpha=0.3)
    whole = after(on(ball, schedule=schedule), (4, 3))[0]
    for lr in (1.0, 7.0, torch.tensor(2.0, dtype=torch.float64)):
        equal(after(on(ball, lr, schedule=schedule), (4, 3))[0], whole)
    half = after(on(ball, 0.5, schedule=schedule), (4, 3))[0]
    assert (half - whole).abs().max() > 0.01
    equal(after(on(ball, schedule=schedules.Constant(mu=0.05, alpha=0.3)), (4, 3))[0], half)
    equal(after(on(ball, torch.tensor(0.5, dtype=torch.float64), schedule=schedule), (4, 3))[0], half)
    equal(after(on(ball, 0.0, schedule=schedule), (4, 3))[0], start((4, 3)))


def test_a_scheduler_changes_the_step():
    p = torch.zeros(3, requires_grad=True)
    opt = on(sets.LInfBall(1.0), 0.5)([p])
    scheduler = torch.optim.lr_scheduler.ExponentialLR(opt, 0.1)
    for _ in range(2):
        p.grad = torch.ones(3)
        opt.step()
        scheduler.step()
    equal(p.detach(), torch.full((3,), -0.5 - 0.05 * 0.5), 1e-6)


@pytest.mark.parametrize("ball", [sets.LInfBall(1.0), sets.SpectralBall(1.0), sets.L2Ball(1.0, dim=1)], ids=str)
@pytest.mark.parametrize("way", [{"foreach": True}, {"foreach": False}, {"tau": 1.0, "foreach": True}], ids=str)
def test_every_way_takes_the_same_steps(ball, way):
    tau = way.get("tau", 0.0)

    def train(**options):
        params = [start(shape).requires_grad_() for shape in [(4, 3), (4, 3), (5, 2)]]
        opt = on(ball, 0.1, **options)(params)
        for n in range(5):

            def closure(n=n):
                for i, p in enumerate(params):
                    p.grad = gradients(p.shape, 1, seed=10 * n + i)[0] + p.detach()
                return 0.0

            opt.step(closure)
        opt.flush()
        return torch.cat([p.detach().flatten() for p in params])

    equal(train(**way), train(tau=tau))


def test_at_x_tilde_is_the_vertex():
    p, opt = torch.zeros(2, 2, requires_grad=True), None
    opt = on(sets.SpectralBall(3.0), schedule=schedules.Constant(mu=0.1))([p])
    p.grad = torch.diag(torch.tensor([2.0, -0.5]))
    opt.step()
    with opt.at_x_tilde():
        torch.testing.assert_close(p.detach(), torch.diag(torch.tensor([-3.0, 3.0])))
    torch.testing.assert_close(p.detach(), torch.diag(torch.tensor([-0.3, 0.3])))


def test_bfloat16_parameters():
    p = torch.zeros(4, 3, dtype=torch.bfloat16, requires_grad=True)
    opt = on(sets.SpectralBall(1.0), 0.5)([p])
    p.grad = torch.randn(4, 3).bfloat16()
    opt.step()
    assert torch.linalg.svdvals(p.detach().float()).sub(0.5).abs().max() < 0.01


@pytest.mark.filterwarnings("ignore:.*:superadam.monitor.MonitorWarning")
def test_the_monitor_can_watch():
    p = torch.zeros(3, requires_grad=True)
    opt = on(sets.LInfBall(1.0), 0.5)([p])
    monitor = Monitor(opt, every=1)
    for _ in range(3):
        p.grad = torch.ones(3)
        opt.step()
    assert monitor.history[-1]["feasibility"] == 0


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        ({}, "needs a bounded set"),
        ({"constraint": sets.NonNegative()}, "NonNegative is not"),
        ({"constraint": sets.Box(0.0, None)}, "Box is not"),
        ({"constraint": sets.Hyperplane(1.0, 0.0)}, "Hyperplane is not"),
        ({"constraint": sets.Box(0, 1), "stepsize": stepsizes.DoG()}, "share of the way"),
        ({"constraint": sets.Box(0, 1), "penalty": penalties.L1(0.1)}, "not known for L1"),
        ({"constraint": sets.Box(0, 1), "weight_decay": 0.1}, "decays x already"),
    ],
    ids=str,
)
def test_what_is_refused(options, reason):
    with pytest.raises(ValueError, match=reason):
        SuperAdam([torch.zeros(3, requires_grad=True)], matrix=Zero(), **options)


def test_a_set_of_ones_own_needs_an_lmo():
    class Half(sets.ConvexSet):
        def argmin(self, y, d):
            return y.clamp(0, 0.5)

    try:
        with pytest.raises(ValueError, match="Half is not, or has no lmo"):
            SuperAdam([torch.zeros(3, requires_grad=True)], matrix=Zero(), constraint=Half())
        Half.lmo = lambda self, g: (g < 0) * 0.5
        p = torch.zeros(3, requires_grad=True)
        opt = SuperAdam([p], matrix=Zero(), constraint=Half())
        p.grad = torch.tensor([1.0, -1.0, 0.0])
        opt.step()
        assert p.tolist() == [0.0, 0.5, 0.0]
    finally:
        del sets.ConvexSet._names["Half"]


def test_weight_decay_in_the_gradient_is_part_of_f():
    p = torch.full((2,), 0.5, requires_grad=True)
    options = {"weight_decay": 1.0, "decoupled_weight_decay": False}
    opt = SuperAdam([p], matrix=Zero(), constraint=sets.LInfBall(1.0), **options)
    p.grad = torch.tensor([-0.4, -0.6])
    opt.step()
    assert p.tolist() == [-1.0, 1.0]


def test_zero_is_known_by_name():
    assert matrices.Matrix.find("zero") == Zero()
