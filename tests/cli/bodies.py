"""Bodies for the command line's tests: one ends well, one badly, one takes its time, one is on a queue of its own."""

from __future__ import annotations

import asyncio
from typing import Any

from agentrun import Context, Effect, Fatal, durable


@durable("greet")
async def greet(ctx: Context, name: str) -> str:
    return await ctx.step(_greeting, name)


@durable("break")
async def break_(ctx: Context, secret: str) -> str:
    await ctx.step(_greeting, secret)
    raise Fatal("the drawer is \x1b[31mstuck")


@durable("linger")
async def linger(ctx: Context, seconds: float) -> str:
    for _ in range(int(seconds * 10)):
        await ctx.step(asyncio.sleep, 0.1)
    return "gone"


@durable("render", queue="gpu")
async def render(ctx: Context, width: int, height: int) -> int:
    return width * height


@durable("pay")
async def pay(ctx: Context) -> str:
    return await ctx.write(_pay, effect=Effect.NON_IDEMPOTENT_WRITE)


@durable("pay-and-break")
async def pay_and_break(ctx: Context) -> None:
    await ctx.write(_pay, effect=Effect.NON_IDEMPOTENT_WRITE)
    raise Fatal("the drawer is stuck")


@durable("pay-two")
async def pay_two(ctx: Context) -> list[str]:
    return await ctx.gather(*(ctx.write(_pay, effect=Effect.NON_IDEMPOTENT_WRITE) for _ in range(2)))


@durable("book")
async def book(ctx: Context, cents: int) -> int:
    return await ctx.transaction(_book, cents)


def _book(connection: Any, cents: int) -> int:
    return connection.execute("SELECT %s AS cents", [cents]).fetchone()["cents"]


async def _greeting(name: str) -> str:
    return f"hello {name}"


async def _pay() -> str:
    raise ConnectionError("the bank hung up")
