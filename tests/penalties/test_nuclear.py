"""The nuclear norm."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from sets.conditions import TOL, problems
from superadam import SuperAdam, matrices, penalties

WEIGHTS = st.sampled_from([0.0, 1e-6, 0.3, 1e4])


@given(problems(scalar_metric=True), WEIGHTS)
def test_nuclear(problem, lam):
    """d(y - x) = λ W with ‖W‖ ≤ 1 and ⟨W, x⟩ = ‖x‖_*."""
    y, d, _, _ = problem
    x = penalties.Nuclear(lam).argmin(y, d)
    assert x.dtype == y.dtype
    size = y.shape[-2:].numel() if y.dim() > 1 else y.numel()
    shape = y.shape[-2:] if y.dim() > 1 else (1, -1)
    for before, after in zip(y.double().reshape(-1, size), x.double().reshape(-1, size), strict=True):
        before, after, scale = before.view(shape), after.view(shape), lam + float(d * before.norm())
        rest = d.double() * (before - after)
        assert torch.linalg.svdvals(rest)[0] <= lam + TOL[y.dtype] * scale
        gap = lam * torch.linalg.svdvals(after).sum() - (rest * after).sum()
        assert abs(float(gap)) <= TOL[y.dtype] * scale * float(before.norm() + 1e-300)


def test_nuclear_needs_one_learning_rate():
    p = torch.ones(3, 2, requires_grad=True)
    with pytest.raises(ValueError, match=r"Nuclear needs one learning rate .* SecondMoment has many; .*GradientNorm"):
        SuperAdam([p], penalty=penalties.Nuclear(0.1), matrix=matrices.SecondMoment())
    with pytest.raises(ValueError, match="d must be a scalar"):
        penalties.Nuclear(0.1).argmin(torch.ones(3, 2), torch.ones(3, 2))
    target = torch.outer(torch.tensor([1.0, 2.0, 3.0]), torch.tensor([1.0, -1.0]))
    opt = SuperAdam([p], lr=0.5, penalty=penalties.Nuclear(0.1), matrix=matrices.Identity())
    for _ in range(50):
        p.grad = p.detach() - target
        opt.step()
    with opt.at_x_tilde():
        assert torch.linalg.matrix_rank(p.detach(), rtol=1e-6) == 1
