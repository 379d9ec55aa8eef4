"""The data of section 6, from its original files, as tensors; and what comes with Python and scikit-learn.

| call | data | record |
|---|---|---|
| `digits()` | scikit-learn's handwritten digits, 8 × 8 | `Images` |
| `pydoc()` | the text of Python's own documentation, in words | `Tokens` |
| `cifar(root, 10)`, `cifar(root, 100)` | CIFAR, "python version" | `Images` |
| `image_folder(root, size)` | ImageNet, or any `train/class/*.JPEG` and `val/class/*.JPEG` | `ImageFiles` |
| `wikitext2(root)` | WikiText-2 | `Tokens` |
| `libsvm(path)` | a file in LIBSVM's text format | `Rows` |

`root` is a folder that holds the archive as it was published, or what is in it, at most one folder deeper; or the path
of the archive. An archive is unpacked once, beside itself, or, if its folder is read-only, into the user's cache.
`fetch(name, root)` downloads. If a file is wrong, a `DataError` says what to do. No reader runs code from a file, and
no folder or file is left half-written under its final name.

`common` leaves rare words out of texts.

`batches` and `streams` cut a record into batches. Which images are in a batch, in which order and how augmented depends
on seed, epoch and the batch's number alone: not on the number of workers, nor on where a run was resumed.

Preparing a batch takes a small fraction of the model's time on it: `python scripts/input_speed.py` measures it.

>>> data = digits()
>>> {split: len(images) for split, images in data.items()}
{'train': 1000, 'valid': 297, 'test': 500}
>>> x, y = next(batches(data["train"], 32, seed=0, epoch=0))
>>> x.shape, x.dtype, y.shape
(torch.Size([32, 1, 8, 8]), torch.float32, torch.Size([32]))
"""

from superadam_lab.data.batching import batches, streams
from superadam_lab.data.cifar import cifar
from superadam_lab.data.download import fetch
from superadam_lab.data.embedded import common, digits, pydoc
from superadam_lab.data.folders import ImageFiles, image_folder
from superadam_lab.data.records import DataError, Images, Rows, Tokens, augment
from superadam_lab.data.tables import libsvm
from superadam_lab.data.text import wikitext2

__all__ = [
    "DataError",
    "ImageFiles",
    "Images",
    "Rows",
    "Tokens",
    "augment",
    "batches",
    "cifar",
    "common",
    "digits",
    "fetch",
    "image_folder",
    "libsvm",
    "pydoc",
    "streams",
    "wikitext2",
]
