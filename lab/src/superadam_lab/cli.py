"""The `superadam` command."""

from __future__ import annotations

from enum import Enum
from pathlib import Path
from typing import Annotated, Any

import torch
import typer
from rich.console import Console
from rich.table import Table as Shown
from typer.core import TyperGroup

from superadam import __version__
from superadam_lab import bench as benchmark
from superadam_lab import commands
from superadam_lab.bench.models import SHAPES
from superadam_lab.errors import ended
from superadam_lab.runs.folders import command, write_json

__all__ = ["app", "main"]


class Commands(TyperGroup):
    """The group of all commands; it handles the errors of all of them in one place."""

    def invoke(self, ctx: Any) -> Any:
        with ended():
            return super().invoke(ctx)


app = typer.Typer(cls=Commands, no_args_is_help=True, add_completion=False, pretty_exceptions_enable=False)
commands.register(app)

Model = Enum("Model", {name: name for name in SHAPES}, type=str)  # type: ignore[misc]


def _version(asked: bool) -> None:
    if asked:
        print("superadam", __version__)
        raise typer.Exit


@app.callback()
def superadam(
    version: Annotated[
        bool, typer.Option("--version", is_eager=True, callback=_version, help="Print the version.")
    ] = False,
) -> None:
    """SUPER-ADAM for PyTorch: train, compare and time optimizers."""


@app.command()
def bench(
    model: Annotated[
        list[Model] | None, typer.Option(help="Model whose parameters are stepped. Can be repeated. Default: resnet18.")
    ] = None,
    json_file: Annotated[Path | None, typer.Option("--json", help="Also write the results to this JSON file.")] = None,
    rounds: Annotated[int, typer.Option(min=1, help="Number of timing rounds.")] = 20,
    threads: Annotated[int | None, typer.Option(min=1, help="Number of threads. Default: torch's.")] = None,
    memory: Annotated[float, typer.Option(help="Memory limit for the candidates of a round, in gigabytes.")] = 10.0,
    compile: Annotated[bool, typer.Option("--compile", help="Also time compile=True, and the compilation.")] = False,
    sizes: Annotated[bool, typer.Option("--sizes", help="Also time 10⁵ to 10⁸ parameters.")] = False,
    end_to_end: Annotated[
        bool, typer.Option("--end-to-end", help="Also measure the optimizer's share of a training step.")
    ] = False,
    matrices: Annotated[
        bool,
        typer.Option("--matrices", help="Time only Muon and other matrix methods, and those of installed packages."),
    ] = False,
) -> None:
    """Time a step of every method, and compare it with torch's AdamW and with the memory bandwidth.

    The tables show medians, with minima in brackets. Run nothing else on the machine during the measurement.

    Example: superadam bench --model gpt2-small --json bench.json
    """
    if json_file is not None and not json_file.parent.is_dir():
        raise ValueError(f"There is no folder {json_file.parent} for --json")  # before minutes of measuring
    if threads is not None:
        torch.set_num_threads(threads)
    asides = Console(stderr=True)
    report = benchmark.report(
        [m.value for m in model or [Model("resnet18")]],
        rounds=rounds,
        memory=memory,
        compile=compile,
        sizes=sizes,
        end_to_end=end_to_end,
        matrices=matrices,
        say=lambda text: asides.print(f"{text} …"),
    )
    report = {"command": command(), **report}
    if json_file is not None:
        write_json(json_file, report)
    for table in benchmark.tables(report).values():
        _print(table)


def _print(table: benchmark.Table) -> None:
    console = Console()
    shown = Shown(*table.head, title=table.title)
    for row in table.rows:
        shown.add_row(*row)
    console.print(shown, width=None if console.is_terminal else 160)  # a file has no width of its own


def main() -> None:
    """The entry point."""
    app()


if __name__ == "__main__":
    main()
