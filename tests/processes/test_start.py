"""A worker that cannot work says so at its start, names what to set or to run, and ends."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from agentrun import Client, Settings
from agentrun.testing.nodes import Node
from tests.processes.conftest import Look, consume

pytestmark = pytest.mark.processes


def test_a_worker_that_cannot_work_names_what_is_missing_and_ends(
    worker: Callable[..., Node], settings: Settings, empty_database_url: str
) -> None:
    broken: dict[str, tuple[dict[str, Any], str]] = {
        "no database": ({"database_url": None}, "AGENTRUN_DATABASE_URL is not set"),
        "no broker": ({"broker_url": None}, "AGENTRUN_BROKER_URL is not set"),
        "no schema": ({"database_url": empty_database_url}, "run `agentrun migrate`"),
        "no module": ({"imports": ("tests.bodies.nowhere",)}, "AGENTRUN_IMPORTS names `tests.bodies.nowhere`"),
        "broken module": ({"imports": ("tests.processes.broken",)}, "RuntimeError: broken on purpose"),
        "no server": ({"database_url": "postgresql://u:p@127.0.0.1:9/x"}, "AGENTRUN_DATABASE_URL cannot be reached"),
    }
    nodes: dict[str, Node] = {}
    for name, (change, _) in broken.items():
        changed = settings.model_copy(update=change)
        nodes[name] = worker(settings=changed, wait=False, hostname=f"{name.replace(' ', '-')}@%h")
    for name, (_, says) in broken.items():
        assert nodes[name].wait_exit(40) != 0, name
        assert says in nodes[name].logs(), name
        assert ("Traceback" in nodes[name].logs()) == (name == "broken module"), nodes[name].logs()


def test_a_run_of_a_kind_that_no_worker_knows_waits_unharmed_for_one_that_does(
    client: Client, worker: Callable[..., Node], beat: Callable[..., Node], look: Look
) -> None:
    """As in a rolling deployment: the old worker takes the message, and the new one gets the run."""
    beat(wait=False)
    old = worker("--without-mingle", imports=["tests.bodies.basic"], wait=False)
    new = worker("--without-mingle", imports=["tests.bodies.processes"], queues="later", wait=False)
    for node in (old, new):
        node.container.wait_ready()
    run_id = client.enqueue("noted", "new")
    old.wait_for_log(f"a wake for run {run_id} changed nothing: it is elsewhere")
    assert (client.status(run_id).status, client.status(run_id).epoch) == ("queued", 0)
    old.terminate()
    consume(new, client.settings.queue)
    assert client.wait(run_id, timeout=60).result == "new"
    run = client.status(run_id)
    assert (run.epoch, run.requeue_count) == (1, 0)
