"""Random numbers and metrics for sets that couple all coordinates, and the answer of a cone."""

import numpy as np
import torch
from scipy.optimize import nnls

FLOAT32 = 1e-5


def numbers(seed, shape, spread=0.0):
    """Normal numbers, times 10 to a power within spread/2 of 0."""
    gen = torch.Generator().manual_seed(seed)
    y = torch.randn(shape, generator=gen, dtype=torch.float64)
    return y * 10 ** (spread * (torch.rand(shape, generator=gen, dtype=torch.float64) - 0.5))


def metric(seed, shape, spread):
    return 10 ** (spread * (torch.rand(shape, generator=torch.Generator().manual_seed(seed)).double() - 0.5))


def nearly(part, y, d):
    """float32 gives the solution for the same numbers, rounded."""
    y, d = y.float(), d.float()
    exact = part.argmin(y.double(), d.double())
    torch.testing.assert_close(part.argmin(y, d).double(), exact, rtol=FLOAT32, atol=FLOAT32 * float(exact.abs().max()))


def from_cone(normals, y, d, x):
    """How far D(y - x) is from the cone of some normals, relative to its length."""
    push = ((y - x) * d.sqrt()).numpy()
    if not len(normals) or not push.any():
        return float(np.abs(push).max())
    columns = (normals / d.sqrt()).T.numpy()
    _, left = nnls(columns / np.linalg.norm(columns, axis=0), push, maxiter=10_000)
    return left / np.linalg.norm(push)
