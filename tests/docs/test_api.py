"""Every public name is on one page of the API, every option is explained once, and type checkers know the options."""

import dataclasses
import doctest
import importlib
import inspect
import re
from collections import Counter
from pathlib import Path

import pytest
import typer

import command_page
import messages
import superadam
import superadam_lab
from options import described, of_method, options, paper
from superadam import zoo
from superadam.parts import Part
from superadam_lab.comparison.options import Options

ROOT = Path(__file__).resolve().parents[2]

MODULES = (
    *("estimators", "iterates", "matrices", "monitor", "penalties", "probe", "probe.noise_model", "reference"),
    *("schedules", "sets", "stepsizes", "theory", "trainers", "zoo"),
)
PUBLIC = {
    name if module is superadam else f"{module.__name__.removeprefix('superadam.')}.{name}": getattr(module, name)
    for module in (superadam, superadam_lab, *(importlib.import_module(f"superadam.{name}") for name in MODULES))
    for name in module.__all__
    if callable(getattr(module, name))
}
PARTS = [thing for thing in PUBLIC.values() if isinstance(thing, type) and issubclass(thing, Part)]
# Reports are returned: nobody has to know what to give them. Warnings have a text.
CALLED = {
    name: thing
    for name, thing in PUBLIC.items()
    if thing not in PARTS
    and name.removeprefix("zoo.") not in zoo.METHODS
    and not dataclasses.is_dataclass(thing)
    and not (isinstance(thing, type) and issubclass(thing, Exception))
}


@pytest.mark.parametrize("part", PARTS, ids=lambda part: part.__name__)
def test_every_option_of_a_part_is_explained(part):
    missing = [option.name for option in options(part) if not option.meaning]
    assert not missing, f"write what {', '.join(missing)} means under Args: in the docstring of {part.__name__}"


def test_no_option_is_explained_that_a_part_does_not_have():
    for part in PARTS:
        fields = {f.name for f in dataclasses.fields(part)}
        assert described(vars(part)["__doc__"]).keys() <= fields, part


def test_the_range_of_an_option_is_what_its_error_expects():
    beta, lam, bias_correction = options(superadam.matrices.SecondMoment)
    assert (beta.allowed, lam.allowed, bias_correction.allowed) == ("0 <= beta < 1", "lam >= 0", "")
    with pytest.raises(ValueError, match=re.escape(f"(expected {beta.allowed})")):
        superadam.matrices.SecondMoment(beta=1.0)


@pytest.mark.parametrize("name", zoo.METHODS)
def test_every_option_of_a_method_is_explained(name):
    """In the docstring of the method, or in that of `superadam.zoo` if several have it."""
    missing = [option for option, meaning in of_method(getattr(zoo, name)).items() if not meaning]
    assert not missing, f"write what {', '.join(missing)} means under Args: in the docstring of {name}"


@pytest.mark.parametrize("name", CALLED)
def test_every_option_of_a_function_is_explained(name):
    """Under Args:, or by its name in a sentence."""
    thing = CALLED[name]
    prose = re.sub(r"^ *(>>>|\.\.\.).*", "", thing.__doc__, flags=re.M)
    named = [p for p in inspect.signature(thing).parameters if p != "unknown" and thing is not superadam_lab.compare]
    assert not [p for p in named if not re.search(rf"\b{p}\b", prose)]


def test_every_option_of_a_comparison_is_explained():
    assert described(Options.__doc__).keys() == {f.name for f in dataclasses.fields(Options)}


def test_every_option_of_every_command_is_on_its_page():
    """In the section that the site's build makes of the command. A hidden option would be documented nowhere."""
    assert command_page.MARK in (ROOT / "docs" / "command.md").read_text()
    for name, command in typer.main.get_command(command_page.app).commands.items():
        _, _, section = command_page.section().partition(f"## superadam {name}\n")
        shown = section.partition("\n## ")[0]
        assert re.search(r"```bash\nsuperadam \w+.*\n```", shown), f"{name} has no example"
        assert all(meaning and f"| {option} |" in shown for option, _, meaning in command_page.rows(command)), name


@pytest.mark.parametrize("script", [importlib.import_module("options")])
def test_what_the_pages_are_made_by_does_what_it_says(script):
    assert doctest.testmod(script).failed == 0


def of_pages():
    """How often the pages of the API show an object. A module on a page shows all that it exports."""
    shown = Counter()
    for page in (ROOT / "docs" / "api").glob("*.md"):
        for target in re.findall(r"^::: (\S+)$", page.read_text(), flags=re.M):
            path, _, name = target.rpartition(".")
            thing = getattr(importlib.import_module(path), name)
            members = [getattr(thing, n) for n in thing.__all__] if inspect.ismodule(thing) else [thing]
            shown.update(id(member) for member in members)
    return shown


def test_every_public_name_is_on_one_page_of_the_api():
    shown = of_pages()
    assert {name: shown[id(thing)] for name, thing in PUBLIC.items() if shown[id(thing)] != 1} == {}


# ------------------------------------------------------------------------------------------------ docs/errors.md

ERRORS, _, MESSAGES = (ROOT / "docs" / "errors.md").read_text().partition("\n## ")


def test_the_page_of_errors_has_messages_of_the_code_and_all_classes():
    found, classes = messages.of_source()
    rows = re.findall(r"^\| `([^|]+)` \| `(\w+)` \| \S", MESSAGES, flags=re.M)
    assert len(rows) == MESSAGES.count("\n| `") > 40
    assert not [row for row in rows if not any(row[0] in message and row[1] == kind for _, message, kind in found)]
    assert set(re.findall(r"^\| \[?`(?:[a-z.]+\.)?(\w+)`", ERRORS, flags=re.M)) == classes
    public = {name for name, thing in PUBLIC.items() if isinstance(thing, type) and issubclass(thing, Exception)}
    assert public == {"NotFiniteError", "monitor.MonitorWarning"}  # the page says that no other is exported


def test_every_message_is_on_the_page_once():
    """In the section that the site's build makes of the source. A message without words passes on another one."""
    assert messages.MARK in MESSAGES
    section, listed = messages.section(), messages.rows()
    shown = {message for rows in listed.values() for message, _ in rows}
    found = {" ".join(message.replace("`", "'").split()) for _, message, _ in messages.of_source()[0]}
    assert shown == {message for message in found if len(re.findall("[A-Za-z]", message)) > 8}
    assert all(section.count(f"| `{message.replace('|', chr(92) + '|')}` |") >= 1 for message in shown)
    assert all(listed.values())


def test_every_public_method_of_the_optimizer_is_on_its_page():
    """It is a class without bases of ours, so that the page shows all of its methods. The others are torch's."""
    page = (ROOT / "docs" / "api" / "optimizer.md").read_text()
    assert [c for c in superadam.SuperAdam.__mro__[1:] if c.__module__.startswith("superadam.")] == []
    assert "members:" not in page
    assert "`opt.gradient_evaluations`" in page


def test_type_checkers_refuse_a_misspelt_option(tmp_path):
    """Without looking into torch, which would take most of the time."""
    api = pytest.importorskip("mypy.api", reason="comes with superadam[test]")  # 0.2 s that no other test needs

    (tmp_path / "mypy.ini").write_text(
        f"[mypy]\nmypy_path = {ROOT / 'src'}\nfollow_imports = silent\n"
        "[mypy-torch.*]\nfollow_imports = skip\nignore_missing_imports = True\n"
    )
    code = tmp_path / "mine.py"
    code.write_text(
        "from superadam import SuperAdam, matrices\n"
        "SuperAdam([], lr=1e-3, matrix=matrices.Yogi(lam=1e-3))\n"
        "SuperAdam([], matrx='Yogi')\n"
        "matrices.Yogi(lamda=1e-3)\n"
    )
    found, _, _ = api.run(["--config-file", str(tmp_path / "mypy.ini"), "--cache-dir", str(tmp_path), str(code)])
    assert re.findall(r"mine.py:(\d): error: Unexpected keyword argument \"(\w+)\"", found) == [
        ("3", "matrx"),
        ("4", "lamda"),
    ], found


@pytest.mark.parametrize("name", zoo.METHODS)
def test_every_method_has_a_reference(name):
    """With a year, and an address that the page of the zoo links to."""
    assert re.fullmatch(r"\D+ (19|20)\d\d, \S.*", zoo.METHODS[name].paper)
    assert zoo.METHODS[name].paper in getattr(zoo, name).__doc__
    assert paper(name) in (ROOT / "docs" / "zoo.md").read_text()
