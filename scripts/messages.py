"""The errors and warnings of the package, for docs/errors.md: its last section is made of them while the site is built.

python scripts/messages.py    # print that section
"""

import ast
import re
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
SOURCES = ROOT / "src" / "superadam", ROOT / "lab" / "src" / "superadam_lab"
MARK = "<!-- all messages -->"
FAMILIES = {  # heading: where its messages are raised, and what they have in common
    "Checkpoints": (
        ("loading", "methods", "checkpoint"),
        "Nothing was loaded. Construct model, optimizer and data as they were when the checkpoint was saved.",
    ),
    "Optimizers and methods": (
        (
            "optimizer",
            "options",
            "step",
            "bucket",
            "checks",
            "evaluations",
            "distributed",
            "rounding",
            "zoo/",
            "reference",
            "lists",
            "parts",
        ),
        "An option, a gradient or the order of the calls is wrong.",
    ),
    "Matrices, estimators, schedules, step sizes and iterates": (
        ("matrices/", "estimators/", "schedules", "stepsizes", "iterates/"),
        "`NotImplementedError` means that [your own part](your-own.md) lacks a method.",
    ),
    "Sets and penalties": (
        ("sets/", "penalties/"),
        "The option or the tensor is outside what the set can solve. [Constraints](constraints.md) has the ranges.",
    ),
    "Monitor, probe and theory": (("monitor/", "probe/", "theory/"), "Training itself was not changed."),
    "Trainers": (("trainers/",), "See [Trainers](trainers.md)."),
    "The lab: data": (
        ("superadam_lab/data/",),
        "Files are missing or damaged, or their content does not fit the task. See [the lab](lab.md).",
    ),
    "The lab: comparisons": (("superadam_lab/comparison/",), "See [Comparing optimizers](compare.md)."),
    "The lab: tasks, methods and runs": (
        ("superadam_lab/",),
        "The command prints the message and ends with an [exit code](lab.md#exit-codes).",
    ),
}


def text(node):
    """A message as the page writes it: … for what varies, and for a quoted name, whose ` would end the code."""
    parts = node.values if isinstance(node, ast.JoinedStr) else [node]
    message = "".join(str(part.value) if isinstance(part, ast.Constant) else "…" for part in parts)
    return re.sub(r"`\w+`", "…", message)


def of_source():
    """Path, message and class of each error and warning in the package; and the classes that it defines."""
    messages, classes = [], set()
    for path in sorted(path for source in SOURCES for path in source.rglob("*.py")):
        source = next(source for source in SOURCES if source in path.parents)
        place = path.relative_to(source).with_suffix("").as_posix()
        place = f"superadam_lab/{place}" if source is SOURCES[1] else place
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Raise) and isinstance(node.exc, ast.Call) and node.exc.args:
                messages.append((place, text(node.exc.args[0]), getattr(node.exc.func, "id", "")))
            elif isinstance(node, ast.Call) and getattr(node.func, "id", "") == "warn":
                kind = node.args[1].id if node.args[1:] else "UserWarning"
                messages.append((place, text(node.args[0]), kind))
            elif isinstance(node, ast.ClassDef) and any(
                getattr(base, "id", "").endswith(("Error", "Warning")) for base in node.bases
            ):
                classes.add(node.name)
    return messages, classes


def family(place):
    """The heading under which the messages of a module stand."""
    return next(name for name, (places, _) in FAMILIES.items() if place.startswith(places))


def rows():
    """Heading → the messages and their classes. A message that only passes on another one has no words of its own."""
    found = {name: set() for name in FAMILIES}
    for place, message, kind in of_source()[0]:
        if len(re.findall(r"[A-Za-z]", message)) > 8:
            found[family(place)].add((" ".join(message.replace("`", "'").split()), kind))
    return found


def section():
    """The section of the page."""
    lines = []
    for name, messages in rows().items():
        lines += [f"### {name}", "", FAMILIES[name][1], "", "| message | type |", "|---|---|"]
        for message, kind in sorted(messages, key=lambda row: row[0].lstrip("… ").lower()):
            kinds = {"error": "TypeError or ValueError", "_error": "DataError", "_unknown": "ValueError"}
            lines.append(f"| `{message.replace('|', chr(92) + '|')}` | `{kinds.get(kind, kind)}` |")
        lines.append("")
    return "\n".join(lines)


if __name__ == "__main__":
    print(section())
