"""Half states cannot be stored, whatever statement asks for them: the CHECK constraints refuse."""

from __future__ import annotations

from uuid import UUID

import psycopg
import pytest
from psycopg import sql

from agentrun.core.words import Status
from agentrun.testing.rows import Rows

HALF_STATES: list[tuple[Status, str, str]] = [
    (Status.RUNNING, "lease_expires_at = NULL", "runs_running_iff_leased"),
    (Status.RUNNING, "claimed_by = NULL", "runs_running_iff_leased"),
    (Status.RUNNING, "status = 'queued', due_at = now()", "runs_running_iff_leased"),
    (Status.QUEUED, "status = 'running'", "runs_running_iff_leased"),
    (Status.QUEUED, "claimed_by = 'me'", "runs_running_iff_leased"),
    (Status.COMPLETED, "lease_expires_at = now()", "runs_running_iff_leased"),
    (Status.COMPLETED, "finished_at = NULL", "runs_final_iff_finished"),
    (Status.QUEUED, "finished_at = now()", "runs_final_iff_finished"),
    (Status.QUEUED, "status = 'cancelled', reason = 'cancelled'", "runs_final_iff_finished"),
    (Status.FAILED, "reason = NULL", "runs_final_iff_reason"),
    (Status.QUEUED, "reason = 'completed'", "runs_final_iff_reason"),
    (Status.WAITING, "waiting_on = NULL", "runs_waiting_iff_waiting_on"),
    (Status.QUEUED, "waiting_on = 'signal'", "runs_waiting_iff_waiting_on"),
    (Status.QUEUED, "status = 'waiting'", "runs_waiting_iff_waiting_on"),
    (Status.QUEUED, "due_at = NULL", "runs_queued_is_runnable"),
    (Status.QUEUED, "request = NULL", "runs_queued_is_runnable"),
    (Status.COMPLETED, "error = '{}'", "runs_completed_without_error"),
    (Status.QUEUED, "status = 'parked'", "runs_status"),
    (Status.FAILED, "reason = 'bad luck'", "runs_reason"),
    (Status.QUEUED, "requeue_count = -1", "runs_counts"),
]
HALF_STEPS: list[tuple[str, str]] = [
    ("status = 'completed'", "steps_ended_iff_finished"),
    ("finished_at = now()", "steps_ended_iff_finished"),
    ("started_seq = NULL", "steps_started_is_told"),
    ("status = 'lost'", "steps_status"),
    ("effect = 'harmless'", "steps_effect"),
]


def change(rows: Rows, table: str, by: str, run_id: UUID, assignments: str) -> None:
    statement = sql.SQL("UPDATE agentrun.{} SET {} WHERE {} = %s").format(
        sql.Identifier(table), sql.SQL(assignments), sql.Identifier(by)
    )
    with rows.database.connection() as connection:
        connection.execute(statement, [run_id])


@pytest.mark.parametrize(("status", "assignments", "constraint"), HALF_STATES, ids=lambda value: str(value))
def test_half_a_state_is_refused(rows: Rows, status: Status, assignments: str, constraint: str) -> None:
    run_id = rows.run(status)
    with pytest.raises(psycopg.errors.CheckViolation) as refused:
        change(rows, "runs", "id", run_id, assignments)
    assert refused.value.diag.constraint_name == constraint


@pytest.mark.parametrize("assignments", ["tags = '{x}'", "due_at = NULL"])
def test_a_whole_state_is_not(rows: Rows, assignments: str) -> None:
    """The control: the same way of changing a row works where nothing is half."""
    change(rows, "runs", "id", rows.run(Status.COMPLETED), assignments)


@pytest.mark.parametrize(("assignments", "constraint"), HALF_STEPS, ids=lambda value: str(value))
def test_half_a_step_is_refused(rows: Rows, assignments: str, constraint: str) -> None:
    run_id = rows.fenced("w")
    with pytest.raises(psycopg.errors.CheckViolation) as refused:
        change(rows, "steps", "run_id", run_id, assignments)
    assert refused.value.diag.constraint_name == constraint


def test_every_constraint_on_runs_and_steps_is_tried(rows: Rows) -> None:
    with rows.database.connection() as connection:
        found = connection.execute(
            "SELECT conname AS name FROM pg_constraint WHERE contype = 'c'"
            " AND conrelid IN ('agentrun.runs'::regclass, 'agentrun.steps'::regclass)"
        ).fetchall()
    tried = {constraint for *_, constraint in HALF_STATES} | {constraint for _, constraint in HALF_STEPS}
    assert {row["name"] for row in found} == tried


def test_one_idempotency_key_belongs_to_one_run_per_kind_and_namespace(rows: Rows) -> None:
    rows.queued(idempotency_key="k")
    rows.queued(idempotency_key="k", kind="another")
    Rows(rows.database, namespace="elsewhere").queued(idempotency_key="k")
    with pytest.raises(psycopg.errors.UniqueViolation):
        rows.queued(idempotency_key="k")
