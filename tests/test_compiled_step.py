"""`torch.compile(opt.step)`, or of a function that calls it, takes the steps that are taken without."""

import pytest
import torch
from torch import nn

from problems import SuperAdam
from superadam import create, list_methods, twice
from ways import made, tiny

assert made, tiny  # fixtures are used by their names

# Of torch's compiler, about itself: the second one it hides, unless warnings are errors.
pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore:The .grad attribute:UserWarning")


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


def result(make, loop, compiled=lambda function: function):
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 5), nn.Tanh(), nn.Linear(5, 1)).double()
    opt = make(model)
    loop(opt, model, torch.randn(5, 8, 4, dtype=torch.float64), compiled)
    compiled(opt.restart)()
    return [p.detach() for p in model.parameters()]


def same(make, loop, backend):
    torch._dynamo.reset()
    found = result(make, loop, lambda function: torch.compile(function, backend=backend))
    # A compiled model may round otherwise; a compiled step is the step.
    tol = 1e-10 if loop is as_one_function else 0.0
    torch.testing.assert_close(found, result(make, loop), rtol=tol, atol=tol)


MAKE = {
    "default": lambda model: SuperAdam(model, lr=0.05),
    "variance reduction": lambda model: SuperAdam(model, lr=0.05, tau=1.0),
    "compile=True": lambda model: SuperAdam(model, lr=0.05, compile=True),
    **{name: lambda model, name=name: create(name, model, lr=0.05) for name in list_methods()},
}


QUICK = {"default", "variance reduction", "compile=True", *sorted(list_methods())[::4]}


@pytest.mark.parametrize("name", [pytest.param(n, marks=() if n in QUICK else pytest.mark.slow) for n in MAKE])
def test_compiled_step_is_the_step(name):
    same(MAKE[name], with_half_steps, "aot_eager")


@pytest.mark.parametrize("loop", [with_closure, as_one_function])
@pytest.mark.parametrize("name", ["default", "variance reduction", "adamw"])
def test_in_every_loop(name, loop):
    same(MAKE[name], loop, "aot_eager")


@pytest.mark.parametrize("name", ["default", "adamw"])
def test_with_the_default_backend(name):
    same(MAKE[name], with_half_steps, "inductor")


# ----------------------------------------------------------------------------------------- by kernels, made once


def counts(opt, model, steps=50):
    """Of every batch, with a cosine schedule: the frames that torch's compiler has seen."""
    torch._dynamo.reset()
    torch._dynamo.utils.counters.clear()
    scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(opt, steps)
    step = torch.compile(opt.step, backend="aot_eager")
    for turn, _ in enumerate(twice(range(steps)) if opt.two_point else range(steps), start=1):
        opt.zero_grad()
        loss_of(model, torch.ones(2, 4, dtype=torch.float64)).backward()
        step()
        if turn % 2 == 0 or not opt.two_point:
            scheduler.step()
            yield torch._dynamo.utils.counters["frames"]["total"]


@pytest.mark.parametrize("name", [pytest.param(n, marks=() if n in QUICK else pytest.mark.slow) for n in MAKE])
def test_nothing_is_compiled_after_the_second_step(name, made, tiny):
    """γ and the weights change in every step: a tracer that looked at them would compile until it gives up."""
    model = nn.Linear(4, 5).double()
    found = [(frames, len(made)) for frames in counts(MAKE[name](model), model)]
    assert found[1] == found[-1]


def test_lines_run_by_the_kernels_of_compile_true(made, tiny):
    for options, kernels in (({"matrix": "Yogi"}, 1), ({"tau": 1.0}, 2), ({"matrix": "Identity"}, 0), ({}, 0)):
        before, model = len(made), nn.Linear(4, 5).double()
        opt = SuperAdam(model, **options)
        list(counts(opt, model, steps=3))
        assert len(made) - before == kernels  # 0: torch's fused kernels
        assert all("compiled" not in line.partition(":")[2] for line in opt.ways())  # without torch.compile


def test_the_compiler_sees_nothing_of_the_maths(made, tiny):
    """It stops before the step and goes on behind it: no graph of its own, and none that breaks."""
    torch._dynamo.reset()
    graphs, model = [], nn.Linear(4, 5).double()
    step = torch.compile(SuperAdam(model, matrix="Yogi").step, backend=lambda graph, _: graphs.append(graph) or graph)
    for _ in range(3):
        loss_of(model, torch.ones(2, 4, dtype=torch.float64)).backward()
        step()
    assert not graphs
    assert len(made) == 1


def test_options_that_change_in_every_step_make_no_kernels(made, tiny):
    """OneCycleLR writes into `betas`: a kernel for each of them would take seconds in every step."""
    model = nn.Linear(4, 5).double()
    opt = create("nadam", model)
    scheduler = torch.optim.lr_scheduler.OneCycleLR(opt, 0.1, total_steps=20)
    step = torch.compile(opt.step, backend="aot_eager")
    for _ in range(10):
        loss_of(model, torch.ones(2, 4, dtype=torch.float64)).backward()
        step()
        scheduler.step()
    assert not made
