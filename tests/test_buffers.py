"""Whatever network the evaluations of a batch run, its buffers are as after one evaluation."""

import gc

import pytest
import torch
from torch import nn
from torch.nn.modules import module as global_hooks

from superadam import SuperAdam, twice
from superadam.evaluations import is_due

both_ways = pytest.mark.parametrize("way", ["closure", "half-steps"])


def network():
    return nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.Linear(4, 1)).double()


def data(n):
    return torch.randn(n, 8, 3, dtype=torch.float64)


def run(opt, loss, batches, way):
    for batch in twice(batches) if way == "half-steps" else batches:

        def closure(batch=batch):
            opt.zero_grad()
            loss(batch).backward()

        if way == "half-steps":
            closure()
            opt.step()
        else:
            opt.step(closure)


class Borrowing(nn.Module):
    """Runs the BatchNorm of a network without calling it."""

    def __init__(self, net):
        super().__init__()
        self.net = net

    def forward(self, x):
        _, norm, last = self.net
        h = nn.functional.batch_norm(self.net[0](x), norm.running_mean, norm.running_var, training=True)
        norm.num_batches_tracked += 1
        return last(h)


OTHERS = {
    "nobody's": lambda net: None,
    "of torch's Adam": lambda net: torch.optim.Adam(net.parameters()),
    "of another optimizer": lambda net: SuperAdam(net, tau=1.0),
    "whose parameters alone are known": lambda net: SuperAdam(net.parameters(), tau=0.0),
}


@both_ways
@pytest.mark.parametrize("whose", OTHERS)
@pytest.mark.parametrize("wrap", [lambda net: net, Borrowing, nn.Sequential], ids=["plain", "borrowing", "nested"])
def test_batches_count_once_for_every_network_that_is_run(way, whose, wrap):
    """They are as after one evaluation of each batch; not only BatchNorm's count, which is easy to see."""
    mine, other, shadow = network(), network(), network()
    shadow.load_state_dict(other.state_dict())
    opt, _ = SuperAdam(mine.parameters(), lr=0.05, tau=1.0), OTHERS[whose](other)
    run_other, batches = wrap(other), data(7)
    run(opt, lambda batch: (mine(batch) - run_other(batch)).square().mean(), batches, way)
    for batch in batches:
        wrap(shadow)(batch)
    assert mine[1].num_batches_tracked == 7
    assert all(map(torch.equal, other.buffers(), shadow.buffers()))


@both_ways
def test_a_network_that_begins_to_run_late_is_found(way):
    """In batch 4 at the latest if it is first run in the third: one batch may count twice, not all."""
    mine, other = network(), network()
    opt, seen = SuperAdam(mine, tau=1.0), []

    def loss(batch):
        seen.append(batch)
        late = other(batch).square().mean() if len(seen) > (4 if way == "half-steps" else 3) else 0.0
        return mine(batch).square().mean() + late

    run(opt, loss, data(9), way)
    assert len(seen) == 18 - (way == "closure")
    assert other[1].num_batches_tracked == 7 + 1


@both_ways
def test_buffers_that_functional_call_lends_are_left_alone(way):
    mine, other = network(), network()
    own = dict(other.named_buffers())
    lent = {name: b.clone() for name, b in own.items()}
    opt = SuperAdam(mine, tau=1.0)

    def loss(batch):
        return (mine(batch) - torch.func.functional_call(other, lent, batch)).square().mean()

    run(opt, loss, data(3), way)
    assert all(b is own[name] for name, b in other.named_buffers())
    assert other[1].num_batches_tracked == 0


@both_ways
def test_no_hook_is_left_behind(way):
    """Neither after a batch, nor after an evaluation that fails, nor in most batches at all."""
    mine = network()
    opt, hooks = SuperAdam(mine, tau=1.0), []

    def loss(batch):
        hooks.append(len(global_hooks._global_forward_pre_hooks))
        if len(hooks) > 24:
            raise RuntimeError("of my own")
        return mine(batch).square().mean()

    with pytest.raises(RuntimeError, match="of my own"):
        run(opt, loss, data(16), way)
    assert not global_hooks._global_forward_pre_hooks
    if way == "closure":
        hooks.insert(1, 0)  # it evaluates the first batch once
    looked = [t for t, n in enumerate(hooks[::2], start=1) if n]
    assert looked == [1, 2, 4, 8]
    assert not any(hooks[1::2])


def test_looking_vanishes():
    assert [n for n in range(1, 5000) if is_due(n)] == [2**k for k in range(13)]


def test_modules_are_held_weakly():
    """By the optimizer, and, without any garbage collection, by the batches that are done."""
    mine, others = network(), [network()]
    opt = SuperAdam(mine, tau=1.0)
    gc.collect()
    gc.disable()
    try:
        run(opt, lambda batch: (mine(batch) - others[0](batch)).square().mean(), data(2), "closure")
        assert [*opt._met] == [mine[1], others[0][1]]
        others.clear()
        assert [*opt._met] == [mine[1]]
    finally:
        gc.enable()


@pytest.mark.filterwarnings("ignore:.*torch.jit.*:DeprecationWarning")
@pytest.mark.filterwarnings("ignore:.*torch.jit.*:FutureWarning")  # so since torch 2.15
@pytest.mark.parametrize("half_steps", [False, True])
def test_batch_norm_of_a_scripted_module_counts_a_batch_once(half_steps):
    model = torch.jit.script(nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.Linear(4, 1)))
    opt = SuperAdam(model, lr=1e-3, tau=1.0)
    x = torch.randn(6, 3)

    def closure():
        opt.zero_grad()
        loss = model(x).square().mean()
        loss.backward()
        return loss

    for _ in range(3):
        if half_steps:
            for _ in twice([0]):
                closure()
                opt.step()
        else:
            opt.step(closure)
    assert dict(model.named_buffers())["1.num_batches_tracked"] == 3
