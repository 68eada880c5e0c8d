"""No sweep, pager or hook reaches into another namespace, whatever is wrong there."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict
from typing import Any

import pytest

from agentrun import Client, Status, on_dead, on_stalled
from agentrun.core.words import Effect
from agentrun.runtime.upkeep import Sweep
from agentrun.settings import Settings
from agentrun.testing import RecordingPublisher
from tests.hooks.conftest import Past
from tests.namespaces.conftest import Other

LONG_AGO = "now() - interval '1 day'"


@pytest.fixture
def neglected(other: Other) -> Other:
    """Everything that a sweep looks for, in the other namespace: it is a day late with all of it."""
    past, rows = Past(other.database), other.rows
    rows.expire_lease(rows.running())
    rows.expire_lease(rows.fenced("w", Effect.NON_IDEMPOTENT_WRITE))
    rows.pass_deadline(rows.queued())
    rows.wait(rows.waiting(), kind="timer")
    rows.final(Status.FAILED)
    rows.queued(parent_id=rows.final(Status.CANCELLED))
    for name in ("asks", "elsewhere", "queued", "taken"):
        past.run(other.runs[name], hours=24)
    with other.database.connection() as connection:
        connection.execute(f"UPDATE agentrun.waits SET due_at = {LONG_AGO} WHERE kind = 'timer'")
        connection.execute(f"UPDATE agentrun.signals SET expires_at = {LONG_AGO}")
        connection.execute(f"UPDATE agentrun.steps SET lease_expires_at = {LONG_AGO} WHERE token_digest IS NOT NULL")
        connection.execute(
            "UPDATE agentrun.steps SET kind = 'remote', queue = 'gpu.other', policy = '{}', effect = 'read_only',"
            f" offered_at = {LONG_AGO}, due_at = {LONG_AGO} WHERE kind = 'external'"
        )
    return other


def test_a_sweep_finds_nothing_of_another_namespace_and_its_own_finds_it_all(
    neglected: Other, client: Client, sweep: Callable[[], Any], publisher: RecordingPublisher, settings: Settings
) -> None:
    told: list[Any] = []
    on_stalled(told.append, name="here")
    on_dead(told.append, name="here")
    before = neglected.stored()
    found = sweep()
    assert {name: count for name, count in _counts(found).items() if count} == {}
    assert (publisher.wakes, publisher.ended, told) == ([], [], [])
    assert neglected.stored() == before

    theirs = Sweep(neglected.settings, neglected.database, neglected.publisher, by="sweep:other").run()
    Sweep(neglected.settings, neglected.database, neglected.publisher, by="sweep:other").run()
    assert told, "the control: its own sweep tells"
    done = {name for name, count in _counts(theirs).items() if count}
    assert done >= {"requeued", "dead_lettered", "cancelled", "expired", "answered", "woken", "paged", "redispatched"}
    assert {wake.queue for wake in neglected.publisher.wakes} <= {"agentrun", "agentrun.other", "gpu.other"}


def _counts(found: Any) -> dict[str, int]:
    return asdict(found)
