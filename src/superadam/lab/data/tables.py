"""LIBSVM's text format: a label and the non-zero features of one row on each line, `+1 3:1 11:0.5`."""

from __future__ import annotations

import math
import os
from array import array
from pathlib import Path

import torch

from superadam.lab.data.files import locate
from superadam.lab.data.records import DataError, Rows

__all__ = ["libsvm"]

LARGEST = 2**30  # numbers of a dense table: 4 GiB
FORM = "Expected a label and index:value pairs with increasing indices from 1, such as '+1 3:1 11:0.5'"


def libsvm(path: str | os.PathLike[str], features: int | None = None) -> Rows:
    """A file of two classes, as a dense table. The larger of its two labels becomes 1, the smaller -1.

    Args:
        path: of the file, such as `data/a9a`. If it is not there, `data/libsvm.tar.xz` may hold it.
        features: number of columns. By default the largest index in the file: give a test set its training set's.

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
            "superadam.lab.data.fetch downloads 'a9a' and 'w8a'; others are at "
            "https://www.csie.ntu.edu.tw/~cjlin/libsvmtools/datasets."
        )
        path = locate(path.parent, [(path.name,)], ("libsvm",), help)[0] / path.name
    labels, entries, columns, values = array("d"), array("q"), array("q"), array("d")
    with path.open(encoding="utf-8", errors="replace") as lines:
        for n, line in enumerate(lines, 1):
            content = line.partition("#")[0].split()
            if not content:
                continue
            try:
                labels.append(float(content[0]))
                for pair in content[1:]:
                    index, _, value = pair.partition(":")
                    columns.append(int(index) - 1)
                    values.append(float(value))
            except (ValueError, OverflowError) as error:
                raise DataError(f"{path}, line {n}: cannot read {line[:60].strip()!r}. {FORM}.") from error
            entries.append(len(content) - 1)
            _check_line(columns[len(columns) - len(content) + 1 :], f"{path}, line {n}")
    if not labels:
        raise DataError(f"{path} holds no rows. {FORM}.")
    stored = torch.tensor(values.tolist(), dtype=torch.float64).float()
    rows = torch.arange(len(labels)).repeat_interleave(torch.tensor(entries.tolist()))
    wrong = rows[~stored.isfinite()].tolist() + [i for i, label in enumerate(labels) if not math.isfinite(label)]
    if wrong:
        raise DataError(
            f"{path} holds {len(wrong)} numbers that are infinite, NaN or too large for float32, the first in row "
            f"{min(wrong) + 1}. Remove these rows, or scale the features."
        )
    d = _width(path, len(labels), max(columns, default=-1) + 1, features)
    x = torch.zeros(len(labels), d)
    if columns:
        x[rows, torch.tensor(columns)] = stored
    return Rows(x, _signs(path, torch.tensor(labels.tolist(), dtype=torch.float64)))


def _check_line(columns: array[int], where: str) -> None:
    last = -1
    for column in columns:
        if column <= last:
            raise DataError(f"{where}: index {column + 1} after {last + 1}. {FORM}.")
        last = column


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
