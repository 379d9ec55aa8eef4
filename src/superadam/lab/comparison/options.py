"""What a comparison can be told. It stands here once: the command, `lab.compare` and the plan are made of it."""

from __future__ import annotations

import dataclasses
import inspect
import re
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any

import typer

from superadam.lab.methods import value

__all__ = ["Options", "from_command_line", "parameters"]


def _bounds(text: str) -> tuple[str, tuple[float, float]]:
    name, _, bounds = text.partition("=")
    low, colon, high = bounds.partition(":")
    try:
        if name and colon:
            return name, (float(low), float(high))
    except ValueError:
        pass  # no numbers
    raise ValueError(f"Invalid --tune {text!r} (expected key=low:high, as in lr=1e-3:1)")


def _option(default: Any, kind: Any, *names: str, read: Callable[[str], Any] | None = None, **more: Any) -> Any:
    """A field, and the option of the command: its type there, its names, how each text is read, and what else Typer
    has to know."""
    return dataclasses.field(default=default, metadata={"kind": kind, "names": names, "read": read, "more": more})


@dataclasses.dataclass(frozen=True)
class Options:
    """What is compared, by which rules, where, and by how many processes.

    Every field is a keyword of `superadam.lab.compare` and an option of `superadam compare`.

    Args:
        tasks: Names of tasks. With a task_file, by default those of the file.
        methods: Names of the zoo with options behind them, "super_adam tau=0.1". Parts that have options of their own
            are written as in JSON, 'adam schedule={"type": "Constant", "alpha": 0.2}'. A name for the tables may come
            first, "mine: super_adam tau=0.1". By default "paper": all of the paper's. AdamW is always among them.
        scale: tiny, laptop or paper.
        trials: Trials of each method on each task.
        seeds: Number of runs of the best options, each with a seed of its own that no trial has seen.
        first_seed: First seed of these runs. After a search, choose seeds that had no part in it.
        tuning_seeds: Runs of each trial.
        budget_evals: Gradient evaluations of each run. By default those of one gradient per batch for the epochs of the
            scale.
        sampler: qmc (quasi-random) and random try the same points for all methods; tpe looks at results.
        decay: Decay of the learning rate in every run: cosine, linear, warmup-cosine or none.
        tune: What is tuned, with bounds, on a logarithmic scale; lr always is.
        sizes: In place of a size of the scale, such as the batch.
        ablations: Add the methods that keep the comparison honest.
        task_file: A Python file that calls superadam.lab.task.
        data_dir: Where the data are, for tasks that need some.
        device: Where every run computes.
        jobs: Worker processes on this machine, each with one thread. By default one for each core.
        storage: The data base, sqlite:///… or postgresql://… By default a file in the folder.
        out: The folder. By default one in comparisons/.
    """

    tasks: Sequence[str] = _option((), list[str] | None, metavar="TASK...")
    methods: Sequence[str] | None = _option(None, list[str] | None)
    _: dataclasses.KW_ONLY
    scale: str = _option("laptop", str)
    trials: int = _option(9, int, min=1)
    seeds: int = _option(5, int, min=1)
    first_seed: int = _option(0, int, min=0)
    tuning_seeds: int = _option(1, int, min=1)
    budget_evals: int | None = _option(None, int | None, min=1)
    sampler: str = _option("qmc", str)
    decay: str = _option("cosine", str)
    tune: Mapping[str, tuple[float, float]] | None = _option(
        None, list[str] | None, read=_bounds, metavar="KEY=LOW:HIGH"
    )
    sizes: Mapping[str, Any] | None = _option(None, list[str] | None, "--size", read=value, metavar="KEY=VALUE")
    ablations: bool = _option(False, bool, "--ablations")
    task_file: str | Path | None = _option(None, Path | None)  # noqa: RUF009
    data_dir: str | Path | None = _option(None, Path | None)  # noqa: RUF009
    device: str = _option("cpu", str)
    jobs: int | None = _option(None, int | None, min=0)
    storage: str | None = _option(None, str | None)
    out: str | Path | None = _option(None, Path | None)  # noqa: RUF009


def parameters() -> list[inspect.Parameter]:
    """Those of the command, for Typer. Their help is that of the class."""
    found = []
    for field in dataclasses.fields(Options):
        kind, names, more = (field.metadata[key] for key in ("kind", "names", "more"))
        made = typer.Argument if field.name == "tasks" else typer.Option
        repeated = " Can be repeated." if kind == list[str] | None and field.name != "tasks" else ""
        about = made(*names, help=_help(field.name) + repeated, **more)
        default = None if kind == list[str] | None else field.default
        found.append(
            inspect.Parameter(
                field.name, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=Annotated[kind, about]
            )
        )
    return found


def _help(name: str) -> str:
    found = re.search(rf"^ +{name}: (.*?)(?=^ +\w+: |\Z)", inspect.cleandoc(Options.__doc__ or ""), re.M | re.S)
    return " ".join(found[1].split()) if found else ""


def from_command_line(given: Mapping[str, Any]) -> Options:
    """Texts are read; what was not given has its default."""
    options: dict[str, Any] = {}
    for field in dataclasses.fields(Options):
        if (found := given[field.name]) not in (None, []):
            read = field.metadata["read"]
            options[field.name] = found if read is None else dict(map(read, found))
    return Options(**options)
