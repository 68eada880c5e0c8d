"""The broker inside the test's process: a test enqueues, drains, and sees the run at its end."""

from __future__ import annotations

import asyncio
from datetime import timedelta
from uuid import UUID

import pytest

from agentrun import AsyncClient, Client, Context, Settings, Status, durable
from agentrun.core.errors import StepFailed
from agentrun.core.words import Effect
from agentrun.runtime.remotesteps import remote_step, remote_steps
from agentrun.testing import LocalBroker, Unregistered
from agentrun.testing.clock import Clock


def test_a_drain_takes_a_run_through_parks_retries_children_and_timers(client: Client, broker: LocalBroker) -> None:
    tries = []

    @durable("parent")
    async def parent(ctx: Context, name: str) -> str:
        await ctx.sleep(hours=8)
        greeting = await ctx.child("greet", name)
        if not tries.append(1) and len(tries) < 3:
            raise ConnectionError("not now")
        return greeting

    @durable("greet")
    async def greet(ctx: Context, name: str) -> str:
        return f"hello {name}"

    run_id = client.enqueue("parent", "you")
    reports = broker.drain()
    run = client.status(run_id)
    assert (run.status, run.result, run.requeue_count) == (Status.COMPLETED, "hello you", 2)
    assert {report.kind for report in reports} == {"parent", "greet"}
    assert run.finished_at is not None
    assert run.finished_at - run.created_at > timedelta(hours=8)
    assert run_id in broker.ended


def test_what_waits_for_people_is_left_waiting(client: Client, broker: LocalBroker, clock: Clock) -> None:
    @durable("asks")
    async def asks(ctx: Context) -> bool:
        return bool(await ctx.approval("may I?", expires=3600))

    first, second = client.enqueue("asks"), client.enqueue("asks")
    broker.drain()
    assert client.status(first).status is Status.WAITING
    client.approve(first, by="ann")
    broker.drain()
    assert client.status(first).result is True
    clock.travel(hours=2)
    broker.drain()
    assert client.status(second).result is False


def test_time_passes_in_a_drain_only_where_it_may(client: Client, broker: LocalBroker, clock: Clock) -> None:
    @durable("later")
    async def later(ctx: Context) -> str:
        return "now"

    run_id = client.enqueue("later", delay=3600)
    assert broker.drain(travel=False) == []
    assert client.status(run_id).status is Status.QUEUED
    clock.travel(seconds=3600)
    assert [report.outcome for report in broker.drain(travel=False)] == ["completed"]


def test_lost_messages_are_found_by_the_sweep_of_a_drain(client: Client, broker: LocalBroker) -> None:
    @durable("small")
    async def small(ctx: Context) -> int:
        return 1

    run_ids = [client.enqueue("small") for _ in range(3)]
    assert broker.lose() == 3
    assert broker.drain(sweep=False, travel=False) == []
    broker.drain()
    assert {client.status(run_id).result for run_id in run_ids} == {1}
    broker.away = True
    last = client.enqueue("small")
    assert broker.messages == []
    broker.away = False
    broker.drain()
    assert client.status(last).result == 1


def test_a_run_that_goes_round_in_circles_ends_the_drain(client: Client, broker: LocalBroker) -> None:
    @durable("circles")
    async def circles(ctx: Context, lap: int = 0) -> None:
        await ctx.sleep(days=1)
        ctx.continue_as_new(lap + 1)

    client.enqueue("circles", 0)
    with pytest.raises(AssertionError, match="20 segments and steps, and still not idle"):
        broker.drain(most=20)


@pytest.mark.parametrize("how", list(Unregistered))
def test_a_kind_that_nobody_registered(client: Client, broker: LocalBroker, how: Unregistered) -> None:
    broker.unregistered = how
    run_id = client.enqueue("unheard-of")
    if how is Unregistered.STRICT:
        with pytest.raises(AssertionError, match="no kind `unheard-of` is registered in this process"):
            broker.drain()
    else:
        assert broker.drain() == []
        assert broker.lost[0].run_id == run_id
    assert client.status(run_id).status is Status.QUEUED


async def test_producers_of_other_makes_send_here_too(
    async_client: AsyncClient, broker: LocalBroker, settings: Settings
) -> None:
    @durable("small")
    async def small(ctx: Context) -> int:
        return 1

    run_ids: list[UUID] = [await async_client.enqueue("small")]
    with Client(settings=settings) as own:
        run_ids.append(own.enqueue("small"))
    await asyncio.to_thread(broker.drain)
    assert [(await async_client.status(run_id)).result for run_id in run_ids] == [1, 1]


def test_remote_steps_are_taken_in_the_drain(client: Client, broker: LocalBroker) -> None:
    pages: list[int] = []

    @remote_step("ocr", effect=Effect.IDEMPOTENT_WRITE)
    def ocr(page: int) -> str:
        pages.append(page)
        if len(pages) == 1:
            raise ConnectionError("not now")
        return f"page {page}"

    @durable("reads")
    async def reads(ctx: Context) -> list[str]:
        return await ctx.gather(*(ctx.remote("ocr", page, queue="gpu", retries=3) for page in (1, 2)))

    run_id = client.enqueue("reads")
    broker.drain()
    assert client.status(run_id).result == ["page 1", "page 2"]
    assert sorted(pages) == [1, 1, 2]


def test_strict_an_unregistered_remote_step_fails_at_once(client: Client, broker: LocalBroker) -> None:
    @durable("tries")
    async def tries(ctx: Context) -> str:
        try:
            return await ctx.remote("nobody's", 1, queue="gpu", retries=5)
        except StepFailed as error:
            return error.message

    run_id = client.enqueue("tries")
    before = len(remote_steps.names())
    broker.drain(travel=False)
    assert client.status(run_id).result == "no remote step `nobody's` is registered in this process"
    assert [step.attempt for step in client.steps(run_id) if step.kind == "remote"] == [1]
    assert len(remote_steps.names()) == before


def test_silent_an_unregistered_remote_step_is_lost_until_somebody_registers_it(
    client: Client, broker: LocalBroker, clock: Clock
) -> None:
    @durable("waits")
    async def waits(ctx: Context) -> str:
        return await ctx.remote("late", queue="gpu")

    broker.unregistered = Unregistered.SILENT
    run_id = client.enqueue("waits")
    broker.drain()
    assert client.status(run_id).status is Status.WAITING
    assert broker.lost[0].step_key == "#1"

    @remote_step("late", effect=Effect.READ_ONLY)
    def late() -> str:
        return "after all"

    clock.travel(minutes=1)
    broker.drain()
    assert client.status(run_id).result == "after all"
