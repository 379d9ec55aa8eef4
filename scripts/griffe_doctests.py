"""For the docs: doctests in docstrings become code blocks, which Markdown would take for text and links otherwise."""

from griffe import Extension

__all__ = ["Doctests"]


class Doctests(Extension):
    def on_object(self, *, obj, **kwargs):
        if obj.docstring is not None:
            obj.docstring.value = fenced(obj.docstring.value)


def fenced(text):
    """Put fences around every run of lines that begins with a prompt and ends with an empty line."""
    lines, inside = [], False
    for line in text.splitlines():
        if not inside and line.lstrip().startswith(">>>"):
            indent = line[: len(line) - len(line.lstrip())]
            lines.append(f"{indent}```pycon")
            inside = True
        elif inside and not line.strip():
            lines.append(f"{indent}```")
            inside = False
        lines.append(line)
    return "\n".join([*lines, f"{indent}```"] if inside else lines)
