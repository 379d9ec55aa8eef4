"""A DCGAN in small: two networks with BatchNorm, two optimizers, closures; each closure runs both networks."""

import torch
from torch import nn

from superadam import SuperAdam


def block(n, m):
    return [nn.Linear(n, m), nn.BatchNorm1d(m), nn.LeakyReLU(0.2)]


def train(tau, steps=6, size=16, given="module", compiled=False):
    """Generator and discriminator. The optimizers are given modules, or parameters alone."""
    torch.manual_seed(0)
    G = nn.Sequential(*block(4, 16), nn.Linear(16, 2))
    D = nn.Sequential(*block(2, 16), nn.Dropout(0.2), nn.Linear(16, 1))
    opt_G, opt_D = (
        SuperAdam(net if given == "module" else net.parameters(), lr=0.01, tau=tau, clip=10.0) for net in (G, D)
    )
    run_G, run_D = (torch.compile(net, backend="eager") if compiled else net for net in (G, D))
    loss = nn.BCEWithLogitsLoss()
    one, zero = torch.ones(size, 1), torch.zeros(size, 1)
    for _ in range(steps):
        angle = torch.rand(size, 1) * 6.28
        real, z = torch.cat([angle.cos(), angle.sin()], dim=1), torch.randn(size, 4)

        def closure_D(real=real, z=z):
            opt_D.zero_grad()
            total = loss(run_D(real), one) + loss(run_D(run_G(z).detach()), zero)
            total.backward()
            return total

        def closure_G(z=z):
            opt_G.zero_grad()
            total = loss(run_D(run_G(z)), one)
            total.backward()
            return total

        opt_D.step(closure_D)
        opt_G.step(closure_G)
    opt_D.flush()
    opt_G.flush()
    return G, D
