"""The lab's readers: the originals' formats, damaged and hostile files, and, where they are, the originals."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import formats
from formats import REAL, real
from superadam_lab import data
from superadam_lab.data import DataError, image_folder, libsvm, wikitext2

# ------------------------------------------------------------------------------------------------ embedded


def test_digits():
    """Three disjoint parts of scikit-learn's 1,797 images; batches of the training part have mean 0 and variance 1."""
    from sklearn.datasets import load_digits

    parts = data.digits()
    assert [len(parts[s]) for s in ("train", "valid", "test")] == [1000, 297, 500]
    x = torch.cat([p.x for p in parts.values()]).flatten(1)
    original = torch.tensor(load_digits().data * 15, dtype=torch.uint8)
    assert sorted(x.tolist()) == sorted(original.tolist())
    batch, y = parts["train"].batch(torch.arange(1000))
    torch.testing.assert_close(batch.mean(), torch.tensor(0.0), atol=1e-5, rtol=0)
    torch.testing.assert_close(batch.std(), torch.tensor(1.0), atol=1e-5, rtol=0)
    assert y.dtype == torch.int64


def test_pydoc():
    """One vocabulary, that of the training text; every number is a word of it; no paragraph in two parts."""
    parts = data.pydoc()
    train = parts["train"]
    assert train.ids.unique().tolist() == list(range(len(train.vocabulary)))
    for part in parts.values():
        assert part.ids.max() < len(part.vocabulary)
    assert (train.ids == 0).float().mean() < 0.05
    paragraphs = {s: " ".join(train.vocabulary[i] for i in p.ids).split(" <eos> ") for s, p in parts.items()}
    long = {s: {p for p in ps if len(p) > 200} for s, ps in paragraphs.items()}
    assert long["train"]
    assert not long["train"] & long["test"]
    assert not long["train"] & long["valid"]


# ------------------------------------------------------------------------------------------------ WikiText


@pytest.mark.parametrize("name", ["{}.txt", "wiki.{}.tokens"])
def test_wikitext(tmp_path, name):
    texts = {"train": " \n = A <unk> = \n b A \n", "valid": " b = \n", "test": "A new\n"}
    for split, text in texts.items():
        (tmp_path / name.format(split)).write_text(text)
    read = wikitext2(tmp_path, verify=False)
    words = {s: [t.vocabulary[i] for i in t.ids] for s, t in read.items()}
    assert words["train"] == ["<eos>", "=", "A", "<unk>", "=", "<eos>", "b", "A", "<eos>"]
    assert words["valid"] == ["b", "=", "<eos>"]
    assert words["test"] == ["A", "<unk>", "<eos>"]
    assert len(read["test"].vocabulary) == 5
    with pytest.raises(DataError, match=r"is damaged, or is not the published file.*34a77ebe"):
        wikitext2(tmp_path)


@pytest.mark.parametrize(
    ("split", "content", "says"),
    [
        ("valid", b"", "valid.txt holds no words"),
        ("train", b"caf\xe9 \xff", "train.txt is not UTF-8 text: .* at byte 3"),
        ("test", b"new", "the word 'new' is not in the training text"),
        ("test", None, "lacks test.txt. WikiText-2 is"),
    ],
)
def test_wikitext_damaged(tmp_path, split, content, says):
    for s in ("train", "valid", "test"):
        (tmp_path / f"{s}.txt").write_bytes(b"a b\n")
    (tmp_path / f"{split}.txt").unlink()
    if content is not None:
        (tmp_path / f"{split}.txt").write_bytes(content)
    with pytest.raises(DataError, match=says):
        wikitext2(tmp_path, verify=False)


@real("wikitext-2.tar.xz")
def test_real_wikitext():
    read = wikitext2(REAL)
    assert [len(read[s]) for s in ("train", "valid", "test")] == [2_088_628, 217_646, 245_569]
    assert len(read["train"].vocabulary) == 33_278


# ------------------------------------------------------------------------------------------------ LIBSVM


def test_libsvm_against_scikit_learn(tmp_path):
    """A file that scikit-learn writes, read as scikit-learn reads it."""
    from sklearn.datasets import dump_svmlight_file, load_svmlight_file

    x = torch.randn(30, 7, dtype=torch.float64).relu()
    dump_svmlight_file(
        x.numpy(), torch.arange(30).numpy() % 2 * 2 - 1, str(tmp_path / "a"), zero_based=False, comment="hi"
    )
    read = libsvm(tmp_path / "a", features=9)
    theirs = load_svmlight_file(str(tmp_path / "a"), n_features=9)
    torch.testing.assert_close(read.x, torch.tensor(theirs[0].toarray(), dtype=torch.float32))
    assert read.y.tolist() == theirs[1].tolist()


@given(st.floats().filter(lambda f: f != 0), st.sampled_from([1.0, -3.5]))
def test_libsvm_is_finite_in_what_it_stores_or_refused(tmp_path_factory, value, other):
    """Values near the ends of float32, too."""
    path = tmp_path_factory.getbasetemp() / "libsvm-of-any-value"
    path.write_text(f"+1 1:{value!r}\n-1 2:{other!r}\n")
    stored = torch.tensor(value, dtype=torch.float64).float()
    if stored.isfinite():
        assert libsvm(path).x.tolist() == [[stored.item(), 0.0], [0.0, other]]
    else:
        with pytest.raises(DataError, match="too large for float32, the first in row 1"):
            libsvm(path)


@pytest.mark.parametrize(("low", "high"), [("-1", "+1"), ("0", "1"), ("1", "2"), ("1e39", "2e39")])
def test_libsvm_labels(tmp_path, low, high):
    (tmp_path / "a").write_text(f"{high} 1:1\n\n{low} # nothing\n{high} 2:-1e-3\n")
    read = libsvm(tmp_path / "a")
    assert read.y.tolist() == [1, -1, 1]
    torch.testing.assert_close(read.x, torch.tensor([[1.0, 0], [0, 0], [0, -1e-3]]))


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("", "holds no rows"),
        ("+1 1:1\n-1 2:one\n", "line 2: cannot read '-1 2:one'"),
        ("+1 qid:3 1:1\n", "line 1: cannot read"),
        ("+1 1\n", "line 1: cannot read"),
        ("+1 0:1\n", "line 1: cannot read .*index 0.*Expected .* increasing indices from 1"),
        ("+1 3:1 2:1\n", "line 1: cannot read .*sorted and unique"),
        ("+1 2:1 2:1\n", "line 1: cannot read .*sorted and unique"),
        ("+1 1:nan\n-1 1:1\n", "1 numbers that are infinite, NaN .*in row 1"),
        ("nan 1:1\n-1 1:1\n", "infinite, NaN .*in row 1"),
        ("+1 1:1\n\n-1 1:1e39\n", "too large for float32, the first in row 2"),
        ("+1 1:1 2:-1e39\n-1 1:inf\n", "2 numbers .*in row 1"),
        ("1 1:1\n2 1:1\n3 1:1\n", "3 kinds of labels"),
        ("7 1:1\n", "1 kinds of labels"),
        ("+1 900000000000:1\n", "too large"),
        ("+1 99999999999999999999999:1\n", "line 1: cannot read"),
        ("\x00\xff\xfe", "line 1: cannot read"),
    ],
)
def test_libsvm_damaged(tmp_path, text, says):
    (tmp_path / "a").write_bytes(text.encode("latin1"))
    with pytest.raises(DataError, match=says):
        libsvm(tmp_path / "a")


def test_libsvm_missing(tmp_path):
    with pytest.raises(DataError, match=r"a9a is expected to be a file in LIBSVM's format.*fetch"):
        libsvm(tmp_path / "a9a")
    (tmp_path / "b").write_text("1 5:1\n")
    with pytest.raises(DataError, match=r"has a feature 5, but features=3. Give at least 5"):
        libsvm(tmp_path / "b", features=3)


@real("libsvm.tar.xz")
def test_real_libsvm():
    """The published sizes, and the published counts of positive rows."""
    for name, features, shape, positive in (
        ("a9a", None, (32_561, 123), 7_841),
        ("a9a.t", 123, (16_281, 123), 3_846),
        ("w8a", None, (49_749, 300), 1_479),
    ):
        read = libsvm(REAL / name, features)
        assert read.x.shape == shape
        assert int((read.y > 0).sum()) == positive


# ------------------------------------------------------------------------------------------------ folders of images


def test_image_folder(tmp_path):
    """Classes are the sorted folders; colours arrive where they should; `load` is what evaluation sees."""
    formats.image_tree(tmp_path)
    read = image_folder(tmp_path, 16)
    assert read["train"].y.tolist() == [0, 0, 0, 1, 1, 1]
    assert read["test"].y.tolist() == [0, 0, 1, 1]
    assert read["test"].names == ("n01", "n02")
    images = read["test"].load()
    assert images.x.shape == (4, 3, 16, 16)
    colours = images.x.float().mean((2, 3))
    expected = torch.tensor([[0, 0, 200], [0, 40, 200], [250, 0, 200], [250, 40, 200.0]])
    assert (colours - expected).abs().max() < 4
    assert torch.equal(images.batch(torch.tensor([2]))[0], read["test"].batch(torch.tensor([2]))[0])


def test_image_folder_sees_the_centre_and_augments_elsewhere(tmp_path):
    """Columns of an image that is brighter to the right: the central 7/8 of the shorter side; when augmented, boxes of
    which some are mirrored."""
    from PIL import Image

    formats.image_tree(tmp_path)
    ramp = torch.arange(256, dtype=torch.uint8).expand(128, 256).contiguous()
    path = tmp_path / "train" / "n01" / "a_0.JPEG"
    Image.fromarray(ramp.numpy(), "L").save(path, "PNG")  # grey, and of the wrong name, as some of ImageNet are
    files = image_folder(tmp_path, 32)["train"]
    first = files.take(slice(1))
    row = first.load().x[0, 0, 16].float()
    assert abs(row[0] - 73) < 3  # 128 ∓ 56
    assert abs(row[-1] - 182) < 3
    rising = [bool((x := first.batch(torch.tensor([0]), key)[0][0, 0, 16])[-1] > x[0]) for key in range(20)]
    assert 4 < sum(rising) < 16


@pytest.mark.parametrize("content", [b"", b"not an image", b"\xff\xd8\xff\xe0 cut", "truncated", "bomb"])
def test_image_damaged(tmp_path, content):
    formats.image_tree(tmp_path)
    path = tmp_path / "train" / "n02" / "a_1.JPEG"
    if content == "truncated":
        torch.manual_seed(0)
        from PIL import Image

        Image.effect_noise((64, 64), 50).save(path)
        content = path.read_bytes()[:900]
    elif content == "bomb":
        from PIL import Image

        Image.new("1", (20_000, 5_000)).save(path, "PNG")
        content = path.read_bytes()
    path.write_bytes(content)
    files = image_folder(tmp_path, 16)["train"]
    with pytest.raises(DataError, match=r"a_1.JPEG cannot be read as a JPEG or PNG image \(.*Get it again, or"):
        files.batch(torch.arange(6))


def test_image_folder_missing(tmp_path):
    with pytest.raises(DataError, match=r"does not hold this data. Expected a folder train .* registration"):
        image_folder(tmp_path, 16)
    formats.jpeg(tmp_path / "train" / "n01" / "x.jpg")
    with pytest.raises(DataError, match=r"lacks (val|test)"):
        image_folder(tmp_path, 16)
    formats.jpeg(tmp_path / "val" / "flat.jpg")
    with pytest.raises(DataError, match=r"val holds no images in folders of classes"):
        image_folder(tmp_path, 16)
    formats.jpeg(tmp_path / "val" / "n99" / "x.jpg")
    with pytest.raises(DataError, match=r"has a class n99, but .*train has not"):
        image_folder(tmp_path, 16)


def test_image_folder_beside_a_set_with_files_of_these_names(tmp_path):
    formats.cifar_folder(tmp_path / "cifar-100-python", 100)  # train, test and meta
    formats.image_tree(tmp_path / "imagenet")
    assert len(image_folder(tmp_path, 16)["test"]) == 4
    assert len(data.cifar(tmp_path, 100, verify=False)["test"]) == 4


@real("imagenette-mini.tar")
def test_real_image_folder():
    read = image_folder(REAL, 64)
    assert read["train"].y.bincount().tolist() == [40] * 10
    assert read["test"].y.bincount().tolist() == [10] * 10
    assert read["train"].names[0] == "n01440764"
    x, _ = read["test"].batch(torch.arange(100))
    assert x.shape == (100, 3, 64, 64)
    assert x.mean().abs() < 0.3
    assert 0.8 < x.std() < 1.3


@real("libsvm.tar.xz")
def test_a_read_only_folder_stays_as_it_is(tmp_path):
    before = sorted(REAL.iterdir())
    libsvm(REAL / "w8a")
    if not REAL.stat().st_mode & 0o222:
        assert sorted(REAL.iterdir()) == before
        assert [p.name[:6] for p in (tmp_path / "cache" / "superadam").iterdir()] == ["libsvm"]
