"""Matrices with a factor for the rows and one for the columns."""

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from superadam import SuperAdam, matrices, schedules
from superadam.matrices import products


@pytest.mark.parametrize("size", [1e-3, 1.0, 1e3])
def test_soaps_first_step_is_no_rounding_error(size):
    """In its own eigenvectors the first gradient is diagonal, so the step is the polar factor: what float32 leaves
    beside the diagonal must not be divided by its own size."""
    torch.manual_seed(0)
    x, grad = torch.zeros(40, 30, requires_grad=True), size * torch.randn(40, 30)
    x.grad = grad
    SuperAdam([x], lr=1.0, matrix=matrices.SOAP(), schedule=schedules.Constant(alpha=1.0)).step()
    U, _, Vh = torch.linalg.svd(grad, full_matrices=False)
    assert torch.linalg.norm(x + U @ Vh) < 0.02 * torch.linalg.norm(U @ Vh)


@pytest.mark.parametrize("size", [1e-3, 1.0, 1e6])
@pytest.mark.parametrize("shape", [(40, 30), (30, 40)])
def test_shampoos_first_step_is_no_rounding_error(shape, size):
    """The polar factor too. The longer side's factor is singular: rounding errors there must not be divided by the
    root of ε."""
    torch.manual_seed(0)
    x, grad = torch.zeros(shape, requires_grad=True), size * torch.randn(shape)
    x.grad = grad
    matrix = matrices.Shampoo(beta=1.0, eps=1e-12)
    SuperAdam([x], lr=1.0, matrix=matrix, schedule=schedules.Constant(alpha=1.0)).step()
    U, _, Vh = torch.linalg.svd(grad, full_matrices=False)
    assert torch.linalg.norm(x + U @ Vh) < 1e-3 * torch.linalg.norm(U @ Vh)


class Products(TorchDispatchMode):
    """Counts the products of matrices."""

    count = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        self.count += func.overloadpacket.__name__ in ("bmm", "mm", "baddbmm_")
        return func(*args, **(kwargs or {}))


def shampoo(**options):
    x = torch.zeros(4, 3, dtype=torch.float64, requires_grad=True)
    opt = SuperAdam([x], lr=0.1, matrix=matrices.Shampoo(**{"every": 3, **options}))
    torch.manual_seed(0)
    for _ in range(2):
        x.grad = torch.randn_like(x)
        opt.step()
    return x, opt


@pytest.mark.parametrize(("sides", "products"), [(1024, 4), (0, 2)])
def test_a_step_of_shampoo_multiplies_each_side_twice(sides, products):
    """Into its factor, and by its root; the roots were computed in the step before the last."""
    _, opt = shampoo(every=10, one_sided_above=sides)
    with Products() as seen:
        opt.step()
    assert seen.count == products


def test_shampoos_eigenvectors_are_those_of_its_roots():
    """What an L2 ball asks for: H⁻¹g is the same by eigenvectors and by the roots, with grafting too."""
    for grafting in (None, matrices.SecondMoment()):
        _, opt = shampoo(eps=1e-6, grafting=grafting)
        (s,) = opt.buckets()
        matrix = s.matrix
        rotate, d, back = matrix.eigen(s)
        g = s.estimates
        for step in (back(rotate(g) / d), matrix.inverse(s)(g)):
            torch.testing.assert_close(step, matrix.solve(s, g), rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize("name", ["SOAP", "Shampoo", "KLShampoo"])
def test_tensors_that_are_refreshed_together_are_refreshed_as_each_alone(name, monkeypatch):
    """Of twelve tensors of one shape two or three are due in a step: one call for these, or one for each."""

    def trained():
        torch.manual_seed(0)
        params = [(f"p{i}", torch.randn(4, 3, dtype=torch.float64, requires_grad=True)) for i in range(12)]
        opt = SuperAdam(params, lr=0.1, matrix=getattr(matrices, name)(every=5))
        for _ in range(12):
            for _, p in params:
                p.grad = torch.randn_like(p)
            opt.step()
        return torch.stack([p.detach() for _, p in params])

    together, calls, refresh = trained(), [], getattr(matrices, name).refresh

    def alone(self, s):
        calls.append(len(s.params))
        for i in range(len(s.params)):
            refresh(self, s.like(**{name: getattr(s, name)[i : i + 1] for name in s.slots}))

    monkeypatch.setattr(getattr(matrices, name), "refresh", alone)
    torch.testing.assert_close(together, trained(), rtol=1e-12, atol=1e-12)
    assert set(calls) == {2, 3, 12}  # all in the first step


def test_a_partial_refresh_copies_no_slot(monkeypatch):
    """The slots of those that are due are a part of the batch, and no index is made."""
    params = [(f"p{i}", torch.randn(4, 3, requires_grad=True)) for i in range(5)]
    opt = SuperAdam(params, matrix=matrices.SOAP(every=2))
    seen, refresh = [], matrices.SOAP.refresh

    def look(self, s):
        states = [opt.state[p] for p in s.params]
        seen.append((len(s.params), {name for name in s.slots if getattr(s, name)._base is not states[0][name]._base}))
        refresh(self, s)

    for t in range(3):
        for _, p in params:
            p.grad = torch.randn_like(p)
        if t > 0:
            monkeypatch.setattr(matrices.SOAP, "refresh", look)
        opt.step()
    assert seen == [(2, set()), (3, set())]


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
@pytest.mark.parametrize("batch", [1, 2])
@pytest.mark.parametrize("rows", [20, 300, 600])
def test_symmetric_products_by_blocks_are_those_of_the_whole(rows, batch, dtype):
    """With rows that are no multiple of a block, and transposed matrices."""
    X = torch.randn(batch, 40, rows, dtype=dtype).mT
    C = products.symmetric(X, X.mT)
    close = {"atol": 0.5, "rtol": 0.02} if dtype is torch.bfloat16 else {}
    with torch.no_grad():
        torch.testing.assert_close(products.symmetric(X, X.mT), C, **close)
        torch.testing.assert_close(products.symmetric(X, X.mT, C, beta=0.5, alpha=2.0), 2.5 * C, **close)
        A = C.clone()
        products.add_gram(A, X, 0.5, 2.0)
    torch.testing.assert_close(A, 2.5 * C, **close)
