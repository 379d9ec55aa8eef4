"""What the examples claim, each by a function of its name; and that each is short and says how to run it."""

import ast
import importlib
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from patience import ended
from superadam import zoo
from superadam.matrices import Matrix
from superadam_lab.tasks import TASKS

FOLDER = Path(__file__).resolve().parents[2] / "examples"
NAMES = sorted(path.stem for path in FOLDER.glob("*.py") if path.stem != "demo")
PACKAGES = {"with_accelerate": "accelerate", "with_lightning": "lightning", "with_transformers": "transformers"}
SLOW = {"ddp_digits", "fsdp_lm"}


@pytest.fixture
def _registries():
    """Examples define parts, methods and tasks of their own: forget them afterwards."""
    kept = [(d, dict(d)) for d in (zoo.METHODS, Matrix._names, TASKS)]
    yield
    for registry, content in kept:
        registry.clear()
        registry.update(content)


@pytest.mark.usefixtures("_registries")
@pytest.mark.filterwarnings("ignore:.*does not have many workers", "ignore:The dirpath has changed")  # Lightning's
@pytest.mark.parametrize("name", [pytest.param(n, marks=pytest.mark.slow if n in SLOW else ()) for n in NAMES])
def test_what_the_example_claims(name, tmp_path, monkeypatch):
    monkeypatch.setattr(os, "cpu_count", lambda: 1)  # as many workers has a comparison, and each imports torch
    if name in PACKAGES:
        pytest.importorskip(PACKAGES[name], reason="comes with superadam[trainers]")
    if name in SLOW:
        globals()[name](torchrun(name))
    elif name == "compare_your_task":
        compare_your_task(importlib.import_module(name).main, tmp_path)
    else:
        globals()[name](importlib.import_module(name).main)
        sys.modules.pop(name)


@pytest.mark.parametrize("name", NAMES)
def test_example_is_short_and_says_how_to_run_it(name):
    text = (FOLDER / f"{name}.py").read_text()
    assert len(text.splitlines()) < 80
    first_lines = ast.get_docstring(ast.parse(text))
    assert f" examples/{name}.py" in first_lines
    assert "rints" in first_lines
    assert f"[{name}.py]({name}.py)" in (FOLDER / "README.md").read_text()


def torchrun(name):
    command = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", "2", "--rdzv-backend", "c10d"]
    command += ["--rdzv-endpoint", "localhost:0", FOLDER / f"{name}.py"]
    env = {**os.environ, "OMP_NUM_THREADS": "1"}
    process = subprocess.Popen(command, env=env, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    said, errors = ended(process)
    assert process.returncode == 0, errors
    return said


def plain_loop(main):
    result = main(epochs=5)
    assert result["losses"][-1] < 0.3
    assert result["accuracies"][-1] > 0.94


def variance_reduction(main):
    result = main(epochs=2)
    assert result["same"]
    assert result["closure"]["accuracy"] == result["twice"]["accuracy"] > 0.9
    assert result["closure"]["seen"] == result["twice"]["seen"] == 80
    assert result["closure"]["gradients"] + 1 == result["twice"]["gradients"] == 160


def amp(main):
    for (way, _), result in main().items():
        assert result["last"] < 0.2 * result["first"]
        assert (result["skipped"] > 0) == (way == "float16")


def own_matrix(main):
    assert min(main(epochs=4).values()) > 0.93


def probe_first(main):
    reports = main()
    assert reports["digits"].tau == 0
    assert reports["regression"].tau == 1


def compare_your_task(main, folder):
    losses = main(folder, trials=1, seeds=1, evaluations=100)
    assert list(losses) == ["adamw", "super_adam", "super_adam tau=1"]
    assert max(losses.values()) < 1
    assert (folder / "results.json").exists()


def resume(main):
    """Closure and `twice` are the same run, and each is resumed in the middle of an epoch."""
    results = main()
    assert len(results) == 3
    for result in results.values():
        assert result["whole"] == result["resumed"]
        assert result["whole"][-1] < 0.7 * result["whole"][0]
    assert results["closure"]["whole"] == results["twice"]["whole"] != results["tau=0"]["whole"]


def mixture_weights(main):
    result = main(steps=500)
    assert -1e-12 < result["gap"] < 1e-4
    assert result["distance"] < 5e-3
    assert result["absent"] < 1e-3
    assert result["violation"] < 1e-12


def calibration(main):
    result = main(steps=600)
    assert result["gap"] < 2e-3
    assert result["distance"] < 0.1
    assert result["brier"]["calibrated"] < result["brier"]["scikit-learn"] + 2e-3 < 0.5 * result["brier"]["naive Bayes"]
    assert result["violation"] < 1e-12


def portfolio(main):
    result = main(steps=800)
    assert -1e-9 < result["gap"] < 1e-3 < 0.02 * result["start"]
    assert 0.2 - 1e-3 < result["largest"] <= 0.2 + 1e-12
    assert result["violation"] < 1e-12


def nmf(main):
    result = main()
    assert result["least"] >= 0
    assert result["error"] < 1.02 * result["sklearn"]
    assert result["zeros"] > 0.5


def monotone(main):
    result = main(steps=400)
    assert result["monotone"]["violation"] == 0
    assert result["monotone"]["decreasing"] == 0 < result["free"]["decreasing"]
    assert result["monotone"]["error"] < result["free"]["error"]


def sparse_logistic(main):
    """The objective, and exact zeros at x̃; x_t has none."""
    result = main(steps=800)
    assert -1e-6 < result["gap"] < 1e-3
    assert result["theirs"] <= result["chosen"]
    assert len(result["chosen"]) <= 15
    assert result["nonzero_x"] == 30
    assert result["accuracy"] > 0.96


def max_norm(main):
    result = main(r=2.0, seeds=(0,))
    assert result["max-norm"]["largest"] <= 2 + 1e-5
    assert result["max-norm"]["violation"] <= 2e-6
    assert result["max-norm"]["accuracy"] > 0.96
    assert result["free"]["largest"] > 2


def with_lightning(main):
    results = main()
    assert len(results) == 4
    for name, result in results.items():
        assert result["whole"] == result["resumed"]
        assert len(result["whole"]) == (59 if "tau=1" in name else 30)  # the first batch once
        assert result["whole"] == results[name.replace("manual", "automatic")]["whole"]


def with_accelerate(main):
    for result in main().values():
        assert 0 < len(result["resumed"]) < len(result["whole"])
        assert result["resumed"] == result["whole"][-len(result["resumed"]) :]


def with_transformers(main):
    """The last of its settings; the others are those of trainers/test_trainers.py."""
    ((_, result),) = main(settings=((1.0, 2),)).items()
    assert result["same"]
    assert result["whole"][-4:] == result["resumed"][-4:]
    assert result["whole"][-1] < 0.8 * result["whole"][0]


def ddp_digits(output):
    assert re.search(r"2 processes, 400 gradients, test accuracy 9[5-9]", output), output


def fsdp_lm(output):
    assert re.search(r"2 processes, loss per byte: 5\.\d+ → 2\.\d+ → 2\.\d+", output), output
