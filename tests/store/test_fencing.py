"""A stale owner writes nothing: every fenced write under another epoch returns no row and changes nothing."""

from __future__ import annotations

from itertools import chain
from typing import Any
from uuid import UUID

import pytest

from agentrun.core.words import Effect, Status, StepStatus
from agentrun.store import claims, journal, reads, steering, transitions
from agentrun.store.sql import Statement
from agentrun.testing.rows import OWNER, Rows

WRITES: list[Statement] = [
    journal.RECORD,
    journal.RECORD_WITH_USAGE,
    journal.RECORD_IN_TRANSACTION,
    journal.FENCE,
    journal.FINISH,
    journal.NOT_APPLIED,
    transitions.REQUEUE,
    transitions.HAND_BACK,
    transitions.REAP_REQUEUE,
    *transitions.SETTLE.values(),
    *transitions.REAP_SETTLE.values(),
    claims.RENEW_ALL,
    claims.RENEW_WAITING,
    transitions.CONTINUE,
]
READS_ONLY = {journal.STEP_LANDED, reads.MOVE_LANDED, reads.HELD, reads.FACTS}
"""They name the epoch, and write nothing."""


def prepared(rows: Rows, statement: Statement) -> tuple[UUID, dict[str, Any]]:
    """A run on which `statement` lands under epoch 1, and its parameters."""
    run_id = rows.running(owner="somebody")
    key = "w"
    if statement in (journal.FINISH, journal.NOT_APPLIED):
        rows.fence(run_id, key)
    if statement.name.startswith("reap"):
        rows.expire_lease(run_id)
    usage = {"model": "m", "input_tokens": 3, "output_tokens": 4, "cost": "0.5"}
    if statement in (journal.FENCE, journal.FINISH, journal.NOT_APPLIED):
        return run_id, rows.step(key, effect="non_idempotent_write")
    return run_id, rows.step(key, **(usage if statement is journal.RECORD_WITH_USAGE else {}))


def landed(statement: Statement, answer: list[dict[str, Any]]) -> bool:
    renews = statement in (claims.RENEW_ALL, claims.RENEW_WAITING)
    return any(row["renewed"] for row in answer) if renews else bool(answer)


def name(value: object) -> str:
    return value.name if isinstance(value, Statement) else str(value)


@pytest.mark.parametrize("statement", WRITES, ids=name)
def test_the_owner_writes(rows: Rows, statement: Statement) -> None:
    """The control: but for the epoch, what is refused below lands."""
    run_id, params = prepared(rows, statement)
    before = rows.stored(run_id)
    assert landed(statement, rows.do(statement, run_id, **params))
    assert rows.stored(run_id) != before


@pytest.mark.parametrize("epoch", [0, 2], ids=["stale", "not yet drawn"])
@pytest.mark.parametrize("statement", WRITES, ids=name)
def test_nobody_writes_under_another_epoch(rows: Rows, statement: Statement, epoch: int) -> None:
    run_id, params = prepared(rows, statement)
    before = rows.stored(run_id)
    # The same owner's name, on purpose: process ids repeat.
    answer = rows.do(statement, run_id, **params, by=OWNER, epoch=epoch)
    assert not landed(statement, answer)
    assert rows.stored(run_id) == before


@pytest.mark.parametrize("statement", WRITES, ids=name)
@pytest.mark.parametrize("status", sorted(set(Status) - {Status.RUNNING}))
def test_nobody_writes_to_a_run_that_does_not_run(rows: Rows, statement: Statement, status: Status) -> None:
    run_id, params = prepared(rows, statement)
    # By hand and without a claim: the epoch is still the old one, and a write in flight holds no status up.
    with rows.database.connection() as connection:
        connection.execute(
            "UPDATE agentrun.runs SET status = %s, waiting_on = %s, reason = %s, due_at = now(), claimed_by = NULL,"
            " lease_expires_at = NULL, finished_at = CASE WHEN %s THEN now() END WHERE id = %s",
            [
                status,
                "signal" if status is Status.WAITING else None,
                {"completed": "completed", "failed": "not_retryable", "cancelled": "cancelled"}.get(status),
                status.final,
                run_id,
            ],
        )
    before = rows.stored(run_id)
    assert not landed(statement, rows.do(statement, run_id, **params))
    assert rows.stored(run_id) == before


def test_every_statement_that_names_an_epoch_is_tried() -> None:
    found = set[str]()
    for module in (claims, transitions, steering, journal, reads):
        values = vars(module).values()
        members = chain(values, *(value.values() for value in values if isinstance(value, dict)))
        found |= {each.name for each in members if isinstance(each, Statement) and each.names & {"epoch", "epochs"}}
    assert found == {each.name for each in [*WRITES, *READS_ONLY]}


def test_a_fence_is_refused_once_a_cancel_was_asked_for(rows: Rows) -> None:
    run_id = rows.running()
    rows.do(steering.ASK_CANCEL, run_id)
    before = rows.stored(run_id)
    assert rows.do(journal.FENCE, run_id, **rows.step("w", effect="non_idempotent_write")) == []
    assert rows.stored(run_id) == before


def test_what_happened_is_recorded_although_a_cancel_was_asked_for(rows: Rows) -> None:
    run_id = rows.fenced("w")
    rows.do(steering.ASK_CANCEL, run_id)
    assert rows.do(journal.FINISH, run_id, **rows.step("w"))
    assert rows.pending_effect(run_id) is None


@pytest.mark.parametrize(
    ("there", "effect", "starts"),
    [
        (StepStatus.STARTED, "non_idempotent_write", False),
        (StepStatus.STARTED, "idempotent_write", True),
        (StepStatus.NOT_APPLIED, "non_idempotent_write", True),
        (StepStatus.COMPLETED, "non_idempotent_write", False),
        (StepStatus.COMPLETED, "idempotent_write", False),
        (StepStatus.FAILED, "non_idempotent_write", False),
    ],
)
def test_a_write_starts_again_only_where_that_can_do_no_harm(
    rows: Rows, there: StepStatus, effect: str, starts: bool
) -> None:
    run_id = rows.running()
    write = rows.step("w", effect=effect, kind="write")
    rows.do(journal.FENCE, run_id, **write)
    if there is StepStatus.NOT_APPLIED:
        rows.do(journal.NOT_APPLIED, run_id, **write)
    elif there is not StepStatus.STARTED:
        rows.do(journal.FINISH, run_id, **write | {"status": str(there)})
    before = rows.stored(run_id)["steps"]
    (answer,) = rows.do(journal.FENCE, run_id, **write | {"attempt": 2, "idempotency_key": "another"})
    assert (answer["key"] is not None) is starts
    after = rows.stored(run_id)["steps"]
    if starts:
        assert (after[0]["attempt"], after[0]["status"]) == (2, StepStatus.STARTED)
        assert after[0]["idempotency_key"] == before[0]["idempotency_key"], "the key of a write never changes"
    else:
        assert after == before


def test_a_step_that_has_ended_is_not_recorded_again(rows: Rows) -> None:
    run_id = rows.running()
    rows.do(journal.RECORD, run_id, **rows.step("s", result='"first"'))
    before = rows.stored(run_id)
    assert rows.do(journal.RECORD, run_id, **rows.step("s", result='"second"')) == []
    assert rows.stored(run_id) == before


def test_the_fence_on_the_run_stands_until_the_last_write_has_ended(rows: Rows) -> None:
    run_id = rows.fenced("one")
    rows.fence(run_id, "two", Effect.IDEMPOTENT_WRITE)
    assert rows.pending_effect(run_id) == "non_idempotent_write"
    rows.do(journal.FINISH, run_id, **rows.step("one"))
    assert rows.pending_effect(run_id) == "idempotent_write"
    rows.do(journal.FINISH, run_id, **rows.step("two"))
    assert rows.pending_effect(run_id) is None


def test_what_a_step_spent_is_on_its_run_as_well(rows: Rows) -> None:
    run_id = rows.running(owner="them")
    spent = {"model": "m", "input_tokens": 10, "output_tokens": 5, "cost": "0.25"}
    for key in ("one", "two"):
        rows.do(journal.RECORD_WITH_USAGE, run_id, **rows.step(key, **spent))
    row = rows.row(run_id)
    assert (row["model_calls"], row["input_tokens"], row["output_tokens"], float(row["cost"])) == (2, 20, 10, 0.5)


def test_the_heartbeat_brings_back_what_it_must_know(rows: Rows) -> None:
    kept, asked, lost = rows.running(), rows.running(), rows.running()
    rows.do(steering.ASK_CANCEL, asked)
    rows.do(transitions.REQUEUE, lost)
    answer = rows.database.rows(claims.RENEW_ALL, {"run_ids": [kept, asked, lost], "epochs": [1, 1, 1], "lease": 90.0})
    said = {row["run_id"]: (row["held"], row["renewed"], row["cancel_requested"]) for row in answer}
    assert said == {kept: (True, True, False), asked: (True, True, True), lost: (False, False, False)}
