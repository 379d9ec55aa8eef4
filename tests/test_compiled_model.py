"""A compiled model is evaluated twice like any other."""

import pytest
import torch
from torch import nn

from problems import SuperAdam
from superadam import twice


def train(compiled, tau, half_steps):
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8), nn.Tanh(), nn.Dropout(0.5), nn.Linear(8, 1)).double()
    model = torch.compile(net, backend="aot_eager") if compiled else net
    opt = SuperAdam(model, lr=0.05, tau=tau)
    data = torch.randn(6, 8, 4, dtype=torch.float64)
    if half_steps and opt.two_point:
        for batch in twice(data):
            model(batch).square().mean().backward()
            opt.step()
            opt.zero_grad()
    else:
        for batch in data:

            def closure(batch=batch):
                opt.zero_grad()
                loss = model(batch).square().mean()
                loss.backward()
                return loss

            opt.step(closure)
    opt.flush()
    assert net[1].num_batches_tracked == len(data)
    return torch.cat([p.detach().flatten() for p in net.parameters()])


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
@pytest.mark.parametrize(("tau", "half_steps"), [(0.0, False), (1.0, False), (1.0, True)])
def test_looking_for_modules_compiles_nothing_anew(tau, half_steps):
    """The optimizer does not know the model. The hook that finds its BatchNorm is no part of what is compiled."""
    compiled = []

    def backend(graph, inputs):
        compiled.append(graph)
        return graph.forward

    net = nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8), nn.Linear(8, 1))
    model = torch.compile(net, backend=backend, fullgraph=True)
    opt = SuperAdam(net.parameters(), lr=0.05, tau=tau)
    for batch in twice(torch.randn(5, 8, 4)) if half_steps else torch.randn(5, 8, 4):

        def closure(batch=batch):
            opt.zero_grad()
            model(batch).square().mean().backward()

        if half_steps:
            closure()
            opt.step()
        else:
            opt.step(closure)
    assert net[1].num_batches_tracked == 5
    assert len(compiled) == 1


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
@pytest.mark.parametrize(("tau", "half_steps"), [(0.0, False), (1.0, False), (1.0, True)])
def test_compiled_as_eager(tau, half_steps):
    """With the same dropout masks in both evaluations, and BatchNorm's buffers protected."""
    eager = train(False, tau, half_steps)
    torch.testing.assert_close(train(True, tau, half_steps), eager, rtol=1e-10, atol=1e-10)
