"""Cancel in every state a run can be in: at once, at its next step, or by the sweep; never against an outcome."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Mapping
from typing import Any, LiteralString
from uuid import UUID

import pytest

from agentrun import Client, Context, NotAllowed, Reason, Settings, Status, durable
from agentrun.core.words import Effect
from agentrun.runtime.commands import Commands
from agentrun.runtime.engine import Engine
from agentrun.runtime.operators import Operators
from agentrun.store.database import Database
from agentrun.store.sql import Statement
from agentrun.testing import RecordingPublisher
from agentrun.testing.nodes import Node
from agentrun.testing.rows import KIND, Rows
from tests.writes.conftest import Look


@pytest.fixture(autouse=True)
def executed(kinds: Any) -> list[int]:
    """What was executed of the kind that the rows have."""
    made: list[int] = []

    @durable(KIND)
    async def body(ctx: Context) -> None:
        made.append(1)

    return made


@pytest.mark.parametrize("status", [Status.QUEUED, Status.WAITING])
def test_what_does_not_run_is_cancelled_at_once(
    client: Client, engine: Engine, rows: Rows, executed: list[int], status: Status
) -> None:
    run_id = rows.run(status)
    run = client.cancel(run_id, by="ann")
    assert (run.status, run.reason) == (Status.CANCELLED, Reason.CANCELLED)
    assert engine.run(run_id).outcome == "cancelled"
    assert executed == []
    assert client.events(run_id)[-1].data["by"] == "ann"


def test_a_run_in_its_backoff_is_cancelled_at_once_and_its_wake_finds_nothing(
    client: Client, engine: Engine, rows: Rows, executed: list[int], look: Look
) -> None:
    run_id = rows.queued()
    look("UPDATE agentrun.runs SET due_at = now() + interval '1 hour', requeue_count = 1")
    assert client.cancel(run_id).status is Status.CANCELLED
    assert engine.run(run_id).outcome == "cancelled"
    assert executed == []


@pytest.mark.parametrize("status", [Status.COMPLETED, Status.FAILED])
def test_an_outcome_is_not_cancelled(client: Client, rows: Rows, status: Status) -> None:
    run_id = rows.final(status)
    before = rows.stored(run_id)
    with pytest.raises(NotAllowed, match=str(status)):
        client.cancel(run_id)
    assert rows.stored(run_id) == before


@pytest.mark.parametrize("status", [Status.QUEUED, Status.RUNNING, Status.WAITING])
def test_cancelling_twice_is_cancelling_once(client: Client, rows: Rows, status: Status) -> None:
    run_id = rows.run(status)
    client.cancel(run_id, by="ann")
    before = rows.stored(run_id)
    client.cancel(run_id, by="bob")
    assert rows.stored(run_id) == before


class Restless(Database):
    """Before each look of a cancel, a worker claims the run, or puts it back: whichever lets that look miss it."""

    at_last: Status = Status.QUEUED

    def row(self, statement: Statement, params: Mapping[str, Any] | None = None) -> dict[str, Any] | None:
        where = {"cancel": Status.RUNNING, "ask_cancel": Status.QUEUED, "run_by_id": self.at_last}
        if (status := where.get(statement.name)) is not None:
            with self.connection() as connection:
                connection.execute(_MOVED[status])
        return super().row(statement, params)


_MOVED: dict[Status, LiteralString] = {
    Status.RUNNING: "UPDATE agentrun.runs SET status = 'running', claimed_by = 'w', epoch = epoch + 1, "
    "lease_expires_at = now() + interval '1 hour' WHERE status = 'queued'",
    Status.QUEUED: "UPDATE agentrun.runs SET status = 'queued', claimed_by = NULL, lease_expires_at = NULL "
    "WHERE status = 'running'",
}


@pytest.mark.parametrize("at_last", [Status.QUEUED, Status.RUNNING])
def test_a_run_that_never_keeps_still_is_cancelled_all_the_same(
    settings: Settings, publisher: RecordingPublisher, kinds: Any, rows: Rows, at_last: Status
) -> None:
    run_id = rows.queued()
    with contextlib.closing(Restless(settings.require_database(), name="agentrun test")) as database:
        database.at_last = at_last
        Operators(Commands(settings, database, publisher, kinds)).cancel(run_id, by="ann")
    row = rows.row(run_id)
    assert row["cancel_requested_by"] == "ann"
    assert row["status"] == (Status.CANCELLED if at_last is Status.QUEUED else Status.RUNNING)


@pytest.mark.parametrize("effect", [None, Effect.IDEMPOTENT_WRITE, Effect.NON_IDEMPOTENT_WRITE], ids=str)
def test_a_run_whose_worker_is_dead_is_cancelled_by_the_sweep(
    client: Client, engine: Engine, rows: Rows, sweep: Any, executed: list[int], effect: Effect | None
) -> None:
    """Neither requeued nor dead-lettered, whatever was in flight; that is named."""
    run_id = rows.running() if effect is None else rows.fenced("w", effect)
    rows.expire_lease(run_id)
    assert client.cancel(run_id).status is Status.RUNNING
    assert sweep().cancelled == 1
    run = client.status(run_id)
    assert (run.status, run.reason) == (Status.CANCELLED, Reason.CANCELLED)
    assert run.error is not None
    assert [write["key"] for write in run.error["in_flight"]] == ([] if effect is None else ["w"])
    assert engine.run(run_id).outcome == "cancelled"
    assert executed == []


def test_a_cancelled_runs_write_can_be_resolved_and_the_run_stays_cancelled(
    client: Client, rows: Rows, sweep: Any
) -> None:
    run_id = rows.fenced("w")
    rows.expire_lease(run_id)
    client.cancel(run_id)
    sweep()
    assert client.resolve(run_id, applied=True, result=1).status is Status.CANCELLED
    assert [step.status for step in client.steps(run_id)] == ["completed"]
    with pytest.raises(NotAllowed):
        client.redrive(run_id)


@pytest.mark.processes
def test_with_all_workers_down_a_queued_and_a_dead_run_are_cancelled_and_neither_executes(
    client: Client, start: Callable[..., Node], beat: Callable[..., Node], look: Look, rows: Rows
) -> None:
    queued: UUID = client.enqueue("writes", ["a"])
    dead = rows.running(kind="writes", request='["a"]')
    rows.expire_lease(dead)
    for run_id in (queued, dead):
        client.cancel(run_id)
    start()
    beat()
    for run_id in (queued, dead):
        assert client.wait(run_id, timeout=60).status is Status.CANCELLED
        assert look.effects(run_id) == []
