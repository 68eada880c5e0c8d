"""The kinds that are measured. Bodies do nothing themselves, so that what is left is the engine's."""

from __future__ import annotations

import asyncio
import os
from typing import Any

import psycopg

from agentrun import NOT_APPLIED, Applied, Context, Effect, Retryable, current_step, durable, effect
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


@durable("bench.signal")
async def signalled(ctx: Context, name: str) -> None:
    await ctx.signal(name)
    tick()


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


def effects(statement: str, *params: object) -> list[tuple[Any, ...]]:
    """On a connection of its own: nothing of agentrun can take an effect back."""
    with psycopg.connect(os.environ["AGENTRUN_DATABASE_URL"], autocommit=True) as connection:
        cursor = connection.execute(statement, params)
        return cursor.fetchall() if cursor.description else []


async def happen(number: int) -> str:
    await asyncio.to_thread(effects, "INSERT INTO effects VALUES (%s, %s)", number, current_step().idempotency_key)
    await asyncio.sleep(1)
    return "done"


def found(key: str) -> object:
    return Applied("done") if effects("SELECT 1 FROM effects WHERE key = %s", key) else NOT_APPLIED


@effect(Effect.NON_IDEMPOTENT_WRITE, reconcile=found)
async def happen_and_be_found(number: int) -> str:
    return await happen(number)


@durable("bench.five")
async def five(ctx: Context, reconciled: bool) -> int:
    for number in range(5):
        if reconciled:
            await ctx.write(happen_and_be_found, number)
        else:
            await ctx.write(happen, number, effect=Effect.NON_IDEMPOTENT_WRITE)
    return 5
