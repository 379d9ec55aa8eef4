"""Every diagonal and scalar matrix has its formula, in any composition; so has a matrix of one's own."""

import copy
import dataclasses
import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from pairs import pairs
from problems import Stochastic, SuperAdam, train
from superadam import estimators, iterates, matrices, reference, schedules
from superadam.lists import norm2

SAMPLES = list(range(15))


def equal(actual, expected, tol=1e-9):
    torch.testing.assert_close(actual, expected, rtol=tol, atol=tol)


# ----------------------------------------------------------------------------- line 4, written again for every matrix
#
# rule(matrix) makes rule(t, newest, g): the diagonal of H_t as the matrix's formula has it. A rule may keep what it
# likes between calls, which come once for each t, in order.


def second_moment(o):
    v = 0.0

    def rule(t, newest, g):
        nonlocal v
        v = o.beta * v + (1 - o.beta) * newest**2
        return (v / (1 - o.beta**t) if o.bias_correction else v).sqrt() + o.lam

    return rule


def belief(o):
    m = v = 0.0

    def rule(t, newest, g):
        nonlocal m, v
        m = o.beta1 * m + (1 - o.beta1) * newest
        v = o.beta2 * v + (1 - o.beta2) * (newest - m) ** 2 + o.eps
        return (v / (1 - o.beta2**t) if o.bias_correction else v).sqrt() + o.lam

    return rule


def adagrad(o):
    total = 0.0

    def rule(t, newest, g):
        nonlocal total
        total = total + newest**2
        return torch.sqrt((o.v_0 + total) / (t if o.mean else 1)) + o.lam

    return rule


def sc_adagrad(o):
    v = 0.0

    def rule(t, newest, g):
        nonlocal v
        v = v + newest**2
        return v + o.xi1 * torch.exp(-o.xi2 * v)

    return rule


def adadelta(o):
    v = u = 0.0

    def rule(t, newest, g):
        nonlocal v, u
        v = o.rho * v + (1 - o.rho) * newest**2
        H = torch.sqrt(v + o.eps) / math.sqrt(o.eps) if t == 1 else torch.sqrt(v + o.eps) / torch.sqrt(u + o.eps)
        u = o.rho * u + (1 - o.rho) * (g / H) ** 2
        return H

    return rule


def amsgrad(o):
    v, v_max = 0.0, None

    def rule(t, newest, g):
        nonlocal v, v_max
        v = o.beta * v + (1 - o.beta) * newest**2
        v_max = v if v_max is None else torch.maximum(v_max, v)
        v_hat = v_max / (1 - o.beta**t) if o.bias_correction else v_max
        return (v_hat**0.5 + o.lam) ** (2 * o.power) if o.lam_inside else v_hat**o.power + o.lam

    return rule


def cautious(o):
    v = 0.0

    def rule(t, newest, g):
        nonlocal v
        v = o.beta * v + (1 - o.beta) * newest**2
        H = (v / (1 - o.beta**t) if o.bias_correction else v).sqrt() + o.lam
        return torch.where(newest * g > 0, H, o.kappa * H)

    return rule


def past_second_moment(o):
    v = None

    def rule(t, newest, g):
        nonlocal v
        if v is None:
            v = newest**2
            return torch.full_like(v, torch.inf)
        H = torch.maximum(v.sqrt().clamp(min=o.lam), newest.abs() / (t - 1) ** o.power)
        v = o.beta * v + (1 - o.beta) * newest**2
        return H

    return rule


def yogi(o):
    v = o.v_0

    def rule(t, newest, g):
        nonlocal v
        v = v - (1 - o.beta) * torch.sign(v - newest**2) * newest**2
        return (v / (1 - o.beta**t) if o.bias_correction else v).sqrt() + o.lam

    return rule


def adabound(o):
    v = 0.0

    def rule(t, newest, g):
        nonlocal v
        v = o.beta * v + (1 - o.beta) * newest**2
        rate = 1 / ((v / (1 - o.beta**t) if o.bias_correction else v).sqrt() + o.lam)
        s = 1 - o.beta if o.speed is None else o.speed
        return 1 / rate.clamp(o.final * (1 - 1 / (s * t + 1)), o.final * (1 + 1 / (s * t)))

    return rule


def identity(o):
    return lambda t, newest, g: torch.ones_like(g)


def accumulated_norm(o):
    squares = []

    def rule(t, newest, g):
        squares.append(newest.dot(newest))
        total = o.omega + sum(squares[:-1] if o.past else squares)
        return total**o.power / o.k * torch.ones_like(g)

    return rule


def estimate_norm(o):
    return lambda t, newest, g: o.scale * torch.clamp(g.norm() ** o.power, min=o.floor) * torch.ones_like(g)


def gradient_norm(o):
    b = 0.0

    def rule(t, newest, g):
        nonlocal b
        b = o.beta * b + (1 - o.beta) * newest.norm()
        return (b + o.lam) * torch.ones_like(g)

    return rule


def belief_norm(o):
    m = b = 0.0

    def rule(t, newest, g):
        nonlocal m, b
        m = o.beta1 * m + (1 - o.beta1) * newest
        b = o.beta2 * b + (1 - o.beta2) * (newest - m).norm()
        return (b + o.lam) * torch.ones_like(g)

    return rule


def sign(o):
    return lambda t, newest, g: torch.clamp(g.abs(), min=o.lam)


def infinity_norm(o):
    u = torch.zeros(())

    def rule(t, newest, g):
        nonlocal u
        u = torch.maximum(o.beta * u, newest.abs() + o.lam)
        return u

    return rule


def rectified(o):
    v = 0.0

    def rule(t, newest, g):
        nonlocal v
        v = o.beta * v + (1 - o.beta) * newest**2
        most = 2 / (1 - o.beta) - 1
        rho = most - 2 * t * o.beta**t / (1 - o.beta**t)
        if rho <= 5:
            return torch.ones_like(g)
        r = math.sqrt((rho - 4) * (rho - 2) * most / ((most - 4) * (most - 2) * rho))
        return (v.sqrt() + o.lam) / math.sqrt(1 - o.beta**t) / r

    return rule


def centered(o):
    v = m = 0.0

    def rule(t, newest, g):
        nonlocal v, m
        v, m = o.beta * v + (1 - o.beta) * newest**2, o.beta * m + (1 - o.beta) * newest
        return torch.clamp(v - m**2, min=0.0).sqrt() + o.lam

    return rule


def resilient(o):
    delta, last = torch.ones(()), torch.zeros(())

    def rule(t, newest, g):
        nonlocal delta, last
        agree = newest * last
        delta = delta * torch.where(agree > 0, torch.tensor(o.grow).to(g), torch.ones_like(g))
        delta = delta * torch.where(agree < 0, torch.tensor(o.shrink).to(g), torch.ones_like(g))
        delta = delta.clamp(o.least / 0.01, o.most / 0.01)  # γ is 0.01 below
        last = torch.where(agree < 0, torch.zeros_like(g), newest)
        return torch.where(last == 0, torch.inf, g.abs().clamp(min=1e-300) / delta)

    return rule


RULES = {
    "Centered": centered,
    "Rprop": resilient,
    "Sign": sign,
    "Sophia": sign,  # whose h stays zero without opt.observe()
    "Adamax": infinity_norm,
    "Adopt": past_second_moment,
    "RAdam": rectified,
    "SecondMoment": second_moment,
    "Belief": belief,
    "AdaGrad": adagrad,
    "SCAdaGrad": sc_adagrad,
    "AdaDelta": adadelta,
    "AMSGrad": amsgrad,
    "Cautious": cautious,
    "Yogi": yogi,
    "AdaBound": adabound,
    "Identity": identity,
    "AccumulatedNorm": accumulated_norm,
    "EstimateNorm": estimate_norm,
    "GradientNorm": gradient_norm,
    "BeliefNorm": belief_norm,
}
CASES = {"GradientNorm": "2", "BarzilaiBorwein": "3", "BeliefNorm": "4b"}


def test_every_matrix_of_this_kind_is_drawn():
    """All but those that are not diagonal, and H → 0, which has tests of its own."""
    known = {name for name, part in matrices.Matrix._names.items() if name in matrices.__all__}
    kinds = {name: getattr(matrices, name) for name in known - {"ByShape", "Zero"}}
    diagonal = {name for name, kind in kinds.items() if kind.is_diagonal and not kind.per_tensor}
    assert set(RULES) | set(CASES) == diagonal == set(MATRICES)


# ------------------------------------------------------------------------------------------------- random compositions


def number(low, high):
    return st.floats(low, high, allow_nan=False)


BETA = st.sampled_from([0.0, 0.5, 0.9, 0.99, 0.999])
LAM = st.sampled_from([0.05, 0.2, 1.0])  # far from zero, so that rounding is not amplified
FLAG = st.booleans()
MATRICES = {
    "Centered": st.builds(matrices.Centered, st.sampled_from([0.5, 0.9, 0.99]), LAM),
    "Rprop": st.builds(
        matrices.Rprop, st.sampled_from([1.25, 1.5]), st.sampled_from([0.25, 0.5]), most=number(0.02, 1)
    ),
    "Sign": st.builds(matrices.Sign, LAM),
    "Sophia": st.builds(matrices.Sophia, BETA, lam=LAM),
    "Adamax": st.builds(matrices.Adamax, BETA, LAM),
    "Adopt": st.builds(matrices.Adopt, BETA, LAM, st.sampled_from([0.0, 0.25])),
    "RAdam": st.builds(matrices.RAdam, BETA, LAM),
    "SecondMoment": st.builds(matrices.SecondMoment, BETA, LAM, FLAG),
    "Belief": st.builds(matrices.Belief, BETA, BETA, LAM, st.sampled_from([0.0, 1e-3]), FLAG),
    "AdaGrad": st.builds(matrices.AdaGrad, LAM, st.sampled_from([0.0, 0.5]), FLAG),
    "SCAdaGrad": st.builds(matrices.SCAdaGrad, number(0.2, 2), number(0, 1)),
    "AdaDelta": st.builds(matrices.AdaDelta, BETA, number(0.01, 1)),
    "AMSGrad": st.builds(matrices.AMSGrad, BETA, LAM, number(0.05, 0.5) | st.just(0.5), FLAG, FLAG),
    "Cautious": st.builds(matrices.Cautious, BETA, LAM, st.sampled_from([1.0, 2.0, 100.0]), FLAG),
    "Yogi": st.builds(matrices.Yogi, BETA, LAM, st.sampled_from([0.0, 1e-6, 0.5]), FLAG),
    "AdaBound": st.builds(matrices.AdaBound, BETA, LAM, number(0.1, 5), st.none() | number(0.01, 0.9), FLAG),
    "Identity": st.builds(matrices.Identity),
    "AccumulatedNorm": st.builds(matrices.AccumulatedNorm, number(0.2, 0.8), number(0.5, 50), number(0.3, 3), FLAG),
    "EstimateNorm": st.builds(matrices.EstimateNorm, number(0.2, 1), number(0.1, 5), number(0.3, 3)),
    "GradientNorm": st.builds(matrices.GradientNorm, BETA, lam=LAM),
    "BarzilaiBorwein": st.builds(matrices.BarzilaiBorwein, lam=LAM),
    "BeliefNorm": st.builds(matrices.BeliefNorm, BETA, BETA, lam=LAM),
}
SCHEDULES = st.one_of(
    st.builds(
        schedules.Paper, number(0.3, 3), number(0, 200), st.none() | number(0.5, 50), st.sampled_from([0.5, 0.9, 1.0])
    ),
    st.builds(schedules.Constant, number(0.1, 1), number(0.02, 1), decay=st.sampled_from([0.0, 0.3])),
    st.builds(schedules.BiasCorrected, st.sampled_from([0.0, 0.5, 0.9, 0.99]), st.sampled_from([0.0, 0.5, 1.0])),
)
TAU = st.sampled_from([0.0, 1.0]) | number(0, 1)
SPLITS = [[[0, 1, 2, 3, 4, 5]], [[0], [1, 2], [3, 4, 5]], [[5, 3, 1], [4, 2, 0]]]


@st.composite
def compositions(draw):
    """Options of `SuperAdam`, and the weight α of a corrected gradient."""
    matrix = draw(MATRICES[draw(st.sampled_from(sorted(MATRICES)))])
    tau, alpha = draw(TAU), None
    # Case 3 with a corrected gradient: see zoo/test_compositions.py, test_curvature_does_not_depend_on_the_estimator.
    if draw(FLAG) and matrix.spec()["type"] != "BarzilaiBorwein":
        alpha = draw(number(0.05, 1))
        options = {
            "estimator": estimators.Mars(tau, alpha, bound=None),
            "schedule": schedules.Constant(draw(number(0.1, 1)), alpha),
        }
    else:
        options = {"tau": tau, "schedule": draw(SCHEDULES)}
        if draw(FLAG):
            options = {"estimator": estimators.Recursive(tau), "schedule": options["schedule"]}
    return {**options, "matrix": matrix, "foreach": draw(FLAG)}, tau, alpha


def weights(schedule, tau):
    """μ and α as the papers have them, or nothing where the reference has the paper's own."""
    o = schedule
    if isinstance(o, schedules.Paper):
        return {"k": o.k, "m": o.m, "c": o.c, "cap": o.cap}
    if isinstance(o, schedules.Constant):
        return {"mu": lambda t: o.mu / (1 + (t - 1) * o.decay), "alpha": lambda t: o.alpha}
    return {"mu": lambda t: 1 / t**o.power, "alpha": lambda t: (1 - o.beta) / (1 - o.beta**t)}


def seen_by_line_4(rule, alpha):
    """With a corrected gradient line 4 sees c_t, where g_t = (1-α) g_{t-1} + α c_t and c_1 = g_1."""
    last = None

    def corrected(t, newest, g):
        nonlocal last
        c = g if last is None else (g - (1 - alpha) * last) / alpha
        last = g
        return rule(t, c, g)

    return corrected


def options_of_case(matrix):
    return {f.name: getattr(matrix, f.name) for f in dataclasses.fields(matrix)}


def check_against_reference(options, tau, run, split, *, half_steps=False, problem=None):
    problem = problem or Stochastic(samples=len(SAMPLES))
    params = problem.params()
    groups = [{"params": [params[i] for i in part]} for part in split]
    opt = SuperAdam(groups, **options)
    points, last = train(problem, opt, params, SAMPLES, half_steps=half_steps)
    assert opt.two_point == (tau > 0 or options["matrix"].two_point)
    for n, x in enumerate(points, start=1):
        equal(x, run.x[n if opt.two_point else n + 1])
    equal(last, run.x[len(SAMPLES) + 1])
    return opt


@given(composition=compositions(), split=st.sampled_from(SPLITS), half_steps=FLAG)
def test_a_composition_is_algorithm_1_with_these_parts(composition, split, half_steps):
    options, tau, alpha = composition
    problem = Stochastic(samples=len(SAMPLES))
    name = options["matrix"].spec()["type"]
    more = {}
    if alpha is None and name in CASES:
        case, more = CASES[name], options_of_case(options["matrix"])
    else:
        case = RULES[name](options["matrix"])
        case = case if alpha is None else seen_by_line_4(case, alpha)
    run = reference.super_adam(
        problem.grad,
        problem.x_1,
        SAMPLES,
        case=case,
        tau=tau,
        gamma=0.01,
        **more,
        **weights(options["schedule"], tau),
    )
    check_against_reference({**options, "lr": 0.01}, tau, run, split, half_steps=half_steps, problem=problem)


# -------------------------------------------------------------------------------------------- matrices of one's own


class CubicMoment(matrices.Diagonal):
    """A user's diagonal matrix: ten lines."""

    beta: float = 0.9
    lam: float = 0.1

    buffers = ("v",)

    def update(self, s, grad):
        s.v = self.beta * s.v + (1 - self.beta) * abs(grad) ** 3

    def H(self, s):
        return (s.v / (1 - self.beta**s.t)) ** (1 / 3) + self.lam


def cubic_rule(o):
    v = 0.0

    def rule(t, newest, g):
        nonlocal v
        v = o.beta * v + (1 - o.beta) * newest.abs() ** 3
        return (v / (1 - o.beta**t)) ** (1 / 3) + o.lam

    return rule


class LargestNorm(matrices.Scalar):
    """A user's multiple of the identity: the largest gradient so far, and how often it grew."""

    lam: float = 0.1

    scalars = ("b", "grown")

    def measure(self, s, grad):
        return (norm2(grad),)

    def reduce(self, s, totals):
        norm = totals[0].sqrt()
        s.grown += norm > s.b
        s.b = torch.maximum(s.b, norm)

    def H(self, s):
        return s.b + 0.01 * s.grown + self.lam


def largest_rule(o):
    b = grown = 0

    def rule(t, newest, g):
        nonlocal b, grown
        norm = newest.norm().item()
        b, grown = max(b, norm), grown + (norm > b)
        return (b + 0.01 * grown + o.lam) * torch.ones_like(g)

    return rule


OWN = {"diagonal": (CubicMoment(beta=0.8), cubic_rule), "scalar": (LargestNorm(), largest_rule)}


@pytest.mark.parametrize(
    ("kind", "tau", "half_steps", "foreach"), pairs(OWN, [0.0, 0.6, 1.0], [False, True], [False, True])
)
def test_a_matrix_of_ones_own_equals_the_reference(kind, tau, half_steps, foreach):
    matrix, rule = OWN[kind]
    problem = Stochastic(samples=len(SAMPLES))
    run = reference.super_adam(problem.grad, problem.x_1, SAMPLES, case=rule(matrix), tau=tau, gamma=0.1)
    options = {"lr": 0.1, "tau": tau, "matrix": matrix, "schedule": schedules.Paper(), "foreach": foreach}
    for split in SPLITS:
        check_against_reference(options, tau, run, split, half_steps=half_steps, problem=problem)


@pytest.mark.parametrize(("kind", "tau", "half_steps", "foreach"), pairs(OWN, [0.0, 1.0], [False, True], [False, True]))
def test_a_matrix_of_ones_own_can_be_saved_halfway(kind, tau, half_steps, foreach):
    problem = Stochastic()
    options = {"lr": 0.1, "tau": tau, "matrix": OWN[kind][0], "foreach": foreach}
    params = problem.params()
    opt = SuperAdam(params, **options)
    for i in SAMPLES:
        opt.step(problem.closure(opt, params, i))
    copies = [p.detach().clone().requires_grad_() for p in params]
    resumed = SuperAdam(copies, **options)
    resumed.load_state_dict(copy.deepcopy(opt.state_dict()))
    rest = list(range(15, 30))
    first, _ = train(problem, opt, params, rest, half_steps=half_steps)
    second, _ = train(problem, resumed, copies, rest, half_steps=half_steps)
    assert all(map(torch.equal, first, second))
    assert torch.equal(problem.join(params), problem.join(copies))


def test_a_matrix_of_ones_own_is_found_by_its_name():
    x = torch.zeros(2, requires_grad=True)
    assert SuperAdam([x], matrix="cubic_moment").param_groups[0]["matrix"]["type"] == "CubicMoment"
    assert SuperAdam([x], matrix={"type": "LargestNorm", "lam": 0.3}).param_groups[0]["matrix"]["lam"] == 0.3


class Seen(matrices.Diagonal):
    """How often a coordinate had a gradient, as sparse problems count it: comparisons, masks, where."""

    buffers = ("n", "hits")

    def update(self, s, grad):
        s.n = s.n + (grad != 0)
        s.hits = s.hits + torch.where(grad == 0, s.n * 0, s.n * 0 + 1)

    def H(self, s):
        return 1 + s.n.sqrt() + s.hits


def test_comparisons_mean_the_same_in_lists():
    """`grad` is a tensor or a list of tensors that takes the same element-wise operations: == and != are such."""
    ends = []
    for foreach in (False, True):
        params = [torch.ones(2, dtype=torch.float64, requires_grad=True) for _ in range(2)]
        opt = SuperAdam(params, lr=1.0, matrix=Seen(), foreach=foreach)
        for _ in range(3):
            opt.zero_grad()
            (params[0][0] ** 2 + params[1].square().sum()).backward()
            opt.step()
        assert opt.state[params[0]]["n"].tolist() == [3.0, 0.0]
        assert opt.state[params[0]]["hits"].tolist() == [3.0, 0.0]
        ends.append(torch.cat(params).detach())
    equal(ends[0], ends[1])


class FromOne(matrices.Diagonal):
    """All its state starts at one."""

    buffers = ("v",)

    def initial(self, name):
        return 1.0

    def update(self, s, grad):
        s.v = 0.9 * s.v + 0.1 * grad * grad

    def H(self, s):
        return s.v.sqrt()


@pytest.mark.parametrize(
    "options",
    [
        {"schedule": schedules.Constant(alpha=0.1, first=0.1)},
        {"schedule": schedules.Constant(alpha=0.1), "iterate": iterates.Nigt()},
        {"schedule": schedules.Constant(alpha=0.1), "estimator": estimators.Mars(previous_batch=True)},
        {"schedule": schedules.Constant(alpha=1.0), "estimator": estimators.Summed(), "iterate": iterates.SAdaGrad()},
    ],
    ids=lambda options: type(options.get("estimator", estimators.Recursive())).__name__,
)
def test_a_matrix_fills_its_own_buffers_only(options):
    """`initial` says what the matrix's buffers start from; those of the estimator start at zero."""
    x = torch.tensor([3.0, -2.0], dtype=torch.float64, requires_grad=True)
    opt = SuperAdam([x], lr=0.1, matrix=FromOne(), **options)
    x.square().sum().backward()
    grad, start = x.grad.clone(), x.detach().clone()
    opt.step()
    opt.flush()
    clipped = grad / grad.norm() if isinstance(options.get("estimator"), estimators.Mars) else grad
    v = 0.9 + 0.1 * clipped**2
    equal(opt.state[x]["v"], v)
    equal(x.detach(), start - 0.1 * options["schedule"].first * clipped / v.sqrt())
