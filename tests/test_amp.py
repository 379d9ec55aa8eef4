"""Gradient scalers and low precision: what overflows leaves no trace, and small updates of bfloat16 weights count."""

import pytest
import torch
from torch import nn

from problems import CASES, LR, Stochastic, SuperAdam
from superadam import create, matrices, penalties, sets, twice

SCALE = 2.0**10
KINDS = [getattr(matrices, name) for name in sorted(set(matrices.Matrix._names) & set(matrices.__all__) - {"ByShape"})]
OF_TENSORS = {kind.__name__: matrices.ByShape(kind()) for kind in KINDS if kind.per_tensor}
EVERY = {**CASES, **OF_TENSORS}
RATES = {**LR, **dict.fromkeys(OF_TENSORS, 0.01)}


def scaler(**options):
    return torch.amp.GradScaler("cpu", **{"init_scale": SCALE, "growth_interval": 1000, **options})


def same(a, b):
    torch.testing.assert_close(a, b, rtol=0, atol=0)


class Run:
    """A problem, an optimizer and a scaler, with batches that may overflow in either turn."""

    def __init__(self, scaler, **options):
        self.problem = Stochastic()
        self.params = self.problem.params()
        self.opt = SuperAdam(self.params, **{"lr": 0.01, **options})
        self.scaler = scaler

    def turn(self, i, overflow=False, unscale=False):
        self.opt.zero_grad()
        loss = self.problem.loss(self.problem.join(self.params), i)
        if self.scaler is None:
            loss.backward()
            self.opt.step()
            return
        self.scaler.scale(loss).backward()
        if overflow:
            self.params[1].grad[0, 0] = torch.inf
        if unscale:
            self.scaler.unscale_(self.opt)
        self.scaler.step(self.opt)
        self.scaler.update()

    def train(self, samples, overflows=(), **how):
        """`overflows`: pairs (n, turn) of the batches to spoil."""
        for n, i in enumerate(samples):
            for turn, j in enumerate(twice([i]) if getattr(self.opt, "two_point", False) else [i]):
                self.turn(j, (n, turn) in overflows, **how)
        return self

    @property
    def x(self):
        return self.problem.join(self.params).detach().clone()


@pytest.mark.parametrize("unscale", [False, True], ids=["step", "unscale_"])
@pytest.mark.parametrize("tau", [0.0, 1.0])
@pytest.mark.parametrize("case", EVERY)
def test_a_scale_changes_nothing(case, tau, unscale):
    """It is a power of two, so not even the rounding differs; nor does it if it grows between the turns of a batch."""
    options = {"matrix": EVERY[case], "lr": RATES[case], "tau": tau}
    plain = Run(None, **options).train(range(8))
    fixed = Run(scaler(), **options).train(range(8), unscale=unscale)
    growing = Run(scaler(growth_interval=1), **options).train(range(8), unscale=unscale)
    assert growing.scaler.get_scale() > SCALE
    same(fixed.x, plain.x)
    same(growing.x, plain.x)


@pytest.mark.parametrize("unscale", [False, True], ids=["step", "unscale_"])
@pytest.mark.parametrize("tau", [0.0, 1.0])
@pytest.mark.parametrize("case", EVERY)
def test_an_overflow_drops_the_batch(case, tau, unscale):
    """τ = 0, as in torch's optimizers; τ > 0, if the first evaluation overflows (also at the very first batch)."""
    options = {"matrix": EVERY[case], "lr": RATES[case], "tau": tau}
    expected = Run(scaler(), **options).train([1, 2, 4])
    run = Run(scaler(), **options).train([0, 1, 2, 3, 4], overflows=[(0, 0), (3, 0)], unscale=unscale)
    same(run.x, expected.x)
    same(run.opt.state_dict()["state"], expected.opt.state_dict()["state"])
    assert run.scaler.get_scale() == SCALE / 4
    run.opt.flush(), expected.opt.flush()
    same(run.x, expected.x)


@pytest.mark.parametrize("case", EVERY)
def test_an_overflow_of_the_second_evaluation_keeps_the_move_and_restarts_g(case):
    """x_t is where it belongs. g held half of line 11, so the next gradient is g, as after `restart()`."""
    options = {"matrix": EVERY[case], "lr": RATES[case], "tau": 1.0}
    run = Run(scaler(), **options).train([0, 1, 2], overflows=[(2, 1)])
    expected = Run(scaler(), **options).train([0, 1])
    expected.opt.restart()
    same(run.x, expected.x)
    run.train([3, 4]), expected.train([3, 4])
    same(run.x, expected.x)


def test_both_turns_overflowing_is_the_first_overflowing():
    once = Run(scaler(), tau=1.0).train(range(5), overflows=[(2, 0)])
    both = Run(scaler(), tau=1.0).train(range(5), overflows=[(2, 0), (2, 1)])
    same(both.x, once.x)


def test_skipped_like_torchs():
    """The same steps as torch's Adam under the same scaler."""
    problem = Stochastic()
    points = []
    for build in (lambda p: create("adam", p, lr=0.05), lambda p: torch.optim.Adam(p, lr=0.05)):
        run = Run(scaler())
        run.opt = build(run.params)
        points.append(run.train(range(10), overflows=[(0, 0), (4, 0), (5, 0)]).x)
    torch.testing.assert_close(*points, rtol=1e-12, atol=1e-12)
    assert (points[0] - problem.x_1).abs().max() > 0.1


@pytest.mark.parametrize("part", [sets.Box(-2.0, 0.5), sets.L2Ball(1.0), penalties.L1(0.01)], ids=str)
def test_an_overflow_is_skipped_on_a_set(part):
    """Which itself would refuse numbers that are not finite."""
    kind = "penalty" if isinstance(part, penalties.Penalty) else "constraint"
    spoilt, expected = (Run(scaler(), **{kind: part}) for _ in range(2))
    spoilt.train([0, 1, 2, 3], overflows=[(0, 0), (2, 0)])
    expected.train([1, 3])
    same(spoilt.x, expected.x)
    same(spoilt.opt.state_dict()["state"], expected.opt.state_dict()["state"])


def test_a_closure_is_refused():
    run = Run(scaler(), tau=1.0)
    run.scaler.scale(run.problem.loss(run.problem.join(run.params), 0)).backward()
    with pytest.raises(RuntimeError, match=r"scaler\.step\(opt\) without a closure.*twice"):
        run.scaler.step(run.opt, lambda: 0.0)


def test_clipping_after_unscale():
    """`unscale_`, then a clip of the user's own: equals the loop without a scaler."""

    def train(scaler):
        run = Run(scaler)
        for i in range(6):
            run.opt.zero_grad()
            loss = run.problem.loss(run.problem.join(run.params), i)
            (loss if scaler is None else scaler.scale(loss)).backward()
            if scaler is not None:
                scaler.unscale_(run.opt)
            nn.utils.clip_grad_norm_(run.params, 0.5)
            (run.opt.step if scaler is None else lambda: scaler.step(run.opt))()
            if scaler is not None:
                scaler.update()
        return run.x

    same(train(scaler()), train(None))


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=str)
@pytest.mark.parametrize("tau", [0.0, 1.0])
def test_autocast_trains(tau, dtype):
    """From a scale at which the first gradients overflow, which the scaler finds out and lowers."""
    data = torch.randn(64, 8)
    target = data @ torch.randn(8, 1)
    model = nn.Sequential(nn.Linear(8, 32), nn.Tanh(), nn.Dropout(0.1), nn.Linear(32, 1))
    opt = SuperAdam(model, lr=0.05, tau=tau, schedule="Paper")
    amp = torch.amp.GradScaler("cpu", init_scale=2.0**24, enabled=dtype == torch.float16)
    losses = []
    batches = [torch.arange(64).roll(k)[:32] for k in range(60)]
    for rows in twice(batches) if tau > 0 else batches:
        opt.zero_grad()
        with torch.autocast("cpu", dtype=dtype):
            loss = (model(data[rows]) - target[rows]).square().mean()
        amp.scale(loss).backward()
        amp.step(opt)
        amp.update()
        losses.append(loss.item())
    opt.flush()
    assert losses[-1] < 0.3 * losses[0]
    assert dtype == torch.bfloat16 or amp.get_scale() < 2.0**24
