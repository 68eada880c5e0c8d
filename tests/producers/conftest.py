"""A worker for all tests of a module, and no beat: what starts here was woken by its own message."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from agentrun import Client, Settings
from agentrun.runtime.kinds import Registry
from agentrun.testing import environment
from agentrun.testing.nodes import Guard, LocalProcess, celery_command
from agentrun.testing.servers import Servers

SWEEP = 3600.0
"""Seconds: far more than any test takes."""


@dataclass(frozen=True)
class House:
    """Where producers enqueue: its settings, and its worker."""

    settings: Settings
    worker: LocalProcess

    @property
    def database_url(self) -> str:
        return self.settings.require_database()


@pytest.fixture(scope="module")
def house(
    request: pytest.FixtureRequest,
    shared_servers: Servers,
    process_guard: Guard,
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[House]:
    """A worker on a database and in a namespace of its own."""
    database_url = shared_servers.create_database()
    settings = Settings(
        database_url=database_url,
        broker_url=shared_servers.broker_url,
        namespace="house",
        imports="tests.bodies.basic",  # pyright: ignore[reportArgumentType]
        sweep_seconds=SWEEP,
    )
    root = request.config.rootpath
    path = os.pathsep.join(filter(None, [str(root), os.environ.get("PYTHONPATH")]))
    options = ["-P", "threads", "-c", "16", "-n", "house@%h", "-l", "INFO", "--without-mingle"]
    with contextlib.ExitStack() as undo:
        undo.callback(shared_servers.drop_database, database_url)
        worker = LocalProcess(
            celery_command("-A", "tasks", "worker", *options),
            name="house",
            workdir=Path(tmp_path_factory.mktemp("house")),
            env={**os.environ, **environment.variables(settings), "PYTHONPATH": path, "PYTHONUNBUFFERED": "1"},
            guard=process_guard,
            ready=" ready.",
        )
        undo.callback(worker.kill)
        worker.wait_ready()
        yield House(settings.model_copy(update={"imports": ()}), worker)


@pytest.fixture
def tenant(house: House) -> Iterator[Client]:
    """A producer of the house that knows no bodies."""
    with Client(settings=house.settings, kinds=Registry()) as client:
        yield client
