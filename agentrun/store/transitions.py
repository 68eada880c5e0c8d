"""Every move of a run as one guarded statement over the one mover.

A move that was refused returns no row: that is data, not an error. Each statement moves the row and tells the event
stream in one go, so neither can exist without the other.
"""

from __future__ import annotations

from dataclasses import replace

from sqlalchemy import Double, Integer, Text, and_, cast, func, insert, null, select, update
from sqlalchemy.dialects.postgresql import JSON, UUID
from sqlalchemy.sql.selectable import CTE

from agentrun.core import moves as legal
from agentrun.core.words import FINAL, EventType, Reason, Status
from agentrun.store.inflight import write_in_flight
from agentrun.store.mover import (
    EPOCH,
    IN_NAMESPACE,
    WAKE_COLUMNS,
    closed_waits,
    final_statement,
    locked_rows,
    moved,
    redone,
    statement,
    told,
)
from agentrun.store.sql import Statement, beside_key, compiled_many, later, now, number, param, seconds, word
from agentrun.store.tables import runs, signals, waits

_NOT_CANCELLED = runs.c.cancel_requested_at.is_(None)


def _settle(target: Status) -> Statement:
    """Refuses: not running, another epoch; and to complete, after a cancel was asked for or over a write in flight.

    A completed run keeps no error; the others keep the last one.
    """
    row = moved(
        legal.SETTLE,
        target,
        *((_NOT_CANCELLED, ~write_in_flight(runs.c.id)) if target is Status.COMPLETED else ()),
        reason=param("reason", Text),
        result=param("result", JSON),
        error=null() if target is Status.COMPLETED else func.coalesce(param("error", JSON), runs.c.error),
    )
    settled = final_statement(f"settle_{target}", row, told(row, EventType.SETTLED))
    return replace(settled, many=_complete_many()) if target is Status.COMPLETED else settled


def _complete_many() -> Statement:
    """As settling one as completed, for runs that are nobody's child."""
    locked = locked_rows(Status.RUNNING, {"result": Text})
    row = moved(
        legal.SETTLE,
        Status.COMPLETED,
        _NOT_CANCELLED,
        ~write_in_flight(runs.c.id),
        returning=(*WAKE_COLUMNS, locked.c.nth, locked.c.by, locked.c.data),
        of=locked,
        reason=word(Reason.COMPLETED),
        result=cast(locked.c.result, JSON),
        error=null(),
    )
    settled = told(row, EventType.SETTLED, cast(row.c.data, JSON), by=row.c.by)
    nobody = null().label("parent_id")
    both = select(row.c.id, row.c.nth, nobody).add_cte(settled, closed_waits(row))
    return compiled_many("settle_completed_many", both, ("run_id", "epoch", "by", "data", "result"))


def _continue() -> Statement:
    """Completes a run and bears its continuation, which inherits who waits for it, or did. Refuses as `settle` does.

    And where something was resolved or sent that was not counted yet: signals that nobody has taken go along, and this
    statement sees those of before it only. Where the run had a deadline, its continuation has as long.
    """
    row = moved(
        legal.SETTLE,
        Status.COMPLETED,
        _NOT_CANCELLED,
        ~write_in_flight(runs.c.id),
        runs.c.resolutions == param("resolutions", Integer),
        reason=word(Reason.COMPLETED),
        error=null(),
        returning=(*WAKE_COLUMNS, runs.c.lease_seconds, runs.c.max_requeues, runs.c.limits, runs.c.tags,
                   runs.c.attributes, runs.c.owner, runs.c.parent_id, runs.c.parent_step_key, runs.c.created_at,
                   runs.c.deadline_at),
    )  # fmt: skip
    same = ("namespace", "kind", "queue", "priority", "lease_seconds", "max_requeues", "limits", "tags", "attributes",
            "owner", "parent_id", "parent_step_key")  # fmt: skip
    values = {
        "id": param("next_id", UUID),
        "request": param("request", JSON),
        "status": word(Status.QUEUED),
        "due_at": now(),
        "created_at": now(),
        "deadline_at": now() + (row.c.deadline_at - row.c.created_at),
        "continued_from": row.c.id,
        **{name: row.c[name] for name in same},
    }
    born = insert(runs).from_select(list(values), select(*values.values()).select_from(row)).cte("born")
    # Also a wait that is closed or was answered: its run may be redriven, and then asks what this run came to.
    followed = update(waits).where(waits.c.child_id == row.c.id).values(child_id=param("next_id", UUID)).cte("followed")
    kept = (signals.c.run_id == row.c.id, signals.c.taken_by_step.is_(None))
    along = update(signals).where(*kept).values(run_id=param("next_id", UUID)).cte("along")
    settled = told(row, EventType.SETTLED)
    return statement("continue_as_new", row, settled, born, followed, along, closed_waits(row))


def _requeue() -> Statement:
    """Refuses: not running, another epoch, a cancel asked for, or a write in flight that nobody can ask about."""
    row = moved(
        legal.REQUEUE,
        Status.QUEUED,
        _NOT_CANCELLED,
        ~write_in_flight(runs.c.id),
        due_at=now() + seconds(param("delay", Double)),
        requeue_count=runs.c.requeue_count + number(1),
        error_count=runs.c.error_count + number(1),
        error=param("error", JSON),
    )
    return statement("requeue", row, told(row, EventType.REQUEUED), redone(row))


def _hand_back() -> Statement:
    """As requeue, and nothing is counted against the run: a drain is not its fault."""
    row = moved(
        legal.HAND_BACK,
        Status.QUEUED,
        _NOT_CANCELLED,
        ~write_in_flight(runs.c.id),
        due_at=now(),
        handback_count=runs.c.handback_count + number(1),
    )
    return statement("hand_back", row, told(row, EventType.HANDED_BACK))


_STALE = and_(runs.c.lease_expires_at < now(), runs.c.epoch == EPOCH)


def _reap_requeue() -> Statement:
    """Refuses: the lease was renewed or taken, a cancel asked for, or a write in flight, all since the decision."""
    row = moved(
        legal.REAP,
        Status.QUEUED,
        _STALE,
        _NOT_CANCELLED,
        ~write_in_flight(runs.c.id),
        due_at=now(),
        requeue_count=runs.c.requeue_count + number(1),
        crash_count=runs.c.crash_count + number(1),
    )
    return statement("reap_requeue", row, told(_lost(row), EventType.REAPED))


def _reap_settle(target: Status) -> Statement:
    """Refuses: the lease was renewed or taken meanwhile. What is in flight stays so, as evidence."""
    row = moved(
        legal.REAP,
        target,
        _STALE,
        reason=param("reason", Text),
        error=func.coalesce(param("error", JSON), runs.c.error),
        crash_count=runs.c.crash_count + number(1),
    )
    reaped = told(_lost(row), EventType.REAPED, name="reaped")
    return final_statement(f"reap_settle_{target}", row, told(reaped, EventType.SETTLED))


def _lost(moved: CTE) -> CTE:
    """A stale owner writes nothing, not even that it lost its lease: whoever takes the run from it says so."""
    return told(moved, EventType.LEASE_LOST, name="lost")


def _expire() -> Statement:
    row = moved(
        legal.EXPIRE,
        Status.FAILED,
        IN_NAMESPACE,
        runs.c.deadline_at < now(),
        reason=word(Reason.DEADLINE_EXCEEDED),
    )
    return final_statement("expire", row, told(row, EventType.SETTLED))


def _dispatch_failed() -> Statement:
    """Strict dispatch (ADR-102): no wake could be sent, so the run ends before anybody claims it."""
    row = moved(
        legal.EXPIRE,
        Status.FAILED,
        IN_NAMESPACE,
        beside_key(runs.c.status) == word(Status.QUEUED),
        runs.c.epoch == number(0),
        reason=word(Reason.PROVIDER_FAILED),
    )
    return final_statement("dispatch_failed", row, told(row, EventType.SETTLED))


SETTLE = {target: later(_settle, target) for target in sorted(FINAL)}
CONTINUE = later(_continue)
REQUEUE = later(_requeue)
HAND_BACK = later(_hand_back)
REAP_REQUEUE = later(_reap_requeue)
REAP_SETTLE = {target: later(_reap_settle, target) for target in (Status.FAILED, Status.CANCELLED)}
EXPIRE = later(_expire)
DISPATCH_FAILED = later(_dispatch_failed)
