"""SOAP and KL-Shampoo are their published equations."""

import pytest
import torch

from matrices.formulas import after, averages, equal, gradients
from superadam.matrices import SOAP, KLShampoo


@pytest.mark.parametrize(("shape", "one_sided_above"), [((4, 3), 1024), ((3, 5), 4)])
def test_soap_equals_its_equations(shape, one_sided_above):
    grads, beta, lam, every = gradients(shape, 9), 0.9, 1e-3, 2
    x, v = torch.zeros(shape).double(), torch.zeros(shape).double()
    sides = [0, 1] if max(shape) <= one_sided_above else [int(shape[1] < shape[0])]
    A = {i: torch.zeros(shape[i], shape[i]).double() for i in sides}
    Q = {}

    def rotated(M, back=False):
        for i in sides:
            q = Q[i] if back else Q[i].T
            M = q @ M if i == 0 else M @ q.T
        return M

    def average(grad):
        for i in sides:
            A[i] = beta * A[i] + (1 - beta) * (grad @ grad.T if i == 0 else grad.T @ grad)

    for t, (grad, g) in enumerate(zip(grads, averages(grads), strict=True), start=1):
        if t == 1:
            average(grad)
            for i in sides:
                Q[i] = torch.linalg.eigh(A[i])[1].flip(1)
        elif (t - 1) % every == 0:
            for i in sides:
                order = (Q[i].T @ A[i] @ Q[i]).diagonal().argsort(descending=True)
                Q[i], v = torch.linalg.qr(A[i] @ Q[i][:, order])[0], v.index_select(i, order)
        v = beta * v + (1 - beta) * rotated(grad) ** 2
        average(grad)
        x = x - 0.1 * rotated(rotated(g) / ((v / (1 - beta**t)).sqrt() + lam), back=True)
    equal(after(SOAP(beta, lam, every, one_sided_above=one_sided_above), shape, grads)[0], x)


def test_kl_shampoo_equals_its_equations():
    m, n, beta, every = 4, 3, 0.9, 2
    grads = gradients((m, n), 8)
    x, floor = torch.zeros(m, n).double(), 10**-2
    S_L, S_R = torch.zeros(m, m).double(), torch.zeros(n, n).double()
    l_L, l_R = torch.full((m,), 0.1).double(), torch.full((n,), 0.1).double()
    for t, (grad, g) in enumerate(zip(grads, averages(grads), strict=True), start=1):
        if t == 1:
            Q_L, Q_R = (torch.linalg.eigh(A)[1].flip(1) for A in (grad @ grad.T, grad.T @ grad))
        elif (t - 1) % every == 0:
            o_L = (Q_L.T @ S_L @ Q_L).diagonal().argsort(descending=True)
            o_R = (Q_R.T @ S_R @ Q_R).diagonal().argsort(descending=True)
            Q_L, l_L = torch.linalg.qr(S_L @ Q_L[:, o_L])[0], l_L[o_L]
            Q_R, l_R = torch.linalg.qr(S_R @ Q_R[:, o_R])[0], l_R[o_R]
        d_L, d_R = l_L.clamp(min=floor), l_R.clamp(min=floor)
        new_L = grad @ Q_R @ (1 / d_R).diag() @ Q_R.T @ grad.T / n
        new_R = grad.T @ Q_L @ (1 / d_L).diag() @ Q_L.T @ grad / m
        l_L = beta * l_L + (1 - beta) * (Q_L.T @ new_L @ Q_L).diagonal()
        l_R = beta * l_R + (1 - beta) * (Q_R.T @ new_R @ Q_R).diagonal()
        S_L, S_R = beta * S_L + (1 - beta) * new_L, beta * S_R + (1 - beta) * new_R
        d_L, d_R = l_L.clamp(min=floor), l_R.clamp(min=floor)
        x = x - 0.1 * (Q_L @ (d_L**-0.5).diag() @ Q_L.T) @ g @ (Q_R @ (d_R**-0.5).diag() @ Q_R.T)
    equal(after(KLShampoo(beta, every), (m, n), grads)[0], x, 1e-8)
