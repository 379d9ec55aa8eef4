"""PSGD is its published equations, and whitens."""

import pytest
import torch

from matrices.formulas import after, averages, equal, gradients
from superadam import SuperAdam, schedules
from superadam.matrices import PSGDKron


def test_psgd_equals_its_equations():
    m, n = 4, 3
    grads = gradients((m, n), 6)
    x, Q_L, Q_R = torch.zeros(m, n).double(), torch.eye(m).double(), torch.eye(n).double()
    for t, g in enumerate(averages(grads), start=1):
        V = torch.randn(m, n, generator=torch.Generator().manual_seed(t), dtype=torch.float64)
        A, B = Q_L @ g @ Q_R.T, torch.linalg.inv(Q_L).T @ V @ torch.linalg.inv(Q_R)
        new = []
        for Q, a, b in ((Q_L, A @ A.T, B @ B.T), (Q_R, A.T @ A, B.T @ B)):
            u = (a + b) @ (a + b)[:, (a + b).norm(dim=0).argmax()]
            norm = ((a + b) @ (u / u.norm())).norm()
            new.append(Q - 0.1 * (a - b).triu() @ Q / norm)
        Q_L, Q_R = new
        step = Q_L.T @ Q_L @ g @ Q_R.T @ Q_R
        x = x - 0.1 * step * min(1.0, 1.1 / step.square().mean().sqrt())
    equal(after(PSGDKron(), (m, n), grads)[0], x)


def test_psgd_whitens():
    """After many steps, H⁻¹ makes gradients of any covariance white."""
    root = torch.diag(torch.tensor([3.0, 1.0, 0.3])).double()
    grads = [root @ grad for grad in gradients((3, 10), 400)]
    _, opt = after(PSGDKron(), (3, 10), grads)
    ((state),) = opt.state.values()
    left, right = (state[name][0].T @ state[name][0] for name in ("QL", "QR"))
    steps = [left @ g @ right for g in averages(grads)]
    covariance = sum(step @ step.T for step in steps)
    spread = torch.linalg.eigvalsh(covariance)
    assert spread.max() / spread.min() < 2  # 100 without


@pytest.mark.parametrize("size", [1e6, 1e12])
def test_psgds_step_of_a_large_gradient(size):
    """The fourth power of a factor's gradient is beyond float32."""
    finals = []
    for dtype in (torch.float32, torch.float64):
        x = torch.zeros(4, 6, dtype=dtype, requires_grad=True)
        opt = SuperAdam([x], lr=0.1, matrix=PSGDKron(), schedule=schedules.Constant(alpha=1.0))
        x.grad = size * gradients((4, 6), 1)[0].to(dtype)
        opt.step()
        finals.append(x.detach().double())
    torch.testing.assert_close(*finals, rtol=1e-3, atol=0)  # float32 has random numbers of its own
