"""A matrix H_t of one's own, in ten lines: the cube root of the mean of |∇f|³, where Adam has the root of squares.

python examples/own_matrix.py    # a few seconds

Formulas are all it takes: τ = 1, checkpoints and `foreach` come with them; `elementwise` adds tiles in the cache and
`compile=True`. A function with `@zoo.method` gives the composition a name. Prints test accuracies on the digits, for
the paper's case 1 and for ours with τ = 0 and τ = 1; what they show is that it works, not that it is better:

    cube_root, τ = 1: test accuracy 97.4%
"""

import torch
from sklearn.datasets import load_digits
from torch import nn

import superadam
from superadam import matrices, zoo


class CubeRoot(matrices.Diagonal):
    """H_t = diag(v_t^(1/3) + λ), v_t = β v_{t-1} + (1-β) |∇f(x_t; ξ_t)|³."""

    beta: float = 0.999
    lam: float = 1e-3
    buffers = ("v",)
    elementwise = True

    def update(self, s, grad):
        s.v = self.beta * s.v + (1 - self.beta) * grad.abs() ** 3

    def H(self, s):
        return s.v ** (1 / 3) + self.lam


@zoo.method()
def cube_root(lr=1e-2, lam=1e-3):
    """Cube root: third moments in place of second ones."""
    return {"matrix": CubeRoot(lam=lam), "schedule": "Paper"}


def train(opt, model, x, y, epochs):
    for _ in range(epochs):
        for rows in torch.randperm(len(y)).split(32):

            def closure(rows=rows):
                opt.zero_grad()
                loss = nn.functional.cross_entropy(model(x[rows]), y[rows])
                loss.backward()
                return loss

            opt.step(closure)
    opt.flush()


def main(epochs=10):
    images, labels = load_digits(return_X_y=True)
    order = torch.randperm(len(labels), generator=torch.Generator().manual_seed(0))
    x, y = torch.tensor(images, dtype=torch.float32)[order] / 16, torch.tensor(labels)[order]
    result = {}
    for name, tau in (("super_adam", 0.0), ("cube_root", 0.0), ("cube_root", 1.0)):
        torch.manual_seed(0)
        model = nn.Sequential(nn.Linear(64, 128), nn.ReLU(), nn.Linear(128, 10))
        opt = superadam.create(name, model, lr=0.02, tau=tau)
        train(opt, model, x[:1297], y[:1297], epochs)
        with torch.no_grad():
            result[name, tau] = (model(x[1297:]).argmax(1) == y[1297:]).float().mean().item()
        print(f"{name}, τ = {tau:g}: test accuracy {result[name, tau]:.1%}")
    return result


if __name__ == "__main__":
    main()
