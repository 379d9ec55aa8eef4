"""Downloads, from a server that behaves badly."""

import hashlib
import re
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

from patience import HANGS
from superadam_lab.data import DataError, download, fetch, libsvm
from superadam_lab.data.download import File
from superadam_lab.runs.locks import HeldError

CONTENT = b"".join(f"{1 if i % 2 else -1} {i % 7 + 1}:1\n".encode() for i in range(20_000))
MD5 = hashlib.md5(CONTENT, usedforsecurity=False).hexdigest()


class Server(ThreadingHTTPServer):
    daemon_threads = True
    content = CONTENT
    ranges = True  # does it know them?
    drops = ()  # after how many bytes each connection in turn is cut
    status = 200

    def __init__(self):
        super().__init__(("127.0.0.1", 0), Handler)
        self.asked = []

    def handle_error(self, request, client_address):
        pass


class Handler(BaseHTTPRequestHandler):
    def do_GET(self):
        server = self.server
        wanted = self.headers.get("Range")
        server.asked.append(wanted)
        start = int(re.fullmatch(r"bytes=(\d+)-", wanted)[1]) if wanted and server.ranges else 0
        if server.status != 200:
            return self.send_error(server.status)
        if start >= len(server.content):
            return self.send_error(416)
        body = server.content[start:]
        self.send_response(206 if wanted and server.ranges else 200)
        if wanted and server.ranges:
            self.send_header("Content-Range", f"bytes {start}-{len(server.content) - 1}/{len(server.content)}")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        turn = len(server.asked) - 1
        self.wfile.write(body[: server.drops[turn]] if turn < len(server.drops) else body)
        return None

    def log_message(self, *_):
        pass


@pytest.fixture
def server(monkeypatch):
    with Server() as server:
        threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True).start()
        url = f"http://127.0.0.1:{server.server_port}/tiny"
        monkeypatch.setitem(download.SOURCES, "tiny", [File("sub/tiny", url, MD5, len(CONTENT))])
        monkeypatch.setattr(download, "PAUSE", 0.0)
        monkeypatch.setattr(download, "TIMEOUT", HANGS)
        yield server
        server.shutdown()


def test_a_download(tmp_path, server):
    seen = []
    root = fetch("tiny", tmp_path / "new", lambda have, whole: seen.append((have, whole)))
    assert (root / "sub" / "tiny").read_bytes() == CONTENT
    assert seen[-1] == (len(CONTENT), len(CONTENT))
    assert len(libsvm(root / "sub" / "tiny")) == 20_000
    fetch("tiny", root)  # is there
    assert server.asked == [None]


def test_a_connection_that_drops_is_taken_up_where_it_ended(tmp_path, server):
    server.drops = (70_000, 0, 1000)
    fetch("tiny", tmp_path)
    assert (tmp_path / "sub" / "tiny").read_bytes() == CONTENT
    assert server.asked == [None, "bytes=70000-", "bytes=70000-", "bytes=71000-"]
    assert [p.name for p in (tmp_path / "sub").iterdir()] == ["tiny"]


def test_a_server_that_does_not_know_ranges_sends_all_again(tmp_path, server):
    server.drops, server.ranges = (70_000,), False
    fetch("tiny", tmp_path)
    assert (tmp_path / "sub" / "tiny").read_bytes() == CONTENT
    assert server.asked == [None, "bytes=70000-"]


def test_an_interrupted_download_goes_on_later(tmp_path, server):
    def stop(have, whole):
        raise KeyboardInterrupt

    server.drops = (70_000,)
    with pytest.raises(KeyboardInterrupt):
        fetch("tiny", tmp_path, stop)
    assert [p.name for p in (tmp_path / "sub").iterdir()] == ["tiny.part"]
    have = (tmp_path / "sub" / "tiny.part").stat().st_size
    fetch("tiny", tmp_path)
    assert have > 0
    assert server.asked == [None, f"bytes={have}-"]
    assert (tmp_path / "sub" / "tiny").read_bytes() == CONTENT


def test_two_do_not_write_into_one_file(tmp_path, server):
    def second(have, whole):
        with pytest.raises(HeldError, match=r"sub is in use: process \d+ on"):
            fetch("tiny", tmp_path)

    fetch("tiny", tmp_path, second)
    assert (tmp_path / "sub" / "tiny").read_bytes() == CONTENT
    assert [p.name for p in (tmp_path / "sub").iterdir()] == ["tiny"]


def test_giving_up(tmp_path, server):
    """After five times without a byte; what came before is kept."""
    server.drops = (70_000, *[0] * 10)
    with pytest.raises(DataError, match=r"the connection ended early. 70000 of \d+ bytes are in .*part: call fetch"):
        fetch("tiny", tmp_path)
    assert len(server.asked) == 6
    assert (tmp_path / "sub" / "tiny.part").read_bytes() == CONTENT[:70_000]


@pytest.mark.parametrize(("status", "times"), [(404, 1), (403, 1), (503, 5)])
def test_refusals(tmp_path, server, status, times):
    server.status = status
    with pytest.raises(DataError, match=rf"could not be downloaded: the server answered {status}.*or put the file at"):
        fetch("tiny", tmp_path)
    assert len(server.asked) == times
    assert list((tmp_path / "sub").iterdir()) == []


def test_no_server(tmp_path, server, monkeypatch):
    closed = File("tiny", "http://127.0.0.1:9/tiny", MD5, len(CONTENT))
    monkeypatch.setitem(download.SOURCES, "tiny", [closed])
    with pytest.raises(DataError, match=r"could not be downloaded: .*refused"):
        fetch("tiny", tmp_path)


def test_wrong_content_is_not_kept(tmp_path, server):
    server.content = b"x" * len(CONTENT)
    with pytest.raises(DataError, match=r"sent a file whose md5 is not .* Nothing was saved"):
        fetch("tiny", tmp_path)
    assert list((tmp_path / "sub").iterdir()) == []


def test_more_than_there_should_be_is_not_kept(tmp_path, server):
    server.content = CONTENT + b"x" * 10_000_000
    with pytest.raises(DataError, match=r"sent more than the expected \d+ bytes"):
        fetch("tiny", tmp_path)
    assert list((tmp_path / "sub").iterdir()) == []


def test_a_shorter_file_than_there_should_be(tmp_path, server):
    server.content = CONTENT[:1000]
    with pytest.raises(DataError, match="could not be downloaded"):
        fetch("tiny", tmp_path)
    assert not (tmp_path / "sub" / "tiny").exists()


@pytest.mark.parametrize("stale", [b"wrong" * 100, b"y" * (len(CONTENT) + 5), b"z" * len(CONTENT)])
def test_a_wrong_beginning_from_before_is_thrown_away(tmp_path, server, stale):
    (tmp_path / "sub").mkdir()
    (tmp_path / "sub" / "tiny.part").write_bytes(stale)
    fetch("tiny", tmp_path)
    assert (tmp_path / "sub" / "tiny").read_bytes() == CONTENT


def test_a_wrong_file_that_is_there_is_not_overwritten(tmp_path, server):
    (tmp_path / "sub").mkdir()
    (tmp_path / "sub" / "tiny").write_bytes(b"mine")
    with pytest.raises(DataError, match=r"tiny exists, but its md5 is not .*Delete it and fetch again"):
        fetch("tiny", tmp_path)
    assert (tmp_path / "sub" / "tiny").read_bytes() == b"mine"
    assert server.asked == []


def test_names():
    with pytest.raises(DataError, match=r"'cifar1O'. Did you mean 'cifar10'\? Known: cifar10, cifar100"):
        fetch("cifar1O", "nowhere")
    with pytest.raises(DataError, match=r"without a registration. Expected a folder train"):
        fetch("imagenet", "nowhere")


def test_addresses_are_https_and_files_are_where_readers_look():
    for files in download.SOURCES.values():
        for file in files:
            assert file.url.startswith("https://")
            assert re.fullmatch(r"[0-9a-f]{32}", file.md5)
    assert {f.name for f in download.SOURCES["wikitext2"]} == {
        f"wikitext-2/{s}.txt" for s in ("train", "valid", "test")
    }
