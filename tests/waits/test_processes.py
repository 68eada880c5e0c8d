"""Runs that wait, with real processes: a restart of everything changes nothing, and no child's death is unheard of."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import psycopg
import pytest
from redis import Redis

from agentrun import Client, Run, Status
from agentrun.core.codec import digest
from agentrun.embedded.postgres import StopMode
from agentrun.testing import until
from agentrun.testing.nodes import Node
from agentrun.testing.servers import Servers
from tests.processes.conftest import Look

pytestmark = pytest.mark.processes

BODIES = ["tests.bodies.waits"]
PARKED, DECIDED, SIGNALLED = 10_000, 100, 1_000
MANY_PARKED = """
WITH parked AS (
    INSERT INTO agentrun.runs (id, kind, namespace, queue, request, status, waiting_on, epoch)
    SELECT gen_random_uuid(), 'decide', 'default', 'agentrun', 'null', 'waiting', 'approval', 1
    FROM generate_series(1, %(count)s) RETURNING id
)
INSERT INTO agentrun.waits (id, run_id, step_key, namespace, kind, name, asks, asks_digest)
SELECT gen_random_uuid(), id, '#1', 'default', 'approval', 'go on?', %(asks)s, %(digest)s FROM parked
"""
HOLDS_NOTHING = """
SELECT count(*) FROM agentrun.runs
WHERE status = 'waiting' AND claimed_by IS NULL AND lease_expires_at IS NULL AND epoch = 1
"""


@pytest.fixture
def look(database_url: str) -> Look:
    return Look(database_url)


@pytest.fixture
def start(worker: Callable[..., Node]) -> Callable[..., Node]:
    return lambda **options: worker("--without-mingle", imports=BODIES, **options)


def messages(redis: Redis) -> int:
    """In the queue, of any priority, and delivered without acknowledgement."""
    queues = [key for key in redis.keys("agentrun*") if redis.type(key) == "list"]
    return sum(redis.llen(queue) for queue in queues) + redis.hlen("unacked")


@pytest.mark.slow
def test_a_thousand_runs_that_are_signalled_in_one_call_all_go_on_each_with_its_own(
    client: Client, start: Callable[..., Node], look: Look
) -> None:
    start(concurrency=100)
    runs = client.enqueue_many("hear", [None] * SIGNALLED)
    until(lambda: look.one("SELECT count(*) FROM agentrun.runs WHERE status = 'waiting'") == SIGNALLED, 60)
    answers = client.signal_many(runs, "go", payloads=list(range(SIGNALLED)))
    assert [(answer.id, answer.status) for answer in answers if isinstance(answer, Run)] == [
        (run_id, Status.QUEUED) for run_id in runs
    ]
    until(lambda: look.one("SELECT count(*) FROM agentrun.runs WHERE status = 'completed'") == SIGNALLED, 60)
    assert {run.id: run.result for run in client.list(limit=SIGNALLED)} == dict(
        zip(runs, range(SIGNALLED), strict=True)
    )


@pytest.mark.own_servers
def test_ten_thousand_parked_runs_hold_nothing_survive_a_restart_of_everything_and_go_on_when_decided(
    client: Client,
    start: Callable[..., Node],
    beat: Callable[..., Node],
    look: Look,
    redis: Redis,
    agentrun_servers: Servers,
) -> None:
    asks = json.dumps({"question": "go on?", "payload": None, "editable": False, "four_eyes": False})
    look(MANY_PARKED, {"count": PARKED, "asks": asks, "digest": digest(asks)})
    before = [beat(wait=False), start(concurrency=4)]
    _swept(look)
    assert messages(redis) == 0
    assert look.one("SELECT coalesce(sum(holds), 0) FROM agentrun.processes") == 0
    assert look.one(HOLDS_NOTHING) == PARKED

    for node in before:
        node.kill()
    redis.flushdb()
    assert agentrun_servers.embedded is not None
    agentrun_servers.embedded.postgres.restart(StopMode.FAST)
    assert look.one(HOLDS_NOTHING) == PARKED
    start(concurrency=4)
    beat(wait=False)

    decided = [row["run_id"] for row in _inbox(client)]
    for run_id in decided:
        client.approve(run_id, by="ann")
    completed = "SELECT count(*) FROM agentrun.runs WHERE status = 'completed' AND result::text = '\"ann\"'"
    until(
        lambda: look.one(completed) == DECIDED,
        30,
        tell=lambda: look("SELECT status, count(*) FROM agentrun.runs GROUP BY 1"),
    )
    assert look.one(HOLDS_NOTHING) == PARKED - DECIDED
    assert look.one("SELECT count(*) FROM agentrun.moves WHERE type = 'resolved'") == DECIDED
    assert look.one("SELECT count(*) FROM agentrun.steps WHERE name LIKE '%_told'") == DECIDED
    until(lambda: messages(redis) == 0, 10)


def _inbox(client: Client) -> Any:
    # The first call after the restart may meet a connection that is gone.
    return until(lambda: client.inbox(limit=DECIDED), 10, tolerate=psycopg.OperationalError)


def _swept(look: Look) -> None:
    """Two whole sweeps have ended since now."""
    swept = "SELECT count(*) FROM agentrun.sweeps WHERE swept_at > %s"
    for _ in range(2):
        now = look.one("SELECT clock_timestamp()")
        until(lambda now=now: look.one(swept, [now]), 40)


@pytest.mark.slow
@pytest.mark.timeout(300)
@pytest.mark.settings(lease_seconds=2, heartbeat_seconds=0.5)
def test_a_fan_out_of_which_some_die_with_their_workers_gives_all_results_in_order(
    client: Client, start: Callable[..., Node], beat: Callable[..., Node], look: Look
) -> None:
    children, deadly = 500, 20
    beat(wait=False)
    start(pool="prefork", concurrency=2)
    run_id = client.enqueue("fan-out", {"children": children, "deadly": deadly, "limit": 100})
    until(lambda: client.status(run_id).status.final, 240, tell=lambda: look(_STATUSES))
    run = client.status(run_id)
    assert (run.status, run.result) == (Status.COMPLETED, [value * value for value in range(children)])
    died = "SELECT count(*) FROM agentrun.runs WHERE kind = 'square' AND crash_count > 0"
    assert look.one(died) >= deadly
    assert look.one("SELECT count(*) FROM agentrun.runs WHERE kind = 'square'") == children


_STATUSES = "SELECT kind, status, count(*) FROM agentrun.runs GROUP BY 1, 2"


def test_a_timer_that_falls_due_while_all_is_down_ends_once_when_all_is_up(
    client: Client, start: Callable[..., Node], beat: Callable[..., Node], look: Look, redis: Redis
) -> None:
    first = [beat(wait=False), start()]
    run_id = client.enqueue("short-sleep", 2)
    until(lambda: client.status(run_id).status is Status.WAITING, 20)
    for node in first:
        node.kill()
    redis.flushdb()
    due = "SELECT count(*) FROM agentrun.waits WHERE status = 'open' AND due_at <= now()"
    until(lambda: look.one(due) == 1, 10)
    start()
    beat(wait=False)
    until(lambda: client.status(run_id).status.final, 30, tell=lambda: client.events(run_id))
    assert client.status(run_id).result == "rested"
    told = [event.type for event in client.events(run_id)]
    assert (told.count("resolved"), told.count("settled")) == (1, 1)


def test_workers_wake_runs_that_were_decided_and_children_their_parents_without_any_sweep(
    client: Client, start: Callable[..., Node], look: Look
) -> None:
    """No beat: every wake comes from who resolves."""
    start()
    family = client.enqueue("fan-out", {"children": 6, "deadly": 0, "limit": 2})
    asking = client.enqueue("decide")
    until(lambda: client.status(asking).status is Status.WAITING, 20)
    client.approve(asking, by="ann")
    assert client.result(asking, timeout=60) == "ann"
    assert client.result(family, timeout=60) == [0, 1, 4, 9, 16, 25]
