"""Gradients added up over micro-batches, at both points of a step."""

import pytest
import torch
from torch import nn

from superadam import SuperAdam, twice


def network(dropout=0.0):
    torch.manual_seed(0)
    layers = [nn.Linear(4, 8), nn.BatchNorm1d(8), nn.Dropout(dropout), nn.Linear(8, 1)]
    return nn.Sequential(*layers).double()


def micro_batches(n=7):
    generator = torch.Generator().manual_seed(1)
    return [torch.randn(6, 4, generator=generator, dtype=torch.float64) for _ in range(n)]


def parameters(model):
    return torch.cat([p.detach().flatten() for p in (*model.parameters(), *model.buffers())])


def by_turns(model, data, n, **options):
    opt = SuperAdam(model, lr=0.05, tau=1.0, **options)
    turns = twice(data, accumulate=n)
    for batch in turns:
        (model(batch).square().mean() / turns.size).backward()
        if turns.complete:
            opt.step()
            opt.zero_grad()
    return parameters(model)


def by_closure(model, data, n, **options):
    opt = SuperAdam(model, lr=0.05, tau=1.0, **options)
    for k in range(0, len(data), n):

        def closure(batches=data[k : k + n]):
            opt.zero_grad()
            for batch in batches:
                (model(batch).square().mean() / len(batches)).backward()

        opt.step(closure)
    return parameters(model)


@pytest.mark.parametrize("n", [1, 2, 3, 10])
def test_turns_are_a_closure_over_the_micro_batches(n):
    """With the same dropout masks at both points, each buffer updated once, and a last batch of what is left."""
    x = by_turns(network(dropout=0.3), micro_batches(), n)
    torch.testing.assert_close(x, by_closure(network(dropout=0.3), micro_batches(), n), rtol=0, atol=0)
    assert (x - parameters(network())).abs().max() > 0.01


@pytest.mark.parametrize("run", [by_turns, by_closure])
def test_micro_batches_are_one_batch(run):
    """Without layers that look at the whole batch, it does not matter how it is cut."""

    def model():
        torch.manual_seed(0)
        return nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 1)).double()

    data = micro_batches(6)
    joined = [torch.cat(data[k : k + 3]) for k in (0, 3)]
    torch.testing.assert_close(run(model(), data, 3), run(model(), joined, 1), rtol=1e-12, atol=1e-12)


def test_order_of_the_turns():
    turns = twice("abcde", accumulate=2)
    assert [(sample, turns.complete, turns.size) for sample in turns] == [
        *[("a", False, 2), ("b", True, 2)] * 2,
        *[("c", False, 2), ("d", True, 2)] * 2,
        *[("e", True, 1)] * 2,
    ]


def test_a_step_between_micro_batches_is_refused():
    model = network()
    opt = SuperAdam(model, tau=1.0)
    for batch in twice(micro_batches(1) * 2, accumulate=2):
        model(batch).mean().backward()
        with pytest.raises(RuntimeError, match=r"step\(\) after micro-batch 1 of 2.*turns\.complete"):
            opt.step()
        break


@pytest.mark.parametrize("n", [0, -1, 1.5, True, None])
def test_a_wrong_number_of_micro_batches(n):
    with pytest.raises(ValueError, match="Invalid accumulate"):
        twice([0], accumulate=n)


def test_outside_of_the_loop_there_is_no_place_in_it():
    turns = twice([0])
    with pytest.raises(RuntimeError, match="only available inside the `twice` loop"):
        _ = turns.complete
    assert list(turns) == [0, 0]
    with pytest.raises(RuntimeError, match="only available inside the `twice` loop"):
        _ = turns.size


def test_gradients_from_outside_the_closure_are_refused_not_lost():
    """As some trainers leave them: all micro-batches but the last are evaluated before step(closure)."""
    model, data = network(), micro_batches(4)
    opt = SuperAdam(model, lr=0.05, tau=1.0)
    for n, batches in enumerate((data[:1], data[1:2], data[2:])):

        def closure(batch=batches[-1]):
            model(batch).mean().backward()

        for batch in batches[:-1]:
            model(batch).mean().backward()
        if n < 2:  # what is there is what the last step has used
            opt.step(closure)
            continue
        before = parameters(model)[: sum(p.numel() for p in model.parameters())]
        with pytest.raises(RuntimeError, match=r"does not clear them.*inside the closure.*accumulate_grad_batches=1"):
            opt.step(closure)
        after = parameters(model)[: len(before)]
        torch.testing.assert_close(after, before, rtol=0, atol=0)
        opt.step(closure)  # nothing is left of them


@pytest.mark.parametrize("clear", ["none", "zero", "module"])
def test_gradients_that_the_closure_clears_do_not_matter(clear):
    """As of another loss that went through the same weights."""

    def train(disturb):
        model = network()
        opt = SuperAdam(model, lr=0.05, tau=1.0)
        how = {"none": opt.zero_grad, "zero": lambda: opt.zero_grad(set_to_none=False), "module": model.zero_grad}
        for batch in micro_batches(4):

            def closure(batch=batch):
                how[clear]()
                model(batch).square().mean().backward()

            if disturb:
                model.eval()(batch).sum().backward()
                model.train()
            opt.step(closure)
        return parameters(model)

    torch.testing.assert_close(train(True), train(False), rtol=0, atol=0)


@pytest.mark.parametrize("n", [1, 2, 3])
def test_length_is_the_number_of_turns(n):
    data = micro_batches(5)
    assert len(twice(data, accumulate=n)) == len(list(twice(data, accumulate=n))) == 10
    assert len(list(twice(iter(data), accumulate=n))) == 10
    with pytest.raises(TypeError, match="has no len"):
        len(twice(iter(data), accumulate=n))


def test_a_refused_optimizer_that_lives_on_does_not_disturb_a_loop():
    with pytest.raises(ValueError, match="learning rate") as error:
        SuperAdam([torch.ones(1, requires_grad=True)], lr=-1.0)
    assert list(twice([0])) == [0, 0]
    del error  # whose traceback has kept the optimizer
