"""Databases and results of comparisons that were damaged, or written by others."""

import dataclasses
import json
import shutil
import sqlite3

import pytest
from typer.testing import CliRunner

from comparing import alone, small_plan
from mutations import damaged, hostile_json, only
from superadam_lab.cli import app
from superadam_lab.comparison import engine, storage
from superadam_lab.comparison import worker as workers
from superadam_lab.comparison.queue import Queue
from superadam_lab.comparison.records import Results

pytestmark = pytest.mark.slow

COLUMNS = {"superadam_comparisons": ("plan", "environment"), "superadam_runs": ("job", "worker", "result")}


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    """A comparison that is done but for two runs: its plan, its results, its database."""
    folder = tmp_path_factory.mktemp("comparison")
    plan = small_plan(folder, trials=1, seeds=2)
    results = alone(plan, folder / "sound.db")
    with Queue(f"sqlite:///{folder / 'sound.db'}", "alone") as queue:
        queue.put([dataclasses.replace(entry.job, seed=7) for entry in queue.entries()[:2]])
    return plan, results, folder / "sound.db"


@pytest.fixture
def quick(monkeypatch):
    """Nothing is waited for, and no run is made."""
    monkeypatch.setattr(storage.time, "sleep", lambda seconds: None)
    monkeypatch.setattr(workers, "run", lambda plan, job: job.record("finished", []))


def use(path, plan):
    """All that a process does with a database."""
    with only(ValueError):
        with Queue(f"sqlite:///{path}", "alone") as queue:
            queue.revive()
            queue.records()
            with queue.take() as taken:
                if taken is not None:
                    taken.record = workers.run(queue.plan, taken.job)
            queue.results()
        with Queue(f"sqlite:///{path}", "alone", plan, {}) as queue:
            assert queue.plan == plan


def test_damaged_data_bases(dice, made, tmp_path, quick):
    plan, _, sound = made
    raw = sound.read_bytes()
    for i in range(40):
        (tmp_path / f"{i}.db").write_bytes(damaged(dice, raw))
        use(tmp_path / f"{i}.db", plan)


def test_data_bases_with_another_content(dice, made, tmp_path, quick):
    plan, _, sound = made
    for i in range(60):
        path = tmp_path / f"{i}.db"
        shutil.copy(sound, path)
        with sqlite3.connect(path) as base:
            table = dice.choice(list(COLUMNS))
            column = dice.choice(COLUMNS[table])
            found = base.execute(f"SELECT rowid, {column} FROM {table} WHERE {column} IS NOT NULL").fetchall()
            for key, value in dice.sample(found, min(len(found), dice.randint(1, 3))):
                bad = hostile_json(dice, value.encode()).decode(errors="replace")
                base.execute(f"UPDATE {table} SET {column} = ? WHERE rowid = ?", (bad, key))
        base.close()
        use(path, plan)


def test_hostile_results(dice, made, tmp_path):
    _, results, _ = made
    text = json.dumps(dataclasses.asdict(results)).encode()
    for i in range(100):
        path = tmp_path / f"{i}.json"
        path.write_bytes(hostile_json(dice, text))
        with only(ValueError):
            engine.report(Results.read(path), tmp_path / "report")


@pytest.mark.parametrize(
    "url", ["sqlite:///{}?nonsense=1", "sqlite:///{}/x.db", "sqlite://", "nonsense", "", "mysql://x/y", "://", "{}",
            "sqlite:///{}.txt", "postgresql://me:secret@localhost:1/x?nonsense=1", "sqlite:////proc/x"]
)  # fmt: skip
def test_a_storage_that_is_none(url, tmp_path, quick):
    (tmp_path / "a.txt").write_text("no database")
    result = CliRunner().invoke(app, ["worker", url.format(tmp_path / "a"), "study"])
    assert result.exit_code == 2, result.stderr
    assert result.stderr.count("\n") == 1
    assert "secret" not in result.stderr
