"""Two sessions on one database: one acts, the other is seen in pg_stat_activity to wait for it, and then it goes on."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any
from uuid import UUID

import psycopg
import pytest
from psycopg import Connection
from psycopg.rows import scalar_row

from agentrun.store.connect import connect, type_of_row
from agentrun.store.database import Database
from agentrun.store.sql import Statement
from agentrun.testing import until
from agentrun.testing.rows import Rows
from agentrun.testing.servers import Servers

Answer = list[type_of_row]


class Session:
    """One connection with a transaction of its own, used from a thread of its own where it may block."""

    def __init__(self, rows: Rows, name: str) -> None:
        self._rows = rows
        self._connection: Connection[type_of_row] = connect(rows.database.url, name=name)
        self._thread = ThreadPoolExecutor(1)

    def does(self, statement: Statement, run_id: UUID, **params: Any) -> Answer:
        """Execute and commit, after the lock that comes first where the statement has one."""
        said = self._rows.params(run_id, **params)
        with self._connection.transaction():
            if statement.first is not None:
                self._connection.execute(statement.first.sql, said)
            return self._connection.execute(statement.sql, said).fetchall()

    @contextlib.contextmanager
    def holding(self, statement: Statement, run_id: UUID, **params: Any) -> Iterator[Answer]:
        """Execute, and commit only at the end of the block; `psycopg.Rollback` raised in it rolls back."""
        with self._connection.transaction():
            yield self.does(statement, run_id, **params)

    def tries(self, statement: Statement, run_id: UUID, **params: Any) -> Future[Answer]:
        """Execute in the background; returns once it is blocked by somebody's lock."""
        answer = self._thread.submit(self.does, statement, run_id, **params)
        until(lambda: answer.done() or self.blocked, 10)
        assert not answer.done(), f"{statement.name} did not wait for anybody: {answer.result()}"
        return answer

    @property
    def blocked(self) -> bool:
        pid = self._connection.info.backend_pid
        with psycopg.connect(self._rows.database.url, row_factory=scalar_row) as connection:
            asked = "SELECT wait_event_type = 'Lock' FROM pg_stat_activity WHERE pid = %s"
            return bool(connection.execute(asked, [pid]).fetchone())

    def close(self) -> None:
        self._thread.shutdown()
        self._connection.close()


def somebody_is_blocked(rows: Rows) -> bool:
    asked = "SELECT 1 FROM pg_stat_activity WHERE wait_event_type = 'Lock' AND datname = current_database()"
    with psycopg.connect(rows.database.url) as connection:
        return connection.execute(asked).fetchone() is not None


@pytest.fixture(scope="module")
def rows(shared_servers: Servers) -> Iterator[Rows]:
    url = shared_servers.create_database()
    with contextlib.closing(Database(url, name="agentrun test")) as database:
        yield Rows(database)
    shared_servers.drop_database(url)


@pytest.fixture
def first(rows: Rows) -> Iterator[Session]:
    with contextlib.closing(Session(rows, "first")) as session:
        yield session


@pytest.fixture
def second(rows: Rows) -> Iterator[Session]:
    with contextlib.closing(Session(rows, "second")) as session:
        yield session
