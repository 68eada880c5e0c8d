"""A body begins before its claim has committed; nothing that it does is done until then, whatever becomes of the claim.

PostgreSQL is made to stand still in the middle of the claim's commit: where it waits for its disk otherwise.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from uuid import UUID

import psycopg
import pytest

from agentrun import Client, Context, Outcome, Status, durable
from agentrun.runtime.engine import Engine
from agentrun.runtime.settling import Report
from agentrun.store.database import Database
from agentrun.testing import until
from agentrun.testing.rows import Rows

pytestmark = pytest.mark.settings(heartbeat_seconds=0.05, lease_seconds=2.0)

_LOCK = 4711
_HOLD = f"""
    CREATE FUNCTION hold() RETURNS trigger LANGUAGE plpgsql AS
        $$ BEGIN PERFORM pg_advisory_xact_lock_shared({_LOCK}); RETURN NULL; END $$;
    CREATE CONSTRAINT TRIGGER hold AFTER UPDATE ON agentrun.runs DEFERRABLE INITIALLY DEFERRED
        FOR EACH ROW WHEN (NEW.status = 'running' AND OLD.status = 'queued') EXECUTE FUNCTION hold();
"""
_HELD = "SELECT pid FROM pg_stat_activity WHERE wait_event_type = 'Lock' AND application_name = 'agentrun journal'"


class Body:
    """Says how far it is, and how often its step was done."""

    def __init__(self) -> None:
        self.begun, self.ended, self.done = threading.Event(), threading.Event(), 0

    def step(self) -> str:
        self.done += 1
        return "done"


@pytest.fixture
def commits(database: Database) -> Iterator[Callable[[], contextlib.AbstractContextManager[psycopg.Connection]]]:
    """Claims that stand still as they commit, until the block ends."""
    with psycopg.connect(database.url, autocommit=True) as connection:
        connection.execute(_HOLD)

        @contextlib.contextmanager
        def held() -> Iterator[psycopg.Connection]:
            connection.execute("SELECT pg_advisory_lock(%s)", [_LOCK])
            try:
                yield connection
            finally:
                connection.execute("SELECT pg_advisory_unlock(%s)", [_LOCK])

        yield held


def begun(engine: Engine, run_id: UUID, body: Body, connection: psycopg.Connection) -> Future[Report]:
    """The body has begun, and its claim has not committed."""
    report = engine.begin(run_id)
    assert body.begun.wait(10)
    until(lambda: connection.execute(_HELD).fetchone())
    return report


def steps(rows: Rows, run_id: UUID) -> list[str]:
    return [step["status"] for step in rows.stored(run_id)["steps"]]


async def of_steps(ctx: Context, body: Body) -> str:
    body.begun.set()
    return await ctx.step(body.step)


async def of_transactions(ctx: Context, body: Body) -> str:
    body.begun.set()
    return await ctx.transaction(lambda _: body.step())


async def of_waits(ctx: Context, body: Body) -> str:
    body.begun.set()
    return await ctx.signal("go")


async def of_nothing(_: Context, body: Body) -> str:
    body.begun.set()
    return "nothing"


BODIES = pytest.mark.parametrize("verb", [of_steps, of_transactions, of_waits, of_nothing])


def kind(name: str, verb: Callable[[Context, Body], object]) -> Body:
    body = Body()

    @durable(f"claims.{name}.{verb.__name__}")
    async def run(ctx: Context, _: None) -> str:
        return await verb(ctx, body)  # type: ignore[misc]  # pyright: ignore[reportGeneralTypeIssues]

    return body


@BODIES
def test_nothing_is_done_before_the_claim_has_committed(
    client: Client,
    engine: Engine,
    rows: Rows,
    commits: Callable[..., contextlib.AbstractContextManager],
    verb: Callable,
) -> None:
    body = kind("held", verb)
    run_id = client.enqueue(f"claims.held.{verb.__name__}")
    with commits() as connection:
        report = begun(engine, run_id, body, connection)
        assert client.status(run_id).status is Status.QUEUED
        for _ in range(2):
            beats = connection.execute(_BEATS).fetchone()
            until(lambda before=beats: connection.execute(_BEATS).fetchone() != before)
        assert [lease.stopped for lease in engine.heartbeat.held()] == [None], "nobody sees it yet; it is not lost"
        assert not engine.idle(0.05)
        assert body.done == 0
        assert not report.done()
    assert report.result(10).outcome in (Outcome.COMPLETED, Outcome.WAITING)
    assert steps(rows, run_id) == ["completed"] * body.done
    until(lambda: not engine.heartbeat.held())


@BODIES
def test_a_claim_that_is_undone_and_made_by_somebody_else(
    client: Client,
    engine: Engine,
    rows: Rows,
    commits: Callable[..., contextlib.AbstractContextManager],
    verb: Callable,
) -> None:
    """As where PostgreSQL crashes just then: the other one has the same epoch, and nothing but the claim tells them."""
    body = kind("undone", verb)
    run_id = client.enqueue(f"claims.undone.{verb.__name__}")
    with commits() as connection:
        report = begun(engine, run_id, body, connection)
        theirs = "UPDATE agentrun.runs SET status = 'running', epoch = 1, claimed_by = 'worker:other:1', due_at = NULL,"
        theirs += " lease_expires_at = now() + interval '1 hour', claimed_at = now() WHERE id = %s AND epoch = 0"
        other = threading.Thread(target=_execute, args=(rows.database.url, theirs, run_id))
        other.start()
        until(lambda: connection.execute(_WAITS_FOR_THE_ROW).fetchone())
        connection.execute(f"SELECT pg_terminate_backend(pid) FROM ({_HELD}) AS held")
    other.join(10)
    assert report.result(10).outcome == Outcome.LEASE_LOST
    assert body.done == 0
    assert rows.row(run_id)["claimed_by"] == "worker:other:1"
    assert rows.row(run_id)["epoch"] == 1
    assert steps(rows, run_id) == []
    assert rows.row(run_id)["status"] == "running"
    assert client.inbox() == []
    assert not engine.heartbeat.held()


@BODIES
def test_a_claim_that_is_undone_is_made_again(
    client: Client,
    engine: Engine,
    rows: Rows,
    commits: Callable[..., contextlib.AbstractContextManager],
    verb: Callable,
) -> None:
    body = kind("again", verb)
    run_id = client.enqueue(f"claims.again.{verb.__name__}")
    with commits() as connection:
        report = begun(engine, run_id, body, connection)
        connection.execute(f"SELECT pg_terminate_backend(pid) FROM ({_HELD}) AS held")
    assert report.result(10).outcome in (Outcome.COMPLETED, Outcome.WAITING)
    assert rows.row(run_id)["epoch"] == 1
    assert body.done == len(steps(rows, run_id))


def test_a_drain_that_begins_before_the_claim_has_committed(
    client: Client, engine: Engine, commits: Callable[..., contextlib.AbstractContextManager]
) -> None:
    body = kind("drained", of_steps)
    run_id = client.enqueue("claims.drained.of_steps")
    with commits() as connection:
        report = begun(engine, run_id, body, connection)
        engine.drain()
    assert report.result(10).outcome == Outcome.HANDED_BACK
    assert body.done == 0


_BEATS = "SELECT max(seen_at) FROM agentrun.processes"
_WAITS_FOR_THE_ROW = "SELECT 1 FROM pg_stat_activity WHERE wait_event_type = 'Lock' AND application_name = 'other'"


def _execute(url: str, statement: str, run_id: UUID) -> None:
    with psycopg.connect(url, autocommit=True, application_name="other") as connection:
        connection.execute(statement, [run_id])
