"""Comparisons by several processes, some of which are killed: always the same table."""

import dataclasses
import json
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest
import torch
from sqlalchemy.exc import IntegrityError

import copies
import foreign as stand_ins
from comparing import METHODS, alone, numbers, small_plan
from patience import HANGS, ended, wait_for
from superadam_lab.comparison import engine
from superadam_lab.comparison.engine import Workers, carry_out
from superadam_lab.comparison.queue import Queue
from superadam_lab.comparison.storage import patiently
from superadam_lab.comparison.worker import check_versions
from superadam_lab.runs.identity import gone
from superadam_lab.tasks import own
from superadam_lab.user_code import own_code, sources

RECIPES = Path(__file__).resolve().parents[3] / "examples" / "cluster"
COMMAND = ["-c", "from superadam_lab.cli import main; main()"]
BINARIES = sorted(Path("/usr/lib/postgresql").glob("*/bin")) if os.path.isdir("/usr/lib/postgresql") else []


def chosen(tmp_path, kind):
    """Methods of the zoo, or optimizers of a file, by themselves and as a pair. The first is the baseline, which is run
    first: it is what is killed."""
    if kind == "zoo":
        return METHODS
    file = stand_ins.written(tmp_path)
    pair = f"pair: {file}:Plain lr=1e-3:0.5 + torch.optim.AdamW lr=1e-4:0.1"
    return [pair, f"{file}:Twice", f"{file}:Free decay=none", f"sam: {file}:Sam base_optimizer={file}:Plain", "adamw"]


@pytest.mark.parametrize("kind", ["zoo", "foreign"])
def test_two_processes_make_the_table_of_one_and_one_that_is_killed_loses_nothing(request, tmp_path, kind):
    if kind == "foreign":  # the others are new interpreters
        request.getfixturevalue("copied_workers")
    methods = chosen(tmp_path, kind)
    baseline = methods[0]
    plan, slow, killed = small_plan(tmp_path, methods, baseline=baseline), tmp_path / "slow", []
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


@pytest.mark.usefixtures("copied_workers")
@pytest.mark.parametrize("kind", ["zoo", "foreign"])
def test_a_comparison_that_is_killed_and_restarted_gives_the_same_table(tmp_path, kind):
    methods = chosen(tmp_path, kind)
    plan, slow = small_plan(tmp_path, methods, baseline=methods[0]), tmp_path / "slow"
    out = tmp_path / "out"
    args = ["compare", "--task-file", plan.task_file, "--trials", "2", "--seeds", "2", "--jobs", "1", "--out", str(out)]
    args += [f"--baseline={methods[0]}", *(f"--methods={method}" for method in methods)]
    slow.touch()
    process = copies.start(*COMMAND, *args, stdout=subprocess.DEVNULL)
    database = out / "comparison.db"
    try:
        wait_for(database.exists, alive=lambda: process.poll() is None)
        (worker,) = wait_for(lambda: begun(database), alive=lambda: process.poll() is None)
    finally:
        process.kill()
        process.wait()
    wait_for(lambda: gone(worker))  # it has noticed
    slow.unlink()

    results = carry_out(plan, out, jobs=1)
    assert numbers(results) == numbers(alone(plan, tmp_path / "alone.db"))


def begun(database):
    """Who makes runs, as soon as there is such a comparison."""
    try:
        with Queue(f"sqlite:///{database}", "out") as queue:
            return [entry.worker for entry in queue.entries("running")]
    except (KeyError, ValueError):
        return []


def unused_port():
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return free.getsockname()[1]


@pytest.fixture
def postgres(tmp_path):
    """A server of its own, on loopback."""
    if not BINARIES and shutil.which("initdb") is None:
        pytest.skip("PostgreSQL is not installed")
    where = f"{BINARIES[-1]}/" if BINARIES else ""
    user = []
    data = Path(tempfile.mkdtemp(prefix="superadam-pg-"))  # a short path, for its socket
    if os.geteuid() == 0:  # which initdb refuses to run as
        user = ["runuser", "-u", "nobody", "--"]
        shutil.chown(data, "nobody")

    def call(*command):
        subprocess.run([*user, *command], check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, cwd="/")

    cluster = str(data / "cluster")
    try:
        call(f"{where}initdb", "-D", cluster, "-U", "lab", "--auth=trust", "-E", "UTF8", "--no-sync")
        for last in (False, False, True):
            port = unused_port()
            options = f"-p {port} -c listen_addresses=127.0.0.1 -c unix_socket_directories={data} -c fsync=off"
            start = ["-o", options, "-l", str(data / "log"), "-w", "-t", str(HANGS), "start"]
            try:
                call(f"{where}pg_ctl", "-D", cluster, *start)
                break
            except subprocess.CalledProcessError:  # another process may have taken the port
                if last:
                    raise
        yield f"postgresql://lab:secret@127.0.0.1:{port}/postgres"
        call(f"{where}pg_ctl", "-D", cluster, "-m", "immediate", "stop")
    finally:
        shutil.rmtree(data, ignore_errors=True)


def test_workers_anywhere_join_through_postgresql(tmp_path, postgres):
    pytest.importorskip("psycopg", reason="comes with superadam-lab[postgres]")
    plan, slow, workers = small_plan(tmp_path), tmp_path / "slow", []
    half = dataclasses.replace(plan, methods=plan.methods[:2], compositions={})
    slow.touch()

    def extend(queue, records):
        """While they make the first half of it. One is killed."""
        if not workers:
            workers.extend(
                copies.start(*COMMAND, "worker", postgres, "out", "--trust", stdout=copies.PIPE, text=True)
                for _ in range(3)
            )
        elif slow.exists() and len(queue.entries("running")) == len(workers):
            workers[0].kill()
            Queue(postgres, "out", plan).close()
            slow.unlink()

    results = carry_out(half, tmp_path / "out", postgres, jobs=0, listener=extend)
    said = [ended(worker)[0] for worker in workers]
    made = [int(text.rsplit("made ", 1)[1].split()[0]) for text in said[1:]]
    assert min(made) > 0
    assert results.plan == plan
    assert numbers(results) == numbers(alone(plan, tmp_path / "alone.db"))
    assert not (tmp_path / "out" / "comparison.db").exists()


@pytest.mark.slow
def test_the_recipes_for_clusters_make_the_table_of_one_process(tmp_path, postgres):
    """What a SLURM array and a Kubernetes Job would start, as processes on loopback."""
    pytest.importorskip("psycopg", reason="comes with superadam-lab[postgres]")
    plan, workers = small_plan(tmp_path), []
    command = tmp_path / "superadam"
    command.write_text(f'#!/bin/sh\nexec {sys.executable} -c "from superadam_lab.cli import main; main()" "$@"\n')
    command.chmod(0o755)
    yaml = (RECIPES / "kubernetes.yaml").read_text()
    of_kubernetes = json.loads(re.search(r"command: (\[.*\])", yaml)[1])
    given = {"$(STORAGE)": postgres, "$(STUDY)": "out", "superadam": str(command)}
    programs = [["bash", str(RECIPES / "slurm.sh")]] * 2 + [[given.get(word, word) for word in of_kubernetes]]
    env = {**os.environ, "STORAGE": postgres, "STUDY": "out", "SUPERADAM": str(command)}

    def begin(queue, records):
        if not workers:
            workers.extend(subprocess.Popen(p, env=env, stdout=subprocess.PIPE, text=True) for p in programs)

    results = carry_out(plan, tmp_path / "out", postgres, jobs=0, listener=begin)
    assert all("The comparison has ended" in ended(worker)[0] for worker in workers)
    assert numbers(results) == numbers(alone(plan, tmp_path / "alone.db"))


def test_a_worker_with_other_code_leaves_and_says_which(tmp_path):
    file = tmp_path / "mine.py"
    file.write_text("import torch\nMine = torch.optim.SGD\n")
    plan = dataclasses.replace(small_plan(tmp_path), packages=sources([f"{file}:Mine"]))
    check_versions(plan, {"torch": torch.__version__, "code": own_code()})
    with pytest.raises(ValueError, match=r"torch is .* on this machine, and 1\.0 where the comparison was started"):
        check_versions(plan, {"torch": "1.0"})
    with pytest.raises(ValueError, match=r"the code of superadam is .* on this machine, and 0\.1\.0 sha256 a where"):
        check_versions(plan, {"code": "0.1.0 sha256 a"})
    file.write_text("import torch\nMine = torch.optim.Adam\n")
    with pytest.raises(ValueError, match=r"mine.py is sha256 .* on this machine, and sha256 .* where"):
        check_versions(plan, {})
    file.unlink()
    with pytest.raises(ValueError, match=r"mine.py, which a method comes from, is not on this machine"):
        check_versions(plan, {})


def test_a_data_base_that_another_process_is_making_is_waited_for():
    tries = []

    def connect():
        tries.append(1)
        if len(tries) < 3:
            raise IntegrityError("CREATE TABLE superadam_runs", {}, ValueError())
        return "there"

    assert patiently(connect) == "there"


def test_workers_that_are_dead_before_they_are_told_are_started_anew(tmp_path, monkeypatch):
    dead = Workers("sqlite:///x", "x", 1, tmp_path / "log")
    start = subprocess.Popen

    def ended(*args, **options):
        process = start(["true"], stdin=subprocess.PIPE, bufsize=options["bufsize"])
        process.wait()
        return process

    monkeypatch.setattr(engine.subprocess, "Popen", ended)
    with dead:
        assert dead.restart() == 1


def test_workers_that_die_without_a_run_end_the_comparison(tmp_path, monkeypatch):
    dying = tmp_path / "dying"
    dying.write_text("#!/bin/sh\nread line\necho no room left >&2\nexit 1\n")
    dying.chmod(0o755)
    monkeypatch.setattr(sys, "executable", str(dying))
    monkeypatch.setattr(engine, "POLL", 0.1)
    said = r"All workers crashed before finishing a run: no room left, more is in .*workers\.log"
    with pytest.raises(ValueError, match=said):
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
