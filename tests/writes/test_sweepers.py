"""Any number of sweepers at once, cut off in the middle: each expired run is recovered once, nothing else moves."""

from __future__ import annotations

import contextlib
import threading
from collections import Counter
from uuid import UUID

import pytest

from agentrun.core.errors import AgentrunError, InvalidRequest
from agentrun.core.words import Status
from agentrun.embedded.postgres import StopMode
from agentrun.runtime.upkeep import STEPS_TO_A_RUN, Sweep
from agentrun.settings import Settings
from agentrun.store.database import Database
from agentrun.testing import RecordingPublisher, until
from agentrun.testing.rows import Rows
from agentrun.testing.servers import Servers
from tests.writes.conftest import Look

SWEEPERS = 4


@pytest.fixture
def rows(database: Database) -> Rows:
    return Rows(database)


def expired(rows: Rows, count: int) -> list[UUID]:
    ids = [rows.running() for _ in range(count)]
    for run_id in ids:
        rows.expire_lease(run_id)
    return ids


def told(look: Look) -> Counter[str]:
    moves = look("SELECT type, count(*) AS times FROM agentrun.moves GROUP BY 1")
    return Counter({row["type"]: row["times"] for row in moves})


def test_many_sweepers_recover_each_expired_run_once(
    settings: Settings, database: Database, publisher: RecordingPublisher, rows: Rows, look: Look
) -> None:
    ids = expired(rows, 30)
    start = threading.Barrier(SWEEPERS)
    found: list[int] = []

    def sweep() -> None:
        start.wait(10)
        found.extend(Sweep(settings, database, publisher, by="sweep:test").run().requeued for _ in range(3))

    threads = [threading.Thread(target=sweep) for _ in range(SWEEPERS)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
    assert sum(found) == len(ids)
    assert told(look) == Counter(claimed=30, lease_lost=30, reaped=30)
    assert {(row["crash_count"], row["requeue_count"]) for row in look("SELECT * FROM agentrun.runs")} == {(1, 1)}
    assert {wake.run_id for wake in publisher.wakes if wake.cause == "reap"} == set(ids)


def test_a_sweep_leaves_alone_what_does_not_run(
    settings: Settings, database: Database, publisher: RecordingPublisher, rows: Rows, look: Look
) -> None:
    """However old it is: waiting, queued for later, final, and running with a lease."""
    ids = [rows.run(status) for status in Status] + [rows.queued()]
    look("UPDATE agentrun.runs SET due_at = now() + interval '1 h' WHERE status = 'queued'")
    look("UPDATE agentrun.runs SET created_at = now() - interval '1 y', started_at = now() - interval '1 y'")
    before = [rows.stored(run_id) for run_id in ids]
    for _ in range(3):
        Sweep(settings, database, publisher, by="sweep:test").run()
    assert [rows.stored(run_id) for run_id in ids] == before
    assert publisher.wakes == []


@pytest.mark.own_servers
def test_a_restart_of_postgres_in_the_middle_of_a_sweep_loses_nothing(
    settings: Settings,
    database: Database,
    publisher: RecordingPublisher,
    rows: Rows,
    look: Look,
    agentrun_servers: Servers,
) -> None:
    ids = expired(rows, 50)
    reached = threading.Event()
    over = threading.Event()

    def sweep_on() -> None:
        while not over.is_set():
            with contextlib.suppress(AgentrunError):
                Sweep(settings, database, publisher, by="sweep:test").run()

    wake = publisher.wake

    def wake_and_tell(*wakes: object) -> int:
        if len(publisher.wakes) >= 10:
            reached.set()
        return wake(*wakes)  # type: ignore[arg-type]

    publisher.wake = wake_and_tell  # type: ignore[method-assign]
    thread = threading.Thread(target=sweep_on)
    thread.start()
    assert reached.wait(20)
    assert agentrun_servers.embedded is not None
    agentrun_servers.embedded.postgres.restart(StopMode.IMMEDIATE)
    until(lambda: not look("SELECT 1 FROM agentrun.runs WHERE status = 'running'"), 30)
    over.set()
    thread.join(30)
    assert told(look) == Counter(claimed=50, lease_lost=50, reaped=50)
    assert len(ids) == 50


@pytest.mark.settings(sweep_batch=5)
def test_runs_whose_kind_nobody_knows_hold_up_no_run_whose_wake_was_lost(
    settings: Settings, database: Database, publisher: RecordingPublisher, rows: Rows, look: Look
) -> None:
    """They stay due, and are older; however many sweeps there are, none came to what is behind them."""
    unknown = [rows.queued(kind="withdrawn") for _ in range(6)]
    lost = rows.queued(kind="known")
    look("UPDATE agentrun.runs SET due_at = now() - interval '1 hour' WHERE kind = 'withdrawn'")
    look("UPDATE agentrun.runs SET due_at = now() - interval '1 minute' WHERE kind = 'known'")
    look(
        "INSERT INTO agentrun.processes (id, namespace, name, kinds, queues)"
        " VALUES (gen_random_uuid(), 'default', 'w', '{known}', '{agentrun}')"
    )
    found = Sweep(settings, database, publisher, by="sweep:test").run()
    woken = [wake.run_id for wake in publisher.wakes]
    assert (len(woken), found.woken, woken.count(lost)) == (6, 6, 1)
    assert set(woken) - {lost} < set(unknown)


def test_a_row_that_cannot_be_settled_holds_up_nothing_else_of_a_sweep(
    settings: Settings, database: Database, publisher: RecordingPublisher, rows: Rows, look: Look
) -> None:
    """What went wrong is raised when all the rest is done: no sweep that fails looks like one that found nothing."""
    broken, timer, asks = rows.waiting(), rows.waiting(), rows.waiting()
    for run_id in (broken, timer, asks):
        rows.wait(run_id, kind="timer" if run_id == timer else "approval")
    policy = """UPDATE agentrun.waits SET due_at = now() - interval '1 h', on_expiry = '{"policy": "escalate",
        "default": null, "role": "no \\u0000 role", "seconds": 60}' WHERE run_id = %s"""
    look(policy, (broken,))
    look("UPDATE agentrun.waits SET due_at = now() - interval '1 s' WHERE run_id = ANY(%s)", ([timer, asks],))
    late, queued = rows.queued(parent_id=rows.final(Status.CANCELLED)), rows.queued()
    look("UPDATE agentrun.runs SET due_at = now() - interval '1 minute' WHERE id = %s", (queued,))
    sweep = Sweep(settings, database, publisher, by="sweep:test")
    with pytest.raises(InvalidRequest, match="NUL"):
        sweep.run()
    assert (sweep.found.answered, sweep.found.cancelled) == (2, 1)
    assert rows.row(late)["status"] == "cancelled"
    assert queued in {wake.run_id for wake in publisher.wakes}
    assert look("SELECT 1 AS there FROM agentrun.sweeps WHERE name = 'sweep'")


@pytest.mark.settings(sweep_batch=1)
def test_steps_whose_name_nobody_knows_hold_up_no_step_whose_message_was_lost(
    settings: Settings, database: Database, publisher: RecordingPublisher, rows: Rows, look: Look
) -> None:
    """They stay on offer, and are older; however many sweeps there are, none came to what is behind them."""
    parent = rows.waiting()
    look(
        "INSERT INTO agentrun.steps (run_id, key, kind, name, effect, status, epoch, queue, offered_at, due_at)"
        f" SELECT '{parent}', n::text, 'remote', CASE WHEN n > {STEPS_TO_A_RUN} THEN 'known' ELSE 'withdrawn' END,"
        " 'read_only', 'offered', 1, 'gpu', now(), now() - interval '1 hour' + n * interval '1 s'"
        f" FROM generate_series(0, {STEPS_TO_A_RUN + 1}) AS n"
    )
    look(
        "INSERT INTO agentrun.processes (id, namespace, name, queues, seen_at, about)"
        " SELECT gen_random_uuid(), namespace, 'w', ARRAY[queue], now() - silent::interval,"
        " json_build_object('remote_steps', json_build_array(step))"
        " FROM (VALUES ('default', 'gpu', '0 s', 'known'), ('default', 'gpu', '1 hour', 'withdrawn'),"
        " ('default', 'cpu', '0 s', 'withdrawn'), ('another', 'gpu', '0 s', 'withdrawn'))"
        " AS each (namespace, queue, silent, step)"
    )
    look(
        "INSERT INTO agentrun.processes (id, namespace, name, queues)"
        " VALUES (gen_random_uuid(), 'default', 'c', '{gpu}')"
    )
    found = Sweep(settings, database, publisher, by="sweep:test").run()
    woken = [wake.step_key for wake in publisher.wakes]
    assert woken == [str(n) for n in range(STEPS_TO_A_RUN)] + [str(STEPS_TO_A_RUN + 1)]
    assert found.woken == len(woken)
