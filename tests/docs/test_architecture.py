"""The table of modules in docs/architecture.md is complete, and what is above in it uses what is below."""

import ast
import re
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
SOURCE = ROOT / "src" / "superadam"


def module(path):
    """What a file is called in the table: "step", or the package that it is in."""
    return path.relative_to(SOURCE).with_suffix("").parts[0]


def table():
    """Module → its row."""
    page = (ROOT / "docs" / "architecture.md").read_text()
    rows = re.findall(r"^\| (`[^|]*) \|", page.split("## Modules")[1].split("\n## ")[0], flags=re.M)
    return {name: i for i, row in enumerate(rows) for name in re.findall(r"`([a-z0-9_]+?)(?:\.py|/)`", row)}


def used(path):
    """The modules of ours that a file imports, also for the types alone."""
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.ImportFrom) and (node.module or "").split(".")[0] == "superadam":
            inner = node.module.split(".")[1:2] or [alias.name for alias in node.names]
            yield from (name if name in MODULES else "__init__" for name in inner)
        elif isinstance(node, ast.Import):
            names = [alias.name.split(".") for alias in node.names]
            yield from ((inner or ["__init__"])[0] for top, *inner in names if top == "superadam")


FILES = list(SOURCE.rglob("*.py"))
MODULES = {module(path) for path in FILES}


def test_every_module_is_in_the_table():
    assert table().keys() == MODULES


def test_modules_use_what_is_below_them():
    rank = table()
    upwards = {
        (module(path), name)
        for path in FILES
        for name in used(path)
        if name != module(path) and rank[name] <= rank[module(path)]
    }
    assert upwards == set()
