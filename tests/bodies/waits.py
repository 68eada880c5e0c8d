"""Bodies of runs that wait, for real workers."""

from __future__ import annotations

import os
import signal
from pathlib import Path

from agentrun import Context, durable


@durable("decide")
async def decide(ctx: Context) -> str:
    """Waits for an approval, and says whose it was."""
    said = await ctx.approval("go on?")
    return await ctx.step(_told, said.by or "nobody")


@durable("hear")
async def hear(ctx: Context) -> int:
    """Waits for a signal, and says what came."""
    return await ctx.signal("go")


@durable("fan-out")
async def fan_out(ctx: Context, children: int, deadly: int, limit: int) -> list[int]:
    """So many children, so many of which kill their worker's process the first time."""
    every = children // deadly if deadly else children + 1
    requests = [{"value": value, "deadly": value % every == every - 1} for value in range(children)]
    return await ctx.gather(*[ctx.child("square", request) for request in requests], limit=limit)


@durable("square")
async def square(ctx: Context, value: int, deadly: bool) -> int:
    if deadly and await ctx.step(_process) == os.getpid():
        os.kill(os.getpid(), signal.SIGKILL)
    return await ctx.step(_squared, value)


@durable("short-sleep")
async def short_sleep(ctx: Context, seconds: float) -> str:
    await ctx.sleep(seconds)
    return await ctx.step(_told, "rested")


async def _process() -> int:
    return os.getpid()


async def _told(what: str) -> str:
    return what


async def _squared(value: int) -> int:
    return value * value


@durable("pay-once")
async def pay_once(ctx: Context, ledger: str) -> list[str | None]:
    """Waits for an approval, then writes what was approved to a file: a line for every time it does."""
    said = await ctx.approval("pay?", payload={"cents": 500})
    die_at("before the tool")
    await ctx.write(_written, ledger, said.payload["cents"])
    die_at("after the tool")
    return [said.by, Path(ledger).read_text()]


def die_at(moment: str) -> None:
    """The process is killed here, if it was told to be."""
    if os.environ.get("AGENTRUN_TEST_DIE") == moment:
        os.kill(os.getpid(), signal.SIGKILL)


def _written(ledger: str, cents: int) -> None:
    with Path(ledger).open("a") as lines:
        lines.write(f"{cents}\n")
    die_at("in the tool")
