"""Deployments: half of the workers are restarted, again and again, and no run notices."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from agentrun import Client
from agentrun.testing import until
from agentrun.testing.nodes import Node
from tests.bodies.deploys import SLEEP
from tests.processes.conftest import Look

pytestmark = [pytest.mark.processes, pytest.mark.slow]

RESTARTS = 10
LONGEST_PAUSE = 2.0

PAUSES = """
WITH told AS (
    SELECT run_id, at FROM agentrun.moves
    UNION ALL SELECT run_id, finished_at FROM agentrun.steps WHERE finished_at IS NOT NULL
), pauses AS (
    SELECT run_id, extract(epoch FROM at - lag(at) OVER (PARTITION BY run_id ORDER BY at))::float AS pause FROM told
)
SELECT r.kind, max(pause) FROM pauses JOIN agentrun.runs r ON r.id = run_id GROUP BY r.kind
"""


@pytest.mark.settings(lease_seconds=30, heartbeat_seconds=5, drain_seconds=10, sweep_seconds=5)
def test_ten_restarts_of_half_the_workers_use_up_no_attempt_and_hold_no_run_up(
    client: Client,
    start: Callable[..., Node],
    beat: Callable[..., Node],
    look: Look,
    tmp_path: Path,
    sound: Callable[[], None],
) -> None:
    """Runs of steps, of remote steps and of sleeps. The leases are as long as usual: whatever waited for one shows."""
    beat(wait=False)
    halves = [_half(start), _half(start)]
    gate = tmp_path / "gate"
    kinds = {"working": 10, "delivering": 5, "dozing": 5}
    runs = [run_id for kind, count in kinds.items() for run_id in client.enqueue_many(kind, [str(gate)] * count)]
    until(lambda: look.one("SELECT count(DISTINCT run_id) FROM agentrun.steps") == len(runs), 20)
    for number in range(RESTARTS):
        leaving = halves[number % 2]
        for node in leaving:
            node.kill("SIGTERM")
        assert [node.wait_exit(20) for node in leaving] == [0, 0]
        halves[number % 2] = _half(start)
    gate.touch()
    ended = [client.wait(run_id, timeout=20) for run_id in runs]
    assert {(run.status, run.requeue_count, run.crash_count, run.error_count) for run in ended} == {
        ("completed", 0, 0, 0)
    }
    assert sum(run.handback_count for run in ended) > RESTARTS, "the premise: runs were moved"
    assert look("SELECT max(attempt), sum(redispatch_count) FROM agentrun.steps")[0] == (1, 0)
    pauses: dict[str, Any] = dict(look(PAUSES))
    pauses["dozing"] -= SLEEP
    assert max(pauses.values()) < LONGEST_PAUSE, pauses
    sound()


def _half(start: Callable[..., Node]) -> list[Node]:
    nodes = [start(concurrency=20, imports=["tests.bodies.deploys"], wait=False) for _ in range(2)]
    for node in nodes:
        node.container.wait_ready()
    return nodes
