"""How commands end: one line, and an exit code that the docs name."""

import dataclasses
import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from typer.testing import CliRunner

from comparing import small_plan
from superadam import zoo
from superadam_lab.cli import app
from superadam_lab.comparison import engine
from superadam_lab.comparison.options import Options
from superadam_lab.comparison.plan import planning
from superadam_lab.comparison.plan.jobs import Job
from superadam_lab.comparison.queue import Queue
from superadam_lab.comparison.worker import _one, run
from superadam_lab.errors import BUG, FAILED, STOPPED, VARIABLE, WRONG, AllFailedError, one_line, said
from superadam_lab.reading import json_of, typed
from superadam_lab.runs.folders import Config, Folder, rows
from superadam_lab.runs.training import Run
from superadam_lab.tasks import own

ROOT = Path(__file__).resolve().parents[2]
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=8,
)


@pytest.fixture
def command(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    return lambda *args: CliRunner().invoke(app, args)


@pytest.fixture
def raising(command, monkeypatch):
    """`superadam methods` of an installation with a mistake."""

    def go(error):
        def fail(pattern):
            raise error

        def mistaken(pattern):
            return int(pattern)

        monkeypatch.setattr(zoo, "list_methods", mistaken if error is None else fail)
        return command("methods", "x")

    return go


# ------------------------------------------------------------------------------------------------ the handler


def test_the_docs_name_every_exit_code():
    page = (ROOT / "docs" / "lab.md").read_text()
    table = page.split("## Exit codes")[1].split("\n## ")[0]
    assert {int(code) for code in re.findall(r"^\| (\d+) \|", table, flags=re.M)} == {0, FAILED, WRONG, BUG, STOPPED}
    assert VARIABLE in table


@pytest.mark.parametrize("error", [KeyError("monitor"), AssertionError("it holds"), ZeroDivisionError("by zero"), None])
def test_a_bug_is_called_one_and_says_how_to_report_it(raising, error):
    """None: a ValueError by accident, of `int("x")`."""
    result = raising(error)
    assert result.exit_code == BUG
    kind = "ValueError" if error is None else type(error).__name__
    assert result.stderr.startswith(f"Error: this is a bug in superadam: {kind}: ")
    assert f"{VARIABLE}=1" in result.stderr
    assert result.stderr.count("\n") == 1


def test_the_traceback_can_be_had(raising, monkeypatch):
    monkeypatch.setenv(VARIABLE, "1")
    result = raising(KeyError("monitor"))
    assert result.exit_code == BUG
    assert "Traceback" in result.stderr
    assert "list_methods" in result.stderr
    assert result.stderr.splitlines()[-1].startswith("Error: this is a bug")


def test_ctrl_c_in_a_command_is_no_error(raising):
    result = raising(KeyboardInterrupt())
    assert (result.exit_code, result.stderr) == (STOPPED, "Stopped.\n")


def test_ctrl_c_while_the_package_is_imported(tmp_path):
    """A package that takes its time, and is interrupted in it."""
    package = tmp_path / "superadam"
    package.mkdir()
    (package / "__init__.py").write_text(
        "import os, signal\nos.kill(os.getpid(), signal.SIGINT)\nwhile True: signal.pause()\n"
    )
    places = os.pathsep.join([str(tmp_path), str(ROOT / "lab" / "src")])
    code = "import signal as s; s.signal(s.SIGINT, s.default_int_handler); import superadam_lab.__main__ as c; c.main()"
    made = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, env={**os.environ, "PYTHONPATH": places}
    )
    assert (made.returncode, made.stderr) == (STOPPED, "Stopped.\n")


@given(st.text())
def test_a_line_is_one_and_tells_a_terminal_nothing(text):
    line = one_line(text)
    assert line.isprintable()
    assert len(line) <= 2001


def test_errors_of_the_system_and_of_memory_are_not_called_bugs():
    made = [
        (OSError(28, "No space left on device", "runs/x"), "Error: runs/x: No space left on device"),
        (MemoryError(), "Error: There is not enough memory"),
        (RuntimeError("DefaultCPUAllocator: can't allocate memory: 1 bytes"), "Error: There is not enough memory"),
        (ModuleNotFoundError("No module named 'sklearn'", name="sklearn"), "Error: sklearn is not installed"),
    ]
    for error, start in made:
        code, line = said(error)
        assert code == WRONG
        assert line.startswith(start)


@pytest.mark.parametrize("device", ["cuda:99", "nonsense", "meta", ""])
@pytest.mark.parametrize("verb", ["train", "compare"])
def test_a_device_that_is_not_there(command, tmp_path, verb, device):
    one = ["--methods", "adamw"] if verb == "compare" else []
    result = command(verb, "digits-mlp", "--scale", "tiny", "--device", device, *one)
    assert result.exit_code == WRONG
    assert result.stderr.startswith(f"Error: The device {device!r} does not work here")
    assert not (tmp_path / "runs").exists()


@pytest.mark.parametrize(
    "args",
    [("--set", "lr=" + "[" * 100_000), ("--method", "adam lr=" + '{"a":' * 5000), ("--seed", "9" * 30),
     ("--size", "rows=0"), ("--size", "hidden=-4"), ("--size", "batch=1.5"), ("--set", 'matrix={"type": 3}'),
     ("--set", "maximize=x"), ("--epochs", "9" * 30), ("--set", "params=1"), ("--size", "hidden=100000000000")],
)  # fmt: skip
def test_values_that_make_no_sense(command, tmp_path, args):
    result = command("train", "digits-mlp", "--scale", "tiny", *args)
    assert result.exit_code == WRONG
    assert result.stderr.startswith("Error: ")
    assert result.stderr.count("\n") == 1
    assert not list(tmp_path.iterdir())


# ------------------------------------------------------------------------------------------------ plain data


@given(st.dictionaries(st.sampled_from([f.name for f in dataclasses.fields(Config)]), JSON) | JSON)
def test_plain_data_is_a_config_or_refused(content):
    try:
        assert isinstance(typed(Config, content, "a file"), Config)
    except ValueError as error:
        if said(error)[0] != WRONG:
            raise


@given(JSON)
def test_json_comes_back(content):
    def same(a, b):
        return a == b or a != a or (isinstance(a, int) and float(a) == b)  # one of more than 18 digits is a float

    if not isinstance(content, (list, dict)):
        assert same(content, json_of(json.dumps(content), "a text"))
    else:
        assert isinstance(json_of(json.dumps(content), "a text"), type(content))


@pytest.mark.parametrize("text", ["[" * 100_000, "[" * 100 + "]" * 100, '{"a":' * 50 + "1" + "}" * 50, "{", "nul", ""])
def test_text_that_is_no_json_is_refused(text):
    with pytest.raises(ValueError, match=r"a text is (not JSON|nested too deeply)"):
        json_of(text, "a text")


def test_rows_without_a_monitor_are_plotted(command, tmp_path):
    folder = Folder.new("run", Config("digits-mlp", scale="tiny"))
    Run(folder).train()
    bare = [{k: v for k, v in row.items() if k != "monitor"} for row in rows("run")]
    folder.metrics.write_text("".join(json.dumps(row) + "\n" for row in bare))
    result = command("plot", "run", "--format", "svg")
    assert result.exit_code == 0, result.stderr
    assert (tmp_path / "figure.svg").exists()


def test_a_run_that_lacks_rows_is_not_resumed_and_stays_as_it_is(command, tmp_path):
    folder = Folder.new("run", Config("digits-mlp", scale="tiny"))
    Run(folder).train()
    folder.metrics.write_text("")
    before = {path.name: path.read_bytes() for path in (tmp_path / "run").iterdir()}
    result = command("resume", "run", "--epochs", "9")
    assert result.exit_code == WRONG
    assert "rows are missing" in result.stderr
    assert {path.name: path.read_bytes() for path in (tmp_path / "run").iterdir()} == before


# ------------------------------------------------------------------------------------------------ task files

TASK = """
import torch
from torch import nn
import superadam_lab as lab
x = torch.randn(60, 2)
def loss(model, x):
    {loss}
    return model(x).square().mean()
{top}
lab.task("mine", model={model}, data={{"train": (x,), "valid": (x,)}}, loss=loss)
"""


@pytest.mark.parametrize(
    ("change", "line", "said"),
    [
        ({"top": "1 / 0"}, 9, "ZeroDivisionError: division by zero"),
        ({"top": "raise SystemExit(3)"}, 9, "SystemExit: 3"),
        ({"top": "def f(:"}, 9, "invalid syntax"),
        ({"model": "lambda: nn.Linear(2, 1).x"}, 10, "AttributeError: "),
        ({"loss": "x.nonsense"}, 7, "AttributeError: "),
    ],
)  # fmt: skip
def test_a_task_file_that_raises_is_told_by_file_and_line(command, tmp_path, change, line, said):
    (tmp_path / "mine.py").write_text(
        TASK.format(**{"loss": "pass", "top": "", "model": "lambda: nn.Linear(2, 1)", **change})
    )
    result = command("compare", "--task-file", "mine.py", "--methods", "adamw")
    assert result.exit_code == WRONG
    assert f"{tmp_path / 'mine.py'}, line {line}: {said}" in result.stderr
    assert result.stderr.count("\n") == 1


class OneWorker:
    """Makes a run here, whenever the process that watches would look after its workers."""

    def __init__(self, queue):
        self.queue, self.made = queue, 0

    def forget(self): ...

    def restart(self):
        self.made += _one(self.queue, None, None, lambda line: None) is not None
        return 0


@pytest.mark.parametrize("kind", ["TypeError", "KeyError", "RuntimeError", "StopIteration", "NotImplementedError"])
def test_a_comparison_whose_every_run_fails_says_so_after_the_first_few(tmp_path, monkeypatch, kind):
    """Whatever the loss raises, where only a run sees it: in evaluations."""
    monkeypatch.setattr(engine, "POLL", 0.0)
    (tmp_path / "mine.py").write_text(
        TASK.format(
            loss=f"if not model.training: raise {kind}('no such thing')", top="", model="lambda: nn.Linear(2, 1)"
        )
    )
    plan = planning.plan_of(Options([], ["sgd", "adam"], task_file=tmp_path / "mine.py"))
    assert engine.plan_size(plan) == 42
    with Queue(f"sqlite:///{tmp_path / 'x.db'}", "x", plan) as queue:
        worker = OneWorker(queue)
        with pytest.raises(AllFailedError, match=rf"mine\.py, line 7: {kind}: .*no such thing") as caught:
            engine._until_done(queue, worker, lambda queue, records: None)
        assert worker.made == engine.FEW
        assert said(caught.value)[0] == FAILED


def test_whatever_a_run_raises_is_its_result_and_is_kept(tmp_path):
    plan = small_plan(tmp_path)
    plan.compositions["broken"] = "adamw betas=[2, 0.9]"
    ended = run(plan, Job("line", "broken", "tune", 0, 1000, (("lr", 0.1),)))
    assert ended.status == "failed"
    assert ended.error.startswith("Invalid beta parameter")


def test_a_worker_that_says_why_it_leaves_is_not_started_often(tmp_path, monkeypatch):
    leaving = tmp_path / "leaving"
    leaving.write_text("#!/bin/sh\nread line\necho 'Error: no data here' >&2\nexit 2\n")
    leaving.chmod(0o755)
    monkeypatch.setattr(sys, "executable", str(leaving))
    monkeypatch.setattr(engine, "POLL", 0.05)
    with pytest.raises(ValueError, match=r"All workers crashed before finishing a run: no data here, more is in"):
        engine.carry_out(small_plan(tmp_path), tmp_path / "out", jobs=1)
    assert (tmp_path / "out" / "workers.log").read_text().count("no data here") == 2


def test_a_task_file_that_is_not_that_of_the_plan_is_not_run(tmp_path):
    from superadam_lab.comparison.worker import work

    plan = small_plan(tmp_path)
    with Queue(f"sqlite:///{tmp_path / 'x.db'}", "x", plan):
        pass
    (tmp_path / "line_task.py").write_text(f"open({str(tmp_path / 'canary')!r}, 'w')")
    with pytest.raises(ValueError, match="is not the task file"):
        work(f"sqlite:///{tmp_path / 'x.db'}", "x")
    assert not (tmp_path / "canary").exists()
    assert own.digest(tmp_path / "line_task.py") != plan.task_digest
