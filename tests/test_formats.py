"""Checkpoints of the version before phases and iterates: they load, and training goes on as it would have then.

`data/states_before_phases.pt.gz` was written by that version: for each composition its `state_dict` after seven
batches, x there, and x after five batches more.
"""

import gzip
import pickle
from pathlib import Path

import pytest
import torch

from superadam import SuperAdam, estimators, iterates, matrices, schedules, sets

FILE = Path(__file__).parent / "data" / "states_before_phases.pt.gz"
KINDS = {
    "default": {},
    "default, tau 1": {"tau": 1.0},
    "tau 1, flushed": {"tau": 1.0},
    "tau 1, restarted": {"tau": 1.0},
    "tau 0, restarted": {},
    "case 2": {"tau": 1.0, "matrix": matrices.GradientNorm()},
    "case 3": {"matrix": matrices.BarzilaiBorwein()},
    "transport": {"iterate": iterates.Ahead(), "schedule": schedules.Constant(alpha=0.1)},
    "staged": {
        "estimator": estimators.Summed(),
        "iterate": iterates.Staged(length=3),
        "matrix": matrices.AdaGrad(lam=0.1),
        "schedule": schedules.Constant(alpha=1.0),
    },
    "mars": {"estimator": estimators.Corrected(), "matrix": matrices.SecondMoment(bias_correction=True)},
    "lbfgs": {"matrix": matrices.DampedLBFGS(history=3)},
    "l2 ball": {"tau": 1.0, "constraint": sets.L2Ball(1.0)},
    "tensor lr": {"tau": 1.0, "lr": torch.tensor(1e-2)},
    "capturable": {"tau": 1.0, "capturable": True},
}


def targets():
    generator = torch.Generator().manual_seed(0)
    shapes = [(3,), (2, 4)]
    draw = lambda: [torch.randn(s, generator=generator, dtype=torch.float64) for s in shapes]  # noqa: E731
    draw()  # x_1
    return [draw() for _ in range(12)]


def closure(opt, params, target):
    def evaluate():
        opt.zero_grad()
        away = [((p - a) ** 2).sum() for p, a in zip(params, target, strict=True)]
        loss = sum(a.sqrt() + a * 0.1 for a in away)
        loss.backward()
        return loss

    return evaluate


@pytest.fixture(scope="module")
def saved():
    with gzip.open(FILE) as file:
        return torch.load(file, weights_only=True)


def test_every_kind_is_there(saved):
    assert saved.keys() == KINDS.keys()


@pytest.mark.parametrize("kind", KINDS)
def test_old_checkpoint_goes_on(saved, kind):
    old = saved[kind]
    params = [x.clone().requires_grad_() for x in old["x"]]
    opt = SuperAdam(params, **{"lr": 1e-2, "schedule": "Paper", **KINDS[kind]})
    opt.load_state_dict(old["state"])
    for target in targets()[7:]:
        opt.step(closure(opt, params, target))
    for p, x in zip(params, old["after"], strict=True):
        torch.testing.assert_close(p.detach(), x, rtol=1e-12, atol=1e-12)
    again = SuperAdam(params, **{"lr": 1e-2, "schedule": "Paper", **KINDS[kind]})
    again.load_state_dict(opt.state_dict())  # in today's form


def test_what_was_given_is_not_changed(saved):
    old, x = saved["lbfgs"]["state"], [x.clone().requires_grad_() for x in saved["lbfgs"]["x"]]
    names = set(old["state"][0])
    SuperAdam(x, matrix=matrices.DampedLBFGS(history=3), schedule="Paper").load_state_dict(old)
    assert set(old["state"][0]) == names


def test_a_history_under_many_names_is_joined(saved):
    """SdLBFGS kept θ and κ of each pair as `theta0`, `kappa0`, …: such states load, and so do pickled optimizers."""
    old = saved["lbfgs"]
    options = {"lr": 1e-2, "schedule": "Paper", **KINDS["lbfgs"]}
    results = []
    for form in ("new", "old", "pickled"):
        params = [x.clone().requires_grad_() for x in old["x"]]
        opt = SuperAdam(params, **options)
        opt.load_state_dict(old["state"])
        now = opt.state_dict()
        if form == "old":
            now["state"] = {i: split(state) for i, state in now["state"].items()}
            opt = SuperAdam(params, **options)
            opt.load_state_dict(now)
        elif form == "pickled":
            parts = opt.__getstate__()
            parts["state"] = {p: split(state) for p, state in parts["state"].items()}
            opt = SuperAdam.__new__(SuperAdam)
            opt.__setstate__(parts)
        for target in targets()[7:]:
            opt.step(closure(opt, params, target))
        results.append(params)
    for other in results[1:]:
        torch.testing.assert_close(other, results[0], rtol=0, atol=0)
    torch.testing.assert_close([p.detach() for p in results[0]], old["after"], rtol=1e-12, atol=1e-12)


def split(state):
    """The state of a parameter with a name for each θ and κ."""
    state = dict(state)
    for name, old in (("theta", "theta"), ("kappas", "kappa")):
        state |= {f"{old}{i}": value for i, value in enumerate(state.pop(name))}
    return state


def test_failures_that_were_counted_in_one_number_are_counted_apart():
    """Whole numbers were decompositions that failed in float32, eighths those that failed in float64 too, in a row."""
    x = torch.ones(3, 2, requires_grad=True)
    opt = SuperAdam([x], matrix=matrices.SOAP())
    x.grad = torch.ones(3, 2)
    opt.step()
    saved = opt.state_dict()
    del saved["state"][0]["retries"]
    saved["state"][0]["failures"] = torch.tensor([2 + 3 / 8])
    again = pickle.loads(pickle.dumps(opt))
    del again.state[again.param_groups[0]["params"][0]]["retries"]
    again.state[again.param_groups[0]["params"][0]]["failures"].fill_(2 + 3 / 8)
    opt.load_state_dict(saved)
    for loaded in (opt, pickle.loads(pickle.dumps(again))):
        (state,) = loaded.state.values()
        assert (state["retries"].item(), state["failures"].item()) == (2, 3)
    assert saved["state"][0]["failures"].item() == 2 + 3 / 8
