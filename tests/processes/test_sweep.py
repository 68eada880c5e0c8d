"""The sweep finds what no message will wake, and nothing else: a backlog is no fault, and nobody stalls it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import psycopg
import pytest
from redis import Redis

from agentrun import Client, Settings, Status
from agentrun.broker import CeleryPublisher
from agentrun.runtime.upkeep import LONGEST_COUNTED, Found, Sweep
from agentrun.store.database import Database
from agentrun.testing import until
from agentrun.testing.nodes import Node
from tests.processes.conftest import Look

BACKLOG = LONGEST_COUNTED
MISSING = 50
LISTS = ("agentrun", "agentrun\x06\x163", "agentrun\x06\x166", "agentrun\x06\x169")
"""How Redis holds one queue: a list per step of priority."""

QUEUED = """
INSERT INTO agentrun.runs (id, namespace, kind, status, request, queue, priority, due_at)
SELECT gen_random_uuid(), 'default', 'noted', 'queued', '"x"', 'agentrun', n %% 10, now() - interval '1 minute'
FROM generate_series(1, %s) n
"""
RUNNING_DEAD = """
UPDATE agentrun.runs SET status = 'running', claimed_by = 'worker:gone:1', epoch = epoch + 1,
lease_expires_at = now() - interval '1 minute', claimed_at = now() WHERE id = ANY(%s)
"""


@pytest.fixture
def sweep_for_real(settings: Settings, database: Database) -> Iterator[Callable[[], Found]]:
    """One sweep that asks the real broker and sends to it."""
    publisher = CeleryPublisher(settings)
    yield lambda: Sweep(settings, database, publisher, by="sweep:test").run()
    publisher.close()


@pytest.mark.slow
def test_a_backlog_with_its_messages_in_the_broker_makes_ten_sweeps_send_nothing(
    client: Client, look: Look, redis: Redis, sweep_for_real: Callable[[], Found]
) -> None:
    template = _one_message(client, redis)
    look(QUEUED, (BACKLOG,))
    with redis.pipeline(transaction=False) as pipe:
        for chunk in range(BACKLOG // 100):
            pipe.lpush(LISTS[chunk % len(LISTS)], *[template] * 100)
        pipe.execute()
    assert _messages(redis) == BACKLOG

    assert [sweep_for_real().woken for _ in range(10)] == [0] * 10
    assert _messages(redis) == BACKLOG
    for name in LISTS[:2]:
        redis.ltrim(name, MISSING // 2, -1)
    assert [sweep_for_real().woken for _ in range(3)] == [MISSING, 0, 0]
    assert _messages(redis) == BACKLOG


def test_the_oldest_due_runs_are_woken_first(client: Client, look: Look, redis: Redis, sweep_for_real: Any) -> None:
    oldest, *_ = runs = client.enqueue_many("noted", [str(n) for n in range(5)])
    look("UPDATE agentrun.runs SET due_at = now() - interval '1 minute' WHERE id = ANY(%s)", (runs,))
    look("UPDATE agentrun.runs SET due_at = now() - interval '2 minutes' WHERE id = %s", (oldest,))
    redis.ltrim("agentrun", 1, -1)
    assert sweep_for_real().woken == 1
    assert str(oldest) in redis.lindex("agentrun", 0)


def test_a_row_that_a_frozen_worker_has_locked_stalls_no_sweep(
    client: Client, look: Look, database_url: str, sweep: Callable[[], Found]
) -> None:
    locked, dead = client.enqueue_many("noted", ["locked", "dead"])
    late = client.enqueue("noted", "late", deadline=0.001)
    look(RUNNING_DEAD, ([locked, dead],))
    with psycopg.connect(database_url) as frozen:
        frozen.execute("SELECT FROM agentrun.runs WHERE id = ANY(%s) FOR NO KEY UPDATE", ([locked, late],))
        found = sweep()
        assert (found.requeued, found.expired) == (1, 0)
        assert client.status(dead).status is Status.QUEUED
    found = sweep()
    assert (found.requeued, found.expired) == (1, 1)


@pytest.mark.processes
def test_beat_sweeps(
    client: Client, start: Callable[..., Node], beat: Callable[..., Node], look: Look, redis: Redis
) -> None:
    clock, node = beat(wait=False), start()
    clock.container.wait_ready()
    lost = client.enqueue("noted", "found")
    redis.delete(*LISTS)
    assert client.wait(lost, timeout=60).result == "found"
    asked = node.logs().count("Task agentrun.sweep[")
    until(lambda: node.logs().count("Task agentrun.sweep[") >= asked + 2, 5)
    assert look.one("SELECT now() - swept_at < interval '2 seconds' FROM agentrun.sweeps")


@pytest.mark.processes
def test_without_beat_a_worker_that_finds_the_sweep_overdue_does_it(
    client: Client, start: Callable[..., Node], look: Look, redis: Redis, settings: Settings
) -> None:
    lost = client.enqueue("noted", "found")
    redis.delete(*LISTS)
    dead = client.enqueue("noted", "dead", delay=3600)
    look(RUNNING_DEAD, ([dead],))
    start()
    for run_id in (lost, dead):
        assert client.wait(run_id, timeout=60).status is Status.COMPLETED
    assert look.one("SELECT swept_by FROM agentrun.sweeps").startswith("sweep:")


def _one_message(client: Client, redis: Redis) -> str:
    run_id = client.enqueue("noted", "copied", delay=None)
    (message,) = redis.lrange("agentrun", 0, -1)
    redis.delete("agentrun")
    client.cancel(run_id)
    return message


def _messages(redis: Redis) -> int:
    return sum(redis.llen(name) for name in LISTS)
