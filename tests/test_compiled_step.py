"""`compile=True` takes the steps that lists take, and `torch.compile(opt.step)` those that are taken without."""

import functools

import pytest
import torch
from torch import nn
from torch._dynamo.utils import counters

from problems import SuperAdam
from superadam import create, iterates, list_methods, matrices, penalties, schedules, sets, step, twice
from ways import VARIANTS, Problem, equal, result, train

# Of torch's compiler, about itself: the second one it hides, unless warnings are errors.
pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore:The .grad attribute:UserWarning")

COMPOSITIONS = {
    "SecondMoment": {"matrix": matrices.SecondMoment()},
    "Adam": {},
    "Yogi": {"matrix": "Yogi", "weight_decay": 0.1},
    "AMSGrad": {"matrix": matrices.AMSGrad(beta=0.9, bias_correction=True)},
    "Belief": {"matrix": "Belief", **VARIANTS["decay in the gradient, maximize"]},
    "a box": {"schedule": "Paper", **VARIANTS["box"]},
    "L1": VARIANTS["L1"],
    "elastic net on a box": VARIANTS["elastic net on a box"],
    "clip": VARIANTS["clip and decay"],
    "averaged": {"iterate": iterates.Averaged(0.9)},
    "Nesterov": {"estimator": "Nesterov"},
}
QUICK = [("Yogi", 0.0), ("a box", 1.0)]


@pytest.fixture
def backend(monkeypatch, request):
    """What compiles, in place of the default; nothing that was compiled before counts."""
    torch._dynamo.reset()
    counters.clear()
    given = {"backend": getattr(request, "param", "eager"), "fullgraph": True}
    monkeypatch.setattr(step, "_COMPILED", {})
    monkeypatch.setattr(torch, "compile", functools.partial(torch.compile, **given))


def same(composition, tau, dtypes=(torch.float64,), tol=1e-12):
    """The steps of lists, with no compilation after the second of them."""
    options = COMPOSITIONS[composition] | ({} if "estimator" in COMPOSITIONS[composition] else {"tau": tau})
    parameters = [((150,), "contiguous", "alike", ()), ((9, 14), "contiguous", "transposed", ())]
    problem = Problem(dtypes, parameters)
    opt, frames = SuperAdam(problem.params, lr=torch.tensor(0.05, dtype=torch.float64), compile=True, **options), []
    assert "runs by torch.compile" in repr(opt)
    for n in range(1, 7):
        train(problem, opt=opt, steps=1, start=n)
        frames.append(counters["stats"]["unique_graphs"])
    opt.flush()
    assert frames[0] > 0
    assert frames[-1] == frames[1 + (tau > 0)]
    expected, _ = result(dtypes=dtypes, parameters=parameters, steps=6, foreach=True, **options)
    equal([p.detach() for p in problem.params], expected, tol)


@pytest.mark.parametrize(
    ("composition", "tau"),
    [
        pytest.param(name, tau, marks=() if (name, tau) in QUICK else pytest.mark.slow)
        for name in COMPOSITIONS
        for tau in (0.0, 1.0)
    ],
)
def test_compiled_lines_take_the_steps_of_lists(composition, tau, backend):
    same(composition, tau)


@pytest.mark.slow
@pytest.mark.parametrize("backend", ["aot_eager", "inductor"], indirect=True)
@pytest.mark.parametrize(("composition", "tau"), QUICK)
def test_with_the_code_that_torch_generates(composition, tau, backend):
    same(composition, tau)
    same(composition, tau, (torch.float32,), 5e-6)


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        ({"matrix": "GradientNorm"}, "GradientNorm has numbers of its own"),
        ({"matrix": "SOAP"}, "SOAP needs more than a coordinate"),
        ({"matrix": "RAdam"}, "RAdam asks for the step count on the host"),
        ({"constraint": sets.Simplex()}, "Simplex needs more than a coordinate"),
        ({"penalty": penalties.GroupLasso(0.1, dim=0)}, "GroupLasso needs more than a coordinate"),
        ({"iterate": "ScheduleFree"}, "ScheduleFree has numbers of its own"),
        ({"rounding": "stochastic"}, "rounding='stochastic'"),
        ({"estimator": "Nesterov", "clip": 1.0}, "clip with this estimator"),
    ],
    ids=str,
)
def test_what_is_not_compiled_runs_as_lists_and_says_so(options, reason, backend):
    ends = []
    for how in ({"compile": True}, {"foreach": True}):
        p = torch.linspace(-1, 1, 12).view(4, 3).requires_grad_()
        opt = SuperAdam([p], lr=0.1, **options, **how)
        for n in range(3):
            p.grad = p.detach() - n
            opt.step()
        ends.append(p.detach())
        assert (f"runs by lists, not torch.compile ({reason})" in repr(opt)) == how.get("compile", False)
    assert torch.equal(*ends)
    assert not counters["stats"]


def test_a_compiled_function_keeps_no_parameters(backend):
    import gc
    import weakref

    p = torch.ones(3, requires_grad=True)
    opt = SuperAdam([p], matrix="Yogi", compile=True)
    p.grad = torch.ones(3)
    opt.step()
    alive = weakref.ref(opt)
    del opt, p
    gc.collect()
    assert len(step._COMPILED) == 1
    assert alive() is None


# --------------------------------------------------------------------------------------------- torch.compile(opt.step)


def loss_of(model, batch):
    return model(batch).square().mean()


def with_closure(opt, model, batches, compiled):
    step = compiled(opt.step)
    for batch in batches:

        def closure(batch=batch):
            opt.zero_grad()
            loss = loss_of(model, batch)
            loss.backward()
            return loss

        step(closure)


def with_half_steps(opt, model, batches, compiled):
    step = compiled(opt.step)
    for batch in twice(batches) if opt.two_point else batches:
        opt.zero_grad()
        loss_of(model, batch).backward()
        step()


def as_one_function(opt, model, batches, compiled):
    @compiled
    def train(batch):
        opt.zero_grad()
        loss_of(model, batch).backward()
        opt.step()

    for batch in twice(batches) if opt.two_point else batches:
        train(batch)


def end(make, loop, compiled=lambda function: function):
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 5), nn.Tanh(), nn.Linear(5, 1)).double()
    opt = make(model)
    loop(opt, model, torch.randn(5, 8, 4, dtype=torch.float64), compiled)
    opt.restart()
    return [p.detach() for p in model.parameters()]


def same_end(make, loop, backend):
    torch._dynamo.reset()
    found = end(make, loop, lambda function: torch.compile(function, backend=backend))
    # A compiled model may round otherwise; a compiled step is the step.
    tol = 1e-10 if loop is as_one_function else 0.0
    torch.testing.assert_close(found, end(make, loop), rtol=tol, atol=tol)


MAKE = {
    "default": lambda model: SuperAdam(model, lr=0.05),
    "variance reduction": lambda model: SuperAdam(model, lr=0.05, tau=1.0),
    **{name: lambda model, name=name: create(name, model, lr=0.05) for name in list_methods()},
}
OFTEN = {"default", "variance reduction", *sorted(list_methods())[::8]}


@pytest.mark.parametrize("name", [pytest.param(n, marks=() if n in OFTEN else pytest.mark.slow) for n in MAKE])
def test_compiled_step_is_the_step(name):
    same_end(MAKE[name], with_half_steps, "aot_eager")


@pytest.mark.parametrize("loop", [with_closure, as_one_function])
@pytest.mark.parametrize("name", ["default", "variance reduction"])
def test_in_every_loop(name, loop):
    same_end(MAKE[name], loop, "aot_eager")


def test_the_compiler_sees_nothing_of_the_step():
    """It stops before the step and goes on behind it: no graph of its own, also where γ changes in every step."""
    torch._dynamo.reset()
    graphs, model = [], nn.Linear(4, 5).double()
    opt = SuperAdam(model, matrix="Yogi", schedule=schedules.Paper())
    scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(opt, 20)
    step = torch.compile(opt.step, backend=lambda graph, _: graphs.append(graph) or graph)
    for _ in range(10):
        loss_of(model, torch.ones(2, 4, dtype=torch.float64)).backward()
        step()
        scheduler.step()
    assert not graphs
