"""SUPER-ADAM⁺ is the formula that its docstring has, for every kind of parameter."""

import torch
from torch import nn

from superadam import create

BETA1, BETA2, EPS, LR, DECAY = 0.9, 0.99, 1e-8, 0.01, 0.1


class Net(nn.Module):
    """An embedding, a matrix with eigenvectors on both sides, one with a long side, vectors."""

    def __init__(self):
        super().__init__()
        self.embed, self.square, self.wide = nn.Embedding(7, 4), nn.Linear(4, 5), nn.Linear(5, 12)

    def forward(self, x):
        return self.wide(self.square(self.embed(x)).tanh())


SIDES = {"square.weight": (0, 1), "wide.weight": (1,)}  # with one_sided_above=10


def plain(x, grads, sides):
    """A parameter after steps along given gradients."""
    A = {i: torch.zeros(x.shape[i], x.shape[i]).double() for i in sides}
    Q, m, v = {}, torch.zeros_like(x), torch.zeros_like(x)

    def rotated(M, back=False):
        for i in sides:
            q = Q[i] if back else Q[i].T
            M = q @ M if i == 0 else M @ q.T
        return M

    def average(grad):
        for i in sides:
            A[i] = BETA2 * A[i] + (1 - BETA2) * (grad @ grad.T if i == 0 else grad.T @ grad)

    for t, grad in enumerate(grads, start=1):
        alpha = (1 - BETA1) / (1 - BETA1**t)
        m = (1 - alpha) * m + alpha * grad
        nesterov = (1 - alpha) * m + alpha * grad
        if t == 1:
            average(grad)
            Q = {i: torch.linalg.eigh(A[i])[1].flip(1) for i in sides}
        else:
            for i in sides:
                order = (Q[i].T @ A[i] @ Q[i]).diagonal().argsort(descending=True)
                Q[i], v = torch.linalg.qr(A[i] @ Q[i][:, order])[0], v.index_select(i, order)
        v = BETA2 * v + (1 - BETA2) * rotated(grad) ** 2
        if t == 1 and sides:  # the rest is rounding
            v = v.maximum(torch.finfo(v.dtype).eps * v.max())
        average(grad)
        step = rotated(rotated(nesterov) / ((v / (1 - BETA2**t)).sqrt() + EPS), back=True)
        x = (1 - LR * DECAY) * x - LR * step
    return x


def test_it_is_its_formula():
    torch.manual_seed(0)
    net = Net().double()
    named = dict(net.named_parameters())
    starts = {name: p.detach().clone() for name, p in named.items()}
    grads = {name: [torch.randn_like(p) for _ in range(7)] for name, p in named.items()}
    options = {"lr": LR, "betas": (BETA1, BETA2), "eps": EPS, "weight_decay": DECAY}
    opt = create("super_adam_plus", net, precondition_frequency=1, one_sided_above=10, **options)
    for t in range(7):
        for name, p in named.items():
            p.grad = grads[name][t].clone()
        opt.step()
    for name, p in named.items():
        expected = plain(starts[name], grads[name], SIDES.get(name, ()))
        torch.testing.assert_close(p.detach(), expected, rtol=1e-9, atol=1e-9, msg=lambda m, name=name: f"{name}: {m}")


def test_one_line_trains_a_network():
    """No option is needed: parameters are divided, and the learning rate is one that trains."""
    torch.manual_seed(0)
    net = Net()
    x, y = torch.randint(7, (64,)), torch.randn(7, 12)
    opt = create("super_adam_plus", net)
    losses = []
    for _ in range(200):
        opt.zero_grad()
        loss = (net(x) - y[x]).square().mean()
        loss.backward()
        opt.step()
        losses.append(loss.item())
    assert losses[-1] < 0.5 * losses[0]
