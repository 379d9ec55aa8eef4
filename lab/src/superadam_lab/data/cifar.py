"""CIFAR-10 and CIFAR-100 (Krizhevsky 2009), in the "python version": pickles of Python 2 and NumPy.

A pickle is a program. Its instructions are checked first, and only those that build plain data are allowed. It may use
only the three names that occur in CIFAR's files. Harmless stand-ins, created for each file, take their place and record
their arguments. Neither NumPy nor any other code is called.
"""

from __future__ import annotations

import io
import os
import pickle
import pickletools
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor

from superadam_lab.data.files import check, locate
from superadam_lab.data.records import DataError, Images

__all__ = ["cifar"]

PIXELS = 3 * 32 * 32
LARGEST = 1 << 28  # bytes of a file; the largest of the originals has 155 MB
# fmt: off
INSTRUCTIONS = {
    "PROTO", "MARK", "STOP", "NONE", "NEWTRUE", "NEWFALSE", "BININT", "BININT1", "BININT2", "LONG1", "BINSTRING",
    "SHORT_BINSTRING", "EMPTY_DICT", "EMPTY_LIST", "EMPTY_TUPLE", "TUPLE", "TUPLE1", "TUPLE2", "TUPLE3", "APPEND",
    "APPENDS", "SETITEM", "SETITEMS", "BINPUT", "LONG_BINPUT", "BINGET", "LONG_BINGET", "GLOBAL", "REDUCE", "BUILD",
}
# fmt: on
MEMO = 1 << 20  # numbered objects, of which a file has two for each image at most: room for them is made in advance


class Layout(NamedTuple):
    name: str
    train: dict[str, str]  # file: md5
    test: dict[str, str]
    meta: dict[str, str]
    labels: bytes
    names: bytes
    mean: tuple[float, ...]
    std: tuple[float, ...]
    archives: tuple[str, ...]


LAYOUTS = {
    10: Layout(
        "CIFAR-10",
        {
            "data_batch_1": "c99cafc152244af753f735de768cd75f",
            "data_batch_2": "d4bba439e000b95fd0a9bffe97cbabec",
            "data_batch_3": "54ebc095f3ab1f0389bbae665268c751",
            "data_batch_4": "634d18415352ddfa80567beed471001a",
            "data_batch_5": "482c414d41f54cd18b22e5b47cb7c3cb",
        },
        {"test_batch": "40351d587109b95175f43aff81a1287e"},
        {"batches.meta": "5ff9c542aee3614f3951f8cda6e48888"},
        b"labels",
        b"label_names",
        (0.4914, 0.4822, 0.4465),
        (0.2470, 0.2435, 0.2616),
        ("cifar-10-python", "cifar-10-batches-py"),
    ),
    100: Layout(
        "CIFAR-100",
        {"train": "16019d7e3df5f24257cddd939b257f8d"},
        {"test": "f0ef6b0ae62326f3e7ffdfab6717acfc"},
        {"meta": "7973b15100ade9c7d40fb424638fde48"},
        b"fine_labels",
        b"fine_label_names",
        (0.5071, 0.4865, 0.4409),
        (0.2673, 0.2564, 0.2762),
        ("cifar-100-python",),
    ),
}


def cifar(root: str | os.PathLike[str], classes: int = 10, *, verify: bool = True) -> dict[str, Images]:
    """CIFAR-10 or CIFAR-100, train (50,000) and test (10,000). There is no validation set: cut one off with `take`.

    Args:
        root: folder or archive.
        classes: 10 or 100.
        verify: check that the files are the published ones. False is for your own files in the same format.
    """
    if classes not in LAYOUTS:
        raise ValueError(f"Invalid classes: {classes} (expected 10 or 100)")
    layout = LAYOUTS[classes]
    help = (
        f"{layout.name} is the folder {layout.archives[-1]} or the archive {layout.archives[0]}.tar.gz from "
        f"https://www.cs.toronto.edu/~kriz/cifar.html. superadam_lab.data.fetch('cifar{classes}', root) downloads it "
        "(170 MB)."
    )
    files = layout.train | layout.test | layout.meta
    folder, _ = locate(root, [tuple(files)], layout.archives, help)
    if verify:
        for name, md5 in files.items():
            check(folder / name, md5, help)
    names = _names(folder / next(iter(layout.meta)), layout.names, classes)
    read = [[_images(folder / f, layout.labels, classes) for f in part] for part in (layout.train, layout.test)]
    tensors = [[torch.cat(part) for part in zip(*batches, strict=True)] for batches in read]
    train, test = (Images(x, y, layout.mean, layout.std, names) for x, y in tensors)
    return {"train": train, "test": test}


def _images(path: Path, key: bytes, classes: int) -> tuple[Tensor, Tensor]:
    content = _unpickle(path)
    data, labels = content.get(b"data"), content.get(key)
    if not isinstance(data, Tensor) or not isinstance(labels, list):
        raise _error(path, f"expected the entries 'data' and {key.decode()!r}")
    if any(type(y) is not int or not 0 <= y < classes for y in labels):
        raise _error(path, f"expected labels from 0 to {classes - 1}")
    if data.dim() != 2 or data.shape[1] != PIXELS or len(data) != len(labels):
        raise _error(path, f"expected {PIXELS} numbers for each of {len(labels)} labels, found {tuple(data.shape)}")
    return data.reshape(-1, 3, 32, 32), torch.tensor(labels, dtype=torch.int64)


def _names(path: Path, key: bytes, classes: int) -> tuple[str, ...]:
    names = _unpickle(path).get(key)
    if not isinstance(names, list) or len(names) != classes or not all(isinstance(n, bytes) for n in names):
        raise _error(path, f"expected the names of {classes} classes in the entry {key.decode()!r}")
    return tuple(n.decode("ascii", errors="replace") for n in names)


def _unpickle(path: Path) -> dict[Any, Any]:
    """The dictionary in the file, with arrays of bytes as tensors."""

    class DType:
        def __init__(self, kind: Any, *_: Any) -> None:
            self.kind = kind

        def __setstate__(self, state: Any) -> None: ...

    class Array:
        state: Any = None

        def __setstate__(self, state: Any) -> None:
            self.state = state

    def reconstruct(*_: Any) -> Array:
        return Array()

    known = {
        ("numpy.core.multiarray", "_reconstruct"): reconstruct,
        ("numpy", "ndarray"): Array,
        ("numpy", "dtype"): DType,
    }

    class Unpickler(pickle.Unpickler):
        def find_class(self, module: str, name: str) -> Any:
            if (module, name) not in known:
                raise _error(path, f"it asks for {module}.{name}, which CIFAR's files do not; nothing of it was run")
            return known[module, name]

    if path.stat().st_size > LARGEST:
        raise _error(path, f"it has more than {LARGEST} bytes")
    raw = path.read_bytes()
    try:
        _scan(path, raw)
        content = Unpickler(io.BytesIO(raw), encoding="bytes").load()
    except DataError:
        raise
    except Exception as error:  # a damaged pickle can end in almost any of them
        raise _error(path, f"it is damaged or cut short ({type(error).__name__}: {error})") from error
    if type(content) is not dict:
        raise _error(path, f"expected a dictionary, found {type(content).__name__}")
    arrays = {key: _tensor(path, value.state) for key, value in content.items() if isinstance(value, Array)}
    return content | arrays


def _scan(path: Path, raw: bytes) -> None:
    for instruction, argument, _ in pickletools.genops(raw):
        if instruction.name not in INSTRUCTIONS:
            raise _error(path, f"it holds the instruction {instruction.name}, which CIFAR's files do not")
        if instruction.name == "LONG_BINPUT" and int(argument or 0) >= MEMO:
            raise _error(path, f"it claims to hold more than {MEMO} objects")


def _tensor(path: Path, state: Any) -> Tensor:
    """A tensor from NumPy's saved fields: version, shape, type, whether columns come first, bytes."""
    try:
        _, (rows, columns), dtype, columns_first, raw = state
        fits = dtype.kind == b"u1" and type(raw) is bytes and min(rows, columns) > 0 and rows * columns == len(raw)
    except (TypeError, ValueError, AttributeError):
        fits = False
    if not fits:
        raise _error(path, "expected an array of bytes with two dimensions")
    x = torch.frombuffer(bytearray(raw), dtype=torch.uint8)
    return x.view(columns, rows).t().contiguous() if columns_first else x.view(rows, columns)


def _error(path: Path, what: str) -> DataError:
    return DataError(f"{path} is not a file of CIFAR's python version: {what}. Delete it and get the original again.")
