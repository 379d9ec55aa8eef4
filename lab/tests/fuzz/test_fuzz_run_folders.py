"""Run folders that were damaged, or written by others: one line and exit code 2, or they can be used."""

import shutil
import warnings

import pytest
from typer.testing import CliRunner

from mutations import hostile_json, only
from superadam_lab.cli import app
from superadam_lab.runs import plots
from superadam_lab.runs.folders import Config, Folder, rows
from superadam_lab.runs.training import Run

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    folder = Folder.new(tmp_path_factory.mktemp("runs") / "sound", Config("digits-mlp", scale="tiny"))
    assert Run(folder).train() == "finished"
    return folder.path


@pytest.fixture
def command(monkeypatch):
    monkeypatch.setattr(Run, "train", lambda run: "finished")  # what is asked for may take a century

    def run(*args):
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return CliRunner().invoke(app, list(map(str, args)))

    return run


def hostile(dice, sound, folder):
    """A copy of a run in which one of its files is something else."""
    shutil.rmtree(folder, ignore_errors=True)
    shutil.copytree(sound, folder)
    path = folder / dice.choice(["config.json", "environment.json", "metrics.jsonl"])
    lines = path.read_bytes().splitlines(keepends=True) if path.suffix == ".jsonl" else [path.read_bytes()]
    at = dice.randrange(len(lines))
    lines[at] = hostile_json(dice, lines[at]) + b"\n"
    kind = dice.randrange(20)
    if kind == 0:
        path.unlink()
    elif kind == 1:
        path.unlink()
        path.mkdir()
    else:
        path.write_bytes(b"".join(lines))
    return path


def content(folder):
    return {path.name: path.read_bytes() for path in folder.iterdir() if path.is_file()}


def ended(result):
    assert result.exit_code in (0, 1, 2), result.output
    if result.exit_code == 2:
        assert result.stderr.count("\n") == 1, result.stderr
        assert result.stderr.startswith("Error: ")
        assert result.stderr[:-1].isprintable()


def test_resume(dice, made, tmp_path, command):
    folder = tmp_path / "run"
    for _ in range(250):
        hostile(dice, made, folder)
        before = content(folder)
        result = command("resume", folder, "--epochs", "3")
        ended(result)
        if result.exit_code == 2:
            assert content(folder) == before


def test_rows_and_curves(dice, made, tmp_path):
    folder = tmp_path / "run"
    for _ in range(600):
        hostile(dice, made, folder)
        with only(ValueError, OSError):
            rows(folder)
            plots.panels(plots.curves([made, folder]))


def test_plot(dice, made, tmp_path, command):
    folder = tmp_path / "run"
    for i in range(9):
        while hostile(dice, made, folder).name == "environment.json":
            pass
        before = content(folder)
        ended(command("plot", folder, made, "--out", tmp_path / "figure", "--format", ["svg", "png", "html"][i % 3]))
        assert content(folder) == before
