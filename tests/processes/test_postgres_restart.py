"""PostgreSQL restarted under load: workers reconnect, no run is lost, no attempt is wasted on it."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from agentrun import Client
from agentrun.embedded.postgres import StopMode
from agentrun.testing import until
from agentrun.testing.nodes import Node
from agentrun.testing.servers import Servers
from tests.processes.conftest import Look

pytestmark = [pytest.mark.processes, pytest.mark.own_servers]

RUNS = 40
WASTED = """
SELECT kind, status, requeue_count, crash_count, error_count, epoch, error::text FROM agentrun.runs
WHERE epoch > 1 OR requeue_count > 0 OR crash_count > 0
"""
TOLD = ["first", "idempotent", "left", "right", "charged", "within", "last"]


@pytest.mark.settings(lease_seconds=12, heartbeat_seconds=1)
@pytest.mark.parametrize("pool", ["threads", "prefork"])
def test_postgresql_restarted_under_load_costs_no_run_and_no_attempt(
    client: Client,
    start: Callable[..., Node],
    beat: Callable[..., Node],
    look: Look,
    agentrun_servers: Servers,
    sound: Callable[[], None],
    pool: str,
) -> None:
    beat(wait=False)
    node = start(pool=pool, concurrency=20 if pool == "threads" else 3)
    steps = 25 if pool == "threads" else 8
    long = client.enqueue_many("long", [{"steps": steps, "seconds": 0.15}] * (10 if pool == "threads" else 3))
    stories = client.enqueue_many("story", [None] * RUNS)
    plain = client.enqueue_many("long-plain", [{"steps": 5, "seconds": 0.1}] * 10)
    for mode in (StopMode.FAST, StopMode.IMMEDIATE):
        done = _steps_done(look)
        until(lambda done=done: _steps_done(look) > done + 10, 15)
        agentrun_servers.embedded.postgres.restart(mode)
    look.done(len(long) + len(stories) + len(plain), 60)

    assert look(WASTED) == []
    assert (
        look("SELECT run_id, what FROM effects WHERE what IN ('charged', 'within') GROUP BY 1, 2 HAVING count(*) > 1")
        == []
    )
    assert all(client.status(run_id).result == TOLD for run_id in stories)
    assert node.alive
    sound()


def _steps_done(look: Look) -> int:
    return look.one("SELECT count(*) FROM agentrun.steps WHERE status = 'completed'")
