"""What the commands have in common."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Annotated

import typer
from rich.console import Console

__all__ = ["Sizes", "errors"]

Sizes = Annotated[
    list[str] | None,
    typer.Option(metavar="KEY=VALUE", help="In place of a size of the scale, such as batch=64; can be repeated."),
]


@contextmanager
def errors() -> Iterator[None]:
    """What the user can put right is said without a traceback."""
    try:
        yield
    except (ValueError, TypeError, OSError) as error:
        rank = os.environ.get("RANK", "0")
        where = "" if rank == "0" else f" in process {rank}"
        said = str(error)
        if isinstance(error, OSError) and error.filename and error.strerror:
            said = f"{error.filename}: {error.strerror}"
        Console(stderr=True).print(f"Error{where}: {said}", highlight=False, markup=False, soft_wrap=True)
        raise typer.Exit(2) from error
