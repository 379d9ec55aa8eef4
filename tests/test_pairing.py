"""What makes two gradients of a batch other than a pair is told, once, in the first batches; what does not is not."""

import gc

import pytest
import torch
from torch import nn
from torch.nn.utils import clip_grad_norm_

from superadam import SuperAdam, twice
from superadam._state import pairing

both_ways = pytest.mark.parametrize("way", ["closure", "half-steps"])


def network(dtype=torch.float64):
    return nn.Sequential(nn.Linear(3, 8), nn.BatchNorm1d(8), nn.Dropout(0.5), nn.Linear(8, 1)).to(dtype)


def run(opt, evaluate, batches, way):
    for batch in twice(batches) if way == "half-steps" and opt.two_point else batches:

        def closure(batch=batch):
            opt.zero_grad()
            evaluate(batch)

        if way == "half-steps" and opt.two_point:
            closure()
            opt.step()
        else:
            opt.step(closure)


def data(n=12, dtype=torch.float64):
    return 10 * torch.randn(n, 6, 3, dtype=dtype)


# ------------------------------------------------------------------------------------------------ the same batch


def ahead(model, batches):
    """Evaluates what the last call has fetched."""
    coming = iter(torch.cat([batches, batches]).repeat(2, 1, 1))
    now = next(coming)

    def evaluate(_):
        nonlocal now
        model(now).square().mean().backward()
        now = next(coming)

    return evaluate


def own_generator(model, batches):
    generator = torch.Generator().manual_seed(0)

    def evaluate(batch):
        noise = torch.rand(batch.shape, generator=generator, dtype=batch.dtype)
        model(batch * noise).square().mean().backward()

    return evaluate


def memory(model, batches):
    """A sum over all evaluations so far, which is nobody's buffer."""
    total = torch.zeros((), dtype=torch.float64)

    def evaluate(batch):
        nonlocal total
        total = total + batch.square().mean()
        (total * model(batch).square().mean()).backward()

    return evaluate


@both_ways
@pytest.mark.parametrize("other", [ahead, own_generator, memory])
def test_another_batch_in_the_second_evaluation_is_told_once(other, way):
    model, batches = network(), data()
    opt = SuperAdam(model, lr=1e-3, tau=1.0)
    with pytest.warns(UserWarning, match="evaluations of the first batch, at the same point.*must use the same") as got:
        run(opt, other(model, batches), batches, way)
    assert len(got) == 1
    run(SuperAdam(model, tau=0.0), other(model, batches), batches, way)  # one evaluation has no second


@both_ways
def test_the_check_changes_nothing(way, monkeypatch):
    """Neither parameters nor buffers nor generators nor what is counted."""
    results = []
    for checked in (True, False):
        if not checked:
            monkeypatch.setattr(pairing.Pairing, "keep", lambda self, params: False)
        torch.manual_seed(1)
        model = network()
        opt = SuperAdam(model, lr=0.05, tau=1.0)
        run(opt, lambda batch, model=model: model(batch).square().mean().backward(), data(4), way)
        values = [*model.state_dict().values(), torch.get_rng_state(), torch.tensor(opt.gradient_evaluations)]
        results.append(torch.cat([v.flatten().double() for v in values]))
    assert torch.equal(*results)


def test_an_error_in_the_check_leaves_the_optimizer_as_it_was():
    model, calls = network(), []
    opt = SuperAdam(model, tau=1.0)

    def closure():
        calls.append(len(calls))
        if len(calls) == 2:
            raise RuntimeError("of my own")
        opt.zero_grad()
        model(data(1)[0]).square().mean().backward()

    with pytest.raises(RuntimeError, match="of my own"):
        opt.step(closure)
    assert not opt.state
    opt.step(closure)
    assert len(calls) == 3


@both_ways
def test_gradients_of_zero_are_equal(way):
    model = network()
    run(SuperAdam(model, tau=1.0), lambda batch: (0 * model(batch).sum()).backward(), data(3), way)


# ------------------------------------------------------------------------------------------------ the same factor


def scaled(model, change, scaler=None, opt=None):
    def evaluate(batch):
        loss = model(batch).square().mean()
        loss.backward()
        change(model.parameters())

    return evaluate


def divide(params, by=3.0):
    for p in params:
        p.grad /= by


def replace(params):
    for p in params:
        p.grad = p.grad * (1.0 / p.grad.norm())


def nothing(params):
    pass


@both_ways
@pytest.mark.parametrize("change", [lambda params: clip_grad_norm_(params, 0.1), replace], ids=["clip", "replace"])
def test_clipping_of_single_gradients_is_told_once(change, way):
    model = network()
    opt = SuperAdam(model, lr=0.01, tau=1.0)
    with pytest.warns(UserWarning, match=r"clip_grad_norm_.*unclipped.*use clip=") as got:
        run(opt, scaled(model, change), data(), way)
    assert len(got) == 1
    run(SuperAdam(model, lr=0.01, tau=0.0), scaled(model, change), data(), way)


@both_ways
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16])
@pytest.mark.parametrize("change", [divide, nothing, lambda params: clip_grad_norm_(params, 1e9)])
def test_one_factor_for_both_is_right(change, dtype, way):
    model = network(dtype)
    run(SuperAdam(model, lr=0.01, tau=1.0), scaled(model, change), data(dtype=dtype), way)


@pytest.mark.parametrize("bound", [None, 0.1])
def test_scales_of_a_scaler_are_no_clipping(bound):
    """It changes its scale within a batch here; clipping after `unscale_` is told all the same."""
    model = nn.Linear(3, 2)
    opt = SuperAdam(model, lr=0.01, tau=1.0)
    scaler = torch.amp.GradScaler("cpu", init_scale=8.0, growth_interval=1)

    def loop():
        for batch in twice(data(dtype=torch.float32)):
            opt.zero_grad()
            scaler.scale(model(batch).square().mean()).backward()
            if bound is not None:
                scaler.unscale_(opt)
                clip_grad_norm_(model.parameters(), bound)
            scaler.step(opt)
            scaler.update()

    if bound is None:
        loop()
    else:
        with pytest.warns(UserWarning, match="clip_grad_norm_"):
            loop()


@both_ways
def test_watching_ends(way):
    """After ten batches no hook is left on a parameter; nor is one of an optimizer that is gone."""
    model = network()
    evaluate = scaled(model, nothing)

    def hooks():
        return sum(len(p._post_accumulate_grad_hooks or ()) for p in model.parameters())

    opt = SuperAdam(model, tau=1.0)
    run(opt, evaluate, data(pairing.WATCHED - 1), way)
    assert hooks() == 1
    run(opt, evaluate, data(1), way)
    assert hooks() == 0
    other = SuperAdam(model, tau=1.0)
    run(other, evaluate, data(2), way)
    assert hooks() == 1
    del other
    gc.collect()
    assert hooks() == 0
