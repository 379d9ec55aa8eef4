"""A file is whole or not there, whoever writes it and however the writing ends."""

import ast
import os
import resource
import signal
import stat
import threading
from pathlib import Path

import pytest

import copies
import superadam_lab
from superadam_lab.disk import whole, write_text

SOURCE = Path(superadam_lab.__file__).parent


def names(folder):
    return sorted(p.name for p in folder.iterdir())


def interrupted(path, new):
    with whole(path, new=new) as file:
        file.write(b"half")
        raise KeyboardInterrupt


@pytest.mark.parametrize("new", [False, True])
def test_an_error_while_it_is_written_leaves_what_was_there(tmp_path, new):
    path = tmp_path / "file"
    for before in ([], ["file"]):
        with pytest.raises(KeyboardInterrupt):
            interrupted(path, new)
        assert names(tmp_path) == before
        path.write_text("old")
    assert path.read_text() == "old"


def test_a_full_disk_leaves_what_was_there(tmp_path):
    path = tmp_path / "file"
    path.write_text("old")
    limits, handler = resource.getrlimit(resource.RLIMIT_FSIZE), signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1000, limits[1]))
    try:
        with pytest.raises(OSError, match="File too large"):
            write_text(path, "x" * 1001)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
        signal.signal(signal.SIGXFSZ, handler)
    assert path.read_text() == "old"
    assert names(tmp_path) == ["file"]


def test_two_writers_do_not_meet(tmp_path):
    """One that begins while another writes leaves its file alone; the last to end wins."""
    path = tmp_path / "file"
    with whole(path) as first:
        first.write(b"of the first ")
        with whole(path) as second:
            second.write(b"of the second")
        assert path.read_text() == "of the second"
        first.write(b"alone")
    assert path.read_text() == "of the first alone"
    assert names(tmp_path) == ["file"]


def test_many_writers_at_once(tmp_path):
    """Every reader finds a whole file, and nothing is left."""
    path = tmp_path / "file"
    content = [f"{i}" * 5000 for i in range(4)]
    write_text(path, content[0])
    failed = []

    def write(text):
        try:
            for _ in range(25):
                write_text(path, text)
                assert path.read_text() in content
        except BaseException as error:
            failed.append(error)

    threads = [threading.Thread(target=write, args=(text,)) for text in content]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert failed == []
    assert names(tmp_path) == ["file"]


def test_of_two_that_make_a_new_file_the_first_wins(tmp_path):
    path = tmp_path / "file"
    with pytest.raises(FileExistsError), whole(path, new=True):
        write_text(path, "quick", new=True)
    assert path.read_text() == "quick"
    assert names(tmp_path) == ["file"]


def test_a_new_file_where_there_are_no_links(tmp_path, monkeypatch):
    def refuse(*args):
        raise PermissionError("no links here")

    monkeypatch.setattr(os, "link", refuse)
    write_text(tmp_path / "file", "whole", new=True)
    with pytest.raises(FileExistsError):
        write_text(tmp_path / "file", "other", new=True)
    assert (tmp_path / "file").read_text() == "whole"
    assert names(tmp_path) == ["file"]


def test_what_a_live_process_writes_stays_and_what_a_dead_one_left_goes(tmp_path):
    path = tmp_path / "file"
    program = "import sys; from superadam_lab.disk import whole\n"
    program += "with whole(sys.argv[1]) as file: print(flush=True); sys.stdin.read()"
    with copies.start("-c", program, str(path), stdin=copies.PIPE, stdout=copies.PIPE) as other:
        other.stdout.readline()
        write_text(path, "mine")
        assert len(names(tmp_path)) == 2
        other.kill()
        other.wait()
    assert len(names(tmp_path)) == 2
    write_text(path, "mine")
    assert names(tmp_path) == ["file"]


def test_the_mode_of_a_file_stays(tmp_path):
    path = tmp_path / "file"
    path.write_text("secret")
    path.chmod(0o600)
    write_text(path, "still")
    assert stat.S_IMODE(path.stat().st_mode) == 0o600


def test_what_is_no_file_is_written_into():
    program = "from superadam_lab.disk import write_text; write_text('/dev/stdout', 'said')"
    assert copies.check("-c", program) == b"said"


def writes(call):
    """Whether a call replaces what is in a file: by a method of a path, a figure, a module, or by `open`."""
    name = getattr(call.func, "attr", getattr(call.func, "id", ""))
    texts = [a.value for a in (*call.args, *(k.value for k in call.keywords)) if isinstance(a, ast.Constant)]
    if name == "open":
        return any(str(text).strip("bt+") in ("w", "x") for text in texts)
    return name in ("write_bytes", "write_html") or (
        name in ("write_text", "dump") and isinstance(call.func, ast.Attribute)
    )


def test_nothing_in_the_package_is_written_in_another_way():
    found = {
        path.relative_to(SOURCE).as_posix()
        for path in SOURCE.rglob("*.py")
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.Call) and writes(node)
    }
    assert found == {"disk.py"}
