"""Several writes in flight at once: each has a fence of its own, and the segment ends only after all of them."""

from __future__ import annotations

import asyncio
import contextlib
from uuid import UUID

import pytest

from agentrun import Client, Context, NotApplied, Reason, Status, durable
from agentrun.runtime.engine import Engine
from agentrun.testing import until


def in_flight(client: Client, run_id: UUID) -> set[str]:
    return {step.name for step in client.steps(run_id) if step.status == "started"}


def test_writes_side_by_side_are_each_fenced(client: Client, engine: Engine) -> None:
    seen: list[set[str]] = []
    both = asyncio.Barrier(2)

    async def left() -> str:
        await both.wait()
        return "left"

    async def right() -> str:
        await both.wait()
        seen.append(await asyncio.to_thread(in_flight, client, run_id))
        return "right"

    @durable("both")
    async def both_at_once(ctx: Context) -> list[str]:
        return await ctx.gather(ctx.write(left), ctx.write(right))

    run_id = client.enqueue("both")
    assert engine.run(run_id).outcome == "completed"
    assert client.status(run_id).result == ["left", "right"]
    assert seen == [{"left", "right"}] or seen == [{"right"}]
    assert client.status(run_id).pending_effect is None


def test_the_fence_stands_until_the_last_of_several_writes_has_ended(client: Client, engine: Engine) -> None:
    seen: list[str | None] = []
    first_ended = asyncio.Event()

    async def quick() -> None:
        pass

    async def slow() -> None:
        await first_ended.wait()
        seen.append((await asyncio.to_thread(client.status, run_id)).pending_effect)

    @durable("uneven")
    async def uneven(ctx: Context) -> None:
        async def branch() -> None:
            await ctx.write(quick)
            first_ended.set()

        await asyncio.gather(branch(), ctx.write(slow))

    run_id = client.enqueue("uneven")
    assert engine.run(run_id).outcome == "completed"
    assert seen == ["non_idempotent_write"]
    assert client.status(run_id).pending_effect is None


@pytest.mark.parametrize("way", ["gather", "asyncio", "group"])
def test_one_interrupted_write_of_several_leaves_only_that_one_in_flight(
    client: Client, engine: Engine, way: str
) -> None:
    """The others' ends are recorded, whatever construct the body waits with."""
    failed = asyncio.Event()

    async def breaks() -> None:
        failed.set()
        raise RuntimeError("half-way")

    async def lasts() -> str:
        await failed.wait()
        await asyncio.sleep(0.05)
        return "landed"

    @durable("two-writes")
    async def two_writes(ctx: Context) -> None:
        pair = ctx.write(lasts), ctx.write(breaks)
        match way:
            case "gather":
                await ctx.gather(*pair)
            case "asyncio":
                await asyncio.gather(*pair)
            case _:
                async with asyncio.TaskGroup() as group:
                    for each in pair:
                        group.create_task(each)

    run_id = client.enqueue("two-writes")
    assert engine.run(run_id).outcome == "failed"
    run = client.status(run_id)
    assert (run.status, run.reason) == (Status.FAILED, Reason.NOT_RETRYABLE)
    assert run.error is not None
    assert [write["name"] for write in run.error["in_flight"]] == ["breaks"]
    assert {step.name: step.status for step in client.steps(run_id)} == {"breaks": "started", "lasts": "completed"}


def test_a_write_left_behind_by_its_body_is_waited_for(client: Client, engine: Engine) -> None:
    """A body that returns without its write does not settle over it."""

    async def slow() -> str:
        await asyncio.sleep(0.1)
        return "late"

    @durable("careless")
    async def careless(ctx: Context) -> str:
        left_behind.append(asyncio.ensure_future(ctx.write(slow)))
        await asyncio.sleep(0.02)
        return "early"

    left_behind: list[asyncio.Future[str]] = []
    run_id = client.enqueue("careless")
    assert engine.run(run_id).outcome == "completed"
    assert [step.status for step in client.steps(run_id)] == ["completed"]
    assert client.status(run_id).pending_effect is None


def test_a_failure_beside_a_write_waits_for_the_write(client: Client, engine: Engine) -> None:
    """The step's failure decides (retry), and the write that landed is not repeated by the next segment."""
    attempts: list[str] = []

    async def slow() -> str:
        attempts.append("slow")
        await asyncio.sleep(0.1)
        return "landed"

    async def breaks() -> None:
        attempts.append("breaks")
        if attempts.count("breaks") == 1:
            raise ConnectionError("not now")

    @durable("mixed")
    async def mixed(ctx: Context) -> None:
        await asyncio.gather(ctx.write(slow), ctx.step(breaks))

    run_id = client.enqueue("mixed")
    assert engine.run(run_id).outcome == "requeued"
    assert {step.name: step.status for step in client.steps(run_id)} == {"slow": "completed", "breaks": "redo"}
    until(lambda: engine.run(run_id).outcome == "completed")
    assert attempts.count("slow") == 1


def test_a_body_that_swallows_an_interrupted_write_does_not_complete(client: Client, engine: Engine) -> None:
    async def breaks() -> None:
        raise RuntimeError("half-way")

    async def other() -> None:
        started.append("other")

    started: list[str] = []

    @durable("swallows")
    async def swallows(ctx: Context) -> str:
        with contextlib.suppress(BaseException):
            await ctx.write(breaks)
        with contextlib.suppress(BaseException):
            await ctx.write(other)
        return "as if nothing were"

    run_id = client.enqueue("swallows")
    assert engine.run(run_id).outcome == "failed"
    assert client.status(run_id).reason is Reason.NOT_RETRYABLE
    assert started == []


def test_a_branch_left_behind_starts_nothing_after_its_body_ended(client: Client, engine: Engine) -> None:
    """Not even in the next segment's time, in the same process."""
    started: list[str] = []
    ended = asyncio.Event()

    async def late() -> None:
        started.append("late")

    @durable("stray")
    async def stray(ctx: Context) -> None:
        async def branch() -> None:
            await ended.wait()
            await ctx.write(late)

        strays.append(asyncio.ensure_future(branch()))

    strays: list[asyncio.Future[None]] = []
    run_id = client.enqueue("stray")
    assert engine.run(run_id).outcome == "completed"
    engine.loop.call_soon_threadsafe(ended.set)
    until(lambda: strays[0].done())
    assert started == []
    assert client.steps(run_id) == []
    assert strays[0].cancelled() or not isinstance(strays[0].exception(), Exception)


def test_the_same_call_twice_has_one_effect_and_one_result(client: Client, engine: Engine) -> None:
    """Side by side and one after the other: a key names one step."""
    made: list[int] = []

    async def pay() -> int:
        made.append(1)
        await asyncio.sleep(0.02)
        return len(made)

    @durable("twice")
    async def twice(ctx: Context) -> list[int]:
        call = ctx.options(key="call-7")
        together = await ctx.gather(call.write(pay), call.write(pay))
        return [*together, await call.write(pay), await call.write(pay)]

    run_id = client.enqueue("twice")
    assert engine.run(run_id).outcome == "completed"
    assert client.status(run_id).result == [1, 1, 1, 1]
    assert made == [1]


def test_a_read_only_call_twice_is_one_step(client: Client, engine: Engine) -> None:
    made: list[int] = []

    async def look() -> int:
        made.append(1)
        return len(made)

    @durable("looks")
    async def looks(ctx: Context) -> list[int]:
        call = ctx.options(key="look")
        return [await call.step(look), await call.step(look)]

    run_id = client.enqueue("looks")
    assert engine.run(run_id).outcome == "completed"
    assert client.status(run_id).result == [1, 1]


def test_a_failed_call_twice_fails_the_same_way(client: Client, engine: Engine) -> None:
    made: list[int] = []

    async def refuse() -> None:
        made.append(1)
        raise NotApplied("no such account")

    @durable("refused-twice")
    async def refused_twice(ctx: Context) -> list[str]:
        said: list[str] = []
        for _ in range(2):
            try:
                await ctx.options(key="call").write(refuse)
            except Exception as error:
                said.append(str(error))
        return said

    run_id = client.enqueue("refused-twice")
    assert engine.run(run_id).outcome == "completed"
    first, second = client.status(run_id).result
    assert first == second
    assert made == [1]
