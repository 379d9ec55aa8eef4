"""Damage, accidental or meant: of bytes, and of plain data."""

import copy
import json
import warnings
from contextlib import contextmanager

from superadam_lab.errors import WRONG, said

HOSTILE = [
    None, True, False, 0, -1, 1, 2**31, 2**63, 10**30, -(10**30), 0.5, -0.5, 1e308, -1e308, 5e-324, float("nan"),
    float("inf"), "", "x", "0", "\x00", "\x1b[31m", "\ud800", "../../x", "/dev/null", "$\\frac$", "<script>", "{}",
    "%s", "a" * 3000, [], {}, [None], [[]], {"": 0}, {"type": "x"}, {"a": {"b": [1]}}, [1, "x"], [[0.5, 0.5]], "cuda",
    "meta",
]  # fmt: skip
NUMBERS = [0, 1, 127, 128, 255]


@contextmanager
def only(*kinds):
    """Nothing is raised but these kinds of errors, with a message of ours for the user."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            yield
        except kinds as error:
            if said(error)[0] != WRONG:
                raise


def damaged(random, raw):
    """Bytes with up to four of: flipped, set, cut off, left out, doubled, put in, overwritten by others of theirs."""
    raw = bytearray(raw)
    for _ in range(random.randint(1, 4)):
        at, n = random.randrange(len(raw) + 1), random.choice([1, 2, 8, 100])
        kind = random.randrange(8)
        if kind == 0 and raw:
            raw[at % len(raw)] ^= 1 << random.randrange(8)
        elif kind == 1 and raw:
            raw[at % len(raw)] = random.choice(NUMBERS)
        elif kind == 2:
            del raw[at:]
        elif kind == 3:
            del raw[at : at + n]
        elif kind == 4:
            raw[at:at] = raw[at : at + n]
        elif kind == 5:
            raw[at:at] = random.randbytes(n)
        elif kind == 6:
            raw[at : at + n] = random.randbytes(n)
        else:
            start = random.randrange(len(raw) + 1)
            raw[at : at + n] = raw[start : start + n]
    return bytes(raw)


def changed(random, data, hostile=HOSTILE):
    """A copy of plain data of which up to three entries are replaced, renamed, doubled or gone."""
    data = copy.deepcopy(data)
    for _ in range(random.randint(1, 3)):
        places = list(_places(data))
        if not places:
            return random.choice(hostile)
        owner, key = random.choice(places)
        kind = random.randrange(6)
        if kind == 0:
            del owner[key]
        elif kind == 1 and isinstance(owner, dict):
            owner[random.choice(["", "x", 5, "__class__", "self", "type"])] = owner.pop(key)
        elif kind == 1:
            owner.insert(key, copy.deepcopy(owner[key]))
        elif kind == 2:
            owner[key] = random.choice([[owner[key]], {"x": owner[key]}, str(owner[key])[:100]])
        elif kind == 3:
            other, there = random.choice(places)
            owner[key] = copy.deepcopy(other[there]) if there in _keys(other) else None
        else:
            owner[key] = copy.deepcopy(random.choice(hostile))
    return data


def _keys(owner):
    return owner if isinstance(owner, dict) else range(len(owner))


def _places(data):
    """Every entry, as its owner and its key there."""
    owners = [data]
    while owners:
        owner = owners.pop()
        if isinstance(owner, (dict, list)):
            for key in _keys(owner):
                yield owner, key
                owners.append(owner[key])


def hostile_json(random, text):
    """A JSON text that is damaged, or sound and means something else, or is far too deep."""
    kind = random.randrange(8)
    if kind == 0:
        return damaged(random, text)
    if kind == 1:
        deep = random.choice([50, 900, 100_000])
        return random.choice([b"[" * deep + b"]" * deep, b'{"a":' * deep + b"1" + b"}" * deep, b"[" * deep])
    return json.dumps(changed(random, json.loads(text))).encode()
