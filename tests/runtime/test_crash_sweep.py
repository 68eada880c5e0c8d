"""Death before and after every commit of a run: it completes, nothing recorded is done again, no write runs twice."""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from typing import Any

import pytest

from agentrun import (
    NOT_APPLIED,
    Applied,
    Client,
    Context,
    Effect,
    Reason,
    Status,
    SyncContext,
    current_step,
    durable,
    effect,
)
from agentrun.testing.crash import CrashSweep, When


class World:
    """What is outside: it takes every idempotency key once, and counts who knocked."""

    def __init__(self) -> None:
        self.calls: Counter[tuple[str, str]] = Counter()
        self.applied: dict[str, str] = {}

    def called(self) -> str:
        step = current_step()
        self.calls[str(step.run_id), step.key] += 1
        return step.idempotency_key

    def apply(self) -> str:
        key = self.called()
        self.applied[key] = f"receipt {len(self.applied)}"
        return self.applied[key]

    def times(self, run_id: Any, key: str) -> int:
        return self.calls[str(run_id), key]


@pytest.fixture
def world() -> World:
    return World()


def test_reads_and_repeatable_writes_complete_wherever_their_process_dies(
    client: Client, crash_sweep: CrashSweep, world: World
) -> None:
    @effect(Effect.IDEMPOTENT_WRITE)
    async def put(value: int) -> int:
        world.called()
        return value

    async def look(value: int) -> int:
        world.called()
        return value

    @durable("mixed")
    async def mixed(ctx: Context) -> int:
        first = await ctx.step(look, 1)
        second = await ctx.write(put, 2)
        return first + second + await ctx.options(key="last").step(look, 3)

    stories = list(crash_sweep(lambda: client.enqueue("mixed")))
    for story in stories:
        assert (story.run.status, story.run.result) == (Status.COMPLETED, 6), story
        for key in ("#1", "#2", "last"):
            times = world.times(story.run.id, key)
            assert times >= 1
            if key in story.ended_at_death or story.when is When.LOST:
                assert times == 1, f"{story}: the recorded step {key} was executed again"
            assert times <= 2, story
    assert {story.when for story in stories} == set(When)
    assert len(stories) >= 3 * 5, "claim, record, fence, finish, record, settle"


def test_a_write_that_can_be_asked_about_happens_exactly_once(
    client: Client, crash_sweep: CrashSweep, world: World
) -> None:
    async def find(key: str) -> Any:
        return Applied(world.applied[key]) if key in world.applied else NOT_APPLIED

    @effect(Effect.NON_IDEMPOTENT_WRITE, reconcile=find)
    async def pay() -> str:
        return world.apply()

    @durable("pay")
    async def body(ctx: Context) -> str:
        await ctx.step(asyncio.sleep, 0)
        return await ctx.write(pay)

    for story in crash_sweep(lambda: client.enqueue("pay")):
        assert story.run.status is Status.COMPLETED, story
        assert world.times(story.run.id, "#2") == 1, story
        assert story.run.result == world.applied[story.steps["#2"].idempotency_key or ""]


def test_a_write_that_nobody_can_ask_about_happens_at_most_once_and_stops_the_run(
    client: Client, crash_sweep: CrashSweep, world: World
) -> None:
    async def pay() -> str:
        return world.apply()

    @durable("pay")
    async def body(ctx: Context) -> str:
        return await ctx.write(pay)

    ends: Counter[Status] = Counter()
    for story in crash_sweep(lambda: client.enqueue("pay")):
        times = world.times(story.run.id, "#1")
        ends[story.run.status] += 1
        assert times <= 1, story
        if story.run.status is Status.COMPLETED:
            assert times == 1
        else:
            assert story.run.reason is Reason.NOT_RETRYABLE
            assert story.steps["#1"].status == "started"
            assert story.run.pending_effect == Effect.NON_IDEMPOTENT_WRITE
            assert (story.run.error or {})["in_flight"][0]["name"] == "pay"
    assert ends[Status.COMPLETED] >= 1
    assert ends[Status.FAILED] >= 1


@pytest.mark.parametrize("seed", [1, 2, 3])
def test_branches_side_by_side_replay_right_whatever_order_they_end_in(
    client: Client, crash_sweep: CrashSweep, world: World, seed: int
) -> None:
    chance = random.Random(seed)

    async def work(value: int) -> int:
        world.called()
        await asyncio.sleep(chance.random() * 0.004)
        return value

    async def branch(ctx: Context, number: int) -> int:
        first = await ctx.step(work, number)
        inner = await ctx.gather(ctx.step(work, 10 * number), ctx.step(work, 100 * number))
        return first + sum(inner)

    @durable("wide")
    async def wide(ctx: Context) -> list[int]:
        return await ctx.gather(*(branch(ctx, number) for number in range(3)))

    for story in crash_sweep(lambda: client.enqueue("wide"), whens=[When.BEFORE, When.AFTER]):
        assert (story.run.status, story.run.result) == (Status.COMPLETED, [0, 111, 222]), story
        assert len(story.steps) == 9
        for key in story.ended_at_death:
            assert world.times(story.run.id, key) == 1, f"{story}: {key}"


def test_plain_functions_survive_as_coroutines_do(client: Client, crash_sweep: CrashSweep, world: World) -> None:
    def look(value: int) -> int:
        world.called()
        return value

    @durable("plain")
    def plain(ctx: SyncContext) -> int:
        return ctx.step(look, 1) + ctx.step(look, 2)

    for story in crash_sweep(lambda: client.enqueue("plain")):
        assert (story.run.status, story.run.result) == (Status.COMPLETED, 3), story
        for key in story.ended_at_death:
            assert world.times(story.run.id, key) == 1, story


def test_a_failure_that_is_retried_survives_a_death_in_its_settling(
    client: Client, crash_sweep: CrashSweep, world: World
) -> None:
    async def flaky() -> str:
        key = current_step().run_id, "#1"
        world.called()
        if world.times(*key) == 1:
            raise ConnectionError("once")
        return "done"

    @durable("flaky")
    async def body(ctx: Context) -> str:
        return await ctx.step(flaky)

    for story in crash_sweep(lambda: client.enqueue("flaky"), whens=[When.BEFORE, When.AFTER]):
        assert (story.run.status, story.run.result) == (Status.COMPLETED, "done"), story
        assert story.run.requeue_count <= 2, story


@pytest.mark.settings(max_requeues=100)
def test_a_run_gets_on_although_every_process_that_takes_it_dies(
    client: Client, crash_sweep: CrashSweep, world: World
) -> None:
    async def work(value: int) -> int:
        world.called()
        return value

    @durable("long")
    async def long(ctx: Context) -> int:
        return sum([await ctx.step(work, number) for number in range(6)])

    run_id = client.enqueue("long")
    run, deaths = crash_sweep.relentless(run_id, every=3)
    assert (run.status, run.result) == (Status.COMPLETED, 15)
    assert deaths >= 5
    assert run.crash_count == deaths
    assert [world.times(run_id, f"#{n}") for n in range(1, 7)] == [1] * 6


def test_a_run_whose_processes_always_die_at_once_is_given_up(client: Client, crash_sweep: CrashSweep) -> None:
    @durable("doomed")
    async def doomed(ctx: Context) -> None:
        await ctx.step(asyncio.sleep, 0)

    run, deaths = crash_sweep.relentless(client.enqueue("doomed"), every=1)
    assert (run.status, run.reason) == (Status.FAILED, Reason.RETRIES_EXHAUSTED)
    assert deaths == 4, "three requeues, and the one too many"
