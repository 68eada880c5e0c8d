"""A process that is killed and starts again under its stable id takes back at once what it held, and nothing else.

An engine whose heartbeat was closed is a killed process: its connection is gone, its row and its leases are there.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any
from uuid import UUID

import pytest

from agentrun import Client, Context, Effect, Status, durable, remote_step
from agentrun.runtime.engine import Engine
from agentrun.runtime.segment import run_segment
from agentrun.settings import Settings
from agentrun.store.database import Database
from agentrun.testing import until

pytestmark = pytest.mark.settings(lease_seconds=60, heartbeat_seconds=15, stable_id="pod-0", redispatch_max=3)

Made = Callable[..., Engine]


class Stage:
    """Bodies that stay where they are until the test ends, and how many have begun."""

    def __init__(self) -> None:
        self.begun, self.over = threading.Semaphore(0), threading.Event()

    def hold(self) -> str:
        self.begun.release()
        assert self.over.wait(30)
        return "held"

    def begin(self, client: Client, engine: Engine, kind: str) -> UUID:
        run_id = client.enqueue(kind)
        engine.submit(run_segment(engine, run_id))
        assert self.begun.acquire(timeout=10)
        return run_id


@pytest.fixture
def stage(client: Client) -> Any:
    there = Stage()

    @durable("holds")
    async def holds(ctx: Context) -> str:
        return await ctx.step(there.hold)

    @durable("pays")
    async def pays(ctx: Context) -> str:
        return await ctx.write(there.hold)

    remote_step("held", effect=Effect.READ_ONLY)(there.hold)

    @durable("asks")
    async def asks(ctx: Context) -> Any:
        return await ctx.remote("held")

    yield there
    there.over.set()


@pytest.fixture
def process(make_engine: Made) -> Made:
    """A process that has said that it is here."""

    def start(**options: Any) -> Engine:
        engine = make_engine(**options)
        engine.heartbeat.beat()
        return engine

    return start


def test_it_takes_back_at_once_what_it_held(
    client: Client, process: Made, stage: Stage, sweep: Callable[[], Any]
) -> None:
    first = process()
    run_id, asking = stage.begin(client, first, "holds"), client.enqueue("asks")
    first.run(asking)
    (step,) = client.steps(asking)
    first.submit(_taken(first, asking, step.key))
    assert stage.begun.acquire(timeout=10)
    first.heartbeat.close()
    why: list[str] = []
    process(sweep=why.append)
    assert why == ["a sweep takes them back"]
    found = sweep()
    assert (found.requeued, found.redispatched) == (1, 1)
    run = client.status(run_id)
    assert (run.status, run.crash_count, run.requeue_count) == (Status.QUEUED, 1, 1), "a crash like any other"
    assert client.steps(asking)[0].status == "offered"


async def _taken(engine: Engine, run_id: UUID, key: str) -> Any:
    from agentrun.runtime.taking import run_step

    return await run_step(engine, run_id, key)


def test_a_write_in_flight_is_not_repeated_but_settled_as_interrupted(
    client: Client, process: Made, stage: Stage, sweep: Callable[[], Any]
) -> None:
    first = process()
    run_id = stage.begin(client, first, "pays")
    first.heartbeat.close()
    process()
    assert sweep().dead_lettered == 1
    run = client.status(run_id)
    assert (run.status, run.pending_effect) == (Status.FAILED, "non_idempotent_write")


def test_nothing_is_taken_from_a_process_that_lives_nor_from_itself(
    client: Client, process: Made, stage: Stage, sweep: Callable[[], Any]
) -> None:
    first = process()
    run_id = stage.begin(client, first, "holds")
    second = process()
    second.heartbeat.beat()
    first.heartbeat.beat()
    assert sweep().requeued == 0
    assert client.status(run_id).status == Status.RUNNING


@pytest.mark.parametrize("other", [{"stable_id": "pod-1"}, {"stable_id": None}, {"namespace": "other"}], ids=str)
def test_another_process_waits_for_the_lease(
    client: Client, process: Made, stage: Stage, settings: Settings, sweep: Callable[[], Any], other: dict[str, Any]
) -> None:
    first = process()
    stage.begin(client, first, "holds")
    first.heartbeat.close()
    process(settings=settings.model_copy(update=other))
    assert sweep().requeued == 0


def test_who_was_not_seen_since_the_server_started_is_left_to_its_lease(
    client: Client, process: Made, stage: Stage, database: Database, sweep: Callable[[], Any]
) -> None:
    """A server that was restarted has freed everybody's lock, and not everybody has taken it again."""
    first = process()
    stage.begin(client, first, "holds")
    first.heartbeat.close()
    with database.connection() as connection:
        connection.execute("UPDATE agentrun.processes SET seen_at = pg_postmaster_start_time() - interval '1 s'")
    process()
    assert sweep().requeued == 0


def test_its_name_is_that_of_no_other_process(process: Made, database: Database) -> None:
    first, second = process(), process()
    assert first.owner_suffix.startswith("pod-0:")
    assert first.owner_suffix != second.owner_suffix
    with database.connection() as connection:
        rows = connection.execute("SELECT name, stable_id FROM agentrun.processes").fetchall()
    assert {row["name"] for row in rows} == {f"interactive:{each.owner_suffix}" for each in (first, second)}
    assert {row["stable_id"] for row in rows} == {"pod-0"}


def test_a_heartbeat_that_connects_anew_is_not_held_up_by_its_old_connection(process: Made) -> None:
    first = process()
    old = first.heartbeat._connection  # pyright: ignore[reportPrivateUsage]
    first.heartbeat._connection = None  # pyright: ignore[reportPrivateUsage]
    beats = threading.Thread(target=first.heartbeat.beat, daemon=True)
    beats.start()
    until(lambda: not beats.is_alive(), 5)
    assert old is not None
    old.close()
