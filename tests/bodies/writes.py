"""Bodies for the tests of writes: each effect is a row in a table that takes the same one any number of times."""

from __future__ import annotations

import asyncio
import os
import signal
import time
from contextlib import closing
from pathlib import Path

import psycopg

from agentrun import NOT_APPLIED, Applied, Context, Effect, SyncContext, current_step, durable, effect


def sql(statement: str, *params: object) -> list[tuple[object, ...]]:
    """On a connection of its own: nothing of agentrun can take it back."""
    url = os.environ["AGENTRUN_DATABASE_URL"]
    with closing(psycopg.connect(url, autocommit=True, connect_timeout=5)) as connection:
        cursor = connection.execute(statement, params)
        return cursor.fetchall() if cursor.description else []


def happen(what: str, seconds: float = 0.0) -> str:
    """The effect, and then some time until the write returns."""
    step = current_step()
    sql(
        "INSERT INTO side_effects (run_id, what, key, pid) VALUES (%s, %s, %s, %s)",
        step.run_id, what, step.idempotency_key, os.getpid(),
    )  # fmt: skip
    time.sleep(seconds)
    return what


def find(idempotency_key: str) -> object:
    found = sql("SELECT what FROM side_effects WHERE key = %s", idempotency_key)
    return Applied(found[0][0]) if found else NOT_APPLIED


@effect(Effect.NON_IDEMPOTENT_WRITE, reconcile=find)
def happen_and_be_found(what: str, seconds: float = 0.0) -> str:
    return happen(what, seconds)


@durable("writes")
async def writes(ctx: Context, whats: list[str]) -> list[str]:
    """One write for each."""
    return [await ctx.write(happen, what) for what in whats]


@durable("five-writes")
async def five_writes(ctx: Context, seconds: float, reconcile: bool) -> list[str]:
    """Five writes of so many seconds each."""
    function = happen_and_be_found if reconcile else happen
    return [await ctx.write(function, str(number), seconds) for number in range(5)]


@durable("pauses-between")
async def pauses_between(ctx: Context, seconds: float) -> list[str]:
    """A write, a step that takes a while, two writes."""
    first = await ctx.write(happen, "first")
    await ctx.step(asyncio.sleep, seconds)
    return [first, await ctx.write(happen, "second"), await ctx.write(happen, "third")]


@durable("long-async")
async def long_async(ctx: Context, seconds: float) -> str:
    return await ctx.write(happen_slowly, seconds)


async def happen_slowly(seconds: float) -> str:
    await asyncio.to_thread(happen, "async")
    await asyncio.sleep(seconds)
    return "async"


@durable("long-thread")
def long_thread(ctx: SyncContext, seconds: float) -> str:
    return ctx.write(happen, "thread", seconds)


@durable("long-then-short")
async def long_then_short(ctx: Context, seconds: float) -> str:
    await ctx.write(happen, "thread", seconds)
    return await ctx.write(happen, "last")


@durable("long-cpu")
def long_cpu(ctx: SyncContext, seconds: float) -> str:
    return ctx.write(burn, seconds)


def burn(seconds: float) -> str:
    """Pure Python, and never a pause."""
    happen("cpu")
    ends = time.monotonic() + seconds
    number = 0
    while time.monotonic() < ends:
        number = (number * 31 + 7) % 1_000_003
    return "cpu"


@durable("poison", max_requeues=2)
async def poison(ctx: Context) -> str:
    """Kills its process, until somebody has written that it is cured."""
    await ctx.write(happen, "before")
    return await ctx.step(die_unless_cured)


def die_unless_cured() -> str:
    happen("tried")
    if not sql("SELECT 1 FROM side_effects WHERE what = 'cured'"):
        os.kill(os.getpid(), signal.SIGKILL)
    return "cured"


@durable("steps-by-the-clock")
async def steps_by_the_clock(ctx: Context, path: str, seconds: float) -> str:
    """A step every tenth of a second, side by side; each notes the time at which it starts. And one that stays."""

    async def later(number: int) -> None:
        await asyncio.sleep(number / 10)
        await ctx.step(note, path, "started")

    stays = ctx.step(stay, path)
    await asyncio.gather(stays, *(later(number) for number in range(int(seconds * 10))))
    return "done"


async def note(path: str, what: str) -> None:
    with Path(path).open("a") as file:
        file.write(f"{what} {time.monotonic()}\n")


async def stay(path: str) -> None:
    """Until it is interrupted; the second time it does not stay."""
    if "stays" in Path(path).read_text():
        return
    await note(path, "stays")
    try:
        await asyncio.sleep(3600)
    finally:
        await note(path, "interrupted")


@durable("patient", lease_seconds=3600.0, timeout=7200)
async def patient(ctx: Context) -> None:
    """Its own lease is an hour: nobody else's recovery may wait for that."""
    await ctx.write(happen, "began")
    await ctx.step(asyncio.sleep, 3600)
