"""The synchronous side of the database: a small pool per process, reads, and writes outside segments."""

from __future__ import annotations

import os
import select
import threading
from collections.abc import Generator, Mapping, Sequence
from contextlib import ExitStack, closing, contextmanager
from typing import Any

import psycopg
from psycopg import Connection, RawCursor
from psycopg.rows import dict_row
from psycopg_pool import ConnectionPool, PoolTimeout

from agentrun.core.errors import ConfigurationError
from agentrun.store.connect import adapt, connect, conninfo, keeps_session, plain, type_of_row
from agentrun.store.outages import be_quiet
from agentrun.store.sql import Statement
from agentrun.store.troubles import explaining

CONNECTION_SECONDS = 10.0
"""How long a call waits for a connection, all in all."""

RECONNECT_SECONDS = 10.0
"""How long the pool itself goes on trying; with less, a short outage would cost its waiters their whole timeout."""


class Database:
    """One database, safe to use from any thread and after a fork (every process opens a pool of its own)."""

    def __init__(
        self, url: str, *, name: str = "agentrun", max_connections: int = 8, direct_url: str | None = None
    ) -> None:
        """`direct_url` leads to the server itself where `url` leads to a pooler. Raises ConfigurationError for a URL of
        another make; connects to nothing yet."""
        plain(url)
        if direct_url is not None:
            plain(direct_url, setting="AGENTRUN_DIRECT_DATABASE_URL")
        self.url, self._direct_url, self._name, self._max = url, direct_url, name, max_connections
        self._pools: dict[int, ConnectionPool[Connection[type_of_row]]] = {}
        self._closed_in = set[int]()
        self._lock = threading.Lock()

    def rows(self, statement: Statement, params: Mapping[str, Any] | None = None) -> list[type_of_row]:
        """The rows of one statement, committed on return.

        A connection that broke before it was used is replaced once; every statement here is guarded or keyed, so that
        sending it twice does no harm. Raises SchemaMismatch or ConfigurationError where another schema, missing rights
        or an unreachable server is the reason; that after CONNECTION_SECONDS.
        """
        with explaining():
            try:
                return self._once(statement, params or {})
            except (psycopg.OperationalError, psycopg.InterfaceError):
                return self._once(statement, params or {})

    def _once(self, statement: Statement, params: Mapping[str, Any]) -> list[type_of_row]:
        with self.connection() as connection:
            if statement.first is not None:
                with connection.pipeline():
                    connection.execute(statement.first.sql, params)
                    return connection.execute(statement.sql, params).fetchall()
            # Prepared, it would have one plan for all values after five times.
            prepare = False if statement.by_values else None
            return connection.execute(statement.sql, params, prepare=prepare).fetchall()

    def together(self, *asked: tuple[Statement, Mapping[str, Any]]) -> list[list[type_of_row]]:
        """The rows of each of several statements, sent at once and committed together.

        Sent again only where PostgreSQL has undone them to end a deadlock. Raises SchemaMismatch and
        ConfigurationError as `rows`; where the connection broke, nobody knows whether they were committed.
        """
        while True:
            try:
                with explaining():
                    return self._together(asked)
            except psycopg.errors.DeadlockDetected:
                continue

    def _together(self, asked: Sequence[tuple[Statement, Mapping[str, Any]]]) -> list[list[type_of_row]]:
        with self.connection() as connection:
            # In autocommit, everything between two syncs is one transaction: no BEGIN and no COMMIT travel.
            with connection.pipeline():
                cursors = [_sent(connection, statement, params) for statement, params in asked]
            return [cursor.fetchall() for cursor in cursors]

    def row(self, statement: Statement, params: Mapping[str, Any] | None = None) -> type_of_row | None:
        """The first row, or None."""
        rows = self.rows(statement, params)
        return rows[0] if rows else None

    @contextmanager
    def connection(self) -> Generator[Connection[type_of_row]]:
        """A pooled connection in autocommit.

        Raises ConfigurationError where there is none within CONNECTION_SECONDS. What breaks later is psycopg's to tell.
        """
        with ExitStack() as held:
            if os.getpid() in self._closed_in:
                # A call that was under way: another pool would be left to nobody.
                yield held.enter_context(closing(connect(self.url, name=self._name)))
                return
            try:
                connection = held.enter_context(self._pool().connection(timeout=CONNECTION_SECONDS))
            except PoolTimeout:
                raise ConfigurationError(
                    "the database of AGENTRUN_DATABASE_URL cannot be reached: no connection within "
                    f"{CONNECTION_SECONDS:g} seconds; see whether the server is up and the URL is right, and whether "
                    f"this process asks for more than {self._max} at once (AGENTRUN_MAX_CONNECTIONS)"
                ) from None
            yield connection

    @contextmanager
    def transaction(self) -> Generator[Connection[type_of_row]]:
        """A pooled connection inside one transaction. Raises as `connection`."""
        with self.connection() as connection, connection.transaction():
            yield connection

    @property
    def pooled(self) -> bool:
        """Whether a pooler is in between, so that each transaction may have another session of the server."""
        with self.connection() as connection:
            return not keeps_session(connection)

    def dedicated(self, name: str) -> Connection[type_of_row]:
        """A connection of the caller's own, outside the pool (heartbeat, notifications); past a pooler, if possible."""
        return connect(self.own_url, name=name)

    @property
    def own_url(self) -> str:
        """Where `dedicated` connects to."""
        return self._direct_url or self.url

    def close(self) -> None:
        """Close this process's pool. Calls under way go on to their end, each with a connection of its own."""
        self._closed_in.add(os.getpid())
        pool = self._pools.pop(os.getpid(), None)
        if pool is not None:
            pool.close()

    def _pool(self) -> ConnectionPool[Connection[type_of_row]]:
        pool = self._pools.get(os.getpid())
        if pool is None:
            with self._lock:
                pool = self._pools.get(os.getpid()) or self._open()
        return pool

    def _open(self) -> ConnectionPool[Connection[type_of_row]]:
        self._probe()
        be_quiet()
        pool = ConnectionPool[Connection[type_of_row]](
            conninfo(self.url, name=self._name),
            kwargs={"autocommit": True, "row_factory": dict_row},
            configure=adapt,
            check=_check,
            min_size=1,
            max_size=self._max,
            reconnect_timeout=RECONNECT_SECONDS,
            open=True,
            name=self._name,
        )
        self._pools[os.getpid()] = pool
        return pool

    def _probe(self) -> None:
        try:
            connect(self.url, name=self._name).close()
        except psycopg.OperationalError as error:
            raise ConfigurationError(
                f"the database of AGENTRUN_DATABASE_URL cannot be reached: {str(error).splitlines()[0]}"
            ) from None


def _sent(
    connection: Connection[type_of_row], statement: Statement, params: Mapping[str, Any]
) -> RawCursor[type_of_row]:
    sql, names = statement.numbered
    return RawCursor(connection, row_factory=connection.row_factory).execute(sql, [params[name] for name in names])


def _check(connection: Connection[type_of_row]) -> None:
    """Replace what a restarted server left behind, at no cost: its closed socket is seen without asking it."""
    poll = select.poll()
    poll.register(connection.fileno(), select.POLLIN)
    if poll.poll(0):
        connection.execute("")
