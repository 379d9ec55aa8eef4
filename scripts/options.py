"""The options of parts and methods, for the API pages and for the test that none is missing.

A part's names, types and defaults are those of its fields, and the allowed values are what its own errors expect. The
meaning stands once: under `Args:` in the docstring of the class or of a base class. Methods of the zoo share options,
which the docstring of `superadam.zoo` explains.

>>> from superadam.schedules import Constant
>>> [(o.name, o.type, o.default, o.allowed) for o in options(Constant)][:2]
[('mu', 'float', '1.0', 'mu > 0'), ('alpha', 'float', '0.1', '0 < alpha <= 1')]
>>> options(Constant)[0].meaning
'μ_1.'
"""

import dataclasses
import inspect
import re
from typing import NamedTuple

import torch

from superadam import SuperAdam, zoo

# Aliases of the source, as a reader wants to see them.
ALIASES = {"Dim": "int | tuple[int, ...] | None", "Bound": "float | Tensor | None"}
# Values that no option of a kind allows; an error about one says what is expected.
WRONG = (float("nan"), -1, 2, "?", None)


class Option(NamedTuple):
    name: str
    type: str
    default: str | None
    allowed: str
    meaning: str


def options(part):
    """Those of a class of parts, in the order of its constructor."""
    meanings = {}
    for cls in reversed(part.__mro__):
        meanings |= described(vars(cls).get("__doc__"))
    return [
        Option(f.name, ALIASES.get(f.type, f.type), default(f), allowed(part, f.name), meanings.get(f.name, ""))
        for f in sorted(dataclasses.fields(part), key=lambda f: f.kw_only)
    ]


def of_method(build):
    """The meaning of every option of a method of the zoo; empty for one that is not explained anywhere.

    >>> of_method(zoo.lion)["betas"]
    'weights of the old averages: of the gradients, of their squares, then of others.'
    """
    known = described(SuperAdam.__doc__) | described(zoo.__doc__) | described(build.__doc__)
    names = (f"**{p.name}" if p.kind is p.VAR_KEYWORD else p.name for p in inspect.signature(build).parameters.values())
    return {name: known.get(name, "") for name in names}


def paper(name, root=""):
    """Where a method comes from, as Markdown; `root` leads to the folder of the pages.

    >>> paper("adam")
    '[Kingma and Ba 2015](https://arxiv.org/abs/1412.6980), arXiv 1412.6980'
    """
    authors, _, where = zoo.METHODS[name].paper.rpartition(", ")
    if where.startswith("arXiv "):
        return f"[{authors}](https://arxiv.org/abs/{where.removeprefix('arXiv ')}), {where}"
    return f"[{authors}]({where if '://' in where else root + where})"


def described(doc):
    """What stands under `Args:` in a docstring, by name.

    >>> described("Adds.\\n\\nArgs:\\n    a: what is\\n        added.\\n    **more: ignored.\\n\\nMore words: here.")
    {'a': 'what is added.', '**more': 'ignored.'}
    """
    block = re.search(r"^Args:\n((?:[ ]+.*\n?)+)", inspect.cleandoc(doc or ""), re.M)
    found = re.findall(r"^    (\S.*?): (.*(?:\n     .*)*)", block[1], re.M) if block else []
    return {name: " ".join(text.split()) for name, text in found}


def default(field):
    return None if field.default is dataclasses.MISSING else repr(field.default)


def allowed(part, name):
    """What the part's error expects of an option, or nothing if it has no such error."""
    sample = {f.name: fitting(f) for f in dataclasses.fields(part) if f.default is dataclasses.MISSING}
    for wrong in WRONG:
        try:
            part(**{**sample, name: wrong})
        except ValueError as error:
            found = re.match(rf"Invalid (?:\w+, )?{name}(?:, \w+)? parameter: .*\(expected (.*)\)$", str(error), re.S)
            if found:
                return found[1]
        except (TypeError, AttributeError, RuntimeError):
            pass
    return ""


def fitting(field):
    """A value for an option without a default."""
    if field.type == "Tensor":
        return torch.ones(1, 1) if field.name == "A" else torch.ones(1)
    if field.type.startswith("tuple"):
        return ((0,),)
    return 1 if field.type == "Dim" else 1.0
