"""Downloads that resume where they stopped, with checksums."""

from __future__ import annotations

import difflib
import http.client
import os
import ssl
import time
import urllib.error
import urllib.request
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

from superadam_lab.data import folders, text
from superadam_lab.data.files import md5sum
from superadam_lab.data.records import DataError
from superadam_lab.runs.locks import Lock

__all__ = ["SOURCES", "fetch"]

TRIES, PAUSE, TIMEOUT, CHUNK = 5, 1.0, 30.0, 1 << 18
NETWORK = (urllib.error.URLError, http.client.HTTPException, ConnectionError, TimeoutError, ssl.SSLError)
Progress = Callable[[int, int], None]


class File(NamedTuple):
    name: str  # in the data folder
    url: str
    md5: str
    size: int


_CIFAR = "https://www.cs.toronto.edu/~kriz/"
_WIKITEXT = "https://raw.githubusercontent.com/pytorch/examples/main/word_language_model/data/wikitext-2/"
_LIBSVM = "https://www.csie.ntu.edu.tw/~cjlin/libsvmtools/datasets/binary/"

# md5 of CIFAR as published; of the others, which come without, as of the copies that the lab was tested with.
SOURCES = {
    "cifar10": [
        File("cifar-10-python.tar.gz", f"{_CIFAR}cifar-10-python.tar.gz", "c58f30108f718f92721af3b95e74349a", 170498071)
    ],
    "cifar100": [
        File(
            "cifar-100-python.tar.gz",
            f"{_CIFAR}cifar-100-python.tar.gz",
            "eb9058c3a382ffc7106e4002c42a8d85",
            169001437,
        )
    ],
    "wikitext2": [
        File(f"wikitext-2/{split}.txt", f"{_WIKITEXT}{split}.txt", text.MD5[split], size)
        for split, size in (("train", 10797148), ("valid", 1121681), ("test", 1256449))
    ],
    "a9a": [
        File("a9a", f"{_LIBSVM}a9a", "fb3596510d780aaf76a06dc721d49662", 2329875),
        File("a9a.t", f"{_LIBSVM}a9a.t", "f0bb16cf1ee3e80ff560e9d132ee647e", 1164628),
    ],
    "w8a": [File("w8a", f"{_LIBSVM}w8a", "05cdbfad8de0af3887c0e6f42fddc32b", 3478238)],
}


def fetch(name: str, root: str | os.PathLike[str], progress: Progress | None = None) -> Path:
    """Download a data set into `root`, which is returned, for its reader: `cifar(fetch("cifar10", "data"))`.

    Existing files are kept if their checksum is correct. A file is named `….part` until it is complete and its checksum
    is correct. A download that was interrupted, by the network or by Ctrl-C, resumes from there.

    Args:
        name: cifar10, cifar100, wikitext2, a9a or w8a.
        root: the folder, which is created if necessary.
        progress: a function that is called with the bytes received so far and those of the whole file.
    """
    if name == "imagenet":
        raise DataError(f"ImageNet cannot be downloaded without a registration. {folders.HELP}")
    if name not in SOURCES:
        close = difflib.get_close_matches(name, SOURCES, n=1, cutoff=0.4)
        hint = f" Did you mean {close[0]!r}?" if close else ""
        raise DataError(f"no download is known for {name!r}.{hint} Known: {', '.join(SOURCES)}.")
    root = Path(root).expanduser()
    for file in SOURCES[name]:
        target = root / file.name
        target.parent.mkdir(parents=True, exist_ok=True)
        if not target.exists():
            lock = Lock(target.with_name(f"{target.name}.lock"))
            lock.take()  # of two that would write into one file, the second is refused
            try:
                _download(file, target, progress)
            finally:
                lock.release()
        elif md5sum(target) != file.md5:
            raise DataError(f"{target} exists, but its md5 is not {file.md5}. Delete it and fetch again.")
    return root


def _download(file: File, target: Path, progress: Progress | None) -> None:
    part = target.with_name(f"{target.name}.part")
    if part.exists() and part.stat().st_size > file.size:
        part.unlink()
    resumed = part.exists()
    _complete(file, part, progress)
    if md5sum(part) != file.md5:
        part.unlink()
        if not resumed:
            raise DataError(f"{file.url} sent a file whose md5 is not {file.md5}. Nothing was saved. Try again.")
        _download(file, target, progress)  # what was there from before may have been wrong: once more, from the start
        return
    os.replace(part, target)


def _complete(file: File, part: Path, progress: Progress | None) -> None:
    """Request the missing bytes until the file is complete, or until `TRIES` requests in a row brought nothing."""
    failures = most = 0
    while (have := part.stat().st_size if part.exists() else 0) < file.size:
        problem = "the connection ended early"
        try:
            _receive(file, part, have, progress)
        except urllib.error.HTTPError as error:
            with error:
                problem = f"the server answered {error.code} {error.reason}"
            if error.code == 416:  # it has less than we have: not the file we know
                part.unlink()
            elif error.code < 500 and error.code not in (408, 429):  # asking again will not help
                failures = TRIES - 1
        except NETWORK as error:
            problem = str(getattr(error, "reason", error)) or type(error).__name__
        if part.exists() and part.stat().st_size > max(have, most):
            failures, most = 0, part.stat().st_size
            continue
        failures += 1
        if failures == TRIES:
            raise DataError(
                f"{file.url} could not be downloaded: {problem}. {have} of {file.size} bytes are in {part}: call fetch "
                f"again to go on, or put the file at {part.with_suffix('')} yourself."
            )
        time.sleep(PAUSE * 2 ** (failures - 1))


def _receive(file: File, part: Path, have: int, progress: Progress | None) -> None:
    request = urllib.request.Request(file.url, headers={"Range": f"bytes={have}-"} if have else {})
    with urllib.request.urlopen(request, timeout=TIMEOUT) as response:
        goes_on = response.status == 206 and response.headers.get("Content-Range", "").startswith(f"bytes {have}-")
        if not goes_on:  # a server that does not know ranges sends all of it
            have = 0
        with part.open("ab" if goes_on else "wb") as out:
            while chunk := response.read(CHUNK):
                have += len(chunk)
                if have > file.size:
                    out.close()
                    part.unlink()
                    raise DataError(f"{file.url} sent more than the expected {file.size} bytes. Nothing was saved.")
                out.write(chunk)
                if progress is not None:
                    progress(have, file.size)
