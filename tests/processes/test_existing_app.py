"""agentrun in an application that has Celery already: late acks, redelivery and a result backend do no harm."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from pathlib import Path
from uuid import UUID

import pytest
from celery import Celery
from redis import Redis

from agentrun import Client
from agentrun.testing import until
from agentrun.testing.nodes import Node
from tests.processes.conftest import Look

pytestmark = [pytest.mark.processes, pytest.mark.slow]

APP = "tests.processes.existing_app"
BACKOFF = 6.0
RUNS = 60


@pytest.mark.settings(backoff_base_seconds=BACKOFF, backoff_max_seconds=BACKOFF)
def test_late_acks_and_a_short_visibility_timeout_give_one_execution_and_no_early_retry(
    client: Client, start: Callable[..., Node], look: Look, redis: Redis, broker_url: str, sound: Callable[[], None]
) -> None:
    nodes = [start(app=APP, concurrency=4, wait=False) for _ in range(2)]
    for node in nodes:
        node.container.wait_ready()
    long = client.enqueue("long", {"steps": 8, "seconds": 1.0})
    retried = client.enqueue("fails-once", "tried")
    far = client.enqueue("far", {"seconds": 6.0, "failures": 0, "backoff": 1.0})
    far_again = client.enqueue("far", {"seconds": 0.1, "failures": 1, "backoff": BACKOFF})
    assert _add_in_the_shop(broker_url, 2, 3) == 5

    assert client.wait(long, timeout=60).result == 8
    assert client.wait(retried, timeout=60).result == "tried"
    # The premise: each was delivered again while it was held, and several times.
    logs = "\n".join(node.logs() for node in nodes)
    until(lambda: _count(nodes, f"a wake for run {long} changed nothing: it is busy") > 0, tell=lambda: logs)
    assert look.effects(long) == [str(number) for number in range(8)]
    assert client.status(long).epoch == 1

    assert [event.type for event in client.events(retried)].count("claimed") == 2
    assert client.status(retried).requeue_count == 1
    assert look.effects(retried) == ["tried"]
    assert look.seconds_between(retried, "requeued", "claimed") >= BACKOFF
    assert redis.keys("celery-task-meta-*") == []

    # The same for remote steps: the message of one that takes longer, and that of a try that is not due yet.
    assert [client.wait(run_id, timeout=20).result for run_id in (far, far_again)] == ["far", "far"]
    until(lambda: _steps_told(nodes, far, "busy") > 0, tell=lambda: logs)
    assert look.effects(far) == ["far"]
    assert look("SELECT attempt, step_epoch FROM agentrun.steps WHERE run_id = %s", (far,)) == [(1, 1)]
    tries = "SELECT extract(epoch FROM max(at) - min(at)), count(*) FROM effects WHERE run_id = %s"
    ((pause, count),) = look(tries, (far_again,))
    assert (count, pause >= BACKOFF) == (2, True)
    sound()


def _add_in_the_shop(broker_url: str, x: int, y: int) -> int:
    """The application's own task, with its result backend."""
    shop = Celery("shop", broker=broker_url, backend=broker_url, set_as_current=False)
    with shop.connection_for_write() as connection:
        answer = shop.send_task(f"{APP}.add", (x, y), connection=connection)
    total: int = answer.get(timeout=60)
    answer.forget()
    shop.backend.result_consumer.stop()
    shop.backend.client.close()
    shop.close()
    return total


def _count(nodes: list[Node], line: str) -> int:
    return sum(node.logs().count(line) for node in nodes)


def _steps_told(nodes: list[Node], run_id: UUID, outcome: str) -> int:
    """How many messages for a step of the run ended so."""
    lines = [line for node in nodes for line in node.logs().splitlines() if str(run_id) in line]
    return sum("agentrun.step[" in line and f"outcome={outcome} " in line for line in lines)


def test_connections_made_before_a_fork_are_not_shared_by_the_children(
    client: Client, start: Callable[..., Node], look: Look, sound: Callable[[], None]
) -> None:
    node = start(pool="prefork", concurrency=4, imports=["tests.processes.eager"])
    client.enqueue_many("enqueuing", list(range(RUNS)))
    look.done(2 * RUNS, 40)
    told = look("SELECT what FROM effects ORDER BY what")
    assert [what for (what,) in told] == sorted(f"by {number}" for number in range(RUNS))
    assert look.one("SELECT count(DISTINCT by) FROM agentrun.moves WHERE type = 'claimed'") == 4
    assert look.one("SELECT max(epoch) FROM agentrun.runs") == 1
    assert "Traceback" not in node.logs()
    sound()


def test_a_lost_child_whose_wake_is_redelivered_at_once_costs_one_crash(
    client: Client, start: Callable[..., Node], beat: Callable[..., Node], look: Look, tmp_path: Path
) -> None:
    """`task_reject_on_worker_lost` redelivers while the dead child's lease is alive: these wakes find it busy."""
    beat(wait=False)
    node = start(app=APP, pool="prefork", concurrency=2)
    run_id = client.enqueue("gated", str(tmp_path / "gate"))
    look.recorded(run_id, 1)
    os.kill(look.one("SELECT pid FROM effects"), signal.SIGKILL)
    until(lambda: f"a wake for run {run_id} changed nothing: it is busy" in node.logs(), 10)
    (tmp_path / "gate").touch()
    assert client.wait(run_id, timeout=60).result == "after"
    assert look.effects(run_id) == ["before", "after"]
    run = client.status(run_id)
    assert (run.epoch, run.crash_count) == (2, 1)
