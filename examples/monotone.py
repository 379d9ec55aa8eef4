"""A network that can only increase: all weights that lead from the input to the output are non-negative.

python examples/monotone.py    # a few seconds

Tanh is increasing, so with non-negative weights the network is increasing in its input, whatever the data say; biases
are free, in a group of their own. The same network without the constraint follows the noise and decreases in places.
Prints both errors to the true function (0.048 and 0.130), and in how many of 2000 places each network decreases.
"""

import torch
from torch import nn

from superadam import SuperAdam, sets


def truth(x):
    """Increasing, with a plateau and a jump."""
    return torch.tanh(3 * (x + 1)) + 0.5 * torch.sigmoid(12 * (x - 1)) + 0.1 * x


def network(seed=0):
    torch.manual_seed(seed)
    first = nn.Linear(1, 32)
    net = nn.Sequential(first, nn.Tanh(), nn.Linear(32, 32), nn.Tanh(), nn.Linear(32, 1))
    with torch.no_grad():
        first.weight.mul_(3)
    return net


def fit(constraint, x, y, steps):
    net = network()
    weights = [p for p in net.parameters() if p.dim() == 2]
    biases = [p for p in net.parameters() if p.dim() == 1]
    if constraint is not None:  # start from |W|, not from a projection that would make half of it zero
        with torch.no_grad():
            for weight in weights:
                weight.abs_().mul_(0.5)
    groups = [{"params": weights, "constraint": constraint}, {"params": biases}]
    opt = SuperAdam(groups, lr=0.05, matrix="SecondMoment", schedule="Paper")
    for _ in range(steps):
        opt.zero_grad()
        (net(x) - y).square().mean().backward()
        opt.step()
    return net, opt


def main(steps=1500):
    generator = torch.Generator().manual_seed(0)
    x = 4 * torch.rand(60, 1, generator=generator) - 2
    y = truth(x) + 0.3 * torch.randn(60, 1, generator=generator)
    grid = torch.linspace(-2, 2, 2001)[:, None]
    result: dict[str, object] = {"data": (x, y, grid, truth(grid))}
    for name, constraint in (("monotone", sets.NonNegative()), ("free", None)):
        net, opt = fit(constraint, x, y, steps)
        with torch.no_grad():
            out = net(grid)
        drop = (-out.diff(dim=0)).clamp(min=0)
        error = (out - truth(grid)).square().mean().sqrt().item()
        facts = {"error": error, "decreasing": int((drop > 1e-6).sum()), "violation": opt.feasibility()}
        print(
            f"{name:9s} error to the true function {error:.3f}; decreases in {facts['decreasing']} of 2000 "
            f"steps of the grid; outside of the set by {opt.feasibility():.0e}"
        )
        result[name] = {**facts, "curve": out}
    return result


if __name__ == "__main__":
    main()
