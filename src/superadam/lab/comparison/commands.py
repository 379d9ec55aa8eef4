"""`superadam compare` and `superadam worker`."""

from __future__ import annotations

import inspect
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console

from superadam.lab.comparison.options import from_command_line, parameters

__all__ = ["register"]


def register(app: typer.Typer) -> None:
    """Add the commands."""
    for command in (compare, report, worker):
        app.command()(command)


def compare(**given: Any) -> None:
    """Which optimizer for these tasks, and is the difference real?

    Every method is tuned with the same trials, and its best is repeated on other seeds, at equal gradient evaluations.
    The same command goes on with what was stopped; with more seeds, methods or tasks, it extends what is there.

    Example: superadam compare digits-mlp digits-cnn --scale tiny --methods "super_adam tau=1" --methods storm
    """
    from superadam.lab.comparison import engine, live, planning

    console = Console(soft_wrap=True)
    options = from_command_line(given)
    plan = planning.plan_of(options)
    folder = engine.place_of(plan, options.out)
    budget = ", ".join(f"{task} {n}" for task, n in plan.budget_evals.items())
    console.print(
        f"{len(plan.methods)} methods, {plan.trials} trials and {len(plan.report_seeds)} seeds each, "
        f"{engine.plan_size(plan)} runs into {folder}; gradient evaluations of a run: {budget}",
        highlight=False,
    )
    try:
        with live.Shown(console) as shown:
            results = engine.carry_out(plan, folder, options.storage, options.jobs, shown)
    except KeyboardInterrupt:
        console.print(f"Stopped. The same command goes on with {folder}, and no run that is done is made again.")
        raise typer.Exit(130) from None
    console.print(engine.report(results, folder), highlight=False)
    console.print(f"Report: {folder / 'report.html'}; the numbers: {folder / engine.RESULTS}", highlight=False)


compare.__signature__ = inspect.Signature(parameters())  # type: ignore[attr-defined]


def report(
    folder: Annotated[Path, typer.Argument(help="Of a comparison.")],
    first_seed: Annotated[int, typer.Option(min=0, help="Of the report; without those before it.")] = 0,
    out: Annotated[Path | None, typer.Option(help="Where to. Default: the folder; of some seeds, one in it.")] = None,
) -> None:
    """Write the report of a comparison anew: of one that was stopped, or on the seeds alone that were added to it.

    Example: superadam report comparisons/digits-mlp-tiny --first-seed 5
    """
    from superadam.lab.comparison import engine
    from superadam.lab.comparison.records import Results

    console = Console(soft_wrap=True)
    found = Results.read(folder / engine.RESULTS)
    seeds = [seed for seed in found.plan.report_seeds if seed >= first_seed]
    if not seeds:
        raise ValueError(f"There is no seed from {first_seed} on, but {found.plan.report_seeds}")
    all_ = len(seeds) == len(found.plan.report_seeds)
    out = out or (folder if all_ else folder / f"seeds-from-{first_seed}")
    out.mkdir(parents=True, exist_ok=True)
    console.print(engine.report(found.only(seeds=seeds), out, folder / engine.RESULTS), highlight=False)
    console.print(f"Report: {out / 'report.html'}", highlight=False)


def worker(
    storage: Annotated[str, typer.Argument(help="What `superadam compare` was given by --storage.")],
    study: Annotated[str, typer.Argument(help="The name of its folder.")],
    task_file: Annotated[Path | None, typer.Option(help="Where the task file is on this machine.")] = None,
    data_dir: Annotated[Path | None, typer.Option(help="Where the data are on this machine.")] = None,
) -> None:
    """Make runs of a comparison that was begun elsewhere, until it has ended.

    Example: superadam worker postgresql://me@head/lab digits-mlp-tiny
    """
    from superadam.lab.comparison.worker import work

    console = Console(soft_wrap=True)
    try:
        made = work(
            storage,
            study,
            task_file=None if task_file is None else str(task_file),
            data_dir=None if data_dir is None else str(data_dir),
            say=lambda line: console.print(line, highlight=False),
        )
    except KeyboardInterrupt:
        console.print("Stopped. The run that was being made has gone back.")
        raise typer.Exit(130) from None
    console.print(f"The comparison has ended; {made} runs were made here.")
