"""Every move against every starting status: legal ones land and tell, illegal ones return no row and change nothing."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator
from itertools import chain
from typing import Any
from uuid import UUID

import pytest
from psycopg import sql

from agentrun.core import moves as legal
from agentrun.core.moves import MOVES, Move
from agentrun.core.words import FINAL, Effect, EventType, Status, StepStatus
from agentrun.store import claims, mover, steering, transitions, waits
from agentrun.store.sql import Statement
from agentrun.testing.rows import OWNER, Rows

Case = tuple[Move, Statement, Status]

STATEMENTS: dict[Move, dict[Status, Statement]] = {
    legal.CLAIM: {Status.RUNNING: claims.CLAIM_RUN},
    legal.RENEW: {Status.RUNNING: claims.RENEW_ALL},
    legal.REQUEUE: {Status.QUEUED: transitions.REQUEUE},
    legal.HAND_BACK: {Status.QUEUED: transitions.HAND_BACK},
    legal.SETTLE: dict(transitions.SETTLE),
    legal.REAP: {Status.QUEUED: transitions.REAP_REQUEUE, **transitions.REAP_SETTLE},
    legal.CANCEL: {Status.CANCELLED: steering.CANCEL},
    legal.EXPIRE: {Status.FAILED: transitions.EXPIRE},
    legal.REDRIVE: {Status.QUEUED: steering.REDRIVE},
    legal.PARK: {Status.WAITING: waits.PARK},
    legal.RESOLVE_WAIT: {Status.QUEUED: waits.UNPARK},
}

LEAVES_THE_STATUS = {
    "renew_all",
    "renew_waiting",
    "ask_cancel",
    "ask_cancel_orphan",
    "resolve_completed",
    "resolve_not_applied",
}
SAME_MOVE_AGAIN = {transitions.DISPATCH_FAILED.name, transitions.CONTINUE.name, steering.CANCEL_ORPHAN.name}

CASES: list[Case] = [
    (move, statement, target) for move, targets in STATEMENTS.items() for target, statement in targets.items()
]


def everything() -> Iterator[Statement]:
    for value in chain.from_iterable(vars(module).values() for module in (claims, transitions, steering)):
        if isinstance(value, Statement):
            yield value
        elif isinstance(value, dict):
            yield from (each for each in value.values() if isinstance(each, Statement))


def prepared(rows: Rows, move: Move, status: Status) -> UUID:
    """A run in `status` for which every guard of `move` but the one on the status holds."""
    run_id = rows.run(status)
    rows.pass_deadline(run_id)
    if move is legal.PARK:
        rows.wait(run_id)
    if move is legal.REAP and status is Status.RUNNING:
        rows.expire_lease(run_id)
    if status is Status.QUEUED:
        with rows.database.connection() as connection:
            connection.execute("UPDATE agentrun.runs SET epoch = 1 WHERE id = %s", [run_id])
    return run_id


def _id(value: Any) -> str:
    return getattr(value, "verb", None) or getattr(value, "name", None) or str(value)


@pytest.mark.parametrize("source", list(Status))
@pytest.mark.parametrize(("move", "statement", "target"), CASES, ids=_id)
def test_a_move_lands_exactly_from_its_sources(
    rows: Rows, move: Move, statement: Statement, target: Status, source: Status
) -> None:
    run_id = prepared(rows, move, source)
    before = rows.stored(run_id)
    answer = rows.do(statement, run_id)
    after = rows.stored(run_id)
    if source in move.sources:
        assert answer
        assert after["runs"][0]["status"] == target
        told = after["moves"][len(before["moves"]) :]
        assert move.event is None or move.event in [event["type"] for event in told]
        assert (move.event is None) == (told == [])
    else:
        assert not any(row.get("renewed", True) for row in answer)
        assert after == before


def test_every_legal_move_has_its_statements() -> None:
    assert set(STATEMENTS) == set(MOVES)
    for move, targets in STATEMENTS.items():
        assert set(targets) == move.targets, move.verb


def test_no_statement_moves_a_run_unseen() -> None:
    """A statement that updates runs is in the matrix, or is known to leave the status alone."""
    tried = {statement.name for statement in chain.from_iterable(t.values() for t in STATEMENTS.values())}
    known = (tried | LEAVES_THE_STATUS | SAME_MOVE_AGAIN | {mover.LOCK_RUN.name}) - {waits.PARK.name, waits.UNPARK.name}
    assert {statement.name for statement in everything()} == known
    for statement in everything():
        if statement.name in LEAVES_THE_STATUS:
            assert "SET status=" not in statement.sql.replace('"', "").split("UPDATE agentrun.steps")[0]


def test_the_mover_is_the_only_function_that_sets_a_status() -> None:
    assert inspect.getsource(mover).count('"status": word(target)') == 1, "the mover, for runs"
    assert inspect.getsource(mover).count("status=case(") == 1, "a parked parent, for its child's end"
    assert inspect.getsource(steering).count('"status": word(target)') == 1, "resolve, for steps"


@pytest.mark.parametrize("target", sorted(FINAL))
def test_a_final_run_is_finished_and_free(rows: Rows, target: Status) -> None:
    row = rows.row(rows.final(target))
    assert row["finished_at"] is not None
    assert (row["claimed_by"], row["lease_expires_at"], row["due_at"], row["waiting_on"]) == (None,) * 4


def test_a_claim_draws_a_new_epoch_and_leases(rows: Rows) -> None:
    run_id = rows.queued()
    (claimed,) = rows.do(claims.CLAIM_RUN, run_id)
    row = rows.row(run_id)
    assert (claimed["epoch"], row["epoch"], row["claimed_by"]) == (1, 1, OWNER)
    assert 29 < (row["lease_expires_at"] - row["claimed_at"]).total_seconds() <= 30


def test_a_kind_may_have_a_lease_of_its_own(rows: Rows) -> None:
    row = rows.row(rows.running(lease_seconds=90.0))
    assert 89 < (row["lease_expires_at"] - row["claimed_at"]).total_seconds() <= 90


@pytest.mark.parametrize(
    ("columns", "params"),
    [
        ({"due_at": sql.SQL("now() + interval '1 hour'")}, {}),
        ({}, {"namespace": "elsewhere"}),
        ({}, {"kinds": ["another"]}),
        ({}, {"kinds": []}),
    ],
    ids=["not due", "another namespace", "a kind not known here", "no kinds at all"],
)
def test_a_claim_refuses(rows: Rows, columns: dict[str, Any], params: dict[str, Any]) -> None:
    run_id = rows.queued(**columns)
    before = rows.stored(run_id)
    assert rows.do(claims.CLAIM_RUN, run_id, **params) == []
    assert rows.stored(run_id) == before


@pytest.mark.parametrize("statement", [steering.CANCEL, transitions.EXPIRE, steering.REDRIVE], ids=_id)
def test_no_move_from_outside_reaches_into_another_namespace(rows: Rows, statement: Statement) -> None:
    status = Status.FAILED if statement is steering.REDRIVE else Status.QUEUED
    run_id = rows.run(status)
    rows.pass_deadline(run_id)
    before = rows.stored(run_id)
    assert rows.do(statement, run_id, namespace="elsewhere") == []
    assert rows.stored(run_id) == before


def test_a_deadline_that_has_not_passed_ends_nothing(rows: Rows) -> None:
    run_id = rows.queued(deadline_at=sql.SQL("now() + interval '1 hour'"))
    assert rows.do(transitions.EXPIRE, run_id) == []
    assert rows.do(transitions.EXPIRE, rows.queued()) == []


def test_a_lease_that_runs_is_not_reaped(rows: Rows) -> None:
    run_id = rows.running()
    for statement in (transitions.REAP_REQUEUE, *transitions.REAP_SETTLE.values()):
        assert rows.do(statement, run_id) == []


def test_strict_dispatch_never_settles_what_was_claimed(rows: Rows) -> None:
    fresh, claimed, requeued = rows.queued(), rows.running(), rows.running()
    rows.do(transitions.REQUEUE, requeued)
    assert rows.do(transitions.DISPATCH_FAILED, claimed) == []
    assert rows.do(transitions.DISPATCH_FAILED, requeued) == []
    assert rows.do(transitions.DISPATCH_FAILED, fresh)
    assert rows.row(fresh)["status"] == Status.FAILED


@pytest.mark.parametrize(
    ("statement", "expire"),
    [(transitions.REQUEUE, False), (transitions.HAND_BACK, False), (transitions.REAP_REQUEUE, True)],
    ids=_id,
)
@pytest.mark.parametrize(
    ("effect", "reconcilable", "goes"),
    [
        (Effect.NON_IDEMPOTENT_WRITE, False, False),
        (Effect.NON_IDEMPOTENT_WRITE, True, True),
        (Effect.IDEMPOTENT_WRITE, False, True),
    ],
)
def test_a_run_goes_back_to_the_queue_only_when_its_write_can_be_asked_about_or_repeated(
    rows: Rows, statement: Statement, expire: bool, effect: Effect, reconcilable: bool, goes: bool
) -> None:
    run_id = rows.running()
    rows.fence(run_id, "w", effect, reconcilable=reconcilable)
    if expire:
        rows.expire_lease(run_id)
    before = rows.stored(run_id)
    assert bool(rows.do(statement, run_id)) is goes
    if goes:
        assert rows.row(run_id)["status"] == Status.QUEUED
    else:
        assert rows.stored(run_id) == before


def test_what_is_reaped_with_a_write_in_flight_keeps_the_evidence(rows: Rows) -> None:
    run_id = rows.fenced("w")
    rows.expire_lease(run_id)
    assert rows.do(transitions.REAP_SETTLE[Status.FAILED], run_id)
    assert rows.pending_effect(run_id) == Effect.NON_IDEMPOTENT_WRITE


@pytest.mark.parametrize(
    ("statement", "told"),
    [
        (transitions.REAP_REQUEUE, ["lease_lost", "reaped"]),
        (transitions.REAP_SETTLE[Status.FAILED], ["lease_lost", "reaped", "settled"]),
    ],
    ids=_id,
)
def test_a_reap_tells_its_events_in_the_order_of_the_story(rows: Rows, statement: Statement, told: list[str]) -> None:
    run_id = rows.running()
    rows.expire_lease(run_id)
    rows.do(statement, run_id)
    assert [event["type"] for event in rows.stored(run_id)["moves"]] == ["claimed", *told]


def test_a_run_with_a_write_in_flight_is_not_redriven_before_it_is_resolved(rows: Rows) -> None:
    run_id = rows.fenced("w")
    rows.do(transitions.SETTLE[Status.FAILED], run_id)
    assert rows.do(steering.REDRIVE, run_id) == []
    assert rows.do(steering.RESOLVE[StepStatus.NOT_APPLIED], run_id, key="w")
    assert rows.do(steering.REDRIVE, run_id)
    row = rows.row(run_id)
    assert (row["status"], rows.pending_effect(run_id), row["requeue_count"]) == (Status.QUEUED, None, 0)


@pytest.mark.parametrize("source", [Status.RUNNING, Status.FAILED, Status.CANCELLED])
@pytest.mark.parametrize("target", sorted(steering.RESOLVE))
def test_a_write_is_resolved_only_after_its_run_has_ended(rows: Rows, source: Status, target: StepStatus) -> None:
    run_id = rows.fenced("w")
    if source is not Status.RUNNING:
        rows.do(transitions.SETTLE[source], run_id)
    before = rows.stored(run_id)
    assert bool(rows.do(steering.RESOLVE[target], run_id, key="w", result='"found"')) is (source is not Status.RUNNING)
    if source is Status.RUNNING:
        assert rows.stored(run_id) == before
    else:
        assert rows.stored(run_id)["steps"][0]["status"] == target
        assert rows.do(steering.RESOLVE[target], run_id, key="w", result='"again"') == [], "the first one stands"


def test_the_failed_steps_that_ended_their_segment_are_done_again_and_no_others(rows: Rows) -> None:
    from agentrun.store import journal

    run_id = rows.running()
    error = '{"type": "Error"}'
    for key in ("caught", "fatal", "fatal/inside", "fatally", "fatal too"):
        rows.do(journal.RECORD, run_id, **rows.step(key, status="failed", result=None, error=error))
    rows.do(transitions.REQUEUE, run_id, redo=["fatal", "fatal too"], error=error)
    assert {step["key"]: step["status"] for step in rows.stored(run_id)["steps"]} == {
        "caught": "failed",
        "fatal": "redo",
        "fatal/inside": "redo",
        "fatally": "failed",
        "fatal too": "redo",
    }


@pytest.mark.parametrize("source", list(Status))
def test_asking_to_cancel_leaves_the_status_and_is_told_once(rows: Rows, source: Status) -> None:
    run_id = rows.run(source)
    before = rows.stored(run_id)
    asked = rows.do(steering.ASK_CANCEL, run_id)
    assert bool(asked) is (source is Status.RUNNING)
    assert rows.row(run_id)["status"] == source
    if not asked:
        assert rows.stored(run_id) == before
    assert rows.do(steering.ASK_CANCEL, run_id) == []
    told = [event["type"] for event in rows.stored(run_id)["moves"]]
    assert told.count(EventType.CANCEL_REQUESTED) == len(asked)


def counts(row: dict[str, Any]) -> dict[str, int]:
    return {
        name: row[f"{name}_count"]
        for name in ("requeue", "crash", "error", "handback", "redrive")
        if row[f"{name}_count"]
    }


@pytest.mark.parametrize(
    ("statement", "prepare", "counted"),
    [
        (transitions.REQUEUE, None, {"requeue": 1, "error": 1}),
        (transitions.HAND_BACK, None, {"handback": 1}),
        (transitions.REAP_REQUEUE, Rows.expire_lease, {"requeue": 1, "crash": 1}),
    ],
    ids=["a failure", "a drain", "a crash"],
)
def test_each_way_back_to_the_queue_counts_its_own(
    rows: Rows, statement: Statement, prepare: Callable[[Rows, UUID], None] | None, counted: dict[str, int]
) -> None:
    run_id = rows.running()
    if prepare is not None:
        prepare(rows, run_id)
    rows.do(statement, run_id)
    assert counts(rows.row(run_id)) == counted
