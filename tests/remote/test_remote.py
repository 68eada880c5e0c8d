"""A remote step from offer to end: by uuid and key only, exclusive, once, and the run holds nothing meanwhile."""

from __future__ import annotations

import pytest

from agentrun import Status
from tests.remote.conftest import Doing, Here

pytestmark = pytest.mark.usefixtures("bodies")


def test_a_run_parks_for_its_remote_step_and_gets_its_result(here: Here, doing: Doing) -> None:
    run_id = here.parked("asks", {"step": "double", "input": 21, "queue": "gpu"})
    (offer,) = here.offers()
    assert (offer.run_id, offer.step_key, offer.queue) == (run_id, here.step(run_id).key, "gpu")
    assert here.client.status(run_id).waiting_on == "remote:double"
    assert here.take(run_id) == "completed"
    assert here.client.status(run_id).status is Status.QUEUED
    assert here.engine.run(run_id).outcome == "completed"
    assert (here.client.status(run_id).result, doing.done) == (42, [21])
    assert here.events(run_id) == [
        "enqueued", "claimed", "parked", "step_started", "step_completed", "resolved", "claimed", "settled",
    ]  # fmt: skip


def test_a_step_that_is_taken_twice_is_done_once(here: Here, doing: Doing) -> None:
    run_id = here.parked("asks", {"step": "double", "input": 1})
    assert [here.take(run_id), here.take(run_id)] == ["completed", "ended"]
    assert doing.done == [1]


def test_a_fan_gives_its_results_in_order(here: Here) -> None:
    run_id = here.parked("fan", [3, 1, 2])
    for offer in reversed(here.offers()):
        assert offer.step_key is not None
        here.take(run_id, offer.step_key)
    assert here.engine.run(run_id).outcome == "completed"
    assert here.client.status(run_id).result == [6, 2, 4]


def test_a_result_that_comes_before_the_run_parks_is_not_lost(here: Here) -> None:
    """The step is done while the body's other branch still works."""
    run_id = here.parked("fan", [1, 2])
    first, second = here.offers()
    here.take(run_id, first.step_key)
    assert here.engine.run(run_id).outcome == "waiting"
    here.take(run_id, second.step_key)
    assert here.engine.run(run_id).outcome == "completed"


def test_a_lost_message_is_sent_again_and_only_then(here: Here) -> None:
    run_id = here.parked("asks", {"step": "double", "input": 1, "queue": "gpu"})
    here.offers()
    here.sql("UPDATE agentrun.steps SET due_at = now() - interval '1 minute' WHERE run_id = %s", run_id)
    here.publisher.depths["gpu"] = 1
    here.sweep()
    assert here.offers() == [], "its message is in the broker"
    here.publisher.depths["gpu"] = 0
    here.sweep()
    assert [offer.step_key for offer in here.offers()] == [here.step(run_id).key]


def test_a_step_whose_taker_died_is_offered_again_and_marked(here: Here, doing: Doing) -> None:
    run_id = here.parked("asks", {"step": "double", "input": 1})
    here.offers()
    here.taken_by_the_dead(run_id)
    assert here.sweep().redispatched == 1
    assert [offer.cause for offer in here.offers()] == ["redispatch"]
    assert "redispatched" in here.events(run_id)
    assert here.take(run_id) == "completed"
    assert here.engine.run(run_id).outcome == "completed"
    assert (here.client.status(run_id).crash_count, doing.done) == (0, [1])


def test_a_non_idempotent_step_whose_taker_died_is_never_repeated(here: Here, doing: Doing) -> None:
    run_id = here.parked("asks", {"step": "charge", "input": 5})
    here.taken_by_the_dead(run_id)
    here.sweep()
    assert here.take(run_id) == "busy"
    assert here.engine.run(run_id).outcome == "failed"
    run = here.client.status(run_id)
    assert (run.reason, doing.done) == ("not_retryable", [])
    assert run.error is not None
    assert [(write["name"], write["args"]) for write in run.error["in_flight"]] == [("charge", None)], "no payload"
    here.client.resolve(run_id, applied=True, result="charged by hand", by="ops")
    assert here.engine.run(run_id).outcome == "completed"
    assert here.client.status(run_id).result == "charged by hand"


def test_a_non_idempotent_step_that_was_not_applied_is_offered_afresh(here: Here, doing: Doing) -> None:
    run_id = here.parked("asks", {"step": "charge", "input": 5})
    here.taken_by_the_dead(run_id)
    here.sweep()
    here.engine.run(run_id)
    here.client.resolve(run_id, applied=False, by="ops")
    assert here.engine.run(run_id).outcome == "waiting"
    assert here.take(run_id) == "completed"
    assert here.engine.run(run_id).outcome == "completed"
    assert doing.done == [5]


@pytest.mark.parametrize("queue", [3, "", "gpu,cpu", " gpu", ["gpu"]])
def test_what_is_no_queue_gets_no_step(here: Here, queue: object) -> None:
    run_id = here.client.enqueue("asks", {"step": "double", "input": 1, "queue": queue})
    assert here.failure(run_id) == "agentrun.core.errors.InvalidRequest"
    error = here.client.status(run_id).error
    assert error is not None
    assert error["message"].startswith("queue must be 1 to ")
    assert here.client.steps(run_id) == []
