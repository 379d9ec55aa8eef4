"""Check the words of docstrings: the summary of a function is a verb and its object, and says what it means.

python scripts/words.py [FOLDER ...]

It fails where the summary of a function begins with an article, a question word or a number, or where the summary of
anything leans on "those", "what", "one" or "such". Properties, classes and modules are things, and may be named. A test
is a sentence of its own name: tests are not looked at.
"""

import ast
import re
import sys
from collections.abc import Iterator
from pathlib import Path

FOLDERS = ["src/superadam"]
NO_VERB = re.compile(
    r"(the|an?|whether|what|which|who|where|how|why|those|these|this|that|one|all|no|some|each|every|if|for|of|in|it|its)\b"
    r"|[^A-Za-z]",
    re.IGNORECASE,
)
LEANS = re.compile(r"\b(those|what|such)\b|\bone\b(?=[,.;:)]|$| that| of )", re.IGNORECASE)
OF_THINGS = {"property", "cached_property", "setter"}


def summaries(path: Path) -> Iterator[tuple[int, str, bool]]:
    """Yield the line and the summary of every docstring, and whether it is a function's."""
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef) and (doc := ast.get_docstring(node)):
            names = {
                n.id if isinstance(n, ast.Name) else getattr(n, "attr", "") for n in getattr(node, "decorator_list", ())
            }
            line = getattr(node, "lineno", 1)
            yield (
                line,
                doc.split("\n\n")[0].replace("\n", " "),
                isinstance(node, ast.FunctionDef) and not names & OF_THINGS,
            )


def faults(folders: list[str]) -> Iterator[str]:
    """Yield a line for every summary to mend."""
    for folder in folders:
        for path in sorted(Path(folder).rglob("*.py")):
            for line, summary, of_function in summaries(path):
                if of_function and NO_VERB.match(summary):
                    yield f"{path}:{line}: begins with no verb: {summary}"
                elif found := LEANS.search(summary):
                    yield f"{path}:{line}: leans on {found[0]!r}: {summary}"


if __name__ == "__main__":
    found = list(faults(sys.argv[1:] or FOLDERS))
    print(*found, f"{len(found)} summaries to mend", sep="\n")
    sys.exit(bool(found))
