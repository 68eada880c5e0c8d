"""How a segment that holds its run ends it, whatever came in between: a cancel, a process that slept, an exit."""

from __future__ import annotations

import asyncio
import sys
import threading
from typing import Any
from uuid import UUID

import pytest

from agentrun import Client, Context, Reason, Settings, Status, SyncContext, durable
from agentrun.runtime.engine import Engine
from agentrun.runtime.kinds import Registry
from agentrun.store import journal
from agentrun.store.batches import Write
from agentrun.store.database import Database


def run_in_background(engine: Engine, run_id: UUID) -> threading.Thread:
    thread = threading.Thread(target=engine.run, args=(run_id,), daemon=True)
    thread.start()
    return thread


def outdated(database: Database, run_id: UUID, column: str) -> None:
    with database.connection() as connection:
        connection.execute(f"UPDATE agentrun.runs SET {column} = now() - interval '1 s' WHERE id = %s", [run_id])


@pytest.mark.parametrize("ends", ["succeeds", "fails for now", "fails for good", "waits"])
@pytest.mark.settings(lease_seconds=60, heartbeat_seconds=15)
def test_a_late_success_or_failure_cannot_overwrite_a_cancel(client: Client, engine: Engine, ends: str) -> None:
    """The heartbeat is too slow to bring the cancel: the guard of the last statement finds it."""
    asked = threading.Event()

    @durable("late")
    def late(ctx: SyncContext) -> str:
        running.set()
        assert asked.wait(10)
        if ends == "waits":
            ctx.signal("never")
        if ends != "succeeds":
            raise ConnectionError("later") if ends == "fails for now" else ValueError("never")
        return "late"

    running = threading.Event()
    run_id = client.enqueue("late")
    thread = run_in_background(engine, run_id)
    assert running.wait(10)
    client.cancel(run_id, by="test")
    asked.set()
    thread.join(10)
    run = client.status(run_id)
    assert (run.status, run.reason, run.result) == (Status.CANCELLED, Reason.CANCELLED, None)
    assert [event.type for event in client.events(run_id)] == ["enqueued", "claimed", "cancel_requested", "settled"]


def test_a_run_past_its_deadline_is_not_started(client: Client, engine: Engine, database: Database) -> None:
    started: list[int] = []

    @durable("overdue")
    async def overdue(ctx: Context) -> None:
        started.append(1)

    run_id = client.enqueue("overdue", deadline=60)
    outdated(database, run_id, "deadline_at")
    assert engine.run(run_id).outcome == "failed"
    assert started == []
    run = client.status(run_id)
    assert (run.status, run.reason) == (Status.FAILED, Reason.DEADLINE_EXCEEDED)


def test_a_write_does_not_start_where_the_process_slept_since_its_fence(
    client: Client, engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The fence stands, but by now somebody may have taken the run over and resolved the write."""
    started: list[int] = []
    write = engine.writer.write

    async def and_sleep(each: Write) -> list[dict[str, Any]]:
        rows = await write(each)
        if each.statement is journal.FENCE:
            # As if the process had been stopped here for longer than its lease.
            (lease,) = engine.heartbeat.held()
            monkeypatch.setattr(type(lease), "expired", True)
        return rows

    async def pay() -> None:
        started.append(1)

    @durable("sleepy")
    async def sleepy(ctx: Context) -> None:
        await ctx.write(pay)

    monkeypatch.setattr(engine.writer, "write", and_sleep)
    run_id = client.enqueue("sleepy")
    assert engine.run(run_id).outcome == "lease_lost"
    assert started == []
    assert [step.status for step in client.steps(run_id)] == ["started"]


@pytest.mark.parametrize("where", ["body", "sync body", "step", "sync step", "write", "task"])
def test_an_exit_in_user_code_ends_its_run_and_not_the_process(client: Client, engine: Engine, where: str) -> None:
    async def leave() -> None:
        sys.exit(3)

    def leave_now() -> None:
        sys.exit(3)

    @durable("leaves")
    async def leaves(ctx: Context) -> None:
        match where:
            case "body":
                sys.exit(3)
            case "step":
                await ctx.step(leave)
            case "sync step":
                await ctx.step(leave_now)
            case "write":
                await ctx.write(leave)
            case _:
                await asyncio.create_task(leave())

    @durable("leaves-thread")
    def leaves_thread(ctx: SyncContext) -> None:
        sys.exit(3)

    @durable("stays")
    async def stays(ctx: Context) -> str:
        return "here"

    run_id = client.enqueue("leaves-thread" if where == "sync body" else "leaves")
    assert engine.run(run_id).outcome == "failed"
    run = client.status(run_id)
    assert (run.status, run.reason) == (Status.FAILED, Reason.NOT_RETRYABLE)
    assert run.error is not None
    assert "SystemExit" in str(run.error)
    assert engine.run(client.enqueue("stays")).outcome == "completed"


@pytest.mark.parametrize("where", ["body", "write"])
def test_user_code_that_cancels_itself_has_failed(client: Client, engine: Engine, where: str) -> None:
    """Not left running until its lease is over."""

    async def cancels() -> None:
        raise asyncio.CancelledError

    @durable("cancels-itself")
    async def cancels_itself(ctx: Context) -> None:
        await (cancels() if where == "body" else ctx.write(cancels))

    run_id = client.enqueue("cancels-itself")
    assert engine.run(run_id).outcome == "failed"
    assert client.status(run_id).reason is Reason.NOT_RETRYABLE
    assert [step.status for step in client.steps(run_id)] == (["started"] if where == "write" else [])


@pytest.mark.settings(max_requeues=9)
def test_a_kinds_options_hold_for_runs_whose_producer_does_not_know_it(
    client: Client, engine: Engine, settings: Settings
) -> None:
    """Names and JSON are enough for a producer; what the kind overrides, whoever claims it knows."""

    @durable("strict", max_requeues=0, lease_seconds=5.0, timeout=3600)
    async def strict(ctx: Context) -> None:
        raise ConnectionError("not now")

    with Client(settings=settings, kinds=Registry()) as stranger:
        theirs = stranger.enqueue("strict")
        asked_for = stranger.enqueue("strict", deadline=60)
    ours = client.enqueue("strict")
    for run_id in (theirs, ours, asked_for):
        assert engine.run(run_id).outcome == "failed"
        run = client.status(run_id)
        assert run.reason is Reason.RETRIES_EXHAUSTED
        assert run.deadline_at is not None
        lasts = 60 if run_id == asked_for else 3600
        assert abs((run.deadline_at - run.created_at).total_seconds() - lasts) < 1
