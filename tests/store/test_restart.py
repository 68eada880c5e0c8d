"""PostgreSQL crashes and comes back: nothing is lost, nothing is doubled, and nobody has to be told."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from uuid import UUID

import pytest

from agentrun.core.words import EventType, Status
from agentrun.embedded.postgres import StopMode
from agentrun.store import journal, reads, transitions
from agentrun.store.batches import Write
from agentrun.store.database import Database
from agentrun.store.writer import Writer
from agentrun.testing.rows import Rows
from agentrun.testing.servers import Servers

pytestmark = pytest.mark.own_servers


def record(rows: Rows, run_id: UUID, key: str) -> Write:
    said = rows.params(run_id) | rows.step(key)
    return Write(journal.RECORD, said, landed=journal.STEP_LANDED, landed_params={"landed_status": said["status"]})


def completed(rows: Rows, run_id: UUID) -> Write:
    landed = {"landed_type": str(EventType.SETTLED)}
    params = rows.params(run_id, reason="completed", result="1")
    return Write(transitions.SETTLE[Status.COMPLETED], params, landed=reads.MOVE_LANDED, landed_params=landed)


async def test_postgres_restarted_under_load_loses_and_doubles_nothing(
    agentrun_servers: Servers, database: Database
) -> None:
    """`immediate` is a crash: connections vanish in mid-transaction, and recovery follows."""
    assert agentrun_servers.embedded is not None
    rows = Rows(database)
    runs = [rows.running() for _ in range(20)]
    writer = Writer(database.url)
    landed = 0

    async def life(run_id: UUID) -> None:
        nonlocal landed
        for number in range(40):
            assert await writer.write(record(rows, run_id, f"s{number}"))
            landed += 1
        assert await writer.write(completed(rows, run_id))

    lives = asyncio.gather(*(life(run_id) for run_id in runs))
    await eventually_in_loop(lambda: landed > 100)
    await asyncio.to_thread(agentrun_servers.embedded.postgres.restart, StopMode.IMMEDIATE)
    assert not lives.done(), "the restart came in the middle"
    await asyncio.wait_for(lives, 30)
    await writer.close()
    for run_id in runs:
        stored = rows.stored(run_id)
        assert len(stored["steps"]) == 40
        assert [move["type"] for move in stored["moves"]] == ["claimed", "settled"]


async def eventually_in_loop(predicate: Callable[[], bool]) -> None:
    async with asyncio.timeout(10):
        while not predicate():
            await asyncio.sleep(0.001)


def test_reads_and_commands_survive_a_restart_however_many_connections_it_broke(
    agentrun_servers: Servers, database: Database
) -> None:
    assert agentrun_servers.embedded is not None
    rows = Rows(database)
    run_id = rows.queued()
    with database.connection(), database.connection(), database.connection():
        """Three connections wait in the pool now."""
    agentrun_servers.embedded.postgres.restart(StopMode.IMMEDIATE)
    assert database.row(reads.RUN_BY_ID, {"run_id": run_id})
    with database.transaction() as connection:
        assert connection.execute("SELECT 1 AS one").fetchone() == {"one": 1}
