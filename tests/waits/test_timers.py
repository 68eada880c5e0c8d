"""Timers: the end is stored at the first pass and never moves; nothing is held until then."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from redis import Redis

from agentrun import BodyError, Client, Context, InvalidRequest, Status, durable
from agentrun.runtime.engine import Engine
from agentrun.testing import RecordingPublisher, until
from agentrun.testing.rows import Rows
from tests.waits.conftest import Go, Parked, Travel


@pytest.fixture(autouse=True)
def sleeping(client: Client) -> None:
    @durable("sleep")
    async def sleep(ctx: Context, seconds: float) -> str:
        await ctx.sleep(seconds)
        return "rested"

    @durable("sleep-until")
    async def sleep_until(ctx: Context, when: datetime) -> str:
        await ctx.sleep_until(when)
        return "rested"

    @durable("sleep-and-listen")
    async def sleep_and_listen(ctx: Context) -> list[Any]:
        return await ctx.gather(ctx.sleep(hours=1), ctx.signal("go"))


def test_the_end_of_a_sleep_never_moves_however_often_the_body_is_replayed(
    client: Client, parked: Parked, go: Go, travel: Travel, sweep: Callable[[], Any]
) -> None:
    run_id = parked("sleep-and-listen")

    def end() -> datetime:
        (timer,) = [wait for wait in travel.waits(run_id) if wait["kind"] == "timer"]
        return timer["due_at"]

    first = end()
    client.signal(run_id, "go", 1)
    run = go(run_id)
    assert (run.status, run.epoch) == (Status.WAITING, 2)
    assert end() == first
    assert run.due_at == first
    travel.past_due(run_id)
    sweep()
    assert go(run_id).result == [None, 1]


def test_a_timer_that_was_due_while_all_was_down_ends_once_when_a_sweep_comes(
    client: Client, parked: Parked, go: Go, travel: Travel, sweep: Callable[[], Any], publisher: RecordingPublisher
) -> None:
    run_id = parked("sleep", 3600)
    travel.past_due(run_id)
    publisher.wakes.clear()
    assert [sweep().answered, sweep().answered] == [1, 0]
    assert "resolved" in publisher.causes(run_id)
    assert go(run_id).result == "rested"
    assert [event.type for event in client.events(run_id)].count("resolved") == 1


def test_a_process_wakes_its_short_sleepers_itself(
    client: Client, engine: Engine, parked: Parked, publisher: RecordingPublisher
) -> None:
    run_id = parked("sleep", 1.2)
    until(lambda: "timer" in publisher.causes(run_id), 5)
    until(lambda: engine.run(run_id).outcome == "due" or client.status(run_id).status is not Status.WAITING, 5)
    until(lambda: engine.run(run_id) and client.status(run_id).status.final, 5)
    assert client.status(run_id).result == "rested"


def test_a_wake_that_comes_early_changes_nothing(
    client: Client, engine: Engine, parked: Parked, rows: Rows, travel: Travel
) -> None:
    run_id = parked("sleep", 3600)
    before, waits = rows.stored(run_id), travel.waits(run_id)
    assert [engine.run(run_id).outcome for _ in range(2)] == ["waiting", "waiting"]
    assert (rows.stored(run_id), travel.waits(run_id)) == (before, waits)


def test_an_old_timer_is_nothing_once_its_run_has_gone_on(
    client: Client, go: Go, parked: Parked, travel: Travel, sweep: Callable[[], Any]
) -> None:
    @durable("either")
    async def either(ctx: Context) -> Any:
        return await ctx.signal("go", timeout=3600, default="nobody")

    run_id = parked("either")
    client.signal(run_id, "go", "early")
    assert go(run_id).result == "early"
    travel("UPDATE agentrun.waits SET due_at = now() - interval '1 s' WHERE run_id = %s", run_id)
    assert sweep().answered == 0
    assert client.status(run_id).result == "early"


def test_a_sleep_of_days_holds_no_lease_and_no_message(
    client: Client, parked: Parked, redis: Redis, engine: Engine, publisher: RecordingPublisher
) -> None:
    run_id = client.enqueue("sleep", 30 * 86_400)
    redis.flushdb()  # the wake of its birth
    engine.run(run_id)
    run = client.status(run_id)
    assert (run.status, run.waiting_on, run.claimed_by, run.lease_expires_at) == (Status.WAITING, "timer", None, None)
    assert abs(run.due_at - datetime.now(UTC) - timedelta(days=30)) < timedelta(minutes=1)
    assert not [wake for wake in publisher.wakes if wake.run_id == run_id]
    assert redis.keys("*agentrun*") == []
    assert not engine.heartbeat.held()


def test_an_instant_without_a_time_zone_is_refused_and_one_in_the_past_ends_at_once(
    client: Client, go: Go, sweep: Callable[[], Any]
) -> None:
    naive = client.enqueue("sleep-until", "2030-01-01T00:00:00")
    run = go(naive)
    assert run.status is Status.FAILED
    assert "time zone" in run.error["message"]
    past = client.enqueue("sleep-until", "2020-01-01T00:00:00+00:00")
    go(past)
    sweep()
    assert go(past).result == "rested"


@pytest.mark.parametrize("span", [timedelta(days=4_000_000), 1e300, math.nan, math.inf])
def test_a_time_that_no_clock_can_hold_is_refused_before_anything_is_stored(
    client: Client, go: Go, travel: Travel, span: Any
) -> None:
    @durable("for-ever")
    async def for_ever(ctx: Context) -> None:
        with pytest.raises(BodyError, match="less than 30 years"):
            await ctx.signal("go", timeout=span)
        with pytest.raises(BodyError, match="less than 30 years"):
            await ctx.approval("sure?", expires=span)
        with pytest.raises((BodyError, OverflowError, ValueError)):
            await ctx.sleep(span)
        for year in (1, 9999):
            with pytest.raises(BodyError, match="years 2 to 9990"):
                await ctx.sleep_until(datetime(year, 6, 1, tzinfo=UTC))
        with pytest.raises(InvalidRequest, match="role must be"):
            await ctx.approval("sure?", expires=60, on_expiry="escalate", escalate_to="a\0b")

    run_id = client.enqueue("for-ever")
    assert go(run_id).status is Status.COMPLETED
    assert travel.waits(run_id) == []


def test_a_sleep_in_one_branch_does_not_hold_up_the_others(client: Client, parked: Parked, go: Go) -> None:
    @durable("beside")
    async def beside(ctx: Context) -> list[Any]:
        return await ctx.gather(ctx.sleep(hours=1), ctx.step(asyncio.sleep, 0.1, "done"))

    run_id = parked("beside")
    assert [step.status for step in client.steps(run_id)] == ["completed"]
