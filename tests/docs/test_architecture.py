"""The table of modules in docs/architecture.md is complete, and what is above in it uses what is below."""

import ast
import re
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
SOURCE = ROOT / "src" / "superadam"
ROOMS = ("_state", "_step")  # whose modules have rows of their own; other packages have one
EXCEPTIONS = set()  # (module, what it uses though that is above), each with the reason


def module(path):
    """What a file is called in the table: "_step/view", "matrices", "optimizer"."""
    package, *rest = path.relative_to(SOURCE).with_suffix("").parts
    return f"{package}/{rest[0]}" if package in ROOMS else package


def table():
    """Module → its row."""
    page = (ROOT / "docs" / "architecture.md").read_text()
    rows = re.findall(r"^\| (`[^|]*) \|", page.split("## Modules")[1].split("\n## ")[0], flags=re.M)
    return {name: i for i, row in enumerate(rows) for name in re.findall(r"`([a-z0-9_/]+?)(?:\.py|/)`", row)}


def of_package(name, imported):
    """The modules that `from name import imported` reads; a name that is no module is the package's own."""
    _, *inner = name.split(".")
    if not inner:
        known = [n for n in imported if (SOURCE / n).is_dir() or (SOURCE / f"{n}.py").exists()]
        return known + ["__init__"] * (len(known) < len(imported))
    if inner[0] not in ROOMS:
        return inner[:1]
    return [f"{inner[0]}/{n}" for n in imported] if len(inner) == 1 else ["/".join(inner[:2])]


def used(path):
    """The modules of ours that a file imports when it runs, not for the types alone."""
    tree = ast.parse(path.read_text())
    for node in ast.walk(tree):
        if isinstance(node, ast.If) and "TYPE_CHECKING" in ast.dump(node.test):
            node.body = []
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and (node.module or "").split(".")[0] == "superadam":
            yield from of_package(node.module, [alias.name for alias in node.names])
        elif isinstance(node, ast.Import):
            for alias in node.names:
                if alias.name.split(".")[0] == "superadam":
                    yield from of_package(alias.name, ["*"])


FILES = [path for path in SOURCE.rglob("*.py") if path.parent.name not in ROOMS or path.stem != "__init__"]


def test_every_module_is_in_the_table():
    assert {module(path) for path in FILES} == table().keys()


def test_modules_use_what_is_below_them():
    rank = table()
    upwards = {
        (module(path), name) for path in FILES for name in used(path) if rank[name] < rank[module(path)]
    }  # a name that is in no row is an error
    assert upwards == EXCEPTIONS
