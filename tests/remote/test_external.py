"""Steps done by programs that are no workers of ours: a listing, a take, a token, and one answer."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import psycopg
import pytest

from agentrun import (
    Actor,
    AlreadyDecided,
    Context,
    Forbidden,
    InvalidRequest,
    NotAllowed,
    NotFound,
    Scope,
    StaleToken,
    TooLarge,
    durable,
)
from agentrun.runtime.kinds import Registry
from agentrun.store.database import Database
from agentrun.store.sql import Statement
from tests.remote.conftest import Here

pytestmark = pytest.mark.usefixtures("bodies")


def test_a_program_takes_a_step_from_the_listing_and_answers(here: Here) -> None:
    run_id = here.parked("elsewhere", {"input": {"doc": 7}})
    (listed,) = here.client.external_steps()
    assert (listed["run_id"], listed["name"], listed["input"]) == (run_id, "review", {"doc": 7})
    taken = here.client.take_step(run_id, listed["key"], by="reviewer")
    assert (taken.input, taken.attempt, taken.effect) == ({"doc": 7}, 1, "read_only")
    assert taken.idempotency_key == listed["idempotency_key"]
    here.client.complete_step(taken.token, {"fine": True})
    assert here.engine.run(run_id).outcome == "completed"
    assert here.client.status(run_id).result == {"fine": True}
    assert here.publisher.causes(run_id)[-1] == "step"


def test_no_worker_takes_it(here: Here) -> None:
    run_id = here.parked("elsewhere", {"step": "double", "input": 1})
    assert here.offers() == []
    assert here.take(run_id) in ("elsewhere", "busy")
    assert here.step(run_id).status == "offered"


def test_taking_is_exclusive(here: Here) -> None:
    run_id = here.parked("elsewhere", {})
    here.client.take_step(run_id, by="first")
    assert here.client.external_steps() == []
    assert [row["by"] for row in here.client.external_steps(taken=True)] == ["first"]
    with pytest.raises(NotAllowed, match="no external step on offer"):
        here.client.take_step(run_id, by="second")
    with pytest.raises(NotAllowed, match="taken by `first`"):
        here.client.take_step(run_id, here.step(run_id).key, by="second")


def test_a_take_whose_connection_breaks_after_its_commit_has_its_token_all_the_same(
    here: Here, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without it nobody could answer, and without a window nobody would offer the step again."""
    run_id = here.parked("elsewhere", {})
    once, broken = Database._once, list[str]()

    def breaks(self: Database, statement: Statement, params: Mapping[str, Any]) -> list[dict[str, Any]]:
        rows = once(self, statement, params)
        if statement.name == "take_external" and not broken:
            broken.append(statement.name)
            raise psycopg.OperationalError("the connection was lost")
        return rows

    monkeypatch.setattr(Database, "_once", breaks)
    taken = here.client.take_step(run_id, by="reviewer")
    assert broken
    here.client.complete_step(taken.token, {"fine": True})
    assert here.engine.run(run_id).outcome == "completed"


def test_a_token_answers_once(here: Here) -> None:
    run_id = here.parked("elsewhere", {})
    taken = here.client.take_step(run_id, by="reviewer")
    here.client.complete_step(taken.token, 1)
    with pytest.raises(AlreadyDecided):
        here.client.complete_step(taken.token, 2)
    with pytest.raises(AlreadyDecided):
        here.client.fail_step(taken.token, "no")
    assert here.step(run_id).result == 1


def test_the_token_of_an_earlier_take_is_refused_by_its_own_error(here: Here) -> None:
    run_id = here.parked("elsewhere", {})
    first = here.client.take_step(run_id, by="first")
    assert here.client.redispatch(run_id, by="ops").sent == 1
    with pytest.raises(StaleToken):
        here.client.complete_step(first.token, "first")
    second = here.client.take_step(run_id, by="second")
    assert second.redispatch_count == 1
    for refused in (here.client.heartbeat_step, here.client.complete_step):
        with pytest.raises(StaleToken):
            refused(first.token)
    with pytest.raises(StaleToken):
        here.client.fail_step(first.token, "no")
    here.client.complete_step(second.token, "second")
    assert here.step(run_id).result == "second"


@pytest.mark.parametrize("token", ["", "x", "a.b", "....", "AAAA.secret", "\x00", "é.è"])
def test_what_is_no_token_finds_no_step(here: Here, token: str) -> None:
    for verb in (here.client.complete_step, here.client.heartbeat_step):
        with pytest.raises(NotFound, match="no step belongs"):
            verb(token)


def test_only_the_digest_of_a_token_is_stored(here: Here) -> None:
    run_id = here.parked("elsewhere", {})
    taken = here.client.take_step(run_id, by="reviewer")
    secret = taken.token.partition(".")[2]
    stored = repr(here.rows.stored(run_id))
    assert secret not in stored
    assert secret not in repr(taken)


def test_a_result_that_is_too_large_is_refused_and_the_token_stays_good(here: Here) -> None:
    run_id = here.parked("elsewhere", {})
    taken = here.client.take_step(run_id, by="reviewer")
    with pytest.raises(TooLarge):
        here.client.complete_step(taken.token, "x" * 1_000_001)
    with pytest.raises(TooLarge):
        here.client.heartbeat_step(taken.token, "x" * 10_001)
    here.client.complete_step(taken.token, "x")


# ---- failing


def test_a_failure_is_the_runs(here: Here) -> None:
    run_id = here.parked("elsewhere", {})
    taken = here.client.take_step(run_id, by="reviewer")
    assert here.client.fail_step(taken.token, "illegible", error_type="Illegible") == "failed"
    assert here.failure(run_id) == "Illegible"


def test_a_retryable_failure_uses_up_a_try_after_its_backoff(here: Here) -> None:
    run_id = here.parked("elsewhere", {"retries": 2, "backoff": 60})
    taken = here.client.take_step(run_id, by="reviewer")
    assert here.client.fail_step(taken.token, "away", retryable=True) == "retried"
    with pytest.raises(NotAllowed, match="not due"):
        here.client.take_step(run_id, taken.key, by="reviewer")
    with pytest.raises(StaleToken):
        here.client.complete_step(taken.token)
    here.due(run_id)
    again = here.client.take_step(run_id, by="reviewer")
    assert (again.attempt, again.idempotency_key) == (2, taken.idempotency_key)
    assert here.client.fail_step(again.token, "away", retryable=True) == "failed"


@pytest.mark.parametrize("after", [1e18, float("inf"), float("nan"), -1.0])
def test_a_try_after_a_time_that_never_comes_is_refused_and_the_step_stays_with_its_taker(
    here: Here, after: float
) -> None:
    run_id = here.parked("elsewhere", {"retries": 2})
    taken = here.client.take_step(run_id, by="reviewer")
    with pytest.raises(InvalidRequest, match="retry_after must be 0 seconds to 10 years"):
        here.client.fail_step(taken.token, "away", retryable=True, retry_after=after)
    assert here.client.fail_step(taken.token, "away", retryable=True, retry_after=1) == "retried"


def test_a_write_that_fails_without_a_word_on_what_happened_is_interrupted(here: Here) -> None:
    run_id = here.parked("elsewhere", {"effect": "non_idempotent_write", "retries": 3})
    taken = here.client.take_step(run_id, by="bank")
    assert here.client.fail_step(taken.token, "timed out", retryable=True) == "interrupted"
    assert here.engine.run(run_id).outcome == "failed"
    here.client.resolve(run_id, applied=True, result="paid", by="ops")
    assert here.engine.run(run_id).outcome == "completed"


def test_a_write_that_was_not_applied_may_be_tried_again(here: Here) -> None:
    run_id = here.parked("elsewhere", {"effect": "non_idempotent_write", "retries": 2, "backoff": 0.001})
    taken = here.client.take_step(run_id, by="bank")
    assert here.client.fail_step(taken.token, "refused", retryable=True, not_applied=True) == "retried"
    here.due(run_id)
    here.client.complete_step(here.client.take_step(run_id, by="bank").token, "paid")
    assert here.engine.run(run_id).outcome == "completed"


def test_an_interrupted_write_may_still_be_completed_by_its_taker(here: Here) -> None:
    run_id = here.parked("elsewhere", {"effect": "non_idempotent_write", "timeout": 30})
    taken = here.client.take_step(run_id, by="bank")
    here.silent(run_id)
    here.sweep()
    here.client.complete_step(taken.token, "paid after all")
    assert here.engine.run(run_id).outcome == "completed"
    assert here.client.status(run_id).result == "paid after all"


# ---- nobody can tell dead from slow


def test_without_a_window_it_is_never_offered_again_by_itself(here: Here) -> None:
    run_id = here.parked("elsewhere", {})
    here.client.take_step(run_id, by="slow")
    here.sql("UPDATE agentrun.steps SET started_at = now() - interval '30 days' WHERE run_id = %s", run_id)
    assert here.sweep().redispatched == 0
    assert here.step(run_id).status == "started"


def test_a_window_offers_it_again_after_that_much_silence(here: Here) -> None:
    run_id = here.parked("elsewhere", {"window": 600})
    taken = here.client.take_step(run_id, by="slow")
    assert here.sweep().redispatched == 0
    here.lapse(run_id)
    assert here.sweep().redispatched == 1
    assert here.client.take_step(run_id, by="quick").redispatch_count == 1
    with pytest.raises(StaleToken):
        here.client.heartbeat_step(taken.token)


def test_a_beat_renews_the_window_at_most_once_per_half_of_it(here: Here) -> None:
    run_id = here.parked("elsewhere", {"window": 600})
    taken = here.client.take_step(run_id, by="slow")
    assert here.client.heartbeat_step(taken.token, {"page": 1}) is True
    assert here.step(run_id).heartbeat_at is None, "no half window has passed"
    here.sql("UPDATE agentrun.steps SET started_at = now() - interval '400 s', "
             "lease_expires_at = now() + interval '200 s' WHERE run_id = %s", run_id)  # fmt: skip
    assert here.client.heartbeat_step(taken.token, {"page": 2}) is True
    step = here.step(run_id)
    assert step.heartbeat_at is not None
    assert step.lease_expires_at is not None
    assert (step.progress, (step.lease_expires_at - step.heartbeat_at).total_seconds()) == ({"page": 2}, 600)
    assert here.client.heartbeat_step(taken.token, {"page": 3}) is True
    assert here.step(run_id).progress == {"page": 2}


def test_whoever_beats_for_a_run_that_is_over_is_told_to_stop(here: Here) -> None:
    run_id = here.parked("elsewhere", {})
    taken = here.client.take_step(run_id, by="slow")
    here.client.cancel(run_id, by="ops")
    assert here.client.heartbeat_step(taken.token) is False
    here.client.complete_step(taken.token, "late")
    assert (here.step(run_id).result, here.client.status(run_id).status) == ("late", "cancelled")
    with pytest.raises(NotAllowed):
        here.client.take_step(run_id, by="late")


def test_an_operator_says_how_a_step_ended_whose_taker_is_gone(here: Here) -> None:
    applied = here.parked("elsewhere", {"effect": "non_idempotent_write"})
    gone = here.client.take_step(applied, by="gone")
    here.client.resolve(applied, applied=True, result="paid, says the bank", by="ops")
    assert here.engine.run(applied).outcome == "completed"
    with pytest.raises(AlreadyDecided):
        here.client.complete_step(gone.token)
    not_applied = here.parked("elsewhere", {"effect": "non_idempotent_write"})
    here.client.take_step(not_applied, by="gone")
    here.client.resolve(not_applied, applied=False, by="ops")
    assert here.client.take_step(not_applied, by="bank").attempt == 2


def test_what_an_operator_said_of_a_step_while_its_run_waited_may_be_said_again(here: Here, kinds: Registry) -> None:
    """Otherwise a first answer of another type would be the run's end."""

    @durable("counted")
    async def counted(ctx: Context) -> list[Any]:
        return await ctx.gather(ctx.external("count", returns=int), ctx.external("other"))

    run_id = here.parked("counted")
    steps = {step.name: step.key for step in here.client.steps(run_id)}
    here.client.take_step(run_id, key=steps["count"], by="gone")
    here.client.resolve(run_id, applied=True, result="many", by="ops")
    assert here.engine.run(run_id).outcome == "failed"
    assert here.client.resolve(run_id, applied=True, result=5, by="ops").status == "queued"
    assert here.engine.run(run_id).outcome == "waiting"
    here.client.complete_step(here.client.take_step(run_id, by="bank").token, "paid")
    assert here.engine.run(run_id).outcome == "completed"
    assert here.client.status(run_id).result == [5, "paid"]


# ---- who may


def test_listing_and_taking_need_the_operators_scope_and_the_token_is_enough_for_the_rest(here: Here) -> None:
    run_id = here.parked("elsewhere", {})
    reader = here.client.acting(Actor("reader", frozenset({Scope.READ})))
    operator = here.client.acting(Actor("program", frozenset({Scope.READ, Scope.OPERATE})))
    nobody = here.client.acting(Actor("nobody"))
    for refused in (reader, nobody):
        with pytest.raises(Forbidden):
            refused.external_steps()
    with pytest.raises(Forbidden):
        reader.take_step(run_id, by="")
    with pytest.raises(NotFound):
        nobody.take_step(run_id, by="")
    assert len(operator.external_steps()) == 1
    taken = operator.take_step(run_id, by="")
    assert here.step(run_id).by == "program"
    nobody.complete_step(taken.token, 1)


def test_several_on_offer_have_to_be_named(here: Here) -> None:
    run_id = here.parked("reviews", 2)
    with pytest.raises(InvalidRequest, match="offers 2 external steps"):
        here.client.take_step(run_id, by="reviewer")
    keys = [row["key"] for row in here.client.external_steps(run_id=run_id)]
    assert len(keys) == 2
    assert here.client.take_step(run_id, keys[1], by="reviewer").key == keys[1]
    with pytest.raises(NotFound):
        here.client.take_step(run_id, "#9", by="reviewer")
