# %% [markdown]
# # Your own matrix
#
# Line 4 of the algorithm sets the adaptive matrix H_t. Adam uses the square root of an average of squared gradients. One
# gradient that is a hundred times too large stays in that average for a long time. This matrix averages absolute values:
#
# $$a_t = \beta a_{t-1} + (1 - \beta) |\nabla f(x_t; \xi_t)|, \qquad H_t = \mathrm{diag}(a_t + \lambda)$$
#
# ## Ten lines

# %%
import matplotlib.pyplot as plt
import torch

from superadam import Monitor, SuperAdam, matrices, reference


class MeanAbsolute(matrices.Diagonal):
    beta: float = 0.99
    lam: float = 1e-3
    buffers = ("a",)
    elementwise = True

    def update(self, s, grad):
        s.a = self.beta * s.a + (1 - self.beta) * grad.abs()

    def H(self, s):
        return s.a + self.lam


# %% [markdown]
# The fields are its options. `buffers` names the tensors it keeps: they have the parameters' shapes and start at zero.
# `update` gets every new gradient, and `H` returns the diagonal. `elementwise` says that the formulas treat each
# coordinate separately, which allows faster implementations of a step.
#
# ## Is it right?
#
# `reference.super_adam` implements the algorithm literally, in float64. It takes a matrix as a function. Both must take
# the same steps, with momentum (τ = 0) and with variance reduction (τ = 1).

# %%
generator = torch.Generator().manual_seed(0)
curvature = torch.tensor([0.1, 1.0, 10.0], dtype=torch.float64)
x_1 = torch.ones(3, dtype=torch.float64)
samples = torch.randn(200, 3, generator=generator, dtype=torch.float64)


def by_hand(beta, lam):
    a = torch.zeros(3, dtype=torch.float64)

    def rule(t, newest, g):
        nonlocal a
        a = beta * a + (1 - beta) * newest.abs()
        return a + lam

    return rule


def expected(tau):
    run = reference.super_adam(
        lambda x, xi: curvature * x - xi, x_1, samples, case=by_hand(0.99, 1e-3), tau=tau, gamma=0.1
    )
    return run.x[201]


def ours(tau):
    x = x_1.clone().requires_grad_()
    opt = SuperAdam([x], lr=0.1, tau=tau, matrix=MeanAbsolute(0.99, 1e-3), schedule="Paper")
    for xi in samples:

        def closure(xi=xi):
            opt.zero_grad()
            loss = (curvature * x**2 / 2 - xi * x).sum()
            loss.backward()
            return loss

        opt.step(closure)
    opt.flush()
    return x.detach()


for tau in (0.0, 1.0):
    x = ours(tau)
    moved, difference = (x - x_1).norm().item(), (x - expected(tau)).abs().max().item()
    print(f"τ = {tau:g}: moved by {moved:.2f} in 200 steps, difference to the reference {difference:.0e}")

# %% [markdown]
# ## What it does
#
# The gradients are random numbers of size 1. Gradient 100 is a hundred times as large. The
# [monitor](what_the_monitor_sees.md) records H_t.

# %% alt="The entry of H_t over 600 steps. After one gradient that is a hundred times too large, that of SecondMoment jumps ten times as high as that of MeanAbsolute, and comes down more slowly."
gradients = torch.randn(600, generator=torch.Generator().manual_seed(0))
gradients[100] = 100.0

for matrix in (MeanAbsolute(), matrices.SecondMoment(beta=0.99, lam=1e-3)):
    w = torch.zeros(1, requires_grad=True)
    opt = SuperAdam([w], lr=1e-3, matrix=matrix)
    with Monitor(opt, every=1, limits={"explosion": 1e9}) as monitor:
        for gradient in gradients:
            w.grad = gradient.reshape(1)
            opt.step()
    H = [report["H_max"] for report in monitor.history]
    plt.semilogy(H, label=type(matrix).__name__)
    print(f"{type(matrix).__name__:12s} H at steps 100, 102 and 600: {H[99]:.2f}, {H[101]:.2f}, {H[599]:.2f}")
plt.xlabel("step")
plt.ylabel("H_t")
plt.legend()
plt.show()

# %% [markdown]
# You need only this class: closures, param groups, checkpoints, `foreach` and `compile=True` work as for the built-in
# matrices, and `matrix="MeanAbsolute"` finds it by name. [Your own parts](../your-own.md) shows matrices for whole
# tensors, sets, schedules and other parts.
