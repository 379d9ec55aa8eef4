"""For the docs: the constructor of every part, which is made at run time, and the options of all parts and methods."""

import importlib
import re
import sys
from pathlib import Path

from griffe import Extension, Function, Parameter, ParameterKind, Parameters

from superadam import zoo
from superadam.parts import Part

sys.path.insert(0, str(Path(__file__).parent))
from options import of_method, options, paper

__all__ = ["Options"]

ARGS = re.compile(r"^Args:\n(?:[ ]+.*\n?)+", re.M)


class Options(Extension):
    def on_object(self, *, obj, **kwargs):
        if obj.is_class and obj.parent.is_module:
            part = getattr(importlib.import_module(obj.parent.path), obj.name)
            if part is not Part and issubclass(part, Part):
                construct(obj, part)
        if obj.is_function and obj.path.startswith("superadam.zoo.") and obj.name in zoo.METHODS:
            lines = [f"{name}: {text}" for name, text in of_method(getattr(zoo, obj.name)).items()]
            obj.docstring.value = with_table(obj.docstring.value, lines, paper(obj.name, root="../"))
            signed(obj)
        if obj.path == "superadam.zoo":  # every method says it
            obj.docstring.value = ARGS.sub("", obj.docstring.value).replace("Options that several methods have:\n", "")
        if obj.is_function and obj.name == "__init__" and "unknown" in obj.parameters:
            del obj.parameters["unknown"]  # what is refused


def signed(function):
    """Give a method of the zoo the signature of the function that the decorator makes."""
    own = [p for p in function.parameters if p.name not in ("params", "options")]
    params = Parameter("params", kind=ParameterKind.positional_or_keyword)
    function.parameters = Parameters(params, *own, Parameter("options", kind=ParameterKind.var_keyword))
    function.returns = "SuperAdam"


def construct(cls, part):
    """Give a class the constructor of the part."""
    found = options(part)
    positional, keyword = ParameterKind.positional_or_keyword, ParameterKind.keyword_only
    keywords = {f.name for f in part.__dataclass_fields__.values() if f.kw_only}
    cls.set_member(
        "__init__",
        Function(
            "__init__",
            parameters=Parameters(
                Parameter("self", kind=positional),
                *(
                    Parameter(
                        o.name,
                        annotation=o.type,
                        kind=keyword if o.name in keywords else positional,
                        default=o.default,
                    )
                    for o in found
                ),
            ),
        ),
    )
    if found:
        lines = [f"{o.name}: {o.meaning}{f' Allowed: `{o.allowed}`.' if o.allowed else ''}" for o in found]
        cls.docstring.value = with_table(cls.docstring.value, lines)


def with_table(text, lines, more=""):
    """A docstring, with more words and these lines under `Args:` above its examples, in place of its own."""
    prose, prompt, examples = ARGS.sub("", text).partition("\n>>>")
    return "\n    ".join([f"{prose.rstrip()}\n\n{more}\n\nArgs:", *lines]) + f"\n{prompt}{examples}"
