"""The database of a comparison: two tables, which several processes use at the same time."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any
from urllib.parse import parse_qsl

import sqlalchemy
from sqlalchemy import Column, DateTime, Engine, Integer, String, Table, Text

from superadam_lab.errors import deliberate, modules
from superadam_lab.passwords import hidden, masked, parsed

__all__ = ["comparisons", "connected", "known", "known_to_optuna", "masked", "patiently", "runs", "sound"]

FILE = "sqlite:///"
EXPECTED = "expected sqlite:///PATH or postgresql://USER:PASSWORD@HOST/DATABASE"

schema = sqlalchemy.MetaData()
comparisons = Table(
    "superadam_comparisons",
    schema,
    Column("name", Text, primary_key=True),
    Column("plan", Text, nullable=False),
    Column("environment", Text, nullable=False),
    Column("ended", Text),  # the plan whose runs are all made
)
runs = Table(
    "superadam_runs",
    schema,
    Column("id", Integer, primary_key=True),
    Column("comparison", Text, nullable=False),
    Column("digest", String(64), nullable=False),  # of the job: PostgreSQL has no index of long texts
    Column("job", Text, nullable=False),
    Column("state", String(7), nullable=False),
    Column("deaths", Integer, nullable=False),  # of workers that made it
    Column("worker", Text),  # that makes it, or was the last to do so
    Column("alive", DateTime(timezone=True)),  # when that worker last said so, by the clock of the database
    Column("result", Text),
    sqlalchemy.UniqueConstraint("comparison", "digest"),
)
"""What is not a number or a time is JSON, and is checked when it is read."""


def patiently(connect: Callable[[], Any]) -> Any:
    """Retry: processes that create the tables of a new database at the same time conflict with each other."""
    for seconds in (0.2, 0.5, 1.0, 2.0):
        try:
            return connect()
        except (sqlalchemy.exc.IntegrityError, sqlalchemy.exc.OperationalError, sqlalchemy.exc.ProgrammingError):
            time.sleep(seconds)
    return connect()


@contextmanager
def sound(url: str) -> Iterator[None]:
    """Turn errors of the database, or of its content, into clear messages."""
    try:
        yield
    except Exception as error:
        if deliberate(error) or not any(name.startswith("sqlalchemy") for name in modules(error)):
            raise
        what, local = str(getattr(error, "orig", None) or error), url.startswith(FILE)
        if not local:  # it may have a password, and so may what is said of it
            what = "…" if (known := parsed(url)) is None else hidden(what, known)
        said = f"The database {masked(url)} cannot be used: {type(error).__name__}: {what}"
        raise ValueError(said) from (error if local else None)


def connected(storage: str) -> Engine:
    """The database, with the two tables.

    Args:
        storage: sqlite:///PATH, whose path is used unchanged, or postgresql://…
    """
    url = located(storage)
    local = url.get_backend_name() == "sqlite"
    try:
        if local:
            engine = sqlalchemy.create_engine(url, connect_args={"timeout": 60})
            # A transaction that reads, then writes, must not read what another one is about to change.
            sqlalchemy.event.listen(engine, "connect", _own_transactions)
            sqlalchemy.event.listen(engine, "begin", lambda c: c.exec_driver_sql("BEGIN IMMEDIATE"))
        else:
            engine = sqlalchemy.create_engine(url, pool_pre_ping=True)
        patiently(lambda: schema.create_all(engine))
    except sqlalchemy.exc.ArgumentError:
        raise _unknown(storage) from None
    except sqlalchemy.exc.SQLAlchemyError as error:
        said = hidden(str(getattr(error, "orig", None) or error), url)
        raise ValueError(f"Cannot open {masked(storage)}: {said}") from None
    except ImportError as missing:
        raise ValueError(f"{masked(storage)} needs {missing.name}: pip install 'superadam-lab[postgres]'") from missing
    return engine


def known(engine: Engine) -> list[str]:
    """The names of the comparisons in the database."""
    with engine.begin() as connection:
        found = connection.scalars(sqlalchemy.select(comparisons.c.name).order_by(comparisons.c.name))
        return list(map(str, found))  # a damaged file may hold others


def known_to_optuna(engine: Engine, name: str) -> bool:
    """Whether there is an older comparison of that name, stored as an Optuna study."""
    if not sqlalchemy.inspect(engine).has_table("studies"):
        return False
    names = sqlalchemy.column("study_name", Text)
    found = sqlalchemy.select(names).select_from(sqlalchemy.table("studies")).where(names == name)
    with engine.begin() as connection:
        return connection.scalar(found) is not None


def located(storage: str) -> Any:
    """SQLAlchemy's URL.

    >>> located("sqlite:///100%/a?b/c.db").database, located("postgresql://me:%40@host/lab").password
    ('100%/a?b/c.db', '@')
    """
    if storage.startswith(FILE):
        path, query = storage.removeprefix(FILE), ""
        if "=" in path.rpartition("?")[2] and "/" not in path.rpartition("?")[2]:  # of SQLite, not of a folder's name
            path, _, query = path.rpartition("?")
        if path in ("", ":memory:"):
            raise ValueError("A database in memory cannot be shared with workers: give sqlite:///PATH")
        return sqlalchemy.URL.create("sqlite", database=path, query=dict(parse_qsl(query)))
    url = parsed(storage)
    if url is None:
        raise _unknown(storage)
    if url.drivername == "postgresql":
        url = url.set(drivername="postgresql+psycopg")  # the driver of superadam-lab[postgres]
    return url


def _unknown(storage: str) -> ValueError:
    shown = masked(storage) if "://" in storage else "…"
    encoded = "; in user and password, write @ as %40, / as %2F, : as %3A, ? as %3F" if "@" in storage else ""
    return ValueError(f"Unknown storage {shown} ({EXPECTED}{encoded})")


def _own_transactions(connection: Any, record: Any) -> None:
    connection.isolation_level = None
