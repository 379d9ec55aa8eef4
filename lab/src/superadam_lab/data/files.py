"""Files and archives: find, check, and unpack them completely or not at all."""

from __future__ import annotations

import errno
import hashlib
import os
import shutil
import stat
import tarfile
import tempfile
import zipfile
from collections.abc import Callable, Sequence
from pathlib import Path, PurePosixPath
from typing import Literal

from superadam_lab.data.records import DataError

__all__ = ["check", "locate", "md5sum", "unpack"]

SUFFIXES = (".tar", ".tar.gz", ".tgz", ".tar.xz", ".tar.bz2", ".zip")
HERE = {errno.ENOSPC, errno.EDQUOT, errno.EACCES, errno.EPERM, errno.EROFS, errno.EIO}
"""What of unpacking is not the archive's fault."""
Names = tuple[str, ...]


def locate(
    root: str | os.PathLike[str], choices: Sequence[Names], archives: Sequence[str], help: str
) -> tuple[Path, Names]:
    """The folder that holds all names of one of the choices, and which choice that is: `root`, a folder in it, or what
    an archive unpacks to, which is `root` itself or is in it under one of the given names. Names of folders end in "/".
    """
    root = Path(root).expanduser()
    if root.is_dir():
        folders = [root, *sorted(f for f in root.iterdir() if f.is_dir() and not f.name.startswith("."))]
        packed = [root / f"{stem}{suffix}" for stem in archives for suffix in SUFFIXES]
        packed = [path for path in packed if path.is_file()]
    elif root.is_file():
        folders, packed = [], [root]
    else:
        raise DataError(f"there is no {root}. {help}")
    for folder in folders:
        for names in choices:
            if not _missing(folder, names):
                return folder, names
    if packed:
        folder = unpack(packed[0], choices, help)
        return folder, next(names for names in choices if not _missing(folder, names))
    for folder in folders:
        missing = min((_missing(folder, names) for names in choices), key=len)
        if len(missing) < len(choices[0]):
            raise DataError(f"{folder} lacks {', '.join(missing)}. {help}")
    raise DataError(f"{root} does not hold this data. {help}")


def check(path: Path, md5: str, help: str) -> None:
    """Check that the file is the published one."""
    found = md5sum(path)
    if found != md5:
        raise DataError(
            f"{path} is damaged, or is not the published file: its md5 is {found}, not {md5}. "
            f"Delete it and get it again. {help}"
        )


def md5sum(path: Path) -> str:
    digest = hashlib.md5(usedforsecurity=False)
    with path.open("rb") as file:
        while piece := file.read(1 << 20):
            digest.update(piece)
    return digest.hexdigest()


def unpack(archive: Path, choices: Sequence[Names] = ((),), help: str = "") -> Path:
    """Unpack a tar or zip archive into a folder of its name, and return that folder, which holds one of the choices.

    It is unpacked under another name and renamed when complete. Links, devices and names that lead outside are refused.
    If the archive holds nothing but one folder, that folder's content is what is unpacked.
    """
    target = _target(archive)
    if not target.is_dir():
        target.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(prefix=f".{target.name}.", suffix=".part", dir=target.parent) as part:
            whole = Path(part, "content")
            whole.mkdir()
            _extract(archive, whole, help)
            inside = list(whole.iterdir())
            if len(inside) == 1 and inside[0].is_dir():
                whole = inside[0]
            _check_content(whole, archive, choices, help)
            try:
                whole.rename(target)
            except OSError:  # another process was faster
                if not target.is_dir():
                    raise
    _check_content(target, target, choices, help)
    return target


def _missing(folder: Path, names: Names) -> list[str]:
    return [n for n in names if not ((folder / n).is_dir() if n.endswith("/") else (folder / n).is_file())]


def _check_content(folder: Path, shown: Path, choices: Sequence[Names], help: str) -> None:
    missing = min((_missing(folder, names) for names in choices), key=len)
    if missing:
        raise DataError(f"{shown} lacks {', '.join(missing)}. {help}")


def _target(archive: Path) -> Path:
    """The folder to unpack into: beside the archive or, if its folder is read-only (by its permission bits, even for
    root), in the user's cache, under a name that depends on the archive."""
    suffix = next((s for s in sorted(SUFFIXES, key=len, reverse=True) if archive.name.endswith(s)), archive.suffix)
    stem = archive.name.removesuffix(suffix) or archive.name
    folder = archive.parent
    if (folder / stem).is_dir() or (folder.stat().st_mode & 0o222 and os.access(folder, os.W_OK)):
        return folder / (stem if stem != archive.name else f"{stem}.unpacked")
    info = archive.stat()
    mark = hashlib.blake2b(f"{archive.resolve()} {info.st_size} {info.st_mtime_ns}".encode(), digest_size=4).hexdigest()
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    return cache / "superadam" / f"{stem}-{mark}"


def _extract(archive: Path, folder: Path, help: str) -> None:
    room = shutil.disk_usage(folder).free

    def admit(name: str, size: int, kind: Literal["file", "folder", "else"]) -> None:
        """Raise an error for entries that no archive of data contains, before unpacking."""
        nonlocal room
        if kind == "else":
            raise DataError(f"{archive} holds {name}, which is neither a file nor a folder. It was not unpacked.")
        path = folder / _safe(name, archive)
        if path.exists() and not (kind == "folder" and path.is_dir()):
            raise FileExistsError(errno.EEXIST, "it is there", str(path))
        room -= size
        if room < 0:
            raise DataError(f"{archive} unpacks to more than is free on the disk of {folder.parent.parent}.")

    try:
        (_unzip if zipfile.is_zipfile(archive) else _untar)(archive, folder, admit)
    except (FileExistsError, NotADirectoryError) as error:
        raise DataError(f"{archive} holds two entries named {error.filename}. It was not unpacked.") from error
    except DataError:
        raise
    except Exception as error:  # reading an archive that is damaged, encrypted or none can end in almost any of them
        if isinstance(error, OSError) and error.errno in HERE:
            raise
        raise DataError(f"{archive} is damaged or cut short ({error}). Delete it and get it again. {help}") from error


def _unzip(archive: Path, folder: Path, admit: Callable[..., None]) -> None:
    with zipfile.ZipFile(archive) as zipped:
        for entry in zipped.infolist():
            plain = stat.S_IFMT(entry.external_attr >> 16) in (0, stat.S_IFREG, stat.S_IFDIR)
            admit(entry.filename, entry.file_size, "else" if not plain else "folder" if entry.is_dir() else "file")
            zipped.extract(entry, folder)


def _untar(archive: Path, folder: Path, admit: Callable[..., None]) -> None:
    def filtered(member: tarfile.TarInfo, path: str) -> tarfile.TarInfo | None:
        plain = (member.isdir() or member.isreg()) and not member.issparse()
        admit(member.name, member.size, "else" if not plain else "folder" if member.isdir() else "file")
        return tarfile.data_filter(member, path)

    with tarfile.open(archive, "r:*") as tar:
        for member in tar:  # as they come: a compressed archive is read once
            tar.extract(member, folder, filter=filtered)


def _safe(name: str, archive: Path) -> Path:
    path = PurePosixPath(name)
    if path.is_absolute() or ".." in path.parts or any(c in name for c in "\\:\0"):
        raise DataError(f"{archive} holds {name!r}, which leads outside its folder. It was not unpacked.")
    return Path(*path.parts)
