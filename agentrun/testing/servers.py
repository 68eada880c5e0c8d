"""The servers of a test session: given by AGENTRUN_TEST_* variables, or embedded ones. A database of its own per test.

A given server is a guest house: databases are created beside the given one and dropped again. Its Redis database is
flushed before every test; with pytest-xdist each process has the next one, hence the one of its own.
"""

from __future__ import annotations

import contextlib
import os
import uuid
from collections.abc import Generator
from urllib.parse import urlsplit, urlunsplit

import psycopg
from psycopg import sql

from agentrun.embedded import Embedded
from agentrun.store.connect import plain
from agentrun.store.schema import migrate

DATABASE_VARIABLE = "AGENTRUN_TEST_DATABASE_URL"
BROKER_VARIABLE = "AGENTRUN_TEST_BROKER_URL"


class Servers:
    """PostgreSQL with a migrated template database, and Redis. `embedded` is there where they are ours to break."""

    def __init__(self, database_url: str, broker_url: str, embedded: Embedded | None) -> None:
        self.database_url, self.broker_url, self.embedded = plain(database_url), broker_url, embedded
        self._prefix = f"agentrun_test_{uuid.uuid4().hex[:10]}"
        self._made = 0
        self._template: str | None = None
        self._connection: psycopg.Connection | None = None

    def create_database(self, *, migrated: bool = True) -> str:
        """The URL of a fresh database; a clone of the template, or with `migrated=False` an empty one."""
        name = f"{self._prefix}_{self._made}"
        self._made += 1
        self._copy(self._migrated_template() if migrated else "template1", name)
        return self._url(name)

    def drop_database(self, url: str) -> None:
        """Drop it, whoever is still connected."""
        self._execute("DROP DATABASE IF EXISTS {} WITH (FORCE)", urlsplit(url).path.lstrip("/"))

    def close(self) -> None:
        """Drop the template; the tests' databases are dropped by who made them."""
        if self._template is not None:
            self.drop_database(self._url(self._template))
            self._template = None
        if self._connection is not None:
            self._connection.close()
            self._connection = None

    def _migrated_template(self) -> str:
        if self._template is None:
            self._template = f"{self._prefix}_template"
            self._copy("template1", self._template)
            migrate(self._url(self._template))
        return self._template

    def _copy(self, template: str, name: str) -> None:
        # Copying files takes a tenth of the time, where nothing is flushed: not by embedded servers.
        strategy = "FILE_COPY" if self.embedded is not None else "WAL_LOG"
        self._execute(f"CREATE DATABASE {{}} TEMPLATE {{}} STRATEGY {strategy}", name, template)

    def _execute(self, statement: str, *names: str) -> None:
        query = sql.SQL(statement).format(*map(sql.Identifier, names))  # pyright: ignore[reportArgumentType]
        try:
            self._connected().execute(query)
        except psycopg.OperationalError:
            if self._connection is None or not self._connection.closed:
                raise
            # A test has restarted the server since the last statement, which this one never reached.
            self._connected().execute(query)

    def _connected(self) -> psycopg.Connection:
        """One connection for all: to make one costs as much as dropping a database does."""
        if self._connection is None or self._connection.closed:
            self._connection = psycopg.connect(self.database_url, autocommit=True)
        return self._connection

    def _url(self, name: str) -> str:
        return urlunsplit(urlsplit(self.database_url)._replace(path=f"/{name}"))


@contextlib.contextmanager
def given_or_embedded() -> Generator[Servers]:
    """The servers that the environment names; embedded ones for what it does not."""
    database_url, broker_url = os.environ.get(DATABASE_VARIABLE), _own(os.environ.get(BROKER_VARIABLE))
    if database_url and broker_url:
        with contextlib.closing(Servers(database_url, broker_url, None)) as servers:
            yield servers
        return
    with Embedded.temporary() as own:
        embedded = own if not (database_url or broker_url) else None
        servers = Servers(database_url or own.database_url, broker_url or own.broker_url, embedded)
        with contextlib.closing(servers):
            yield servers


def _own(broker_url: str | None) -> str | None:
    """The Redis database of this process of pytest-xdist: the given one for the first, and so on."""
    number = int(os.environ.get("PYTEST_XDIST_WORKER", "gw0").removeprefix("gw"))
    if not broker_url or not number:
        return broker_url
    parts = urlsplit(broker_url)
    if not parts.scheme.startswith(("redis", "rediss", "valkey")):
        raise ValueError(f"{BROKER_VARIABLE} is shared by the processes of pytest-xdist, which only Redis is made for")
    return urlunsplit(parts._replace(path=f"/{int(parts.path.strip('/') or 0) + number}"))


@contextlib.contextmanager
def embedded_only() -> Generator[Servers]:
    """Servers that a test may kill and restart."""
    with Embedded.temporary() as own, contextlib.closing(Servers(own.database_url, own.broker_url, own)) as servers:
        yield servers
