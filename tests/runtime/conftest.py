"""Whole runs inside this process: a real database, no broker."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any
from uuid import UUID

import pytest

from agentrun import Client, Run, Status
from agentrun.runtime.engine import Engine
from agentrun.testing.rows import Rows

PassOn = Callable[..., Run]


@pytest.fixture
def run(client: Client, engine: Engine, rows: Rows) -> PassOn:
    """Enqueue, and run segment after segment until the end; a retry's delay is travelled over."""

    def until_the_end(kind: str, request: Any = None, **wishes: Any) -> Run:
        run_id = client.enqueue(kind, request, **wishes)
        return finish(client, engine, rows, run_id)

    return until_the_end


def finish(client: Client, engine: Engine, rows: Rows, run_id: UUID) -> Run:
    for _ in range(20):
        engine.run(run_id)
        run = client.status(run_id)
        if run.status.final:
            return run
        assert run.status is Status.QUEUED, run
        rows.make_due(run_id)
    raise AssertionError(f"not final after 20 segments: {run}")
