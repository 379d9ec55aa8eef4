"""Steps along given gradients, for tests that write a matrix's formula out."""

import torch

from superadam import SuperAdam, schedules

CONSTANT = schedules.Constant(alpha=0.3)


def gradients(shape, steps, seed=0):
    generator = torch.Generator().manual_seed(seed)
    return [torch.randn(shape, generator=generator, dtype=torch.float64) for _ in range(steps)]


def after(matrix, shape, grads, lr=0.1, x=None, **options):
    """x after steps along given gradients."""
    p = (torch.zeros(shape, dtype=torch.float64) if x is None else x.clone()).requires_grad_()
    opt = SuperAdam([p], lr=lr, matrix=matrix, schedule=CONSTANT, **options)
    for grad in grads:
        p.grad = grad.clone()
        opt.step()
    return p.detach(), opt


def averages(grads, alpha=0.3):
    g = None
    for grad in grads:
        g = grad if g is None else (1 - alpha) * g + alpha * grad
        yield g


def power(A, p):
    values, Q = torch.linalg.eigh(A)
    return Q @ values.clamp(min=0).pow(p).diag() @ Q.T


def equal(actual, expected, tol=1e-10):
    torch.testing.assert_close(actual, expected, rtol=tol, atol=tol)
