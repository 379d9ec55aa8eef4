"""`check_pairs` finds a closure whose two gradients of a batch would differ by more than the move between them."""

import copy

import pytest
import torch
from torch import nn

from superadam import SuperAdam, check_pairs

SHAPE = 16, 4


def network():
    layers = nn.Linear(4, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Dropout(0.5), nn.Linear(8, 1)
    return nn.Sequential(*layers)


class Closure:
    """The closure of a batch, right unless told otherwise."""

    def __init__(self, *, clears=True, fetches=False, own=False, clips=None, backward=True):
        torch.manual_seed(0)
        self.model, self.own = network(), torch.Generator().manual_seed(1) if own else None
        self.batch, self.batches = torch.randn(SHAPE), iter(torch.randn(99, *SHAPE)) if fetches else None
        self.clears, self.clips, self.backward = clears, clips, backward

    def __call__(self):
        if self.clears:
            self.model.zero_grad()
        x = self.batch if self.batches is None else next(self.batches)
        if self.own is not None:
            x = x + torch.randn(SHAPE, generator=self.own)
        loss = self.model(x).square().mean()
        if self.backward:
            loss.backward()
        if self.clips is not None:
            nn.utils.clip_grad_norm_(self.model.parameters(), self.clips)
        return loss


@pytest.mark.parametrize("clips", [None, 1e9])
def test_a_right_closure_passes_and_leaves_no_trace(clips):
    """Dropout and BatchNorm are the same in both evaluations. A clip that has no effect is not seen."""
    closure = Closure(clips=clips)
    model = closure.model
    model[0].weight.grad = torch.ones_like(model[0].weight)
    before, generator = copy.deepcopy(model.state_dict()), torch.get_rng_state()
    check_pairs(model, closure)
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())
    assert torch.equal(torch.get_rng_state(), generator)
    assert torch.equal(model[0].weight.grad, torch.ones_like(model[0].weight))
    assert model[4].weight.grad is None
    assert not any(p._post_accumulate_grad_hooks for p in model.parameters())


@pytest.mark.parametrize(
    ("fault", "message"),
    [
        ({"fetches": True}, r"differ by \d+%.* the closure fetch a batch.*before step\(closure\)"),
        ({"own": True}, r"differ by \d+%.*torch.Generator of its own"),
        ({"clears": False}, r"adds to the gradients that it finds.*opt.zero_grad\(\)"),
        ({"clears": False, "fetches": True}, "fetch a batch"),
        ({"clips": 1e-3}, r"changes the gradients after backward\(\).*optimizer's clip="),
        ({"backward": False}, r"left no gradient: .*loss.backward\(\)"),
    ],
    ids=str,
)
def test_the_error_says_what_to_mend(fault, message):
    closure = Closure(**fault)
    grads = [p.grad for p in closure.model.parameters()]
    with pytest.raises(ValueError, match=message):
        check_pairs(closure.model, closure)
    assert [p.grad for p in closure.model.parameters()] == grads


def test_micro_batches_and_shared_or_unused_parameters():
    """Several backward() in one closure; a parameter that the loss does not use; complex and frozen parameters."""
    model = nn.ParameterDict({"w": torch.ones(3), "z": torch.ones(2, dtype=torch.complex64), "unused": torch.ones(1)})
    model["frozen"] = nn.Parameter(torch.ones(1), requires_grad=False)

    def closure():
        model.zero_grad()
        for scale in (1.0, 2.0):
            ((model["w"] * model["frozen"]).square().sum() * scale + model["z"].abs().square().sum()).backward()

    check_pairs(model, closure)


def test_a_step_takes_what_was_checked():
    closure = Closure()
    opt = SuperAdam(closure.model, tau=1.0)
    check_pairs(closure.model, closure)
    for _ in range(3):
        opt.step(closure)
    check_pairs(closure.model, closure)  # also between two batches, where a move is pending
    before = [p.detach().clone() for p in closure.model.parameters()]
    opt.step(closure)
    assert not all(torch.equal(p, x) for p, x in zip(closure.model.parameters(), before, strict=True))
