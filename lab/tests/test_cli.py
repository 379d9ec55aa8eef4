"""The `superadam` command."""

import importlib
import json
import subprocess
import sys
from importlib.metadata import version
from pathlib import Path

import pytest
import torch
from typer.testing import CliRunner

import superadam_lab.__main__
from superadam import zoo
from superadam_lab import bench, cli
from superadam_lab.bench import models, startup
from versions import tomllib

ROOT = Path(__file__).resolve().parents[2]
IMPORT = {"rounds": 1} | {
    kind: {"median_s": 1.0, "minimum_s": 1.0} for kind in ("torch", "superadam", "superadam after torch")
}


@pytest.fixture
def run(monkeypatch):
    """The command, on a model of two small tensors."""
    monkeypatch.setitem(models.SHAPES, "mlp", lambda: [(8, 4), (4,)])
    monkeypatch.setattr(startup, "import_times", lambda: IMPORT)
    return lambda *args: CliRunner().invoke(cli.app, ["bench", *args])


def test_bench_prints_every_method_and_writes_what_it_printed(run, tmp_path):
    path = tmp_path / "report.json"
    result = run("--model", "mlp", "--rounds", "1", "--json", str(path))
    assert result.exit_code == 0, result.output
    report = json.loads(path.read_text())
    assert report.keys() == {"command", "date", "machine", "rounds", "models", "import"}
    assert report["machine"].keys() == {"processor", "threads", "python", "torch", "superadam"}
    for table in bench.tables(report).values():
        assert table.rows[-1][1] in result.stdout
    assert not [name for name in zoo.METHODS if name[:15] not in result.stdout]  # long names are broken


def test_bench_takes_several_models_and_a_number_of_threads(run, tmp_path, monkeypatch):
    monkeypatch.setitem(models.SHAPES, "many-small", lambda: [(3,)] * 4)
    used, path = [], tmp_path / "report.json"
    monkeypatch.setattr(torch, "set_num_threads", used.append)
    result = run("--model", "mlp", "--model", "many-small", "--rounds", "1", "--threads", "1", "--json", str(path))
    assert result.exit_code == 0, result.output
    assert list(json.loads(path.read_text())["models"]) == ["mlp", "many-small"]
    assert used == [1]


def test_an_unknown_model_is_refused_with_the_known_ones(run):
    result = run("--model", "resnet")
    assert result.exit_code == 2
    assert "many-small" in result.stderr


def test_version_is_the_same_everywhere(monkeypatch, capsys):
    """Also at once: torch is not imported for it."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    expected = f"superadam {project['version']}\n"
    assert CliRunner().invoke(cli.app, ["--version"]).output == expected
    monkeypatch.setattr(superadam_lab.__main__, "version", lambda name: project["version"])  # that of the installed one
    monkeypatch.setattr(sys, "argv", ["superadam", "--version"])
    superadam_lab.__main__.main()
    assert capsys.readouterr().out == expected
    assert f"\nversion: {project['version']}\n" in (ROOT / "CITATION.cff").read_text()


def test_the_entry_point_is_there():
    project = tomllib.loads((ROOT / "lab" / "pyproject.toml").read_text())["project"]
    module, _, name = project["scripts"]["superadam"].partition(":")
    assert callable(getattr(importlib.import_module(module), name))


def test_the_lab_needs_the_optimizer_of_its_own_version():
    core, lab = (tomllib.loads((ROOT / file / "pyproject.toml").read_text())["project"] for file in (".", "lab"))
    assert core["version"] == lab["version"]
    assert f"superadam=={core['version']}" in lab["dependencies"]
    assert set(core["optional-dependencies"]) & {"lab", "postgres", "tensorboard"} == set()


def test_the_module_is_the_command():
    """`torchrun -m superadam_lab` starts it."""
    made = subprocess.run([sys.executable, "-m", "superadam_lab", "--version"], capture_output=True, text=True)
    assert made.stdout == f"superadam {version('superadam')}\n"
