"""Task files that hang, leak, fork, exit, raise or return NaN: a run that failed, or one that is none the worse."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch

import copies
import superadam_lab as lab
from patience import HANGS, wait_for
from superadam_lab import tasks
from superadam_lab.comparison.limits import descendants, end_group, has_ended, resident
from superadam_lab.comparison.records import Results
from superadam_lab.errors import AllFailedError
from superadam_lab.runs.identity import _started

FILE = """
import os, time
import torch
from torch import nn
import superadam_lab as lab

calls = 0
hoard = []

def loss(model, x, y):
    global calls
    calls += 1
    first = (model(x).squeeze(1) - y).square().mean()
    if os.environ.get("SUPERADAM_TEST_WORKER") and calls > {after}:
        {does}
    return first

x = torch.randn(60, 3, generator=torch.Generator().manual_seed(0))
data = {{"train": (x[:40], x[:40].sum(1)), "valid": (x[40:], x[40:].sum(1))}}
lab.task("bad", model=lambda: nn.Linear(3, 1), data=data, loss=loss, batch=10, epochs=2)
"""
BAD = {
    "hangs": ("time.sleep(1000)", "stopped after 2 s, the limit of --run-seconds"),
    "spins": ("exec('while True: pass')", "stopped after 2 s, the limit of --run-seconds"),
    "leaks": ("hoard.append(torch.ones(50_000_000)); time.sleep(0.05)", "the limit of --run-memory"),
    "forks and leaks": (
        "os.fork() or [hoard.append(torch.ones(10_000_000)) for _ in iter(int, 1)]; time.sleep(1000)",
        "the limit of --run-memory",
    ),
    "forks and hangs": (
        "os.wait() if os.fork() else time.sleep(1000)",
        "stopped after 2 s, the limit of --run-seconds",
    ),
    "exits": ("raise SystemExit(3)", "SystemExit: 3"),
    "raises": ("raise KeyError('no')", "KeyError: 'no'"),
}


@pytest.fixture(autouse=True)
def _tasks():
    kept = dict(tasks.TASKS)
    yield
    tasks.TASKS.clear()
    tasks.TASKS.update(kept)


def written(tmp_path, does, after=3):
    path = tmp_path / "bad_task.py"
    path.write_text(FILE.format(does=does, after=after))
    return path


def compared(tmp_path, does, after=3, **options):
    path = written(tmp_path, does, after)
    given = {"trials": 1, "seeds": 1, "jobs": 1, "out": tmp_path / "out", **options}
    return lab.compare(["bad"], [], task_file=path, **given)


def left(tmp_path):
    """Processes of the task file that are still there."""
    return [p for p in Path("/proc").glob("[0-9]*/environ") if str(tmp_path).encode() in content(p)]


def content(path):
    try:
        return path.read_bytes()
    except OSError:  # it has just ended, or belongs to somebody else
        return b""


@pytest.mark.slow
def test_a_copy_that_hangs_ends_with_its_run(tmp_path, monkeypatch):
    monkeypatch.setenv("SUPERADAM_TEST_WORKER", str(tmp_path))
    results = compared(tmp_path, "os.fork() or time.sleep(1000)", run_seconds=HANGS)
    assert [r.status for r in results.records] == ["finished", "finished"]
    assert not left(tmp_path)


def test_memory_counts_the_processes_that_were_started_and_shared_pages_once():
    held = torch.ones(100_000_000)  # 0.4 GB
    alone, (reads, writes) = resident(), os.pipe()
    if (pid := os.fork()) == 0:
        os.write(writes, b"x")
        time.sleep(1000)
    os.read(reads, 1)
    try:
        assert descendants() == [pid]
        assert resident() < alone + 0.2
    finally:
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)
    assert descendants() == []
    assert held[0] == 1


@pytest.mark.slow  # workers are processes, each of which imports torch
@pytest.mark.parametrize("how", BAD)
def test_a_run_beyond_its_limits_has_failed_and_says_why(tmp_path, monkeypatch, how):
    monkeypatch.setenv("SUPERADAM_TEST_WORKER", str(tmp_path))
    does, said = BAD[how]
    with pytest.raises(AllFailedError, match=said):
        compared(tmp_path, does, run_seconds=2 if "seconds" in said else HANGS, run_memory=resident() + 1.0)
    results = Results.read(tmp_path / "out" / "results.json")
    assert [r.status for r in results.records] == ["failed", "failed"]
    assert not left(tmp_path)


@pytest.mark.slow
def test_a_task_that_forks_leaves_one_record_of_each_run(tmp_path, monkeypatch):
    monkeypatch.setenv("SUPERADAM_TEST_WORKER", "1")
    results = compared(tmp_path, "calls % 7 or os.fork()")
    assert [r.status for r in results.records] == ["finished", "finished"]


@pytest.mark.slow
def test_a_loss_that_is_no_number_has_diverged(tmp_path, monkeypatch):
    monkeypatch.setenv("SUPERADAM_TEST_WORKER", "1")
    results = compared(tmp_path, "first = first * float('nan')")
    assert [r.status for r in results.records] == ["diverged", "diverged"]


@pytest.mark.usefixtures("copied_workers")
@pytest.mark.parametrize("how", ["hangs", pytest.param("leaks", marks=pytest.mark.slow)])
def test_a_loss_that_is_bad_from_its_first_call_on_is_stopped_while_planning_and_named(tmp_path, monkeypatch, how):
    monkeypatch.setenv("SUPERADAM_TEST_WORKER", "1")
    leaks = "[hoard.append(torch.ones(10_000_000)) or time.sleep(0.01) for _ in iter(int, 1)]"
    limits = {"run_seconds": 2} if how == "hangs" else {"run_memory": resident() + 1.0}
    with pytest.raises(ValueError, match=r"^bad, the first gradient: stopped .*, the limit of --run-(seconds|memory)"):
        compared(tmp_path, BAD["hangs"][0] if how == "hangs" else leaks, after=0, **limits)
    assert not (tmp_path / "out").exists()


@pytest.mark.slow
def test_a_task_file_that_raises_while_planning_in_a_child_is_told_by_its_line(tmp_path, monkeypatch):
    monkeypatch.setenv("SUPERADAM_TEST_WORKER", "1")
    with pytest.raises(ValueError, match=r"^bad: the gradient of a batch .*bad_task.py, line 15: KeyError: 'no'"):
        compared(tmp_path, BAD["raises"][0], after=0, run_seconds=HANGS)


@pytest.mark.usefixtures("copied_workers")
def test_a_pilot_run_that_hangs_is_stopped_and_named(tmp_path, monkeypatch):
    monkeypatch.setenv("SUPERADAM_TEST_WORKER", "1")
    with pytest.raises(
        ValueError, match=r"^bad with adamw, a pilot run: stopped after 4 s, the limit of --run-seconds"
    ):
        compared(tmp_path, BAD["hangs"][0], after=1, run_seconds=4, minutes=HANGS)


@pytest.mark.slow
def test_minutes_are_a_limit_of_planning_and_of_pilot_runs_too(tmp_path, monkeypatch):
    monkeypatch.setenv("SUPERADAM_TEST_WORKER", "1")
    with pytest.raises(ValueError, match="not done within --minutes"):
        compared(tmp_path, BAD["hangs"][0], after=0, minutes=0.1)


@pytest.mark.usefixtures("copied_workers")
def test_the_first_sigterm_ends_a_comparison_whose_pilot_run_hangs(tmp_path):
    """And the process that makes the pilot run."""
    path = written(tmp_path, f"open({str(tmp_path / 'pid')!r}, 'w').write(str(os.getpid())); time.sleep(1000)", after=1)
    args = [
        "compare",
        "--task-file",
        str(path),
        "--methods",
        "adam",
        "--minutes",
        "100",
        "--out",
        str(tmp_path / "out"),
    ]
    command = ["-c", "from superadam_lab.cli import main; main()"]
    process = copies.start(*command, *args, env={"SUPERADAM_TEST_WORKER": "1"}, stdout=subprocess.DEVNULL)
    try:
        pid = wait_for(
            lambda: (tmp_path / "pid").exists() and (tmp_path / "pid").read_text(), alive=lambda: process.poll() is None
        )
        process.send_signal(signal.SIGTERM)
        assert process.wait(HANGS) == -signal.SIGTERM
        wait_for(lambda: _started(int(pid)) is None)
    finally:
        process.kill()
        process.wait()


# --------------------------------------------------------------------------------------------- the group of a process

LEADER = """
import os, subprocess, sys
os.setpgrp()
member = [sys.executable, "-c", "import time; time.sleep(600)"]
print(subprocess.Popen(member, stdout=subprocess.DEVNULL).pid, flush=True)
sys.exit(7)
"""


def test_a_group_ends_after_its_leader_whose_number_is_kept_until_then():
    leader = subprocess.Popen([sys.executable, "-c", LEADER], stdout=subprocess.PIPE)
    with leader.stdout:
        member = int(leader.stdout.readline())
    assert has_ended(leader, wait=True)
    assert has_ended(leader)
    assert leader.returncode is None  # not collected: no other process can have the number
    os.kill(member, 0)
    end_group(leader)
    assert leader.returncode == 7
    wait_for(lambda: _gone(member), pause=0.01)


def _gone(pid):
    """Whether a process has ended, though nobody may have collected its exit code."""
    try:
        return "State:\tZ" in Path(f"/proc/{pid}/status").read_text()
    except OSError:
        return True


def test_a_number_that_may_be_another_process_is_not_signalled(monkeypatch):
    process = subprocess.Popen([sys.executable, "-c", ""])
    process.wait()
    monkeypatch.setattr(os, "killpg", lambda pid, sent: pytest.fail("signalled"))
    end_group(process)
    assert has_ended(process)
