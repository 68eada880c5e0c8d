"""Hooks and the pager inside this process: a real database, no broker. What is stored about time is moved, not waited
for."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any
from uuid import UUID

import pytest
from psycopg import sql

from agentrun.core.alarms import Occasion
from agentrun.runtime import hooks
from agentrun.runtime.pager import page
from agentrun.settings import Settings
from agentrun.store.database import Database
from tests.waits.conftest import Travel, go, parked, travel

__all__ = ["Travel", "go", "parked", "travel"]

Data = Mapping[str, Any]
Page = Callable[..., int]

TIMES = {
    "runs": ("id", ("created_at", "started_at", "claimed_at", "finished_at")),
    "moves": ("run_id", ("at",)),
    "steps": ("run_id", ("offered_at", "started_at", "heartbeat_at", "finished_at")),
}


@pytest.fixture(autouse=True)
def no_hooks(monkeypatch: pytest.MonkeyPatch) -> None:
    """As a process that was just started: no hooks are registered, none hangs."""
    monkeypatch.setattr(hooks, "_hooks", {occasion: {} for occasion in Occasion})
    monkeypatch.setattr(hooks, "_hanging", {})


class Past:
    """Moves what is stored into the past."""

    def __init__(self, database: Database) -> None:
        self._database = database

    def run(self, run_id: UUID, *, hours: float = 1) -> None:
        """Everything that happened to the run happened so much earlier; a queued one was due then."""
        for table, (key, columns) in TIMES.items():
            earlier = sql.SQL(", ").join(
                sql.SQL("{0} = {0} - %(hours)s * interval '1 hour'").format(sql.Identifier(column))
                for column in columns
            )
            self._do(
                sql.SQL("UPDATE agentrun.{} SET {} WHERE {} = %(id)s").format(
                    sql.Identifier(table), earlier, sql.Identifier(key)
                ),
                id=run_id,
                hours=hours,
            )
        self._do(
            "UPDATE agentrun.runs SET due_at = due_at - %(hours)s * interval '1 hour'"
            " WHERE id = %(id)s AND status = 'queued'",
            id=run_id,
            hours=hours,
        )

    def minute(self) -> None:
        """The pager's last pass, and every hook's last look at the dead, were a minute earlier."""
        self._do("UPDATE agentrun.sweeps SET swept_at = swept_at - interval '61 s'")

    def notices(self) -> None:
        """What was not told is due again."""
        self._do("UPDATE agentrun.notices SET due_at = now() WHERE ended_at IS NULL")

    def _do(self, statement: Any, **params: Any) -> None:
        with self._database.connection() as connection:
            connection.execute(statement, params)


@pytest.fixture
def past(database: Database) -> Past:
    return Past(database)


@pytest.fixture
def pager(database: Database, settings: Settings) -> Page:
    """One pass of the pager, now; and what it found is told."""

    def once(**options: Any) -> int:
        opened = page(database, settings, **{"by": "sweep:test"} | options)
        hooks.notify(database, settings.namespace, limit=100)
        return opened

    return once


@pytest.fixture
def told(database: Database) -> Callable[[], list[dict[str, Any]]]:
    """The notices as they are stored."""

    def read() -> list[dict[str, Any]]:
        with database.connection() as connection:
            return connection.execute("SELECT * FROM agentrun.notices ORDER BY id").fetchall()

    return read
