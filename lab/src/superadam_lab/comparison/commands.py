"""`superadam compare`, `report`, `leaderboard` and `worker`."""

from __future__ import annotations

import inspect
import time
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console

from superadam_lab.comparison.options import from_command_line, parameters
from superadam_lab.reading import path

__all__ = ["register"]


def register(app: typer.Typer) -> None:
    """Add the commands."""
    for command in (compare, report, leaderboard, worker):
        app.command()(command)


def compare(**given: Any) -> None:
    """Compare optimizers on tasks: which one is best, and is the difference significant?

    Every method gets the same number of tuning trials. Its best options are then run on other seeds, with equal
    gradient evaluations. Run the same command again to resume a comparison that was stopped, or add seeds, methods or
    tasks to extend it.

    Example: superadam compare digits-mlp digits-cnn --scale tiny --methods "super_adam tau=1" --methods storm
    """
    from superadam_lab.comparison import engine, live

    console = Console(soft_wrap=True)
    options = from_command_line(given)
    begun, reuse = time.monotonic(), engine.to_reuse(options)
    plan, folder, said = engine.planned(options)
    budget = ", ".join(f"{task} {n}" for task, n in plan.budget_evals.items())
    console.print(
        f"{len(plan.methods)} methods with {plan.trials} trials and {len(plan.report_seeds)} seeds each: "
        f"{engine.plan_size(plan)} runs in {folder}. Gradient evaluations per run: {budget}",
        highlight=False,
    )
    if said:
        console.print(said, highlight=False)
    try:
        with live.Shown(console) as shown:
            results = engine.carry_out(plan, folder, options.storage, options.jobs, shown, reuse, begun)
    except KeyboardInterrupt:
        console.print(f"Stopped. The same command resumes {folder}; finished runs are kept.")
        raise typer.Exit(130) from None
    verdict = engine.report(results, folder, per_task=options.per_task)
    console.print(verdict.text if options.verbose else verdict.short, highlight=False)
    console.print(f"Report: {folder / 'report.html'}; numbers: {folder / engine.RESULTS}", highlight=False)


compare.__signature__ = inspect.Signature(parameters())  # type: ignore[attr-defined]


def report(
    folder: Annotated[Path, typer.Argument(help="Folder of a comparison.")],
    first_seed: Annotated[int, typer.Option(min=0, help="First seed to report. Lower seeds are left out.")] = 0,
    out: Annotated[
        Path | None,
        typer.Option(
            parser=path,
            metavar="PATH",
            help="Output folder. Default: the folder itself, or with --first-seed a new folder in it.",
        ),
    ] = None,
    per_task: Annotated[bool, typer.Option("--per-task", help="Give verdicts on single tasks, too.")] = False,
    verbose: Annotated[bool, typer.Option("--verbose", help="Print the whole report in the terminal.")] = False,
) -> None:
    """Rewrite the report of a comparison: after it was stopped, or for its added seeds alone.

    Example: superadam report comparisons/digits-mlp-tiny --first-seed 5
    """
    from superadam_lab.comparison import engine
    from superadam_lab.comparison.records import Results

    console = Console(soft_wrap=True)
    found = Results.read(folder / engine.RESULTS)
    seeds = [seed for seed in found.plan.report_seeds if seed >= first_seed]
    if not seeds:
        raise ValueError(f"No seed is {first_seed} or higher: the seeds are {found.plan.report_seeds}")
    all_ = len(seeds) == len(found.plan.report_seeds)
    out = out or (folder if all_ else folder / f"seeds-from-{first_seed}")
    out.mkdir(parents=True, exist_ok=True)
    verdict = engine.report(found.only(seeds=seeds), out, folder / engine.RESULTS, per_task=per_task)
    console.print(verdict.text if verbose else verdict.short, highlight=False)
    console.print(f"Report: {out / 'report.html'}", highlight=False)


def leaderboard(
    folders: Annotated[list[Path], typer.Argument(metavar="FOLDER...", help="Folders of comparisons.")],
    out: Annotated[
        Path, typer.Option(parser=path, metavar="PATH", help="Output folder for the page and its CSV file.")
    ] = Path("leaderboard"),
    title: Annotated[str, typer.Option(help="Title of the page.")] = "Leaderboard",
) -> None:
    """Merge comparisons into one web page, a table of tasks and methods that is ready to publish.

    Example: superadam leaderboard comparisons/* --out site/leaderboard
    """
    from superadam_lab.comparison import leaderboard as boards

    board = boards.write(folders, out, title)
    console = Console(soft_wrap=True)
    for i, row in enumerate(board.rows, start=1):
        console.print(f"{i:3}. {row.method}: mean rank {row.rank:.2f} on {len(row.cells)} tasks", highlight=False)
    for note in board.notes:
        console.print(f"Note: {note}.", highlight=False)
    console.print(f"Page: {out / 'index.html'}; numbers: {out / 'leaderboard.csv'}", highlight=False)


def worker(
    storage: Annotated[str, typer.Argument(help="The --storage URL of `superadam compare`.")],
    study: Annotated[str, typer.Argument(help="Name of the comparison: that of its output folder.")],
    task_file: Annotated[Path | None, typer.Option(help="Path of the task file on this machine.")] = None,
    data_dir: Annotated[Path | None, typer.Option(help="Folder with the data on this machine.")] = None,
    trust: Annotated[
        bool, typer.Option("--trust", help="Run the Python files and packages that the comparison names.")
    ] = False,
) -> None:
    """Run a worker for a comparison that was started elsewhere, until all its runs are done.

    A comparison with a task file or with optimizers of other packages runs that code. You are asked before, or give
    --trust.

    Example: superadam worker postgresql://me@head/lab digits-mlp-tiny
    """
    from superadam_lab.comparison.worker import work

    console = Console(soft_wrap=True)
    try:
        made = work(
            storage,
            study,
            task_file=None if task_file is None else str(task_file),
            data_dir=None if data_dir is None else str(data_dir),
            trust=trust,
            say=lambda line: console.print(line, highlight=False),
        )
    except KeyboardInterrupt:
        console.print("Stopped. Another worker will repeat the unfinished run.")
        raise typer.Exit(130) from None
    console.print(f"The comparison has ended. This worker made {made} runs.")
