"""Redis may lose everything at any time: the rows know what is due, and the sweep wakes it."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path

import pytest
from redis import Redis

from agentrun import Client, Settings
from agentrun.testing import until
from agentrun.testing.nodes import Node
from agentrun.testing.servers import Servers
from tests.processes.conftest import Look

pytestmark = [pytest.mark.processes, pytest.mark.own_servers]

SLACK = 2.0


def test_flushall_with_runs_queued_running_and_delayed_loses_none_and_doubles_none(
    client: Client,
    start: Callable[..., Node],
    beat: Callable[..., Node],
    look: Look,
    redis: Redis,
    tmp_path: Path,
    sound: Callable[[], None],
) -> None:
    beat(wait=False)
    start(concurrency=20)
    gate = tmp_path / "gate"
    running = client.enqueue_many("gated", [str(gate)] * 20)
    for run_id in running:
        look.recorded(run_id, 1)
    queued = client.enqueue_many("noted", [f"queued {n}" for n in range(200)])
    delayed = client.enqueue_many("noted", [f"delayed {n}" for n in range(20)], delay=2)
    redis.flushall()
    gate.touch()
    look.done(240, 30)

    assert look.one("SELECT max(epoch) FROM agentrun.runs") == 1
    assert look("SELECT run_id, what FROM effects GROUP BY 1, 2 HAVING count(*) > 1") == []
    assert look.one("SELECT count(DISTINCT (run_id, what)) FROM effects") == len(queued) + len(delayed) + 2 * len(
        running
    )
    assert (
        look.one(
            "SELECT count(*) FROM agentrun.runs WHERE started_at < created_at + interval '2 s' AND id = ANY(%s)",
            (delayed,),
        )
        == 0
    )
    sound()


@pytest.mark.parametrize("data", ["lost", "kept"])
def test_redis_restarted_under_a_worker_that_holds_a_countdown_message_delays_nothing(
    client: Client,
    start: Callable[..., Node],
    beat: Callable[..., Node],
    look: Look,
    redis: Redis,
    agentrun_servers: Servers,
    settings: Settings,
    data: str,
) -> None:
    node, server = start(wait=False), agentrun_servers.embedded.redis
    clock = beat()
    node.container.wait_ready()
    run_id = client.enqueue("noted", "on time", delay=5)
    until(lambda: redis.hlen("unacked") == 1, 5)  # it has left the queue and waits in the worker's memory
    if data == "kept":
        server.save()
    server.stop()
    time.sleep(0.5)
    server.start()
    client.wait(run_id, timeout=60)

    late = look.one(
        "SELECT extract(epoch FROM started_at - created_at)::float - 5 FROM agentrun.runs WHERE id = %s", (run_id,)
    )
    assert 0 <= late < settings.sweep_seconds + SLACK
    assert look.effects(run_id) == ["on time"]
    assert client.status(run_id).epoch == 1
    assert node.alive
    assert clock.alive
    after = client.enqueue("noted", "afterwards")
    assert client.wait(after, timeout=60).result == "afterwards"


@pytest.mark.parametrize("kind", ["normal", "pubsub"])
@pytest.mark.parametrize("pool", ["threads", "prefork"])
def test_a_worker_whose_connections_redis_has_closed_takes_what_comes(
    client: Client, start: Callable[..., Node], redis: Redis, pool: str, kind: str
) -> None:
    start(pool=pool, concurrency=2)
    assert client.result(client.enqueue("noted", "before"), timeout=30) == "before"
    assert redis.client_kill_filter(_type=kind, skipme=True) > 0
    for n in range(3):
        assert client.result(client.enqueue("noted", str(n)), timeout=20) == str(n)
