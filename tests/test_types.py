"""What users' type checkers say: nothing about the examples, and something about a misspelt option."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
PROGRAM = """
import torch
from torch import Tensor, nn
from superadam import SuperAdam, twice

model = nn.Linear(2, 1)
opt = SuperAdam(model, tau=1.0, matrix="Yogi")

def closure() -> Tensor:
    opt.zero_grad()
    loss = model(torch.ones(3, 2)).square().mean()
    loss.backward()
    return loss

loss: Tensor = opt.step(closure)
number: float = opt.step(lambda: closure().item())
nothing: None = opt.step()
for batch in twice([torch.ones(3, 2)]):
    batch.square()
"""
WRONG = {
    'SuperAdam(model, matrx="Yogi")': "matrx",
    "text: str = opt.step(closure)": "Tensor",
    "opt.step(lambda: [closure()])": "list",
}


def pyright(folder, *options):
    """Its errors, as texts."""
    command = [sys.executable, "-m", "basedpyright", "--outputjson", "--pythonpath", sys.executable, *options]
    said = json.loads(subprocess.run(command, cwd=folder, check=False, capture_output=True, text=True).stdout)
    assert said["summary"]["filesAnalyzed"] > 0
    return [(e["file"], e["range"]["start"]["line"] + 1, e["message"]) for e in said["generalDiagnostics"]]


VERSIONS = ["3.10", "3.11", "3.12", "3.13"]


@pytest.mark.slow
@pytest.mark.parametrize("version", VERSIONS)
def test_mypy_finds_no_error_in_the_library(version, tmp_path):
    """What the standard library of this version does not have is an error. `make lint` looks at the oldest."""
    command = [sys.executable, "-m", "mypy", "--python-version", version, "--cache-dir", str(tmp_path)]
    done = subprocess.run(command, cwd=ROOT, check=False, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout


@pytest.mark.slow
@pytest.mark.parametrize("version", VERSIONS)
def test_pyright_finds_no_error_in_the_examples(version):
    pytest.importorskip("basedpyright", reason="comes with superadam[slow]")
    assert pyright(ROOT, "--pythonversion", version) == []


@pytest.mark.slow
def test_pyright_finds_what_is_wrong_in_a_program(tmp_path):
    pytest.importorskip("basedpyright", reason="comes with superadam[slow]")
    (tmp_path / "program.py").write_text("\n".join([PROGRAM, *WRONG]))
    settings = {
        "include": ["program.py"],
        "extraPaths": [str(ROOT / "src"), str(ROOT / "lab" / "src")],
        "typeCheckingMode": "standard",
    }
    (tmp_path / "pyrightconfig.json").write_text(json.dumps(settings))
    check(pyright(tmp_path))


@pytest.mark.slow  # without a cache; with one, `make lint` looks at the examples
def test_mypy_finds_what_is_wrong_in_a_program(tmp_path):
    (tmp_path / "program.py").write_text("\n".join([PROGRAM, *WRONG]))
    command = [sys.executable, "-m", "mypy", "--config-file=", "--output=json", "program.py"]
    env = {**os.environ, "MYPYPATH": os.pathsep.join([str(ROOT / "src"), str(ROOT / "lab" / "src")])}
    said = subprocess.run(command, cwd=tmp_path, env=env, check=False, capture_output=True, text=True).stdout
    found = [json.loads(line) for line in said.splitlines() if line.startswith("{")]
    found = [e for e in found if e["file"] == "program.py"]  # in the library, packages without types are errors here
    check([(e["file"], e["line"], e["message"]) for e in found if e["severity"] == "error"])


def check(errors):
    """There are errors in the lines that are wrong, about what is wrong, and in no other line."""
    first = PROGRAM.count("\n") + 2
    assert {line - first for _, line, _ in errors} == set(range(len(WRONG)))
    for n, about in enumerate(WRONG.values()):
        assert any(about in message for _, line, message in errors if line == first + n), errors
