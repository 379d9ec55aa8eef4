"""A checkpoint brings everything back, is never half written, and is never half loaded."""

import copy
import os
import random
import resource
import signal
import stat
import time
from pathlib import Path

import numpy
import pytest
import torch
from torch import nn
from torch.optim import lr_scheduler

import copies
from runs import BATCHES, EPOCHS, Run
from superadam import Resumable, SuperAdam, load_checkpoint, save_checkpoint, twice
from superadam import checkpoint as saving
from test_checkpoints import identical

# ------------------------------------------------------------------------------------------------ resuming


def stopped_at(stops, path, **options):
    """A run that is saved after some batches (counted from 1), into path0, path1, …"""

    def save(run):
        batches.append(run)
        if len(batches) in stops:
            run.save(f"{path}{stops.index(len(batches))}")

    batches = []
    return Run(**options).train(save)


def scramble():
    torch.manual_seed(99)
    random.seed(99)
    numpy.random.seed(99)


WAYS = {
    "tau=0": {"tau": 0.0, "way": "closure"},
    "closure": {"way": "closure"},
    "twice": {},
    "no generator": {"seeded": False},
    "scaler": {"tau": 0.0, "scaler": True},
}


@pytest.mark.parametrize("options", WAYS.values(), ids=WAYS)
def test_resuming_is_not_stopping(options, tmp_path):
    """In the middle of an epoch, at its last batch and in the first one: shuffling, augmentation, dropout, BatchNorm,
    LR, pending move, everything goes on as it was."""
    stops = [1, 7, BATCHES, BATCHES * EPOCHS]
    whole = stopped_at(stops, tmp_path / "run", **options)
    expected = copy.deepcopy(whole.everything())
    for i in range(len(stops)):
        run = Run(**options)
        scramble()
        run.load(tmp_path / f"run{i}").train()
        assert identical(plain(run.everything()), plain(expected))
    assert len(set(whole.losses)) == len(whole.losses)


def plain(everything):
    return {name: dict(value) if isinstance(value, dict) else value for name, value in everything.items()}


def test_resuming_with_workers(tmp_path):
    """The workers of a DataLoader augment as they would have."""
    whole = stopped_at([7], tmp_path / "run", workers=1)
    assert Run(workers=1).load(tmp_path / "run0").train().losses == whole.losses


SCHEDULERS = {
    "MultiStepLR": lambda opt: lr_scheduler.MultiStepLR(opt, [3, 8]),
    "LambdaLR": lambda opt: lr_scheduler.LambdaLR(opt, lambda n: 1 / (1 + n)),
    "OneCycleLR": lambda opt: lr_scheduler.OneCycleLR(opt, 0.2, total_steps=20, cycle_momentum=False),
    "CosineAnnealingWarmRestarts": lambda opt: lr_scheduler.CosineAnnealingWarmRestarts(opt, 4),
    "ReduceLROnPlateau": lambda opt: lr_scheduler.ReduceLROnPlateau(opt, patience=0),
    "SequentialLR": lambda opt: lr_scheduler.SequentialLR(
        opt, [lr_scheduler.LinearLR(opt), lr_scheduler.ExponentialLR(opt, 0.9)], [3]
    ),
}


@pytest.mark.filterwarnings("ignore:The epoch parameter in:UserWarning")  # SequentialLR of torch 2.6, of itself
@pytest.mark.parametrize("scheduler", SCHEDULERS.values(), ids=SCHEDULERS)
def test_every_scheduler_is_resumed(scheduler, tmp_path):
    whole = stopped_at([7], tmp_path / "run", scheduler=scheduler)
    run = Run(scheduler=scheduler).load(tmp_path / "run0").train()
    assert run.losses == whole.losses
    assert run.opt.param_groups[0]["lr"] == whole.opt.param_groups[0]["lr"]


def test_saving_changes_nothing(tmp_path):
    assert Run().train(lambda run: run.save(tmp_path / "run")).losses == Run().train().losses


def test_any_optimizer_and_more_parts(tmp_path):
    """torch's own optimizers, an average of the model, extra; a part that is None is left out."""
    model = nn.Linear(2, 1)
    opt, average = torch.optim.AdamW(model.parameters()), torch.optim.swa_utils.AveragedModel(model)
    model(torch.ones(1, 2)).backward()
    opt.step()
    average.update_parameters(model)
    save_checkpoint(tmp_path / "c", model=model, optimizer=opt, average=average, scaler=None, extra=[1, "a", (2.5,)])
    fresh = nn.Linear(2, 1)
    again = torch.optim.swa_utils.AveragedModel(fresh)
    other = torch.optim.AdamW(fresh.parameters())
    assert load_checkpoint(tmp_path / "c", model=fresh, optimizer=other, average=again) == [1, "a", (2.5,)]
    assert identical(dict(again.state_dict()), dict(average.state_dict()))
    assert identical(other.state_dict(), opt.state_dict())
    weights = torch.load(tmp_path / "c", weights_only=True)["parts"]["model"]
    assert identical(dict(weights), dict(model.state_dict()))


# ------------------------------------------------------------------------------------------------ the place in the data


def test_data_counts_epochs_and_batches():
    data, seen = Resumable([10, 20, 30]), []
    for _ in range(2):
        seen += [(data.epoch, data.batch, item) for item in data]
    assert seen == [(0, 1, 10), (0, 2, 20), (0, 3, 30), (1, 1, 10), (1, 2, 20), (1, 3, 30)]
    assert (data.epoch, data.batch, len(data)) == (2, 0, 3)


def test_a_loop_that_was_left_starts_anew():
    data = Resumable([10, 20, 30])
    for _ in data:
        break
    assert list(data) == [10, 20, 30]
    assert data.epoch == 1


def test_data_that_has_changed_is_refused():
    data = Resumable([10, 20, 30])
    next(iter(data))
    with pytest.raises(ValueError, match="an epoch had 3 batches, and has 2 now"):
        Resumable([10, 20]).load_state_dict(data.state_dict())
    endless = Resumable(i for i in range(3))
    for _ in endless:
        if endless.batch == 2:
            break
    shorter = Resumable(i for i in range(1))
    shorter.load_state_dict(endless.state_dict())
    with pytest.raises(RuntimeError, match="2 batches were finished, but the loader has only 1"):
        list(shorter)
    with pytest.raises(ValueError, match="had 0 generators of its own, and has 1 now"):
        Resumable([10, 20, 30], torch.Generator()).load_state_dict(data.state_dict())


# ------------------------------------------------------------------------------------------------ refused


@pytest.fixture
def saved(tmp_path):
    """A checkpoint in the middle of training, and another run to load it into."""
    stopped_at([7], tmp_path / "run")
    run = Run()
    run.train(epochs=1)
    return tmp_path / "run0", run


def refused(run, path, match, error=ValueError, **changed):
    before = copy.deepcopy(run.everything()), random.getstate()
    with pytest.raises(error, match=match):
        load_checkpoint(path, **{**run.parts(), **changed})
    assert identical(plain(run.everything()), plain(before[0]))
    assert random.getstate() == before[1]


def test_a_file_cut_anywhere_is_refused(saved):
    path, run = saved
    whole = path.read_bytes()
    lengths = {0, 1, 31, 32, 33, *range(0, len(whole), 997), *range(len(whole) - 40, len(whole))}
    for length in sorted(lengths):
        path.write_bytes(whole[:length])
        refused(run, path, "truncated")
    path.write_bytes(whole)
    run.load(path)


def test_a_flipped_bit_anywhere_is_refused(saved):
    """Except for the padding between two records, which nobody reads."""
    path, run = saved
    whole, content = path.read_bytes(), torch.load(path, weights_only=True)
    offsets, harmless = random.Random(0).sample(range(len(whole)), 300), 0
    for offset in [0, len(whole) - 1, *offsets]:
        damaged = bytearray(whole)
        damaged[offset] ^= 1 << offset % 8
        path.write_bytes(damaged)
        try:
            assert identical(saving.content_of(path), content)
            harmless += 1
        except ValueError:
            refused(run, path, "damaged")
    assert harmless < 75


def test_what_is_not_ours_is_refused(saved, tmp_path):
    path, run = saved
    other = tmp_path / "other"
    refused(run, other, "No such file", error=FileNotFoundError)
    other.write_text("hello" * 100)
    refused(run, other, "something else")
    content = torch.load(path, weights_only=True)
    for foreign in ({"model": run.model.state_dict()}, [1], {**content, "format": 2}, {**content, "parts": 3}):
        torch.save(foreign, other)
        refused(run, other, r"was not written by save_checkpoint\(\)")


def test_another_model_or_optimizer_is_refused(saved):
    path, run = saved
    shape = nn.Sequential(nn.Linear(3, 9), *list(run.model)[1:]).double()
    refused(run, path, r"does not fit model, .*: '0.bias' is \(8,\) torch.float64 there, \(9,\)", model=shape)
    refused(run, path, "'0.bias' is .*float64 there, .*float32 here.*more", model=copy.deepcopy(run.model).float())
    refused(run, path, "missing there", model=nn.Sequential(*run.model, nn.Linear(1, 1)))
    refused(run, path, "missing here", model=nn.Sequential(*list(run.model)[:-1]))
    refused(run, path, "does not fit optimizer.*tau", optimizer=SuperAdam(run.model, matrix="GradientNorm"))
    refused(run, path, "does not fit optimizer", optimizer=torch.optim.SGD([torch.ones(1)]))
    refused(run, path, "does not fit data", data=Resumable([1, 2]))
    refused(run, path, "saved with data, .* but is loaded with data, ema", ema=nn.Linear(1, 1))
    refused(run, path, "Pass the same parts", scheduler=None)
    refused(run, path, "without state_dict", error=TypeError, best=0.3)
    run.load(path)


@pytest.mark.parametrize("broken", ["optimizer", "scheduler", "data", "model"])
def test_a_part_that_fails_undoes_the_others(broken, saved, monkeypatch):
    """Also an optimizer that was loaded already, and the generator."""
    path, run = saved
    kind, calls = type(run.parts()[broken]), []
    original = kind.load_state_dict

    def fail_at_first(self, state):
        calls.append(self)
        if len(calls) == 1:
            raise RuntimeError("of my own")
        original(self, state)

    monkeypatch.setattr(kind, "load_state_dict", fail_at_first)
    refused(run, path, f"does not fit {broken}, and nothing was loaded: of my own")
    run.load(path)


def test_refused_between_two_half_steps(tmp_path):
    model = nn.Linear(2, 1)
    opt = SuperAdam(model, tau=1.0)
    path = tmp_path / "c"
    for turn, batch in enumerate(twice([torch.ones(1, 2)] * 2)):
        for moment in ("before", "after"):
            if moment == "after":
                opt.zero_grad()
                model(batch).sum().backward()
                opt.step()
            if turn % 2 == 1 and moment == "after":
                save_checkpoint(path, model=model, optimizer=opt)
                path.unlink()
            else:
                with pytest.raises(RuntimeError, match=r"first turn|between the two half-steps"):
                    save_checkpoint(path, model=model, optimizer=opt)
                assert not list(tmp_path.iterdir())


def test_what_could_not_be_loaded_is_not_saved(saved):
    """The old checkpoint stays."""
    path, run = saved
    whole = path.read_bytes()
    with pytest.raises(TypeError, match=r"extra= or the state of a part contains a pathlib\.(_local\.)?PosixPath"):
        save_checkpoint(path, **run.parts(), extra={"path": Path("x")})
    with pytest.raises(Exception, match=r"Can't (pickle|get) local object"):
        save_checkpoint(path, **run.parts(), extra=lambda: 0)
    with pytest.raises(TypeError, match="best is a float, without state_dict"):
        save_checkpoint(path, **run.parts(), best=0.3)
    assert path.read_bytes() == whole
    assert [p.name for p in path.parent.iterdir()] == [path.name]


# ------------------------------------------------------------------------------------------------ the disk


def test_a_disk_that_is_full_leaves_the_old_file(saved):
    path, run = saved
    run.save(path)
    whole = path.read_bytes()
    limits, handler = resource.getrlimit(resource.RLIMIT_FSIZE), signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    for size in (0, 1000, len(whole) // 2, len(whole) - 40, len(whole) - 1):
        resource.setrlimit(resource.RLIMIT_FSIZE, (size, limits[1]))
        try:
            with pytest.raises(OSError, match="File too large"):
                run.save(path)
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, limits)
        assert path.read_bytes() == whole
        assert [p.name for p in path.parent.iterdir()] == [path.name]
    signal.signal(signal.SIGXFSZ, handler)
    run.load(path)


@pytest.mark.parametrize("name", ["replace", "fsync"])
def test_an_error_of_the_system_leaves_the_old_file(name, saved, monkeypatch):
    path, run = saved
    whole = path.read_bytes()

    def fail(*args):
        raise PermissionError("not allowed")

    monkeypatch.setattr(os, name, fail)
    with pytest.raises(PermissionError, match="not allowed"):
        run.save(path)
    assert path.read_bytes() == whole
    assert [p.name for p in path.parent.iterdir()] == [path.name]


def test_two_processes_do_not_mix_their_files(saved, monkeypatch):
    """What the other one has begun is taken for a left-over: it hears of it, and one whole file is there."""
    path, run = saved
    run.save(path)
    original = os.fsync

    def meanwhile(fd):
        monkeypatch.setattr(os, "fsync", original)
        run.save(path)
        original(fd)

    monkeypatch.setattr(os, "fsync", meanwhile)
    with pytest.raises(RuntimeError, match=r"another process saves to it.*rank 0 only"):
        run.save(path)
    assert [p.name for p in path.parent.iterdir()] == [path.name]
    run.load(path)
    with pytest.raises(FileNotFoundError):
        run.save(path.parent / "missing" / "run")


def test_the_file_is_as_open_would_make_it(tmp_path):
    """Readable by those who may, behind a symbolic link too; what a killed process left is cleared away."""
    model = nn.Linear(2, 1)
    parts = {"model": model, "optimizer": SuperAdam(model)}
    (tmp_path / "real").mkdir()
    (tmp_path / "real" / ".[1].pt.123.tmp").write_text("left over")
    (tmp_path / "last.pt").symlink_to(tmp_path / "real" / "[1].pt")
    mask = os.umask(0o027)
    try:
        save_checkpoint(tmp_path / "last.pt", **parts)
    finally:
        os.umask(mask)
    assert (tmp_path / "last.pt").is_symlink()
    assert [p.name for p in (tmp_path / "real").iterdir()] == ["[1].pt"]
    assert stat.S_IMODE((tmp_path / "real" / "[1].pt").stat().st_mode) == 0o640
    load_checkpoint(tmp_path / "last.pt", **parts)


# ------------------------------------------------------------------------------------------------ killed


LONG, PAYLOAD = 8, 500_000  # so that saving takes most of the time


def life(path, after_batch=lambda run: None):
    """A process: go on from the last checkpoint, and save after every batch."""
    run = Run(payload=PAYLOAD)
    if path.exists():
        run.load(path)

    def save(run):
        run.save(path)
        after_batch(run)

    run.train(save, epochs=LONG)


def forked(work, *args):
    Run()  # what torch imports at first use, it need not import in every child
    child = os.fork()
    if child == 0:
        status = 1
        try:
            work(*args)
            status = 0
        finally:
            os._exit(status)
    return child


def kill_often(folder, kills):
    """Start it, kill it, again and again, then let it finish. Prints how many kills were in the middle of a save."""
    path, chance, half_written = Path(folder) / "last.pt", random.Random(0), 0
    for _ in range(10 * kills):
        if kills == 0:
            break
        before = unfinished(folder)
        child = forked(life, path)
        if kills % 2:  # while it saves; otherwise at any time
            stop_in_a_save(child, folder, before, chance)
        else:
            time.sleep(chance.uniform(0, 0.3))
        os.kill(child, signal.SIGKILL)
        status = os.waitpid(child, 0)[1]
        if os.WIFSIGNALED(status):
            kills -= 1
            half_written += not unfinished(folder) <= before
        else:  # it was done: from the start
            assert status == 0
            path.unlink()
    assert kills == 0, "it was done too soon, too often"
    assert os.waitpid(forked(life, path), 0)[1] == 0
    print(half_written)


def stop_in_a_save(child, folder, before, chance):
    """SIGSTOP, a while after a save has begun. If it was over by then, the next one; none, if the process has ended."""
    while True:
        while unfinished(folder) <= before:
            if os.waitid(os.P_PID, child, os.WEXITED | os.WNOHANG | os.WNOWAIT):
                return
        time.sleep(chance.uniform(0, 0.005))
        os.kill(child, signal.SIGSTOP)
        stopped = os.waitid(os.P_PID, child, os.WSTOPPED | os.WEXITED | os.WNOWAIT)
        if stopped.si_code != os.CLD_STOPPED or not unfinished(folder) <= before:
            return
        os.kill(child, signal.SIGCONT)


def unfinished(folder):
    return set(Path(folder).glob(".last.pt.*.tmp"))


STAGES = {  # what is called when, and which of its calls in a save
    "while it writes": (torch._C.PyTorchFileWriter, "write_record", 10),
    "before it is on the disk": (os, "fsync", 1),
    "before it replaces": (os, "replace", 1),
    "before the folder is on the disk": (os, "fsync", 2),
}


def kill_at_stages(folder):
    """Have it kill itself in the third save after each start."""
    path = Path(folder) / "last.pt"
    for stage in STAGES:
        assert os.WIFSIGNALED(os.waitpid(forked(die_at, path, *STAGES[stage]), 0)[1]), stage
        print(len(torch.load(path, weights_only=True)["extra"]["losses"]))
    assert os.waitpid(forked(life, path), 0)[1] == 0


def die_at(path, owner, name, call):
    original, saves, calls = getattr(owner, name), [], []

    def counted(*args):
        calls.append(len(saves))
        if calls.count(2) == call:
            os.kill(os.getpid(), signal.SIGKILL)
        return original(*args)

    setattr(owner, name, counted)
    life(path, saves.append)


def in_another_process(call):
    return copies.check("-c", f"import test_saving; test_saving.{call}")


@pytest.mark.parametrize("kills", [6, pytest.param(20, marks=pytest.mark.slow)])
def test_killed_many_times_it_goes_on_as_if_never(tmp_path, kills):
    """SIGKILL at random moments, half of them while a checkpoint is being written."""
    in_the_middle = int(in_another_process(f"kill_often({str(tmp_path)!r}, {kills})"))
    assert in_the_middle >= kills // 2
    run = Run(payload=PAYLOAD).load(tmp_path / "last.pt")
    assert run.losses == Run().train(epochs=LONG).losses
    assert [p.name for p in tmp_path.iterdir()] == ["last.pt"]


def test_killed_at_every_stage_of_a_save(tmp_path):
    """Until the new one is in its place the old one is there."""
    batches = in_another_process(f"kill_at_stages({str(tmp_path)!r})").split()
    assert [int(n) for n in batches] == [2, 4, 6, 9]
    assert Run(payload=PAYLOAD).load(tmp_path / "last.pt").losses == Run().train(epochs=LONG).losses


class Pair(nn.Module):
    """Two layers of one shape, defined in either order."""

    def __init__(self, *order):
        super().__init__()
        for name in order:
            setattr(self, name, nn.Linear(2, 2))


@pytest.mark.parametrize(
    "make",
    [
        lambda model: SuperAdam(model, lr=1e-3),
        lambda model: SuperAdam(model.parameters(), lr=1e-3),
        lambda model: torch.optim.Adam(model.parameters()),
        lambda model: torch.optim.Adam(model.named_parameters()),
    ],
)
def test_moments_follow_their_weights(tmp_path, make):
    """Weights go by name, so moments do: also for optimizers that do not know the names."""
    model = Pair("a", "b")
    opt = make(model)
    for name, p in model.named_parameters():
        p.grad = torch.full_like(p, 1.0 if name.startswith("a") else 2.0)
    opt.step()
    save_checkpoint(tmp_path / "last.pt", model=model, optimizer=opt)
    other = Pair("b", "a")
    fresh = make(other)
    load_checkpoint(tmp_path / "last.pt", model=other, optimizer=fresh)
    old = dict(model.named_parameters())
    for name, p in other.named_parameters():
        assert torch.equal(p, old[name])
        for key in ("g", "v", "exp_avg", "exp_avg_sq"):
            if key in fresh.state[p]:
                assert torch.equal(fresh.state[p][key], opt.state[old[name]][key])
