"""Hooks of a module that AGENTRUN_IMPORTS names are called by real workers, once for all of them."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from agentrun import Client, Settings
from agentrun.broker import make_app
from agentrun.broker.app import SWEEP
from agentrun.store.database import Database
from agentrun.testing import until

pytestmark = pytest.mark.processes


def test_a_dead_letter_is_told_by_one_of_two_workers(
    worker: Callable[..., Any], client: Client, settings: Settings, database: Database, tmp_path: Path
) -> None:
    alarms = tmp_path / "alarms"
    for _ in range(2):
        worker(imports=["tests.bodies.alarms"], env={"ALARMS_FILE": str(alarms)})
    run_id = client.enqueue("doomed")
    client.wait(run_id, timeout=20)
    app = make_app(settings)
    for _ in range(4):
        app.send_task(SWEEP, queue=settings.system_queue)

    def delivered() -> list[Any]:
        with database.connection() as connection:
            return connection.execute("SELECT 1 FROM agentrun.notices WHERE ending = 'delivered'").fetchall()

    until(delivered, 20)
    app.close()
    (line,) = alarms.read_text().splitlines()
    said = json.loads(line)
    assert (said["occasion"], said["run_id"], said["error_type"].rpartition(".")[2]) == ("dead", str(run_id), "Fatal")
