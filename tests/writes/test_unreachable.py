"""A database that cannot be reached: no step starts once the lease may be over; all goes on when it is back."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from pathlib import Path
from uuid import UUID

import pytest

from agentrun import Client, Context, Settings, Status, durable
from agentrun.embedded.postgres import StopMode
from agentrun.runtime.engine import Engine
from agentrun.testing import until
from agentrun.testing.nodes import Node
from agentrun.testing.servers import Servers
from tests.writes.conftest import Look

pytestmark = [pytest.mark.own_servers]

MARGIN = 0.3
"""Seconds between asking the clock here and there."""


@pytest.mark.processes
@pytest.mark.slow
@pytest.mark.settings(lease_seconds=2.0)
@pytest.mark.parametrize("how", ["refuses connections", "does not answer"])
def test_no_step_starts_after_the_lease_may_have_run_out(
    client: Client,
    start: Callable[..., Node],
    beat: Callable[..., Node],
    agentrun_servers: Servers,
    settings: Settings,
    tmp_path: Path,
    how: str,
) -> None:
    """Many steps side by side, each to start at its own time: those after the lease do not; one is interrupted."""
    assert agentrun_servers.embedded is not None
    postgres = agentrun_servers.embedded.postgres
    notes = tmp_path / "notes"
    notes.touch()
    start()
    beat()
    run_id = client.enqueue("steps-by-the-clock", {"path": str(notes), "seconds": 3 * settings.lease_seconds})
    until(lambda: noted(notes, "started"), 15)
    away = time.monotonic()
    postgres.stop(StopMode.IMMEDIATE) if how == "refuses connections" else postgres.pause()
    gone = time.monotonic()
    try:
        until(lambda: time.monotonic() > gone + 2 * settings.lease_seconds)
        started, interrupted = noted(notes, "started"), noted(notes, "interrupted")
    finally:
        postgres.start() if how == "refuses connections" else postgres.resume()
    assert max(started) <= gone + settings.lease_seconds
    assert len([at for at in started if at > away]) >= 3, "steps went on for a while: this could have failed"
    assert interrupted, "what was in flight is interrupted as well"
    assert max(interrupted) <= gone + settings.lease_seconds + MARGIN
    assert client.wait(run_id, timeout=60).status is Status.COMPLETED


def noted(path: Path, what: str) -> list[float]:
    lines = [line.split() for line in path.read_text().splitlines()]
    return [float(at) for word, at in lines if word == what]


def test_a_wake_that_comes_while_the_database_is_away_claims_when_it_is_back(
    client: Client, engine: Engine, agentrun_servers: Servers, look: Look
) -> None:
    """No attempt is lost, and nobody runs hot meanwhile."""
    assert agentrun_servers.embedded is not None
    postgres = agentrun_servers.embedded.postgres

    @durable("patient")
    async def patient(ctx: Context) -> str:
        return "claimed"

    run_id: UUID = client.enqueue("patient")
    postgres.stop(StopMode.IMMEDIATE)
    thread = threading.Thread(target=engine.run, args=(run_id,))
    thread.start()
    before, asked_at = time.process_time(), time.monotonic()
    until(lambda: time.monotonic() > asked_at + 1)
    assert time.process_time() - before < 0.5
    postgres.start()
    thread.join(30)
    run = client.status(run_id)
    assert (run.status, run.epoch, run.requeue_count, run.crash_count) == (Status.COMPLETED, 1, 0, 0)
