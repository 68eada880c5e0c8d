"""Imported by a worker, this holds runs at a commit: right before it is sent, or after it and before anybody hears.

The table `hold` says which run stands still at which of its commits, counted from its claim; `held` says that it does.
Then the test kills the worker. Nothing of agentrun knows about it.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import re
import threading
from collections import Counter
from collections.abc import Generator
from typing import Any
from uuid import UUID

import psycopg

from agentrun.runtime.current import CURRENT
from agentrun.store.batches import Write
from agentrun.store.database import Database
from agentrun.store.writer import Writer

TABLES = """
CREATE TABLE hold (run_id uuid PRIMARY KEY, at int, moment text);
CREATE TABLE held (run_id uuid PRIMARY KEY);
"""
_CHANGES = re.compile(r"\b(INSERT INTO|UPDATE agentrun|DELETE FROM)")


def _sql(statement: str, params: Any) -> list[Any]:
    with psycopg.connect(os.environ["AGENTRUN_DATABASE_URL"], autocommit=True) as connection:
        cursor = connection.execute(statement, params)
        return cursor.fetchall() if cursor.description else []


class _Commits:
    """The commits of each run in this process, numbered as they are reached."""

    def __init__(self) -> None:
        self._reached: Counter[UUID] = Counter()
        self._points: dict[UUID, tuple[int, str]] = {}

    def next_of(self, run_id: UUID) -> int:
        self._reached[run_id] += 1
        return self._reached[run_id]

    def held(self, run_id: UUID, number: int, moment: str) -> bool:
        """Whether the run stands still here."""
        if run_id not in self._points:
            rows = _sql("SELECT at, moment FROM hold WHERE run_id = %s", (run_id,))
            self._points[run_id] = rows[0] if rows else (0, "")
        if self._points[run_id] != (number, moment):
            return False
        _sql("INSERT INTO held VALUES (%s) ON CONFLICT DO NOTHING", (run_id,))
        return True


_commits = _Commits()
_write, _transaction = Writer.write, Database.transaction


async def _holding_write(self: Writer, write: Write) -> Any:
    if not _CHANGES.search(write.statement.sql):
        return await _write(self, write)
    number = _commits.next_of(write.run_id)
    if _commits.held(write.run_id, number, "before"):
        await asyncio.Event().wait()
    # A claim that is held does not begin its body meanwhile.
    write.seen = None
    rows = await _write(self, write)
    if _commits.held(write.run_id, number, "after"):
        await asyncio.Event().wait()
    return rows


@contextlib.contextmanager
def _holding_transaction(self: Database) -> Generator[Any]:
    step = CURRENT.get()
    with _transaction(self) as connection:
        yield connection
        if step is not None:
            number = _commits.next_of(step.run_id)
            if _commits.held(step.run_id, number, "before"):
                threading.Event().wait()
    if step is not None and _commits.held(step.run_id, number, "after"):
        threading.Event().wait()


if __name__ in os.environ.get("AGENTRUN_IMPORTS", ""):  # in the worker, not in the test that reads TABLES
    Writer.write = _holding_write
    Database.transaction = _holding_transaction
