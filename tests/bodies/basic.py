"""Bodies that real workers import: one per thing that a test wants a run to do."""

from __future__ import annotations

import asyncio
import time

from agentrun import Context, SyncContext, durable


@durable("echo")
async def echo(ctx: Context, value: str) -> str:
    return value


@durable("count")
async def count(ctx: Context, steps: int) -> int:
    """A run of so many steps."""
    total = 0
    for number in range(steps):
        total += await ctx.step(_one, number)
    return total


@durable("nap")
async def nap(ctx: Context, seconds: float) -> str:
    await ctx.step(asyncio.sleep, seconds)
    return "rested"


@durable("nap-in-thread")
def nap_in_thread(ctx: SyncContext, seconds: float) -> str:
    ctx.step(time.sleep, seconds)
    return "rested"


async def _one(number: int) -> int:
    return 1
