"""Damaged and hostile checkpoints: they load, or a ValueError says why not, and then nothing is changed."""

import io
import os
import pickle
import zipfile
from functools import partial

import pytest
import torch
from torch import nn

from mutations import HOSTILE, changed, damaged, only
from superadam import SuperAdam, load_checkpoint, save_checkpoint
from superadam.checkpoint import default_generators

pytestmark = pytest.mark.slow

TENSORS = [torch.zeros(()), torch.zeros(0), torch.ones(3, 2), torch.tensor([1, 2]), torch.eye(2).to_sparse(),
           torch.zeros(1).expand(2, 3), torch.tensor(1j), torch.zeros(2, dtype=torch.bfloat16)]  # fmt: skip


def session():
    """A model of two layers, with BatchNorm's buffers, and an optimizer that has taken two steps."""
    torch.manual_seed(1)
    model = nn.Sequential(nn.Linear(3, 2), nn.BatchNorm1d(2))
    opt = SuperAdam(model, tau=1.0)
    x = torch.randn(4, 3)

    def closure():
        opt.zero_grad()
        loss = model(x).square().mean()
        loss.backward()
        return loss

    for _ in range(2):
        opt.step(closure)
    return {"model": model, "optimizer": opt, "scheduler": torch.optim.lr_scheduler.StepLR(opt, 10)}


def packed(content):
    file = io.BytesIO()
    torch.save(content, file)
    return file.getvalue()


def repacked(raw, change):
    """A file whose check sums are right, though its records have changed."""
    file = io.BytesIO()
    with zipfile.ZipFile(io.BytesIO(raw)) as old, zipfile.ZipFile(file, "w") as new:
        for name in old.namelist():
            new.writestr(name, change(name, old.read(name)))
    return file.getvalue()


def state(parts):
    """All that loading may change. The order of names in a dict may change too."""

    def ordered(x):
        if isinstance(x, dict):
            return sorted((repr(key), ordered(value)) for key, value in x.items())
        return [ordered(value) for value in x] if isinstance(x, list | tuple) else repr(x)

    return ordered([{name: part.state_dict() for name, part in parts.items()}, default_generators()])


@pytest.fixture
def checkpoint(tmp_path):
    parts, path = session(), tmp_path / "last.pt"
    save_checkpoint(path, extra={"step": 2}, **parts)
    return parts, path, path.read_bytes()


def survives(path, parts, before):
    with only(ValueError):
        load_checkpoint(path, **parts)
        return True
    assert state(parts) == before
    return False


def test_a_damaged_file_is_never_loaded(dice, checkpoint):
    """Except where only the padding between two records is damaged: then it is loaded as it was saved."""
    parts, path, sound = checkpoint
    before, loaded = state(parts), 0
    for _ in range(400):
        path.write_bytes(damaged(dice, sound))
        loaded += survives(path, parts, before)
        assert state(parts) == before
    assert loaded < 100


def test_a_damaged_file_with_the_check_sums_of_the_damage(dice, checkpoint):
    parts, path, sound = checkpoint
    before = state(parts)
    records = zipfile.ZipFile(path).namelist()
    for _ in range(250):
        bad = dice.choice(records)
        path.write_bytes(repacked(sound, lambda n, record, bad=bad: damaged(dice, record) if n == bad else record))
        if survives(path, parts, before):
            parts = session()
            before = state(parts)


def test_another_content(dice, checkpoint):
    parts, path, _ = checkpoint
    before, content = state(parts), torch.load(path, weights_only=True)
    for _ in range(300):
        path.write_bytes(packed(changed(dice, content, [*HOSTILE, *TENSORS])))
        if survives(path, parts, before):
            parts = session()
            before = state(parts)


class Call:
    """What a pickle calls when it is loaded."""

    def __init__(self, function, *args):
        self.call = function, args

    def __reduce__(self):
        return self.call


def test_no_code_of_a_file_is_run(checkpoint, tmp_path):
    parts, path, _ = checkpoint
    canary, before = tmp_path / "canary", state(parts)
    content = torch.load(path, weights_only=True)
    calls = [Call(os.mkdir, str(canary)), Call(eval, f"__import__('os').mkdir({str(canary)!r})"),
             Call(os.system, f"mkdir {canary}"), Call(partial, os.mkdir, str(canary))]  # fmt: skip
    for call in calls:
        for bad in (call, {**content, "extra": call}, {**content, "parts": {**content["parts"], "model": call}}):
            of_pickle = repacked(
                packed(content), lambda n, r, bad=bad: pickle.dumps(bad) if n.endswith("data.pkl") else r
            )
            for raw in (packed(bad), of_pickle):
                path.write_bytes(raw)
                assert not survives(path, parts, before)
    assert not canary.exists()
