"""Options that several commands share."""

from __future__ import annotations

from typing import Annotated

import typer

__all__ = ["Sizes"]

Sizes = Annotated[
    list[str] | None,
    typer.Option(metavar="KEY=VALUE", help="Replace a size of the scale, such as batch=64. Can be repeated."),
]
