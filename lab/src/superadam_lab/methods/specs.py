"""The syntax of a method: a name, options, ranges to tune; several optimizers for one model joined by " + "."""

from __future__ import annotations

import dataclasses
import json
import math
import re
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from superadam_lab.reading import json_of

__all__ = [
    "BASE",
    "OF_THE_RUN",
    "Bounds",
    "Spec",
    "bounds",
    "filled",
    "near_one",
    "prefixes",
    "read",
    "resolved",
    "value",
]

OF_THE_RUN = ("replay", "taus", "decay")
"""Options behind a method's name that the run takes, not the optimizer."""

BASE = "base_optimizer"
"""An option whose value is a place, too: what SAM and its kin are built on."""

Bounds = tuple[float, float]


@dataclasses.dataclass(frozen=True)
class Spec:
    """One optimizer: a name of the zoo or of `lab.method`, or an import path such as torch.optim.Muon or
    my_file.py:Mine."""

    target: str
    options: dict[str, Any]
    space: dict[str, Bounds]
    """What is tuned, with bounds."""

    @property
    def foreign(self) -> bool:
        """Whether the target is an import path, not a name.

        >>> [read(text)[0].foreign for text in ("adamw eps=0.1", "torch.optim.Muon", "my_file.py:Mine", "package:SOAP")]
        [False, True, True, True]
        """
        return self.target in self.places

    @property
    def places(self) -> list[str]:
        """The import paths of the target and of its base optimizer, unless they are names."""
        return [p for p in (self.target, self.options.get(BASE)) if isinstance(p, str) and re.search(r"[.:]", p)]

    @property
    def name(self) -> str:
        """The last part of the import path: Muon of torch.optim.Muon."""
        return re.split(r"[.:]", self.target)[-1]


def read(method: str) -> list[Spec]:
    """The optimizers of a method.

    >>> read("torch.optim.Muon momentum=0.9 lr=1e-4:1 + torch.optim.AdamW betas=[0.9, 0.95]")[0]
    Spec(target='torch.optim.Muon', options={'momentum': 0.9}, space={'lr': (0.0001, 1.0)})
    """
    specs = []
    for text in re.split(r"\s\+\s", method.strip()):
        target, *settings = re.split(r"\s+(?=[\w.]+=)", text.strip())
        if not target or "=" in target or (" " in target and ".py:" not in target):
            raise ValueError(
                f"Invalid method {text!r} (expected a name and then options, as in 'super_adam tau=1', "
                "'torch.optim.Muon momentum=0.9' or 'my_file.py:Mine lr=1e-4:1')"
            )
        options, space = {}, {}
        for setting in settings:
            key, found = value(setting)
            limits = bounds(found) if isinstance(found, str) else None
            if limits is None:
                options[key] = found
            else:
                space[key] = limits
        specs.append(Spec(target, options, space))
    return specs


def prefixes(specs: Sequence[Spec]) -> list[str]:
    """The prefixes of options for a single optimizer of a method. If two have the same name, the second is numbered.

    >>> prefixes(read("torch.optim.Muon + torch.optim.AdamW")), prefixes(read("torch.optim.SGD + my_file.py:SGD"))
    (['Muon.', 'AdamW.'], ['SGD.', 'SGD2.'])
    """
    names = [spec.name for spec in specs]
    before = [names[:i].count(name) for i, name in enumerate(names)]
    return [f"{name}{n + 1 if n else ''}." for name, n in zip(names, before, strict=True)]


def bounds(text: str) -> Bounds | None:
    """The bounds of a range "low:high"; None for other texts.

    >>> bounds("1e-4:1"), bounds("Belief")
    ((0.0001, 1.0), None)
    """
    low, colon, high = text.partition(":")
    try:
        found = float(low), float(high)
    except ValueError:
        return None
    if not colon or not 0 < found[0] < found[1] < math.inf:
        raise ValueError(f"Invalid bounds {text} (expected 0 < low < high, as in lr=1e-4:1)")
    return found


def near_one(low: float, high: float) -> bool:
    """Whether the distance to 1 is tuned on a logarithmic scale, as for averaging weights.

    >>> near_one(0.9, 0.999), near_one(1e-4, 1.0)
    (True, False)
    """
    return low >= 0.5 and high < 1


def resolved(method: str) -> str:
    """The method with absolute file paths, so that it works from any folder."""
    place = re.compile(rf"(?:^|(?<=\b{BASE}=))(\S[^=]*?\.py)(?=:)")
    parts = re.split(r"\s\+\s", method.strip())
    return " + ".join(place.sub(lambda found: str(Path(found[1]).resolve()), part.strip()) for part in parts)


def value(setting: str) -> tuple[str, Any]:
    """A key and its value: a number, true, false, null, a list or a dict as in JSON, or a word.

    >>> value("lr=1e-3"), value("matrix=Belief"), value("betas=[0.9, 0.99]")
    (('lr', 0.001), ('matrix', 'Belief'), ('betas', [0.9, 0.99]))
    """
    key, equals, text = setting.partition("=")
    if not (key and equals and text):
        raise ValueError(f"Invalid setting {setting!r} (expected key=value, as in lr=0.01)")
    try:
        return key, json_of(text, key)
    except ValueError as error:
        if isinstance(error.__cause__, json.JSONDecodeError):
            return key, text
        raise


def filled(options: Mapping[str, Any], default: Callable[[str], Any]) -> dict[str, Any]:
    """Options in which entries such as betas.1=0.99 are merged into the given or default value of the whole option.

    >>> filled({"lr": 0.1, "betas.1": 0.99}, {"betas": (0.9, 0.999)}.get)
    {'lr': 0.1, 'betas': (0.9, 0.99)}
    """
    found = {key: v for key, v in options.items() if "." not in key}
    for key, v in options.items():
        name, dot, place = key.partition(".")
        if not dot:
            continue
        whole = found.get(name, default(name))
        if not isinstance(whole, Sequence) or isinstance(whole, str) or not place.isdigit() or int(place) >= len(whole):
            raise ValueError(f"Invalid option {key}: {name} is {whole!r} (expected {name}.N, an entry of several)")
        found[name] = tuple(v if i == int(place) else old for i, old in enumerate(whole))
    return found
