"""Sets of symmetric matrices."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from sets.coupled import nearly, numbers
from superadam import sets

PROPERTY = settings(deadline=None)


def symmetric(x):
    return (x + x.mT) / 2


@PROPERTY
@given(st.integers(0, 10**6), st.sampled_from([1, 2, 5, 12]), st.sampled_from([1.0, 1e-3, 1e3]), st.booleans())
def test_semidefinite_sets(seed, n, size, batch):
    y = size * numbers(seed, (3, n, n) if batch else (n, n))
    goal = symmetric(y)
    least = max(size, 1.0)

    x = sets.PSD().argmin(y, 0.7)
    assert sets.PSD().violation(x) <= 1e-12 * least
    assert torch.linalg.eigvalsh(x - goal).amin() > -1e-9 * size  # the normal cone: x - y ⪰ 0, ⟨x - y, x⟩ = 0
    assert ((x - goal) * x).sum((-2, -1)).abs().max() <= 1e-9 * size**2 * n

    part = sets.Spectrahedron(2.0)
    x = part.argmin(y, 0.7)
    assert part.violation(x) < 1e-12
    gap = ((x - goal) * (x - part.lmo(x - goal))).sum((-2, -1))
    assert gap.max() <= 1e-9 * size * n + 1e-9

    x = sets.Correlation().argmin(y, 0.7)
    assert sets.Correlation().violation(x) < 1e-12
    z = ((x - goal) @ x).diagonal(dim1=-2, dim2=-1)  # so that (y + Diag(z) - x) x has a diagonal of 0
    away = goal + torch.diag_embed(z) - x
    assert torch.linalg.eigvalsh(away).amax() <= 1e-9 * least * n
    assert (away @ x).abs().max() <= 1e-9 * least * n
    for part in (sets.PSD(), sets.Spectrahedron(2.0), sets.Correlation()):
        nearly(part, y, torch.tensor(0.7))


SEMIDEFINITE = {"PSD": sets.PSD(), "Spectrahedron": sets.Spectrahedron(2.0), "Correlation": sets.Correlation()}


@pytest.mark.parametrize("name", SEMIDEFINITE)
def test_of_every_semidefinite_set(name):
    part, y = SEMIDEFINITE[name], numbers(0, (2, 4, 4))
    x = part.argmin(y, 1.0)
    torch.testing.assert_close(part.argmin(x, 1.0), x, rtol=0, atol=1e-13)
    for inside in (torch.eye(4).double() / 2 if name == "Spectrahedron" else torch.eye(4).double(),):
        assert torch.equal(part.argmin(inside, 1.0), inside)
        assert part.violation(inside) == 0
    for each, of_y in zip(x, y, strict=True):
        torch.testing.assert_close(part.argmin(of_y, 3.0), each, rtol=1e-9, atol=1e-12)
    for dtype in (torch.float32, torch.bfloat16):
        rounded = part.argmin(y.to(dtype), 1.0)
        exact = part.argmin(y.to(dtype).double(), 1.0).to(dtype)
        torch.testing.assert_close(rounded, exact, rtol=torch.finfo(dtype).eps, atol=1e-5)
    assert part.violation(y) > 0.1
    assert part.argmin(torch.zeros(0, 3, 3), 1.0).shape == (0, 3, 3)
    assert part.violation(torch.zeros(0, 3, 3)) == 0
    with pytest.raises(ValueError, match=r"square matrices.*\(3, 5\)"):
        part.argmin(torch.zeros(3, 5), 1.0)
    with pytest.raises(ValueError, match="one learning rate"):
        part.argmin(y, torch.ones(2, 4, 4))
    with pytest.raises(ValueError, match="y must be finite"):
        part.argmin(y / 0, 1.0)
    assert part.bounded == (name == "Spectrahedron")
    assert sets.ConvexSet.find(part.spec()) == part


def test_the_lmo_of_the_spectrahedron_is_the_least_eigenvalue():
    g = numbers(0, (3, 5, 5))
    x = sets.Spectrahedron(2.0).lmo(g)
    assert sets.Spectrahedron(2.0).violation(x) < 1e-12
    torch.testing.assert_close((g * x).sum((-2, -1)), 2 * torch.linalg.eigvalsh(symmetric(g))[..., 0])
