"""Line 9 on sets and with penalties: exact in the metric of H_t, against the reference and against what others do."""

import pytest
import torch

from pairs import pairs
from problems import CASES, LR, Stochastic, SuperAdam, train
from superadam import create, matrices, penalties, reference, schedules, sets, zoo

SAMPLES = list(range(15))
SHAPES = [(3,), (2, 5), (7,)]
SETS = {
    "box": sets.Box(-0.5, 1.0),
    "non-negative": sets.NonNegative(),
    "l-inf ball": sets.LInfBall(0.7),
    "l2 ball": sets.L2Ball(1.0),
    "l2 rows": sets.L2Ball(0.5, dim=-1),
    "l1 ball": sets.L1Ball(1.5),
    "simplex": sets.Simplex(dim=-1),
    "capped simplex": sets.CappedSimplex(1.0, cap=0.6, dim=-1),
}
PENALTIES = {
    "l1": penalties.L1(0.05),
    "elastic net": penalties.ElasticNet(0.05, 0.1),
    "l2": penalties.L2(0.1),
    "group lasso": penalties.GroupLasso(0.05, dim=-1),
    "overlapping groups": penalties.OverlappingGroupLasso(0.05, [[0, 1], [1, 2]]),
    "huber": penalties.Huber(0.1, delta=0.2),
    "total variation": penalties.TotalVariation(0.05),
}


def on_each(problem, solve):
    """The reference's argmin on one vector, from that of each tensor of the problem."""

    def argmin(g, x, H, gamma):
        sizes = [torch.Size(s).numel() for s in problem.shapes]
        parts = zip((x - gamma * g / H).split(sizes), (H / gamma).split(sizes), problem.shapes, strict=True)
        return torch.cat([solve(y.reshape(shape), d.reshape(shape)).reshape(-1) for y, d, shape in parts])

    return argmin


def start(problem, constraint):
    """x_1, put into the set."""
    parts = problem.x_1.split([torch.Size(s).numel() for s in problem.shapes])
    shaped = [p.reshape(s) for p, s in zip(parts, problem.shapes, strict=True)]
    return torch.cat([constraint.argmin(p, 1.0).reshape(-1) for p in shaped])


@pytest.mark.parametrize(("name", "case", "tau", "foreach"), pairs(SETS, CASES, [0.0, 1.0], [False, True]))
def test_equals_the_reference_on_a_set(name, case, tau, foreach):
    """Lines 9 and 10 as they are written, for every matrix: x_1 projected, x̃ computed, then mixed."""
    problem, constraint = Stochastic(shapes=SHAPES), SETS[name]
    x_1 = start(problem, constraint)
    lam = 0.1 if case == "3" else 5e-4
    options = {"case": case, "tau": tau, "gamma": LR[case], "lam": lam}
    run = reference.super_adam(problem.grad, x_1, SAMPLES, argmin=on_each(problem, constraint.argmin), **options)
    params = problem.params()
    matrix = type(CASES[case])(lam=lam)
    opt = SuperAdam(
        params, lr=LR[case], tau=tau, matrix=matrix, schedule="Paper", constraint=constraint, foreach=foreach
    )
    assert torch.equal(problem.join(params), x_1)
    _, last = train(problem, opt, params, SAMPLES)
    torch.testing.assert_close(last, run.x[16], rtol=1e-8, atol=1e-8)
    assert opt.feasibility() < 1e-12
    if tau > 0:
        assert "x_prev" not in opt.state[params[0]]
        assert (
            {"step", "g"}
            <= opt.state[params[0]].keys()
            <= {"step", "phase", "gamma", "g", "v", "m", "b", "steps", "root"}
        )


@pytest.mark.parametrize("tau", [0.0, 1.0])
@pytest.mark.parametrize("constraint", [None, sets.NonNegative()], ids=["free", "non-negative"])
@pytest.mark.parametrize("name", PENALTIES)
def test_equals_the_reference_with_a_penalty(name, constraint, tau):
    penalty = PENALTIES[name]
    problem = Stochastic(shapes=SHAPES)
    if constraint is not None and not penalty.separable:
        with pytest.raises(ValueError, match=f"{type(penalty).__name__} does not"):
            SuperAdam(problem.params(), constraint=constraint, penalty=penalty)
        return
    x_1 = problem.x_1 if constraint is None else start(problem, constraint)
    solve = on_each(problem, lambda y, d: penalties.combined_argmin(constraint, penalty, y, d))
    run = reference.super_adam(problem.grad, x_1, SAMPLES, tau=tau, gamma=0.01, argmin=solve)
    params = problem.params()
    parts = {"matrix": CASES["1"], "schedule": "Paper", "constraint": constraint, "penalty": penalty}
    opt = SuperAdam(params, lr=0.01, tau=tau, **parts)
    torch.testing.assert_close(train(problem, opt, params, SAMPLES)[1], run.x[16], rtol=1e-10, atol=1e-10)


class Quadratic:
    """½ (x - a)ᵀ diag(q) (x - a) in 20 dimensions with unequal curvatures, gradients with noise; solved by the sets."""

    def __init__(self, seed=0):
        generator = torch.Generator().manual_seed(seed)
        self.q = torch.logspace(-1.5, 1.5, 20, dtype=torch.float64)
        self.a = torch.randn(20, generator=generator, dtype=torch.float64)
        self.noise = torch.Generator().manual_seed(seed + 1)

    def loss(self, x):
        return 0.5 * (self.q * (x - self.a) ** 2).sum()

    def gap(self, x, constraint):
        """f(x) - f*: the exact solution is the step of line 9 itself, with d = q."""
        return (self.loss(x) - self.loss(constraint.argmin(self.a, self.q))).item()

    def grad(self, x, sigma):
        noise = torch.randn(20, generator=self.noise, dtype=torch.float64)
        return self.q * (x - self.a) + sigma * noise


@pytest.mark.parametrize(
    ("steps", "within", "far"), [(500, 1e-4, 1.0), pytest.param(20_000, 1e-5, 1e-3, marks=pytest.mark.slow)]
)
@pytest.mark.parametrize(
    "constraint", [sets.Simplex(), sets.L1Ball(1.0), sets.L2Ball(1.0)], ids=["simplex", "l1 ball", "l2 ball"]
)
def test_the_exact_step_reaches_the_optimum_and_euclidean_projection_does_not(constraint, steps, within, far):
    """Adam, then the Euclidean projection, stays at a wrong point; SUPER-ADAM with line 9 gets within 1e-4 in 500 steps
    and within 1e-5 in 20,000."""
    gaps = {}
    for method in ("exact", "projected"):
        problem = Quadratic()
        x = torch.zeros(20, dtype=torch.float64, requires_grad=True)
        exact = method == "exact"
        opt = torch.optim.Adam([x], lr=1e-2)
        if exact:
            opt = SuperAdam([x], lr=0.3, schedule="Paper", constraint=constraint)
        for t in range(steps):
            x.grad = problem.grad(x.detach(), sigma=0.01)
            if not exact:
                opt.param_groups[0]["lr"] = 1e-2 / (1 + t / 100) ** 0.5
            opt.step()
            if not exact:
                with torch.no_grad():
                    x.copy_(constraint.argmin(x, 1.0))
        gaps[method] = problem.gap(x.detach(), constraint)
    assert gaps["exact"] < within
    assert gaps["projected"] > far


@pytest.mark.parametrize("steps", [300, pytest.param(10_000, marks=pytest.mark.slow)])
@pytest.mark.parametrize("tau", [0.0, 1.0])
def test_every_iterate_stays_feasible_in_float32(tau, steps):
    """On a simplex and a ball: violation below 1e-6."""
    rows = torch.rand(3, 40, requires_grad=True)
    ball = torch.randn(50, requires_grad=True)
    groups = [{"params": [rows], "constraint": sets.Simplex(dim=1)}, {"params": [ball], "constraint": sets.L2Ball(1.0)}]
    opt = SuperAdam(groups, lr=0.1, tau=tau, schedule="Paper")
    targets = torch.randn(3, 40), 3 * torch.randn(50)

    def closure():
        rows.grad = rows.detach() - targets[0] + 0.1 * torch.randn(3, 40)
        ball.grad = ball.detach() - targets[1] + 0.1 * torch.randn(50)
        return 0.0

    worst = 0.0
    for _ in range(steps):
        opt.step(closure)
        worst = max(worst, opt.feasibility())
    assert worst < 1e-6


def test_x_tilde_is_exactly_sparse_and_can_be_swapped_in():
    """With an l1 penalty, x_t is only nearly sparse; inside `at_x_tilde` the parameters are exactly so."""
    target = torch.tensor([1.0, -0.02, 0.03, -2.0, 0.0], dtype=torch.float64)
    for tau in (0.0, 1.0):
        x = torch.ones(5, dtype=torch.float64, requires_grad=True)
        opt = SuperAdam([x], lr=0.1, tau=tau, matrix="SecondMoment", schedule="Paper", penalty=penalties.L1(0.1))

        def closure(x=x):
            x.grad = x.detach() - target
            return 0.0

        for _ in range(500):
            opt.step(closure)
        before = x.detach().clone()
        assert before.ne(0).all()
        with opt.at_x_tilde():
            assert x.ne(0).tolist() == [True, False, False, True, False]
            torch.testing.assert_close(
                x.detach()[[0, 3]], torch.tensor([0.9, -1.9], dtype=torch.float64), atol=1e-3, rtol=0
            )
        assert torch.equal(x, before)


def test_weight_decay_shrinks_before_the_set_is_looked_at():
    """x̃ = argmin over X from (1 - γw) x - γ H⁻¹ g; without a set that is the decay of the free step."""
    x_0 = torch.tensor([0.9, -0.9, 0.2], dtype=torch.float64)
    gradient = torch.tensor([-1.0, 1.0, 0.5], dtype=torch.float64)
    x = x_0.clone().requires_grad_()
    opt = SuperAdam(
        [x], lr=0.1, weight_decay=0.5, constraint=sets.L2Ball(1.0), matrix=matrices.Belief(beta2=0.5), schedule="Paper"
    )
    x.grad = gradient.clone()
    start = x.detach().clone()
    opt.step()
    H = (0.5 * (0.9 * gradient) ** 2).sqrt() + 5e-4
    x_tilde = sets.L2Ball(1.0).argmin(start * (1 - 0.1 * 0.5) - 0.1 * gradient / H, H / 0.1)
    mu = schedules.Paper().mu_t(1, 0.0)
    torch.testing.assert_close(x.detach(), (1 - mu) * start + mu * x_tilde, rtol=1e-12, atol=1e-12)


# Steps that no simplex allows: ahead of the set, or in the metric of a matrix that is not diagonal.
OTHERS = {"sdlbfgs", "nigt", "adam_plus", "adamw_ahead", "muon", "mars_m", "mars_shampoo", "limuon"}
OTHERS |= {"shampoo", "soap", "kl_shampoo", "psgd_kron", "super_adam_plus"}


@pytest.mark.parametrize("name", sorted(set(zoo.METHODS) - OTHERS))
def test_every_method_takes_a_constraint(name):
    """Where line 9 makes sense; the parameters stay in the simplex, and the loss goes down."""
    x = torch.full((6,), 1 / 6, dtype=torch.float64, requires_grad=True)
    opt = create(name, [x], constraint=sets.Simplex(), **({"k": 0.1} if name == "storm" else {}))
    target = torch.tensor([0.7, 0.3, 0.0, -0.2, 0.0, 0.0], dtype=torch.float64)

    def closure():
        opt.zero_grad()
        loss = (x - target).square().sum()
        loss.backward()
        return loss

    losses = [opt.step(closure).item() for _ in range(120)]
    assert losses[-1] < losses[0]
    assert opt.feasibility() < 1e-12


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        ({"matrix": "DampedLBFGS", "constraint": sets.NonNegative()}, "needs H_t to be diagonal"),
        ({"matrix": "DampedLBFGS", "penalty": penalties.L1(1.0)}, "needs H_t to be diagonal"),
        ({"iterate": "Nigt", "constraint": sets.NonNegative()}, "may lie outside of the set"),
        ({"schedule": schedules.Constant(mu=2.0), "constraint": sets.NonNegative()}, "leaves the set if μ is larger"),
        ({"constraint": sets.NuclearBall(1.0)}, "GradientNorm"),
        ({"constraint": sets.Simplex(), "penalty": penalties.L1(1.0)}, "Simplex does not"),
        ({"constraint": "Simplx"}, "did you mean 'Simplex'"),
    ],
)
def test_what_makes_no_sense_is_refused_with_the_reason(options, reason):
    with pytest.raises(ValueError, match=reason):
        SuperAdam([torch.nn.Parameter(torch.ones(2, 2))], **options)


def test_a_matrix_set_works_with_a_scalar_matrix():
    W = torch.nn.Parameter(3 * torch.randn(4, 5))
    opt = SuperAdam([W], lr=0.1, matrix="GradientNorm", constraint=sets.SpectralBall(1.0))
    assert torch.linalg.matrix_norm(W.detach(), 2) <= 1 + 1e-5
    for _ in range(50):
        opt.zero_grad()
        (W - 2).square().sum().backward()
        opt.step()
    assert torch.linalg.matrix_norm(W.detach(), 2) <= 1 + 1e-5


def test_constraints_survive_a_checkpoint(tmp_path):
    """Tensors in the options too; a checkpoint with another set is refused."""
    bound = torch.tensor([0.1, 0.2, 0.3])
    x = torch.nn.Parameter(torch.ones(3))
    opt = SuperAdam([x], constraint=sets.Box(0.0, bound), penalty=penalties.L1(0.1))
    x.grad = torch.ones(3)
    opt.step()
    torch.save(opt.state_dict(), tmp_path / "opt.pt")
    saved = torch.load(tmp_path / "opt.pt", weights_only=True)
    other = SuperAdam(
        [torch.nn.Parameter(x.detach().clone())], constraint=sets.Box(0.0, 9.0), penalty=penalties.L1(9.0)
    )
    other.load_state_dict(saved)
    assert torch.equal(other.param_groups[0]["constraint"]["hi"], bound)
    with pytest.raises(ValueError, match="constraint=Box there and constraint=None here"):
        SuperAdam([torch.nn.Parameter(torch.ones(3))], penalty=penalties.L1(0.1)).load_state_dict(saved)


def test_a_group_that_cannot_be_put_into_its_set_is_refused():
    opt = SuperAdam([torch.nn.Parameter(torch.ones(2))])
    bad = torch.nn.Parameter(torch.tensor([1.0, float("nan")]))
    with pytest.raises(ValueError, match="must be finite"):
        opt.add_param_group({"params": [bad], "constraint": sets.Simplex()})
    assert len(opt.param_groups) == 1


def test_a_set_assigned_in_mid_training_starts_anew():
    """The roots of the last set are not used where there are more equations now, or fewer."""
    torch.manual_seed(0)
    start, grads = torch.randn(4, 3), torch.randn(2, 4, 3)
    points = []
    for forget in (False, True):
        p = start.clone().requires_grad_()
        opt = SuperAdam([p], lr=1.0, constraint=sets.L1Ball(1.0))
        p.grad = grads[0].clone()
        opt.step()
        assert opt.state[p]["root"].shape == (1, 1)
        if forget:
            del opt.state[p]["root"]
        opt.param_groups[0]["constraint"] = sets.L1Ball(0.1, dim=-1)
        p.grad = grads[1].clone()
        opt.step()
        points.append(p.detach())
    assert torch.equal(*points)
