"""Damaged data sets: a reader returns a record or raises a DataError. It runs nothing that is in a file."""

import shutil
import zipfile

import pytest

from formats import cifar_batch, cifar_folder, image_tree, tar
from mutations import damaged, only
from superadam_lab.data import DataError, cifar, image_folder, libsvm, wikitext2

pytestmark = pytest.mark.slow

ROWS = b"".join(b"%+d 1:0.5 %d:%f 40:-2e-3\n" % (1 - 2 * (i % 2), 2 + i, i / 7) for i in range(30))
TEXT = "\n".join(f"a line of <unk> words , é {i}" for i in range(20)).encode()


@pytest.fixture(autouse=True)
def _cache(tmp_path, monkeypatch):
    """Not into the user's cache."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))


def test_tables(dice, tmp_path):
    for i in range(600):
        path = tmp_path / f"{i}"
        path.write_bytes(damaged(dice, ROWS))
        with only(DataError):
            libsvm(path)


def test_texts(dice, tmp_path):
    for split in ("train", "valid", "test"):
        (tmp_path / f"{split}.txt").write_bytes(TEXT)
    for _ in range(300):
        (tmp_path / "train.txt").write_bytes(damaged(dice, TEXT))
        with only(DataError):
            wikitext2(tmp_path, verify=False)


def test_images(dice, tmp_path):
    cifar_folder(tmp_path, 100)
    sound = {name: (tmp_path / name).read_bytes() for name in ("train", "meta")}
    for _ in range(500):
        name = dice.choice(list(sound))
        (tmp_path / name).write_bytes(damaged(dice, sound[name]))
        with only(DataError):
            cifar(tmp_path, 100, verify=False)
        (tmp_path / name).write_bytes(sound[name])


@pytest.mark.parametrize("module", ["os", "posix", "builtins", "subprocess", "numpy.core.multiarray", "numpy"])
def test_a_pickle_that_names_another_function_is_refused_and_nothing_is_called(module, tmp_path):
    canary = tmp_path / "canary"
    cifar_folder(tmp_path, 100)
    sound = (tmp_path / "train").read_bytes()
    for name in ("system", "eval", "exec", "Popen", "_reconstruct.__globals__", "load", "fromfile"):
        call = (
            b"c" + module.encode() + b"\n" + name.encode() + b"\n" + b"U\x10" + b"touch %s" % str(canary).encode()[:10]
        )
        for bad in (b"\x80\x02" + call + b"\x85R.", sound[:2] + call + b"\x85R0" + sound[2:]):
            (tmp_path / "train").write_bytes(bad)
            with pytest.raises(DataError):
                cifar(tmp_path, 100, verify=False)
    assert not canary.exists()


def test_folders_of_images(dice, tmp_path):
    image_tree(tmp_path)
    paths = sorted(tmp_path.rglob("*.JPEG"))
    for _ in range(150):
        path = dice.choice(paths)
        sound = path.read_bytes()
        path.write_bytes(damaged(dice, sound))
        with only(DataError):
            image_folder(tmp_path, 8)["train"].load()
        path.write_bytes(sound)


def test_archives_leave_nothing_outside_of_their_folder(dice, tmp_path):
    files = {f"wikitext-2/{split}.txt": TEXT for split in ("train", "valid", "test")}
    packed = [tar(tmp_path / f"a.{mode}", files, f"w:{mode}").read_bytes() for mode in ("gz", "xz", "bz2", "")]
    with zipfile.ZipFile(tmp_path / "a.zip", "w", zipfile.ZIP_DEFLATED) as out:
        for name, content in files.items():
            out.writestr(name, content)
    packed.append((tmp_path / "a.zip").read_bytes())
    (tmp_path / "outside").write_text("as it was")
    before = sorted(tmp_path.iterdir())
    place = tmp_path / "place"
    for _ in range(250):
        place.mkdir()
        (place / "wikitext-2.tar.xz").write_bytes(damaged(dice, dice.choice(packed)))
        with only(DataError):
            wikitext2(place, verify=False)
        assert {path.name for path in place.iterdir()} <= {"wikitext-2.tar.xz", "wikitext-2"}
        shutil.rmtree(place)
        assert sorted(tmp_path.iterdir()) == before
    assert (tmp_path / "outside").read_text() == "as it was"


def test_a_batch_of_the_format_helper_is_sound(tmp_path):
    """What the fuzz damages can be read."""
    (_, y), _ = cifar_folder(tmp_path, 100)
    assert cifar(tmp_path, 100, verify=False)["train"].y.tolist() == y.tolist()
    assert len(cifar_batch(cifar(tmp_path, 100, verify=False)["train"].x, y.tolist())) > 3072
    (tmp_path / "rows").write_bytes(ROWS)
    assert len(libsvm(tmp_path / "rows")) == 30
