"""Bodies that work on through deployments, until a file says that it is enough."""

from __future__ import annotations

import asyncio
from pathlib import Path

from agentrun import Context, Effect, durable, remote_step

STEP = 0.3
"""Seconds that a step takes."""

SLEEP = 1.5
"""Seconds that a run sleeps at a time: long enough to be parked for."""


@remote_step("delivers", effect=Effect.IDEMPOTENT_WRITE)
async def delivers(number: int) -> int:
    """A step on a queue."""
    await asyncio.sleep(STEP)
    return number


async def _works(gate: str) -> bool:
    await asyncio.sleep(STEP)
    return Path(gate).exists()


@durable("working")
async def working(ctx: Context, gate: str) -> int:
    """Step after step; how many there were."""
    rounds = 1
    while not await ctx.step(_works, gate):
        rounds += 1
    return rounds


@durable("delivering")
async def delivering(ctx: Context, gate: str) -> int:
    """The same, with each second step done by whoever takes it."""
    rounds = 0
    while not await ctx.step(_works, gate):
        assert await ctx.remote("delivers", rounds, queue="agentrun") == rounds
        rounds += 1
    return rounds


@durable("dozing")
async def dozing(ctx: Context, gate: str) -> int:
    """The same, with sleep in between, for which the run is parked."""
    rounds = 0
    while not await ctx.step(_works, gate):
        await ctx.sleep(SLEEP)
        rounds += 1
    return rounds
