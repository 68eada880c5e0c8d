"""What people do to a run, from outside: cancel it, redrive it, say how a write of it ended."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from sqlalchemy import ColumnElement, Text, and_, case, exists, func, null, or_, select, update
from sqlalchemy.dialects.postgresql import JSON
from sqlalchemy.sql.selectable import CTE

from agentrun.core import moves as legal
from agentrun.core.errors import InvalidResult
from agentrun.core.failures import qualified_name
from agentrun.core.words import EventType, Reason, Status, StepStatus, WaitKind, WaitStatus
from agentrun.store.inflight import write_left_behind
from agentrun.store.mover import (
    BY,
    IN_NAMESPACE,
    LOCK_RUN,
    RUN_ID,
    RUNNING,
    final_statement,
    moved,
    redone,
    statement,
    told,
)
from agentrun.store.orphans import is_orphan
from agentrun.store.sql import Statement, beside_key, error_type, later, now, number, param, text_in, word
from agentrun.store.tables import event_seq, moves, runs, steps, waits

_INVALID_RESULT = error_type(qualified_name(InvalidResult))


def _cancel(name: str, *guards: ColumnElement[bool]) -> Statement:
    row = moved(
        legal.CANCEL,
        Status.CANCELLED,
        IN_NAMESPACE,
        *guards,
        reason=word(Reason.CANCELLED),
        cancel_requested_at=func.coalesce(runs.c.cancel_requested_at, now()),
        cancel_requested_by=func.coalesce(runs.c.cancel_requested_by, BY),
    )
    return final_statement(name, row, told(row, EventType.SETTLED))


def _ask_cancel(name: str, *guards: ColumnElement[bool]) -> Statement:
    """Leaves the status: the owner ends the run at its next step, or the reaper does."""
    asked = (
        update(runs)
        .where(
            runs.c.id == RUN_ID,
            IN_NAMESPACE,
            RUNNING,
            runs.c.cancel_requested_at.is_(None),
            *guards,
        )
        .values(cancel_requested_at=now(), cancel_requested_by=BY)
        .returning(runs.c.id, runs.c.epoch)
        .cte("moved")
    )
    return statement(name, asked, told(asked, EventType.CANCEL_REQUESTED))


def _redrive() -> Statement:
    """Refuses: not failed, or a write is still in flight (resolve it first).

    The row is locked first: which of its children are lost is asked under that lock, as the sweep ends them under it.
    """
    row = moved(
        legal.REDRIVE,
        Status.QUEUED,
        IN_NAMESPACE,
        runs.c.request.is_not(None),
        ~write_left_behind(runs.c.id),
        due_at=now(),
        requeue_count=number(0),
        redrive_count=runs.c.redrive_count + number(1),
        cancel_requested_at=null(),
        cancel_requested_by=null(),
    )
    redriven = statement("redrive", row, told(row, EventType.REDRIVEN), redone(row), _reopened_waits(row))
    return replace(redriven, first=LOCK_RUN)


def _reopened_waits(moved: CTE) -> CTE:
    """What was asked and never answered is asked still, and told again. A remote step may have ended since.

    People have as long for it as at first; a timer ends when it would have.
    """
    ended = exists().where(
        steps.c.run_id == waits.c.run_id, steps.c.key == waits.c.step_key, steps.c.finished_at.is_not(None)
    )
    # A child that came to nothing is brought back, or another one started, by the segment that asks for it. So it is
    # with one that was asked to end, and will.
    child = runs.alias("child")
    failed = beside_key(child.c.status).in_([word(Status.CANCELLED), word(Status.FAILED)])
    lost = exists().where(child.c.id == waits.c.child_id, or_(failed, child.c.cancel_requested_at.is_not(None)))
    as_long = now() + (waits.c.due_at - waits.c.created_at)
    due_at = case((waits.c.kind == word(WaitKind.TIMER), waits.c.due_at), else_=as_long)
    return (
        update(waits)
        .where(waits.c.run_id == moved.c.id, waits.c.status == word(WaitStatus.CLOSED), ~ended, ~lost)
        .values(status=word(WaitStatus.OPEN), resolved_at=null(), remind_at=now(), due_at=due_at, created_at=now())
        .cte("reopened")
    )


def _resolve(target: StepStatus) -> Statement:
    """An operator says how an interrupted write ended: it was applied (with this result), or it was not.

    Refuses (no row): the run is not failed or cancelled, or no such write is in flight, or a remote one's taker lives.
    What an operator had said was applied may be said again, with another result; never of a step that said its own end.
    """
    ended = (runs.c.id == RUN_ID, IN_NAMESPACE)
    over = beside_key(runs.c.status).in_([word(Status.CANCELLED), word(Status.FAILED)])
    held = select(runs.c.id, runs.c.epoch).where(*ended, over).with_for_update(key_share=True).cte("held")
    values: dict[str, ColumnElement[Any]] = {"status": word(target)}
    unsettled = steps.c.status == word(StepStatus.STARTED)
    if target is StepStatus.COMPLETED:
        said = _said_to_be_applied(steps.c.run_id, steps.c.key)
        unsettled = or_(unsettled, and_(steps.c.status == word(StepStatus.COMPLETED), said))
        values |= {"result": param("result", JSON), "finished_at": now(), "seq": event_seq.next_value()}
    resolved = (
        update(steps)
        .where(
            steps.c.run_id == held.c.id,
            steps.c.key == param("key", Text),
            unsettled,
            or_(steps.c.lease_expires_at.is_(None), steps.c.lease_expires_at < now()),
        )
        .values(values)
        .returning(steps.c.run_id.label("id"), held.c.epoch)
        .cte("moved")
    )
    return statement(f"resolve_{target}", resolved, told(resolved, EventType.RESOLVED))


def _said_to_be_applied(run_id: ColumnElement[Any], key: ColumnElement[Any]) -> ColumnElement[bool]:
    """Whether an operator said of the step that it was applied: the event that RESOLVE tells."""
    return exists().where(
        moves.c.run_id == run_id,
        moves.c.type == word(EventType.RESOLVED),
        text_in(moves.c.data, "key") == key,
        text_in(moves.c.data, "applied") == word("true"),
    )


def unfit_answer() -> ColumnElement[Any]:
    """Of a failed run: the key of the step at which what an operator had said does not fit; NULL of another failure."""
    key = text_in(runs.c.error, "step")
    unfit = text_in(runs.c.error, "type") == _INVALID_RESULT
    return case((and_(unfit, _said_to_be_applied(runs.c.id, key)), key))


CANCEL = later(_cancel, "cancel")
ASK_CANCEL = later(_ask_cancel, "ask_cancel")
CANCEL_ORPHAN = later(lambda: _cancel("cancel_orphan", is_orphan()))
ASK_CANCEL_ORPHAN = later(lambda: _ask_cancel("ask_cancel_orphan", is_orphan()))
"""As CANCEL and ASK_CANCEL, of a child whose parent has come to nothing. Refuses: the parent goes on, or the child is
on its own since an operator brought it back."""

REDRIVE = later(_redrive)
RESOLVE = {target: later(_resolve, target) for target in (StepStatus.COMPLETED, StepStatus.NOT_APPLIED)}
