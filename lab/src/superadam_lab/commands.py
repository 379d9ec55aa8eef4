"""`superadam train`, `resume`, `plot`, `tasks` and `methods`."""

from __future__ import annotations

import dataclasses
import time
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn
from rich.table import Table

from superadam import zoo
from superadam_lab.comparison import commands as comparing
from superadam_lab.data import fetch
from superadam_lab.methods.by_name import PAPER, make, value
from superadam_lab.reading import path
from superadam_lab.runs.folders import Config, Folder, Row
from superadam_lab.runs.parallel import Processes, check_device, together
from superadam_lab.runs.training import Run, Watcher
from superadam_lab.tasks import SCALES, TASKS, Task, find
from superadam_lab.user_code import check_trust

__all__ = ["register"]

Epochs = Annotated[
    int | None, typer.Option(min=1, help="Passes over the data. Default without a budget: by the scale.")
]
Sizes = Annotated[
    list[str] | None,
    typer.Option(metavar="KEY=VALUE", help="Replace a size of the scale, such as batch=64. Can be repeated."),
]
Evals = Annotated[int | None, typer.Option(min=1, help="Maximum number of gradient evaluations.")]
Seconds = Annotated[float | None, typer.Option(min=0, help="Maximum training time in seconds.")]
RunFolder = Annotated[Path, typer.Argument(metavar="RUN", help="A folder that `superadam train` made.")]


Trust = Annotated[bool, typer.Option("--trust", help="Run the Python files and packages that the folder names.")]


def register(app: typer.Typer) -> None:
    """Add the commands."""
    for command in (train, resume, plot, tasks, methods):
        app.command()(command)
    comparing.register(app)


def train(
    task: Annotated[str, typer.Argument(help="Name of a task from `superadam tasks`.")],
    method: Annotated[
        str, typer.Option(help="Name of a method from `superadam methods`, with options.")
    ] = "super_adam tau=0",
    scale: Annotated[str, typer.Option(help="Size of the task: tiny, laptop or paper.")] = "laptop",
    preset: Annotated[
        str, typer.Option(help="Options of the method: lab (for this task), paper (its experiments) or default.")
    ] = "lab",
    set_: Annotated[
        list[str] | None,
        typer.Option("--set", metavar="KEY=VALUE", help="Set an option of the method. Can be repeated."),
    ] = None,
    seed: Annotated[int, typer.Option(help="Seed of initial weights, batch order and dropout.")] = 0,
    device: Annotated[str, typer.Option(help="Device, such as cpu or cuda.")] = "cpu",
    epochs: Epochs = None,
    budget_evals: Evals = None,
    budget_seconds: Seconds = None,
    decay: Annotated[str, typer.Option(help="Learning rate decay: none, cosine, linear, warmup-cosine.")] = "none",
    warmup: Annotated[float, typer.Option(min=0, help="Fraction of the run in which the learning rate rises.")] = 0.0,
    size: Sizes = None,
    every: Annotated[int | None, typer.Option(min=1, help="Also evaluate every N batches.")] = None,
    data_dir: Annotated[Path | None, typer.Option(help="Folder with the data, for tasks that need it.")] = None,
    download: Annotated[bool, typer.Option("--download", help="First download the data into --data-dir.")] = False,
    out: Annotated[
        Path | None, typer.Option(parser=path, metavar="PATH", help="Folder of the run. Default: a new one in runs/.")
    ] = None,
    tensorboard: Annotated[bool, typer.Option("--tensorboard", help="Also write TensorBoard logs.")] = False,
    strategy: Annotated[
        str | None, typer.Option(help="Under torchrun: ddp (default) replicates the model, fsdp2 shards it.")
    ] = None,
) -> None:
    """Train a model on a task with a method, and save the run in a folder.

    Example: superadam train digits-mlp --method "super_adam tau=1" --set lr=0.01
    """
    config = Config(
        find(task).name,
        method,
        scale,
        preset,
        dict(value(s) for s in set_ or []),
        seed,
        device,
        None if data_dir is None else str(data_dir.resolve()),
        every,
        epochs,
        budget_evals,
        budget_seconds,
        tensorboard,
        decay,
        dict(value(s) for s in size or []),
        strategy,
        warmup,
    )
    with together(strategy, device) as processes:
        if download:
            processes.from_first(lambda: _fetch(find(task), config.data_dir))
        check_device(device)
        # before a folder is made
        workload = processes.in_turn(lambda: find(task).workload(scale, seed, config.data_dir, config.sizes))
        processes.join(workload)
        make(find(task), workload, method, preset, config.options)
        folder = processes.from_first(lambda: Folder.new(out, config))
        with processes.holding(folder.lock):
            _go(folder, processes, config)


def resume(
    run: RunFolder,
    epochs: Epochs = None,
    budget_evals: Evals = None,
    budget_seconds: Seconds = None,
    trust: Trust = False,
) -> None:
    """Resume a run that was stopped, or extend a finished one. The result is bit for bit that of an unbroken run.

    A run with an optimizer of a file or of another package runs that code. You are asked before, or give --trust.

    Example: superadam resume runs/digits-mlp-super_adam-tau0-seed0 --epochs 40
    """
    folder = Folder(run)
    config = folder.read()
    check_trust(folder.config, [config.method], trust=trust)
    with together(config.strategy, config.device) as processes, processes.holding(folder.lock):
        if epochs or budget_evals or budget_seconds:
            ends: dict[str, Any] = {"epochs": epochs, "budget_evals": budget_evals, "budget_seconds": budget_seconds}
            config = dataclasses.replace(config, **ends)
        _go(folder, processes, config)


def plot(
    runs: Annotated[list[Path], typer.Argument(metavar="RUN...", help="Folders that `superadam train` made.")],
    out: Annotated[
        Path, typer.Option(parser=path, metavar="PATH", help="Output path, without the file extension.")
    ] = Path("figure"),
    format_: Annotated[
        list[str] | None, typer.Option("--format", help="Format: png, svg or html. Can be repeated. Default: all.")
    ] = None,
    label: Annotated[
        list[str] | None, typer.Option(help="Name of a run's curve. Repeat it for each run, in order.")
    ] = None,
) -> None:
    """Plot loss and score on training, validation and test data against epochs, gradient evaluations and seconds.

    Example: superadam plot runs/a runs/b --label "AdamW" --label "mine" --out figures/digits --format png
    """
    from superadam_lab.runs import plots

    for file in plots.plot(runs, out, format_ or plots.FORMATS, label or ()):
        typer.echo(file)


def tasks() -> None:
    """List the tasks and their sizes at each scale.

    Example: superadam tasks
    """
    table = Table("task", "what, and on what", "scale", show_lines=True)
    for task in TASKS.values():
        sizes = "\n".join(f"{scale}: {_sizes(task.sizes(scale))}" for scale in SCALES)
        table.add_row(task.name, f"{task.description}\n{task.data}", sizes)
    _print(table)


def methods(
    pattern: Annotated[str, typer.Argument(help="Pattern for the names, with * and ?.")] = "*",
) -> None:
    """List the methods, and mark those of the paper's experiments.

    Example: superadam methods "ada*"
    """
    found = zoo.list_methods(pattern)
    paper = {name.split()[0] for name in PAPER}
    table = Table("method", "what", "paper")
    for name, line in found.items():
        table.add_row(name, line, "yes" if name in paper else "")
    _print(table)


# ------------------------------------------------------------------------------------------------ what is seen


class Shown(Watcher):
    """Progress with loss and time left; a line for each evaluation."""

    def __init__(self, console: Console) -> None:
        self.console, self._at = console, 0.0
        self.bar = Progress(
            TextColumn("{task.description}"),
            BarColumn(),
            TextColumn("{task.percentage:>3.0f} %"),
            TextColumn("loss {task.fields[loss]}"),
            TimeElapsedColumn(),
            TimeRemainingColumn(),
            console=console,
            transient=True,
            disable=not console.is_terminal,
        )

    def begun(self, run: Run) -> None:
        config = run.config
        parameters = sum(p.numel() for p in run.workload.model.parameters())
        self.console.print(
            f"{config.task} at {config.scale} scale ({_sizes(run.sizes)}; {parameters:,} parameters, "
            f"{run.workload.length} batches an epoch), seed {config.seed}, {_processes(run.processes)}"
            f"into {run.folder.path}\n{run.opt}",
            highlight=False,
        )
        self.id = self.bar.add_task(config.task, total=1.0, loss="")
        self.bar.update(self.id, completed=run.progress)

    def stepped(self, run: Run, loss: Any) -> None:
        now = time.monotonic()
        if now - self._at > 0.2:  # to read the loss waits for the device
            self._at = now
            self.bar.update(self.id, completed=run.progress, loss=f"{float(loss):.4f}")

    def evaluated(self, run: Run, row: Row) -> None:
        numbers = [
            f"{name.replace('_', ' ')} {v:.4g}"
            for name, v in row.items()
            if name.startswith(("train_", "valid_", "test_"))
        ]
        head = f"epoch {row['epoch']:g}, {row['gradient_evaluations']} evaluations, {row['seconds']:.1f} s"
        self.console.print(f"{head}: {', '.join(numbers)}", highlight=False)
        for text in row["monitor"].get("alarms", {}).values():
            self.console.print(f"  warning: {text}", style="yellow", highlight=False)


def _go(folder: Folder, processes: Processes, config: Config) -> None:
    console = Console(soft_wrap=True, quiet=not processes.leads)
    shown = Shown(console)
    run = Run(folder, shown, processes, config)
    processes.from_first(lambda: _written(config, folder))  # if it goes further than before, now that all is sound
    if run._done() and run._measured == run.step:
        epochs, used = run.step / run.workload.length, run.opt.gradient_evaluations
        console.print(
            f"{folder.path} is finished, after {run.step} batches ({epochs:g} epochs, {used} gradient evaluations). "
            "To extend it, give more --epochs or a larger budget."
        )
        return
    with shown.bar:
        ended = run.train()
    if ended == "interrupted":
        console.print(
            f"Stopped and saved after {run.step} batches. To resume:\n  {processes.command} resume {folder.path}"
        )
        raise typer.Exit(130)
    if ended == "diverged":
        console.print(f"Stopped after {run.step} batches: the loss is not finite. Try a lower lr, with --set lr=…")
        raise typer.Exit(1)
    console.print(f"Finished. To plot it:\n  superadam plot {folder.path}")


def _written(config: Config, folder: Folder) -> None:
    """Write a config into its folder, if another one is there."""
    if config != folder.read():
        folder.write(config)


def _fetch(task: Task, folder: str | None) -> None:
    if task.fetched is None:
        raise ValueError(f"{task.name} has nothing that could be downloaded: leave --download out")
    if folder is None:
        raise ValueError("--download needs --data-dir, the folder for the data")
    typer.echo(fetch(task.fetched, folder))


def _processes(processes: Processes) -> str:
    return "" if processes.alone else f"{processes.size} processes ({processes.strategy}), "


def _sizes(sizes: dict[str, Any]) -> str:
    return ", ".join(f"{name} {'all' if n is None else n}" for name, n in sizes.items())


def _print(table: Table) -> None:
    console = Console()
    (console if console.is_terminal else Console(width=160)).print(table)  # a file has no width of its own
