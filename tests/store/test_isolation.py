"""A server whose transactions begin at a stricter level than READ COMMITTED: ours do not, and callers keep theirs."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any
from urllib.parse import urlsplit

import psycopg
import pytest
import sqlalchemy as sa

from agentrun import Client, Context, Effect, Status, durable
from agentrun.runtime.engine import Engine
from agentrun.runtime.kinds import Registry
from agentrun.runtime.segment import run_segment
from agentrun.store import schema
from agentrun.store.connect import connect_async
from agentrun.store.database import Database
from agentrun.testing import until
from agentrun.testing.servers import Servers

LEVEL = "SHOW transaction_isolation"
ONE_WAITS = "SELECT count(*) FROM pg_locks WHERE NOT granted AND pid != pg_backend_pid()"


@pytest.fixture(params=["repeatable read", "serializable"])
def database_url(request: pytest.FixtureRequest, agentrun_servers: Servers) -> Iterator[str]:
    """The test's database; its sessions begin at another level than agentrun's."""
    url = agentrun_servers.create_database()
    with psycopg.connect(url, autocommit=True) as connection:
        connection.execute(
            f"ALTER DATABASE \"{urlsplit(url).path[1:]}\" SET default_transaction_isolation = '{request.param}'"  # pyright: ignore[reportArgumentType, reportCallIssue]
        )
    yield url
    agentrun_servers.drop_database(url)


@pytest.fixture
def strict(database_url: str) -> Iterator[psycopg.Connection[Any]]:
    """A connection that is not agentrun's, in a transaction of its own."""
    with psycopg.connect(database_url) as connection:
        yield connection


async def one(number: int) -> int:
    return number


@pytest.fixture(autouse=True)
def bodies(kinds: Registry) -> None:
    @durable("level.work")
    async def work(ctx: Context, number: int) -> int:
        await ctx.gather(*(ctx.step(one, each) for each in range(3)))
        await ctx.write(one, number, effect=Effect.NON_IDEMPOTENT_WRITE)
        return await ctx.signal("go")

    @durable("level.transaction")
    async def transaction(ctx: Context) -> str:
        return await ctx.transaction(lambda connection: connection.execute(LEVEL).fetchone()["transaction_isolation"])


async def test_every_connection_of_ours_is_at_read_committed(
    database: Database, strict: psycopg.Connection[Any], database_url: str
) -> None:
    assert strict.execute(LEVEL).fetchone() != ("read committed",), "the control"
    usual = {"transaction_isolation": "read committed"}
    with database.connection() as connection:
        assert connection.execute(LEVEL).fetchone() == usual
    with database.transaction() as connection:
        assert connection.execute(LEVEL).fetchone() == usual
    with database.dedicated("as the heartbeat's") as connection:
        assert connection.execute(LEVEL).fetchone() == usual
    async with await connect_async(database_url, name="as the writer's") as asynchronous:
        assert await (await asynchronous.execute(LEVEL)).fetchone() == usual
    with schema.engine(database_url).connect() as migrating:
        assert migrating.execute(sa.text(LEVEL)).scalar() == "read committed"


def test_runs_side_by_side_end_to_end(client: Client, engine: Engine, sweep: Callable[[], Any]) -> None:
    runs = client.enqueue_many("level.work", list(range(30)))
    first = [engine.submit(run_segment(engine, run_id)) for run_id in runs]
    assert {each.result(20).outcome for each in first} == {"waiting"}
    engine.heartbeat.beat()
    client.signal_many(runs, "go", 7)
    sweep()
    again = [engine.submit(run_segment(engine, run_id)) for run_id in runs]
    assert {each.result(20).outcome for each in again} == {"completed"}
    assert {client.status(run_id).result for run_id in runs} == {7}


def test_a_functions_own_transaction_is_at_read_committed(client: Client, engine: Engine) -> None:
    run_id = client.enqueue("level.transaction")
    engine.run(run_id)
    assert client.status(run_id).result == "read committed"


def test_who_waited_for_another_sees_what_that_one_has_committed(
    client: Client, engine: Engine, strict: psycopg.Connection[Any], database_url: str
) -> None:
    run_id = client.enqueue("level.work", 1)
    engine.run(run_id)
    strict.execute("UPDATE agentrun.runs SET priority = 1 WHERE id = %s", [run_id])
    with ThreadPoolExecutor(1) as aside, psycopg.connect(database_url, autocommit=True) as eyes:
        signalled = aside.submit(client.signal, run_id, "go", 7)
        until(lambda: eyes.execute(ONE_WAITS).fetchone() == (1,), 10)
        strict.commit()
        signalled.result(10)
    assert client.status(run_id).status is Status.QUEUED


# ---- a caller's own transaction


def test_a_key_that_was_taken_after_the_callers_snapshot_is_refused_by_postgresql(
    client: Client, strict: psycopg.Connection[Any]
) -> None:
    strict.execute("SELECT 1 FROM agentrun.runs")
    first = client.enqueue("level.work", 1, idempotency_key="once")
    with pytest.raises(psycopg.errors.SerializationFailure):
        client.enqueue("level.work", 1, idempotency_key="once", connection=strict)
    strict.rollback()
    assert client.enqueue("level.work", 1, idempotency_key="once", connection=strict) == first
    assert client.enqueue("level.work", 1, idempotency_key="twice", connection=strict) != first
    strict.commit()
    assert len(client.list()) == 2
