"""Cancel in every state a run can be in: at once, at its next step, or by the sweep; never against an outcome."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any
from uuid import UUID

import pytest

from agentrun import Client, Context, NotAllowed, Reason, Status, durable
from agentrun.core.words import Effect
from agentrun.runtime.engine import Engine
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
