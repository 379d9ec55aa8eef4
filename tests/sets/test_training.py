"""Training on sets: every iterate is feasible in float32, and resuming is not stopping."""

import io

import pytest
import torch

from sets.coupled import numbers
from sets.every import OF_ROWS
from superadam import SuperAdam, matrices, sets


@pytest.mark.parametrize("steps", [150, pytest.param(10_000, marks=pytest.mark.slow)])
@pytest.mark.parametrize("name", OF_ROWS)
def test_every_iterate_on_rows_is_feasible_in_float32(name, steps):
    gen = torch.Generator().manual_seed(0)
    x = torch.randn(3, 6, generator=gen).requires_grad_()
    opt = SuperAdam([x], lr=0.1, schedule="Paper", constraint=OF_ROWS[name])
    target, worst = 2 * torch.randn(3, 6, generator=gen), 0.0
    for _ in range(steps):
        x.grad = x.detach() - target + 0.1 * torch.randn(3, 6, generator=gen)
        opt.step()
        worst = max(worst, opt.feasibility())
    assert worst < 2e-6


@pytest.mark.parametrize("name", OF_ROWS)
def test_resumed_equals_uninterrupted(name, tmp_path):
    gen = torch.Generator().manual_seed(0)
    start, grads = torch.randn(3, 6, generator=gen), torch.randn(8, 3, 6, generator=gen)

    def run(x, opt, some):
        for g in some:
            x.grad = g.clone()
            opt.step()
        return x.detach().clone()

    x = start.clone().requires_grad_()
    opt = SuperAdam([x], lr=0.3, constraint=OF_ROWS[name])
    half = run(x, opt, grads[:4])
    torch.save(opt.state_dict(), tmp_path / "opt.pt")
    whole = run(x, opt, grads[4:])
    x = half.clone().requires_grad_()
    opt = SuperAdam([x], lr=0.3, constraint=OF_ROWS[name])
    opt.load_state_dict(torch.load(tmp_path / "opt.pt", weights_only=True))
    x.data.copy_(half)
    assert torch.equal(run(x, opt, grads[4:]), whole)


SQUARE = {
    "Polyhedron": (sets.Polyhedron(numbers(0, (6, 16)), numbers(1, (6,)).abs()), None),
    "DoublyStochastic": (sets.DoublyStochastic(), None),
    "transport": (sets.DoublyStochastic(torch.tensor([0.1, 0.2, 0.3, 0.4]), torch.tensor([0.3, 0.3, 0.2, 0.2])), None),
    "convex rows": (sets.Ordered("convex", low=-0.3, high=1.0), None),
    "PSD": (sets.PSD(), "GradientNorm"),
    "Spectrahedron": (sets.Spectrahedron(), "GradientNorm"),
    "Correlation": (sets.Correlation(), "GradientNorm"),
    "Intersection of rows": (
        sets.Intersection(sets.Simplex(dim=None), sets.Halfspace(numbers(2, (4, 4)), -0.1), sets.Box(0, 0.2)),
        None,
    ),
    "Intersection of balls": (sets.Intersection(sets.L1Ball(2.0), sets.L2Ball(0.8)), None),
}


def training(name, dtype=torch.float32):
    part, matrix = SQUARE[name]
    x = torch.nn.Parameter(numbers(7, (4, 4)).to(dtype))
    opt = SuperAdam([x], lr=0.1, constraint=part, **({} if matrix is None else {"matrix": matrix}))
    target = numbers(8, (4, 4)).to(dtype)

    def step(t):
        x.grad = x.detach() - target + 0.3 * numbers(1000 + t, (4, 4)).to(dtype)
        opt.step()

    return x, opt, step


@pytest.mark.parametrize("name", SQUARE)
@pytest.mark.parametrize("steps", [25, pytest.param(10_000, marks=pytest.mark.slow)])
def test_every_iterate_is_feasible_in_float32(name, steps):
    _, opt, step = training(name)
    worst = opt.feasibility()
    for t in range(steps):
        step(t)
        worst = max(worst, opt.feasibility())
    assert worst < 4e-6


@pytest.mark.parametrize("name", SQUARE)
def test_resumed_on_coupled_sets_equals_uninterrupted(name):
    x, opt, step = training(name)
    for t in range(5):
        step(t)
    stored = io.BytesIO()
    torch.save({"x": x.detach().clone(), "opt": opt.state_dict()}, stored)
    for t in range(5, 10):
        step(t)
    stored.seek(0)
    kept = torch.load(stored, weights_only=True)
    again, other, step = training(name)
    other.load_state_dict(kept["opt"])
    again.data.copy_(kept["x"])
    for t in range(5, 10):
        step(t)
    if "balls" in name:  # whose extrapolation has rounding errors that depend on where memory is
        torch.testing.assert_close(again, x, rtol=0, atol=1e-7)
    else:
        assert torch.equal(again, x)


def test_a_polyhedron_goes_with_every_matrix_and_an_intersection_of_rows_too():
    for part in (SQUARE["Polyhedron"][0], sets.Intersection(sets.Hyperplane(1.0, 1.0), SQUARE["Polyhedron"][0])):
        for matrix in (matrices.SOAP(), matrices.PSGDKron(), matrices.GradientNorm(), matrices.SecondMoment()):
            x = torch.nn.Parameter(numbers(7, (4, 4)))
            opt = SuperAdam([x], lr=0.1, constraint=part, matrix=matrix)
            for t in range(5):
                x.grad = numbers(t, (4, 4))
                opt.step()
            assert opt.feasibility() < 1e-9
