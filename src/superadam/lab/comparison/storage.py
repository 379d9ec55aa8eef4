"""Where a comparison is kept: a data base, which several processes use at once."""

from __future__ import annotations

import re
import time
from collections.abc import Callable
from typing import Any

__all__ = ["connected", "masked", "patiently"]


def masked(text: str) -> str:
    """Without the password of a URL.

    >>> masked("postgresql://me:secret@host/lab"), masked("postgresql://host/lab?password=secret")
    ('postgresql://me:…@host/lab', 'postgresql://host/lab?password=…')
    """
    return re.sub(r"(password=)[^&\s]+", r"\1…", re.sub(r"(://[^:/@\s]*):[^@\s]+@", r"\1:…@", text))


def patiently(connect: Callable[[], Any]) -> Any:
    """Processes that make the tables of a new data base at once get in each other's way: one of them tries again."""
    import sqlalchemy

    for seconds in (0.2, 0.5, 1.0, 2.0):
        try:
            return connect()
        except (sqlalchemy.exc.IntegrityError, sqlalchemy.exc.OperationalError, sqlalchemy.exc.ProgrammingError):
            time.sleep(seconds)
    return connect()


def connected(url: str, **options: Any) -> Any:
    """Optuna's storage there.

    Args:
        url: sqlite:///PATH or postgresql://…
        options: of `RDBStorage`.
    """
    import optuna
    import sqlalchemy

    if url.startswith("postgresql://"):
        url = url.replace("postgresql://", "postgresql+psycopg://", 1)  # the driver of superadam[postgres]
    local = url.startswith("sqlite:")
    options["engine_kwargs"] = {"connect_args": {"timeout": 60}} if local else {"pool_pre_ping": True}
    escaped = url.replace("{", "{{").replace("}", "}}")  # Optuna formats it
    try:
        storage = patiently(lambda: optuna.storages.RDBStorage(escaped, **options))
    except sqlalchemy.exc.OperationalError as error:
        raise ValueError(f"Cannot open {masked(url)}: {masked(str(error.orig))}") from error
    except sqlalchemy.exc.ArgumentError as error:
        raise ValueError(f"Unknown storage {masked(url)} (expected sqlite:///PATH or postgresql://…)") from error
    except ImportError as missing:
        raise ValueError(f"{masked(url)} needs {missing.name}: pip install 'superadam[postgres]'") from missing
    if local:
        # Optuna reads a trial's state, then writes it. SQLite would let two processes read before both write.
        sqlalchemy.event.listen(storage.engine, "connect", _own_transactions)
        sqlalchemy.event.listen(storage.engine, "begin", lambda c: c.exec_driver_sql("BEGIN IMMEDIATE"))
        storage.engine.dispose()
    return storage


def _own_transactions(connection: Any, record: Any) -> None:
    connection.isolation_level = None
