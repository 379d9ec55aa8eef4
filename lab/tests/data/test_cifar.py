"""CIFAR: the pickles of the original, without running them."""

import pickle
from pathlib import Path

import pytest
import torch

import formats
from superadam_lab.data import DataError, cifar
from superadam_lab.data.cifar import LAYOUTS


@pytest.mark.parametrize("classes", [10, 100])
@pytest.mark.parametrize("packed", [None, "w:gz", "w:xz", "w"])
def test_cifar(tmp_path, classes, packed):
    """From a folder, from the folder above it, and from an archive in either way."""
    name = LAYOUTS[classes].archives[-1]
    train, test = formats.cifar_folder(tmp_path / name, classes)
    if packed:
        files = {f"{name}/{f.name}": f.read_bytes() for f in (tmp_path / name).iterdir()}
        (tmp_path / "packed").mkdir()
        archive = formats.tar(tmp_path / "packed" / f"{name}.tar{packed[1:].replace(':', '.')}", files, packed)
        roots = [archive, archive.parent]
    else:
        roots = [tmp_path, tmp_path / name]
    for root in roots:
        read = cifar(root, classes, verify=False)
        assert torch.equal(read["train"].x, train[0])
        assert torch.equal(read["train"].y, train[1])
        assert torch.equal(read["test"].x, test[0])
        assert torch.equal(read["test"].y, test[1])
        assert read["test"].names == tuple(f"class {i}" for i in range(classes))


def test_cifar_is_normalised(tmp_path):
    (x, _), _ = formats.cifar_folder(tmp_path, 10)
    batch, _ = cifar(tmp_path, verify=False)["train"].batch(torch.tensor([3, 1]))
    mean, std = (torch.tensor(v).view(3, 1, 1) for v in (LAYOUTS[10].mean, LAYOUTS[10].std))
    torch.testing.assert_close(batch, (x[[3, 1]] / 255 - mean) / std)


def test_cifar_that_is_not_the_published_one(tmp_path):
    formats.cifar_folder(tmp_path, 10)
    with pytest.raises(DataError, match=r"data_batch_1 is damaged.*md5 is \w+, not c99cafc15.*fetch\('cifar10'"):
        cifar(tmp_path)


class Attack:
    def __init__(self, path):
        self.path = path

    def __reduce__(self):
        return Path.touch, (self.path,)


@pytest.mark.parametrize("protocol", range(6))
def test_a_pickle_that_would_run_code_is_refused(tmp_path, protocol):
    formats.cifar_folder(tmp_path / "set", 10)
    mark = tmp_path / "executed"
    attack = pickle.dumps({b"data": Attack(mark), b"labels": [0]}, protocol)
    pickle.loads(attack)
    assert mark.exists()  # it is one
    mark.unlink()
    (tmp_path / "set" / "data_batch_2").write_bytes(attack)
    with pytest.raises(DataError, match=r"data_batch_2 is not a file of CIFAR.*it (asks for|holds the instruction)"):
        cifar(tmp_path / "set", verify=False)
    assert not mark.exists()


@pytest.mark.parametrize(
    ("content", "says"),
    [
        (b"", "damaged or cut short"),
        (b"not a pickle", "instruction|damaged"),
        (formats.PROTO + formats.items([]) + formats.STOP, "expected a dictionary, found list"),
        (formats.dictionary(labels=formats.items([])), "expected the entries 'data' and 'labels'"),
        (formats.cifar_batch(torch.zeros(1, 3072), [10]), "labels from 0 to 9"),
        (formats.cifar_batch(torch.zeros(1, 3072), [1, 2]), r"for each of 2 labels, found \(1, 3072\)"),
        (formats.cifar_batch(torch.zeros(1, 3072), [1])[:-2000], "damaged or cut short"),
        (formats.dictionary(labels=formats.items([]), data=formats.array(b"x", 2, 3072)), "array of bytes"),
        (formats.dictionary(labels=formats.items([]), data=formats.array(b"x" * 8, 1, 8, "O")), "array of bytes"),
        (formats.dictionary(labels=formats.items([]), data=b"cnumpy\nndarray\n)R"), "array of bytes"),
        (formats.dictionary(data=formats.array(b"", 1, 1, reconstruct=b"cos\nsystem\n")), "it asks for os.system"),
        (formats.PROTO + b"}r\xff\xff\xff\x7f.", "more than 1048576 objects"),  # would take 32 GB
    ],
)
def test_cifar_damaged(tmp_path, content, says):
    formats.cifar_folder(tmp_path, 10)
    (tmp_path / "test_batch").write_bytes(content)
    with pytest.raises(DataError, match=f"test_batch is not a file of CIFAR's python version: .*{says}.*get the orig"):
        cifar(tmp_path, verify=False)


def test_cifar_of_the_wrong_size(tmp_path):
    formats.cifar_folder(tmp_path, 10)
    with (tmp_path / "test_batch").open("r+b") as file:
        file.truncate(1 << 40)  # a hole: takes no room on the disk
    with pytest.raises(DataError, match="it has more than 268435456 bytes"):
        cifar(tmp_path, verify=False)
    formats.cifar_folder(tmp_path, 10)
    (tmp_path / "batches.meta").write_bytes(formats.dictionary(label_names=formats.items([formats.string("cat")])))
    with pytest.raises(DataError, match=r"batches.meta is not .* expected the names of 10 classes"):
        cifar(tmp_path, verify=False)


def test_cifar_with_any_byte_wrong(tmp_path):
    """Never anything but data or a DataError."""
    formats.cifar_folder(tmp_path, 10, n=1)
    path = tmp_path / "test_batch"
    good = path.read_bytes()
    generator = torch.Generator().manual_seed(0)
    pixels = good.index(b"T\x00\x0c\x00\x00") + 5
    places = [i for i in range(len(good)) if not pixels + 2 <= i < pixels + 3070]
    refused = 0
    for i in places:
        value = int(torch.randint(256, (), generator=generator))
        path.write_bytes(good[:i] + bytes([value]) + good[i + 1 :])
        try:
            cifar(tmp_path, verify=False)
        except DataError:
            refused += 1
    assert refused > len(places) / 3


def test_cifar_missing(tmp_path):
    with pytest.raises(DataError, match=r"does not hold this data. CIFAR-100 is the folder .* downloads it"):
        cifar(tmp_path, 100)
    with pytest.raises(DataError, match=r"there is no .*nowhere. CIFAR-10 is"):
        cifar(tmp_path / "nowhere")
    formats.cifar_folder(tmp_path / "cifar-10-batches-py", 10)
    (tmp_path / "cifar-10-batches-py" / "data_batch_3").unlink()
    with pytest.raises(DataError, match=r"cifar-10-batches-py lacks data_batch_3. CIFAR-10 is"):
        cifar(tmp_path)
    with pytest.raises(ValueError, match=r"Invalid classes: 20 .expected 10 or 100"):
        cifar(tmp_path, 20)


@pytest.mark.slow
@formats.real("cifar-10-batches-py.tar.xz")
def test_real_cifar():
    """The published counts, checksums and statistics."""
    read = cifar(formats.REAL)
    assert read["train"].x.shape == (50000, 3, 32, 32)
    assert read["train"].y.bincount().tolist() == [5000] * 10
    assert read["test"].y.bincount().tolist() == [1000] * 10
    assert read["test"].names[3:6] == ("cat", "deer", "dog")
    assert read["test"].y[:8].tolist() == [3, 8, 8, 0, 6, 6, 1, 6]
    x = read["train"].x / 255
    torch.testing.assert_close(x.mean((0, 2, 3)), torch.tensor(read["train"].mean), atol=5e-5, rtol=0)
    torch.testing.assert_close(x.std((0, 2, 3)), torch.tensor(read["train"].std), atol=1e-4, rtol=0)
