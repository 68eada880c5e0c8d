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


Spans = Callable[[], dict[str, Any]]


@pytest.fixture
def spans(tmp_path: Path) -> Spans:
    """What the collector has got, by name."""
    file = tmp_path / "collected"

    def read() -> dict[str, Any]:
        lines = file.read_text(encoding="utf-8").splitlines() if file.exists() else []
        return {span["name"]: span for span in map(json.loads, lines)}

    return read


@pytest.fixture
def tracing_worker(worker: Callable[..., Any], tmp_path: Path) -> Callable[..., Any]:
    """Starts a worker whose spans are sent after so many seconds."""

    def start(pool: str, *, every: float) -> Any:
        env = {"COLLECTOR": str(tmp_path / "collected"), "OTEL_BSP_SCHEDULE_DELAY": str(int(every * 1000))}
        return worker(pool=pool, concurrency=2, imports=["tests.bodies.traced"], env=env)

    return start


@pytest.mark.parametrize("pool", ["threads", "prefork"])
def test_a_workers_runs_are_traced(client: Client, tracing_worker: Callable[..., Any], spans: Spans, pool: str) -> None:
    tracing_worker(pool, every=0.1)
    run_id = client.enqueue("traced", 1)
    assert client.wait(run_id, timeout=30).result == 2
    until(lambda: "agentrun.run" in spans())
    root, segment, step = (spans()[name] for name in ("agentrun.run", "agentrun.segment", "step compute"))
    assert {UUID(span["context"]["trace_id"].removeprefix("0x")) for span in (root, segment, step)} == {run_id}
    assert (root["parent_id"], segment["parent_id"]) == (None, root["context"]["span_id"])
    assert step["parent_id"] == segment["context"]["span_id"]
    assert segment["attributes"]["agentrun.segment.outcome"] == "completed"


@pytest.mark.parametrize("pool", ["threads", "prefork"])
def test_what_a_worker_has_not_sent_yet_is_sent_when_it_ends(
    client: Client, tracing_worker: Callable[..., Any], spans: Spans, pool: str
) -> None:
    node = tracing_worker(pool, every=600)
    assert client.wait(client.enqueue("traced", 1), timeout=30).result == 2
    assert spans() == {}
    node.terminate()
    assert set(spans()) == {"agentrun.run", "agentrun.segment", "step compute"}
