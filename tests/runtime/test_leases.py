"""Leases: lost, cancelled and handed back in the middle of a body, and what is written then."""

from __future__ import annotations

import asyncio
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from typing import Any
from uuid import UUID

import pytest

from agentrun import Client, Context, Outcome, Reason, Status, SyncContext, durable
from agentrun.embedded.postgres import StopMode
from agentrun.runtime.engine import Engine
from agentrun.runtime.segment import run_segment
from agentrun.store.database import Database
from agentrun.testing import RecordingPublisher, until
from agentrun.testing.rows import Rows
from agentrun.testing.servers import Servers

pytestmark = pytest.mark.settings(heartbeat_seconds=0.1, lease_seconds=2.0, drain_seconds=1.0)


class Gate:
    """Where a body stops until the test lets it go on; says what became of it."""

    def __init__(self) -> None:
        self.reached, self.opened = threading.Event(), threading.Event()
        self.heard: list[str] = []

    async def wait(self) -> str:
        self.reached.set()
        try:
            async with asyncio.timeout(20):
                while not self.opened.is_set():
                    await asyncio.sleep(0.005)
        except BaseException as error:
            self.heard.append(type(error).__name__)
            raise
        return "through"

    def wait_in_thread(self) -> str:
        self.reached.set()
        assert self.opened.wait(20)
        return "through"

    def await_arrival(self) -> None:
        assert self.reached.wait(10)


@pytest.fixture
def gate() -> Iterator[Gate]:
    gate = Gate()
    yield gate
    gate.opened.set()


@pytest.fixture
def calls() -> Counter[str]:
    return Counter()


def begin(client: Client, engine: Engine, gate: Gate, kind: str = "k") -> tuple[UUID, Future[Any]]:
    run_id = client.enqueue(kind)
    segment = engine.submit(run_segment(engine, run_id))
    gate.await_arrival()
    return run_id, segment


# ---- the lease is lost


def take_away(rows: Rows, sweep: Callable[[], Any], run_id: UUID) -> None:
    """Another owner, by the book: the lease expires, a sweep reaps; somebody else claims."""
    rows.expire_lease(run_id)
    sweep()


@pytest.mark.settings(heartbeat_seconds=0.3)
def test_a_body_whose_lease_is_lost_is_cancelled_and_writes_nothing(
    client: Client, engine: Engine, rows: Rows, sweep: Callable[[], Any], gate: Gate, calls: Counter[str]
) -> None:
    async def after() -> None:
        calls["after"] += 1

    @durable("k")
    async def body(ctx: Context) -> str:
        await ctx.step(gate.wait)
        await ctx.step(after)
        return "done"

    run_id, segment = begin(client, engine, gate)
    while client.status(run_id).status is Status.RUNNING:
        take_away(rows, sweep, run_id)
    before = rows.stored(run_id)
    assert segment.result(10).outcome == Outcome.LEASE_LOST
    assert gate.heard == ["CancelledError"]
    assert rows.stored(run_id) == before
    assert calls == {}


def test_a_new_owner_is_not_disturbed_by_the_old_one(
    client: Client,
    make_engine: Callable[..., Engine],
    rows: Rows,
    sweep: Callable[[], Any],
    gate: Gate,
) -> None:
    """The old one's heartbeat is stopped, as of a process that hangs: its lease passes, and it wakes up too late."""
    first, second = make_engine(), make_engine()

    @durable("k")
    async def body(ctx: Context) -> str:
        return await ctx.step(gate.wait)

    run_id, segment = begin(client, first, gate)
    first.heartbeat.close()
    take_away(rows, sweep, run_id)
    gate.reached.clear()
    taken_over = second.submit(run_segment(second, run_id))
    gate.await_arrival()
    gate.opened.set()
    assert taken_over.result(10).outcome == Outcome.COMPLETED
    assert segment.result(10).outcome == Outcome.LEASE_LOST
    run = client.status(run_id)
    assert (run.status, run.epoch, run.crash_count) == (Status.COMPLETED, 2, 1)
    assert [event.type for event in client.events(run_id)].count("settled") == 1


@pytest.mark.own_servers
@pytest.mark.settings(lease_seconds=20.0)
def test_a_run_goes_on_through_a_restart_of_postgres(
    client: Client, engine: Engine, agentrun_servers: Servers, gate: Gate, calls: Counter[str]
) -> None:
    async def count() -> int:
        calls["count"] += 1
        return calls["count"]

    @durable("k")
    async def body(ctx: Context) -> int:
        await ctx.step(count)
        await ctx.step(gate.wait)
        return await ctx.step(count)

    run_id, segment = begin(client, engine, gate)
    assert agentrun_servers.embedded is not None
    agentrun_servers.embedded.postgres.restart(StopMode.IMMEDIATE)
    gate.opened.set()
    assert segment.result(15).outcome == Outcome.COMPLETED
    run = client.status(run_id)
    assert (run.result, run.epoch, run.requeue_count) == (2, 1, 0)


@pytest.mark.own_servers
def test_a_run_whose_database_stays_away_stops_by_its_own_clock(
    client: Client, engine: Engine, agentrun_servers: Servers, gate: Gate
) -> None:
    """Its lease may be over, and nobody can say: no further step starts."""

    @durable("k")
    async def body(ctx: Context) -> str:
        return await ctx.step(gate.wait)

    _, segment = begin(client, engine, gate)
    assert agentrun_servers.embedded is not None
    agentrun_servers.embedded.postgres.stop(StopMode.IMMEDIATE)
    try:
        until(lambda: gate.heard, 10)
        assert gate.heard == ["CancelledError"]
    finally:
        agentrun_servers.embedded.postgres.start()
    assert segment.result(10).outcome == Outcome.LEASE_LOST


# ---- cancel


def test_a_cancelled_body_is_interrupted_in_the_middle_of_a_step(client: Client, engine: Engine, gate: Gate) -> None:
    @durable("k")
    async def body(ctx: Context) -> str:
        return await ctx.step(gate.wait)

    run_id, segment = begin(client, engine, gate)
    asked = client.cancel(run_id, by="me")
    assert (asked.status, asked.cancel_requested_at is not None) == (Status.RUNNING, True)
    assert segment.result(5).outcome == Outcome.CANCELLED
    run = client.status(run_id)
    assert (run.status, run.reason, run.requeue_count) == (Status.CANCELLED, Reason.CANCELLED, 0)
    assert gate.heard == ["CancelledError"]
    assert client.steps(run_id) == []


def test_a_write_in_flight_ends_and_is_recorded_before_the_run_is_cancelled(
    client: Client, engine: Engine, gate: Gate, calls: Counter[str]
) -> None:
    async def pay() -> str:
        await gate.wait()
        return "paid"

    async def after() -> None:
        calls["after"] += 1

    @durable("k")
    async def body(ctx: Context) -> None:
        await ctx.write(pay)
        await ctx.write(after)

    run_id, segment = begin(client, engine, gate)
    client.cancel(run_id)
    until(lambda: engine.executing[run_id].lease.stopped is not None)
    assert not segment.done()
    gate.opened.set()
    assert segment.result(5).outcome == Outcome.CANCELLED
    run = client.status(run_id)
    assert (run.status, run.pending_effect) == (Status.CANCELLED, None)
    assert gate.heard == []
    assert [(step.key, step.status, step.result) for step in client.steps(run_id)] == [("#1", "completed", "paid")]
    assert calls == {}


def test_a_plain_body_is_cancelled_at_its_next_step(
    client: Client, engine: Engine, gate: Gate, calls: Counter[str]
) -> None:
    def after() -> None:
        calls["after"] += 1

    @durable("k")
    def body(ctx: SyncContext) -> None:
        ctx.step(gate.wait_in_thread)
        ctx.step(after)

    run_id, segment = begin(client, engine, gate)
    client.cancel(run_id)
    assert segment.result(5).outcome == Outcome.CANCELLED
    gate.opened.set()
    assert client.status(run_id).status is Status.CANCELLED
    assert calls == {}


def test_a_body_that_swallows_its_cancellation_gets_no_further(
    client: Client, engine: Engine, gate: Gate, calls: Counter[str]
) -> None:
    async def after() -> None:
        calls["after"] += 1

    @durable("k")
    async def body(ctx: Context) -> None:
        try:
            await ctx.step(gate.wait)
        except asyncio.CancelledError:
            calls["swallowed"] += 1
        await ctx.step(after)

    run_id, segment = begin(client, engine, gate)
    client.cancel(run_id)
    assert segment.result(5).outcome == Outcome.CANCELLED
    assert client.status(run_id).status is Status.CANCELLED
    assert calls == {"swallowed": 1}


def test_a_queued_run_is_cancelled_at_once_and_not_executed(
    client: Client, engine: Engine, calls: Counter[str]
) -> None:
    @durable("k")
    async def body(ctx: Context) -> None:
        calls["body"] += 1

    run_id = client.enqueue("k")
    assert client.cancel(run_id).status is Status.CANCELLED
    assert engine.run(run_id).outcome == "cancelled"
    assert client.cancel(run_id).status is Status.CANCELLED, "twice is no error"
    assert calls == {}


# ---- drain


def test_a_drain_hands_back_at_a_step_boundary_and_counts_nothing(
    client: Client,
    make_engine: Callable[..., Engine],
    publisher: RecordingPublisher,
    gate: Gate,
    calls: Counter[str],
) -> None:
    async def after() -> str:
        calls["after"] += 1
        return "done"

    @durable("k")
    async def body(ctx: Context) -> str:
        await ctx.step(gate.wait)
        return await ctx.step(after)

    draining = make_engine()
    run_id, segment = begin(client, draining, gate)
    draining.drain()
    gate.opened.set()
    assert segment.result(5).outcome == Outcome.HANDED_BACK
    run = client.status(run_id)
    assert (run.status, run.handback_count, run.requeue_count, run.error_count) == (Status.QUEUED, 1, 0, 0)
    assert [(step.key, step.status) for step in client.steps(run_id)] == [("#1", "completed")]
    assert (gate.heard, calls) == ([], {})
    assert publisher.causes(run_id)[-1] == "hand back"
    assert make_engine().run(run_id).outcome == Outcome.COMPLETED
    assert calls == {"after": 1}


def test_a_drain_beyond_its_budget_interrupts_the_step_and_hands_back(
    client: Client, make_engine: Callable[..., Engine], gate: Gate
) -> None:
    @durable("k")
    async def body(ctx: Context) -> str:
        return await ctx.step(gate.wait)

    draining = make_engine()
    run_id, segment = begin(client, draining, gate)
    draining.drain()
    assert segment.result(5).outcome == Outcome.HANDED_BACK
    run = client.status(run_id)
    assert (run.status, run.handback_count, run.requeue_count) == (Status.QUEUED, 1, 0)
    assert gate.heard == ["CancelledError"]


def test_a_drain_waits_for_a_write_in_flight(
    client: Client, make_engine: Callable[..., Engine], gate: Gate, calls: Counter[str]
) -> None:
    async def pay() -> str:
        calls["pay"] += 1
        return await gate.wait()

    @durable("k")
    async def body(ctx: Context) -> str:
        return await ctx.write(pay)

    draining = make_engine()
    run_id, segment = begin(client, draining, gate)
    draining.drain()
    # Its budget of one second passes; the write is not interrupted.
    with pytest.raises(TimeoutError):
        segment.result(1.5)
    gate.opened.set()
    assert segment.result(5).outcome in (Outcome.HANDED_BACK, Outcome.COMPLETED)
    assert gate.heard == []
    assert make_engine().run(run_id).outcome in (Outcome.COMPLETED, "completed")
    assert client.status(run_id).result == "through"
    assert calls == {"pay": 1}


def test_a_process_that_drains_starts_nothing(
    client: Client, make_engine: Callable[..., Engine], calls: Counter[str]
) -> None:
    async def step() -> None:
        calls["step"] += 1

    @durable("k")
    async def body(ctx: Context) -> None:
        await ctx.step(step)

    draining = make_engine()
    draining.drain()
    run_id = client.enqueue("k")
    assert draining.run(run_id).outcome == Outcome.HANDED_BACK
    assert calls == {}


# ---- who is there


def test_a_process_tells_that_it_is_here_and_that_it_has_gone(
    database: Database, make_engine: Callable[..., Engine], kinds: Any
) -> None:
    def there() -> list[Any]:
        with database.connection() as connection:
            return connection.execute("SELECT kinds, draining FROM agentrun.processes").fetchall()

    @durable("k")
    async def body(ctx: Context) -> None: ...

    engine = make_engine()
    engine.announce()
    until(there)
    assert "k" in there()[0]["kinds"]
    engine.drain()
    until(lambda: there()[0]["draining"])
    engine.close()
    assert there() == []


def test_what_goes_wrong_in_a_heartbeat_ends_no_heartbeat(
    client: Client, make_engine: Callable[..., Engine], rows: Rows, caplog: pytest.LogCaptureFixture
) -> None:
    """It renews every lease of the process: with its thread, all of them would run out."""
    beats: list[int] = []

    def hearing(holds: int) -> dict[str, Any]:
        beats.append(holds)
        if len(beats) < 3:
            raise KeyError("a bug")
        return {"heard": True}

    make_engine(hearing=hearing).announce()
    until(lambda: len(beats) > 3)
    assert "a heartbeat failed; trying again" in caplog.text
