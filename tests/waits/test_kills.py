"""A process is killed while it decides, or goes on from its decision: nothing is lost, asked again, or done twice."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest
from redis import Redis

import tests.bodies.waits as bodies
from agentrun import Client, Reason, Status
from agentrun.core.errors import AlreadyDecided
from agentrun.settings import Settings
from agentrun.testing import environment, until
from agentrun.testing.nodes import Node
from agentrun.testing.rows import Rows
from tests.waits.conftest import Go, Parked

pytestmark = [pytest.mark.processes, pytest.mark.settings(lease_seconds=1.2, heartbeat_seconds=0.3)]

BODIES = bodies.__name__


@pytest.fixture
def killed(settings: Settings, parked: Parked, tmp_path: Path) -> Callable[..., dict[str, UUID]]:
    """Parks a run for each moment, and lets a process of its own decide it and be killed there."""

    def die(how: str, *moments: str) -> dict[str, UUID]:
        runs = {moment: parked("pay-once", str(tmp_path / moment)) for moment in moments}
        env = os.environ | environment.variables(settings.model_copy(update={"imports": (BODIES,)}))
        asked = [f"{moment}={run_id}" for moment, run_id in runs.items()]
        command = [sys.executable, "-m", "tests.waits.dying", how, *asked]
        done = subprocess.run(command, env=env, capture_output=True, text=True, check=False, timeout=60)
        assert done.returncode == 0, done.stderr
        return runs

    return die


def test_a_decision_whose_process_is_killed_is_recorded_whole_or_not_at_all(
    client: Client, killed: Callable[..., dict[str, UUID]], go: Go, rows: Rows, sweep: Callable[[], Any]
) -> None:
    runs = killed("left", "before the commit", "before the wake")
    uncommitted, unsent = runs["before the commit"], runs["before the wake"]

    assert client.status(uncommitted).status is Status.WAITING
    assert len(client.waits(uncommitted)) == 1, "it is still asked"
    client.approve(uncommitted, by="bob")
    assert go(uncommitted).result == ["bob", "500\n"]

    assert client.status(unsent).status is Status.QUEUED
    with pytest.raises(AlreadyDecided):
        client.reject(unsent, by="bob")
    rows.make_due(unsent)
    assert sweep().woken >= 1
    assert go(unsent).result == ["ann", "500\n"]


def test_a_decision_that_goes_on_here_survives_its_process_wherever_it_is_killed(
    client: Client, killed: Callable[..., dict[str, UUID]], go: Go, rows: Rows, sweep: Callable[[], Any], tmp_path: Path
) -> None:
    runs = killed("here", "before the commit", "before the claim", "before the tool", "in the tool", "after the tool")
    undecided = runs.pop("before the commit")
    assert client.status(undecided).status is Status.WAITING
    assert client.approve(undecided, by="bob", here=True).result == ["bob", "500\n"]

    interrupted = runs.pop("in the tool")
    for run_id in (interrupted, *runs.values()):
        with pytest.raises(AlreadyDecided):
            client.approve(run_id, by="bob")
        if client.status(run_id).status is Status.RUNNING:
            rows.expire_lease(run_id)
    assert client.status(runs["before the claim"]).status is Status.QUEUED
    found = sweep()
    assert (found.requeued, found.dead_lettered) == (2, 1)
    for moment, run_id in runs.items():
        assert go(run_id).result == ["ann", "500\n"], moment
    run = client.status(interrupted)
    assert (run.status, run.reason) == (Status.FAILED, Reason.NOT_RETRYABLE)
    client.resolve(interrupted, applied=True)
    assert go(interrupted).result == ["ann", "500\n"], "done once, by the process that was killed"


def test_what_was_asked_outlives_a_restart_of_everything_and_is_done_once_as_it_was_asked(
    client: Client, worker: Callable[..., Node], redis: Redis, tmp_path: Path
) -> None:
    ledger = tmp_path / "ledger"
    first = worker(imports=[BODIES])
    run_id = client.enqueue("pay-once", str(ledger))
    until(lambda: client.status(run_id).status is Status.WAITING, 20)
    (asked,) = client.waits(run_id)
    run = client.status(run_id)
    assert (run.claimed_by, run.lease_expires_at) == (None, None)
    first.kill()
    redis.flushdb()  # pyright: ignore[reportUnknownMemberType]
    client.approve(run_id, by="ann", digest=asked["asks_digest"])
    worker(imports=[BODIES])
    assert client.result(run_id, timeout=20) == ["ann", "500\n"]
    assert ledger.read_text() == "500\n"
