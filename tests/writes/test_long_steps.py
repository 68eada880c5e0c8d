"""A step that takes ten times as long as the lease is not taken over: whatever it is made of, it runs once."""

from __future__ import annotations

import importlib.util
from collections.abc import Callable

import pytest

from agentrun import Client, Settings, Status
from agentrun.testing import until
from agentrun.testing.nodes import Node
from tests.processes.conftest import consume
from tests.writes.conftest import Look

LEASE = 1.2
KINDS = {"long-async": "async", "long-thread": "thread", "long-cpu": "cpu"}


@pytest.mark.processes
@pytest.mark.slow
@pytest.mark.settings(lease_seconds=LEASE, heartbeat_seconds=0.2, sweep_seconds=0.5)
def test_a_healthy_step_of_ten_leases_runs_once_and_renews_its_lease(
    client: Client, start: Callable[..., Node], beat: Callable[..., Node], look: Look, settings: Settings
) -> None:
    """Asynchronous, in a thread, pure computation, a model call; all side by side, with a second worker waiting."""
    imports, kinds = [], dict(KINDS)
    if importlib.util.find_spec("pydantic_ai") is not None:
        imports.append("tests.bodies.slow_model")
        kinds["slow-model"] = "model"
    start(imports=imports)
    beat()
    runs = {kind: client.enqueue(kind, 10 * settings.lease_seconds) for kind in kinds if kind != "slow-model"}
    if "slow-model" in kinds:
        runs["slow-model"] = client.enqueue("slow-model", f"take {10 * settings.lease_seconds} s")
    start(imports=imports)
    for kind, run_id in runs.items():
        run = client.wait(run_id, timeout=60)
        assert (kind, run.status, run.epoch, run.crash_count) == (kind, Status.COMPLETED, 1, 0)
        assert look.effects(run_id) == [kinds[kind]]
        assert run.started_at is not None
        assert run.finished_at is not None
        assert (run.finished_at - run.started_at).total_seconds() >= 10 * settings.lease_seconds


@pytest.mark.processes
@pytest.mark.slow
@pytest.mark.settings(lease_seconds=2.0, heartbeat_seconds=0.3, sweep_seconds=0.5, drain_seconds=1.0)
@pytest.mark.parametrize("pool", ["threads", "prefork"])
def test_a_write_that_a_draining_worker_still_makes_keeps_its_lease(
    client: Client, start: Callable[..., Node], beat: Callable[..., Node], look: Look, settings: Settings, pool: str
) -> None:
    """Three leases long, beyond the drain's budget, with another worker waiting: it is made once, and recorded."""
    staying = start(pool=pool, concurrency=2, queues=settings.system_queue)
    leaving = start(pool=pool, concurrency=2)
    beat()
    run_id = client.enqueue("long-then-short", 3 * settings.lease_seconds)
    until(lambda: look.effects(run_id) == ["thread"], 20)
    leaving.kill("SIGTERM")
    consume(staying, settings.queue)
    assert leaving.wait_exit(30) == 0
    run = client.wait(run_id, timeout=60)
    assert (run.status, run.handback_count, run.crash_count) == (Status.COMPLETED, 1, 0)
    assert look.effects(run_id) == ["thread", "last"]
    assert len(set(look.doers(run_id).values())) == 2
