"""`torch.compile(opt.step)`, or of a function that calls it, takes the steps that are taken without."""

import pytest
import torch
from torch import nn

from problems import SuperAdam
from superadam import create, list_methods, twice

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


@pytest.mark.parametrize("name", MAKE)
def test_compiled_step_is_the_step(name):
    same(MAKE[name], with_half_steps, "aot_eager")


@pytest.mark.parametrize("loop", [with_closure, as_one_function])
@pytest.mark.parametrize("name", ["default", "variance reduction", "adamw"])
def test_in_every_loop(name, loop):
    same(MAKE[name], loop, "aot_eager")


@pytest.mark.parametrize("name", ["default", "adamw"])
def test_with_the_default_backend(name):
    same(MAKE[name], with_half_steps, "inductor")


def test_no_step_compiles_anything_again():
    """γ and the weights change in every step: a tracer that looked at them would compile until it gives up."""
    torch._dynamo.reset()
    x = torch.ones(3, requires_grad=True)
    opt = create("adamw", [x])
    scheduler = torch.optim.lr_scheduler.ExponentialLR(opt, 0.9)
    step = torch.compile(opt.step, backend="aot_eager")
    frames = []
    for _ in range(6):
        x.grad = x.detach().clone()
        step()
        scheduler.step()
        frames.append(torch._dynamo.utils.counters["frames"]["total"])
    assert frames[1] == frames[-1]
