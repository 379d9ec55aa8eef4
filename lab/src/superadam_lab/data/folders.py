"""Folders of JPEG or PNG images, one folder per class: ImageNet's layout."""

from __future__ import annotations

import math
import os
from dataclasses import dataclass, replace
from pathlib import Path

import torch
from torch import Tensor

from superadam_lab.data.files import locate
from superadam_lab.data.records import Batch, DataError, Images, normalised

__all__ = ["ImageFiles", "image_folder"]

MEAN, STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)  # ImageNet's
LARGEST = 1 << 26  # pixels of an image: a small file can claim more than fits into memory
SUFFIXES = (".jpeg", ".jpg", ".png")
CENTRE = 224 / 256  # side of the central square that is looked at in evaluation, of the image's shorter side
HELP = (
    "Expected a folder train and a folder val, each with one folder per class (for ImageNet n01440764, …), which hold "
    "the JPEG files. ImageNet needs a registration at https://image-net.org/download.php; unpack "
    "ILSVRC2012_img_train.tar and the tar files in it into train, and the images of ILSVRC2012_img_val.tar, by class, "
    "into val."
)


@dataclass(frozen=True, eq=False)
class ImageFiles:
    """N images on disk, decoded when they are needed (ImageNet at 224 × 224 would take 190 GB), and their classes.

    A batch holds the central square of each image, of 224/256 of its shorter side; with augmentation a random box of 8%
    to 100% of its area, with sides in proportions from 3:4 to 4:3 (cut where it is larger than the image), and mirrored
    with probability 1/2. Either is resized to size × size.
    """

    paths: tuple[str, ...]
    y: Tensor
    size: int
    mean: tuple[float, ...]
    std: tuple[float, ...]
    names: tuple[str, ...]

    def __len__(self) -> int:
        return len(self.y)

    def take(self, rows: Tensor | slice) -> ImageFiles:
        """Some of them."""
        kept = torch.arange(len(self))[rows]
        return replace(self, paths=tuple(self.paths[i] for i in kept.tolist()), y=self.y[kept])

    def batch(self, rows: Tensor, key: int | None = None, part: slice = slice(None)) -> Batch:
        """These rows, or a part of them, decoded and normalised; with a key, cropped and flipped by it."""
        return normalised(self._pixels(rows, key, part), self.mean, self.std), self.y[rows[part]]

    def load(self) -> Images:
        """All of them in memory, as evaluation sees them. For small sets."""
        return Images(self._pixels(torch.arange(len(self)), None), self.y, self.mean, self.std, self.names)

    def _pixels(self, rows: Tensor, key: int | None, part: slice = slice(None)) -> Tensor:
        boxes: list[list[float] | None] = [None] * len(rows)
        if key is not None:
            boxes = torch.rand(len(rows), 5, generator=torch.Generator().manual_seed(key)).tolist()
        chosen = zip(rows[part].tolist(), boxes[part], strict=True)
        images = [decode(self.paths[i], self.size, u) for i, u in chosen]
        return torch.stack(images) if images else torch.empty(0, 3, self.size, self.size, dtype=torch.uint8)


def image_folder(root: str | os.PathLike[str], size: int) -> dict[str, ImageFiles]:
    """The images of `train` and `val` as train and test. The names of the folders in train, sorted, are the classes.

    Args:
        root: folder or archive.
        size: width and height of the images in a batch: 224 for ImageNet.
    """
    choices: list[tuple[str, ...]] = [("train/", "val/"), ("train/", "test/")]
    folder, (_, held_out) = locate(root, choices, ("imagenet", "imagenette-mini", "imagenette"), HELP)
    names = tuple(sorted(f.name for f in os.scandir(folder / "train") if f.is_dir()))
    return {split: _files(folder / part, names, size) for split, part in (("train", "train"), ("test", held_out))}


def _files(folder: Path, names: tuple[str, ...], size: int) -> ImageFiles:
    strange = sorted({f.name for f in os.scandir(folder) if f.is_dir()} - set(names))
    if strange:
        raise DataError(f"{folder} has a class {strange[0]}, but {folder.parent / 'train'} has not. {HELP}")
    paths: list[str] = []
    labels: list[int] = []
    for label, name in enumerate(names):
        if (folder / name).is_dir():
            found = sorted(f.path for f in os.scandir(folder / name) if f.name.lower().endswith(SUFFIXES))
            paths += found
            labels += [label] * len(found)
    if not paths:
        raise DataError(f"{folder} holds no images in folders of classes. {HELP}")
    return ImageFiles(tuple(paths), torch.tensor(labels), size, MEAN, STD, names)


def decode(path: str, size: int, u: list[float] | None = None) -> Tensor:
    """A box of an image, uint8 [3, size, size]: the central one, or another one given by five random numbers in [0,
    1)."""
    from PIL import Image

    try:
        with Image.open(path, formats=("JPEG", "PNG")) as image:
            W, H = image.size
            if W * H > LARGEST:
                raise ValueError(f"it has {W} × {H} pixels, more than {LARGEST}")
            left, top, right, bottom = _box(W, H, u)
            # JPEG can be decoded at 1/2, 1/4 or 1/8 of its size: as far as the box keeps `size` pixels.
            image.draft("RGB", (math.ceil(W * size / (right - left)), math.ceil(H * size / (bottom - top))))
            a, b = image.size[0] / W, image.size[1] / H
            box = (left * a, top * b, min(right * a, image.size[0]), min(bottom * b, image.size[1]))
            pixels = image.convert("RGB").resize((size, size), Image.Resampling.BILINEAR, box).tobytes()
    except (OSError, SyntaxError, ValueError, Image.DecompressionBombError, Image.DecompressionBombWarning) as error:
        raise DataError(
            f"{path} cannot be read as a JPEG or PNG image ({error}). Get it again, or delete it."
        ) from error
    x = torch.frombuffer(bytearray(pixels), dtype=torch.uint8).view(size, size, 3).permute(2, 0, 1)
    return x.flip(2) if u is not None and u[4] < 0.5 else x


def _box(W: int, H: int, u: list[float] | None) -> tuple[float, float, float, float]:
    if u is None:
        w = h = CENTRE * min(W, H)
        x, y = 0.5, 0.5
    else:
        area, aspect = W * H * (0.08 + 0.92 * u[0]), (3 / 4) ** (1 - 2 * u[1])
        w, h = min(W, math.sqrt(area * aspect)), min(H, math.sqrt(area / aspect))
        x, y = u[2], u[3]
    left, top = x * (W - w), y * (H - h)
    return left, top, left + w, top + h
