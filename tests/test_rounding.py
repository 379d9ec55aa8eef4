"""Small updates of bfloat16 weights count."""

import pytest
import torch

from problems import Stochastic, SuperAdam
from superadam import bucket, matrices, rounding, schedules, step
from superadam.distributed import positions


def same(a, b):
    torch.testing.assert_close(a, b, rtol=0, atol=0)


def bits_of(seed, n):
    return torch.randint(0, 2**16, (n,), generator=torch.Generator().manual_seed(seed))


@pytest.mark.parametrize("value", [1.001, -1.003, 1e-37, 1e38, 0.1])
def test_stochastic_rounding_is_unbiased(value):
    """Only the two neighbours occur, each as often as the mean needs: within five standard errors."""
    n = 100_000
    x = torch.full((n,), value)
    rounded = rounding.stochastic(x, bits_of(0, n)).double()
    low, high = rounded.min(), rounded.max()
    assert rounded.unique().numel() == 2
    assert torch.nextafter(low.bfloat16(), torch.tensor(torch.inf, dtype=torch.bfloat16)).double() == high
    error = (rounded.mean() - x[0].double()) / (rounded.std() / n**0.5)
    assert abs(error) < 5


def test_what_bfloat16_can_hold_is_not_rounded():
    x = torch.cat([torch.randn(1000).bfloat16().float(), torch.tensor([0.0, -0.0, torch.inf, -torch.inf])])
    same(rounding.stochastic(x, bits_of(0, len(x))).float(), x)
    assert rounding.stochastic(torch.tensor([torch.nan]), torch.tensor([65535])).isnan().all()


def test_the_hash_behaves_like_independent_bits():
    """Over positions, steps and parameters: every bit is fair, and none says anything about another."""
    p = torch.zeros(500, 40, dtype=torch.bfloat16)
    states = [{"step": step, "number": number} for step in (1, 2) for number in (0, 1)]
    draws = [rounding.random_bits(positions(p), state).flatten() for state in states]
    fair = torch.stack([(torch.stack(draws) >> k) & 1 for k in range(32)]).double().flatten(0, 1)
    n = fair.shape[-1]
    assert ((fair.mean(-1) - 0.5).abs() < 5 * 0.5 / n**0.5).all()
    centred = 2 * fair - 1
    correlation = centred @ centred.T / n - torch.eye(len(centred))
    assert correlation.abs().max() < 5.5 / n**0.5
    assert (centred[:, 1:] * centred[:, :-1]).mean(-1).abs().max() < 5 / n**0.5


def small_updates(how, tau=0.0, dtype=torch.bfloat16, steps=300, **options):
    """f(x) = ⟨1, x⟩ on weights of 1, by steps of 10⁻⁴: a fortieth of what bfloat16 resolves there."""
    x = torch.ones(1000, dtype=dtype, requires_grad=True)
    opt = SuperAdam([x], lr=1e-4, tau=tau, schedule=schedules.Constant(1.0, 0.1), rounding=how, **options)

    def closure():
        opt.zero_grad()
        x.sum().backward()

    for _ in range(steps):
        opt.step(closure)
    opt.flush()
    return x.detach().double(), opt


@pytest.mark.parametrize("tau", [0.0, 1.0])
def test_small_updates_count(tau):
    """To nearest, x never moves. Stochastic: exact in the mean."""
    matrix = matrices.Identity()
    exact, _ = small_updates("nearest", tau, torch.float32, matrix=matrix)
    assert (1 - exact).min() > 0.02
    nearest, _ = small_updates("nearest", tau, matrix=matrix)
    assert (nearest == 1).all()
    random, _ = small_updates("stochastic", tau, matrix=matrix)
    error = (random.mean() - exact.mean()) / (random.std() / len(random) ** 0.5)
    assert abs(error) < 5
    assert (random - exact).abs().max() < 0.05


@pytest.mark.parametrize("options", [{}, {"tau": 1.0}, {"foreach": True, "tau": 1.0}], ids=str)
def test_rounding_resumes_bit_for_bit(options, tmp_path):
    """Whatever the generators are at; and it does not use them."""
    problem = Stochastic(shapes=[(40,), (3, 5)], dtype=torch.float32)

    def setup():
        params = [p.detach().bfloat16().requires_grad_() for p in problem.params()]
        return params, SuperAdam(params, lr=1e-3, rounding="stochastic", **options)

    def train(params, opt, samples):
        for i in samples:

            def closure(i=i):
                opt.zero_grad()
                problem.loss(problem.join(params).float(), i).backward()

            opt.step(closure)

    params, opt = setup()
    train(params, opt, range(5))
    torch.save([[p.detach() for p in params], opt.state_dict()], tmp_path / "run.pt")
    before = torch.get_rng_state()
    train(params, opt, range(5, 10))
    same(torch.get_rng_state(), before)
    torch.manual_seed(99)
    again, resumed = setup()
    saved, state = torch.load(tmp_path / "run.pt", weights_only=True)
    with torch.no_grad():
        for p, q in zip(again, saved, strict=True):
            p.copy_(q)
    resumed.load_state_dict(state)
    train(again, resumed, range(5, 10))
    same(again, params)


def test_full_precision_needs_no_rounding():
    for dtype in (torch.float32, torch.float64):
        expected, _ = small_updates("nearest", dtype=dtype, steps=5)
        x, opt = small_updates("stochastic", dtype=dtype, steps=5)
        (state,) = opt.state.values()
        assert "number" not in state
        same(x, expected)


def test_what_cannot_be_rounded_so_is_refused():
    half = torch.zeros(2, dtype=torch.float16, requires_grad=True)
    with pytest.raises(ValueError, match=r"Parameter 0: stochastic rounding is for bfloat16.*rounding='nearest'"):
        SuperAdam([half], rounding="stochastic")
    with pytest.raises(ValueError, match=r"Invalid rounding parameter: up \(expected one of nearest"):
        SuperAdam([half], rounding="up")
    with pytest.raises(ValueError, match=r"Invalid rounding parameter: master \(expected one of nearest"):
        SuperAdam([half], rounding="master")
    whole = torch.zeros(2, dtype=torch.bfloat16, requires_grad=True)
    assert "rounding=stochastic" in repr(SuperAdam([whole], rounding="stochastic"))


@pytest.mark.parametrize("tau", [0.0, 1.0])
@pytest.mark.parametrize("matrix", ["SecondMoment", "Yogi", "Belief"])
def test_rounding_does_not_depend_on_the_pieces(matrix, tau, monkeypatch):
    whole, _ = small_updates("stochastic", tau, matrix=matrix, steps=20)
    for module, name, value in ((step, "CHUNK", 64), (step, "SMALL", 16), (bucket, "SMALL", 16)):
        monkeypatch.setattr(module, name, value)
    cut, _ = small_updates("stochastic", tau, matrix=matrix, steps=20)
    same(cut, whole)
