"""Where a comparison is kept: a data base, which several processes use at once."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any
from urllib.parse import parse_qsl

from superadam.lab.errors import deliberate, modules
from superadam.lab.passwords import hidden, masked, parsed

__all__ = ["connected", "masked", "patiently", "sound"]

DRIVERS = ("optuna.storages", "optuna.study", "sqlalchemy")
FILE = "sqlite:///"
EXPECTED = "expected sqlite:///PATH or postgresql://USER:PASSWORD@HOST/DATABASE"


def patiently(connect: Callable[[], Any]) -> Any:
    """Processes that make the tables of a new data base at once get in each other's way: one of them tries again."""
    import sqlalchemy

    for seconds in (0.2, 0.5, 1.0, 2.0):
        try:
            return connect()
        except (sqlalchemy.exc.IntegrityError, sqlalchemy.exc.OperationalError, sqlalchemy.exc.ProgrammingError):
            time.sleep(seconds)
    return connect()


@contextmanager
def sound(url: str) -> Iterator[None]:
    """Whatever is wrong with the data base, or with what is in it, is said as such."""
    try:
        yield
    except Exception as error:
        if deliberate(error) or not any(name.startswith(DRIVERS) for name in modules(error)):
            raise
        what, local = str(getattr(error, "orig", None) or error), url.startswith(FILE)
        if not local:  # it may have a password, and so may what is said of it
            what = "…" if (known := parsed(url)) is None else hidden(what, known)
        said = f"The data base {masked(url)} cannot be used: {type(error).__name__}: {what}"
        raise ValueError(said) from (error if local else None)


def connected(storage: str, **options: Any) -> Any:
    """Optuna's storage there.

    Args:
        storage: sqlite:///PATH, whose path is taken as it is, or postgresql://…
        options: of `RDBStorage`.
    """
    import optuna
    import sqlalchemy

    url = located(storage)
    local = url.get_backend_name() == "sqlite"
    options["engine_kwargs"] = {"connect_args": {"timeout": 60}} if local else {"pool_pre_ping": True}
    text = url.render_as_string(hide_password=False)
    escaped = text.replace("{", "{{").replace("}", "}}")  # Optuna formats it
    try:
        found = patiently(lambda: optuna.storages.RDBStorage(escaped, **options))
    except sqlalchemy.exc.ArgumentError:
        raise _unknown(storage) from None
    except sqlalchemy.exc.SQLAlchemyError as error:
        said = hidden(str(getattr(error, "orig", None) or error), url)
        raise ValueError(f"Cannot open {masked(storage)}: {said}") from None
    except ImportError as missing:
        name = getattr(missing.__cause__, "name", None) or missing.name
        raise ValueError(f"{masked(storage)} needs {name}: pip install 'superadam[postgres]'") from missing
    if local:
        # Optuna reads a trial's state, then writes it. SQLite would let two processes read before both write.
        sqlalchemy.event.listen(found.engine, "connect", _own_transactions)
        sqlalchemy.event.listen(found.engine, "begin", lambda c: c.exec_driver_sql("BEGIN IMMEDIATE"))
        found.engine.dispose()
    return found


def located(storage: str) -> Any:
    """SQLAlchemy's URL.

    >>> located("sqlite:///100%/a?b/c.db").database, located("postgresql://me:%40@host/lab").password
    ('100%/a?b/c.db', '@')
    """
    import sqlalchemy

    if storage.startswith(FILE):
        path, query = storage.removeprefix(FILE), ""
        if "=" in path.rpartition("?")[2] and "/" not in path.rpartition("?")[2]:  # of SQLite, not of a folder's name
            path, _, query = path.rpartition("?")
        if path in ("", ":memory:"):
            raise ValueError("A data base in memory cannot be shared with workers: give sqlite:///PATH")
        return sqlalchemy.URL.create("sqlite", database=path, query=dict(parse_qsl(query)))
    url = parsed(storage)
    if url is None:
        raise _unknown(storage)
    if url.drivername == "postgresql":
        url = url.set(drivername="postgresql+psycopg")  # the driver of superadam[postgres]
    return url


def _unknown(storage: str) -> ValueError:
    shown = masked(storage) if "://" in storage else "…"
    encoded = "; in user and password, write @ as %40, / as %2F, : as %3A, ? as %3F" if "@" in storage else ""
    return ValueError(f"Unknown storage {shown} ({EXPECTED}{encoded})")


def _own_transactions(connection: Any, record: Any) -> None:
    connection.isolation_level = None
