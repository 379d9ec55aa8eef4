"""Keeps passwords of databases out of everything that is shown or written."""

from __future__ import annotations

import re
from typing import Any
from urllib.parse import quote, quote_plus

__all__ = ["hidden", "masked", "parsed"]

LOGIN = r"(?:(?P<user>[^:/]*)(?P<password>:[^@]*)?@)?"  # as SQLAlchemy reads it
URL = re.compile(rf"(?s)(?P<scheme>[\w+]+://){LOGIN}(?P<place>[^?]*)(?P<query>\?.*)?")
SCHEME = re.compile(r"[\w+.-]+://")
WORDS = re.compile(r"(?is)(passw\w*\s*[=:]\s*).*")
LOOSE = re.compile(r"(?s)[\w+.-]+:/.*@")  # a slash is missing
SECRET = re.compile(r"(?i)pass|secret|token|key")


def parsed(text: str) -> Any | None:
    """SQLAlchemy's URL; None if the text is not a URL, or if part of a password may have been parsed as the host."""
    import sqlalchemy

    found = URL.fullmatch(text)
    if found is None or "@" in found["place"] or "?" in f"{found['user']}{found['password']}":
        return None
    try:
        return sqlalchemy.make_url(text)
    except (sqlalchemy.exc.ArgumentError, ValueError):  # a port that is no number, which may be part of a password
        return None


def masked(text: str) -> str:
    """A URL, or an argument that ends in one, without its password, and without the values of its query.

    If a URL cannot be parsed reliably, nothing of it is shown, because any part could be the password.

    >>> masked("postgresql://me@corp:secret@host/lab"), masked("--storage=postgresql://host/lab?password=secret")
    ('postgresql://me@corp:…@host/lab', '--storage=postgresql://host/lab?password=…')
    >>> masked("postgresql://me:se@cret@host/lab"), masked("sqlite:////a:b@c/d.db")
    ('postgresql://…', 'sqlite:////a:b@c/d.db')
    """
    start = SCHEME.search(text)
    if start is None:
        return WORDS.sub(r"\1…", LOOSE.sub("…@", text))
    before, url = text[: start.start()], text[start.start() :]
    if url.startswith("sqlite:///"):
        return WORDS.sub(r"\1…", text)
    if parsed(url) is None:
        return f"{before}{start[0]}…"
    found = URL.fullmatch(url)
    assert found is not None
    user = "" if found["user"] is None else f"{found['user']}{':…' if found['password'] else ''}@"
    query = re.sub("=[^&]*", "=…", found["query"] or "")
    place = WORDS.sub(r"\1…", found["place"])
    return f"{before}{found['scheme']}{user}{place}{query}"


def hidden(text: str, url: Any) -> str:
    """A message about a URL, without its password."""
    secrets = {url.password or "", *(v for k, vs in url.normalized_query.items() if SECRET.search(k) for v in vs)}
    forms = {form for s in secrets for form in (s, quote(s), quote(s, safe=""), quote_plus(s), repr(s)[1:-1])}
    for form in sorted(forms - {""}, key=len, reverse=True):
        text = text.replace(form, "…")
    return text
