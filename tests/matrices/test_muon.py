"""Muon takes torch's steps; its polynomials approximate the polar factor."""

import pytest
import torch

from matrices.formulas import equal, gradients
from superadam import create
from superadam.matrices.muon import polar, polynomials
from versions import needs_muon


@needs_muon
@pytest.mark.parametrize("adjust", ["original", "match_rms_adamw"])
@pytest.mark.parametrize("nesterov", [True, False])
@pytest.mark.parametrize("shape", [(6, 4), (4, 9)])
def test_muon_equals_torchs(shape, nesterov, adjust):
    """100 steps in float32, both with torch's bfloat16 iteration."""
    x = torch.randn(shape, generator=torch.Generator().manual_seed(1))
    ours, theirs = (x.clone().requires_grad_() for _ in range(2))
    options = {"lr": 0.01, "momentum": 0.9, "nesterov": nesterov, "adjust_lr_fn": adjust, "weight_decay": 0.1}
    mine, torchs = create("muon", [ours], **options), torch.optim.Muon([theirs], **options)
    mine.param_groups[0]["matrix"]["first"]["dtype"] = "bfloat16"
    for grad in gradients(shape, 100):
        ours.grad, theirs.grad = grad.float(), grad.float()
        mine.step()
        torchs.step()
    torch.testing.assert_close(ours.detach(), theirs.detach(), rtol=0, atol=2e-3)  # 100 steps of 0.01, 2⁻⁸ each
    assert (ours.detach() - x).norm() > 0.5


@needs_muon
@pytest.mark.parametrize(("dtype", "tol"), [(torch.float64, 1e-12), (torch.float32, 1e-5)])
@pytest.mark.parametrize("adjust", ["original", "match_rms_adamw"])
@pytest.mark.parametrize("nesterov", [True, False])
@pytest.mark.parametrize("shape", [(6, 4), (4, 9)])
def test_muon_equals_torchs_without_bfloat16(shape, nesterov, adjust, dtype, tol, monkeypatch):
    """100 steps in the dtype of x, as torch's takes them if its cast is none. 4 × 9 takes ours by its Gram matrix."""
    monkeypatch.setattr(torch.Tensor, "bfloat16", torch.Tensor.clone)
    monkeypatch.setattr(torch, "bfloat16", dtype)  # since torch 2.15 the cast is to(dtype=torch.bfloat16, copy=True)
    x = torch.randn(shape, generator=torch.Generator().manual_seed(1), dtype=dtype)
    ours, theirs = (x.clone().requires_grad_() for _ in range(2))
    options = {"lr": 0.01, "momentum": 0.9, "nesterov": nesterov, "adjust_lr_fn": adjust, "weight_decay": 0.1}
    mine, torchs = create("muon", [ours], **options), torch.optim.Muon([theirs], **options)
    for grad in gradients(shape, 100):
        ours.grad, theirs.grad = grad.to(dtype), grad.to(dtype)
        mine.step()
        torchs.step()
    torch.testing.assert_close(ours.detach(), theirs.detach(), rtol=0, atol=tol)
    assert (ours.detach() - x).norm() > 0.2


@pytest.mark.parametrize("shape", [(5, 3), (3, 5), (3, 20), (20, 3)])
def test_the_polar_factor_converges(shape):
    """In both forms: on X, and for a wide X on its Gram matrix."""
    G = gradients((2, *shape), 1)[0]
    U, _, V = torch.linalg.svd(G, full_matrices=False)
    equal(polar(G, polynomials("polar_express", 12), 1.01), U @ V, 1e-6)


@pytest.mark.parametrize("name", ["jordan", "you", "polar_express"])
def test_singular_values_come_close_to_1(name):
    sigma = torch.logspace(-2, 0, 30).double()
    wide = torch.cat([torch.diag(sigma), torch.zeros(30, 45).double()], 1)[None]
    got = torch.linalg.svdvals(polar(wide / 2, polynomials(name, 5), 1.01 if name == "polar_express" else 1.0))
    assert got.min() > 0.5
    assert got.max() < 1.3
