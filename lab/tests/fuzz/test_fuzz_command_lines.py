"""Command lines by the grammar of the commands, with values that make no sense: a documented exit code, in any case."""

import shlex
import warnings

import pytest
from typer.testing import CliRunner

from mutations import HOSTILE
from superadam_lab import bench
from superadam_lab.cli import app
from superadam_lab.comparison import engine
from superadam_lab.comparison.records import Results
from superadam_lab.runs.training import Run

pytestmark = pytest.mark.slow

WORDS = [
    "", " ", "x", "-", "--", "0", "1", "-1", "2", "0.5", "nan", "inf", "1e400", "9" * 30, "9" * 5000, "null", "\x1b[2J",
    "\ud800", "digits-mlp", "nmf", "pydoc-lstm", "simplex-regression", "logistic-nonconvex", "tiny", "cpu", "cuda",
    "meta", "nonsense", "adam", "sgd", "super_adam tau=1", "storm", "paper", "x: adam lr=1", "adam betas=[0,0]",
    "super_adam taus=5",
    "lr=1", "lr=", "=1", "lr=[1,2]", "lr=1e999", "lr=-1", "lr=x", "batch=1", "batch=0", "batch=-3", "rows=1", "rows=0",
    "matrix=Belief", "matrix={}", 'matrix={"type": 3}', 'schedule={"type": "Constant", "alpha": "x"}',
    "lr=" + "[" * 5000,
    "constraint=Simplex", "constraint=Box", "penalty=L1", "clip=0", "tau=1", "tau=NaN", "maximize=1", "fused=true",
    "lr=1:2", "lr=2:1", "lr=0:1", "lr=a:b", "clip=1e-400:1e400", "cosine", "tpe", "ddp", "png", "file.txt", "folder",
    "/dev/null", "/proc/1/mem", "/", ".", "missing/file", "a" * 300, "sqlite:///x.db", "sqlite:///folder", "postgresql://",
    "*", "ada*", "[", "mlp", "eps=1e-300", "weight_decay=1e300", "epochs=1", "hidden=1", "size=1", "bptt=1", "words=3",
]  # fmt: skip
OPTIONS = {
    "train": ["--method", "--scale", "--preset", "--set", "--seed", "--device", "--epochs", "--budget-evals", "--decay",
              "--budget-seconds", "--size", "--every", "--data-dir", "--download", "--out", "--strategy"],
    "resume": ["--epochs", "--budget-evals", "--budget-seconds"],
    "plot": ["--out", "--format"],
    "tasks": [],
    "methods": [],
    "compare": ["--methods", "--scale", "--trials", "--seeds", "--first-seed", "--tuning-seeds", "--budget-evals",
                "--jobs", "--storage", "--sampler", "--decay", "--tune", "--size", "--ablations", "--task-file",
                "--data-dir", "--device", "--out"],
    "report": ["--first-seed", "--out"],
    "worker": ["--task-file", "--data-dir"],
    "bench": ["--model", "--json", "--rounds", "--threads", "--memory", "--compile", "--sizes", "--end-to-end"],
}  # fmt: skip
FLAGS = {"--download", "--ablations", "--compile", "--sizes", "--end-to-end"}
TASKS = ["digits-mlp", "simplex-regression", "nmf", "logistic-nonconvex", "x"]


def line(dice):
    command = dice.choice(list(OPTIONS))
    args = [command]
    if command in ("train", "compare"):
        args += [dice.choice(TASKS), "--scale", dice.choice(["tiny", "tiny", "tiny", "x"])]
    elif command not in ("tasks", "bench"):
        args += [dice.choice(WORDS) for _ in range(dice.randint(0, 2))]
    for _ in range(dice.randint(0, 3)):
        option = dice.choice([*OPTIONS[command], "--nonsense"])
        args += [option] if option in FLAGS else [option, str(dice.choice(WORDS if dice.random() < 0.9 else HOSTILE))]
    return args


def test_command_lines(dice, tmp_path, monkeypatch):
    """Nothing is trained for long, measured or waited for: only what comes before is looked at."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("time.sleep", lambda seconds: None)
    monkeypatch.setattr(Run, "train", lambda run: run._evaluate({}) and "finished")
    monkeypatch.setattr(bench, "report", lambda *args, **options: {})
    monkeypatch.setattr(bench, "tables", lambda report: {})
    monkeypatch.setattr("torch.set_num_threads", lambda n: None)
    monkeypatch.setattr(engine, "carry_out", lambda plan, *args: Results(plan, {}, []))
    (tmp_path / "file.txt").write_text("raise SystemExit('of the task file')")
    (tmp_path / "folder").mkdir()
    for _ in range(150):
        args = line(dice)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            result = CliRunner().invoke(app, args)
        assert result.exit_code in (0, 1, 2), f"{shlex.join(args)[:300]}: {result.stderr}"
        assert result.exception is None or isinstance(result.exception, SystemExit), shlex.join(args)[:300]
        assert "Traceback" not in result.output
