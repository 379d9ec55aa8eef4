"""One process at a time writes into the folder of a run."""

import json
import threading

import pytest
from typer.testing import CliRunner

import copies
from superadam_lab import disk
from superadam_lab.cli import app
from superadam_lab.runs import locks
from superadam_lab.runs.folders import Config, Folder, rows
from superadam_lab.runs.identity import this
from superadam_lab.runs.locks import HeldError, Lock
from superadam_lab.runs.training import Run, Watcher

HOLD = """
import sys
from pathlib import Path
from superadam_lab.runs.locks import Lock
lock = Lock(Path(sys.argv[1]))
lock.take()
print(flush=True)
sys.stdin.read()
"""


@pytest.fixture(params=["with locks of the system", "without"])
def path(request, tmp_path, monkeypatch):
    """Of a lock, on either kind of file system."""
    if request.param == "without":
        monkeypatch.setattr(locks, "locked", lambda file: None)
    return tmp_path / "lock"


@pytest.fixture
def other(path):
    """Another process that holds it."""
    with copies.start("-c", HOLD, str(path), stdin=copies.PIPE, stdout=copies.PIPE) as process:
        process.stdout.readline()
        yield process
        process.kill()


def test_another_process_is_named_and_when_it_is_killed_its_lock_is_no_more(path, other):
    lock = Lock(path)
    with pytest.raises(HeldError, match=rf"is in use: process {other.pid} on {this()['host']} writes into it"):
        lock.take()
    other.kill()
    other.wait()
    assert path.exists()
    lock.take()
    assert json.loads(path.read_text()) == this()
    lock.release()
    assert not path.exists()


def test_it_is_held_until_as_many_releases(path):
    lock = Lock(path)
    lock.take()
    lock.take()
    lock.release()
    with pytest.raises(HeldError):
        Lock(path).take()
    lock.release()
    other = Lock(path)
    other.take()
    other.release()


def test_of_many_at_once_one_has_it(tmp_path):
    """Again and again, while it is taken, released and removed."""
    held, most, path = [], [], tmp_path / "lock"

    def work():
        done = 0
        while done < 60:
            lock = Lock(path)
            try:
                lock.take()
            except HeldError:
                continue
            held.append(lock)
            most.append(len(held))
            held.remove(lock)
            lock.release()
            done += 1

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert set(most) == {1}
    assert not path.exists()


def test_a_file_that_was_removed_while_it_is_looked_at_is_nobodys(tmp_path, monkeypatch):
    """Its holder has let go; another one that looks has it locked, and will see that it is no more."""
    path, tries = tmp_path / "lock", []

    def once(file):
        tries.append(file)
        if len(tries) == 1:
            path.unlink()
            return False
        return True

    monkeypatch.setattr(locks, "locked", once)
    lock = Lock(path)
    lock.take()
    assert json.loads(path.read_text()) == this()
    lock.release()


def test_what_stands_in_the_file_is_not_believed(path):
    for content in ("", "{", "[]", "{}", '{"pid": 1}', json.dumps({**this(), "started": "before"})):
        path.write_text(content)
        lock = Lock(path)
        lock.take()
        lock.release()


def test_a_process_of_another_machine_is_left_to_the_user_where_there_are_no_locks(tmp_path, monkeypatch):
    path = tmp_path / "lock"
    path.write_text(json.dumps({**this(), "host": "elsewhere"}))
    with monkeypatch.context() as without:
        without.setattr(disk, "fcntl", None)
        with pytest.raises(HeldError, match=rf"on elsewhere .*no such process any more, remove {path}"):
            Lock(path).take()
    lock = Lock(path)
    lock.take()
    lock.release()


# ------------------------------------------------------------------------------------------------ of runs


def made(path):
    return Folder.new(path, Config("digits-mlp", "adam", "tiny", preset="default"))


def test_a_run_that_is_trained_is_not_trained_by_another(tmp_path):
    """Neither from Python nor by the command; afterwards, nothing is left of it."""
    said = []

    class Second(Watcher):
        def stepped(self, run, loss):
            second = Run(Folder(run.folder.path))  # to look at it is allowed
            with pytest.raises(HeldError):
                second.train()
            result = CliRunner().invoke(app, ["resume", str(run.folder.path), "--epochs", "9"])
            said.append((result.exit_code, "is in use: process" in result.stderr))

    assert Run(made(tmp_path / "run"), Second()).train() == "finished"
    assert said == [(2, True)] * 4
    assert [row["epoch"] for row in rows(tmp_path / "run")] == [0, 1, 2]
    assert Folder(tmp_path / "run").read().epochs is None
    assert sorted(p.name for p in (tmp_path / "run").iterdir()) == [
        *("config.json", "environment.json", "last.pt", "metrics.jsonl")
    ]


def test_of_many_that_make_a_folder_one_succeeds(tmp_path, monkeypatch):
    """And without a name, each has one of its own."""
    monkeypatch.chdir(tmp_path)
    for name, succeed in (("run", 1), (None, 8)):
        found, refused = [], []

        def make(name=name, found=found, refused=refused):
            try:
                found.append(made(name).path)
            except ValueError as error:
                refused.append(str(error))

        threads = [threading.Thread(target=make) for _ in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert len(set(found)) == len(found) == succeed
        assert len(refused) == 8 - succeed
        assert all("holds a run" in text for text in refused)


def test_a_folder_whose_maker_was_killed_before_its_metrics_can_be_resumed(tmp_path):
    folder = made(tmp_path / "run")
    folder.metrics.unlink()
    assert Run(folder).train() == "finished"
