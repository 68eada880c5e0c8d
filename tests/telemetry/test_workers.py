"""Real workers whose modules set OpenTelemetry up, as the guide says."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest

from agentrun import Client
from agentrun.testing import until

pytestmark = [pytest.mark.processes, pytest.mark.slow]


@pytest.mark.parametrize("pool", ["threads", "prefork"])
def test_a_workers_runs_are_traced(client: Client, worker: Callable[..., Any], tmp_path: Path, pool: str) -> None:
    file = tmp_path / "collected"

    def spans() -> dict[str, Any]:
        lines = file.read_text(encoding="utf-8").splitlines() if file.exists() else []
        return {span["name"]: span for span in map(json.loads, lines)}

    worker(pool=pool, concurrency=2, imports=["tests.bodies.traced"], env={"COLLECTOR": str(file)})
    run_id = client.enqueue("traced", 1)
    assert client.wait(run_id, timeout=30).result == 2
    until(lambda: "agentrun.segment" in spans())
    segment, step = spans()["agentrun.segment"], spans()["step compute"]
    assert {UUID(span["context"]["trace_id"].removeprefix("0x")) for span in (segment, step)} == {run_id}
    assert step["parent_id"] == segment["context"]["span_id"]
    assert segment["attributes"]["agentrun.segment.outcome"] == "completed"
