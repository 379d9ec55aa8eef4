"""The commands of `superadam` with their options, for docs/command.md: its section is made while the site is built.

python scripts/command_page.py    # print that section
"""

import inspect

import typer

from superadam_lab.cli import app

MARK = "<!-- commands -->"


def rows(command):
    """Of each argument and option of a command: how it is written, its default and what it means."""
    for param in command.params:
        names = [name for name in param.opts if name.startswith("-")] or [param.metavar or param.name]
        default = param.default if type(param.default) in (str, int, float) else ""
        meaning = " ".join((param.help or "").split()).replace("|", r"\|")
        yield ", ".join(f"`{name}`" for name in names), f"`{default}`" if default != "" else "", meaning


def section():
    """Every command with its help, its example and a table of its options."""
    made = []
    for name, command in sorted(typer.main.get_command(app).commands.items()):
        text, _, example = inspect.cleandoc(command.help).partition("\n\nExample: ")
        made += [f"## superadam {name}", text, f"```bash\n{example.strip()}\n```"]
        if table := [f"| {a} | {b} | {c} |" for a, b, c in rows(command)]:
            made.append("\n".join(["| option | default | meaning |", "|---|---|---|", *table]))
    return "\n\n".join(made)


if __name__ == "__main__":
    print(section())
