"""What an operator finds of writes that were done elsewhere, whose takers died before or after their run had ended."""

from __future__ import annotations

from typing import Any
from uuid import UUID

import pytest

from agentrun import Context, NotAllowed, Status, durable
from agentrun.core.wake import Wake
from agentrun.runtime.kinds import Registry
from agentrun.store.transitions import SETTLE
from tests.remote.conftest import Here

pytestmark = pytest.mark.usefixtures("bodies", "charges")


@pytest.fixture
def charges(kinds: Registry) -> None:
    """A fan of writes of which nobody can ask how they ended."""

    @durable("charges")
    async def charges(ctx: Context, items: list[int]) -> list[Any]:
        return await ctx.gather(*[ctx.remote("charge", item) for item in items])


def test_a_write_whose_taker_dies_after_its_run_has_failed_is_resolved_before_the_run_goes_on(here: Here) -> None:
    """Otherwise the answer for the one that was told first would put the run back, and the other's would be refused."""
    run_id, first, second = failed_of_the_first(here)
    assert named(here, run_id) == [first.step_key], "the control: nobody knew of the other"
    here.lapse(run_id)
    here.sweep()
    assert here.client.operators.redrivable() == []
    assert here.client.resolve(run_id, applied=True, result="a", key=first.step_key).status == "failed"
    assert here.client.resolve(run_id, applied=True, result="b", key=second.step_key).status == "queued"
    assert here.engine.run(run_id).outcome == "completed"
    assert here.client.status(run_id).result == ["a", "b"]


@pytest.mark.parametrize("swept", [False, True], ids=["its lease is over", "it was given up"])
def test_a_dead_letter_names_each_write_whose_taker_died_also_where_its_run_settled_before(
    here: Here, swept: bool
) -> None:
    """The run's end knew of the first only: whoever asks is told of what is in flight then, the oldest first."""
    run_id, first, second = failed_of_the_first(here)
    here.lapse(run_id)
    if swept:
        here.sweep()
    here.sql("UPDATE agentrun.steps SET started_at = now() - interval '1 min' WHERE key = %s", second.step_key)
    assert named(here, run_id) == [second.step_key, first.step_key]
    error = here.client.wait(run_id).error
    assert error is not None
    assert [write["key"] for write in error["in_flight"]] == [second.step_key, first.step_key]
    here.client.resolve(run_id, applied=True, result="b", key=second.step_key)
    assert named(here, run_id) == [first.step_key], "what was resolved is not in flight"


def test_a_dead_letter_of_another_cause_names_the_write_that_its_run_left_behind(here: Here) -> None:
    run_id = here.rows.fenced("w")
    said = {"reason": "not_retryable", "error": '{"type": "LookupError"}'}
    assert here.rows.do(SETTLE[Status.FAILED], run_id, **said)
    assert named(here, run_id) == ["w"]


def test_a_write_whose_taker_lives_does_not_hold_up_the_other_one(here: Here) -> None:
    """It says itself how it ends, and the run waits for that."""
    run_id, first, second = failed_of_the_first(here)
    assert here.client.resolve(run_id, applied=True, result="a", key=first.step_key).status == "queued"
    assert here.engine.run(run_id).outcome == "waiting"
    here.lapse(run_id)
    here.sweep()
    assert here.engine.run(run_id).outcome == "failed"
    assert named(here, run_id) == [second.step_key]


def test_a_result_that_does_not_fit_a_write_done_elsewhere_may_be_said_again(here: Here) -> None:
    run_id = here.parked("charges", [1])
    (offer,) = here.offers()
    here.taken_by_the_dead(run_id)
    here.sweep()
    assert here.engine.run(run_id).outcome == "failed"
    here.client.resolve(run_id, applied=True, result=5)
    assert here.engine.run(run_id).outcome == "failed"
    error = here.client.status(run_id).error
    assert error is not None
    assert (error["step"], "should be a valid string" in error["message"]) == (offer.step_key, True)
    assert here.client.resolve(run_id, applied=True, result="charged 1").status == "queued"
    assert here.engine.run(run_id).outcome == "completed"
    assert here.client.status(run_id).result == ["charged 1"]


def test_a_redrive_says_that_a_write_is_in_flight_whose_taker_died_after_the_deadline(here: Here) -> None:
    run_id = here.parked("charges", [1])
    (offer,) = here.offers()
    here.taken_by_the_dead(run_id)
    here.sql("UPDATE agentrun.steps SET lease_expires_at = now() + interval '1 hour' WHERE run_id = %s", run_id)
    here.sql("UPDATE agentrun.runs SET deadline_at = now() - interval '1 s' WHERE id = %s", run_id)
    here.sweep()
    here.sql("UPDATE agentrun.runs SET deadline_at = NULL WHERE id = %s", run_id)
    here.lapse(run_id)
    with pytest.raises(NotAllowed, match="a write in flight"):
        here.client.redrive(run_id)
    assert here.client.resolve(run_id, applied=False, key=offer.step_key).status == "queued"
    assert here.engine.run(run_id).outcome == "waiting"
    assert here.take(run_id) == "completed"


def failed_of_the_first(here: Here) -> tuple[UUID, Wake, Wake]:
    """A run that failed because the taker of its first write died; that of the second is at work."""
    run_id = here.parked("charges", [1, 2])
    first, second = here.offers()
    here.taken_by_the_dead(run_id)
    here.sql("UPDATE agentrun.steps SET lease_expires_at = now() + interval '1 hour' WHERE run_id = %s AND key = %s",
             run_id, second.step_key)  # fmt: skip
    here.sweep()
    assert here.engine.run(run_id).outcome == "failed"
    return run_id, first, second


def named(here: Here, run_id: Any) -> list[str]:
    """The writes that the run's dead letter names."""
    error = here.client.status(run_id).error
    assert error is not None
    return [write["key"] for write in error["in_flight"]]
