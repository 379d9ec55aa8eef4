"""Matrices of each tensor against published packages: pytorch_optimizer (tried with 4.1.0), HeavyBall (3.2.1) and
kron-torch (0.3.3). They are no dependencies: without them, skipped. `muon` has torch's own, in
tests/matrices/test_per_tensor.py.

What they do otherwise than the zoo, and how each is met here:

| package, method            | there                                 | the zoo                | here                   |
|----------------------------|---------------------------------------|------------------------|------------------------|
| all                        | weight decay after the step           | before it              | 0                      |
| SOAP, both packages        | the first gradient is no step: it     | it is a step, too      | they get g_1 twice     |
|                            | gives eigenvectors only               |                        |                        |
| pytorch_optimizer SOAP     | ε is added to √v before v's           | after it, as Adam's    | ε = 0, or no           |
|                            | correction                            |                        | corrections            |
|                            | QR in float32                         | in the state's dtype   | told to use float64    |
| pytorch_optimizer SOAP,    | a factor for each dimension           | rows, and all others   | two dimensions         |
| Shampoo                    |                                       | together               |                        |
| HeavyBall SOAP             | averages L and R with corrections;    | plain averages, with   | before the first       |
|                            | the null space lifted before QR       | g_1 twice              | refresh                |
|                            | state in float32                      | in x's dtype           | tolerance 2e-6         |
| pytorch_optimizer Shampoo  | the last step is part of the next     | momentum apart         | none                   |
|                            | gradient, and of L and R              |                        |                        |
| pytorch_optimizer          | averages L^(-1/4) G R^(-1/4)          | averages G             | no momentum            |
| ScalableShampoo            | L_0 = εI, which fades                 | L + εI                 | ε = 0                  |
|                            | no correction of L and R              | there is one           | bias_correction=False  |
|                            | grafting: one size for all blocks     | one for each block     | one block              |
| pytorch_optimizer Kron     | random V                              | V by step and shape    | the zoo's V            |
|                            | balanced at random times              | every 100 updates      | not in 50 steps        |
|                            | triangular solves in float32          | in the state's dtype   | told to use float64    |
|                            | the bound is of RMS + 1e-6            | of RMS                 | seldom met, or 1e-6    |
|                            | from step 500 on, an update once 1/p  | Σp updates             | 50 steps               |
|                            | steps have passed                     |                        |                        |
| kron-torch                 | also: 3e-4 of V is added to g, and    | not                    | tolerance 2e-3         |
|                            | solves are in float32                 |                        |                        |
| Kron, both packages        | vectors are whitened                  | Adam's second moment   | no vectors             |
"""

import pytest
import torch

from superadam import SuperAdam, create, matrices, schedules

pytestmark = pytest.mark.slow

STEPS = 50


class InDouble:
    """torch, as a module sees it that says float32 where it would better say nothing. `more` replaces functions."""

    float32 = torch.float64

    def __init__(self, **more):
        self.__dict__.update(more)

    def __getattr__(self, name):
        return getattr(torch, name)


@pytest.fixture
def package(monkeypatch):
    package = pytest.importorskip("pytorch_optimizer")
    monkeypatch.setattr(package.optimizer.soap, "torch", InDouble())
    monkeypatch.setattr(package.optimizer.psgd, "torch", InDouble(randn_like=noise()))
    return package


def noise():
    """V of the zoo's psgd_kron, for the first parameter of an optimizer: that of the t-th step in the t-th call."""
    calls = iter(range(1, 10**6))
    return lambda x, **_: torch.randn(x.shape, generator=torch.Generator().manual_seed(next(calls)), dtype=x.dtype)


def gradients(*shapes, scale=1.0):
    generator = torch.Generator().manual_seed(0)
    return [
        [scale * (0.3 + torch.randn(shape, generator=generator, dtype=torch.float64)) for shape in shapes]
        for _ in range(STEPS)
    ]


def run(build, batches):
    """x after each batch."""
    generator = torch.Generator().manual_seed(1)
    params = [torch.randn(g.shape, generator=generator, dtype=g.dtype).requires_grad_() for g in batches[0]]
    opt, points = build(params), []
    for grads in batches:
        for p, grad in zip(params, grads, strict=True):
            p.grad = grad.clone()
        opt.step()
        points.append(torch.cat([p.detach().flatten() for p in params]))
    return torch.stack(points)


def check(actual, expected, tol=1e-10):
    torch.testing.assert_close(actual, expected, rtol=0, atol=tol)
    assert (expected[-1] - expected[0]).abs().max() > 0.02


@pytest.mark.parametrize(("shape", "largest"), [((9, 5), 6), ((5, 9), 6), ((9, 8), 4)], ids=["right", "left", "Adam"])
def test_soap_on_one_side(package, shape, largest):
    """Refreshed four times. Where both sides are longer than max_precond_dim, it is Adam for both."""
    batches = gradients(shape, (4,))
    options = {"lr": 0.01, "betas": (0.9, 0.97), "eps": 0.0, "weight_decay": 0.0, "precondition_frequency": 10}
    expected = run(lambda p: package.SOAP(p, max_precondition_dim=largest, **options), [batches[0], *batches])[1:]
    check(run(lambda p: create("soap", p, max_precond_dim=largest, **options), batches), expected)


@pytest.mark.parametrize("factor_beta", [None, 0.8])
def test_soap_on_both_sides(package, factor_beta):
    """Without corrections, so that ε is in the same place. It keeps the first step's rounding errors down, too: a
    gradient is diagonal in its own eigenvectors, and theirs divides what is beside the diagonal by its own size."""
    batches = gradients((6, 6), (4,))
    options = {"lr": 0.01, "betas": (0.9, 0.97), "eps": 1e-3, "weight_decay": 0.0, "shampoo_beta": factor_beta}
    expected = run(lambda p: package.SOAP(p, correct_bias=False, **options), [batches[0], *batches])[1:]
    matrix = matrices.ByShape(
        matrices.SOAP(0.97, 1e-3, factor_beta=factor_beta, bias_correction=False), matrices.SecondMoment(0.97, 1e-3)
    )
    plain = schedules.Constant(alpha=0.1, first=0.1)
    check(run(lambda p: SuperAdam(p, lr=0.01, matrix=matrix, schedule=plain), batches), expected)


def test_soap_with_the_defaults(package):
    """ε is not in the same place: the difference is of its order."""
    batches = gradients((6, 6), (4,))
    expected = run(lambda p: package.SOAP(p, weight_decay=0.0), [batches[0], *batches])[1:]
    check(run(lambda p: create("soap", p, weight_decay=0.0), batches), expected, tol=1e-7)


def test_heavyball_soap_before_its_first_refresh(monkeypatch):
    """Its state is float32."""
    heavyball = pytest.importorskip("heavyball")
    monkeypatch.setattr(heavyball.utils, "compile_mode", None)
    batches = gradients((6, 6))
    options = {"lr": 0.01, "betas": (0.9, 0.97), "eps": 1e-6, "weight_decay": 0.0, "precondition_frequency": 1000}
    expected = run(lambda p: heavyball.SOAP(p, **options), [batches[0], *batches])[1:]
    check(run(lambda p: create("soap", p, **options), batches), expected, tol=2e-6)


def test_shampoo(package):
    """Gupta, Koren and Singer's own: sums, and a root in every step."""
    batches = gradients((6, 6), (9, 5), (5, 9))
    expected = run(lambda p: package.Shampoo(p, lr=0.1, matrix_eps=1e-4), batches)
    check(run(lambda p: create("shampoo", p, lr=0.1, betas=(0.0, 1.0), epsilon=1e-4), batches), expected)


@pytest.mark.parametrize(
    ("theirs", "ours"),
    [
        ({}, {}),
        ({"block_size": 3}, {"block": 3}),
        ({"graft_type": 3}, {"grafting": matrices.SecondMoment(0.9, 1e-10)}),
        ({"inverse_exponent_override": 2}, {"power": 0.5}),
    ],
    ids=["plain", "blocks", "grafted", "square roots"],
)
def test_shampoo_with_averages(package, theirs, ours):
    batches = gradients((6, 6))
    options = {"moving_average_for_momentum": True, "nesterov": False, "shape_interpretation": False, "use_svd": True}
    options |= {"start_preconditioning_step": 1, "preconditioning_compute_steps": 1, "matrix_eps": 0.0}
    options |= {"graft_type": 0, **theirs}
    expected = run(lambda p: package.ScalableShampoo(p, lr=0.1, betas=(0.0, 0.9), **options), batches)
    matrix, newest = matrices.Shampoo(0.9, 0.0, 1, bias_correction=False, **ours), schedules.Constant(alpha=1.0)
    check(run(lambda p: SuperAdam(p, lr=0.1, matrix=matrix, schedule=newest), batches), expected)


@pytest.mark.parametrize(
    ("shape", "triangular", "tol"), [((6, 4), 8, 1e-10), ((4, 6), 8, 1e-10), ((6, 4), 5, 1e-10), ((6, 4), 3, 1e-6)]
)
def test_psgd_kron(package, shape, triangular, tol):
    """Triangular factors, and diagonal ones for sides longer than max_size_triangular. Two diagonal ones soon whiten,
    and the bound of the root mean square is met, which the package adds 1e-6 to."""
    batches = gradients(shape, scale=0.03)
    options = {"lr": 0.02, "max_size_triangular": triangular}
    expected = run(lambda p: package.Kron(p, balance_prob=0.0, precondition_dtype=torch.float64, **options), batches)
    check(run(lambda p: create("psgd_kron", p, **options), batches), expected, tol)


def test_psgd_kron_of_its_author(monkeypatch):
    """kron-torch adds a little of V to g."""
    kron = pytest.importorskip("kron_torch.kron")
    monkeypatch.setattr(kron, "torch", InDouble(randn_like=noise()))
    batches = gradients((6, 4), scale=0.1)
    with torch.compiler.set_stance("force_eager"):
        expected = run(lambda p: kron.Kron(p, lr=0.02), batches)
    actual = run(lambda p: create("psgd_kron", p, lr=0.02), batches)
    check(actual, expected, tol=2e-3)


def test_psgd_kron_whitens_as_heavyballs_does(monkeypatch):
    """Whatever V is, H⁻¹ tends to the inverse root of the gradients' covariance: steps have about variance 1 in every
    direction."""
    heavyball = pytest.importorskip("heavyball")
    monkeypatch.setattr(heavyball.utils, "compile_mode", None)
    torch.manual_seed(0)
    rows, columns, mixed = (
        torch.logspace(-0.5, 0.5, 6),
        torch.logspace(-0.3, 0.3, 4),
        torch.linalg.qr(torch.randn(6, 6)).Q,
    )
    batches = [[mixed @ (rows[:, None] * torch.randn(6, 4) * columns)] for _ in range(1000)]
    for build in (
        lambda p: create("psgd_kron", p, lr=1.0, b1=0.0),
        lambda p: heavyball.PSGDKron(p, lr=1.0, beta=0.0, preconditioner_update_probability=1.0),
    ):
        steps = run(build, batches).diff(dim=0)[-400:]
        values = torch.linalg.eigvalsh(steps.T.cov())  # those of the gradients are a factor 1600 apart
        assert 0.1 < values.min() < values.max() < 2
