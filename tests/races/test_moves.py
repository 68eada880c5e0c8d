"""Two moves of one run at once: the second waits for the first, re-checks, and is refused or lands on what it left."""

from __future__ import annotations

from typing import Any
from uuid import uuid4

import psycopg
import pytest

from agentrun.core.words import Status, StepStatus
from agentrun.store import births, claims, journal, steering, transitions
from agentrun.store.sql import Statement
from agentrun.testing.rows import Rows

SETTLE = transitions.SETTLE[Status.COMPLETED]
DONE = {"reason": "completed", "result": "1"}


def moves(rows: Rows, run_id: Any) -> list[str]:
    return [move["type"] for move in rows.stored(run_id)["moves"]]


def test_of_two_claims_one_executes(rows: Rows, first: Any, second: Any) -> None:
    run_id = rows.queued()
    with first.holding(claims.CLAIM_RUN, run_id, by="first") as claimed:
        waiting = second.tries(claims.CLAIM_RUN, run_id, by="second")
    assert claimed[0]["epoch"] == 1
    assert waiting.result() == []
    assert (rows.row(run_id)["claimed_by"], moves(rows, run_id)) == ("first", ["claimed"])


def test_a_claim_that_is_rolled_back_leaves_the_run_to_the_next(rows: Rows, first: Any, second: Any) -> None:
    """The control: the second claim was waiting, and was not simply refused."""
    run_id = rows.queued()
    with first.holding(claims.CLAIM_RUN, run_id, by="first"):
        waiting = second.tries(claims.CLAIM_RUN, run_id, by="second")
        raise psycopg.Rollback
    assert len(waiting.result()) == 1
    assert rows.row(run_id)["claimed_by"] == "second"


@pytest.mark.parametrize(
    "reap", [transitions.REAP_REQUEUE, transitions.REAP_SETTLE[Status.FAILED]], ids=lambda s: s.name
)
def test_a_renewed_lease_is_not_reaped(rows: Rows, first: Any, second: Any, reap: Statement) -> None:
    run_id = rows.running()
    rows.expire_lease(run_id)
    with first.holding(claims.RENEW_ALL, run_id) as renewed:
        waiting = second.tries(reap, run_id)
    assert renewed[0]["renewed"]
    assert waiting.result() == []
    assert (rows.row(run_id)["status"], moves(rows, run_id)) == (Status.RUNNING, ["claimed"])


def test_a_renewal_may_get_in_line_where_a_row_is_never_free(rows: Rows, first: Any, second: Any) -> None:
    """Passing over it each time would lose the lease of a run whose remote steps end one after the other."""
    run_id = rows.running()
    with first.holding(steering.ASK_CANCEL, run_id):
        waiting = second.tries(claims.RENEW_WAITING, run_id)
    (renewed,) = waiting.result()
    assert (renewed["held"], renewed["renewed"]) == (True, True)


def test_a_reaped_lease_is_not_renewed(rows: Rows, first: Any, second: Any) -> None:
    """The heartbeat passes over the locked row; its next beat hears that the lease is lost."""
    run_id = rows.running()
    rows.expire_lease(run_id)
    with first.holding(transitions.REAP_REQUEUE, run_id):
        (passed_over,) = second.does(claims.RENEW_ALL, run_id)
        assert (passed_over["held"], passed_over["renewed"]) == (True, False)
    (lost,) = second.does(claims.RENEW_ALL, run_id)
    assert (lost["held"], lost["renewed"]) == (False, False)


def test_what_is_settled_is_not_reaped(rows: Rows, first: Any, second: Any) -> None:
    run_id = rows.running()
    rows.expire_lease(run_id)
    with first.holding(SETTLE, run_id, **DONE) as settled:
        waiting = second.tries(transitions.REAP_REQUEUE, run_id)
    assert settled
    assert waiting.result() == []
    assert moves(rows, run_id) == ["claimed", "settled"]


def test_what_is_reaped_is_not_settled_by_its_old_owner(rows: Rows, first: Any, second: Any) -> None:
    run_id = rows.running()
    rows.expire_lease(run_id)
    with first.holding(transitions.REAP_REQUEUE, run_id) as reaped:
        waiting = second.tries(SETTLE, run_id, **DONE)
    assert reaped
    assert waiting.result() == []
    assert rows.row(run_id)["status"] == Status.QUEUED


def test_what_was_reaped_and_claimed_anew_is_not_settled_by_its_old_owner(rows: Rows, first: Any, second: Any) -> None:
    run_id = rows.running()
    rows.expire_lease(run_id)
    rows.do(transitions.REAP_REQUEUE, run_id)
    with first.holding(claims.CLAIM_RUN, run_id):
        assert second.does(SETTLE, run_id, epoch=1, **DONE) == [], "queued, as far as it can see"
    assert second.does(SETTLE, run_id, epoch=1, **DONE) == []
    assert (rows.row(run_id)["status"], rows.row(run_id)["epoch"]) == (Status.RUNNING, 2)


def test_of_two_sweeps_one_reaps(rows: Rows, first: Any, second: Any) -> None:
    run_id = rows.running()
    rows.expire_lease(run_id)
    with first.holding(transitions.REAP_REQUEUE, run_id, by="one"):
        waiting = second.tries(transitions.REAP_REQUEUE, run_id, by="other")
    assert waiting.result() == []
    assert rows.row(run_id)["crash_count"] == 1


@pytest.mark.parametrize(
    "write", [journal.RECORD, journal.FENCE, journal.FINISH, journal.NOT_APPLIED], ids=lambda s: s.name
)
def test_no_step_is_written_into_a_reap(rows: Rows, first: Any, second: Any, write: Statement) -> None:
    run_id = rows.running()
    if write in (journal.FINISH, journal.NOT_APPLIED):
        rows.fence(run_id, "w", reconcilable=True)
    rows.expire_lease(run_id)
    steps = rows.stored(run_id)["steps"]
    with first.holding(transitions.REAP_REQUEUE, run_id) as reaped:
        waiting = second.tries(write, run_id, **rows.step("w", effect="non_idempotent_write"))
    assert reaped
    assert waiting.result() == []
    assert rows.stored(run_id)["steps"] == steps


def test_a_fence_keeps_the_reaper_from_requeueing(rows: Rows, first: Any, second: Any) -> None:
    """The reaper decided on a row without a write in flight; the fence comes first and renews the lease."""
    run_id = rows.running()
    rows.expire_lease(run_id)
    with first.holding(journal.FENCE, run_id, **rows.step("w", effect="non_idempotent_write")):
        waiting = second.tries(transitions.REAP_REQUEUE, run_id)
    assert waiting.result() == []
    assert rows.row(run_id)["status"] == Status.RUNNING


def test_of_two_fences_of_one_write_one_starts_it(rows: Rows, first: Any, second: Any) -> None:
    run_id = rows.running()
    write = rows.step("w", effect="non_idempotent_write")
    with first.holding(journal.FENCE, run_id, **write) as started:
        waiting = second.tries(journal.FENCE, run_id, **write)
    assert started[0]["key"] == "w"
    assert waiting.result()[0]["key"] is None


def test_of_two_records_of_one_step_the_first_stands(rows: Rows, first: Any, second: Any) -> None:
    run_id = rows.running()
    with first.holding(journal.RECORD, run_id, **rows.step("s", result='"first"')):
        waiting = second.tries(journal.RECORD, run_id, **rows.step("s", result='"second"'))
    assert waiting.result() == []
    assert rows.stored(run_id)["steps"][0]["result"] == '"first"'


def test_a_cancelled_run_is_not_claimed(rows: Rows, first: Any, second: Any) -> None:
    run_id = rows.queued()
    with first.holding(steering.CANCEL, run_id):
        waiting = second.tries(claims.CLAIM_RUN, run_id)
    assert waiting.result() == []
    assert rows.row(run_id)["status"] == Status.CANCELLED


def test_a_claimed_run_is_asked_to_cancel_instead(rows: Rows, first: Any, second: Any) -> None:
    run_id = rows.queued()
    with first.holding(claims.CLAIM_RUN, run_id):
        waiting = second.tries(steering.CANCEL, run_id)
    assert waiting.result() == []
    assert second.does(steering.ASK_CANCEL, run_id)
    assert rows.row(run_id)["cancel_requested_at"] is not None


def test_no_write_starts_once_a_cancel_is_on_its_way(rows: Rows, first: Any, second: Any) -> None:
    run_id = rows.running()
    with first.holding(steering.ASK_CANCEL, run_id):
        waiting = second.tries(journal.FENCE, run_id, **rows.step("w", effect="non_idempotent_write"))
    assert waiting.result() == []
    assert rows.stored(run_id)["steps"] == []


def test_the_first_outcome_wins(rows: Rows, first: Any, second: Any) -> None:
    run_id = rows.running()
    with first.holding(transitions.SETTLE[Status.CANCELLED], run_id, reason="cancelled"):
        waiting = second.tries(SETTLE, run_id, **DONE)
    assert waiting.result() == []
    assert rows.row(run_id)["status"] == Status.CANCELLED


def test_strict_dispatch_does_not_settle_what_a_sweep_has_woken(rows: Rows, first: Any, second: Any) -> None:
    run_id = rows.queued()
    with first.holding(claims.CLAIM_RUN, run_id):
        waiting = second.tries(transitions.DISPATCH_FAILED, run_id)
    assert waiting.result() == []
    assert rows.row(run_id)["status"] == Status.RUNNING


def test_of_two_operators_one_resolves(rows: Rows, first: Any, second: Any) -> None:
    run_id = rows.fenced("w")
    rows.do(transitions.SETTLE[Status.FAILED], run_id)
    with first.holding(steering.RESOLVE[StepStatus.COMPLETED], run_id, key="w", result='"yes"'):
        waiting = second.tries(steering.RESOLVE[StepStatus.NOT_APPLIED], run_id, key="w")
    assert waiting.result() == []
    assert rows.stored(run_id)["steps"][0]["status"] == StepStatus.COMPLETED


def test_of_two_redrives_one_lands(rows: Rows, first: Any, second: Any) -> None:
    run_id = rows.final(Status.FAILED)
    with first.holding(steering.REDRIVE, run_id):
        waiting = second.tries(steering.REDRIVE, run_id)
    assert waiting.result() == []
    assert rows.row(run_id)["redrive_count"] == 1


@pytest.mark.parametrize("write", [journal.RECORD, journal.FENCE], ids=lambda s: s.name)
def test_a_heartbeat_passes_over_a_row_that_its_own_write_locks(
    rows: Rows, first: Any, second: Any, write: Statement
) -> None:
    """Over many rows it waits for none: one slow write does not cost the others their leases."""
    busy, free = rows.running(), rows.running()
    with first.holding(write, busy, **rows.step("s", effect="non_idempotent_write")):
        answer = second.does(claims.RENEW_ALL, busy, run_ids=[busy, free])
    said = {row["run_id"]: (row["held"], row["renewed"]) for row in answer}
    assert said == {busy: (True, False), free: (True, True)}


def enqueueing(key: str) -> dict[str, Any]:
    return {
        "kind": "k", "queue": "agentrun", "priority": 0, "deadline": None, "lease_seconds": None, "max_requeues": None,
        "limits": None, "planned_cost": None, "tags": [], "attributes": "{}", "owner": None, "code_version": None,
        "request": '"same"', "digest": "same", "key": key, "keys": [key], "delay": None,
    }  # fmt: skip


def test_of_two_producers_with_one_idempotency_key_one_stores(first: Any, second: Any) -> None:
    one, other = uuid4(), uuid4()
    params = enqueueing(str(one))
    with first.holding(births.ENQUEUE, one, **params) as stored:
        waiting = second.tries(births.ENQUEUE, other, **params)
    assert [row["id"] for row in stored] == [one]
    assert waiting.result() == []
    assert [row["id"] for row in second.does(births.BY_KEYS, other, **params)] == [one]


def test_a_producer_that_rolls_back_leaves_its_key_to_the_other(first: Any, second: Any) -> None:
    one, other = uuid4(), uuid4()
    params = enqueueing(str(one))
    with first.holding(births.ENQUEUE, one, **params):
        waiting = second.tries(births.ENQUEUE, other, **params)
        raise psycopg.Rollback
    assert [row["id"] for row in waiting.result()] == [other]
