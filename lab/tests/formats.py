"""Small files in the formats of the originals."""

import os
import struct
import tarfile
from io import BytesIO
from pathlib import Path

import pytest
import torch
from PIL import Image

REAL = Path(os.environ.get("SUPERADAM_DATA") or Path(__file__).resolve().parents[3] / "shared" / "data")
PROTO, STOP = b"\x80\x02", b"."


def real(name):
    """Tests on an original file, where there is one."""
    return pytest.mark.skipif(not (REAL / name).exists(), reason=f"{name} is not in {REAL} (set SUPERADAM_DATA)")


def string(text):
    """A string of Python 2."""
    raw = text if isinstance(text, bytes) else text.encode()
    return (b"U" + bytes([len(raw)]) if len(raw) < 256 else b"T" + struct.pack("<i", len(raw))) + raw


def number(n):
    return b"K" + bytes([n]) if n < 256 else b"M" + struct.pack("<H", n) if n < 65536 else b"J" + struct.pack("<i", n)


def array(raw, rows, columns, kind="u1", reconstruct=b"cnumpy.core.multiarray\n_reconstruct\n"):
    """An array of NumPy, as Python 2 pickled it."""
    dtype = b"cnumpy\ndtype\n" + string(kind) + number(0) + number(1) + b"\x87R"  # dtype(kind, 0, 1)
    dtype += b"(" + number(3) + string("|") + b"NNN" + b"J\xff\xff\xff\xff" * 2 + number(0) + b"tb"
    empty = reconstruct + b"cnumpy\nndarray\n" + number(0) + b"\x85" + string("b") + b"\x87R"
    state = b"(" + number(1) + number(rows) + number(columns) + b"\x86" + dtype + b"\x89" + string(raw) + b"t"
    return empty + state + b"b"


def items(values):
    return b"](" + b"".join(values) + b"e"


def dictionary(**entries):
    return PROTO + b"}(" + b"".join(string(key) + value for key, value in entries.items()) + b"u" + STOP


def cifar_batch(x, y, labels="labels"):
    """x uint8 [N, 3, 32, 32]."""
    names = [string(f"image_{i}.png") + b"q" + bytes([i]) for i in range(len(y))]
    data = array(bytes(x.flatten().int().tolist()), len(x), 3072)
    entries = {"batch_label": string("a batch"), labels: items(map(number, y)), "data": data}
    return dictionary(**entries, filenames=items(names))


def cifar_folder(folder, classes, n=4):
    """A tiny CIFAR. Returns its images and labels, in order: of all training batches, of the test batch."""
    train = [f"data_batch_{i}" for i in range(1, 6)] if classes == 10 else ["train"]
    test, meta, labels = ("test_batch", "batches.meta", "") if classes == 10 else ("test", "meta", "fine_")
    folder.mkdir(parents=True, exist_ok=True)
    written = []
    for name in [*train, test]:
        x, y = torch.randint(256, (n, 3, 32, 32), dtype=torch.uint8), torch.randint(classes, (n,))
        (folder / name).write_bytes(cifar_batch(x, y.tolist(), f"{labels}labels"))
        written.append((x, y))
    names = {f"{labels}label_names": items(string(f"class {i}") for i in range(classes))}
    (folder / meta).write_bytes(dictionary(num_vis=number(3072), **names))
    return [torch.cat(part) for part in zip(*written[:-1], strict=True)], written[-1]


def tar(path, files, mode="w:gz"):
    """An archive of {name: bytes}, or of TarInfo objects."""
    with tarfile.open(path, mode) as out:
        for entry, content in files.items():
            info = entry if isinstance(entry, tarfile.TarInfo) else tarfile.TarInfo(entry)
            info.size = len(content or b"")
            out.addfile(info, BytesIO(content or b""))
    return path


def jpeg(path, size=(40, 30), colour=(200, 100, 50), **options):
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.new("RGB", size, colour).save(path, **options)
    return path


def image_tree(root, classes=("n01", "n02"), train=3, val=2):
    for c, name in enumerate(classes):
        for i in range(train):
            jpeg(root / "train" / name / f"a_{i}.JPEG", colour=(250 * c, 40 * i, 10), quality=95)
        for i in range(val):
            jpeg(root / "val" / name / f"b_{i}.JPEG", colour=(250 * c, 40 * i, 200), quality=95)
