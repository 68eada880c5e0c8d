"""What a killed worker costs: the crash of the peers' comparison, with and without a way to ask; and poison."""

from __future__ import annotations

import time
from collections.abc import Callable
from uuid import UUID

import pytest

from agentrun import Client, Reason, Settings, Status
from agentrun.testing import until
from agentrun.testing.nodes import Node
from tests.writes.conftest import Look

pytestmark = [pytest.mark.processes, pytest.mark.slow]

SECONDS = 0.6
KILLED_AFTER = 0.2
"""Seconds into the third write; the effect is there, and the write has not returned."""


@pytest.fixture
def killed_in_the_third(
    client: Client, start: Callable[..., Node], beat: Callable[..., Node], look: Look
) -> Callable[[bool], tuple[UUID, float]]:
    """Two workers, one run of five writes; its worker is killed inside the third. Returns when."""

    def crash(reconcile: bool) -> tuple[UUID, float]:
        workers = [start(concurrency=1), start(concurrency=1)]
        beat()
        run_id = client.enqueue("five-writes", {"seconds": SECONDS, "reconcile": reconcile})
        until(lambda: len(look.effects(run_id)) == 3, 20)
        seen = time.monotonic()
        until(lambda: time.monotonic() > seen + KILLED_AFTER)
        pid = look.doers(run_id)["2"]
        next(worker for worker in workers if worker.pid == pid).kill()
        return run_id, time.monotonic()

    return crash


def times(look: Look, run_id: UUID) -> list[int]:
    """How often each of the five effects happened."""
    effects = look.effects(run_id)
    return [effects.count(str(number)) for number in range(5)]


def test_a_write_that_can_be_asked_about_is_taken_over_and_every_effect_happens_once(
    client: Client, look: Look, settings: Settings, killed_in_the_third: Callable[[bool], tuple[UUID, float]]
) -> None:
    run_id, killed = killed_in_the_third(True)
    until(lambda: client.status(run_id).epoch == 2, 60)
    assert time.monotonic() - killed < settings.lease_seconds + 10
    assert client.wait(run_id, timeout=60).result == list("01234")
    assert times(look, run_id) == [1, 1, 1, 1, 1]


def test_a_write_that_nobody_can_ask_about_stops_the_run_by_name_and_goes_on_from_an_operators_word(
    client: Client, look: Look, killed_in_the_third: Callable[[bool], tuple[UUID, float]]
) -> None:
    run_id, _ = killed_in_the_third(False)
    run = client.wait(run_id, timeout=60)
    assert (run.status, run.reason, run.pending_effect) == (
        Status.FAILED, Reason.NOT_RETRYABLE, "non_idempotent_write")  # fmt: skip
    assert run.error is not None
    (write,) = run.error["in_flight"]
    assert (write["key"], write["name"], write["effect"]) == ("#3", "happen", "non_idempotent_write")
    assert write["by"].startswith("worker:")
    assert write["args_digest"]
    assert write["idempotency_key"]
    assert write["started_at"]
    assert times(look, run_id) == [1, 1, 1, 0, 0]
    client.resolve(run_id, applied=True, result="2")
    assert client.wait(run_id, timeout=60).result == list("01234")
    assert times(look, run_id) == [1, 1, 1, 1, 1]


def test_a_write_that_did_not_happen_starts_afresh_after_an_operators_word(
    client: Client, look: Look, killed_in_the_third: Callable[[bool], tuple[UUID, float]]
) -> None:
    run_id, _ = killed_in_the_third(False)
    client.wait(run_id, timeout=60)
    look("DELETE FROM side_effects WHERE run_id = %s AND what = '2'", [run_id])
    client.resolve(run_id, applied=False)
    assert client.wait(run_id, timeout=60).result == list("01234")
    assert times(look, run_id) == [1, 1, 1, 1, 1]


@pytest.mark.settings(lease_seconds=2.0, sweep_seconds=0.5)
def test_a_run_that_kills_its_worker_ends_after_its_budget_and_nobody_else_with_it(
    client: Client, start: Callable[..., Node], beat: Callable[..., Node], look: Look
) -> None:
    start(pool="prefork", concurrency=2)
    beat()
    poison = client.enqueue("poison")
    others: list[UUID] = []
    for crash in range(1, 4):
        others.append(client.enqueue("writes", ["a", "b"]))
        until(lambda crash=crash: client.status(poison).crash_count >= crash, 60)
    run = client.wait(poison, timeout=60)
    assert (run.status, run.reason, run.requeue_count) == (Status.FAILED, Reason.RETRIES_EXHAUSTED, 2)
    assert run.error is not None
    assert run.error["type"] == "WorkerLost"
    assert look.effects(poison) == ["before", "tried", "tried", "tried"]
    for other in others:
        run = client.wait(other, timeout=60)
        assert (run.status, run.crash_count) == (Status.COMPLETED, 0)
        assert look.effects(other) == ["a", "b"]
    look("INSERT INTO side_effects (run_id, what) VALUES (%s, 'cured')", [poison])
    client.redrive(poison)
    run = client.wait(poison, timeout=60)
    assert (run.result, run.crash_count) == ("cured", 3)
    assert look.effects(poison) == ["before", "tried", "tried", "tried", "cured", "tried"]


def test_a_take_over_waits_for_the_runs_own_lease_and_not_for_the_longest(
    client: Client, start: Callable[..., Node], beat: Callable[..., Node], look: Look
) -> None:
    """Another kind has a lease of an hour; it ran in the same process."""
    first = start()
    beat()
    patient, short = client.enqueue("patient"), client.enqueue("pauses-between", 0.5)
    until(lambda: look.effects(patient) and look.effects(short) and not client.status(short).pending_effect, 20)
    first.kill()
    start()
    run = client.wait(short, timeout=90)
    assert (run.status, run.epoch) == (Status.COMPLETED, 2)
    run = client.status(patient)
    assert (run.status, run.epoch) == (Status.RUNNING, 1)
