"""Is the input ever slower than the model? Time to prepare a batch against time of one gradient on it, on this machine.

CPU time, on one thread, both in turn, batch by batch, so that a slow moment of the machine hits both; medians.
Embedded data, and noise of the originals' size; JPEG files from --data, if it holds imagenette-mini.tar, or of noise
too. Batches are prepared in this thread: `workers` would hide even that time.

python -m research.lab_speed.input_speed [--batches 10] [--data ../shared/data]
"""

import argparse
import statistics
import tempfile
import time
from pathlib import Path

import torch
from PIL import Image
from torch import nn

from superadam_lab import data
from superadam_lab.tasks import models

CIFAR = ((0.49, 0.48, 0.45), (0.25, 0.24, 0.26))


def noise(n, *shape):
    return data.Images(torch.randint(256, (n, *shape), dtype=torch.uint8), torch.randint(10, (n,)), *CIFAR)


def jpegs(root, folder):
    """Folders of JPEG files of about ImageNet's size, 500 × 375."""
    if root and (Path(root) / "imagenette-mini.tar").exists():
        return "imagenette-mini", data.image_folder(root, 224)["train"]
    for split in ("train", "val"):
        (folder / split / "n0").mkdir(parents=True)
        for i in range(40):
            small = Image.effect_noise((50, 38), 80).convert("RGB")
            small.resize((500, 375), Image.Resampling.BICUBIC).save(folder / split / "n0" / f"{i}.JPEG", quality=90)
    return "noise", data.image_folder(folder, 224)["train"]


def tasks(root, folder):
    """(name, what is fed, batches without end, model)."""
    torch.manual_seed(0)
    digits = data.digits()["train"]
    text = data.pydoc()["train"]
    words = len(text.vocabulary)
    name, files = jpegs(root, folder)
    wikitext = data.Tokens(torch.randint(33_278, (2_000_000,)), [])

    def forever(source, size, augment):
        return (b for epoch in range(10**6) for b in data.batches(source, size, seed=0, epoch=epoch, augment=augment))

    def stretches(tokens):
        return (b for _ in range(10**6) for b in data.streams(tokens, 20, 35))

    yield "digits-mlp", "batch 32", forever(digits, 32, False), models.mlp(64, 128, 10, 0.2)
    yield "digits-cnn", "batch 32", forever(digits, 32, False), models.small_cnn(10, 16)
    yield "pydoc-lstm", "20 × 35 words", stretches(text), models.LSTM(words, 64)
    yield "pydoc-transformer", "20 × 35 words", stretches(text), models.Transformer(words, 64, 2, 64)
    cifar = noise(50_000, 3, 32, 32)
    yield (
        "cifar, ResNet-18 of width 8",
        "batch 128, augmented",
        forever(cifar, 128, True),
        models.cifar_resnet(18, 10, 8),
    )
    yield "cifar, ResNet-18", "batch 128, augmented", forever(cifar, 128, True), models.cifar_resnet(18, 10)
    yield "cifar, VGG-19", "batch 128, augmented", forever(cifar, 128, True), models.vgg19_bn(100)
    yield "wikitext2, LSTM", "20 × 35 words", stretches(wikitext), models.LSTM(33_278)
    yield "wikitext2, Transformer", "20 × 35 words", stretches(wikitext), models.Transformer(33_278)
    yield f"imagenet, ResNet-34 ({name})", "batch 16, augmented", forever(files, 16, True), models.imagenet_resnet(34)


def gradient(model, x, y):
    out = model(x)
    out = out[0] if isinstance(out, tuple) else out
    nn.functional.cross_entropy(out.flatten(0, -2), y.flatten()).backward()
    model.zero_grad()


def measure(args, folder):
    print("| task | batch | input, ms | model, ms | input / model |\n|---|---|---|---|---|")
    for name, what, source, model in tasks(args.data, folder):
        gradient(model, *next(source))
        times, end = [], time.process_time() + 1
        while len(times) < args.batches or (time.process_time() < end and len(times) < 500):
            a = time.process_time()
            batch = next(source)
            b = time.process_time()
            gradient(model, *batch)
            times.append((b - a, time.process_time() - b))
        feed, work = (1e3 * statistics.median(t) for t in zip(*times, strict=True))
        print(f"| {name} | {what} | {feed:.2f} | {work:.2f} | {feed / work:.3f} |", flush=True)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--batches", type=int, default=10, help="of the slowest model; the others see more")
    parser.add_argument("--data", help="folder with imagenette-mini.tar")
    args = parser.parse_args()
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as folder:
        measure(args, Path(folder))


if __name__ == "__main__":
    main()
