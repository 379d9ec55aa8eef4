"""Data that needs no download."""

from __future__ import annotations

import re
from collections import Counter

import torch

from superadam_lab.data.records import DataError, Images, Tokens

__all__ = ["common", "digits", "pydoc"]

EOS, UNK = "<eos>", "<unk>"


def digits() -> dict[str, Images]:
    """Handwritten digits of 8 × 8 pixels from scikit-learn: train 1,000, valid 297, test 500, in a fixed random order.

    >>> digits()["test"].x.shape
    torch.Size([500, 1, 8, 8])
    """
    from sklearn.datasets import load_digits  # type: ignore[import-untyped] # which takes a second

    pixels, labels = load_digits(return_X_y=True)
    order = torch.randperm(len(labels), generator=torch.Generator().manual_seed(0))
    x = (torch.tensor(pixels, dtype=torch.uint8)[order] * 15).view(-1, 1, 8, 8)  # from 0…16 to 0…240
    y = torch.tensor(labels, dtype=torch.int64)[order]
    train = x[:1000] / 255
    data = Images(x, y, (train.mean().item(),), (train.std().item(),), tuple("0123456789"))
    parts = {"train": slice(1000), "valid": slice(1000, 1297), "test": slice(1297, None)}
    return {split: data.take(rows) for split, rows in parts.items()}


def pydoc() -> dict[str, Tokens]:
    """The text of `help()`'s topics, in words: lower case, punctuation by itself, <eos> after each paragraph.

    Repeated paragraphs are kept once. Of every ten sections of twenty paragraphs, the ninth is for validation and the
    tenth for testing. The vocabulary is that of the training text; words that occur there only once are <unk>. The text
    differs a little between versions of Python, and so do the counts: compare runs of one version.

    >>> data = pydoc()
    >>> len(data["train"]) > 50_000, data["train"].vocabulary is data["test"].vocabulary
    (True, True)
    """
    from pydoc_data.topics import topics

    text = "\n\n".join(topics[name] for name in sorted(topics))
    paragraphs = list(dict.fromkeys(p.strip() for p in re.split(r"\n\s*\n", text)))
    words: dict[str, list[str]] = {"train": [], "valid": [], "test": []}
    for i, paragraph in enumerate(paragraphs):
        stretch = i // 20 % 10
        split = "valid" if stretch == 8 else "test" if stretch == 9 else "train"
        words[split] += [*re.findall(r"\w+|[^\w\s]", paragraph.lower()), EOS]
    counts = Counter(words["train"])
    vocabulary = [UNK, *(word for word, count in counts.items() if count > 1)]
    return {split: encode(text, vocabulary) for split, text in words.items()}


def encode(words: list[str], vocabulary: list[str]) -> Tokens:
    """Words as numbers. Words outside the vocabulary are <unk>, which the vocabulary must then contain."""
    number = {word: i for i, word in enumerate(vocabulary)}
    unknown = number.get(UNK)
    ids = [number.get(word, unknown) for word in words]
    if None in ids:
        word = words[ids.index(None)]
        raise DataError(f"the word {word[:40]!r} is not in the training text, which has no {UNK} to stand for it.")
    return Tokens(torch.tensor(ids, dtype=torch.int64), vocabulary)


def common(tokens: dict[str, Tokens], size: int | None) -> dict[str, Tokens]:
    """The same texts with only the `size` most common words of the training text; all others are <unk>.

    >>> train, test = torch.tensor([0, 2, 1, 2, 1]), torch.tensor([2, 0, 3])
    >>> found = common({"train": Tokens(train, [*"abcd"]), "test": Tokens(test, [*"abcd"])}, 3)
    >>> found["test"]
    Tokens(ids=tensor([2, 0, 0]), vocabulary=['<unk>', 'b', 'c'])
    """
    words = tokens["train"].vocabulary
    if size is None or size >= len(words):
        return tokens
    counts = torch.bincount(tokens["train"].ids, minlength=len(words))
    order = counts.argsort(descending=True, stable=True).tolist()
    kept = [i for i in order if words[i] != UNK][: size - 1]
    number = torch.zeros(len(words), dtype=torch.int64)
    number[kept] = torch.arange(1, size)
    vocabulary = [UNK, *(words[i] for i in kept)]
    return {split: Tokens(number[text.ids], vocabulary) for split, text in tokens.items()}
