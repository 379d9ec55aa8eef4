"""Comparisons by several processes, some of which are killed: always the same table."""

import dataclasses
import os
import shutil
import signal
import socket
import subprocess
import sys
from pathlib import Path

import pytest
from comparing import alone, numbers, small_plan
from sqlalchemy.exc import IntegrityError

from patience import ended, wait_for
from superadam.lab import own
from superadam.lab.comparison import engine
from superadam.lab.comparison.engine import carry_out
from superadam.lab.comparison.queue import Queue
from superadam.lab.comparison.storage import patiently

COMMAND = [sys.executable, "-c", "from superadam.cli import main; main()"]
BINARIES = sorted(Path("/usr/lib/postgresql").glob("*/bin")) if os.path.isdir("/usr/lib/postgresql") else []


def running(queue):
    """The processes that make runs now."""
    return [entry.worker["pid"] for entry in queue.entries("running")]


def test_two_processes_make_the_table_of_one_and_one_that_is_killed_loses_nothing(tmp_path):
    plan, slow, killed = small_plan(tmp_path), tmp_path / "slow", []
    slow.touch()

    def kill(queue, records):
        if not killed and len(entries := queue.entries("running")) == 2:
            os.kill(entries[0].worker["pid"], signal.SIGKILL)
            slow.unlink()
            killed.append(entries[0].job)

    results = carry_out(plan, tmp_path / "out", jobs=2, listener=kill)
    assert numbers(results) == numbers(alone(plan, tmp_path / "alone.db"))
    with Queue(f"sqlite:///{tmp_path / 'out' / 'comparison.db'}", "out") as queue:
        assert [(entry.job, entry.deaths) for entry in queue.entries() if entry.deaths] == [(killed[0], 1)]
        assert len(queue.entries()) == len(results.records)


def test_a_comparison_that_is_killed_and_restarted_gives_the_same_table(tmp_path):
    plan, slow = small_plan(tmp_path), tmp_path / "slow"
    out = tmp_path / "out"
    args = ["compare", "--task-file", plan.task_file, "--trials", "2", "--seeds", "2", "--jobs", "1", "--out", str(out)]
    args += [f"--methods={plan.compositions.get(name, name)}" for name in plan.methods[1:2]]
    args += [f"--methods=mine: {plan.compositions['mine']}"]
    slow.touch()
    process = subprocess.Popen([*COMMAND, *args], stdout=subprocess.DEVNULL)
    database = out / "comparison.db"
    try:
        wait_for(database.exists, alive=lambda: process.poll() is None)
        (worker,) = wait_for(lambda: begun(database), alive=lambda: process.poll() is None)
    finally:
        process.kill()
        process.wait()
    wait_for(lambda: not Path(f"/proc/{worker}").exists())  # it has noticed
    slow.unlink()

    results = carry_out(plan, out, jobs=1)
    assert numbers(results) == numbers(alone(plan, tmp_path / "alone.db"))


def begun(database):
    """Who makes runs, as soon as there is such a comparison."""
    try:
        with Queue(f"sqlite:///{database}", "out") as queue:
            return running(queue)
    except (KeyError, ValueError):
        return []


@pytest.fixture
def postgres(tmp_path):
    """A server of its own, on loopback."""
    if not BINARIES and shutil.which("initdb") is None:
        pytest.skip("PostgreSQL is not installed")
    where = f"{BINARIES[-1]}/" if BINARIES else ""
    user = []
    data = Path(f"/tmp/superadam-pg-{os.getpid()}")
    data.mkdir()
    if os.geteuid() == 0:  # which initdb refuses to run as
        user = ["runuser", "-u", "nobody", "--"]
        shutil.chown(data, "nobody")
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]

    def call(*command):
        subprocess.run([*user, *command], check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, cwd="/")

    cluster = str(data / "cluster")
    try:
        call(f"{where}initdb", "-D", cluster, "-U", "lab", "--auth=trust", "-E", "UTF8", "--no-sync")
        options = f"-p {port} -c listen_addresses=127.0.0.1 -c unix_socket_directories={data} -c fsync=off"
        call(f"{where}pg_ctl", "-D", cluster, "-o", options, "-l", str(data / "log"), "-w", "start")
        yield f"postgresql://lab:secret@127.0.0.1:{port}/postgres"
        call(f"{where}pg_ctl", "-D", cluster, "-m", "immediate", "stop")
    finally:
        shutil.rmtree(data, ignore_errors=True)


def test_workers_anywhere_join_through_postgresql(tmp_path, postgres):
    pytest.importorskip("psycopg", reason="comes with superadam[postgres]")
    plan, slow, workers = small_plan(tmp_path), tmp_path / "slow", []
    half = dataclasses.replace(plan, methods=plan.methods[:2], compositions={})
    slow.touch()

    def extend(queue, records):
        """While they make the first half of it. One is killed."""
        if not workers:
            workers.extend(
                subprocess.Popen([*COMMAND, "worker", postgres, "out"], stdout=subprocess.PIPE, text=True)
                for _ in range(3)
            )
        elif records and slow.exists():
            workers[0].kill()
            Queue(postgres, "out", plan).close()
            slow.unlink()

    results = carry_out(half, tmp_path / "out", postgres, jobs=0, listener=extend)
    said = [ended(worker)[0] for worker in workers]
    made = [int(text.rsplit("ended; ", 1)[1].split()[0]) for text in said[1:]]
    assert min(made) > 0
    assert results.plan == plan
    assert numbers(results) == numbers(alone(plan, tmp_path / "alone.db"))
    assert not (tmp_path / "out" / "comparison.db").exists()


def test_a_data_base_that_another_process_is_making_is_waited_for():
    tries = []

    def connect():
        tries.append(1)
        if len(tries) < 3:
            raise IntegrityError("CREATE TABLE superadam_runs", {}, ValueError())
        return "there"

    assert patiently(connect) == "there"


def test_workers_that_die_without_a_run_end_the_comparison(tmp_path, monkeypatch):
    dying = tmp_path / "dying"
    dying.write_text("#!/bin/sh\nread line\necho no room left >&2\nexit 1\n")
    dying.chmod(0o755)
    monkeypatch.setattr(sys, "executable", str(dying))
    monkeypatch.setattr(engine, "POLL", 0.1)
    with pytest.raises(ValueError, match=r"Workers die, and no run is made: no room left, more is in .*workers\.log"):
        carry_out(small_plan(tmp_path), tmp_path / "out", jobs=2)


@pytest.mark.slow
def test_a_run_that_kills_its_workers_has_failed_and_the_others_are_made(tmp_path):
    plan = small_plan(tmp_path, seeds=1)
    file = tmp_path / "line_task.py"
    kills = f"if not os.path.exists({str(tmp_path / 'last')!r}): os.kill(os.getpid(), 9)"
    file.write_text(file.read_text().replace("def loss(model, x, y):", f"def loss(model, x, y):\n    {kills}"))
    plan = dataclasses.replace(plan, methods=["adamw"], trials=1, compositions={}, task_digest=own.digest(file))

    def spare(queue, records):
        if records:
            (tmp_path / "last").touch()

    results = carry_out(plan, tmp_path / "out", jobs=1, listener=spare)
    assert [r.status for r in results.records] == ["failed", "finished"]
