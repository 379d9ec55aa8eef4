"""Problems and loops that several tests use."""

import weakref

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from superadam import SuperAdam, matrices, twice

# The paper's cases, by the names of `reference.super_adam`.
CASES = {
    "1": matrices.SecondMoment(),
    "2": matrices.GradientNorm(),
    "3": matrices.BarzilaiBorwein(),
    "4a": matrices.Belief(),
    "4b": matrices.BeliefNorm(),
}

# Learning rates at which each case moves far, but not so wildly that 50 steps blow rounding errors up.
LR = {"1": 0.01, "2": 0.005, "3": 0.05, "4a": 0.01, "4b": 0.005}

SHAPES = [(3,), (2, 5), (), (1, 2, 3), (0,), (7,)]


def equal(actual, expected, tol=1e-12):
    torch.testing.assert_close(actual, expected, rtol=tol, atol=tol)


class Stochastic:
    """A non-convex f(x; ξ) = Σ log(1 + (x - a_ξ)²) + ¼ sin(w_ξ·x) on the coordinates of several tensors."""

    def __init__(self, shapes=SHAPES, samples=50, dtype=torch.float64, seed=0):
        generator = torch.Generator().manual_seed(seed)
        self.shapes = shapes
        self.dim = sum(torch.Size(s).numel() for s in shapes)
        self.a = torch.randn(samples, self.dim, generator=generator, dtype=torch.float64).to(dtype)
        self.w = torch.randn(samples, self.dim, generator=generator, dtype=torch.float64).to(dtype)
        self.x_1 = 2 * torch.randn(self.dim, generator=generator, dtype=torch.float64).to(dtype)

    def loss(self, x, i):
        return (1 + (x - self.a[i]) ** 2).log().sum() + 0.25 * torch.sin((self.w[i] * x).sum())

    def grad(self, x, i):
        """The oracle of the reference."""
        x = x.detach().clone().requires_grad_()
        return torch.autograd.grad(self.loss(x, i), x)[0]

    def params(self):
        """x_1, cut into tensors."""
        parts = self.x_1.split([torch.Size(s).numel() for s in self.shapes])
        return [p.clone().reshape(s).requires_grad_() for p, s in zip(parts, self.shapes, strict=True)]

    def join(self, params):
        return torch.cat([p.reshape(-1) for p in params])

    def closure(self, opt, params, i):
        def closure():
            opt.zero_grad()
            loss = self.loss(self.join(params), i)
            loss.backward()
            return loss

        return closure


def train(problem, opt, params, samples, *, half_steps=False):
    """Give `opt` the samples, and return x after each of them."""
    points = []
    if half_steps and opt.two_point:
        for n, i in enumerate(twice(samples)):
            problem.closure(opt, params, i)()
            opt.step()
            if n % 2 == 1:
                points.append(problem.join(params).detach().clone())
    elif half_steps:
        for i in samples:
            problem.closure(opt, params, i)()
            opt.step()
            points.append(problem.join(params).detach().clone())
    else:
        for i in samples:
            opt.step(problem.closure(opt, params, i))
            points.append(problem.join(params).detach().clone())
    opt.flush()
    return points, problem.join(params).detach().clone()


class Live(TorchDispatchMode):
    """Bytes of the storages that were made under this mode and are alive, and their peak."""

    def __init__(self, known):
        super().__init__()
        self.refs = {t.untyped_storage()._cdata: None for t in known}
        self.now = self.peak = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        out = func(*args, **(kwargs or {}))
        for t in tree_leaves(out):
            if isinstance(t, torch.Tensor) and t.untyped_storage()._cdata not in self.refs:
                self._made(t.untyped_storage())
        return out

    def _made(self, storage):
        key, size = storage._cdata, storage.nbytes()

        def freed(_):
            del self.refs[key]
            self.now -= size

        self.refs[key] = weakref.ref(storage, freed)
        self.now += size
        self.peak = max(self.peak, self.now)


__all__ = ["CASES", "LR", "SHAPES", "Live", "Stochastic", "SuperAdam", "train"]
