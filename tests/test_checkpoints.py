"""Stopping, saving, loading in a new process and going on is the same as not stopping, bit for bit."""

import copy
import os
import pickle
import subprocess
import sys
from pathlib import Path

import pytest
import torch
import torch.distributed.checkpoint as dcp
from torch import nn
from torch.distributed.checkpoint.state_dict import get_optimizer_state_dict, set_optimizer_state_dict

from problems import CASES, LR, Stochastic, SuperAdam, train
from superadam import matrices, schedules, sets, twice
from versions import needs_no_dist

SAMPLES = list(range(10))
STOPS = [0, 1, 2, 6, 10]

# Every case with both estimators, and the options that put something of their own into state or groups.
CONFIGURATIONS = {f"{case}, tau={tau}": {"case": case, "tau": tau} for case in CASES for tau in (0.0, 1.0)} | {
    "bfloat16, tau=0": {"dtype": torch.bfloat16, "tau": 0.0},
    "bfloat16, tau=1": {"dtype": torch.bfloat16, "tau": 1.0},
    "bfloat16, norm": {"dtype": torch.bfloat16, "tau": 1.0, "case": "2"},
    "float32": {"dtype": torch.float32, "tau": 1.0},
    "complex": {"complex": True, "tau": 1.0},
    "a norm, foreach": {"tau": 1.0, "case": "4b", "foreach": True},
    "tensor lr": {"tau": 1.0, "lr": torch.tensor(0.01, dtype=torch.float64)},
    "float32, tensor lr": {"tau": 1.0, "dtype": torch.float32, "lr": torch.tensor(0.01, dtype=torch.float64)},
    "foreach": {"tau": 1.0, "foreach": True},
    "clip, decay, maximize": {"tau": 0.3, "clip": 0.5, "weight_decay": 0.1, "maximize": True},
    "mixed dtypes": {"tau": 1.0, "case": "2", "dtypes": [torch.float32, torch.float64, torch.bfloat16]},
    "half-steps": {"tau": 1.0, "case": "3", "half_steps": True},
    "lr schedule": {"tau": 1.0, "decay": True},
    "named": {"tau": 1.0, "named": True},
}


class Run:
    """A problem, its parameters and an optimizer, according to a configuration."""

    def __init__(self, *, case="1", dtype=torch.float64, dtypes=None, half_steps=False, decay=False, **options):
        self.half_steps = half_steps
        is_complex, named = options.pop("complex", False), options.pop("named", False)
        self.problem = Stochastic(dtype=dtype)
        self.params = self.problem.params()
        if dtypes is not None:
            kinds = [dtypes[i % len(dtypes)] for i in range(len(self.params))]
            self.params = [p.detach().to(d).requires_grad_() for p, d in zip(self.params, kinds, strict=True)]
        if is_complex:
            self.params = [
                torch.complex(p, p.flip(-1) if p.ndim else -p).detach().requires_grad_() for p in self.params
            ]
        options = {"lr": LR[case], "matrix": CASES[case], "schedule": "Paper", **options}
        given = [(f"p{i}", p) for i, p in enumerate(self.params)] if named else self.params
        self.opt = SuperAdam(given, **options)
        self.scheduler = torch.optim.lr_scheduler.ExponentialLR(self.opt, 0.7) if decay else None

    def loss(self, i):
        flat = [p.real + 2 * p.imag if p.is_complex() else p for p in self.params]
        x = torch.cat([p.reshape(-1).to(self.problem.x_1.dtype) for p in flat])
        return self.problem.loss(x, i)

    def closure(self, i):
        def closure():
            self.opt.zero_grad()
            loss = self.loss(i)
            loss.backward()
            return loss

        return closure

    def step(self, i):
        if self.half_steps:
            for j in twice([i]):
                self.closure(j)()
                self.opt.step()
        else:
            self.opt.step(self.closure(i))
        if self.scheduler is not None:
            self.scheduler.step()

    def finish(self, samples):
        """What is left of a run, and all that there is to see of it."""
        for i in samples:
            self.step(i)
        before = [p.detach().clone() for p in self.params]
        state = [dict(self.opt.state[p]) for p in self.params]
        self.opt.flush()
        return {
            "before flush": before,
            "state": copy.deepcopy(state),
            "x": [p.detach() for p in self.params],
            "evaluations": self.opt.gradient_evaluations,
            "lr": copy.deepcopy(self.opt.param_groups[0]["lr"]),
        }

    def save(self):
        saved = {"params": [p.detach() for p in self.params], "opt": self.opt.state_dict()}
        return saved if self.scheduler is None else {**saved, "scheduler": self.scheduler.state_dict()}

    def load(self, saved):
        for p, value in zip(self.params, saved["params"], strict=True):
            p.detach().copy_(value)
        self.opt.load_state_dict(saved["opt"])
        if self.scheduler is not None:
            self.scheduler.load_state_dict(saved["scheduler"])
        return self


def resume_all(directory):
    """The other process."""
    for name, configuration in CONFIGURATIONS.items():
        for stop in STOPS:
            saved = torch.load(Path(directory) / f"{name} {stop}.pt", weights_only=True)
            result = Run(**configuration).load(saved).finish(SAMPLES[stop:])
            torch.save(result, Path(directory) / f"{name} {stop}.result.pt")


def identical(a, b):
    """Equal to the last bit, with types and dtypes."""
    if isinstance(a, torch.Tensor):
        return isinstance(b, torch.Tensor) and a.dtype == b.dtype and torch.equal(a, b)
    if isinstance(a, dict):
        return a.keys() == b.keys() and all(identical(a[k], b[k]) for k in a)
    if isinstance(a, list | tuple):
        return len(a) == len(b) and all(map(identical, a, b))
    return type(a) is type(b) and a == b


def test_resuming_in_a_new_process_is_not_stopping(tmp_path):
    """Every configuration, stopped after any number of batches, continued by one other process."""
    expected = {}
    for name, configuration in CONFIGURATIONS.items():
        run = Run(**configuration)
        for stop in range(len(SAMPLES) + 1):
            if stop in STOPS:
                torch.save(run.save(), tmp_path / f"{name} {stop}.pt")
            if stop < len(SAMPLES):
                run.step(SAMPLES[stop])
        expected[name] = run.finish([])
    program = f"import test_checkpoints; test_checkpoints.resume_all({str(tmp_path)!r})"
    path = os.pathsep.join([str(Path(__file__).parent), os.environ.get("PYTHONPATH", "")])
    subprocess.run([sys.executable, "-c", program], check=True, env={**os.environ, "PYTHONPATH": path})
    differ = {}
    for name in CONFIGURATIONS:
        for stop in STOPS:
            result = torch.load(tmp_path / f"{name} {stop}.result.pt", weights_only=True)
            wrong = [what for what in expected[name] if not identical(result[what], expected[name][what])]
            if wrong:
                differ.setdefault(name, []).append((stop, wrong))
    assert not differ


# ------------------------------------------------------------------------------------------------ what is saved


def plain(value):
    if isinstance(value, dict):
        return all(isinstance(k, str | int) and plain(v) for k, v in value.items())
    if type(value) is list:
        return all(map(plain, value))
    return value is None or type(value) in (int, float, bool, str) or isinstance(value, torch.Tensor)


@pytest.mark.parametrize("name", CONFIGURATIONS)
def test_groups_and_state_are_plain_data(name):
    run = Run(**CONFIGURATIONS[name])
    for i in range(3):
        run.step(i)
    assert plain(run.opt.state_dict())
    for group in run.opt.param_groups:
        assert plain({k: v for k, v in group.items() if k != "params"})
    assert all(plain(state) for state in run.opt.state.values())


def test_saving_changes_nothing():
    """Nor does a saved state_dict's structure change when training goes on."""
    saving, not_saving = Run(tau=1.0, case="3"), Run(tau=1.0, case="3")
    for i in SAMPLES:
        saved = saving.opt.state_dict()
        layout = {k: set(v) for k, v in saved["state"].items()}
        saving.step(i)
        not_saving.step(i)
        assert {k: set(v) for k, v in saved["state"].items()} == layout or i == 0
    assert identical(saving.finish([]), not_saving.finish([]))


@pytest.mark.parametrize("case", CASES)
def test_low_precision_parameters_keep_their_state_in_float32(case):
    run = Run(dtype=torch.bfloat16, tau=1.0, case=case)
    for i in range(4):
        run.step(i)
    saved = copy.deepcopy(run.save())
    again = Run(dtype=torch.bfloat16, tau=1.0, case=case).load(saved)
    for p, q in zip(run.params, again.params, strict=True):
        assert q.dtype == torch.bfloat16
        assert identical(dict(run.opt.state[p]), dict(again.opt.state[q]))
        tensors = [v for v in again.opt.state[q].values() if isinstance(v, torch.Tensor)]
        assert len(tensors) >= 2
        assert all(t.dtype == torch.float32 for t in tensors)


@pytest.mark.parametrize("way", ["state_dict", "load_state_dict"])
@pytest.mark.parametrize("case", CASES)
def test_loading_shares_no_memory(case, way):
    """Training one of two optimizers does not move the state of the other."""
    one, two = Run(tau=1.0, case=case), Run(tau=1.0, case=case)
    for i in range(3):
        one.step(i)
    two.opt.load_state_dict(one.opt.state_dict())

    def pointers(opt):
        values = [v for state in opt.state.values() for v in state.values()]
        values += [v for group in opt.param_groups for v in group.values()]
        return {v.data_ptr() for v in values if isinstance(v, torch.Tensor) and v.numel()}

    assert pointers(one.opt).isdisjoint(pointers(two.opt))
    frozen, active = (one, two) if way == "load_state_dict" else (two, one)
    before = copy.deepcopy([dict(frozen.opt.state[p]) for p in frozen.params])
    for i in range(3, 6):
        active.step(i)
    assert identical([dict(frozen.opt.state[p]) for p in frozen.params], before)


def test_loaded_groups_are_not_the_dicts_of_the_checkpoint():
    one, two = Run(tau=1.0), Run(tau=1.0)
    saved = one.opt.state_dict()
    two.opt.load_state_dict(saved)
    two.opt.param_groups[0]["matrix"]["beta"] = 0.5
    two.opt.param_groups[0]["lr"] = 7.0
    assert saved["param_groups"][0]["matrix"]["beta"] == 0.999
    assert saved["param_groups"][0]["lr"] == 0.01


@pytest.mark.parametrize("case", ["2", "3", "4b"])
def test_scalars_are_shared_after_loading(case):
    """b_t is one number for all parameters: one tensor, so that it is averaged once per step."""
    one, two = Run(tau=1.0, case=case), Run(tau=1.0, case=case)
    for i in range(3):
        one.step(i)
    two.load(copy.deepcopy(one.save()))
    assert len({id(two.opt.state[p]["b"]) for p in two.params}) == 1


@pytest.mark.parametrize("dtypes", [(torch.float32, torch.float64), (torch.bfloat16, torch.float64)])
def test_scalars_of_mixed_dtypes_keep_their_precision(dtypes):
    """b_t is float64 as soon as one of the parameters is, also after loading."""
    configuration = {"tau": 0.0, "case": "2", "dtypes": dtypes}
    one = Run(**configuration)
    for i in range(3):
        one.step(i)
    two = Run(**configuration).load(copy.deepcopy(one.save()))
    b, again = one.opt.state[one.params[0]]["b"], two.opt.state[two.params[0]]["b"]
    assert b.dtype == torch.float64
    assert identical(again, b)


def test_evaluations_are_restored():
    one = Run(tau=1.0)
    for i in range(4):
        one.step(i)
    assert Run(tau=1.0).load(one.save()).opt.gradient_evaluations == one.opt.gradient_evaluations == 7
    old = {k: v for k, v in one.opt.state_dict().items() if k != "gradient_evaluations"}
    two = Run(tau=1.0)
    two.opt.load_state_dict(old)
    assert two.opt.gradient_evaluations == 0


def test_pending_move_keeps_the_rate_of_its_own_batch():
    """Line 9's γ belongs to the step that made H_t: a scheduler that has gone on since does not change it."""
    one = Run(tau=1.0)
    for i in range(3):
        one.step(i)
    saved = copy.deepcopy(one.save())
    two = Run(tau=1.0).load(saved)
    two.opt.param_groups[0]["lr"] = 123.0
    one.opt.flush()
    two.opt.flush()
    assert identical(two.params, one.params)


def test_after_a_flush_or_restart():
    """The checkpoint says that no move is pending, and that the next gradient is g."""
    for way in ("flush", "restart"):
        one = Run(tau=1.0)
        for i in range(3):
            one.step(i)
        getattr(one.opt, way)()
        two = Run(tau=1.0).load(copy.deepcopy(one.save()))
        assert identical(one.finish([3, 4]), two.finish([3, 4]))
        assert one.opt.gradient_evaluations == 5 + 3


# ------------------------------------------------------------------------------------------------ options


def test_saved_options_win():
    """As in torch: what was saved replaces what the constructor was given, also inside matrix and schedule."""
    saved = Run(tau=1.0, lr=0.03, matrix=matrices.SecondMoment(beta=0.9, lam=0.1), schedule=schedules.Paper(k=0.5))
    loading = Run(tau=1.0, lr=0.01, weight_decay=0.5)
    loading.load(copy.deepcopy(saved.save()))
    for name in ("lr", "matrix", "schedule", "weight_decay"):
        assert loading.opt.param_groups[0][name] == saved.opt.param_groups[0][name]
    assert identical(loading.finish(SAMPLES), saved.finish(SAMPLES))


@pytest.mark.parametrize("case", ["2", "4b"])
def test_saved_options_of_a_scalar_matrix_win_in_the_middle_of_training(case):
    given = {"2": {"beta": 0.5}, "4b": {"beta2": 0.5}}[case]
    saved = Run(tau=1.0, case=case, matrix=type(CASES[case])(lam=0.1, **given))
    loading = Run(tau=1.0, case=case)
    for i in range(3):
        saved.step(i)
        loading.step(i + 5)
    loading.load(copy.deepcopy(saved.save()))
    assert identical(loading.finish(SAMPLES[3:]), {**saved.finish(SAMPLES[3:])})


def test_missing_options_are_filled():
    """A checkpoint from before an option existed takes the constructor's value."""
    run = Run(tau=1.0)
    for i in range(3):
        run.step(i)
    old = copy.deepcopy(run.save())
    for name in ("clip", "weight_decay", "foreach", "compile", "maximize", "rounding"):
        del old["opt"]["param_groups"][0][name]
    del old["opt"]["param_groups"][0]["matrix"]["bias_correction"]
    del old["opt"]["param_groups"][0]["schedule"]["cap"]
    loading = Run(tau=1.0, clip=0.25).load(old)
    group, before = loading.opt.param_groups[0], run.opt.param_groups[0]
    assert group["clip"] == 0.25
    assert {k: v for k, v in group.items() if k not in ("params", "clip")} == {
        k: v for k, v in before.items() if k not in ("params", "clip")
    }
    group["clip"] = None
    assert identical(loading.finish(SAMPLES[3:]), run.finish(SAMPLES[3:]))


# ------------------------------------------------------------------------------------------------ hooks


def test_pre_hook_that_rewrites_the_dict_is_honoured():
    one, two = Run(tau=1.0), Run(tau=1.0)
    for i in range(3):
        one.step(i)

    def double(opt, state_dict):
        state = {k: {**s, "g": 2 * s["g"]} for k, s in state_dict["state"].items()}
        return {**state_dict, "state": state, "gradient_evaluations": 100}

    two.opt.register_load_state_dict_pre_hook(double)
    two.load(copy.deepcopy(one.save()))
    for p, q in zip(one.params, two.params, strict=True):
        assert torch.equal(two.opt.state[q]["g"], 2 * one.opt.state[p]["g"])
        assert torch.equal(two.opt.state[q]["v"], one.opt.state[p]["v"])
    assert two.opt.gradient_evaluations == 100


def test_pre_hook_can_make_a_checkpoint_fit():
    """The composition is checked after the user's hooks, not before."""
    one, two = Run(tau=1.0), Run(tau=0.5)

    def convert(opt, state_dict):
        groups = [{**group, "tau": 0.5} for group in state_dict["param_groups"]]
        return {**state_dict, "param_groups": groups}

    one.step(0)
    two.opt.register_load_state_dict_pre_hook(convert)
    two.load(copy.deepcopy(one.save()))
    assert two.opt.param_groups[0]["tau"] == 0.5
    assert torch.equal(two.opt.state[two.params[0]]["g"], one.opt.state[one.params[0]]["g"])


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16])
@pytest.mark.parametrize("how", ["reversed", "by name"])
def test_pre_hook_can_renumber_the_parameters(how, dtype):
    """torch's own use of the hook: a parameter's state is the one its group's "params" names, whatever the number."""
    problem = Stochastic(shapes=[(2,), (2,), (2,)], dtype=dtype)
    mine, theirs = problem.params(), problem.params()
    one = SuperAdam(mine, lr=0.1, tau=1.0)
    two = SuperAdam(theirs[::-1] if how == "reversed" else theirs, lr=0.1, tau=1.0)
    for i in range(3):
        one.step(problem.closure(one, mine, i))

    def renumber(opt, state_dict):
        (group,) = state_dict["param_groups"]
        if how == "reversed":
            return {**state_dict, "param_groups": [{**group, "params": group["params"][::-1]}]}
        state = {f"p{k}": s for k, s in state_dict["state"].items()}
        return {**state_dict, "state": state, "param_groups": [{**group, "params": [f"p{k}" for k in range(3)]}]}

    two.register_load_state_dict_pre_hook(renumber)
    two.load_state_dict(copy.deepcopy(one.state_dict()))
    for p, q in zip(mine, theirs, strict=True):
        assert identical(dict(two.state[q]), dict(one.state[p]))


def test_post_hook_has_the_last_word():
    """What a user's post hook writes into the loaded state stays there."""
    one, two = Run(tau=1.0), Run(tau=1.0)
    for i in range(3):
        one.step(i)

    def forget(opt):
        for state in opt.state.values():
            state["g"] = torch.zeros_like(state["g"])

    two.opt.register_load_state_dict_post_hook(forget)
    two.load(copy.deepcopy(one.save()))
    assert all(not two.opt.state[p]["g"].any() for p in two.params)


# ------------------------------------------------------------------------------------------------ refused


def everything(run):
    """All that a failed load must leave as it is."""
    groups = [{k: v for k, v in g.items() if k != "params"} for g in run.opt.param_groups]
    return copy.deepcopy(
        {
            "params": [p.detach() for p in run.params],
            "state": [dict(run.opt.state[p]) for p in run.params],
            "groups": groups,
            "evaluations": run.opt.gradient_evaluations,
        }
    )


def refused(run, saved, message, error=ValueError):
    """Loading raises, changes nothing, and training can go on as if it had not been tried."""
    twin = Run(tau=run.opt.param_groups[0]["tau"])
    for i in range(3):
        run.step(i)
        twin.step(i)
    before = everything(run)
    with pytest.raises(error, match=message):
        run.opt.load_state_dict(saved)
    assert identical(everything(run), before)
    assert identical(run.finish(SAMPLES[3:]), twin.finish(SAMPLES[3:]))


@pytest.mark.parametrize(
    ("other", "message"),
    [
        ({"tau": 1.0, "matrix": "GradientNorm"}, "group 0 has matrix=GradientNorm there and matrix=SecondMoment here"),
        ({"tau": 1.0, "matrix": "Belief"}, "group 0 has matrix=Belief there and matrix=SecondMoment here"),
        ({"tau": 0.0}, r"group 0 has tau=0\.0 there and tau=1\.0 here"),
        ({"tau": 0.5}, r"group 0 has tau=0\.5 there and tau=1\.0 here"),
        ({"tau": 1.0, "schedule": "Constant"}, "group 0 has schedule=Constant there and schedule=Paper here"),
    ],
)
@pytest.mark.parametrize("steps", [0, 2])
def test_another_composition_is_refused(other, message, steps):
    saved = Run(**other)
    for i in range(steps):
        saved.step(i)
    refused(Run(tau=1.0), saved.opt.state_dict(), message)


@pytest.mark.parametrize("tau", [0.0, 1.0])
@pytest.mark.parametrize("name", ["Adam", "AdamW", "Adagrad", "RMSprop", "NAdam"])
def test_checkpoint_of_another_optimizer_is_refused(name, tau):
    run, other = Run(tau=tau), Stochastic()
    params = other.params()
    theirs = getattr(torch.optim, name)(params, lr=0.01)
    other.loss(other.join(params), 0).backward()
    theirs.step()
    refused(run, theirs.state_dict(), "was saved by another (optimizer|composition)")


def test_wrong_shapes_are_refused():
    other = Stochastic(shapes=[(3,), (5, 2), (), (1, 2, 3), (0,), (7,)])
    params = other.params()
    theirs = SuperAdam(params, tau=1.0, schedule="Paper")
    theirs.step(other.closure(theirs, params, 0))
    refused(Run(tau=1.0), theirs.state_dict(), r"parameter 1 has shape \(5, 2\), expected \(2, 5\)")


def test_wrong_number_of_parameters_or_groups_is_refused():
    fewer = SuperAdam(Stochastic(shapes=[(3,)]).params(), tau=1.0, schedule="Paper")
    refused(Run(tau=1.0), fewer.state_dict(), "doesn't match the size of optimizer's group")
    params = Stochastic().params()
    more = SuperAdam([{"params": params[:3]}, {"params": params[3:]}], tau=1.0, schedule="Paper")
    refused(Run(tau=1.0), more.state_dict(), "different number of parameter groups")


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"lr": -1.0}, "Invalid learning rate: -1.0"),
        ({"weight_decay": -1.0}, "Invalid weight_decay value: -1.0"),
        ({"matrix": {"type": "SecondMoment", "gamma": 2.0}}, "SecondMoment has no option 'gamma'"),
        ({"matrix": {"type": "SecondMoment", "beta": 2.0}}, "Invalid beta parameter: 2.0"),
        ({"schedule": {"type": "Paper", "cap": 2.0}}, "Invalid cap parameter: 2.0"),
    ],
)
def test_options_that_no_optimizer_could_have_are_refused(change, message):
    """Say, of a later version. Before anything is changed."""
    saved = copy.deepcopy(Run(tau=1.0).opt.state_dict())
    saved["param_groups"][0].update(change)
    refused(Run(tau=1.0), saved, message)


def test_no_state_dict_between_half_steps():
    run = Run(tau=1.0, half_steps=True)
    run.step(0)
    for n, i in enumerate(twice([1])):
        run.closure(i)()
        run.opt.step()
        if n == 0:
            before = everything(run)
            with pytest.raises(
                RuntimeError, match=r"state_dict\(\) was called between the two half-steps.*after the second"
            ):
                run.opt.state_dict()
            assert identical(everything(run), before)
    assert run.opt.state_dict()["gradient_evaluations"] == 4
    twin = Run(tau=1.0, half_steps=True)
    assert identical(run.finish(SAMPLES[2:]), twin.finish(SAMPLES))


def test_loading_drops_a_batch_that_is_half_done():
    """What was loaded was saved after a whole batch, so a whole batch comes next."""
    run = Run(tau=1.0, half_steps=True)
    for i in range(3):
        run.step(i)
    saved = copy.deepcopy(run.save())
    for i in twice([7]):
        run.closure(i)()
        run.opt.step()
        break
    run.load(saved)
    assert identical(run.finish(SAMPLES[3:]), Run(tau=1.0, half_steps=True).finish(SAMPLES))


@pytest.mark.parametrize("how", ["copy", "pickle"])
@pytest.mark.parametrize("lr", [0.01, torch.tensor(0.01, dtype=torch.float64)], ids=["number", "tensor"])
def test_a_state_created_ahead_changes_nothing(lr, how):
    """`init_state` makes a place for a pending move, which is not mistaken for one: not in a copy either."""
    problem = Stochastic()
    points = []
    for ahead in (False, True):
        params = problem.params()
        opt = SuperAdam(params, lr=lr, tau=1.0)
        if ahead:
            opt.init_state()
            assert "pending" not in repr(opt)
            names = {name for state in opt.state_dict()["state"].values() for name in state}
            assert names == {"step", "phase", "g", "v", "gamma"}
            opt = copy.deepcopy(opt) if how == "copy" else pickle.loads(pickle.dumps(opt))
            params = opt.param_groups[0]["params"]
        points.append(train(problem, opt, params, range(6))[1])
    torch.testing.assert_close(*points, rtol=0, atol=0)


@pytest.mark.filterwarnings("ignore:torch.distributed is disabled")
@needs_no_dist
def test_a_pending_move_keeps_its_lr_to_the_last_digit(tmp_path):
    """torch.distributed.checkpoint loads into a state that was made while lr was zero, in float32."""
    model, again = (nn.Linear(4, 3).double() for _ in range(2))
    lr = torch.tensor(0.01, dtype=torch.float64)
    opt, other = (SuperAdam(m, lr=lr, tau=1.0) for m in (model, again))
    opt.step(lambda: model(torch.ones(4).double()).sum().backward())
    opt.zero_grad()
    dcp.save({"opt": get_optimizer_state_dict(model, opt)}, checkpoint_id=tmp_path, no_dist=True)
    state = {"opt": get_optimizer_state_dict(again, other)}
    dcp.load(state, checkpoint_id=tmp_path, no_dist=True)
    set_optimizer_state_dict(again, other, state["opt"])
    assert [float(of["gamma"]) for of in other.state.values()] == [0.01, 0.01]


def test_flush_of_a_state_created_ahead_moves_nothing():
    problem = Stochastic()
    params = problem.params()
    opt = SuperAdam(params, lr=1.0, tau=1.0)
    opt.init_state()
    opt.flush()
    torch.testing.assert_close(problem.join(params).detach(), problem.x_1, rtol=0, atol=0)
    assert opt.gradient_evaluations == 0


def test_a_first_step_with_nothing_to_learn_only_creates_the_state():
    """So torch.distributed.checkpoint asks for it. Zero gradients later, or with lr > 0, are a step like any other."""
    problem = Stochastic()
    for tau in (0.0, 1.0):
        params = problem.params()
        opt = SuperAdam(params, lr=0.0, tau=tau)
        for p in params:
            p.grad = torch.zeros_like(p)
        opt.step()
        assert {state["step"] for state in opt.state.values()} == {0}
    opt = SuperAdam(params, lr=0.1)
    opt.step()
    assert {state["step"] for state in opt.state.values()} == {1}


# ------------------------------------------------------------------------------------------------ names


class Pair(nn.Module):
    """Two layers of one shape, defined in either order."""

    def __init__(self, *order):
        super().__init__()
        for name in order:
            setattr(self, name, nn.Linear(2, 2, dtype=torch.float64))


def trained_pair(make, *order):
    """The gradients of `a` are 1, those of `b` are 2: their moments tell them apart."""
    model = Pair(*order)
    opt = make(model)
    for p, value in [(p, 1.0 if name.startswith("a") else 2.0) for name, p in model.named_parameters()]:
        p.grad = torch.full_like(p, value)
    opt.step(None if not getattr(opt, "two_point", False) else lambda: torch.zeros(()))
    return model, opt


NAMED = {
    "module": lambda model: SuperAdam(model, lr=1e-3),
    "pairs": lambda model: SuperAdam(list(model.named_parameters()), lr=1e-3),
    "groups": lambda model: SuperAdam(
        [
            {"params": [(n, p) for n, p in model.named_parameters() if "weight" in n]},
            {"params": [(n, p) for n, p in model.named_parameters() if "bias" in n], "lr": 1e-2},
        ],
        lr=1e-3,
    ),
    "case 2": lambda model: SuperAdam(model, lr=1e-3, matrix=matrices.GradientNorm()),
}


@pytest.mark.parametrize("kind", NAMED)
def test_state_is_loaded_by_name(kind):
    """Layers that are defined in another order keep their own moments."""
    _, opt = trained_pair(NAMED[kind], "a", "b")
    model = Pair("b", "a")
    other = NAMED[kind](model)
    other.load_state_dict(opt.state_dict())
    for name, p in model.named_parameters():
        assert (other.state[p]["g"] == (1.0 if name.startswith("a") else 2.0)).all()
    names = [name for group in other.state_dict()["param_groups"] for name in group["param_names"]]
    assert names == [n for group in NAMED[kind](model).param_groups for n in group["param_names"]]


def test_names_of_wrappers_do_not_matter():
    _, opt = trained_pair(NAMED["module"], "a", "b")
    model = Pair("b", "a")
    other = SuperAdam([(f"_orig_mod.module.{name}", p) for name, p in model.named_parameters()], lr=1e-3)
    other.load_state_dict(opt.state_dict())
    assert (other.state[model.a.weight]["g"] == 1).all()
    assert (other.state[model.b.weight]["g"] == 2).all()


def test_other_names_are_refused_and_change_nothing():
    _, opt = trained_pair(NAMED["module"], "a", "b")
    _, other = trained_pair(NAMED["module"], "a", "c")
    before = copy.deepcopy(other.state_dict())
    with pytest.raises(
        ValueError, match=r"another model: group 0: parameter 'c.weight' is not in the checkpoint.*param_names"
    ):
        other.load_state_dict(opt.state_dict())
    assert identical(other.state_dict(), before)


def test_without_names_parameters_are_paired_by_position():
    _, opt = trained_pair(lambda model: SuperAdam(model.parameters(), lr=1e-3), "a", "b")
    model = Pair("b", "a")
    for make in (lambda m: SuperAdam(m.parameters(), lr=1e-3), NAMED["module"]):
        other = make(model)
        other.load_state_dict(opt.state_dict())
        assert (other.state[model.b.weight]["g"] == 1).all()


def test_factors_of_other_shapes_are_refused():
    """Scalars and roots are checked as buffers are."""
    p = nn.Parameter(torch.ones(3))
    opt = SuperAdam([p], lr=1e-3, matrix=matrices.GradientNorm(), constraint=sets.L2Ball(1.0))
    p.grad = torch.ones(3)
    opt.step()
    for name in ("b", "root"):
        saved = opt.state_dict()
        saved["state"][0] = {**saved["state"][0], name: torch.ones(7)}
        with pytest.raises(ValueError, match=rf"'{name}' of parameter 0 has shape \(7,\)"):
            opt.load_state_dict(saved)
