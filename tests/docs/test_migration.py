"""docs/migration.md: every call on the right takes the options that it names; torch's take the same steps."""

import re

import pytest
import torch

import migration
import superadam

OURS = sorted(set(re.findall(r"`((?:create|SuperAdam)\([^`]+\))`", migration.PAGE.read_text())))


@pytest.mark.parametrize("code", OURS)
def test_the_call_is_one(code):
    model = torch.nn.Linear(3, 2)
    assert isinstance(eval(code, {**migration.NAMES, "model": model, "p": model}), superadam.SuperAdam)


@pytest.mark.parametrize(("theirs", "ours", "_said"), migration.rows("torch.optim"))
def test_torch_takes_the_same_steps(theirs, ours, _said):
    if "Muon" in theirs and not hasattr(torch.optim, "Muon"):
        pytest.skip("this torch has no Muon")
    rounding = 0.02 if "Muon" in theirs else 1e-6  # torch's Muon iterates in bfloat16
    assert migration.difference(migration.of_torch(theirs), migration.of_torch(ours)) < rounding


def test_every_optimizer_of_torch_has_a_row_or_is_named():
    page = migration.PAGE.read_text()
    known = {name for name, thing in vars(torch.optim).items() if isinstance(thing, type) and name[0].isupper()}
    assert not [name for name in known - {"Optimizer"} if not re.search(rf"(torch\.optim\.|`){name}\b", page)]


def test_keras_and_optax_have_rows():
    assert len(migration.rows("keras")) >= 14
    assert len(migration.rows("optax")) >= 20
