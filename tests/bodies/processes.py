"""Bodies for real workers. Every step leaves a row in the table `effects` (see `tests/processes/conftest.py`), so that
doing one twice shows; a gate is a file that a test creates.
"""

from __future__ import annotations

import asyncio
import os
import threading
import time
import uuid
from pathlib import Path
from typing import Any

import psycopg

from agentrun import NOT_APPLIED, Applied, Context, Effect, SyncContext, current_step, durable, effect, remote_step

PATIENCE = 30.0
"""Seconds for which a note waits for a database that is being restarted."""

_INSERT = """INSERT INTO effects (id, run_id, key, what, pid, attempt, idempotency_key)
VALUES (%s, %s, %s, %s, %s, %s, %s) ON CONFLICT DO NOTHING"""


class _Notebook:
    """One connection per process, made anew after a fork or a restart of the server."""

    def __init__(self) -> None:
        self._connections: dict[int, psycopg.Connection[Any]] = {}
        self._lock = threading.Lock()

    def execute(self, statement: str, params: Any) -> list[Any]:
        ends = time.monotonic() + PATIENCE
        while True:
            try:
                with self._lock:
                    cursor = self._connected().execute(statement, params)
                    return cursor.fetchall() if cursor.description else []
            except (psycopg.OperationalError, psycopg.InterfaceError):
                if time.monotonic() > ends:
                    raise
                time.sleep(0.05)

    def _connected(self) -> psycopg.Connection[Any]:
        there = self._connections.get(os.getpid())
        if there is None or there.closed or there.broken:
            there = psycopg.connect(os.environ["AGENTRUN_DATABASE_URL"], autocommit=True)
            self._connections[os.getpid()] = there
        return there


_notebook = _Notebook()


def note(what: str) -> str:
    """One row for one execution."""
    _notebook.execute(_INSERT, (uuid.uuid4(), *_row(what)))
    return what


def charge_within(connection: psycopg.Connection[Any], what: str) -> str:
    """One row in the transaction that records the step."""
    connection.execute(_INSERT, (uuid.uuid4(), *_row(what)))
    return what


def landed(idempotency_key: str) -> Any:
    """The outside system's answer to who lost the thread."""
    found = _notebook.execute("SELECT what FROM effects WHERE idempotency_key = %s", (idempotency_key,))
    return Applied(found[0][0]) if found else NOT_APPLIED


@effect(Effect.NON_IDEMPOTENT_WRITE, reconcile=landed)
def charge(what: str) -> str:
    """A write that can be asked about."""
    return note(what)


def charge_blindly(what: str) -> str:
    """A write that cannot."""
    return note(what)


async def opened(gate: str) -> None:
    """Wait until the gate is open."""
    while not Path(gate).exists():
        await asyncio.sleep(0.02)


def opened_plainly(gate: str) -> None:
    """The same in a thread, deaf to everything."""
    while not Path(gate).exists():
        time.sleep(0.02)


def _row(what: str) -> tuple[Any, ...]:
    step = current_step()
    return step.run_id, step.key, what, os.getpid(), step.attempt, step.idempotency_key


@durable("noted")
async def noted(ctx: Context, what: str) -> str:
    """One step."""
    return await ctx.step(note, what)


@durable("noted-plainly")
def noted_plainly(ctx: SyncContext, what: str) -> str:
    """One step, in a thread."""
    return ctx.step(note, what)


@durable("gated")
async def gated(ctx: Context, gate: str) -> str:
    """A step, a gate, a step."""
    await ctx.step(note, "before")
    await ctx.step(opened, gate)
    return await ctx.step(note, "after")


@durable("gated-plain")
def gated_plain(ctx: SyncContext, gate: str) -> str:
    """The same in a thread."""
    ctx.step(note, "before")
    ctx.step(opened_plainly, gate)
    return ctx.step(note, "after")


@durable("long")
async def long(ctx: Context, steps: int, seconds: float) -> int:
    """So many steps of so many seconds each."""
    for number in range(steps):
        await ctx.step(_slow_note, str(number), seconds)
    return steps


@durable("patrol")
async def patrol(ctx: Context, gate: str) -> int:
    """Step after step until the gate is open; how many there were."""
    rounds = 0
    while not await ctx.step(_is_open, gate):
        await ctx.step(_slow_note, str(rounds), 0.1)
        rounds += 1
    return rounds


@durable("long-plain")
def long_plain(ctx: SyncContext, steps: int, seconds: float) -> int:
    """The same in a thread."""
    for number in range(steps):
        ctx.step(_slow_note_in_thread, str(number), seconds)
    return steps


@durable("wait")
async def wait(ctx: Context, seconds: float) -> None:
    """Nothing but waiting."""
    await asyncio.sleep(seconds)


@durable("story")
async def story(ctx: Context) -> list[str]:
    """One step of every kind that exists: read-only, writes of three sorts, side by side, in the database itself."""
    told = [await ctx.step(note, "first")]
    told += [await ctx.write(note, "idempotent", effect=Effect.IDEMPOTENT_WRITE)]
    told += await ctx.gather(ctx.step(note, "left"), ctx.step(note, "right"))
    told += [await ctx.write(charge, "charged")]
    told += [await ctx.transaction(charge_within, "within")]
    return [*told, await ctx.step(note, "last")]


@durable("blind")
async def blind(ctx: Context) -> str:
    """A write that nobody can ask about, between two steps."""
    await ctx.step(note, "first")
    await ctx.write(charge_blindly, "charged")
    return await ctx.step(note, "last")


@durable("fails-once")
async def fails_once(ctx: Context, what: str) -> str:
    """A failure that is worth another attempt, then success."""
    await ctx.step(note, what)
    if ctx.run.requeue_count == 0:
        raise ConnectionError("not yet")
    return what


async def _is_open(gate: str) -> bool:
    return Path(gate).exists()


async def _slow_note(what: str, seconds: float) -> str:
    await asyncio.sleep(seconds)
    return await asyncio.to_thread(note, what)


def _slow_note_in_thread(what: str, seconds: float) -> str:
    time.sleep(seconds)
    return note(what)


@remote_step("far-note", effect=Effect.IDEMPOTENT_WRITE)
async def far_note(what: str, seconds: float, failures: int) -> str:
    """A step on a queue that takes its time, and fails so many times before it ends well."""
    await asyncio.sleep(seconds)
    note(what)
    if current_step().attempt <= failures:
        raise ConnectionError("not yet")
    return what


@durable("far")
async def far(ctx: Context, seconds: float, failures: int, backoff: float) -> str:
    """A remote step, with a pause after its first try."""
    wanted = {"what": "far", "seconds": seconds, "failures": failures}
    return await ctx.remote("far-note", wanted, retries=failures + 1, backoff=backoff)
