"""What the workers of these tests execute. What happens outside is told in the table `effects`, and so is what is
said from outside: `go on`, `cured`.
"""

from __future__ import annotations

import os
import signal
import threading
from typing import Any

import psycopg

from agentrun import Context, Effect, current_step, durable, log_line, on_stalled, remote_step
from tests.failure_modes.outside import QUEUE

on_stalled(log_line(), name="pager of the tests")


@durable("greets")
async def greets(ctx: Context, name: str) -> str:
    """One step."""
    return await ctx.step(_greeting, name)


@durable("holds")
async def holds(ctx: Context) -> str:
    """A step, and one that holds on until `go on` is said."""
    await ctx.step(_tell, "before")
    return await ctx.step(_held, "held")


@durable("charges")
async def charges(ctx: Context) -> str:
    """A write that nobody may repeat, and that takes its time."""
    return await ctx.write(_held, "charged")


@durable("poison", max_requeues=0)
async def poison(ctx: Context) -> str:
    """Takes its worker down, unless it is cured."""
    return await ctx.step(_deadly, "tried")


@durable("renders")
async def renders(ctx: Context) -> Any:
    """One remote step."""
    return await ctx.remote("render", queue=QUEUE)


@remote_step("render", effect=Effect.READ_ONLY)
def render() -> str:
    """Takes its worker down, unless it is cured."""
    return _deadly("rendered")


def _greeting(name: str) -> str:
    return f"hello {name}"


def _held(what: str) -> str:
    _tell(what)
    while not _said("go on"):
        threading.Event().wait(0.05)
    return what


def _deadly(what: str) -> str:
    _tell(what)
    if not _said("cured"):
        os.kill(os.getpid(), signal.SIGKILL)
    return what


def _tell(what: str) -> None:
    _sql("INSERT INTO effects (run_id, what) VALUES (%s, %s)", current_step().run_id, what)


def _said(what: str) -> bool:
    return bool(_sql("SELECT 1 FROM effects WHERE what = %s", what))


def _sql(statement: str, *values: Any) -> list[Any]:
    with psycopg.connect(os.environ["AGENTRUN_DATABASE_URL"], autocommit=True) as connection:
        cursor = connection.execute(statement, values)  # pyright: ignore[reportArgumentType]
        return cursor.fetchall() if cursor.description else []
