"""The kinds that are measured. Bodies do nothing themselves, so that what is left is the engine's."""

from __future__ import annotations

import asyncio

from agentrun import Context, Effect, Retryable, durable
from bench.ticks import tick


async def one(number: int) -> int:
    return number


async def nap(seconds: float) -> None:
    await asyncio.sleep(seconds)


@durable("bench.noop")
async def noop(ctx: Context, number: int) -> int:
    return number


@durable("bench.steps")
async def steps(ctx: Context, count: int) -> int:
    for number in range(count):
        await ctx.step(one, number)
    return count


@durable("bench.writes")
async def writes(ctx: Context, count: int) -> int:
    for number in range(count):
        await ctx.write(one, number, effect=Effect.NON_IDEMPOTENT_WRITE)
    return count


@durable("bench.tick")
async def note(ctx: Context, number: int) -> None:
    tick()


@durable("bench.wait")
async def wait(ctx: Context, seconds: float) -> None:
    await asyncio.sleep(seconds)


@durable("bench.naps")
async def naps(ctx: Context, count: int) -> None:
    for _ in range(count):
        await ctx.step(nap, 0.1)


@durable("bench.replay")
async def replay(ctx: Context, count: int) -> int:
    """Its first segment does all the steps and fails; the second finds them in the journal."""
    for number in range(count):
        await ctx.step(one, number)
    if ctx.run.epoch == 1:
        raise Retryable("once more, from the journal")
    return count
