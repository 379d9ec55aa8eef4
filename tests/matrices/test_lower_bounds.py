"""Assumption 3: H_t ⪰ ρI with the ρ that a matrix states, whatever the gradients are."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from superadam import Monitor, SuperAdam, matrices
from superadam.lists import each
from superadam.matrices import SOAP, ByShape, KLShampoo, Matrix, Muon, PSGDKron, Shampoo

STATED = {name: kind() for name, kind in Matrix._names.items() if kind.__module__.startswith("superadam.")}
BOUNDED = {
    **{name: matrix for name, matrix in STATED.items() if matrix.lower_bound > 0 and not isinstance(matrix, ByShape)},
    "Muon, λ": Muon(lam=0.1),
    "Shampoo, both sides": Shampoo(eps=1e-3, every=2),
    "Shampoo, one side": Shampoo(eps=1e-3, every=2, one_sided_above=0),
    "Shampoo, p = 1/2": Shampoo(eps=1e-3, every=1, power=0.5),
    "Shampoo, p = 1/2, one side": Shampoo(eps=1e-3, every=1, power=0.5, one_sided_above=0),
    "Shampoo, p = 1/2, one side of some": Shampoo(eps=1e-3, every=1, power=0.5, one_sided_above=3),
    "Shampoo, ε > 1": Shampoo(eps=4.0, every=1, power=0.5, one_sided_above=3),
    "SOAP, one side": SOAP(lam=0.01, every=2, one_sided_above=0),
    "KL-Shampoo": KLShampoo(every=2),
}


@pytest.mark.parametrize("name", BOUNDED)
@given(seed=st.integers(0, 10**6), scale=st.sampled_from([0.0, 1e-8, 1e-3, 1.0, 1e4]), rank=st.integers(1, 4))
def test_h_is_bounded_below(name, seed, scale, rank):
    matrix, generator = BOUNDED[name], torch.Generator().manual_seed(seed)
    p = torch.randn(4, 5, generator=generator, dtype=torch.float64).requires_grad_()
    opt = SuperAdam([p], lr=1e-3, matrix=matrix)
    monitor = Monitor(opt, 1, limits={"condition": float("inf"), "explosion": float("inf")})

    for _ in range(3):
        left, right = (torch.randn(n, rank, generator=generator, dtype=torch.float64) for n in (4, 5))

        def closure(target=left @ right.T):  # a matrix may ask for two gradients of a batch
            p.grad = scale * (p.detach() + target)

        opt.step(closure)
        assert monitor.last["H_min"] >= matrix.lower_bound * (1 - 1e-9)


@pytest.mark.parametrize(
    ("matrix", "bound"),
    [
        (Shampoo(eps=1e-4, power=0.5), 1e-4),
        (Shampoo(eps=1e-4, power=0.5, one_sided_above=0), 1e-2),
        (Shampoo(eps=1e-4), 1e-2),
        (Shampoo(eps=4.0, power=0.5), 2.0),
        (Shampoo(grafting=matrices.SecondMoment()), 0.0),
        (PSGDKron(), 0.0),
    ],
)
def test_what_shampoo_and_psgd_state(matrix, bound):
    assert matrix.lower_bound == pytest.approx(bound)


@pytest.mark.parametrize("one_sided_above", [0, 1024])
def test_shampoos_bound_is_reached(one_sided_above):
    """By gradients that are zero: H_t is the bound itself."""
    matrix = Shampoo(eps=1e-4, every=1, power=0.5, one_sided_above=one_sided_above)
    p = torch.zeros(3, 4, dtype=torch.float64, requires_grad=True)
    monitor = Monitor(opt := SuperAdam([p], lr=0.1, matrix=matrix), 1)
    p.grad = torch.zeros_like(p)
    opt.step()
    assert monitor.last["H_min"] == pytest.approx(matrix.lower_bound)
    assert monitor.last["H_max"] == pytest.approx(matrix.lower_bound)


@pytest.mark.parametrize(
    "matrix",
    [
        *(
            kind()
            for kind in Matrix._names.values()
            if kind.__module__.startswith("superadam.") and not kind.per_tensor
        ),
        matrices.SCAdaGrad(xi1=5.0, xi2=2.0),
        matrices.AMSGrad(lam=0.01, power=0.125, lam_inside=True),
        matrices.AMSGrad(lam=0.01, power=0.125),
        matrices.AdaBound(lam=1.0, final=100.0),
        matrices.AccumulatedNorm(omega=4.0, k=3.0, past=True),
        matrices.EstimateNorm(floor=0.1, scale=2.0),
    ],
    ids=str,
)
def test_no_H_is_below_the_lower_bound_of_its_matrix(matrix):
    """Whatever the gradients are: from 1e-9 to 1e3 here."""
    if matrix.joint:
        assert matrix.lower_bound == 0
        return
    if isinstance(matrix, matrices.ByShape) or matrix.vanishes:
        pytest.skip("its parts are here, or H is 0")
    x = torch.nn.Parameter(torch.ones(8, dtype=torch.float64))
    opt = SuperAdam([x], lr=1e-3, matrix=matrix)
    scale = 10 ** (12 * torch.rand(8, dtype=torch.float64) - 9)

    def closure():
        x.grad = scale * torch.randn(8, dtype=torch.float64)
        return 0.0

    for _ in range(200):
        opt.step(closure)
        (s,) = opt.buckets()
        assert min(h.min() for h in each(matrix.H(s))) >= matrix.lower_bound * (1 - 1e-12)
