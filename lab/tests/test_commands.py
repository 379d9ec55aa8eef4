"""`superadam train`, `resume`, `plot`, `tasks` and `methods`."""

import json
import os
import re
from types import SimpleNamespace

import pytest
import typer
from typer.testing import CliRunner

from superadam import zoo
from superadam_lab import tasks
from superadam_lab.cli import app
from superadam_lab.runs import plots
from superadam_lab.runs.folders import Config, Folder, rows


@pytest.fixture
def command(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    return lambda *args: CliRunner().invoke(app, args)


def test_train_resume_and_plot(command, tmp_path):
    made = command(
        "train", "digits-mlp", "--scale", "tiny", "--set", "lr=0.01", "--set", "betas=[0.8, 0.9]", "--method", "adam"
    )
    assert made.exit_code == 0, made.output
    assert "hidden 16, rows 64, batch 32, epochs 2" in made.stdout
    folder = "runs/digits-mlp-adam-seed0"
    assert f"superadam plot {folder}" in made.stdout
    config = json.loads((tmp_path / folder / "config.json").read_text())
    assert config["options"] == {"lr": 0.01, "betas": [0.8, 0.9]}

    done = command("resume", folder)
    assert done.exit_code == 0
    assert "is finished" in done.stdout
    further = command("resume", folder, "--epochs", "3")
    assert further.exit_code == 0, further.output
    assert [row["epoch"] for row in rows(tmp_path / folder)] == [0, 1, 2, 3]

    again = command("train", "digits-mlp", "--scale", "tiny", "--method", "adam")
    assert "runs/digits-mlp-adam-seed0-2" in again.stdout
    both = ("plot", folder, f"{folder}-2", "--label", "first run", "--label", "a + b", "--out", "figures/both")
    drawn = command(*both, "--format", "png", "--format", "svg")
    assert drawn.stdout.split() == ["figures/both.png", "figures/both.svg"]
    assert (tmp_path / "figures/both.png").read_bytes().startswith(b"\x89PNG")
    assert "first run" in (tmp_path / "figures/both.svg").read_text()
    assert "1 labels for 2 runs" in command("plot", folder, f"{folder}-2", "--label", "first").stderr


def test_html_holds_every_run_and_needs_no_network(command, tmp_path):
    for method in ("adam", "storm"):
        command("train", "pydoc-transformer", "--scale", "tiny", "--method", method, "--out", method)
    made = command("plot", "adam", "storm", "--format", "html")
    assert made.exit_code == 0, made.output
    page = (tmp_path / "figure.html").read_text()
    assert '"name":"Adam"' in page
    assert '"name":"STORM"' in page
    assert not re.search(r'<(script|link|img)[^>]*(src|href)="http', page)


def test_panels_are_those_of_the_paper(command, tmp_path):
    command("train", "pydoc-transformer", "--scale", "tiny", "--out", "text")
    command("train", "nmf", "--scale", "tiny", "--out", "nmf")
    (text,), (nmf,) = plots.curves([tmp_path / "text"]), plots.curves([tmp_path / "nmf"])
    ends = ["condition", "full_gradient_norm"]
    of_text = [f"{split}_{score}" for score in ("loss", "perplexity") for split in ("train", "valid", "test")]
    assert plots.panels([text]) == of_text + ends
    assert plots.panels([nmf]) == ["train_loss", "train_relative_error", *ends]
    assert (text.label, nmf.label) == ("SUPER-ADAM τ=0", "SUPER-ADAM τ=0")
    labels = [curve.label for curve in plots.curves([tmp_path / "text", tmp_path / "nmf"])]
    assert labels == ["SUPER-ADAM τ=0, pydoc-transformer", "SUPER-ADAM τ=0, nmf"]


@pytest.mark.parametrize(
    ("losses", "scale"),
    [([3.0, 0.2], "log"), ([3.0, 0.5], "linear"), ([3.0, -1.0], "linear"), ([3.0, 0.0], "linear"), ([None], "linear")],
)
def test_losses_over_more_than_a_factor_of_ten_have_a_logarithmic_axis(losses, scale):
    curve = plots.Curve("mine", {"epoch": [0.0, 1.0], "train_loss": losses, "train_accuracy": [0.01, 0.9]})
    assert plots.scale([curve], "train_loss") == scale
    assert plots.scale([curve], "train_accuracy") == "linear"


MINE = """
import pathlib, torch
pathlib.Path(__file__).with_name("ran").touch()
def mine(params, lr):
    return torch.optim.SGD(params, lr)
"""


def sent(folder, method):
    """A run that somebody sent, which is not begun."""
    return Folder.new(folder, Config("digits-mlp", method=method, scale="tiny", options={"lr": 0.01}, epochs=1)).path


@pytest.mark.parametrize("method", ["{}/mine.py:mine", "os:system", "torch.optim:os.system", "torch.hub.load"])
def test_a_folder_that_somebody_sent_runs_no_code_unasked(command, tmp_path, monkeypatch, method):
    (tmp_path / "mine.py").write_text(MINE)
    monkeypatch.setattr(os, "system", lambda *args: pytest.fail("called"))
    place = method.format(tmp_path)
    folder = sent(tmp_path / "sent", place)
    refused = command("resume", str(folder))
    assert refused.exit_code == 2
    assert f"{folder / 'config.json'} names code that would run here: {place}." in refused.stderr
    assert "add --trust" in refused.stderr
    assert not (tmp_path / "ran").exists()
    if method.endswith("mine"):
        assert command("resume", str(folder), "--trust").exit_code == 0
        assert (tmp_path / "ran").exists()


@pytest.mark.parametrize("answer", [True, False])
def test_somebody_at_a_terminal_is_asked_whether_the_code_of_a_folder_may_run(command, tmp_path, monkeypatch, answer):
    (tmp_path / "mine.py").write_text(MINE)
    folder, asked = sent(tmp_path / "sent", f"{tmp_path}/mine.py:mine"), []
    monkeypatch.setattr("superadam_lab.user_code.sys", SimpleNamespace(stdin=SimpleNamespace(isatty=lambda: True)))
    monkeypatch.setattr("typer.confirm", lambda text: asked.append(text) or answer)
    assert command("resume", str(folder)).exit_code == (0 if answer else 2)
    assert "mine.py:mine. Run it?" in asked[0]
    assert (tmp_path / "ran").exists() is answer


def test_optimizers_of_torch_need_no_trust(command, tmp_path):
    assert command("resume", str(sent(tmp_path / "sent", "torch.optim.NAdam"))).exit_code == 0


@pytest.mark.parametrize("out", ["", " ", "\udcff"])
@pytest.mark.parametrize("args", [("train", "nmf"), ("compare", "nmf"), ("leaderboard", "x"), ("report", "x")])
def test_a_path_that_is_empty_or_not_utf_8_is_refused_before_anything_is_written(command, tmp_path, args, out):
    result = command(*args, "--out", out)
    assert result.exit_code == 2
    assert ("The path is empty" if not out.strip() else "is not UTF-8") in result.stderr
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("args", "suggestion"),
    [
        (("train", "digits-mpl"), "did you mean 'digits-mlp'?"),
        (("train", "digits-mlp", "--method", "super-adam"), "did you mean 'super_adam'?"),
        (("train", "digits-mlp", "--scale", "labtop"), "did you mean 'laptop'?"),
        (("train", "digits-mlp", "--preset", "papre"), "did you mean 'paper'?"),
        (("train", "digits-mlp", "--set", "lrr=1"), "did you mean 'lr'?"),
        (("train", "digits-mlp", "--set", "matrix=Beleif"), "did you mean 'Belief'?"),
        (("train", "digits-mlp", "--set", "lr"), "expected key=value"),
        (("methods", "adamm"), "did you mean 'adam'?"),
        (("resume", "nothing"), "nothing holds no run"),
        (("plot", "nothing"), "nothing holds no run"),
    ],
)
def test_a_wrong_name_gets_a_suggestion_and_leaves_nothing_behind(command, tmp_path, args, suggestion):
    result = command(*args)
    assert result.exit_code == 2
    assert suggestion in result.stderr
    assert "Traceback" not in result.stderr
    assert not list(tmp_path.iterdir())


def test_a_wrong_format_gets_a_suggestion(command):
    command("train", "digits-mlp", "--scale", "tiny", "--out", "one")
    assert "did you mean 'html'?" in command("plot", "one", "--format", "htlm").stderr


def test_a_run_is_not_overwritten(command):
    command("train", "digits-mlp", "--scale", "tiny", "--out", "mine")
    again = command("train", "digits-mlp", "--scale", "tiny", "--out", "mine")
    assert again.exit_code == 2
    assert "superadam resume mine" in again.stderr


def test_a_run_that_diverges_says_so(command):
    args = ("train", "digits-mlp", "--scale", "tiny", "--method", "sgd", "--set", "lr=1e30", "--epochs", "50")
    result = command(*args)
    assert result.exit_code == 1
    assert "not finite" in result.stdout


COMMANDS = typer.main.get_command(app).commands
FRAGMENT = re.compile(r"(Of|In|At|For|With|Whose|Where|Which|What|That|Those|Print it)\b")


@pytest.mark.parametrize("name", COMMANDS)
def test_every_command_has_help_with_an_example(command, name):
    result = command(name, "--help")
    assert result.exit_code == 0
    assert re.search(rf"Example: +superadam {name}", result.stdout)


def test_every_argument_and_option_says_what_it_is():
    """In whole sentences that name the thing: "Seed of …", not "Of …, and …"."""
    given = [p for c in (typer.main.get_command(app), *COMMANDS.values()) for p in c.params if p.name != "help"]
    assert len(given) > 60
    for parameter in given:
        text = parameter.help or ""
        assert re.match(r"[A-Z]\w*\b.* .*\.$", text, re.DOTALL), (parameter.name, text)
        assert not FRAGMENT.match(text), (parameter.name, text)


def test_tables_name_everything(command):
    table = command("tasks").stdout
    assert not [name for name in tasks.TASKS if name not in table]
    assert not [name for name in zoo.METHODS if name not in command("methods").stdout]
    assert "amsgrad" not in command("methods", "adab*").stdout
