"""The options of a comparison, defined once for the command, for `lab.compare` and for the plan."""

from __future__ import annotations

import dataclasses
import inspect
import re
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any

import typer

from superadam_lab.methods.specs import bounds, value
from superadam_lab.reading import path

__all__ = ["Options", "from_command_line", "parameters"]


def _bounds(text: str) -> tuple[str, tuple[float, float]]:
    name, _, limits = text.partition("=")
    if name and (found := bounds(limits)) is not None:
        return name, found
    raise ValueError(f"Invalid --tune {text!r} (expected key=low:high, as in lr=1e-3:1)")


def _option(default: Any, kind: Any, *names: str, read: Callable[[str], Any] | None = None, **more: Any) -> Any:
    """A field, and the option of the command: its type there, its names, how to read each text, and further arguments
    of Typer."""
    return dataclasses.field(default=default, metadata={"kind": kind, "names": names, "read": read, "more": more})


@dataclasses.dataclass(frozen=True)
class Options:
    """What to compare, by which rules, and where to run it.

    Every field is a keyword of `superadam_lab.compare` and an option of `superadam compare`.

    Args:
        tasks: Names of tasks. With a task file, the default is all tasks of the file.
        methods: A method of the zoo with its options, "super_adam tau=0.1". Parts with options of their own are written
            as JSON, 'adam schedule={"type": "Constant", "alpha": 0.2}'. An optimizer of another package is
            "torch.optim.Muon momentum=0.9" or "pytorch_optimizer:SOAP"; one from a file is "my_file.py:Mine". Two
            optimizers joined by " + " share the model: the first takes the hidden matrices, the second all other
            parameters. An option with bounds, "lr=1e-4:1", is tuned. A name for the tables can come first, "mine:
            super_adam tau=0.1". Default: "paper", all methods of the paper. The baseline is always added.
        baseline: The method to compare the others with. If one of them has a name for the tables, that name works, too.
        scale: Size of the tasks: tiny, laptop or paper.
        trials: Tuning trials of each method on each task.
        seeds: Number of final runs with the best options, each with a seed that tuning has not used.
        first_seed: First seed of the final runs. After a search, choose seeds that the search has not used.
        tuning_seeds: Number of seeds for each tuning trial.
        minutes: Time limit for the whole comparison. Pilot runs decide how many trials and seeds fit. Before it starts,
            the command prints how small a difference it can detect.
        budget_evals: Gradient evaluations of each run. Default: the epochs of the scale, with one gradient per batch.
        sampler: How tuning chooses its points. qmc (quasi-random) and random try the same points for all methods; tpe
            uses the results so far.
        decay: Decay of the learning rate in every run: cosine, linear, warmup-cosine or none.
        warmup: Fraction of every run in which the learning rate rises to its full value, such as 0.05.
        equal: Add final runs with equal epochs or equal seconds instead of equal gradients: epochs or seconds.
        halving: Stop unpromising trials early: 1 in N trials, but at least two, continues with runs N times as long.
            The final runs always have the full length.
        tune: An option to tune for every method, with its bounds, on a logarithmic scale. lr is always tuned.
        sizes: Replace a size of the scale, such as batch=64.
        ablations: Add control methods that test other explanations of a difference.
        per_task: Give verdicts on single tasks, too, corrected for all of them. The verdict on all tasks stays.
        verbose: Print the whole report in the terminal, not just the verdict.
        task_file: Python file that defines tasks with superadam_lab.task.
        data_dir: Folder with the data, for tasks that need it.
        device: Device of every run, such as cpu or cuda.
        run_seconds: Time limit of a run, in seconds. A run that takes longer counts as failed.
        run_memory: Memory limit of a run, in gigabytes: its worker process and the processes that it starts. A run that
            takes more counts as failed.
        jobs: Number of worker processes on this machine, each with one thread. Default: one for each core.
        storage: URL of the database, sqlite:///… or postgresql://…. Default: an SQLite file in the output folder.
        reuse: Folder of an earlier comparison. Runs with the same task, method, options, seed, length and code are
            taken from there. Default: the folders next to the output folder, for embedded tasks and methods of
            installed packages.
        no_reuse: Make every run, even if an earlier comparison holds the same one.
        out: Output folder. Default: a folder in comparisons/.
    """

    tasks: Sequence[str] = _option((), list[str] | None, metavar="TASK...")
    methods: Sequence[str] | None = _option(None, list[str] | None)
    _: dataclasses.KW_ONLY
    baseline: str = _option("adamw", str)
    scale: str = _option("laptop", str)
    trials: int = _option(9, int, min=1)
    seeds: int = _option(5, int, min=1)
    first_seed: int = _option(0, int, min=0)
    tuning_seeds: int = _option(1, int, min=1)
    minutes: float | None = _option(None, float | None, min=0)
    budget_evals: int | None = _option(None, int | None, min=1)
    sampler: str = _option("qmc", str)
    decay: str = _option("cosine", str)
    warmup: float = _option(0.0, float, min=0)
    equal: Sequence[str] | None = _option(None, list[str] | None)
    halving: int | None = _option(None, int | None, min=2)
    tune: Mapping[str, tuple[float, float]] | None = _option(
        None, list[str] | None, read=_bounds, metavar="KEY=LOW:HIGH"
    )
    sizes: Mapping[str, Any] | None = _option(None, list[str] | None, "--size", read=value, metavar="KEY=VALUE")
    ablations: bool = _option(False, bool, "--ablations")
    per_task: bool = _option(False, bool, "--per-task")
    verbose: bool = _option(False, bool, "--verbose")
    task_file: str | Path | None = _option(None, Path | None)  # noqa: RUF009
    data_dir: str | Path | None = _option(None, Path | None)  # noqa: RUF009
    device: str = _option("cpu", str)
    run_seconds: float | None = _option(None, float | None, min=0)
    run_memory: float | None = _option(None, float | None, min=0)
    jobs: int | None = _option(None, int | None, min=0)
    storage: str | None = _option(None, str | None)
    reuse: Sequence[str | Path] | None = _option(None, list[str] | None)
    no_reuse: bool = _option(False, bool, "--no-reuse")
    out: str | Path | None = _option(None, Path | None, parser=path, metavar="PATH")  # noqa: RUF009

    def __post_init__(self) -> None:
        if self.out is not None:
            path(self.out)


def parameters() -> list[inspect.Parameter]:
    """The parameters of the command, for Typer. Their help texts come from the docstring of `Options`."""
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
    """The options of the command line. Texts are parsed; options that were not given keep their defaults."""
    options: dict[str, Any] = {}
    for field in dataclasses.fields(Options):
        if (found := given[field.name]) not in (None, []):
            read = field.metadata["read"]
            options[field.name] = found if read is None else dict(map(read, found))
    return Options(**options)
