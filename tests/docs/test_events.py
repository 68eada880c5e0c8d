"""Every event of the page happens, and carries what the page says."""

from __future__ import annotations

import asyncio
import threading
from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any
from uuid import UUID

import psycopg
import pytest

from agentrun import Client, Context, Effect, NotApplied, Retryable, RunFailed, durable, remote_step
from agentrun.core.words import EventType
from agentrun.runtime.engine import Engine
from agentrun.runtime.kinds import Registry
from agentrun.runtime.segment import run_segment
from agentrun.testing import until
from tests.docs.pages import ROOT
from tests.docs.test_tables import rows_of, words_in

EXPIRE = "UPDATE agentrun.runs SET lease_expires_at = now() - interval '1 second' WHERE id = %s"

TAKEN_BY_THE_DEAD = """
UPDATE agentrun.steps SET status = 'started', step_epoch = coalesce(step_epoch, 0) + 1, by = 'worker:dead:1',
    started_seq = nextval('agentrun.event_seq'), started_at = now(), due_at = NULL,
    lease_expires_at = now() - interval '1 s'
WHERE run_id = %s AND status = 'offered'
"""

arrived = threading.Event()


async def unknown() -> str:
    raise RuntimeError("in the middle")


async def not_applied() -> str:
    raise NotApplied("nothing happened")


async def not_ready() -> str:
    raise Retryable("not ready")


async def hold() -> None:
    arrived.set()
    await asyncio.sleep(30)


async def events(ctx: Context, what: str) -> str:
    match what:
        case "write":
            return await ctx.write(unknown)
        case "not applied":
            return await ctx.write(not_applied)
        case "retry":
            return await ctx.step(not_ready)
        case "remote":
            return await ctx.remote("flaky", retries=2, effect=Effect.READ_ONLY)
        case "hold":
            await ctx.step(hold)
        case "ask":
            await ctx.approval("Go on?", payload={"n": 1}, editable=True)
            await ctx.signal("go")
            await ctx.signal("never", timeout=0.01, default=None)
            await ctx.child("events", "plain")
            ctx.continue_as_new("plain")
        case _:
            pass
    return await ctx.step(str, what)


@dataclass
class Stage:
    """One engine, one producer, and the runs so far."""

    client: Client
    engine: Engine
    runs: list[UUID] = field(default_factory=list[UUID])

    def once(self, what: str) -> UUID:
        """A run and one segment of it."""
        self.runs.append(self.client.enqueue("events", what))
        self.engine.run(self.runs[-1])
        return self.runs[-1]

    def holding(self) -> UUID:
        """A run that is in the middle of its first step."""
        arrived.clear()
        self.runs.append(self.client.enqueue("events", "hold"))
        self.engine.submit(run_segment(self.engine, self.runs[-1]))
        assert arrived.wait(20)
        return self.runs[-1]

    def until_status(self, run_id: UUID, status: str) -> None:
        until(lambda: self.client.status(run_id).status == status, 20)

    def told(self) -> dict[str, set[str]]:
        """The members of each type's data, over all runs."""
        seen: dict[str, set[str]] = defaultdict(set)
        for run_id in self.runs:
            for event in self.client.events(run_id):
                seen[event.type] |= set(event.data)
        return seen


@pytest.mark.settings(lease_seconds=30, drain_seconds=0.05, max_requeues=1)
def test_every_event_carries_what_the_page_says(
    client: Client, engine: Engine, sweep: Callable[[], Any], kinds: Registry
) -> None:
    durable("events")(events)
    stage = Stage(client, engine)
    for what in ("plain", "not applied", "retry"):
        stage.once(what)
    client.resolve(stage.once("write"), applied=True, result="done")
    stage.runs.append(client.enqueue("events", "plain", delay=60))
    client.cancel(stage.runs[-1])
    with pytest.raises(RunFailed):
        client.run("events", "write")
    stage.runs.append(client.list(limit=1)[0].id)
    lost = stage.holding()
    _lose(lost, stage, sweep, "queued")
    arrived.clear()
    engine.submit(run_segment(engine, lost))
    assert arrived.wait(20)
    # The second loss is one more than the budget allows.
    _lose(lost, stage, sweep, "failed")
    _answered(stage, sweep)
    _elsewhere(stage, sweep)
    cancelled = stage.holding()
    client.cancel(cancelled)
    stage.until_status(cancelled, "cancelled")
    handed_back = stage.holding()
    engine.drain()
    stage.until_status(handed_back, "queued")
    until(lambda: not engine.executing, 20)

    said = {cells[0].strip("`"): words_in(cells[2]) for cells in rows_of(ROOT / "docs/reference/events.md", "type")}
    told = stage.told()
    assert told.keys() == set(EventType)
    assert {name: (members, said[name]) for name, members in told.items() if members != said[name]} == {}


def _answered(stage: Stage, sweep: Callable[[], Any]) -> None:
    """A run that waits for one thing after the other, and gets it."""
    run_id = stage.once("ask")
    stage.client.approve(run_id, by="grace", edits={"n": 2})
    stage.engine.run(run_id)
    stage.client.signal(run_id, "go")
    stage.engine.run(run_id)
    until(lambda: sweep() and stage.client.status(run_id).status == "queued", 20)
    stage.engine.run(run_id)
    stage.engine.run(stage.client.list(parent=run_id)[0].id)
    stage.engine.run(run_id)
    stage.until_status(run_id, "completed")


def _elsewhere(stage: Stage, sweep: Callable[[], Any]) -> None:
    """A remote step that fails once, and whose taker then dies twice."""
    tries: list[int] = []

    @remote_step("flaky")
    def flaky() -> str:
        tries.append(1)
        if len(tries) == 1:
            raise ConnectionError("away")
        return "done"

    run_id = stage.once("remote")
    (step,) = [step for step in stage.client.steps(run_id) if step.kind == "remote"]
    assert stage.engine.run_step(run_id, step.key).outcome == "retried"
    for heal in (sweep, lambda: stage.client.redispatch(run_id)):
        _sql(stage, TAKEN_BY_THE_DEAD, run_id)
        heal()
    assert stage.engine.run_step(run_id, step.key).outcome == "completed"
    stage.engine.run(run_id)
    stage.until_status(run_id, "completed")


def _sql(stage: Stage, statement: str, run_id: UUID) -> None:
    with psycopg.connect(stage.engine.settings.require_database(), autocommit=True) as connection:
        connection.execute(statement, [run_id])  # pyright: ignore[reportArgumentType]


def _lose(run_id: UUID, stage: Stage, sweep: Callable[[], Any], status: str) -> None:
    """Its lease runs out. Again where a heartbeat renewed it in between."""
    with psycopg.connect(stage.engine.settings.require_database(), autocommit=True) as connection:
        while stage.client.status(run_id).status != status:
            connection.execute(EXPIRE, [run_id])
            sweep()
