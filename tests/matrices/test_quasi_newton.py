"""L-BFGS for stochastic gradients: its direction is that of scipy, one of descent, and pays on uneven curvature."""

import itertools
import math

import numpy as np
import pytest
import torch
from scipy.optimize import LbfgsInvHessProduct

from problems import Stochastic, equal
from superadam import create

STEPS = 60

SAMPLES = [i % 50 for i in range(STEPS)]


class NoisyQuadratic:
    """f(x; ξ) = ½ xᵀ A x + ξᵀ x: eigenvalues over `condition`, and noise in the gradient."""

    def __init__(self, dim=20, condition=1e3, noise=0.03, samples=2000):
        generator = torch.Generator().manual_seed(1)
        basis, _ = torch.linalg.qr(torch.randn(dim, dim, generator=generator, dtype=torch.float64))
        eigenvalues = torch.logspace(0, math.log10(condition), dim, dtype=torch.float64)
        self.A = basis @ torch.diag(eigenvalues) @ basis.T
        self.xi = noise * torch.randn(samples, dim, generator=generator, dtype=torch.float64)
        self.x_1 = torch.randn(dim, generator=generator, dtype=torch.float64)

    def mean_loss(self, x):
        return (0.5 * x @ self.A @ x).item()

    def run(self, build, evaluations):
        """The loss, without the noise, after a number of gradient evaluations."""
        x = self.x_1.clone().requires_grad_()
        opt = build([x])
        batches = iter(range(len(self.xi)))
        while opt.gradient_evaluations < evaluations:
            i = next(batches)

            def closure(i=i):
                opt.zero_grad()
                loss = 0.5 * x @ self.A @ x + self.xi[i] @ x
                loss.backward()
                return loss

            opt.step(closure)
        opt.flush()
        return self.mean_loss(x.detach())


def test_sdlbfgs_beats_sgd_on_an_ill_conditioned_noisy_quadratic():
    """Condition number 1000, 400 gradient evaluations, each at the best learning rate of a grid: the loss of SdLBFGS,
    which takes two gradients per step, is more than 500 times smaller than SGD's."""
    problem = NoisyQuadratic()

    def best(name, grid, **options):
        losses = [problem.run(lambda p, lr=lr: create(name, p, lr=lr, **options), 400) for lr in grid]
        return min(loss for loss in losses if math.isfinite(loss))

    assert 500 * best("sdlbfgs", [1.0, 0.5], delta=0.01) < best("sgd", [0.01, 2e-3, 1.5e-3, 1e-3, 5e-4])


@pytest.mark.parametrize("history", [1, 4, 20])
def test_lbfgs_direction_on_a_quadratic(history):
    """Where nothing needs damping H_t⁻¹ g_t is L-BFGS's: scipy's operator, and the dense BFGS recursion."""
    problem = NoisyQuadratic(dim=8, condition=3.0, noise=0.0)
    x = problem.x_1.clone().requires_grad_()
    opt = create("sdlbfgs", [x], lr=0.2, history=history, delta=0.01)
    points = []
    for _ in range(9):

        def closure():
            opt.zero_grad()
            loss = 0.5 * x @ problem.A @ x
            loss.backward()
            return loss

        opt.step(closure)
        points.append(x.detach().clone())
    opt.flush()
    direction = (points[-1] - x.detach()) / 0.2

    s = torch.stack([b - a for a, b in itertools.pairwise(points)])[-history:]
    y = s @ problem.A
    sy, ss, yy = (s * y).sum(1), (s * s).sum(1), (y * y).sum(1)
    assert (sy**2 > 0.25 * ss * yy).all()  # no pair is damped
    kappa = yy[-1] / sy[-1]
    g = problem.A @ points[-1]

    # scipy starts from I: with y/κ it is κ times the operator that starts from I/κ
    operator = LbfgsInvHessProduct(s.numpy(), (y / kappa).numpy())
    equal(direction, torch.from_numpy(operator.matvec(g.numpy())) / kappa, 1e-10)

    inverse = torch.eye(8, dtype=torch.float64) / kappa
    for s_i, y_i in zip(s, y, strict=True):
        rho = 1 / s_i.dot(y_i)
        left = torch.eye(8, dtype=torch.float64) - rho * torch.outer(s_i, y_i)
        inverse = left @ inverse @ left.T + rho * torch.outer(s_i, s_i)
    equal(direction, inverse @ g, 1e-10)
    assert np.isfinite(direction.numpy()).all()


def test_lbfgs_is_a_descent_direction_even_where_f_is_concave():
    """Damping keeps H_t positive definite: ⟨g_t, H_t⁻¹ g_t⟩ > 0."""
    problem = Stochastic()
    params = problem.params()
    opt = create("sdlbfgs", params, lr=0.05, delta=0.01)
    for i in SAMPLES:
        opt.step(problem.closure(opt, params, i))
        before, g = problem.join(params).detach(), torch.cat([opt.state[p]["g"].reshape(-1) for p in params])
        probe = [p.detach().clone().requires_grad_() for p in params]
        twin = create("sdlbfgs", probe, lr=0.05, delta=0.01)
        twin.load_state_dict(opt.state_dict())
        twin.flush()
        assert g.dot(before - problem.join(probe).detach()) > 0
