"""No password is shown, and none is written."""

import dataclasses
import json
import sys

import pytest
from typer.testing import CliRunner

from comparing import small_plan
from studies import study
from superadam_lab.cli import app
from superadam_lab.comparison import engine, report, storage
from superadam_lab.comparison.queue import Queue
from superadam_lab.passwords import masked
from superadam_lab.runs.folders import command

NASTY = {  # every part of a password has "x7" in it; nobody answers at port 1
    "user with @": "postgresql://me@corp:x7@127.0.0.1:1/lab",
    "spaces": "postgresql://me:x7 x7 x7@127.0.0.1:1/lab",
    "@": "postgresql://me:x7@x7@127.0.0.1:1/lab",
    "@ and :": "postgresql://me:x7@x7:x7@127.0.0.1:1/lab",
    "@ and /": "postgresql://me:x7@x7/x7@127.0.0.1:1/lab",
    "encoded": "postgresql://me:x7%40%2Fx7%3Ax7@127.0.0.1:1/lab",
    "? and #": "postgresql://me:x7?x7=x7#x7@127.0.0.1:1/lab",
    "newline and quotes": "postgresql://me:x7\nx7'x7\"x7@127.0.0.1:1/lab",
    "in the query": "postgresql://127.0.0.1:1/lab?user=me&password=x7 x7",
    "in the query, with @": "postgresql://127.0.0.1/lab?port=1&password=x7@x7",
    "in the query, after a port, with @": "postgresql://127.0.0.1:1/lab?password=x7@x7",
    "in the query, without a path, with @": "postgresql://127.0.0.1?port=1&password=x7@x7",
    "in the query, encoded key": "postgresql://127.0.0.1:1/lab?pass%77ord=x7",
    "in the query, twice": "postgresql://127.0.0.1:1/lab?password=x7&sslpassword=x7x7",
    "after a fragment": "postgresql://127.0.0.1:1/lab#password=x7",
    "user with /": "postgresql://me/you:x7@127.0.0.1:1/lab",
    "no user": "postgresql://:x7@127.0.0.1:1/lab",
    "port that is none": "postgresql://me:x7@127.0.0.1:x7/lab",
    "IPv6": "postgresql://me:x7@[::1]:1/lab",
    "braces": "postgresql://me:{x7}@127.0.0.1:1/lab",
    "with a driver": "postgresql+psycopg://me:x7@127.0.0.1:1/lab",
    "unknown driver": "postgresql+x://me:x7@127.0.0.1:1/lab",
    "unknown scheme": "postgres://me:x7@127.0.0.1:1/lab",
    "one slash": "postgresql:/me:x7@127.0.0.1:1/lab",
    "no URL": "host=127.0.0.1 port=1 password=x7",
    "no URL, with spaces": "host=127.0.0.1 port=1 password = 'x7 x7'",
}


@pytest.fixture(autouse=True)
def _hurry(monkeypatch):
    pytest.importorskip("psycopg", reason="comes with superadam-lab[postgres]")
    monkeypatch.setattr(storage.time, "sleep", lambda seconds: None)


@pytest.mark.parametrize("url", NASTY.values(), ids=NASTY)
def test_no_command_shows_a_password(tmp_path, url):
    small_plan(tmp_path)
    compare = ["compare", "--task-file", str(tmp_path / "line_task.py"), "--out", str(tmp_path / "out")]
    for args in ([*compare, "--storage", url], [*compare, f"--storage={url}"], ["worker", url, "out"]):
        ended = CliRunner().invoke(app, args)
        assert ended.exit_code == 2, ended.output
        assert "x7" not in ended.output
        assert "Unknown storage" in ended.output or "Cannot open" in ended.output or "needs" in ended.output
        assert not [p for p in (tmp_path / "out").glob("*") if "x7" in p.read_text(errors="replace")]


@pytest.mark.parametrize("url", NASTY.values(), ids=NASTY)
def test_no_result_or_report_holds_a_password(tmp_path, monkeypatch, url):
    """They hold the command, as the folder of a run does."""
    for given in (["--storage", url], [f"--storage={url}"]):
        monkeypatch.setattr(sys, "argv", ["superadam", "compare", "digits-mlp", *given, "--out", "there"])
        if "://" in url or "password" in url:  # others never get so far
            assert "x7" not in command()
            assert command().endswith(" --out there")
            results = study({"adamw": 1.0, "a": 0.5})
            results.environment["command"] = command()
            report.write(results, tmp_path)
            for path in tmp_path.iterdir():
                assert "x7" not in path.read_text()


@pytest.mark.parametrize(
    ("url", "shown"),
    [
        ("postgresql://me:x7@host:5432/lab", "postgresql://me:…@host:5432/lab"),
        ("postgresql://me@corp@host/lab", "postgresql://me@corp@host/lab"),
        ("postgresql://me@host/lab?sslmode=require", "postgresql://me@host/lab?sslmode=…"),
        ("postgresql://host/lab", "postgresql://host/lab"),
        ("sqlite:////a b/c:d@e?f=g/h.db", "sqlite:////a b/c:d@e?f=g/h.db"),
        ("--out=there", "--out=there"),
    ],
)
def test_what_is_no_password_is_shown(url, shown):
    assert masked(url) == shown


ODD = ["a?b", "a?b=c", "100%", "%41", "a#b", "a b", "a\nb", "a:b@c", "{a}", "a&b;c", "ü…", "'\"", "a?b=c&d=e%20f"]


@pytest.mark.parametrize("name", ODD)
def test_a_folder_of_any_name_holds_a_comparison(tmp_path, name):
    """The database is there and nowhere else, for the command and for workers who are told of it by a URL."""
    plan, folder = small_plan(tmp_path, trials=1, seeds=1), tmp_path / name
    plan = dataclasses.replace(plan, methods=["adamw"], compositions={})

    def stop(queue, records):
        raise KeyboardInterrupt

    before = set(tmp_path.iterdir())
    with pytest.raises(KeyboardInterrupt):
        engine.carry_out(plan, folder, jobs=0, listener=stop)
    assert set(tmp_path.iterdir()) - before == {folder}
    assert (folder / "comparison.db").stat().st_size > 0
    with Queue(f"sqlite:///{folder / 'comparison.db'}", name) as queue:
        assert queue.plan == plan
        queue.end(plan)
    ended = CliRunner().invoke(app, ["worker", f"sqlite:///{folder / 'comparison.db'}", name, "--trust"])
    assert ended.stdout == "The comparison has ended. This worker made 0 runs.\n"
    assert set(tmp_path.iterdir()) - before == {folder}
    json.loads((folder / "results.json").read_text())


def test_a_data_base_in_memory_is_refused():
    for url in ("sqlite:///:memory:", "sqlite:///"):
        with pytest.raises(ValueError, match="cannot be shared"):
            Queue(url, "q")


@pytest.mark.parametrize(
    "text", ["sqlite:///x?password=s3cr3t", "postgresql:/u:s3cr3t@h/db", "--storage=pg:/u:s3cr3t@h"]
)
def test_what_is_almost_a_url_shows_no_password(text):
    assert "s3cr3t" not in masked(text)
