"""A worker's log while a server is away: what happens is said once, not twice a second, and without tracebacks."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from agentrun import Client
from agentrun.embedded.postgres import StopMode
from agentrun.testing import until
from agentrun.testing.nodes import Node
from agentrun.testing.servers import Servers
from tests.processes.conftest import Look

pytestmark = [pytest.mark.processes, pytest.mark.own_servers, pytest.mark.slow]


def lines(node: Node, *words: str) -> list[str]:
    """What the worker has said with one of these words in it."""
    return [line for line in node.logs().splitlines() if any(word in line for word in words)]


def seen(node: Node, word: str, times: int = 1, timeout: float = 30) -> None:
    until(lambda: len(lines(node, word)) >= times, timeout, tell=node.logs)


@pytest.mark.settings(lease_seconds=3, heartbeat_seconds=0.5, sweep_seconds=1)
def test_a_worker_whose_postgresql_is_away_says_so_once_and_says_when_it_is_back(
    client: Client, start: Callable[..., Node], beat: Callable[..., Node], look: Look, agentrun_servers: Servers
) -> None:
    assert agentrun_servers.embedded is not None
    node = start(pool="threads", concurrency=4)
    beat(wait=False)
    runs = client.enqueue_many("long", [{"steps": 30, "seconds": 0.2}] * 2)
    look.recorded(runs[0], 2)
    until(lambda: look.one("SELECT count(*) FROM agentrun.sweeps"), 20)
    agentrun_servers.embedded.postgres.stop(StopMode.FAST)
    try:
        seen(node, "'the database is away'", timeout=40)  # a sweep that waited for the pool, and came to nothing
        seen(node, "lease_lost", times=2)
    finally:
        agentrun_servers.embedded.postgres.start()
    seen(node, "can be used again")
    look.done(2, 40)
    began, over = lines(node, "PostgreSQL at", "cannot be reached", "error connecting in", "trying again")
    assert "cannot be used (" in began
    assert "until it is back, nothing is claimed or recorded" in began
    assert " can be used again, after " in over
    assert lines(node, "Traceback", "ERROR") == []


@pytest.mark.settings(lease_seconds=10, heartbeat_seconds=0.5, sweep_seconds=1)
def test_a_worker_whose_redis_is_away_says_so_once_and_says_when_it_is_back(
    client: Client, start: Callable[..., Node], look: Look, agentrun_servers: Servers
) -> None:
    assert agentrun_servers.embedded is not None
    node = start(pool="threads", concurrency=4)
    (run,) = client.enqueue_many("long", [{"steps": 40, "seconds": 0.2}])
    look.recorded(run, 2)
    agentrun_servers.embedded.redis.stop()
    try:
        seen(node, "the broker at")
        look.done(1, 30)  # it goes on, and Celery's consumer has tried several times by then
    finally:
        agentrun_servers.embedded.redis.start()
    seen(node, "can be used again")
    began, over = lines(node, "the broker at", "Cannot connect to", "cannot be counted", "Connection to broker lost")
    assert "cannot be used (" in began
    assert "until it is back, nothing is sent or received" in began
    assert " can be used again, after " in over
    assert lines(node, "Traceback", "ERROR", "CPendingDeprecationWarning") == []
