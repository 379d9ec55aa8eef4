"""Batches depend on seed, epoch and number, and on nothing else."""

import subprocess
import sys

import pytest
import torch

import formats
from superadam_lab.data import DataError, Images, Rows, Tokens, augment, batches, image_folder, streams


def images(n=50):
    x = torch.randint(256, (n, 3, 32, 32), dtype=torch.uint8, generator=torch.Generator().manual_seed(1))
    return Images(x, torch.arange(n), (0.5, 0.4, 0.3), (0.2, 0.3, 0.4))


def same(a, b):
    a, b = list(a), list(b)
    return len(a) == len(b) and all(
        torch.equal(x, u) and torch.equal(y, v) for (x, y), (u, v) in zip(a, b, strict=True)
    )


@pytest.fixture(params=["images", "files"])
def data(request, tmp_path):
    if request.param == "images":
        return images()
    formats.image_tree(tmp_path, train=12)
    return image_folder(tmp_path, 16)["train"]


@pytest.mark.parametrize("workers", [1, 2, 5])
def test_the_same_with_any_number_of_workers(data, workers):
    torch.manual_seed(3)
    alone = list(batches(data, 7, seed=1, epoch=2, augment=True))
    torch.manual_seed(4)  # torch's own generator has no part in it
    assert same(alone, batches(data, 7, seed=1, epoch=2, augment=True, workers=workers))


@pytest.mark.parametrize("workers", [0, 2])
def test_skipping(data, workers):
    """A resumed run sees what it would have seen."""
    whole = list(batches(data, 7, seed=1, epoch=2, augment=True))
    for skip in (0, 1, 3, len(whole), len(whole) + 2):
        assert same(whole[skip:], batches(data, 7, seed=1, epoch=2, augment=True, skip=skip, workers=workers))


def test_torch_generators_are_not_touched(data):
    before = torch.get_rng_state()
    list(batches(data, 7, seed=1, epoch=2, augment=True))
    assert torch.equal(before, torch.get_rng_state())


def test_every_row_once_in_another_order_each_epoch_and_seed():
    orders = []
    for seed, epoch in ((0, 0), (0, 1), (1, 0)):
        parts = [y for _, y in batches(images(), 7, seed=seed, epoch=epoch)]
        assert [len(y) for y in parts] == [7] * 7 + [1]
        orders.append(torch.cat(parts).tolist())
        assert sorted(orders[-1]) == list(range(50))
    assert len({tuple(order) for order in orders}) == 3
    assert torch.cat([y for _, y in batches(images(), 7)]).tolist() == list(range(50))


def test_the_same_in_another_process():
    """Python's hash seed has no part in it."""
    code = (
        "import torch; from superadam_lab.data import Rows, batches;"
        "data = Rows(torch.arange(20.), torch.ones(20));"
        "print([int(v) for x, _ in batches(data, 3, seed=5, epoch=6) for v in x])"
    )
    there = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    here = [int(v) for x, _ in batches(Rows(torch.arange(20.0), torch.ones(20)), 3, seed=5, epoch=6) for v in x]
    assert there == f"{here}\n"


def test_augment_is_a_shift_and_a_mirror():
    """Each image of the result is one of 9 · 9 · 2 images, made one by one; all shifts and both mirrors come up."""
    x = torch.rand(400, 2, 8, 8)
    out = augment(x, key=7)
    assert out.shape == x.shape
    padded = torch.nn.functional.pad(x, (4,) * 4)
    seen = torch.zeros(400, dtype=torch.long)
    downs, rights, mirrors = set(), set(), 0
    for down in range(9):
        for right in range(9):
            crop = padded[:, :, down : down + 8, right : right + 8]
            for mirrored in (False, True):
                hit = ((crop.flip(3) if mirrored else crop) == out).flatten(1).all(1)
                seen += hit
                if hit.any():
                    downs.add(down)
                    rights.add(right)
                    mirrors += int(hit.sum()) * mirrored
    assert seen.eq(1).all()
    assert downs == rights == set(range(9))
    assert 150 < mirrors < 250


def test_augment_depends_on_the_key_alone():
    x = torch.rand(16, 3, 32, 32)
    before = x.clone()
    assert torch.equal(augment(x, 1), augment(x, 1))
    assert not torch.equal(augment(x, 1), augment(x, 2))
    assert torch.equal(x, before)
    assert torch.equal(augment(x.double(), 1), augment(x, 1).double())


def test_augmented_batches_differ_between_batches_and_epochs():
    data = Images(
        torch.randint(256, (1, 3, 32, 32), dtype=torch.uint8).expand(20, 3, 32, 32), torch.zeros(20), (0,), (1,)
    )
    kinds = {
        tuple(x.flatten().tolist())
        for epoch in range(2)
        for batch, _ in batches(data, 10, seed=0, epoch=epoch, augment=True)
        for x in batch
    }
    assert len(kinds) > 30


def test_leaving_early_ends_the_workers():
    import threading

    loop = batches(images(), 2, seed=0, workers=3)
    next(loop)
    loop.close()
    assert not [t for t in threading.enumerate() if t.name.startswith("batches")]


def test_a_bad_image_is_reported_from_workers(tmp_path):
    formats.image_tree(tmp_path)
    (tmp_path / "train" / "n01" / "a_1.JPEG").write_bytes(b"no image")
    with pytest.raises(DataError, match=r"a_1.JPEG cannot be read"):
        list(batches(image_folder(tmp_path, 16)["train"], 2, seed=0, workers=2))


def test_take():
    data = images()
    assert data.take(slice(10)).y.tolist() == list(range(10))
    assert data.take(torch.tensor([3, 1])).y.tolist() == [3, 1]
    rows = Rows(torch.arange(6.0).view(3, 2), torch.tensor([1.0, -1, 1]))
    assert rows.take(torch.tensor([2])).x.tolist() == [[4, 5]]
    assert Tokens(torch.arange(5), list("abcde")).take(slice(1, 3)).ids.tolist() == [1, 2]


def test_wrong_arguments():
    rows = Rows(torch.zeros(3, 2), torch.ones(3))
    with pytest.raises(DataError, match="augment=True is for images"):
        next(batches(rows, 2, seed=0, augment=True))
    with pytest.raises(ValueError, match="augment=True needs a seed"):
        batches(images(), 2, augment=True)
    with pytest.raises(DataError, match="the data has no rows"):
        batches(rows.take(slice(0)), 2)
    with pytest.raises(ValueError, match="size=0"):
        batches(rows, 0)
    with pytest.raises(ValueError, match="bptt=0"):
        streams(Tokens(torch.arange(9), []), 2, 0)
    with pytest.raises(DataError, match="a text of 5 words is too short for 3 streams"):
        streams(Tokens(torch.arange(5), []), 3, 2)


@pytest.mark.parametrize(("n", "batch", "bptt"), [(100, 4, 7), (103, 4, 7), (11, 2, 35), (20, 10, 1)])
def test_streams(n, batch, bptt):
    """Put together again, the stretches are the columns of the text; targets are one word later."""
    parts = streams(Tokens(torch.arange(n), []), batch, bptt)
    inputs, targets = (torch.cat(part) for part in zip(*parts, strict=True))
    length = n // batch
    assert torch.equal(inputs, torch.arange(length * batch).view(batch, length).t()[:-1])
    assert torch.equal(targets, inputs + 1)
    assert all(x.shape == (bptt, batch) for x, _ in parts[:-1])
