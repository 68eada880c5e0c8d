"""Which statements reach PostgreSQL, and how many: counted in its log, by our own names for them.

The embedded server comes without pg_stat_statements; its log tells the same, exactly, and costs nothing when it is off.
"""

from __future__ import annotations

import contextlib
import importlib
import pkgutil
import re
import time
from collections import Counter
from collections.abc import Callable, Generator, Iterable
from functools import lru_cache
from typing import cast

import psycopg
from psycopg import sql

import agentrun.store
from agentrun.embedded import Embedded
from agentrun.store.connect import UNUSUAL
from agentrun.store.sql import Statement

_ENTRY = re.compile(r"^@([^@]*)@ (LOG|DETAIL|ERROR|WARNING|HINT|CONTEXT|STATEMENT|FATAL):\s+(.*)$")
_SENT = re.compile(r"^(?:execute [^:]*|statement): (.*)$", re.DOTALL)


_LOGGED = {"log_statement": "all", "log_line_prefix": "@%a@ ", "log_parameter_max_length": "0"}


Counts = Counter[tuple[str, str]]
"""By the connection's name and the statement's."""


@contextlib.contextmanager
def counted(servers: Embedded) -> Generator[Counts]:
    """Fill the counter, at the end, with what was sent meanwhile."""
    counts = Counts()
    with counting(servers) as since:
        yield counts
        counts.update(since())


@contextlib.contextmanager
def counting(servers: Embedded) -> Generator[Callable[[], Counts]]:
    """Called again and again, it tells what was sent since the last time.

    Only what connections of agentrun send is counted (their names begin with it), and not what each asks when it is
    opened: a pool opens them in the background.
    """
    log = servers.postgres.log
    with _logging(servers.database_url):
        at = log.stat().st_size

        def since() -> Counts:
            nonlocal at
            with log.open("rb") as file:
                file.seek(at)
                said = file.read()
            at += len(said)
            return Counts(_read(said.decode(errors="replace")))

        yield since


def _members(value: object) -> Iterable[object]:
    if isinstance(value, dict):
        return cast("dict[object, object]", value).values()
    return cast("tuple[object, ...]", value) if isinstance(value, tuple) else [value]


def _read(text: str) -> list[tuple[str, str]]:
    entries: list[tuple[str, str]] = []
    for line in text.splitlines():
        entry = _ENTRY.match(line)
        if entry:
            entries.append((entry[1], entry[3] if entry[2] == "LOG" else ""))
        elif entries:
            who, said = entries[-1]
            entries[-1] = (who, f"{said}\n{line}")
    sent = [(who, _SENT.match(said)) for who, said in entries if who.startswith("agentrun")]
    opening = _shape(UNUSUAL)
    return [(who, _name(match[1])) for who, match in sent if match and _shape(match[1]) != opening]


def _name(text: str) -> str:
    plain = _shape(text)
    return _known().get(plain) or plain[:60]


def _shape(text: str) -> str:
    """Without blanks' and parameters' own ways: `$1` and `%(name)s` are the same."""
    return " ".join(re.sub(r"\$\d+|%\(\w+\)s|%s", "?", text).replace("%%", "%").split())


@lru_cache(maxsize=1)
def _known() -> dict[str, str]:
    known: dict[str, str] = {}
    for module in pkgutil.iter_modules(agentrun.store.__path__, "agentrun.store."):
        for value in vars(importlib.import_module(module.name)).values():
            several = _members(value)
            for each in several:
                if isinstance(each, Statement):
                    known |= {_shape(one.sql): one.name for one in (each, each.many) if one is not None}
    return known


@contextlib.contextmanager
def _logging(url: str) -> Generator[None]:
    """Also in sessions that are open: they hear of it before their next statement."""
    with psycopg.connect(url, autocommit=True, application_name="bench") as connection:
        for name, value in _LOGGED.items():
            setting = sql.SQL("ALTER SYSTEM SET {} = {}").format(sql.Identifier(name), sql.Literal(value))
            connection.execute(setting)
        _reloaded(connection, url, "all")
        try:
            yield
        finally:
            for name in _LOGGED:
                connection.execute(sql.SQL("ALTER SYSTEM RESET {}").format(sql.Identifier(name)))
            _reloaded(connection, url, "none")


def _reloaded(connection: psycopg.Connection, url: str, logged: str) -> None:
    connection.execute("SELECT pg_reload_conf()")
    # The server tells its sessions before it takes a new one.
    while True:
        with psycopg.connect(url, autocommit=True, application_name="bench") as other:
            if other.execute("SHOW log_statement").fetchone() == (logged,):
                return
        time.sleep(0.01)
