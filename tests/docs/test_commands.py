"""Shell commands of the README and the docs would start: their files, targets and options exist. Cheap ones are run."""

import argparse
import ast
import builtins
import functools
import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest
import typer

from superadam_lab import cli
from superadam_lab.tasks import TASKS
from versions import tomllib

ROOT = Path(__file__).resolve().parents[2]
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").rglob("*.md"))]
START = re.compile(r"(?:[A-Z_]+=\S+ )*(superadam|python3?|make|pip|pytest|torchrun)(?= |$)")


def blocks(page):
    """The commands in a page's blocks that are tagged bash, sh, or not at all. Other lines of these are output."""
    for tag, block in re.findall(r"^ *```([^\n]*)\n(.*?)^ *```$", page, flags=re.M | re.S):
        if tag in ("", "bash", "sh"):
            lines = (line.strip().removeprefix("$ ") for line in block.replace("\\\n", " ").splitlines())
            yield from (line for line in lines if START.match(line))


def spans(page):
    """The commands in a page's sentences and tables, which may leave out arguments."""
    prose = re.sub(r"^ *```.*?^ *```$", "", page, flags=re.M | re.S)
    yield from (span for span in re.findall(r"`([^`\n]+)`", prose) if START.match(span))


def of(page):
    """The commands of a page. True: it leaves out nothing."""
    text = page.read_text()
    return {**dict.fromkeys(spans(text), False), **dict.fromkeys(blocks(text), True)}


COMMANDS = {page: found for page in PAGES if (found := of(page))}


@pytest.mark.parametrize("page", COMMANDS, ids=lambda page: page.stem)
def test_commands_would_start(page, capsys):
    for command, complete in COMMANDS[page].items():
        words = shlex.split(command, comments=True)
        program, *args = words[next(i for i, word in enumerate(words) if "=" not in word) :]
        try:
            CHECKS[program](args, complete)
        except (Exception, SystemExit) as error:
            said = capsys.readouterr().err.strip().splitlines()
            raise AssertionError(f"{command}: {said[-1] if said else error}") from error


def test_commands_were_found():
    programs = {START.match(command)[1] for found in COMMANDS.values() for command in found}
    assert programs == {"superadam", "python", "make", "pip", "pytest", "torchrun"}
    assert COMMANDS[ROOT / "docs" / "lab.md"]["superadam train digits-mlp"]
    assert "python scripts/gpu_check.py" in COMMANDS[ROOT / "docs" / "scale.md"]


CHEAP = {  # what the command prints
    "superadam tasks": "digits-mlp",
    "superadam methods": "super_adam_plus",
    "superadam --version": "superadam",
    "superadam train digits-mlp": "runs/",
    "python examples/resume.py": "resumed",
}


@pytest.mark.slow
@pytest.mark.parametrize("command", CHEAP)
def test_cheap_commands_run(command, tmp_path):
    """In an empty folder, as in a shell. Each is on one of the pages."""
    assert any(command in found for found in COMMANDS.values()), "not on any page"
    program, *args = command.split()
    module = ["-m", "superadam_lab"] if program == "superadam" else []
    args = [str(ROOT / arg) if arg.endswith(".py") else arg for arg in args]
    env = {
        **os.environ,
        "PYTHONPATH": os.pathsep.join([str(ROOT / "src"), str(ROOT / "lab" / "src")]),
        "OMP_NUM_THREADS": "1",
    }
    done = subprocess.run([sys.executable, *module, *args], cwd=tmp_path, env=env, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert CHEAP[command] in done.stdout


WRONG = """\
superadam trane digits-mlp
superadam train digits-mlpp
superadam train digits-mlp --methd adam
superadam train
python scripts/no_script.py
python -m research.no_script
python -m research.stability.stability --seeds three
python -m research.leaderboard.leaderboard --sizes
python scripts/pictures.py sped
torchrun --nproc-per-node 2 -m research.state.no_script
make demos
make test-versions VERSION=2.6
pip install 'superadam[labs]'
pytest tests/test_command.py
pytest tests/docs/test_commands.py::test_nothing"""


def test_wrong_commands_are_found():
    for command in WRONG.splitlines():
        program, *args = shlex.split(command)
        with pytest.raises((Exception, SystemExit)):
            CHECKS[program](args, complete=True)


# ------------------------------------------------------------------------------------------------ the command's parser


@functools.cache
def parser():
    """The `superadam` command, whose subcommands return what they were given."""
    group = typer.main.get_command(cli.app)
    for command in group.commands.values():
        command.callback = lambda **given: given
    return group


def superadam(words, complete):
    words = [word for word in words if word != "…"]
    if not words and not complete:
        return
    try:
        given = parser().main(words, prog_name="superadam", standalone_mode=False)
    except Exception as error:  # typer may have its own copy of click, and so of click's errors
        if complete or type(error).__name__ != "MissingParameter":
            raise
        return
    if isinstance(given, dict):  # --help and --version end at once
        named = [given.get("task"), *(given.get("tasks") or ())]
        file = given.get("task_file")
        own = re.findall(r'"([\w-]+)"', (ROOT / file).read_text()) if file and (ROOT / file).exists() else ()
        assert not [task for task in named if task and task not in (*TASKS, *own) and not task.isupper()]


# ------------------------------------------------------------------------------------------------ scripts and tests


class Anything:
    """In place of what a script has imported or computed before it makes its parser."""

    def __getattr__(self, name):
        return self

    def __call__(self, *args, **options):
        return self

    def __truediv__(self, other):
        return self

    def __getitem__(self, key):
        return self

    def __contains__(self, value):
        return True

    def __iter__(self):
        return iter(())


class Names(dict):
    def __missing__(self, name):
        if hasattr(builtins, name):
            raise KeyError(name)
        return Anything()


def has(node, attribute):
    return any(getattr(n, "attr", "") == attribute for n in ast.walk(node))


@functools.cache
def script(path):
    """A script's strings, and the parser that the statements around `ArgumentParser(…)` make, if there are some.

    The script is not imported, which would take seconds."""
    tree = ast.parse((ROOT / path).read_text())
    for function in tree.body:
        if isinstance(function, ast.FunctionDef) and has(function, "ArgumentParser"):
            ends = [isinstance(line, ast.Return) or has(line, "parse_args") for line in function.body]
            names = Names(argparse=argparse, Path=Path)
            made = ast.Module(function.body[: ends.index(True)], type_ignores=[])
            exec(compile(made, path, "exec"), names)
            return (), next(value for value in names.values() if isinstance(value, argparse.ArgumentParser))
    return {node.value for node in ast.walk(tree) if isinstance(node, ast.Constant)}, None


def python(words, complete):
    path, *args = words
    if path == "-m":
        path, args = f"{args[0].replace('.', '/')}.py", args[1:]
    if "<" not in path:  # examples/<name>.py
        strings, parser = script(path)
        if parser is None:
            assert set(args) <= strings
        else:
            parser.parse_args(args)


def torchrun(words, complete):
    assert words[:1] == ["--nproc-per-node"] or not complete
    match words[2:]:
        case ["-m", "superadam_lab", *args]:
            superadam(args, complete)
        case [path, *args]:
            python([path, *args], complete)


def pytest_(words, complete):
    for word in words:
        path, _, name = word.partition("::")
        if "/" in path or name:
            assert f"def {name}" in (ROOT / path).read_text() if name else (ROOT / path).exists(), word


# ------------------------------------------------------------------------------------------------ make and pip


def make(words, complete):
    makefile = (ROOT / "Makefile").read_text()
    for word in words:
        name, assigned, _ = word.partition("=")
        assert re.search(rf"^{name} *\?=" if assigned else rf"^{name}:", makefile, flags=re.M), word


def pip(words, complete):
    if words == ["check"]:
        return
    assert words[0] == "install"
    for word in words[1:]:
        if match := re.fullmatch(r"(\.|superadam|\./lab|superadam-lab)(?:\[(.*)\])?(?:\W.*)?", word):
            file = ROOT / ("lab" if "lab" in match[1] else ".") / "pyproject.toml"
            extras = tomllib.loads(file.read_text())["project"]["optional-dependencies"]
            assert {extra.strip() for extra in (match[2] or "").split(",")} <= {"", *extras}, word


CHECKS = {
    "superadam": superadam,
    "python": python,
    "python3": python,
    "torchrun": torchrun,
    "pytest": pytest_,
    "make": make,
    "pip": pip,
}
