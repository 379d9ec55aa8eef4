"""Small updates of bfloat16 weights count."""

import pytest
import torch

from problems import CASES, Stochastic, SuperAdam
from superadam import create, matrices, schedules
from superadam._state import precision as rounding
from superadam._step import tiles


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
    draws = [rounding._random(p, state, salt).flatten() for state in states for salt in (0, 5)]
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
    """To nearest, x never moves. Master: exact up to one rounding. Stochastic: exact in the mean."""
    matrix = matrices.Identity()
    exact, _ = small_updates("nearest", tau, torch.float32, matrix=matrix)
    assert (1 - exact).min() > 0.02
    nearest, _ = small_updates("nearest", tau, matrix=matrix)
    assert (nearest == 1).all()
    master, opt = small_updates("master", tau, matrix=matrix)
    same(master, exact.float().bfloat16().double())
    (state,) = opt.state.values()
    same(state["master"].double(), exact)
    random, _ = small_updates("stochastic", tau, matrix=matrix)
    error = (random.mean() - exact.mean()) / (random.std() / len(random) ** 0.5)
    assert abs(error) < 5
    assert (random - exact).abs().max() < 0.05


@pytest.mark.parametrize("tau", [0.0, 1.0])
@pytest.mark.parametrize("case", ["1", "2", "4a", "4b"])
def test_master_is_float32_where_gradients_do_not_depend_on_x(case, tau):
    """The gradients are the same, so the master copy takes the steps of a float32 run, and x is it rounded."""

    def run(dtype, how):
        x = torch.linspace(-2, 2, 50).bfloat16().to(dtype).requires_grad_()
        opt = SuperAdam([x], lr=1e-3, tau=tau, matrix=CASES[case], rounding=how, weight_decay=0.01)
        for n in range(20):

            def closure(n=n):
                x.grad = torch.sin(torch.arange(50.0) * (n + 1)).bfloat16().to(dtype)

            opt.step(closure)
        opt.flush()
        return x.detach()

    same(run(torch.bfloat16, "master"), run(torch.float32, "nearest").bfloat16())


@pytest.mark.parametrize("how", ["stochastic", "master"])
@pytest.mark.parametrize("options", [{}, {"tau": 1.0}, {"capturable": True}, {"foreach": True, "tau": 1.0}], ids=str)
def test_rounding_resumes_bit_for_bit(how, options, tmp_path):
    """Whatever the generators are at; and it does not use them."""
    problem = Stochastic(shapes=[(40,), (3, 5)], dtype=torch.float32)

    def setup():
        params = [p.detach().bfloat16().requires_grad_() for p in problem.params()]
        return params, SuperAdam(params, lr=1e-3, rounding=how, **options)

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


def test_capturable_rounds_alike():
    same(small_updates("stochastic", steps=50, capturable=True)[0], small_updates("stochastic", steps=50)[0])


def test_master_takes_over_what_the_user_changes():
    """New weights hold; what was not touched goes on from float32."""
    _, opt = small_updates("master", matrix=matrices.Identity(), steps=10)
    (p,) = opt.param_groups[0]["params"]
    before = opt.state[p]["master"].clone()
    assert (before != before.bfloat16()).any()
    with torch.no_grad():
        p[:10] = 5.0
    p.grad = torch.zeros_like(p)
    opt.param_groups[0]["lr"] = 0.0
    opt.step()
    assert (opt.state[p]["master"][:10] == 5).all()
    same(opt.state[p]["master"][10:], before[10:])


def test_full_precision_needs_no_rounding():
    for dtype in (torch.float32, torch.float64):
        expected, _ = small_updates("nearest", dtype=dtype, steps=5)
        for how in ("stochastic", "master"):
            x, opt = small_updates(how, dtype=dtype, steps=5)
            (state,) = opt.state.values()
            assert not {"master", "number"} & state.keys()
            same(x, expected)


def test_what_cannot_be_rounded_so_is_refused():
    half = torch.zeros(2, dtype=torch.float16, requires_grad=True)
    with pytest.raises(ValueError, match=r"Parameter 0: stochastic rounding is for bfloat16.*rounding='master'"):
        SuperAdam([half], rounding="stochastic")
    with pytest.raises(ValueError, match=r"Invalid rounding parameter: up \(expected one of nearest"):
        SuperAdam([half], rounding="up")
    with pytest.raises(ValueError, match="autograd does not follow the rounding"):
        SuperAdam([half], rounding="master", differentiable=True)
    assert "rounding=master" in repr(SuperAdam([half], rounding="master"))


# --------------------------------------------------------------------------------------------- state in bfloat16


def averaged(steps=400, sizes=(3000, 20), **options):
    """v and g of a constant gradient: averages that bfloat16, rounded to nearest, cannot follow."""
    params = [torch.zeros(n, requires_grad=True) for n in sizes]
    opt = SuperAdam(params, lr=1e-3, schedule=schedules.Constant(0.9, 0.003, first=0.003), **options)

    def closure():
        for p in params:
            p.grad = torch.ones_like(p)

    for _ in range(steps):
        opt.step(closure)
    return opt.state[params[0]], params, opt


@pytest.mark.parametrize("tau", [0.0, 0.5])
def test_averages_in_bfloat16_have_the_right_mean(tau):
    """Half of float32's bytes, and the mean over many coordinates is float32's, within five standard errors."""
    exact, _, _ = averaged(tau=tau)
    state, _, opt = averaged(tau=tau, state_dtype=torch.bfloat16)
    for name in ("g", "v"):
        found, expected = state[name], exact[name][0].double()
        assert found.dtype is torch.bfloat16
        error = (found.double().mean() - expected) / (found.double().std() / len(found) ** 0.5).clamp(min=1e-9)
        assert abs(error) < 5
    assert "4 bytes of state for each" in repr(opt)
    # the control: to nearest, v stops where a step adds less than half a unit
    v = torch.zeros((), dtype=torch.bfloat16)
    for _ in range(400):
        v = v.lerp(torch.ones_like(v), 0.001)
    assert v < 0.8 * exact["v"][0]


@pytest.mark.parametrize("matrix", ["SecondMoment", "Yogi", "GradientNorm", "Belief"])
def test_rounding_of_the_state_does_not_depend_on_the_pieces(matrix, monkeypatch):
    _, whole, _ = averaged(20, (300,), matrix=matrix, state_dtype="bfloat16")
    monkeypatch.setattr(tiles, "TILE", 64)
    monkeypatch.setattr(tiles, "SMALL", 16)
    _, cut, _ = averaged(20, (300,), matrix=matrix, state_dtype="bfloat16")
    torch.testing.assert_close(cut, whole, rtol=1e-6, atol=0)  # sums over all of x have another order


def test_clip_bounds_g_in_bfloat16():
    state, _, _ = averaged(200, clip=1.0, state_dtype=torch.bfloat16)
    exact, _, _ = averaged(200, clip=1.0)
    assert exact["g"].norm().item() == pytest.approx((3000 / 3020) ** 0.5)  # the other tensor has the rest
    assert state["g"].double().norm().item() == pytest.approx(exact["g"].norm().item(), rel=0.01)


@pytest.mark.parametrize("options", [{}, {"tau": 1.0}, {"capturable": True}, {"matrix": "Belief"}], ids=str)
def test_state_in_bfloat16_resumes_bit_for_bit(options, tmp_path):
    problem = Stochastic(shapes=[(40,), (3, 5)], dtype=torch.float32)

    def train(params, opt, samples):
        for i in samples:
            opt.step(problem.closure(opt, params, i))

    params = problem.params()
    opt = SuperAdam(params, lr=1e-3, state_dtype=torch.bfloat16, **options)
    train(params, opt, range(5))
    torch.save([[p.detach() for p in params], opt.state_dict()], tmp_path / "run.pt")
    train(params, opt, range(5, 10))
    saved, state = torch.load(tmp_path / "run.pt", weights_only=True)
    saved_params = [p.requires_grad_() for p in saved]
    resumed = SuperAdam(saved_params, lr=1e-3, **options)
    resumed.load_state_dict(state)
    train(saved_params, resumed, range(5, 10))
    same(saved_params, params)


def test_what_stays_in_float32():
    """Factors, whose roots are taken; the points of an iterate; all of double precision."""
    kept = {}
    for name in ("soap", "schedule_free_adamw"):
        model = torch.nn.Linear(4, 3, bias=False)
        opt = create(name, model, state_dtype=torch.bfloat16)
        model(torch.ones(1, 4)).sum().backward()
        opt.step()
        tensors = {key: value for key, value in opt.state[model.weight].items() if isinstance(value, torch.Tensor)}
        kept[name] = {key for key, value in tensors.items() if value.dtype is torch.bfloat16}
        assert {value.dtype for key, value in tensors.items() if key not in kept[name]} <= {torch.float32}
    assert kept["soap"] == {"g"}
    assert kept["schedule_free_adamw"] == {"g", "v"}
    x = torch.ones(3, dtype=torch.float64, requires_grad=True)
    opt = SuperAdam([x], state_dtype=torch.bfloat16)
    x.sum().backward()
    opt.step()
    assert opt.state[x]["g"].dtype is torch.float64


def test_state_dtypes_that_are_refused():
    x = torch.zeros(2, requires_grad=True)
    with pytest.raises(ValueError, match=r"Invalid state_dtype parameter: torch.float16 \(expected torch.bfloat16"):
        SuperAdam([x], state_dtype=torch.float16)
    with pytest.raises(ValueError, match="cannot be combined with differentiable"):
        SuperAdam([x], state_dtype=torch.bfloat16, differentiable=True)
    opt = SuperAdam([x])
    x.sum().backward()
    opt.step()
    opt.param_groups[0]["state_dtype"] = "bfloat16"
    with pytest.raises(RuntimeError, match="Construct a new optimizer"):
        opt.step()
