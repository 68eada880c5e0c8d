"""The testing kit does what its fixtures promise: the ground on which the other tests stand."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

import psutil
import pytest
from redis import Redis

from agentrun import Client, Context, Settings, Status, durable
from agentrun.runtime.engine import Engine
from agentrun.testing import RecordingPublisher, until

BASIC = ["tests.bodies.basic"]


def test_a_run_completes_inside_the_test_process(client: Client, engine: Engine) -> None:
    @durable("greet")
    async def greet(ctx: Context, name: str) -> str:
        return f"hello {name}"

    run_id = client.enqueue("greet", "you")
    assert engine.run(run_id).outcome == "completed"
    assert client.status(run_id).result == "hello you"


def test_what_a_test_registers_is_forgotten_after_it(kinds: Any) -> None:
    assert "greet" not in kinds.names()


@pytest.mark.settings(lease_seconds=7)
def test_a_mark_overrides_settings(settings: Settings) -> None:
    assert (settings.lease_seconds, settings.sweep_seconds) == (7, 1)


def test_nothing_of_the_developers_environment_is_left() -> None:
    assert [name for name in os.environ if name.startswith("AGENTRUN_") and "_TEST_" not in name] == []


@pytest.mark.processes
@pytest.mark.parametrize("pool", ["threads", "prefork"])
def test_a_real_worker_runs_what_is_enqueued(client: Client, worker: Callable[..., Any], pool: str) -> None:
    worker(pool=pool, concurrency=2, imports=BASIC)
    run_id = client.enqueue("count", 3)
    assert client.wait(run_id, timeout=15).result == 3


@pytest.mark.processes
def test_a_killed_worker_is_taken_over(
    client: Client, worker: Callable[..., Any], beat: Callable[..., Any], redis: Redis
) -> None:
    first = worker(imports=BASIC)
    beat()
    run_id = client.enqueue("nap", 1.5)
    until(lambda: client.status(run_id).status is Status.RUNNING)
    first.kill()
    assert not first.alive
    assert first.container.family() == []
    worker(imports=BASIC)
    assert client.wait(run_id, timeout=20).result == "rested"
    assert client.status(run_id).crash_count == 1


@pytest.mark.processes
def test_a_worker_can_be_paused_ended_and_started_again(client: Client, worker: Callable[..., Any]) -> None:
    node = worker(imports=BASIC)
    node.pause()
    until(lambda: psutil.Process(node.pid).status() == psutil.STATUS_STOPPED)
    node.resume()
    assert node.terminate() == 0
    assert not node.alive
    node.restart()
    assert client.wait(client.enqueue("echo", "again"), timeout=10).result == "again"


def test_a_failure_of_until_says_what_is_there_instead() -> None:
    seen = [1]
    with pytest.raises(AssertionError, match=r"not within 0.05 s: .*len\(seen\)(.|\n)*instead: \[1\]"):
        until(lambda: len(seen) > 1, 0.05, tell=lambda: seen)


def test_the_recording_publisher_remembers(client: Client, engine: Engine, publisher: RecordingPublisher) -> None:
    @durable("fails")
    async def fails(ctx: Context) -> None:
        raise ConnectionError("not now")

    run_id = client.enqueue("fails")
    assert engine.run(run_id).outcome == "requeued"
    assert publisher.causes(run_id) == ["retry"]
