"""The lock on the run's row: what comes while another move commits is judged by what that move left."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from uuid import UUID

import psycopg
import pytest

from agentrun.core.words import Effect, StepStatus
from agentrun.store import ending, journal, offering, steering, taking, transitions
from agentrun.store.database import Database
from agentrun.store.sql import Statement
from agentrun.testing import until
from tests.guards.conditions import statements
from tests.guards.scene import Scene

LOCK = " FOR NO KEY UPDATE"
OF_PARENT = f"{LOCK} OF runs"
"""Of a child's end: that lock decides nothing, and gives an order to who waits for whom (see tests/races)."""

ELSEWHERE = {
    each.name for module in (offering, taking, ending) for each in vars(module).values() if isinstance(each, Statement)
}
UNDER_A_LOCK = [
    each
    for each in statements().values()
    if LOCK in each.sql.replace(OF_PARENT, "") and "SKIP LOCKED" not in each.sql
    if "rows" not in each.names and each.name not in ELSEWHERE
    if each.name != "renew_waiting"
]
"""What passes over locked rows never waits for a lock. Statements for many rows and of steps elsewhere: not here; nor
the renewal in line, which answers for every lease whether it was renewed (see tests/store/test_fencing.py)."""


@contextmanager
def without_lock(statement: Statement) -> Iterator[None]:
    whole = statement.sql
    object.__setattr__(statement, "sql", whole.replace(LOCK, ""))
    try:
        yield
    finally:
        object.__setattr__(statement, "sql", whole)


def prepared(s: Scene) -> tuple[UUID, Statement]:
    """A run that the statement is for, and a move that takes it away."""
    run_id = s.rows.running(owner="somebody")
    resolving = s.statement in steering.RESOLVE.values()
    if resolving or s.statement in (journal.FINISH, journal.NOT_APPLIED):
        s.rows.fence(run_id, "w", Effect.NON_IDEMPOTENT_WRITE, reconcilable=True)
    if s.statement.name == "take_signal":
        with s.database.connection() as connection:
            connection.execute("INSERT INTO agentrun.signals (run_id, name) VALUES (%s, 'go')", [run_id])
    if resolving:
        s.set("runs", run_id, status="failed", reason="not_retryable", finished_at="=now()", claimed_by=None,
              lease_expires_at=None)  # fmt: skip
        return run_id, steering.REDRIVE
    s.rows.expire_lease(run_id)
    return run_id, transitions.REAP_REQUEUE


def lands_late(s: Scene) -> bool:
    """Whether the statement lands although it came while another move was taking the run away."""
    s.run, takes_away = prepared(s)
    before = s.stored(s.run)[2:]
    answers: list[list[dict[str, Any]] | psycopg.Error] = []

    def come_late() -> None:
        try:
            answers.append(s.do(**said))
        except psycopg.errors.CheckViolation as error:
            answers.append(error)

    said = {"wait_id": s.run, "child_id": s.run, "name": "go", "child_kind": "test", "child_queue": "agentrun"}
    said |= {"child_tags": [], "child_attributes": "{}", "child_priority": 0, "child_request": "null"}
    with s.database.transaction() as other:
        assert other.execute(takes_away.sql, s.rows.params(s.run)).fetchall()
        thread = threading.Thread(target=come_late)
        thread.start()
        until(lambda: answers or blocked(s.database), 10)
    thread.join(10)
    (answer,) = answers
    if isinstance(answer, psycopg.Error):
        # The table's own constraint stopped half a state: the statement had passed its guards.
        return True
    # Without the lock, a statement may well say that it was refused, after it has written to the journal.
    return any(row.get("key", True) for row in answer) or s.stored(s.run)[2:] != before


def blocked(database: Database) -> bool:
    with database.connection() as connection:
        waiting = "SELECT 1 FROM pg_stat_activity WHERE wait_event_type = 'Lock' AND datname = current_database()"
        return connection.execute(waiting).fetchone() is not None


def name(statement: Statement) -> str:
    return statement.name


@pytest.mark.parametrize("statement", UNDER_A_LOCK, ids=name)
def test_what_comes_while_a_run_is_taken_away_is_refused(statement: Statement, stage: Database) -> None:
    assert not lands_late(Scene(stage, statement))


@pytest.mark.parametrize("statement", UNDER_A_LOCK, ids=name)
def test_without_the_lock_it_would_land(statement: Statement, stage: Database) -> None:
    """The control: the lock is what refuses."""
    with without_lock(statement):
        assert lands_late(Scene(stage, statement))


def test_every_step_of_a_journal_is_written_under_the_lock() -> None:
    locked = {statement.name for statement in UNDER_A_LOCK}
    assert {"record", "record_with_usage", "fence", "finish", "not_applied"} <= locked
    assert {f"resolve_{target}" for target in (StepStatus.COMPLETED, StepStatus.NOT_APPLIED)} <= locked
