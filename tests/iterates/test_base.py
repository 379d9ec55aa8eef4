"""Every iterate stays in the set, resumes, and is evaluated at the point that is its result."""

import copy
import gc
import io
import pickle
import warnings

import pytest
import torch

from iterates.every import ITERATES
from problems import Stochastic, equal
from superadam import SuperAdam, iterates, sets

STEPS = 25


@pytest.mark.parametrize("tau", [0.0, 1.0])
@pytest.mark.parametrize("schedule", ["Paper", "BiasCorrected"])
@pytest.mark.parametrize("name", [name for name in ITERATES if name != "ahead"])
def test_all_points_are_feasible(name, schedule, tau):
    problem = Stochastic()
    params = problem.params()
    options = {"iterate": ITERATES[name], "schedule": schedule, "tau": tau, "weight_decay": 0.1}
    opt = SuperAdam(params, lr=0.3, constraint=sets.L2Ball(0.7), **options)
    largest = 0.0
    for n in range(STEPS):
        opt.step(problem.closure(opt, params, n % 50))
        largest = max(largest, *(float(p.detach().norm()) for p in params))
        assert opt.feasibility() < 1e-12
        with opt.at_x():
            assert opt.feasibility() < 1e-12
        with opt.at_x_tilde():
            assert opt.feasibility() < 1e-12
    assert largest > 0.6  # the border is near


def stepped(problem, opt, params, samples, look=None):
    for n in samples:
        opt.step(problem.closure(opt, params, n))
        if look is not None:
            look(opt)


def with_eval(opt):
    opt.eval()
    opt.eval()
    opt.train()


def with_at_x(opt):
    with opt.at_x():
        pass


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("rounding", ["nearest", "stochastic"])
@pytest.mark.parametrize("tau", [0.0, 1.0])
@pytest.mark.parametrize("name", ITERATES)
def test_evaluation_inside_of_the_loop_changes_no_bit(name, tau, rounding, dtype):
    if name == "ahead" and tau > 0:
        return
    ends = []
    for look in (None, with_eval, with_at_x):
        problem = Stochastic()
        params = [p.detach().to(dtype).requires_grad_() for p in problem.params()]
        opt = SuperAdam(params, lr=0.01, tau=tau, iterate=ITERATES[name], rounding=rounding)

        def closure(params=params, starts=problem):
            for p, q in zip(params, starts.params(), strict=True):
                p.grad = (p.detach() - q.detach().to(dtype) + 0.3).sin()
            return 0.0

        for _ in range(10):
            opt.step(closure)
            if look is not None:
                look(opt)
        ends.append([p.detach().clone() for p in params])
    for other in ends[1:]:
        assert all(map(torch.equal, ends[0], other))


@pytest.mark.parametrize("evaluating", [False, True], ids=["train", "eval"])
@pytest.mark.parametrize("tau", [0.0, 1.0])
@pytest.mark.parametrize("name", ITERATES)
def test_resumed_is_uninterrupted(name, tau, evaluating):
    """Also from a checkpoint that was saved after opt.eval(), as some trainers do."""
    if name == "ahead" and tau > 0:
        return
    problem, options = Stochastic(), {"lr": 0.05, "tau": tau, "iterate": ITERATES[name]}
    through, before, after = (problem.params() for _ in range(3))
    opt = SuperAdam(through, **options)
    stepped(problem, opt, through, range(20))
    first = SuperAdam(before, **options)
    stepped(problem, first, before, range(10))
    if evaluating:
        first.eval()
    file = io.BytesIO()
    torch.save([[p.detach() for p in before], first.state_dict()], file)
    file.seek(0)
    points, saved = torch.load(file, weights_only=True)
    with torch.no_grad():
        for p, x in zip(after, points, strict=True):
            p.copy_(x)
    second = SuperAdam(after, **options)
    second.load_state_dict(saved)
    if evaluating:
        with pytest.raises(RuntimeError, match=r"opt.train\(\)"):
            second.step(problem.closure(second, after, 10))
        second.train()
    stepped(problem, second, after, range(10, 20))
    assert all(map(torch.equal, through, after))


def test_eval_holds_x_until_train():
    problem = Stochastic()
    params = problem.params()
    opt = SuperAdam(params, lr=0.05, iterate=iterates.ScheduleFree())
    stepped(problem, opt, params, range(10))
    with opt.at_x():
        x = problem.join(params).detach().clone()
    y = problem.join(params).detach().clone()
    opt.train(mode=False)
    assert torch.equal(problem.join(params), x)
    with pytest.raises(RuntimeError, match=r"step\(\) after opt.eval\(\)"):
        opt.step(problem.closure(opt, params, 0))
    opt.train()
    assert torch.equal(problem.join(params), y)
    opt.eval()
    opt.flush()
    equal(problem.join(params).detach(), x)
    assert not any(key.startswith("aside") for state in opt.state.values() for key in state)


def test_eval_does_nothing_to_plain_parameters():
    problem = Stochastic()
    params = problem.params()
    opt = SuperAdam(params)
    stepped(problem, opt, params, range(2))
    opt.eval()
    stepped(problem, opt, params, range(2))


def trained(iterate, known="constructor"):
    model = torch.nn.Linear(3, 2)
    opt = SuperAdam(model if known == "constructor" else model.parameters(), iterate=iterate)
    if known == "protect":
        opt.protect(model)
    for _ in range(4):
        opt.zero_grad()
        model(torch.ones(1, 3)).sum().backward()
        opt.step()
    model.eval()
    return model, opt


@pytest.mark.parametrize("known", ["constructor", "protect"])
@pytest.mark.parametrize("name", ITERATES)
def test_a_model_that_is_evaluated_where_gradients_are_taken_is_noticed_once(name, known):
    model, opt = trained(ITERATES[name], known)
    with pytest.warns(UserWarning, match=r"with opt.at_x\(\)"):
        model(torch.ones(1, 3))
    model(torch.ones(1, 3))
    assert opt.state


def test_a_model_that_is_evaluated_as_it_should_be_is_not():
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        trained(iterates.Plain())[0](torch.ones(1, 3))
        model, opt = trained(iterates.ScheduleFree())
        with opt.at_x():
            model(torch.ones(1, 3))
        opt.eval()
        model(torch.ones(1, 3))
        opt.train()
        opt.flush()
        model(torch.ones(1, 3))
        for other in (copy.deepcopy(model), pickle.loads(pickle.dumps(model))):  # which nobody trains
            other(torch.ones(1, 3))
        del opt
        model(torch.ones(1, 3))
        unknown, _opt = trained(iterates.ScheduleFree(), known="parameters")  # which no module leads to
        unknown(torch.ones(1, 3))


def test_an_optimizer_that_is_gone_leaves_no_hook():
    model = torch.nn.Linear(3, 2)
    for _ in range(3):
        opt = SuperAdam(model, iterate="ScheduleFree")
        opt.protect(model)
        del opt
        gc.collect()
    assert not model._forward_pre_hooks


def test_batchnorm_is_evaluated_with_the_statistics_of_the_result():
    """Inside of at_x(batches) they are those of x_t; afterwards all is as before, the generators too."""
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(3, 4), torch.nn.Dropout(0.5), torch.nn.BatchNorm1d(4))
    opt = SuperAdam(model, lr=0.1, iterate=iterates.ScheduleFree())
    batches = [(torch.randn(8, 3), torch.zeros(8)) for _ in range(4)]
    for x, _ in batches:
        opt.zero_grad()
        model(x).square().sum().backward()
        opt.step()
    before, generator = copy.deepcopy(model.state_dict()), torch.get_rng_state()
    with opt.at_x(batches):
        inside = model[2].running_mean.clone()
        assert int(model[2].num_batches_tracked) == 4
        model.eval()
        outputs = torch.cat([model(x) for x, _ in batches])
    torch.testing.assert_close(torch.get_rng_state(), generator)
    for name, value in model.state_dict().items():
        assert torch.equal(value, before[name])
    assert not torch.equal(inside, before["2.running_mean"])
    assert outputs.mean().abs() < 0.3  # normalised with its own statistics; dropout apart
    with pytest.raises(ValueError, match=r"opt.protect\(model\)"), SuperAdam(model.parameters()).at_x(batches):
        pass


@pytest.mark.parametrize(
    ("kind", "options"),
    [
        (iterates.ScheduleFree, {"beta": 0.0}),
        (iterates.ScheduleFree, {"r": -1.0}),
        (iterates.ScheduleFree, {"warmup": -1}),
        (iterates.ScheduleFree, {"weight": 0.0}),
        (iterates.ScheduleFree, {"weight_power": -1.0}),
        (iterates.Averaged, {"decay": 1.5}),
        (iterates.Averaged, {"start": -1}),
        (iterates.Lookahead, {"every": 0}),
        (iterates.Lookahead, {"share": 1.5}),
    ],
)
def test_options_out_of_range_are_refused(kind, options):
    with pytest.raises(ValueError, match=f"Invalid {next(iter(options))} parameter"):
        kind(**options)


def test_weight_decay_in_a_blended_gradient_is_refused():
    """Its weight decay would be that of another point."""
    options = {"estimator": "Nesterov", "weight_decay": 0.1, "iterate": "ScheduleFree"}
    with pytest.raises(ValueError, match="use decoupled_weight_decay=True"):
        SuperAdam([torch.zeros(2, requires_grad=True)], decoupled_weight_decay=False, **options)
    SuperAdam([torch.zeros(2, requires_grad=True)], **options)
