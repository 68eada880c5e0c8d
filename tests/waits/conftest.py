"""Runs that wait, inside this process: a real database, no broker; answers come from the client."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any
from uuid import UUID

import pytest

from agentrun import Client, Run, Status
from agentrun.runtime.engine import Engine
from agentrun.store.database import Database
from agentrun.testing.rows import Rows

Go = Callable[[UUID], Run]
Parked = Callable[..., UUID]


class Travel:
    """Moves what is stored about time, in place of waiting."""

    def __init__(self, database: Database) -> None:
        self._database = database

    def __call__(self, statement: str, run_id: UUID) -> None:
        with self._database.connection() as connection:
            connection.execute(statement, [run_id])  # pyright: ignore[reportArgumentType]

    def past_due(self, run_id: UUID) -> None:
        """The time of the run's open waits has come, and the run's own with it."""
        self(
            "UPDATE agentrun.waits SET due_at = now() - interval '1 s' WHERE status = 'open' AND run_id = %s"
            " AND due_at IS NOT NULL",
            run_id,
        )
        self("UPDATE agentrun.runs SET due_at = now() - interval '1 s' WHERE status = 'waiting' AND id = %s", run_id)

    def to_reminder(self, run_id: UUID) -> None:
        """The next reminder of the run's open waits is due."""
        self("UPDATE agentrun.waits SET remind_at = now() WHERE remind_at IS NOT NULL AND run_id = %s", run_id)

    def waits(self, run_id: UUID) -> list[dict[str, Any]]:
        """The run's waits as they are stored."""
        with self._database.connection() as connection:
            found = connection.execute("SELECT * FROM agentrun.waits WHERE run_id = %s ORDER BY step_key", [run_id])
            return found.fetchall()


@pytest.fixture
def travel(database: Database) -> Travel:
    return Travel(database)


@pytest.fixture
def go(client: Client, engine: Engine, rows: Rows) -> Go:
    """Runs segment after segment until the run is final or waits."""

    def until_it_rests(run_id: UUID) -> Run:
        for _ in range(30):
            run = client.status(run_id)
            if run.status is not Status.QUEUED:
                return run
            rows.make_due(run_id)
            engine.run(run_id)
        raise AssertionError(f"neither final nor waiting after 30 segments: {client.status(run_id)}")

    return until_it_rests


@pytest.fixture
def parked(client: Client, go: Go) -> Parked:
    """Enqueues a run and executes it until it waits."""

    def enqueue(kind: str, request: Any = None, **wishes: Any) -> UUID:
        run_id = client.enqueue(kind, request, **wishes)
        run = go(run_id)
        assert run.status is Status.WAITING, run
        return run_id

    return enqueue
