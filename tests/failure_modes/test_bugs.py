"""What other engines got wrong, where no other test of ours shows it. The numbers are those of
docs/reference/failure-modes.md.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable
from datetime import timedelta
from typing import Any
from uuid import UUID

import pytest
from redis import Redis

from agentrun import (
    Client,
    ConfigurationError,
    Context,
    Effect,
    NotAllowed,
    Retryable,
    Settings,
    Status,
    StepFailed,
    durable,
    effect,
    remote_step,
)
from agentrun.core.policy import Backoff
from agentrun.runtime.engine import Engine
from agentrun.runtime.kinds import Registry
from agentrun.runtime.redispatch import Redispatch
from agentrun.runtime.segment import run_segment
from agentrun.runtime.taking import run_step
from agentrun.store.database import Database
from agentrun.testing import RecordingPublisher
from agentrun.testing.crash import Story
from agentrun.testing.rows import Rows
from tests.cli.conftest import Cli
from tests.waits.conftest import Go, Parked, Travel, go, parked, travel

__all__ = ["go", "parked", "travel"]

Sweep = Callable[[], Any]


def remote_key(client: Client, run_id: UUID) -> str:
    (key,) = [step.key for step in client.steps(run_id) if step.kind == "remote"]
    return key


def test_8_two_segments_of_one_run_in_one_process_do_its_step_once(client: Client, engine: Engine) -> None:
    done: list[int] = []

    async def once() -> None:
        done.append(1)
        await asyncio.sleep(0.05)

    @durable("twice")
    async def twice(ctx: Context) -> None:
        await ctx.step(once)

    run_id = client.enqueue("twice")
    segments = [engine.submit(run_segment(engine, run_id)) for _ in range(5)]
    outcomes = sorted(str(segment.result(10).outcome) for segment in segments)
    assert (outcomes.count("completed"), len(done), client.status(run_id).epoch) == (1, 1, 1)


def test_9_a_cancel_of_a_run_that_has_ended_touches_no_child_of_it(client: Client, go: Go) -> None:
    @durable("lasting")
    async def lasting(ctx: Context) -> Any:
        return await ctx.signal("go")

    @durable("leaves")
    async def leaves(ctx: Context) -> None:
        await ctx.spawn("lasting")

    run_id = client.enqueue("leaves")
    assert go(run_id).status is Status.COMPLETED
    (child,) = client.list(parent=run_id)
    go(child.id)
    with pytest.raises(NotAllowed):
        client.cancel(run_id)
    run = client.status(child.id)
    assert (run.status, run.cancel_requested_at) == (Status.WAITING, None)


def test_12_a_sweep_that_finds_crashed_runs_executes_none(client: Client, rows: Rows, sweep: Sweep) -> None:
    done: list[int] = []

    @durable("crashed")
    async def crashed(ctx: Context) -> None:
        done.append(1)

    runs = [rows.running(kind="crashed") for _ in range(5)]
    for run_id in runs:
        rows.expire_lease(run_id)
    assert (sweep().requeued, done) == (5, [])
    assert {client.status(run_id).status for run_id in runs} == {Status.QUEUED}


def test_34_a_result_that_lands_after_the_silence_was_noticed_stands(
    client: Client, engine: Engine, settings: Settings, database: Database, publisher: RecordingPublisher, go: Go
) -> None:
    """The sweep has chosen the step; then its taker ends it; then the sweep says that it was silent."""
    began, end = asyncio.Event(), asyncio.Event()

    @remote_step("creeps", effect=Effect.READ_ONLY)
    async def slow() -> str:
        began.set()
        await end.wait()
        return "after all"

    @durable("asks-slowly")
    async def asks(ctx: Context) -> Any:
        return await ctx.remote("creeps", timeout=3600)

    run_id = client.enqueue("asks-slowly")
    engine.run(run_id)
    key = remote_key(client, run_id)
    taking = engine.submit(run_step(engine, run_id, key))
    engine.submit(asyncio.wait_for(began.wait(), 5)).result()
    with database.connection() as connection:
        connection.execute("UPDATE agentrun.steps SET due_at = now() - interval '1 s' WHERE status = 'started'")

    class Late(Redispatch):
        def _settled(self, row: Any) -> Any:
            engine.loop.call_soon_threadsafe(end.set)
            assert taking.result(5).outcome == "completed"
            return super()._settled(row)

    healed = Late(settings, database, publisher, by="sweep:test").run()
    assert taking.done(), "the sweep has seen the silence"
    assert (healed.given_up, healed.retried, healed.redispatched) == (0, 0, 0)
    assert go(run_id).result == "after all"


def test_35_reading_and_waiting_take_no_message_from_workers(client: Client, cli: Cli, redis: Redis) -> None:
    run_id = client.enqueue("anything")
    before = redis.llen("agentrun")
    for command in (("list",), ("show", str(run_id)), ("doctor",), ("workers",), ("kinds",), ("check",)):
        cli(*command)
    assert cli("wait", str(run_id), "--timeout", "0.2").code == 1
    assert (before, redis.llen("agentrun"), client.status(run_id).status) == (1, 1, Status.QUEUED)


def test_36_no_count_is_too_large_for_a_pause() -> None:
    assert Backoff(30, 600, 0).delay(10**9, 0.0) == 600
    assert Backoff(30, 600, 0).delay(0, 0.0) == 30


def test_36_a_pause_longer_than_any_timer_of_a_process_ends_neither_early_nor_hot(
    client: Client, engine: Engine, rows: Rows, sweep: Sweep, parked: Parked
) -> None:
    @durable("years")
    async def years(ctx: Context) -> None:
        await ctx.sleep(timedelta(days=3000))

    run_id = parked("years")
    for _ in range(3):
        sweep()
        assert engine.run(run_id).outcome != "completed"
    run = client.status(run_id)
    assert (run.status, run.epoch) == (Status.WAITING, 1)


def test_40_a_compensation_is_a_step_and_is_done_once_wherever_its_process_dies(
    client: Client, crash_sweep: Callable[..., Any]
) -> None:
    undone: dict[UUID, set[str]] = {}

    @effect(Effect.IDEMPOTENT_WRITE)
    async def book() -> str:
        return "booked"

    async def pay() -> None:
        raise ValueError("no money")

    @durable("saga")
    async def saga(ctx: Context) -> str:
        async def cancel_booking() -> str:
            undone.setdefault(ctx.run_id, set()).add("booking")
            return "undone"

        await ctx.write(book)
        try:
            await ctx.step(pay)
        except StepFailed:
            return await ctx.write(cancel_booking, effect=Effect.IDEMPOTENT_WRITE)
        return "paid"

    stories: list[Story] = list(crash_sweep(lambda: client.enqueue("saga")))
    assert len(stories) > 9
    for story in stories:
        assert (story.run.status, story.run.result) == (Status.COMPLETED, "undone"), story
        assert [step.name for step in story.steps.values()].count("cancel_booking") == 1, story


def test_44_a_deadline_goes_down_the_tree_and_is_the_one_that_the_run_was_born_with(
    client: Client, kinds: Registry, parked: Parked, rows: Rows, sweep: Sweep
) -> None:
    @durable("long-child")
    async def long_child(ctx: Context) -> Any:
        return await ctx.signal("go")

    @durable("short-parent", timeout=3600)
    async def short_parent(ctx: Context) -> Any:
        return await ctx.child("long-child")

    run_id = parked("short-parent")
    born_with = client.status(run_id).deadline_at
    (child,) = client.list(parent=run_id)
    durable("short-parent", timeout=5)(short_parent)
    sweep()
    assert (client.status(run_id).deadline_at, client.status(run_id).status) == (born_with, Status.WAITING)
    rows.pass_deadline(run_id)
    sweep()
    sweep()
    assert client.status(run_id).reason == "deadline_exceeded"
    assert client.status(child.id).status is Status.CANCELLED


def test_55_a_replay_reads_its_journal_once_however_long_it_is(client: Client, engine: Engine, rows: Rows) -> None:
    costs: list[int] = []

    async def step() -> None:
        return None

    @durable("replayed")
    async def replayed(ctx: Context, count: int) -> None:
        for _ in range(count):
            await ctx.step(step)
        if ctx.run.requeue_count == 0:
            raise Retryable("once more")

    for count in (1, 60):
        run_id = client.enqueue("replayed", count)
        engine.run(run_id)
        rows.make_due(run_id)
        before = engine.writer.writes
        assert engine.run(run_id).outcome == "completed"
        costs.append(engine.writer.writes - before)
    assert costs[0] == costs[1]


def test_56_a_tag_means_itself_whatever_characters_it_has(client: Client) -> None:
    odd = {tag: client.enqueue("tagged", tags=[tag]) for tag in ("50%", "50x", "a_b", "axb", "*", "{a,b}", "a\\b")}
    for tag, run_id in odd.items():
        assert [run.id for run in client.list(tag=tag)] == [run_id]


@pytest.mark.parametrize("answered", [True, False])
def test_57_a_wait_with_a_bound_moves_no_position_whether_it_was_answered_or_not(
    answered: bool, client: Client, parked: Parked, go: Go, sweep: Sweep, travel: Travel
) -> None:
    tokens: list[str] = []
    done: list[str] = []

    async def note(what: str) -> str:
        done.append(what)
        return what

    @durable("bounded")
    async def bounded(ctx: Context) -> Any:
        hook = await ctx.webhook(expires=60)
        tokens.append(hook.token)
        with contextlib.suppress(StepFailed):
            await hook.wait()
        await ctx.step(note, "after")
        await ctx.signal("end")
        return await ctx.step(note, "last")

    run_id = parked("bounded")
    if answered:
        client.webhook(tokens[0], 1)
    else:
        travel.past_due(run_id)
        sweep()
    go(run_id)
    client.signal(run_id, "end")
    run = go(run_id)
    assert (run.status, run.result, done) == (Status.COMPLETED, "last", ["after", "last"])
    assert [step.key for step in client.steps(run_id) if step.name == "note"] == ["#2", "#4"]


def test_61_an_empty_or_missing_url_is_refused_and_no_localhost_is_guessed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AGENTRUN_BROKER_URL", "")
    monkeypatch.setenv("AGENTRUN_DATABASE_URL", "")
    settings = Settings()
    for asked in (settings.require_broker, settings.require_database, lambda: Client(settings=settings)):
        with pytest.raises(ConfigurationError, match="AGENTRUN_"):
            asked()
