"""Bodies that are tried without a run: their steps end as they would in one."""

from __future__ import annotations

import asyncio

import pytest

from agentrun import Context, Fatal, Retries, StepFailed, WriteWithoutLease, durable, rehearse
from agentrun.core.policy import Backoff
from agentrun.runtime.kinds import Registry

QUICK = Backoff(base=0.001, cap=0.001)


class Flaky:
    """Fails until the third time."""

    def __init__(self) -> None:
        self.calls = 0

    async def __call__(self) -> int:
        self.calls += 1
        if self.calls < 3:
            raise ConnectionError("away")
        return self.calls


async def test_a_step_of_a_rehearsal_ends_with_its_timeout() -> None:
    async def body(ctx: Context) -> None:
        await ctx.options(timeout=0.05, name="hangs").step(asyncio.Event().wait)

    with pytest.raises(StepFailed, match=r"step `hangs` \(#1\) raised TimeoutError"):
        await asyncio.wait_for(rehearse(body), 30)


async def test_a_step_of_a_rehearsal_is_retried_as_its_body_or_its_kind_says(kinds: Registry) -> None:
    @durable("k", retries=Retries(3, QUICK))
    async def body(ctx: Context) -> list[int]:
        return [await ctx.step(Flaky()), await ctx.options(retries=Retries(4, QUICK)).step(Flaky())]

    assert await rehearse("k") == [3, 3]


async def test_a_step_of_a_rehearsal_that_fails_says_so_as_in_a_run() -> None:
    async def refuse() -> None:
        raise Fatal("never")

    async def body(ctx: Context) -> str:
        patient = ctx.options(retries=Retries(3, QUICK))
        with pytest.raises(StepFailed, match="Fatal: never"):
            await patient.step(refuse)
        once = Flaky()
        with pytest.raises(StepFailed, match="ConnectionError: away") as failed:
            await ctx.step(once)
        assert isinstance(failed.value.__cause__, ConnectionError)
        return f"called {once.calls}"

    assert await rehearse(body) == "called 1"


async def test_steps_of_a_rehearsal_may_be_gathered() -> None:
    async def body(ctx: Context) -> list[int]:
        return await ctx.gather(*(ctx.step(len, "a" * each) for each in range(3)), limit=2)

    assert await rehearse(body) == [0, 1, 2]


async def test_a_write_inside_a_step_of_a_rehearsal_is_refused_by_its_own_error() -> None:
    async def act() -> None: ...

    async def reads(ctx: Context) -> None:
        await ctx.write(act)

    async def body(ctx: Context) -> None:
        await ctx.options(retries=3).step(reads, ctx)

    with pytest.raises(WriteWithoutLease):
        await rehearse(body)
