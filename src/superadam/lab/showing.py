"""What the commands have in common."""

from __future__ import annotations

from typing import Annotated

import typer

__all__ = ["Sizes"]

Sizes = Annotated[
    list[str] | None,
    typer.Option(metavar="KEY=VALUE", help="In place of a size of the scale, such as batch=64; can be repeated."),
]
