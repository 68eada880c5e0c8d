"""What the workers of these tests execute: fans of remote steps, whose effects are told in the table `effects`."""

from __future__ import annotations

import asyncio
import os
import threading
from typing import Any

import psycopg

from agentrun import NOT_APPLIED, Applied, Context, Effect, current_step, durable, remote_step
from tests.remote.outside import QUEUE


@durable("big-fan")
async def big_fan(ctx: Context, count: int) -> list[Any]:
    """`count` steps side by side; every tenth charges."""
    names = ["big-charge" if n % 10 == 9 else "big-double" for n in range(count)]
    return await ctx.gather(*[ctx.remote(name, n, queue=QUEUE) for n, name in enumerate(names)])


@durable("one")
async def one(ctx: Context, options: dict[str, Any]) -> Any:
    """One step."""
    return await ctx.remote(options.pop("step"), options.pop("input", 1), queue=QUEUE, **options)


@remote_step("big-double", effect=Effect.READ_ONLY)
async def double(n: int) -> int:
    """Takes a moment, like a request to somebody."""
    await asyncio.sleep(0.02)
    return 2 * n


def _found(key: str) -> Any:
    with psycopg.connect(os.environ["AGENTRUN_DATABASE_URL"]) as connection:
        row = connection.execute("SELECT what FROM effects WHERE key = %s", (key,)).fetchone()
    return Applied(2 * int(row[0].split()[1])) if row is not None else NOT_APPLIED


@remote_step("big-charge", effect=Effect.NON_IDEMPOTENT_WRITE, reconcile=_found)
async def charge(n: int) -> int:
    """Happens outside, and must happen once."""
    _tell(f"charge {n}", current_step().idempotency_key)
    await asyncio.sleep(0.02)
    return 2 * n


@remote_step("slow", effect=Effect.READ_ONLY)
def slow(n: int) -> int:
    """Says that it has begun, and holds on at its first attempt."""
    _tell("began")
    if not _told("go on"):
        threading.Event().wait(30)
    return 3 * n


def _tell(what: str, key: str | None = None) -> None:
    step = current_step()
    with psycopg.connect(os.environ["AGENTRUN_DATABASE_URL"], autocommit=True) as connection:
        connection.execute(
            "INSERT INTO effects (run_id, key, what, pid, attempt) VALUES (%s, %s, %s, %s, %s)",
            (step.run_id, key or step.key, what, os.getpid(), step.attempt),
        )


def _told(what: str) -> bool:
    with psycopg.connect(os.environ["AGENTRUN_DATABASE_URL"]) as connection:
        return connection.execute("SELECT 1 FROM effects WHERE what = %s", (what,)).fetchone() is not None
