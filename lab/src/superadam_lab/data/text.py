"""WikiText-2 (Merity et al. 2017)."""

from __future__ import annotations

import os
from pathlib import Path

from superadam_lab.data.embedded import EOS, encode
from superadam_lab.data.files import check, locate
from superadam_lab.data.records import DataError, Tokens

__all__ = ["wikitext2"]

MD5 = {
    "train": "34a77ebe59551b3a3b3d8c0a2797c976",
    "valid": "d756d22ab2310e7e60c094bea5c5a8eb",
    "test": "781c9418ab9414bd09e4aad825aae752",
}
NAMES = ("{}.txt", "wiki.{}.tokens")  # of pytorch/examples; of the original archive
HELP = (
    "WikiText-2 is train.txt, valid.txt and test.txt (or wiki.train.tokens, …), or an archive of them named "
    "wikitext-2.tar.xz or wikitext-2-v1.zip. superadam_lab.data.fetch('wikitext2', root) downloads it (13 MB)."
)


def wikitext2(root: str | os.PathLike[str], *, verify: bool = True) -> dict[str, Tokens]:
    """WikiText-2, train, valid and test, with <eos> after every line, as is usual: 2,088,628, 217,646 and 245,569 words
    of 33,278 different ones.

    Args:
        root: folder or archive.
        verify: check that the files are the published ones. False is for your own texts in the same format.
    """
    choices = [tuple(name.format(split) for split in MD5) for name in NAMES]
    folder, names = locate(root, choices, ("wikitext-2", "wikitext-2-v1"), HELP)
    words = {
        split: _words(folder / name, md5 if verify else None)
        for name, (split, md5) in zip(names, MD5.items(), strict=True)
    }
    vocabulary = list(dict.fromkeys(words["train"]))
    return {split: encode(text, vocabulary) for split, text in words.items()}


def _words(path: Path, md5: str | None) -> list[str]:
    if md5 is not None:
        check(path, md5, HELP)
    try:
        lines = path.read_text(encoding="utf-8").split("\n")
    except UnicodeDecodeError as error:
        raise DataError(f"{path} is not UTF-8 text: {error.reason} at byte {error.start}. {HELP}") from error
    words = [word for line in lines[:-1] for word in (*line.split(), EOS)] + lines[-1].split()
    if not words:
        raise DataError(f"{path} holds no words. {HELP}")
    return words
