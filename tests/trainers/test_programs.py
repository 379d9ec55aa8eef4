"""Programs as people write them, with one gradient per batch and with two: what must be true of them is."""

import itertools
import warnings

import pytest
import torch

from programs import gan, nanogpt


def parameters(model):
    return torch.cat([p.detach().flatten() for p in model.parameters()])


@pytest.mark.parametrize("fetch", ["outside", "first"])
def test_nanogpt_sees_the_batches_that_one_evaluation_would_see(fetch):
    """With τ = 1 each comes twice. Drawn first in the closure, it is drawn again from the generator's old state."""
    one, two = [], []
    nanogpt.train(0.0, fetch, seen=one)
    _, opt = nanogpt.train(1.0, fetch, seen=two)
    assert len(one) == 6
    assert len(two) == opt.gradient_evaluations == 11  # in the first batch there is no move yet
    assert len({str(batch) for batch in one}) == 6
    assert [str(batch) for batch in two] == [str(batch) for batch in one for _ in range(2)][1:]


def test_nanogpt_may_fetch_ahead_in_its_closure_with_one_evaluation_per_batch():
    """With τ > 0 the second evaluation would be of the next batch: `probe.check_pairs` finds that."""
    one = [nanogpt.train(0.0, fetch)[0] for fetch in ("outside", "last")]
    assert torch.equal(*map(parameters, one))


@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore:The .grad attribute")  # of torch.compile
@pytest.mark.parametrize(
    ("given", "compiled"), [*itertools.product(["module", "parameters"], [False]), ("module", True)]
)
@pytest.mark.parametrize("tau", [0.0, 1.0])
def test_gan_counts_each_batch_once(tau, given, compiled):
    """In each step G runs in both closures, D once in its generator's and twice in its own."""
    G, D = gan.train(tau, steps=6, given=given, compiled=compiled)
    assert G[1].num_batches_tracked == 6 * 2
    assert D[1].num_batches_tracked == 6 * 3


def test_gan_takes_the_same_steps_whatever_its_optimizers_know():
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        runs = [gan.train(1.0, given=given) for given in ("module", "parameters")]
    for one, other in zip(*runs, strict=True):
        assert all(map(torch.equal, one.state_dict().values(), other.state_dict().values()))
