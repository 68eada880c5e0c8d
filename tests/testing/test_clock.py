"""The clock of a test's database: everything that agentrun does follows it, and nobody else's."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Any

import psycopg
import pytest

from agentrun import Client, Context, Status, durable
from agentrun.runtime.engine import Engine
from agentrun.store.tables import metadata
from agentrun.testing.clock import Clock
from agentrun.testing.rows import Rows

CENTURY = timedelta(days=36_500)
TIMES = [
    (table.name, column.name)
    for table in metadata.sorted_tables
    for column in table.columns
    if getattr(column.type, "timezone", False)
]


def test_a_sleep_of_a_week_ends_as_soon_as_the_week_has_passed(
    clock: Clock, client: Client, engine: Engine, sweep: Callable[[], Any]
) -> None:
    @durable("patient")
    async def patient(ctx: Context) -> str:
        before = await ctx.now()
        await ctx.sleep(days=7)
        after = await ctx.now()
        return "a week" if timedelta(days=7) <= after - before < timedelta(days=8) else f"{after - before}"

    run_id = client.enqueue("patient")
    assert engine.run(run_id).outcome == "waiting"
    clock.travel(days=6, hours=23)
    assert sweep().answered == 0
    clock.travel(hours=2)
    assert sweep().answered == 1
    assert engine.run(run_id).result == '"a week"'


def test_a_lease_lapses_with_the_database_s_time(clock: Clock, rows: Rows, sweep: Callable[[], Any]) -> None:
    run_id = rows.running(kind="any")
    assert sweep().requeued == 0
    clock.travel(minutes=5)
    assert sweep().requeued == 1
    assert rows.row(run_id)["status"] == "queued"


@pytest.mark.settings(backoff_base_seconds=600, backoff_max_seconds=600)
def test_a_backoff_ends_and_a_deadline_passes(clock: Clock, client: Client, engine: Engine) -> None:
    @durable("flaky")
    async def flaky(ctx: Context) -> None:
        raise ConnectionError("not now")

    run_id = client.enqueue("flaky", deadline=3600)
    assert engine.run(run_id).outcome == "requeued"
    assert engine.run(run_id).outcome == "early"
    clock.travel(minutes=30)
    assert engine.run(run_id).outcome == "requeued"
    clock.travel(hours=1)
    assert engine.run(run_id).outcome == "failed"
    assert client.status(run_id).reason == "deadline_exceeded"


def test_every_instant_that_is_stored_is_of_the_travelled_time(
    clock: Clock, client: Client, engine: Engine, sweep: Callable[[], Any], database_url: str
) -> None:
    """No column's default, and no statement, asks another clock."""

    @durable("busy")
    async def busy(ctx: Context) -> str:
        await ctx.write(_written)
        await ctx.child("small")
        await ctx.approval("really?", remind=60, expires=3600)
        return await ctx.signal("go")

    @durable("small")
    async def small(ctx: Context) -> int:
        return 1

    clock.travel(CENTURY)
    run_id = client.enqueue("busy", deadline=86_400, owner="ann")
    engine.announce()
    assert engine.run(run_id).outcome == "waiting"
    (child,) = client.list(parent=run_id)
    engine.run(child.id)
    engine.run(run_id)
    client.approve(run_id, by="bob")
    client.signal(run_id, "later")
    engine.run(run_id)
    sweep()
    assert client.status(run_id).status is Status.WAITING
    born = datetime.now(UTC) + CENTURY - timedelta(days=1)
    with psycopg.connect(database_url) as connection:
        for table, column in TIMES:
            for (found,) in connection.execute(f'SELECT "{column}" FROM agentrun.{table}').fetchall():
                assert found is None or found > born, f"{table}.{column} is {found}"


def _written() -> str:
    return "done"


def test_time_does_not_go_back(clock: Clock) -> None:
    with pytest.raises(ValueError, match="ahead only"):
        clock.travel(hours=-1)
    clock.travel_to(datetime(2000, 1, 1, tzinfo=UTC))
    assert clock.ahead == timedelta(0)
    there = datetime.now(UTC) + timedelta(days=3)
    assert abs(clock.travel_to(there) - there) < timedelta(minutes=1)


def test_a_database_without_the_fixture_has_the_server_s_time_alone(database_url: str) -> None:
    with psycopg.connect(database_url) as connection:
        assert connection.execute("SELECT to_regnamespace('agentrun_clock')").fetchone() == (None,)
        assert connection.execute("SELECT now() = pg_catalog.now()").fetchone() == (True,)
