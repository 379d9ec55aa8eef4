"""LIBSVM's text format: a label and the non-zero features of one row on each line, `+1 3:1 11:0.5`."""

from __future__ import annotations

import io
import os
from pathlib import Path
from typing import IO, Any

import torch

from superadam_lab.data.files import locate
from superadam_lab.data.records import DataError, Rows

__all__ = ["libsvm"]

LARGEST = 2**30  # numbers of a dense table: 4 GiB
FORM = "Expected a label and index:value pairs with increasing indices from 1, such as '+1 3:1 11:0.5'"


def libsvm(path: str | os.PathLike[str], features: int | None = None) -> Rows:
    """A file of two classes, as a dense table. The larger of its two labels becomes 1, the smaller -1.

    Args:
        path: path of the file, such as `data/a9a`. If it does not exist, `data/libsvm.tar.xz` may contain it.
        features: number of columns. Default: the largest index in the file. For a test set, pass that of the training
            set.

    >>> import pathlib, tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     path = pathlib.Path(folder, "tiny")
    ...     _ = path.write_text("+1 1:0.5 3:2\\n-1 2:1\\n")
    ...     data = libsvm(path)
    >>> data.x.tolist(), data.y.tolist()
    ([[0.5, 0.0, 2.0], [0.0, 1.0, 0.0]], [1.0, -1.0])
    """
    path = Path(path).expanduser()
    if not path.is_file():
        help = (
            f"{path} is expected to be a file in LIBSVM's format, or to be in libsvm.tar.xz there. "
            "superadam_lab.data.fetch downloads 'a9a' and 'w8a'; others are at "
            "https://www.csie.ntu.edu.tw/~cjlin/libsvmtools/datasets."
        )
        path = locate(path.parent, [(path.name,)], ("libsvm",), help)[0] / path.name
    try:
        with path.open("rb") as file:
            x, labels = _read(file)
    except (ValueError, OverflowError) as error:
        n, line = _first_wrong(path)
        shown = line[:60].decode(errors="replace").strip()
        raise DataError(f"{path}, line {n}: cannot read {shown!r} ({error}). {FORM}.") from error
    if not len(labels):
        raise DataError(f"{path} holds no rows. {FORM}.")
    starts, columns, values = (torch.from_numpy(part) for part in (x.indptr, x.indices, x.data))
    stored, rows = values.float(), torch.arange(len(labels)).repeat_interleave(starts.diff())
    wrong = [*rows[~stored.isfinite()].tolist(), *(~labels.isfinite()).nonzero().flatten().tolist()]
    if wrong:
        raise DataError(
            f"{path} holds {len(wrong)} numbers that are infinite, NaN or too large for float32, the first in row "
            f"{min(wrong) + 1}. Remove these rows, or scale the features."
        )
    table = torch.zeros(len(labels), _width(path, len(labels), int(columns.max()) + 1 if len(columns) else 0, features))
    table[rows, columns.long()] = stored
    return Rows(table, _signs(path, labels))


def _read(file: IO[bytes]) -> tuple[Any, torch.Tensor]:
    """The features, as a sparse matrix of SciPy, and the labels."""
    from sklearn.datasets import load_svmlight_file  # type: ignore[import-untyped]

    x, y, queries = load_svmlight_file(file, zero_based=False, query_id=True)
    if len(queries):
        raise ValueError("it has a query, as for ranking")
    return x, torch.from_numpy(y)


def _first_wrong(path: Path) -> tuple[int, bytes]:
    """The first line that cannot be read, by bisection, because scikit-learn does not say which."""
    lines = path.read_bytes().split(b"\n")
    low, high = 0, len(lines)
    while high - low > 1:
        middle = (low + high) // 2
        try:
            _read(io.BytesIO(b"\n".join(lines[low:middle])))
            low = middle
        except (ValueError, OverflowError):
            high = middle
    return low + 1, lines[low]


def _width(path: Path, rows: int, found: int, features: int | None) -> int:
    d = found if features is None else features
    if found > d:
        raise DataError(f"{path} has a feature {found}, but features={features}. Give at least {found}.")
    if rows * d > LARGEST:
        raise DataError(f"{path}: a dense table of {rows} × {d} numbers is too large (more than {LARGEST}).")
    return d


def _signs(path: Path, labels: torch.Tensor) -> torch.Tensor:
    kinds = sorted(set(labels.tolist()))
    if len(kinds) > 2 or (len(kinds) == 1 and abs(kinds[0]) != 1):
        shown = ", ".join(f"{k:g}" for k in kinds[:5])
        raise DataError(f"{path} has {len(kinds)} kinds of labels ({shown}, …). Expected two, such as 1 and -1.")
    return torch.where(labels == kinds[-1], 1.0, -1.0).float() if len(kinds) == 2 else labels.float()
