"""What the workers of a chaos run do: five writes each, into a table that takes the same effect any number of times.

They are done in steps of the run's own segment, or in remote steps that any worker of the fleet takes.

Every effect commits by a connection of its own, so nothing of agentrun can take it back or make it happen.
"""

from __future__ import annotations

import os
import random
import time
from contextlib import closing

import psycopg

from agentrun import (
    NOT_APPLIED,
    Applied,
    Context,
    Effect,
    SyncContext,
    current_step,
    durable,
    effect,
    remote_step,
)

TABLE = """
CREATE TABLE IF NOT EXISTS side_effects (
    run_id uuid NOT NULL, write int NOT NULL, key text NOT NULL, pid int NOT NULL,
    at timestamptz NOT NULL DEFAULT clock_timestamp()
)
"""
WRITES = 5
ELSEWHERE = "agentrun.elsewhere"
"""A queue beside the usual one, for some of the remote steps."""

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


@remote_step("happen-elsewhere", effect=Effect.NON_IDEMPOTENT_WRITE)
def happen_elsewhere(number: int) -> int:
    """The same, in whichever worker takes it; nobody can ask how it ended."""
    return happen(number)


@remote_step("happen-elsewhere-and-be-found", effect=Effect.NON_IDEMPOTENT_WRITE, reconcile=find, queue=ELSEWHERE)
def happen_elsewhere_and_be_found(number: int) -> int:
    """The same, for those who can ask: whoever takes it after somebody else asks first."""
    return happen(number)


@durable("chaos-remote")
async def chaos_remote(ctx: Context, writes: int) -> int:
    """One after the other, and the run is parked meanwhile."""
    return sum([await ctx.remote("happen-elsewhere", number) for number in range(writes)])


@durable("chaos-remote-side-by-side")
async def chaos_remote_side_by_side(ctx: Context, writes: int) -> int:
    """All on offer at once, for several workers to take."""
    return sum(await ctx.gather(*[ctx.remote("happen-elsewhere", number) for number in range(writes)]))


@durable("chaos-remote-reconciled")
def chaos_remote_reconciled(ctx: SyncContext, writes: int) -> int:
    """In a plain function, and on a queue of their own; an interrupted one is offered again and asked about."""
    return sum([ctx.remote("happen-elsewhere-and-be-found", number) for number in range(writes)])


KINDS = (
    "chaos",
    "chaos-remote",
    "chaos-plain",
    "chaos-remote-side-by-side",
    "chaos-side-by-side",
    "chaos-remote-reconciled",
    "chaos-reconciled",
)


def _connect() -> psycopg.Connection:
    return psycopg.connect(os.environ["AGENTRUN_DATABASE_URL"], autocommit=True, connect_timeout=5)
