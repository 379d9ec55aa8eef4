"""Learning rates that change, groups that differ, gradients that come and go: against a loop of plain formulas."""

import dataclasses
import inspect
import math
import re

import pytest
import torch
from torch.optim.lr_scheduler import LambdaLR, OneCycleLR, ReduceLROnPlateau, StepLR

from pairs import pairs
from problems import CASES, LR, Stochastic
from superadam import SuperAdam, create, estimators, matrices, options, schedules, twice, zoo

SHAPES = [(3,), (2, 2), ()]
TAUS = pytest.mark.parametrize("tau", [0.0, 1.0])
EVERY_CASE = pytest.mark.parametrize("case", CASES)
DEFAULTS = {"tau": 0.0, "case": "1", "lr": 0.01, "mu": None, "alpha": None, "beta": 0.999}
DEFAULTS |= {"weight_decay": 0.0, "clip": None, "maximize": False}


def equal(actual, expected, tol=1e-11):
    torch.testing.assert_close(actual, expected, rtol=tol, atol=tol)


def plain_loop(problem, blocks, samples, *, lrs=None, active=lambda n, i: True):
    """x_1, …, x_{T+1} as lists of tensors, and g_1, …, g_T, with an own set of options for each tensor.

    `lrs[n - 1]` is the γ in force at batch n, if it is not that of the blocks. `active(n, i)` says whether batch n has
    a gradient for tensor i. Norms run over the tensors with a gradient and the same (case, beta); a clip's, with the
    same bound.
    """
    blocks = [{**DEFAULTS, **block} for block in blocks]
    two_point = any(block["tau"] > 0 or block["case"] == "3" for block in blocks)
    x, gs = [[p.detach() for p in problem.params()]], []
    t, g = [0] * len(blocks), [None] * len(blocks)
    v, mean = ([torch.zeros_like(p) for p in x[0]] for _ in range(2))
    b, b_steps = {}, {}

    def gradients(point, sample):
        flat = problem.grad(problem.join(point), sample)
        pieces = flat.split([p.numel() for p in point])
        return [
            (-1 if block["maximize"] else 1) * piece.reshape(p.shape)
            for piece, p, block in zip(pieces, point, blocks, strict=True)
        ]

    for n, sample in enumerate(samples, start=1):
        here = [i for i in range(len(blocks)) if active(n, i)]
        newest = gradients(x[-1], sample)
        older = gradients(x[-2], sample) if two_point and n > 1 else None
        paired = [i for i in here if older is not None and t[i] > 0]

        # line 11, on each tensor's own count of batches
        for i in here:
            t[i] += 1
            tau, mu = blocks[i]["tau"], blocks[i]["mu"]
            if t[i] == 1:
                g[i] = newest[i]
                continue
            if mu is None:
                before = 1 / (100 + t[i] - 1) ** (1 / 3 if tau > 0 else 1 / 2)
                alpha = min(40 * before**2 if tau > 0 else 20 * before, 0.9)
            else:
                alpha = blocks[i]["alpha"]
            correction = newest[i] - older[i] if i in paired else 0
            g[i] = alpha * newest[i] + (1 - alpha) * (g[i] + tau * correction)
        for bound in {blocks[i]["clip"] for i in here} - {None}:
            clipped = [i for i in here if blocks[i]["clip"] == bound]
            norm = math.sqrt(sum(g[i].square().sum().item() for i in clipped))
            for i in clipped:
                g[i] = g[i] * min(1.0, bound / norm)

        # line 4
        for key in {(blocks[i]["case"], blocks[i]["beta"]) for i in here}:
            case, beta = key
            mine = [i for i in here if (blocks[i]["case"], blocks[i]["beta"]) == key]
            for i in mine:
                mean[i] = 0.9 * mean[i] + 0.1 * newest[i]
                surprise = newest[i] - mean[i] if case in ("4a", "4b") else newest[i]
                v[i] = beta * v[i] + (1 - beta) * surprise.square()
            if case in ("2", "4b"):
                what = newest if case == "2" else [new - m for new, m in zip(newest, mean, strict=True)]
                norm = math.sqrt(sum(what[i].square().sum().item() for i in mine))
                b[key] = beta * b.get(key, 0.0) + (1 - beta) * norm
            if case == "3":
                dx = {i: x[-1][i] - x[-2][i] for i in mine if i in paired}
                dx2 = sum(d.square().sum().item() for d in dx.values())
                if dx2 > 0:
                    b[key] = abs(sum(((newest[i] - older[i]) * d).sum().item() for i, d in dx.items())) / dx2
                elif key not in b_steps:
                    b[key] = math.sqrt(sum(newest[i].square().sum().item() for i in mine))
                b_steps[key] = n

        # lines 9 and 10, with decoupled decay: x_{t+1} = (1 - γ μ_t w) x_t - γ μ_t H⁻¹ g
        step = list(x[-1])
        for i in here:
            block = blocks[i]
            mu = block["mu"] if block["mu"] is not None else 1 / (100 + t[i]) ** (1 / 3 if block["tau"] > 0 else 1 / 2)
            eta = (block["lr"] if lrs is None else lrs[n - 1]) * mu
            H = (v[i].sqrt() if block["case"] in ("1", "4a") else b[block["case"], block["beta"]]) + 5e-4
            step[i] = (1 - eta * block["weight_decay"]) * x[-1][i] - eta * g[i] / H
        x.append(step)
        gs.append(list(g))
    return x, gs


def matrix_of(case, beta=0.999):
    name = {"1": "beta", "2": "beta", "4a": "beta2", "4b": "beta2"}.get(case)
    return dataclasses.replace(CASES[case], **{name: beta}) if name else CASES[case]


def options_of(block):
    """The options of a block as SuperAdam's."""
    block = {**DEFAULTS, **block}
    case, beta, mu, alpha = (block.pop(name) for name in ("case", "beta", "mu", "alpha"))
    schedule = schedules.Paper() if mu is None else schedules.Constant(mu=mu, alpha=alpha)
    return {**block, "matrix": matrix_of(case, beta), "schedule": schedule}


def closure_of(problem, opt, params, sample, n=0, active=lambda n, i: True):
    """A tensor that is not active takes part in f, but gets no gradient."""

    def closure():
        opt.zero_grad()
        parts = [p if active(n, i) else p.detach() for i, p in enumerate(params)]
        loss = problem.loss(problem.join(parts), sample)
        loss.backward()
        return loss

    return closure


def train(problem, opt, params, samples, *, half_steps=False, after=lambda n: None, active=lambda n, i: True):
    """x after each batch (`after` is called then), and after flush()."""
    points = []
    turns = 2 if half_steps and opt.two_point else 1
    n = 0
    for turn, sample in enumerate(twice(samples) if turns == 2 else samples):
        n = turn // turns + 1
        closure = closure_of(problem, opt, params, sample, n, active)
        if half_steps:
            closure()
            opt.step()
        else:
            opt.step(closure)
        if turn % turns == turns - 1:
            points.append([p.detach().clone() for p in params])
            after(n)
    opt.flush()
    return points, [p.detach().clone() for p in params]


def check(opt, points, last, x):
    """Call n leaves x_{n+1}; with two evaluations it leaves x_n, and flush() brings the last. x[0] is x_1."""
    for n, point in enumerate(points, start=1):
        equal(point, x[n - 1 if opt.two_point else n])
    equal(last, x[len(points)])
    moved = max((p - q).abs().max() for p, q in zip(x[0], x[-1], strict=True))
    assert moved > 0.01, "nothing but a stand-still was compared"


# -------------------------------------------------------------------------------------------------- schedulers

METRICS = [1.0, 0.9, 0.95, 0.96, 0.97, 0.5, 0.6, 0.7, 0.8, 0.9] * 2

SCHEDULERS = {
    "StepLR": lambda opt: StepLR(opt, step_size=3, gamma=0.5),
    "OneCycleLR": lambda opt: OneCycleLR(opt, max_lr=0.03, total_steps=21, cycle_momentum=False),
    "ReduceLROnPlateau": lambda opt: ReduceLROnPlateau(opt, factor=0.3, patience=1),
    "LambdaLR": lambda opt: LambdaLR(opt, lambda n: 1 / (1 + n)),
}


def advance(scheduler, n):
    scheduler.step(METRICS[n - 1]) if isinstance(scheduler, ReduceLROnPlateau) else scheduler.step()


def rates(name, lr):
    """γ at batches 1, 2, …, from the formula, or from torch's SGD where there is none."""
    if name == "StepLR":
        return [lr * 0.5 ** (n // 3) for n in range(20)]
    if name == "LambdaLR":
        return [lr / (1 + n) for n in range(20)]
    sgd = torch.optim.SGD([torch.zeros(1, requires_grad=True)], lr=lr)
    scheduler, found = SCHEDULERS[name](sgd), []
    for n in range(1, 21):
        found.append(sgd.param_groups[0]["lr"])
        sgd.step()
        advance(scheduler, n)
    return found


def tensor_stays(name):
    """Whether this torch's scheduler writes into a tensor; ReduceLROnPlateau of 2.6 and 2.9 puts a number there."""
    sgd = torch.optim.SGD([torch.zeros(1, requires_grad=True)], lr=torch.tensor(0.01), foreach=True)
    scheduler = SCHEDULERS[name](sgd)
    sgd.step()
    for n in range(1, 6):
        advance(scheduler, n)
    return isinstance(sgd.param_groups[0]["lr"], torch.Tensor)


@pytest.mark.parametrize("half_steps", [False, True], ids=["closure", "half-steps"])
@pytest.mark.parametrize("tensor_lr", [False, True], ids=["number", "tensor"])
@pytest.mark.parametrize("scheduler", SCHEDULERS)
@TAUS
def test_a_move_uses_the_lr_of_its_batch(tau, scheduler, tensor_lr, half_steps):
    """The move from x_n to x_{n+1} has the γ in force at call n, though for τ = 1 it is taken at call n + 1."""
    problem = Stochastic(SHAPES)
    lrs = rates(scheduler, 0.01)
    assert len({round(lr, 9) for lr in lrs}) > 2
    x, _ = plain_loop(problem, [{"tau": tau}] * 3, range(20), lrs=lrs)
    params = problem.params()
    lr = torch.tensor(0.01, dtype=torch.float64) if tensor_lr else 0.01
    opt = SuperAdam(params, lr=lr, tau=tau, matrix="SecondMoment", schedule="Paper")
    schedule = SCHEDULERS[scheduler](opt)
    points, last = train(problem, opt, params, range(20), half_steps=half_steps, after=lambda n: advance(schedule, n))
    check(opt, points, last, x)
    tensors = tensor_lr and tensor_stays(scheduler)
    assert isinstance(opt.param_groups[0]["lr"], torch.Tensor) == tensors


@EVERY_CASE
@TAUS
def test_schedulers_with_every_case(case, tau):
    problem = Stochastic(SHAPES)
    lrs = rates("StepLR", LR[case])
    x, _ = plain_loop(problem, [{"tau": tau, "case": case}] * 3, range(20), lrs=lrs)
    params = problem.params()
    opt = SuperAdam(params, lr=LR[case], tau=tau, matrix=CASES[case], schedule="Paper")
    schedule = SCHEDULERS["StepLR"](opt)
    check(opt, *train(problem, opt, params, range(20), after=lambda n: advance(schedule, n)), x)


# ------------------------------------------------------------------------------------------------------ groups


@pytest.mark.parametrize("foreach", [False, True], ids=["per-tensor", "foreach"])
@EVERY_CASE
@TAUS
def test_a_group_added_in_mid_training(case, tau, foreach):
    """The newcomer starts its own count; a scalar matrix goes on with the b that all share."""
    problem = Stochastic(SHAPES)

    def active(n, i):
        return i < 2 or n > 10

    x, _ = plain_loop(problem, [{"tau": tau, "case": case, "lr": LR[case]}] * 3, range(20), active=active)
    params = problem.params()
    opt = SuperAdam(params[:2], lr=LR[case], tau=tau, matrix=CASES[case], schedule="Paper", foreach=foreach)
    # the pending move to x_11 is taken at call 11, when the third tensor is there
    last = train(
        problem,
        opt,
        params,
        range(20),
        active=active,
        after=lambda n: opt.add_param_group({"params": [params[2]]}) if n == 10 else None,
    )
    check(opt, *last, x)
    assert opt.state[params[2]]["step"] == 10
    if CASES[case].scalars:
        assert opt.state[params[2]]["b"] is opt.state[params[0]]["b"]


OPTIONS = {
    "lr": {"lr": 0.002},
    "tau": {"tau": 1.0},
    "tau between": {"tau": 0.3},
    "matrix": {"case": "2", "lr": 0.005},
    "matrix 3": {"case": "3", "lr": 0.05},
    "matrix 4a": {"case": "4a"},
    "matrix 4b": {"case": "4b", "lr": 0.005},
    "matrix option": {"beta": 0.9},
    "schedule": {"mu": 0.2, "alpha": 0.3},
    "weight_decay": {"weight_decay": 0.5},
    "clip": {"clip": 0.3},
    "maximize": {"maximize": True},
}


@pytest.mark.parametrize("foreach", [False, True], ids=["per-tensor", "foreach"])
@pytest.mark.parametrize("option", OPTIONS)
@TAUS
def test_any_option_per_group(tau, option, foreach):
    """One group with the option, one without: each by its own formulas."""
    problem = Stochastic(SHAPES)
    common, special = {"tau": tau}, {"tau": tau, **OPTIONS[option]}
    blocks = [special, common, special]
    x, _ = plain_loop(problem, blocks, range(20))
    params = problem.params()
    groups = [{"params": [params[0], params[2]], **options_of(special)}, {"params": params[1]}]
    opt = SuperAdam(groups, **options_of(common), foreach=foreach)
    check(opt, *train(problem, opt, params, range(20)), x)


def test_every_option_differs():
    """Three groups that have nothing in common."""
    problem = Stochastic(SHAPES)
    blocks = [
        {"tau": 1.0, "case": "4b", "lr": 0.005, "beta": 0.99, "clip": 2.0, "weight_decay": 0.1},
        {"tau": 0.0, "case": "3", "lr": 0.02, "mu": 0.5, "alpha": 0.4, "maximize": True},
        {"tau": 0.3, "case": "1", "lr": 0.02, "beta": 0.9, "clip": 0.5},
    ]
    x, _ = plain_loop(problem, blocks, range(30))
    params = problem.params()
    opt = SuperAdam([{"params": [p], **options_of(b)} for p, b in zip(params, blocks, strict=True)])
    check(opt, *train(problem, opt, params, range(30)), x)


@pytest.mark.parametrize("betas", [(0.9, 0.9, 0.9), (0.9, 0.99, 0.9)], ids=["one b", "two b"])
@pytest.mark.parametrize("case", ["2", "4b"])
@TAUS
def test_norms_run_over_the_groups_with_an_equal_matrix(case, tau, betas):
    problem = Stochastic(SHAPES)
    blocks = [{"tau": tau, "case": case, "beta": beta, "lr": 0.02 * (i + 1)} for i, beta in enumerate(betas)]
    x, _ = plain_loop(problem, blocks, range(20))
    params = problem.params()
    opt = SuperAdam([{"params": [p], **options_of(b)} for p, b in zip(params, blocks, strict=True)])
    check(opt, *train(problem, opt, params, range(20)), x)
    assert len({id(opt.state[p]["b"]) for p in params}) == len(set(betas))


# --------------------------------------------------------------------------------------- weight decay and clipping


@pytest.mark.parametrize("foreach", [False, True], ids=["per-tensor", "foreach"])
@pytest.mark.parametrize("maximize", [False, True])
@EVERY_CASE
@TAUS
def test_weight_decay_is_decoupled(case, tau, maximize, foreach):
    """x_{t+1} = (1 - γ μ_t w) x_t - γ μ_t H⁻¹ g: it shrinks x for maximisers, too, and never enters g or H."""
    problem = Stochastic(SHAPES)
    block = {"tau": tau, "case": case, "lr": LR[case], "weight_decay": 0.7, "maximize": maximize}
    x, g = plain_loop(problem, [block] * 3, range(20))
    params = problem.params()
    opt = SuperAdam(params, **options_of(block), foreach=foreach)
    check(opt, *train(problem, opt, params, range(20)), x)
    equal([opt.state[p]["g"] for p in params], g[-1])


@pytest.mark.parametrize("foreach", [False, True], ids=["per-tensor", "foreach"])
@pytest.mark.parametrize("bounds", [(0.5, 0.5, 0.5), (0.5, 2.0, 0.5), (0.5, None, 0.5), (1e9, 1e9, 1e9)])
@TAUS
def test_clip_bounds_the_norm_of_g(tau, bounds, foreach):
    """Over all groups with the same bound; g is what is carried on, and a bound above every norm changes nothing."""
    problem = Stochastic(SHAPES)
    blocks = [{"tau": tau, "clip": bound} for bound in bounds]
    x, g = plain_loop(problem, blocks, range(20))
    params = problem.params()
    groups = [{"params": [p], **options_of(b)} for p, b in zip(params, blocks, strict=True)]
    opt = SuperAdam(groups, foreach=foreach)
    norms = []

    def measure(n):
        equal([opt.state[p]["g"] for p in params], g[n - 1])
        for bound in set(bounds) - {None}:
            mine = [opt.state[p]["g"].norm() for p, own in zip(params, bounds, strict=True) if own == bound]
            norms.append(torch.stack(mine).norm() / bound)

    check(opt, *train(problem, opt, params, range(20), after=measure), x)
    assert max(norms) <= 1 + 1e-12
    assert (max(norms) > 1 - 1e-12) == (bounds[0] < 1e9), "the bound is reached"


def test_clip_bounds_the_sum_of_a_pair_and_not_each_gradient():
    """With τ = 1 and g_1 = 0, large gradients of a pair that nearly cancel make a small g, which is left as it is."""
    x = torch.zeros(1, dtype=torch.float64, requires_grad=True)
    opt = SuperAdam([x], tau=1.0, clip=1.0, schedule=schedules.Constant(alpha=1e-6))
    for pair in ([0.0, 0.0], [100.0, 100.5]):
        grads = iter(pair)

        def closure(grads=grads):
            x.grad = torch.full_like(x, next(grads))
            return 0.0

        opt.step(closure)
    expected = 1e-6 * 100.5 + (1 - 1e-6) * (0.0 + 100.5 - 100.0)
    equal(opt.state[x]["g"], torch.tensor([expected], dtype=torch.float64), 1e-9)


# ------------------------------------------------------------------------------------- gradients that come and go

PRESENCE = {
    "late": lambda n, i: i != 1 or n > 7,
    "stops": lambda n, i: i != 1 or n <= 7,
    "pauses": lambda n, i: i != 1 or not 5 <= n <= 9,
    "every other batch": lambda n, i: i != 1 or n % 2 == 0,
    "takes turns": lambda n, i: n % 3 != i,
}


@pytest.mark.parametrize(
    ("case", "tau", "presence", "half_steps", "foreach"),
    pairs(CASES, [0.0, 1.0], PRESENCE, [False, True], [False, True]),
)
def test_gradients_that_come_and_go(case, tau, presence, half_steps, foreach):
    """A tensor is moved by the batches that have a gradient for it, and by no others, not even by weight decay."""
    problem = Stochastic(SHAPES)
    block = {"tau": tau, "case": case, "lr": LR[case], "weight_decay": 0.1}
    active = PRESENCE[presence]
    x, _ = plain_loop(problem, [block] * 3, range(18), active=active)
    params = problem.params()
    opt = SuperAdam(params, **options_of(block), foreach=foreach)
    check(opt, *train(problem, opt, params, range(18), half_steps=half_steps, active=active), x)
    assert opt.state[params[1]]["step"] == sum(active(n, 1) for n in range(1, 19))


# -------------------------------------------------------------------------------------------------- misspellings


@pytest.fixture
def x():
    return torch.zeros(2, requires_grad=True)


@pytest.mark.parametrize(
    ("name", "meant"),
    [
        ("weigth_decay", "weight_decay"),
        ("Tau", "tau"),
        ("metrix", "matrix"),
        ("shedule", "schedule"),
        ("clipping", "clip"),
        ("for_each", "foreach"),
        ("maximise", "maximize"),
        ("capturabel", "capturable"),
    ],
)
def test_unknown_keywords_name_the_nearest(x, name, meant):
    with pytest.raises(TypeError, match=f"unknown option '{name}': did you mean '{meant}'"):
        SuperAdam([x], **{name: 1.0})


def test_unknown_keywords_like_no_other_list_all(x):
    with pytest.raises(TypeError, match=r"unknown option 'xyzzy'.*known: .*clip.*lr.*matrix.*tau.*weight_decay"):
        SuperAdam([x], xyzzy=1)


@pytest.mark.parametrize(
    ("name", "meant"),
    [("weight_deacy", "weight_decay"), ("matrx", "matrix"), ("scheduler", "schedule"), ("maximise", "maximize")],
)
def test_misspelt_group_keys_are_refused(x, name, meant):
    """In the constructor and later; nothing is added."""
    message = f"Unknown option '{name}' in a param group: did you mean '{meant}'"
    with pytest.raises(ValueError, match=message):
        SuperAdam([{"params": [x], name: 0.1}])
    opt = SuperAdam([torch.zeros(1, requires_grad=True)])
    with pytest.raises(ValueError, match=message):
        opt.add_param_group({"params": [x], name: 0.1})
    assert len(opt.param_groups) == 1


def test_keys_of_ones_own_are_kept(x):
    """Through a checkpoint, too; and those that schedulers write are no misspellings."""
    own = {"name": "head", "layer": 3, "lr_mult": 0.5, "initial_lr": 0.1, "max_lr": 0.2, "min_lr": 0.0, "swa_lr": 0.3}
    opt = SuperAdam([{"params": [x], **own}])
    assert own.items() <= opt.param_groups[0].items()
    other = SuperAdam([torch.zeros(2, requires_grad=True)])
    other.load_state_dict(opt.state_dict())
    assert own.items() <= other.param_groups[0].items()


@pytest.mark.parametrize(
    ("name", "meant"),
    [("SecondMomnt", "SecondMoment"), ("gradient_nrm", "GradientNorm"), ("barzilaiborwein", "BarzilaiBorwein")],
)
def test_unknown_matrices_name_the_nearest(x, name, meant):
    with pytest.raises(ValueError, match=f"Unknown matrix '{name}': did you mean '{meant}'"):
        SuperAdam([x], matrix=name)


def test_unknown_matrices_like_no_other_list_all(x):
    with pytest.raises(ValueError, match=r"known: .*BarzilaiBorwein.*Belief.*BeliefNorm.*GradientNorm.*SecondMoment"):
        SuperAdam([x], matrix="xyzzy")


def test_unknown_schedules_and_part_options_name_the_nearest(x):
    with pytest.raises(ValueError, match="Unknown schedule 'Papre': did you mean 'Paper'"):
        SuperAdam([x], schedule="Papre")
    with pytest.raises(ValueError, match="SecondMoment has no option 'bta': did you mean 'beta'"):
        SuperAdam([x], matrix={"type": "SecondMoment", "bta": 0.9})


@pytest.mark.parametrize("choice", [matrices.SecondMoment, 3, ["SecondMoment"]])
def test_what_is_no_matrix_is_refused(x, choice):
    hint = "an instance is expected, not the class" if isinstance(choice, type) else "expected one of"
    with pytest.raises(TypeError, match=f"Invalid matrix.*{hint}"):
        SuperAdam([x], matrix=choice)


@pytest.mark.parametrize("spelling", ["GradientNorm", "gradient_norm", {"type": "GradientNorm", "beta": 0.999}])
def test_a_matrix_by_name_is_the_matrix(x, spelling):
    by_name, by_object = (SuperAdam([x], matrix=m) for m in (spelling, matrices.GradientNorm()))
    assert by_name.param_groups[0]["matrix"] == by_object.param_groups[0]["matrix"]
    assert repr(by_name) == repr(by_object)


@pytest.mark.parametrize(
    ("name", "instead"),
    [
        ("betas", r'create\("adamw", params, betas=…\), or .*matrix=SecondMoment\(beta=…, lam=…\)'),
        ("eps", r'create\("adamw", params, eps=…\), or matrix=SecondMoment\(beta=…, lam=…\)'),
        ("momentum", r'create\("sgd", params, momentum=…\), or schedule=Constant\(alpha=1 - momentum\)'),
        ("amsgrad", r'create\("amsgrad", params\), or matrix=AMSGrad\(beta=…, lam=…\)'),
        ("nesterov", r'create\("sgd", params, momentum=…, nesterov=True\), or estimator=Nesterov\(\)'),
        ("rho", r'create\("adadelta", params, rho=…\)'),
        ("lam", r"matrix=SecondMoment\(beta=…, lam=…\)"),
        ("c", r"schedule=Paper\(k=…, m=…, c=…\)"),
        ("gamma", "lr=…"),
    ],
)
def test_options_of_torch_and_of_parts_say_what_to_write(x, name, instead):
    with pytest.raises(TypeError, match=f"SuperAdam got an unknown option '{name}': write {instead}"):
        SuperAdam([x], **{name: 0.5})


TORCH = [getattr(torch.optim, name) for name in ("SGD", "Adam", "AdamW", "Adagrad", "Adadelta")]


@pytest.mark.parametrize("name", sorted({name for theirs in TORCH for name in inspect.signature(theirs).parameters}))
def test_no_option_of_torch_is_ignored(x, name):
    """In the constructor it is known, or refused; in a group it is known, refused, or asks for nothing."""
    known = {*inspect.signature(SuperAdam).parameters} - {"unknown"}
    if name in known:
        return
    for build in (lambda: SuperAdam([x], **{name: True}), lambda: create("storm", [x], **{name: True})):
        with pytest.raises(TypeError, match=f"unknown option '{name}': write"):
            build()
    with pytest.raises(ValueError, match=f"Unknown option '{name}' in a param group of this composition: write"):
        SuperAdam([{"params": [x], name: True}], matrix="Yogi")  # the default has AdamW's options in its groups


def test_what_to_write_can_be_written(x):
    """The words of the messages, as code."""
    for instead in (*options.OF_TORCH.values(), *options.OF_PARTS.values()):
        for part in re.findall(r"(\w+)=([A-Z]\w+)\(([^)]*)\)", instead):
            kind, name, arguments = part
            fields = re.findall(r"(\w+)=", arguments)
            cls = getattr({"matrix": matrices, "schedule": schedules, "estimator": estimators}[kind], name)
            assert set(fields) <= cls.__dataclass_fields__.keys()
        for name, arguments in re.findall(r'create\("(\w+)", params([^)]*)\)', instead):
            assert set(re.findall(r"(\w+)=", arguments)) <= inspect.signature(getattr(zoo, name)).parameters.keys()
