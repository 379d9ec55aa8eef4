"""The table of modules in docs/architecture.md is complete, and what is above in it uses what is below."""

import ast
import re
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
SOURCE = ROOT / "src" / "superadam"
EXCEPTIONS = {("optimizer", "monitor")}  # Composer's protocol is a base class


def ranks():
    """Module or package → its row."""
    page = (ROOT / "docs" / "architecture.md").read_text()
    table = page.split("## Modules")[1].split("\n## ")[0]
    rows = re.findall(r"^\| (`[^|]*) \|", table, flags=re.M)
    return {name: i for i, row in enumerate(rows) for name in re.findall(r"`([a-z_]+)(?:\.py|/)`", row)}


def imported(path):
    """The modules of ours that a file imports when it runs, not for the types alone."""
    tree = ast.parse(path.read_text())
    for node in ast.walk(tree):
        if isinstance(node, ast.If) and "TYPE_CHECKING" in ast.dump(node.test):
            node.body = []
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and node.module == "superadam":
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and (node.module or "").startswith("superadam."):
            yield node.module.split(".")[1]


def test_every_module_is_in_the_table():
    modules = {path.stem for path in SOURCE.glob("*.py")} | {path.parent.name for path in SOURCE.glob("*/__init__.py")}
    assert modules - {"__init__"} == ranks().keys()


def test_modules_use_what_is_below_them():
    rank = ranks()
    upwards = {
        (top, name)
        for path in SOURCE.rglob("*.py")
        if (top := path.relative_to(SOURCE).parts[0].removesuffix(".py")) in rank
        for name in imported(path)
        if rank.get(name, len(rank)) < rank[top]
    }
    assert upwards == EXCEPTIONS
