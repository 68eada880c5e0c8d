"""A worker that is killed, and starts again under its stable id."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from agentrun import Client, Settings
from agentrun.testing.nodes import Node
from tests.processes.conftest import Look

pytestmark = pytest.mark.processes


@pytest.mark.parametrize("pool", ["threads", "prefork"])
@pytest.mark.settings(lease_seconds=60, heartbeat_seconds=10, stable_id="pod-0")
def test_a_killed_worker_that_starts_again_under_its_stable_id_goes_on_with_its_runs_at_once(
    client: Client, start: Callable[..., Node], look: Look, tmp_path: Path, settings: Settings, pool: str
) -> None:
    """Its leases would be good for a minute. No beat runs: the worker itself does the sweep that takes them back."""
    gate = tmp_path / "gate"
    node = start(pool=pool, concurrency=2)
    run_id = client.enqueue("gated", str(gate))
    look.recorded(run_id, 1)
    node.kill()
    gate.touch()
    node.restart()
    run = client.wait(run_id, timeout=20)
    assert (run.result, run.crash_count, run.epoch) == ("after", 1, 2)
    assert look.effects(run_id) == ["before", "after"]
    assert look.seconds_between(run_id, "claimed", "reaped") < settings.lease_seconds / 3
