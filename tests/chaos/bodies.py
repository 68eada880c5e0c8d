"""What the workers of a chaos run do: five writes each, into a table that takes the same effect any number of times.

Every effect commits by a connection of its own, so nothing of agentrun can take it back or make it happen.
"""

from __future__ import annotations

import os
import random
import time
from contextlib import closing

import psycopg

from agentrun import NOT_APPLIED, Applied, Context, Effect, SyncContext, current_step, durable, effect

TABLE = """
CREATE TABLE IF NOT EXISTS side_effects (
    run_id uuid NOT NULL, write int NOT NULL, key text NOT NULL, pid int NOT NULL,
    at timestamptz NOT NULL DEFAULT clock_timestamp()
)
"""
WRITES = 5
SLOWEST = 0.06
"""Seconds on either side of the effect, at most; one write in ten takes six times as long."""


def happen(number: int) -> int:
    """The effect, somewhere in a random few milliseconds."""
    step, slow = current_step(), 6 if random.random() < 0.1 else 1
    time.sleep(random.random() * SLOWEST * slow)
    with closing(_connect()) as connection:
        connection.execute(
            "INSERT INTO side_effects (run_id, write, key, pid) VALUES (%s, %s, %s, %s)",
            [step.run_id, number, step.idempotency_key, os.getpid()],
        )
    time.sleep(random.random() * SLOWEST * slow)
    return number


def find(idempotency_key: str) -> object:
    """Whether the effect is there."""
    with closing(_connect()) as connection:
        found = connection.execute("SELECT write FROM side_effects WHERE key = %s", [idempotency_key]).fetchone()
    return NOT_APPLIED if found is None else Applied(found[0])


@effect(Effect.NON_IDEMPOTENT_WRITE, reconcile=find)
def happen_and_be_found(number: int) -> int:
    """The same, for those who can ask."""
    return happen(number)


@durable("chaos")
async def chaos(ctx: Context, writes: int) -> int:
    """One after the other; nobody can ask how they ended."""
    return sum([await ctx.write(happen, number) for number in range(writes)])


@durable("chaos-plain")
def chaos_plain(ctx: SyncContext, writes: int) -> int:
    """The same in a plain function."""
    return sum([ctx.write(happen, number) for number in range(writes)])


@durable("chaos-side-by-side")
async def chaos_side_by_side(ctx: Context, writes: int) -> int:
    """All in flight at once."""
    return sum(await ctx.gather(*[ctx.write(happen, number) for number in range(writes)]))


@durable("chaos-reconciled")
async def chaos_reconciled(ctx: Context, writes: int) -> int:
    """One after the other; an interrupted one is asked about."""
    return sum([await ctx.write(happen_and_be_found, number) for number in range(writes)])


KINDS = ("chaos", "chaos-plain", "chaos-side-by-side", "chaos-reconciled")


def _connect() -> psycopg.Connection:
    return psycopg.connect(os.environ["AGENTRUN_DATABASE_URL"], autocommit=True, connect_timeout=5)
