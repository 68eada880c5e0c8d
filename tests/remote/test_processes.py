"""Real workers: one is killed in the middle of a step, one lacks the step, one forks; and a fan of a thousand."""

from __future__ import annotations

import os
import signal
from collections import Counter
from collections.abc import Callable
from uuid import UUID

import pytest
from redis import Redis

from agentrun import Client
from agentrun.testing import until
from agentrun.testing.nodes import Node
from tests.processes.conftest import Look
from tests.remote import outside

pytestmark = [pytest.mark.processes, pytest.mark.settings(lease_seconds=1.2, heartbeat_seconds=0.3, sweep_seconds=0.3)]
BODIES = ["tests.remote.fan"]


@pytest.fixture
def look(database_url: str) -> Look:
    look = Look(database_url)
    look(outside.TABLES)
    look("TRUNCATE effects")
    return look


def claims(look: Look, run_id: UUID) -> int:
    return look.one("SELECT count(*) FROM agentrun.moves WHERE run_id = %s AND type = 'claimed'", (run_id,))


def test_a_step_whose_worker_is_killed_goes_on_elsewhere(
    client: Client, worker: Callable[..., Node], beat: Callable[..., Node], look: Look
) -> None:
    coordinator = worker(queues="agentrun,agentrun.system", imports=BODIES, wait=False)
    victim = worker(queues=outside.QUEUE, imports=BODIES, wait=False)
    beat(wait=False)
    for node in (coordinator, victim):
        node.container.wait_ready()
    run_id = client.enqueue("one", {"step": "slow", "input": 14})
    until(lambda: look("SELECT 1 FROM effects WHERE what = 'began'"), 20)
    victim.kill()
    look("INSERT INTO effects (what) VALUES ('go on')")
    worker(queues=outside.QUEUE, imports=BODIES, wait=False)
    assert client.result(run_id, timeout=60) == 42
    run, (step,) = client.status(run_id), client.steps(run_id)
    assert (step.redispatch_count, step.attempt, run.crash_count, run.requeue_count) == (1, 1, 0, 0)
    assert look("SELECT count(DISTINCT pid) FROM effects WHERE what = 'began'") == [(2,)]


def test_a_worker_that_lacks_the_step_leaves_it_to_the_one_that_knows_it(
    client: Client, worker: Callable[..., Node], beat: Callable[..., Node], look: Look
) -> None:
    """Two on one queue: whichever message the ignorant one takes, another is sent, and no try is used up."""
    nodes = [
        worker(queues=f"{outside.QUEUE}", imports=["tests.bodies.basic"], wait=False),
        worker(queues=f"{outside.QUEUE},agentrun,agentrun.system", imports=BODIES, wait=False),
    ]
    beat(wait=False)
    for node in nodes:
        node.container.wait_ready()
    run_id = client.enqueue("big-fan", 12)
    assert client.result(run_id, timeout=60) == [2 * n for n in range(12)]
    assert {(step.attempt, step.redispatch_count) for step in client.steps(run_id)} == {(1, 0)}
    assert "elsewhere" in nodes[0].logs()


def test_forked_workers_take_steps_too_and_one_that_is_killed_loses_none(
    client: Client, worker: Callable[..., Node], beat: Callable[..., Node], look: Look
) -> None:
    forked = worker(pool="prefork", concurrency=2, queues=f"{outside.QUEUE},agentrun,agentrun.system", imports=BODIES,
                    wait=False)  # fmt: skip
    beat(wait=False)
    forked.container.wait_ready()
    run_id = client.enqueue("one", {"step": "slow", "input": 2})
    (began,) = until(lambda: look("SELECT pid FROM effects WHERE what = 'began'"), 20)
    look("INSERT INTO effects (what) VALUES ('go on')")
    os.kill(began[0], signal.SIGKILL)
    assert client.result(run_id, timeout=60) == 6


@pytest.mark.slow
@pytest.mark.own_servers
@pytest.mark.flaky(reruns=0)  # an effect that is there twice is not tried once more
@pytest.mark.settings(sweep_batch=1000)
def test_a_fan_of_a_thousand_with_redis_flushed_and_a_third_of_its_workers_killed(
    client: Client,
    worker: Callable[..., Node],
    beat: Callable[..., Node],
    look: Look,
    redis: Redis,
    record_property: Callable[[str, object], None],
) -> None:
    """Every result in order, no charge twice, no crash counted against the run."""
    steps = 1000
    coordinator = worker(queues="agentrun,agentrun.system", imports=BODIES, wait=False)
    workers = [worker(queues=outside.QUEUE, concurrency=16, imports=BODIES, wait=False) for _ in range(3)]
    beat(wait=False)
    for node in (coordinator, *workers):
        node.container.wait_ready()
    began = look.one("SELECT clock_timestamp()")
    run_id = client.enqueue("big-fan", steps)
    ended = "SELECT count(*) FROM agentrun.steps WHERE run_id = %s AND status = 'completed'"
    until(lambda: look.one(ended, (run_id,)) >= steps // 4, 60)
    redis.flushdb()  # pyright: ignore[reportUnknownMemberType]
    until(lambda: look.one(ended, (run_id,)) >= steps // 3, 60)
    workers[0].kill()
    assert client.result(run_id, timeout=120) == [2 * n for n in range(steps)]
    record_property("seconds", look.one("SELECT extract(epoch FROM clock_timestamp() - %s)", (began,)))
    record_property("claims", claims(look, run_id))
    charges = Counter(what for (what,) in look("SELECT what FROM effects WHERE what LIKE 'charge %%'"))
    assert (len(charges), max(charges.values())) == (steps // 10, 1)
    run = client.status(run_id)
    assert (run.crash_count, run.requeue_count) == (0, 0)
    record_property("re-dispatched", look.one("SELECT count(*) FROM agentrun.steps WHERE redispatch_count > 0"))
