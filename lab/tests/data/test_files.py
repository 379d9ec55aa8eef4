"""Archives are unpacked whole or not at all, and never outside of their folder."""

import random
import tarfile
import threading
import zipfile

import pytest

import formats
from superadam_lab.data import DataError, wikitext2
from superadam_lab.data.files import unpack

FILES = {"train.txt": b"a b\n" * 1000, "valid.txt": b"a\n" * 500, "test.txt": b"b\n" * 500}


def info(name, kind=tarfile.REGTYPE, link=""):
    entry = tarfile.TarInfo(name)
    entry.type, entry.linkname = kind, link
    return entry


def everything(folder):
    return sorted(str(p.relative_to(folder)) for p in folder.rglob("*"))


@pytest.mark.parametrize("name", ["../evil", "a/../../evil", "/tmp/evil", "..\\evil", "C:evil"])
@pytest.mark.parametrize("kind", ["tar", "zip"])
def test_names_that_lead_outside_are_refused(tmp_path, name, kind):
    folder = tmp_path / "deep" / "data"
    folder.mkdir(parents=True)
    archive = folder / f"wikitext-2.{kind}"
    if kind == "tar":
        formats.tar(archive, FILES | {name: b"x"}, "w")
    else:
        with zipfile.ZipFile(archive, "w") as out:
            for entry, content in (FILES | {name: b"x"}).items():
                out.writestr(entry, content)
    before = everything(tmp_path)
    with pytest.raises(DataError, match=r"which leads outside its folder. It was not unpacked"):
        wikitext2(folder, verify=False)
    assert everything(tmp_path) == before


@pytest.mark.parametrize("kind", [tarfile.SYMTYPE, tarfile.LNKTYPE, tarfile.FIFOTYPE, tarfile.CHRTYPE, b"S"])
def test_links_and_devices_are_refused(tmp_path, kind):
    formats.tar(tmp_path / "wikitext-2.tar.gz", FILES | {info("link", kind, "/etc/passwd"): b""})
    before = everything(tmp_path)
    with pytest.raises(DataError, match=r"holds link, which is neither a file nor a folder|damaged"):
        wikitext2(tmp_path, verify=False)
    assert everything(tmp_path) == before


def test_a_link_in_a_zip_is_refused(tmp_path):
    link = zipfile.ZipInfo("link")
    link.external_attr = 0o120777 << 16
    with zipfile.ZipFile(tmp_path / "a.zip", "w") as out:
        out.writestr(link, "/etc/passwd")
    with pytest.raises(DataError, match="neither a file nor a folder"):
        unpack(tmp_path / "a.zip")


def test_a_name_that_comes_twice_is_refused(tmp_path):
    with tarfile.open(tmp_path / "a.tar", "w") as out:
        for _ in range(2):
            out.addfile(info("same"))
    with pytest.raises(DataError, match="two entries named"):
        unpack(tmp_path / "a.tar")
    formats.tar(tmp_path / "b.tar", {"x": b"a file", "x/y": b"in it"}, "w")
    with pytest.raises(DataError, match="two entries named"):
        unpack(tmp_path / "b.tar")


@pytest.mark.parametrize("kind", ["tar", "tar.gz", "tar.xz", "tar.bz2", "zip"])
def test_cut_short_or_damaged_archives_leave_nothing(tmp_path, kind):
    archive = tmp_path / f"wikitext-2.{kind}"
    content = dict.fromkeys(FILES, random.Random(0).randbytes(3000).hex().encode())  # does not compress
    if kind == "zip":
        with zipfile.ZipFile(archive, "w") as out:
            for name, text in content.items():
                out.writestr(name, text)
    else:
        formats.tar(archive, content, f"w:{kind[4:]}")
    good = archive.read_bytes()
    for length in (0, 1, 100, len(good) // 3, len(good) // 2):
        archive.write_bytes(good[:length])
        with pytest.raises(DataError, match=r"damaged or cut short|lacks"):
            wikitext2(tmp_path, verify=False)
        assert everything(tmp_path) == [archive.name]
    archive.write_bytes(good)
    assert len(wikitext2(tmp_path, verify=False)["train"]) == 1
    assert everything(tmp_path / "wikitext-2") == sorted(FILES)


def test_an_archive_without_the_files_leaves_nothing(tmp_path):
    formats.tar(tmp_path / "wikitext-2.tar.gz", {"other.txt": b"x"})
    with pytest.raises(DataError, match=r"wikitext-2.tar.gz lacks train.txt, valid.txt, test.txt. WikiText-2 is"):
        wikitext2(tmp_path, verify=False)
    assert everything(tmp_path) == ["wikitext-2.tar.gz"]


def test_an_archive_too_large_for_the_disk(tmp_path, monkeypatch):
    monkeypatch.setattr("shutil.disk_usage", lambda path: type("Usage", (), {"free": 3000})())
    formats.tar(tmp_path / "wikitext-2.tar.gz", FILES)
    with pytest.raises(DataError, match="unpacks to more than is free"):
        wikitext2(tmp_path, verify=False)
    assert everything(tmp_path) == ["wikitext-2.tar.gz"]


def test_two_at_the_same_time(tmp_path):
    archive = formats.tar(tmp_path / "a.tar.gz", {f"a/{name}": text for name, text in FILES.items()})
    found = []
    threads = [threading.Thread(target=lambda: found.append(unpack(archive))) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert found == [tmp_path / "a"] * 8
    assert everything(tmp_path) == sorted(["a", "a.tar.gz", *(f"a/{name}" for name in FILES)])


def test_a_read_only_folder_is_left_alone(tmp_path):
    """Even by root, who could write: then the user's cache is used. Another archive at the same place is another."""
    folder = tmp_path / "data"
    folder.mkdir()
    for text in (b"a b c", b"a b c d"):
        formats.tar(folder / "wikitext-2.tar.gz", dict.fromkeys(FILES, text))
        folder.chmod(0o555)
        for _ in range(2):
            assert len(wikitext2(folder, verify=False)["test"]) == len(text.split())
        assert everything(folder) == ["wikitext-2.tar.gz"]
        folder.chmod(0o755)
    assert len(list((tmp_path / "cache" / "superadam").iterdir())) == 2
