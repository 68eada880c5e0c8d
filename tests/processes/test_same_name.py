"""A name is never a guard: with the same name and the same process id, only the epoch tells two owners apart."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from agentrun import Client
from agentrun.testing import until
from agentrun.testing.nodes import Node
from tests.processes.conftest import Look, consume

pytestmark = pytest.mark.processes

SAME = ["tests.processes.same_owner"]


@pytest.mark.settings(lease_seconds=2, heartbeat_seconds=0.4)
def test_of_two_workers_with_one_name_and_one_pid_the_late_one_writes_nothing(
    client: Client, start: Callable[..., Node], look: Look, tmp_path: Path, sound: Callable[[], None]
) -> None:
    frozen = start(imports=SAME, hostname="same@%h", wait=False)
    other = start(imports=SAME, hostname="same@%h", queues="later", wait=False)
    for node in (frozen, other):
        node.container.wait_ready()
    gates = [str(tmp_path / name) for name in ("one", "two")]
    runs = [client.enqueue("gated", gate) for gate in gates]
    for run_id in runs:
        look.recorded(run_id, 1)
    frozen.pause()
    consume(other, client.settings.queue, client.settings.system_queue)
    until(lambda: all(client.status(run_id).epoch == 2 for run_id in runs), 20)
    Path(gates[0]).touch()
    client.wait(runs[0], timeout=60)

    story, row = _stable(look, runs[0]), client.status(runs[1])
    frozen.resume()
    until(lambda: frozen.logs().count(": lease_lost") == 2, 10, tell=frozen.container.end_of_log)
    assert row.claimed_by == "worker:host:4242"
    assert {move.data["by"] for move in client.events(runs[0]) if "by" in move.data} >= {"worker:host:4242"}
    assert _stable(look, runs[0]) == story
    assert client.status(runs[1]).epoch == 2
    assert look.effects(runs[1]) == ["before"]
    Path(gates[1]).touch()
    assert client.wait(runs[1], timeout=60).result == "after"
    assert [look.effects(run_id) for run_id in runs] == [["before", "after"]] * 2
    sound()


def _stable(look: Look, run_id: Any) -> Any:
    """Everything that is stored of a run."""
    return [
        look(f"SELECT t::text FROM agentrun.{table} t WHERE {key} = %s ORDER BY 1", (run_id,))
        for table, key in (("runs", "id"), ("moves", "run_id"), ("steps", "run_id"))
    ]
