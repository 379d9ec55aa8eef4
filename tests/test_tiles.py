"""Tensors are cut up where every part allows it, and then a step needs little memory."""

import pytest
import torch

from pairs import pairs
from problems import Live
from superadam import SuperAdam, estimators, iterates, matrices, penalties, schedules, sets
from superadam._step import compiled, tiles
from superadam.matrices import Matrix
from ways import MATRICES, VARIANTS, equal, result, tiny

assert tiny  # a fixture is used by its name
SIZES = []  # of the tensors that a matrix of this module was given


class Recording(matrices.SecondMoment):
    """Does what its base class does, and does not say that it treats every coordinate by itself."""

    def update(self, s, grad):
        SIZES.append(grad.numel())
        super().update(s, grad)


class RecordingElementwise(matrices.SecondMoment):
    elementwise = True

    def update(self, s, grad):
        SIZES.append(grad.numel())
        super().update(s, grad)


class NormalisedRows(Matrix):
    """Looks at rows, so a piece of a tensor would not do."""

    buffers = ("v",)

    def update(self, s, grad):
        SIZES.append(grad.numel())
        s.v = s.v + grad.norm(dim=-1, keepdim=True) ** 2

    def H(self, s):
        return s.v.sqrt() + 1e-3


class CubeRoot(Matrix):
    buffers = ("v",)
    elementwise = True

    def update(self, s, grad):
        SIZES.append(grad.numel())
        s.v = 0.9 * s.v + 0.1 * grad.abs() ** 3

    def H(self, s):
        return s.v ** (1 / 3) + 1e-3


class NormalisedGradient(estimators.Recursive):
    """A subclass of an elementwise estimator that is not elementwise."""

    def after(self, s, grad):
        return super().after(s, grad / grad.norm())


class OwnBox(sets.Box):
    def argmin(self, y, d):
        return super().argmin(y - y.mean(), d)


def sizes(**options):
    """Of what a matrix sees of one tensor of 20 × 15 coordinates, in the last of three steps, and where it ends."""
    p = torch.linspace(-1, 1, 300, dtype=torch.float64).reshape(20, 15).requires_grad_()
    opt = SuperAdam([p], lr=0.1, **options)
    for n in range(3):

        def closure(n=n):
            p.grad = (p.detach() - n).sin()
            return 0.0

        SIZES.clear()
        opt.step(closure)
    opt.flush()
    return list(SIZES), p.detach()


CUT = [60] * 5


@pytest.mark.usefixtures("tiny")
@pytest.mark.parametrize("tau", [0.0, 1.0])
@pytest.mark.parametrize("compile", [False, True])
@pytest.mark.parametrize("matrix", [NormalisedRows(), Recording()])
def test_part_that_does_not_say_elementwise_sees_whole_tensors(matrix, tau, compile, monkeypatch):
    monkeypatch.setattr(compiled, "_call", None)
    seen, x = sizes(matrix=matrix, tau=tau, compile=compile)
    assert seen == [300]
    equal(x, sizes(matrix=matrix, tau=tau, foreach=True)[1])


@pytest.mark.usefixtures("tiny")
@pytest.mark.parametrize("tau", [0.0, 1.0])
@pytest.mark.parametrize("matrix", [CubeRoot(), RecordingElementwise()])
def test_part_that_says_elementwise_sees_pieces(matrix, tau):
    seen, x = sizes(matrix=matrix, tau=tau)
    assert seen == CUT
    whole, expected = sizes(matrix=matrix, tau=tau, foreach=True)
    assert whole == [300]
    equal(x, expected)


@pytest.mark.usefixtures("tiny")
@pytest.mark.parametrize(
    ("options", "cut"),
    [
        ({"estimator": NormalisedGradient()}, [300]),
        ({"estimator": estimators.Corrected()}, [300]),
        ({"iterate": iterates.Ahead()}, CUT),
        ({"constraint": OwnBox(-1, 1)}, [300]),
        ({"constraint": sets.Box(-1, torch.ones(20, 15))}, [300]),
        ({"constraint": sets.Box(-1, 1)}, CUT),
        ({"constraint": sets.L2Ball(1.0)}, [300]),
        ({"penalty": penalties.GroupLasso(0.1, dim=1)}, [60] * 5),  # whole rows
        ({"constraint": sets.Simplex(dim=0)}, [300]),
        ({"constraint": sets.L2Ball(1.0, dim=1)}, [60] * 5),
        ({"penalty": penalties.L1(0.1)}, CUT),
        # g and H come in pieces; the step, after the norm of all of g is known, by itself
        ({"constraint": sets.L2Ball(1.0), "clip": 1.0}, CUT),
        ({"capturable": True}, [300]),
    ],
)
def test_every_part_has_a_say(options, cut):
    matrix = RecordingElementwise()
    seen, x = sizes(matrix=matrix, **options)
    assert seen == cut
    equal(x, sizes(matrix=matrix, foreach=True, **options)[1])


@pytest.mark.usefixtures("tiny")
def test_an_own_set_is_not_cut_by_torchs_kernel_either():
    for constraint in (OwnBox(-1, 1), sets.Box(-1, torch.linspace(0, 1, 300).reshape(20, 15)), sets.Simplex()):
        options = {"matrix": "SecondMoment", "constraint": constraint}
        equal(sizes(**options)[1], sizes(foreach=True, **options)[1])


def test_elementwise_is_not_inherited():
    assert matrices.SecondMoment.elementwise
    assert not Recording.elementwise
    assert not matrices.Matrix.elementwise
    assert sets.Box(0, 1).elementwise
    assert not sets.Box(0, torch.ones(2)).elementwise
    assert not OwnBox(0, 1).elementwise


@pytest.mark.usefixtures("tiny")
def test_set_is_entered_again_in_pieces():
    """Every 100 steps, whatever rounding has done, x is put back into its set."""
    p = torch.full((300,), 0.5).requires_grad_()
    opt = SuperAdam([p], lr=0.1, matrix="Yogi", constraint=sets.Box(0.1, 0.7), schedule=schedules.Constant(mu=1.0))
    for n in range(1, 101):
        p.grad = torch.full_like(p, (-1.0) ** (n // 10))
        if n == 100:
            p.data[::7] += 1e-6
        opt.step()
    assert opt.feasibility() == 0.0


# ------------------------------------------------------------------------------------------------ memory


def peak(sizes, matrix, tau=0.0, **options):
    """The coordinates (of float32) that are alive at once beyond x, the gradients and the state, in a later step."""
    params = [torch.randn(n, requires_grad=True) for n in sizes]
    grads = [[torch.randn_like(p) for p in params] for _ in range(6)]
    opt = SuperAdam(params, lr=0.1, tau=tau, matrix=matrix, **options)
    calls = iter([grads[0], *grads] if opt.two_point else grads)  # the first batch comes twice, at the same point

    def closure():
        for p, grad in zip(params, next(calls), strict=True):
            p.grad = grad
        return 0.0

    for _ in range(2):
        opt.step(closure)
    opt.zero_grad()
    state = [t for s in opt.state.values() for t in s.values() if isinstance(t, torch.Tensor)]
    generators = 5056  # bytes, which a second evaluation starts from
    with Live([*params, *state, *(g for gs in grads for g in gs)]) as live:
        opt.step(closure)
    return (live.peak - (generators if opt.two_point else 0)) / 4


ELEMENTWISE = {name: matrix for name, matrix in MATRICES.items() if matrix.elementwise and not matrix.two_point}
TILE = 1 << 12


@pytest.fixture
def small_tiles(monkeypatch):
    monkeypatch.setattr(tiles, "TILE", TILE)
    monkeypatch.setattr(tiles, "SMALL", TILE // 32)


@pytest.mark.usefixtures("small_tiles")
@pytest.mark.parametrize(("matrix", "tau"), pairs(ELEMENTWISE, [0.0, 1.0]))
def test_a_step_needs_a_few_tiles_of_scratch(matrix, tau):
    """However large the tensors are, and however many small ones there are."""
    for sizes in ([100_000, 50_000], [TILE // 32] * 400):
        assert peak(sizes, MATRICES[matrix], tau) <= 5 * TILE
    assert peak([100_000], MATRICES[matrix], tau, penalty=penalties.L1(0.1)) <= 7 * TILE


@pytest.mark.usefixtures("small_tiles")
@pytest.mark.parametrize("matrix", ELEMENTWISE)
def test_lists_of_whole_tensors_need_more(matrix):
    """The control."""
    if not MATRICES[matrix].multiple_of_identity:
        assert peak([100_000], MATRICES[matrix], foreach=True) >= 100_000


@pytest.mark.usefixtures("small_tiles")
@pytest.mark.parametrize("variant", ["plain", "decay", "decay in the gradient, maximize", "no momentum"])
@pytest.mark.parametrize("matrix", ["case 1", "AMSGrad", "case 2", "case 4b", "Identity", "AdaGrad"])
def test_torchs_kernel_needs_hardly_any_scratch(matrix, variant):
    """None, but for a gradient whose norm is taken, and which is not the user's own."""
    scratch = peak([100_000, 50_000], MATRICES[matrix], **VARIANTS[variant])
    if matrix in ("case 1", "AMSGrad") or (variant == "no momentum" and matrix in ("AdaGrad", "Identity")):
        assert scratch < 100
    assert scratch <= 5 * TILE


# ------------------------------------------------------------------------------------------------ cutting


@pytest.mark.usefixtures("tiny")
@pytest.mark.parametrize("n", [1, 16, 17, 63, 64, 65, 127, 128, 129])
@pytest.mark.parametrize("matrix", ["case 1", "case 2", "Yogi", "EstimateNorm"])
def test_every_length(matrix, n):
    parameters = [((n,), "contiguous", "alike", ())]
    options = {"matrix": MATRICES[matrix], "parameters": parameters}
    equal(result(fused=False, **options), result(foreach=True, **options))


@pytest.mark.usefixtures("tiny")
@pytest.mark.parametrize("tau", [0.0, 1.0])
def test_weights_are_computed_once_per_step(tau):
    """However many pieces a tensor has: μ_t once, α_t once for each of the two gradients that need it."""
    asked = []

    class Counted(schedules.Constant):
        def mu_t(self, t, tau):
            asked.append(("mu", t))
            return super().mu_t(t, tau)

        def alpha_t(self, t, tau):
            asked.append(("alpha", t))
            return super().alpha_t(t, tau)

    p = torch.zeros(1000, dtype=torch.float64, requires_grad=True)
    opt = SuperAdam([p], tau=tau, matrix="Yogi", schedule=Counted(0.5))
    assert p.numel() > 10 * tiles.TILE
    for n in range(3):
        asked.clear()
        opt.step(lambda n=n: setattr(p, "grad", torch.ones_like(p) * n))
    assert sorted(asked) == ([("alpha", 3), ("mu", 3)] if tau == 0 else [("alpha", 3), ("mu", 2)])


def test_ways_say_which_tensors_are_compiled():
    """Where none has more than 65,536 numbers, the way is another. What lies otherwise in memory is left to it, too."""
    small, large = (torch.zeros(n, requires_grad=True) for n in (65_536, 65_537))
    across = torch.zeros(300, 300).t()[:, ::2].requires_grad_()
    options = {"matrix": "Yogi", "compile": True}
    head, *why = SuperAdam([small], **options).ways()
    assert head == "group 0, 1 tensor: tiles"
    assert "  not compiled: all tensors are small" in why
    for others in ([small], [small, across]):
        head, *more = SuperAdam([*others, large], **options).ways()
        assert head == f"group 0, {len(others) + 1} tensors: compiled"
        assert ("  1 of them by tiles: small, or laid out otherwise" in more) == (across in set(others))


def test_ways_are_known_before_the_first_step():
    for dtype in (None, torch.bfloat16):
        opt = SuperAdam(torch.nn.Linear(3, 2), matrix="Yogi", state_dtype=dtype)
        before = opt.ways()
        opt.init_state()
        assert before == opt.ways()
