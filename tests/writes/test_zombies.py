"""A process that freezes loses its runs, and when it thaws it writes nothing and starts nothing."""

from __future__ import annotations

import time
from collections.abc import Callable
from uuid import UUID

import pytest

from agentrun import Client, Reason, Settings, Status
from agentrun.testing import until
from agentrun.testing.nodes import Node
from tests.writes.conftest import Look

pytestmark = [pytest.mark.processes, pytest.mark.slow, pytest.mark.settings(lease_seconds=2.0)]


@pytest.fixture
def frozen(
    client: Client, start: Callable[..., Node], beat: Callable[..., Node], look: Look, settings: Settings
) -> Callable[..., tuple[UUID, Node]]:
    """A run whose first worker freezes after its first effect, for two lease times or until another has ended it."""

    def freeze(kind: str, request: object, pool: str, *, between: bool = False) -> tuple[UUID, Node]:
        first = start(pool=pool, concurrency=2)
        run_id = client.enqueue(kind, request)
        # Between two writes the first has not only happened, but said so.
        until(lambda: look.effects(run_id) and not (between and client.status(run_id).pending_effect), 15)
        first.pause()
        frozen_at = time.monotonic()
        beat()
        start(pool=pool, concurrency=2)
        client.wait(run_id, timeout=40)
        until(lambda: time.monotonic() > frozen_at + 2 * settings.lease_seconds)
        return run_id, first

    return freeze


def thaw(node: Node, run_id: UUID) -> None:
    """Let it go on, until it has found out."""
    node.resume()
    until(lambda: f"run {run_id}: lease_lost" in node.logs(), 15, tell=node.container.end_of_log)


@pytest.mark.parametrize("pool", ["threads", "prefork"])
def test_a_process_that_slept_through_its_lease_starts_no_write_and_records_nothing(
    client: Client, look: Look, frozen: Callable[..., tuple[UUID, Node]], pool: str
) -> None:
    run_id, first = frozen("pauses-between", 1.0, pool, between=True)
    run = client.status(run_id)
    assert (run.status, run.epoch, run.crash_count) == (Status.COMPLETED, 2, 1)
    before = look.journal(run_id)
    thaw(first, run_id)
    assert look.journal(run_id) == before
    assert look.effects(run_id) == ["first", "second", "third"]
    family = {process.pid for process in first.container.family()}
    doers = look.doers(run_id)
    assert doers["first"] in family
    assert not {doers["second"], doers["third"]} & family


def test_a_process_that_slept_inside_a_write_cannot_say_how_it_ended(
    client: Client, look: Look, frozen: Callable[..., tuple[UUID, Node]]
) -> None:
    """By then the run has been dead-lettered, naming the write; only an operator's word counts."""
    run_id, first = frozen("five-writes", {"seconds": 1.0, "reconcile": False}, "threads")
    run = client.status(run_id)
    assert (run.status, run.reason) == (Status.FAILED, Reason.NOT_RETRYABLE)
    assert run.error is not None
    assert [write["key"] for write in run.error["in_flight"]] == ["#1"]
    before = look.journal(run_id)
    thaw(first, run_id)
    assert look.journal(run_id) == before
    first.kill()
    client.resolve(run_id, applied=True, result="0")
    assert client.wait(run_id, timeout=60).result == list("01234")
    assert look.effects(run_id) == list("01234")
