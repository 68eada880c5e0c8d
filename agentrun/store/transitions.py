"""Every move of a run as one guarded statement over the one mover.

A move that was refused returns no row: that is data, not an error. Each statement moves the row and tells the event
stream in one go, so neither can exist without the other.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from sqlalchemy import (
    BigInteger,
    ColumnElement,
    Double,
    Integer,
    Text,
    and_,
    cast,
    exists,
    func,
    insert,
    literal_column,
    null,
    or_,
    select,
    true,
    update,
)
from sqlalchemy.dialects.postgresql import ARRAY, JSON, JSONB, UUID
from sqlalchemy.sql.selectable import CTE
from sqlalchemy.types import TypeEngine

from agentrun.core import moves as legal
from agentrun.core.words import FINAL, Effect, EventType, Reason, Status, StepStatus, WaitStatus
from agentrun.store.mover import (
    BY,
    EPOCH,
    IN_NAMESPACE,
    LEASE,
    RUN_ID,
    RUNNING,
    WAKE_COLUMNS,
    closed_waits,
    final_statement,
    locked_rows,
    moved,
    statement,
    told,
)
from agentrun.store.sql import (
    Statement,
    beside_key,
    compiled,
    compiled_many,
    later,
    now,
    number,
    param,
    seconds,
    text_in,
    word,
)
from agentrun.store.tables import event_seq, moves, runs, signals, steps, waits

CLAIMED_COLUMNS = (
    runs.c.id, runs.c.epoch, runs.c.kind, runs.c.request, runs.c.queue, runs.c.priority, runs.c.requeue_count,
    runs.c.max_requeues, runs.c.lease_seconds, runs.c.owner, runs.c.limits, runs.c.deadline_at,
    runs.c.cancel_requested_at, runs.c.model_calls, runs.c.input_tokens, runs.c.output_tokens, runs.c.cost,
    runs.c.attributes, runs.c.tags, runs.c.parent_id, runs.c.claimed_by, runs.c.planned_cost, runs.c.resolutions,
    runs.c.created_at,
    (runs.c.deadline_at < now()).is_(true()).label("deadline_passed"),
)  # fmt: skip


def write_in_flight(run_id: ColumnElement[Any]) -> ColumnElement[bool]:
    """Whether a non-idempotent write of the run started, has not said how it ended, and cannot be asked.

    A remote one counts once nobody works on it any more: until then its taker says how it ends. The sweep gives it up
    when its lease has lapsed, and the run hears of that.
    """
    return _started_write(run_id, steps.c.lease_expires_at.is_(None))


def write_left_behind(run_id: ColumnElement[Any]) -> ColumnElement[bool]:
    """The same of a run that has ended: there a lapsed lease says by itself that nobody works on a remote one."""
    return _started_write(run_id, or_(steps.c.lease_expires_at.is_(None), steps.c.lease_expires_at < now()))


def write_unanswered(run_id: ColumnElement[Any]) -> ColumnElement[bool]:
    """Whether such a write was begun and nobody has said how it ended, whether or not somebody still works on it."""
    return _started_write(run_id)


def write_under_way(run_id: ColumnElement[Any]) -> ColumnElement[bool]:
    """Whether a taker whose lease still lives may be about to say how such a write ended."""
    return _started_write(run_id, steps.c.lease_expires_at >= now())


def _started_write(run_id: ColumnElement[Any], *whose: ColumnElement[bool]) -> ColumnElement[bool]:
    return exists().where(
        steps.c.run_id == run_id,
        steps.c.status == word(StepStatus.STARTED),
        steps.c.effect == word(Effect.NON_IDEMPOTENT_WRITE),
        ~steps.c.reconcilable,
        *whose,
    )


def _redo_failed_steps(moved: CTE) -> CTE:
    """The failures that ended the segment are not replayed: their steps are done again (a caught one stays recorded).

    With each goes what failed inside it: a step that an agent delegates in holds the steps of the other agent.
    """
    failed = func.unnest(param("redo", ARRAY(Text))).table_valued("key", name="failed").render_derived(name="failed")
    within = func.starts_with(steps.c.key, failed.c.key.op("||")(literal_column("'/'")))
    return (
        update(steps)
        .where(
            steps.c.run_id == moved.c.id,
            exists(select(number(1)).select_from(failed).where(or_(steps.c.key == failed.c.key, within))),
            steps.c.status == word(StepStatus.FAILED),
        )
        .values(status=word(StepStatus.REDO), finished_at=null())
        .cte("redone")
    )


_NOT_CANCELLED = runs.c.cancel_requested_at.is_(None)


def _of_kind(name: str, as_type: type[TypeEngine[Any]]) -> ColumnElement[Any]:
    """What the claiming process's kind overrides: a producer that knows no kinds could not store it."""
    own = param("options", JSONB).op("->")(runs.c.kind)
    return cast(own.op("->>")(word(name)), as_type)


def _claim() -> Statement:
    """Refuses: not queued, not due yet, another namespace, or a kind that is not known here.

    What the run's producer did not say, its kind's options say from now on.
    """
    row = _claimed(None, BY)
    return compiled("claim", select(row).add_cte(told(row, EventType.CLAIMED)), _claim_many())


def _claim_many() -> Statement:
    """As `claim`, for the wakes of a batch. Of two wakes for one run, one claims."""
    locked = locked_rows(Status.QUEUED, {})
    row = _claimed(locked, locked.c.by, locked.c.nth, locked.c.by, locked.c.data)
    claimed = told(row, EventType.CLAIMED, cast(row.c.data, JSON), by=row.c.by)
    columns = [row.c[name] for name in row.c.keys() if name not in ("by", "data")]  # noqa: SIM118 - a column collection
    return compiled_many("claim_many", select(*columns).add_cte(claimed), ("run_id", "by", "data"))


def _claimed(of: CTE | None, by: ColumnElement[Any], *said: ColumnElement[Any]) -> CTE:
    lease = func.coalesce(runs.c.lease_seconds, _of_kind("lease_seconds", Double))
    return moved(
        legal.CLAIM,
        Status.RUNNING,
        IN_NAMESPACE,
        runs.c.due_at <= now(),
        runs.c.kind == func.any(param("kinds", ARRAY(Text))),
        returning=(*CLAIMED_COLUMNS, *said),
        of=of,
        epoch=runs.c.epoch + number(1),
        claimed_by=by,
        lease_expires_at=now() + seconds(func.coalesce(lease, param("lease", Double))),
        lease_seconds=lease,
        max_requeues=func.coalesce(runs.c.max_requeues, _of_kind("max_requeues", Integer)),
        deadline_at=func.coalesce(runs.c.deadline_at, runs.c.created_at + seconds(_of_kind("timeout", Double))),
        claimed_at=now(),
        started_at=func.coalesce(runs.c.started_at, now()),
    )


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
        pending_effect=null(),
    )
    return statement("requeue", row, told(row, EventType.REQUEUED), _redo_failed_steps(row))


def _hand_back() -> Statement:
    """As requeue, and nothing is counted against the run: a drain is not its fault."""
    row = moved(
        legal.HAND_BACK,
        Status.QUEUED,
        _NOT_CANCELLED,
        ~write_in_flight(runs.c.id),
        due_at=now(),
        handback_count=runs.c.handback_count + number(1),
        pending_effect=null(),
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
        pending_effect=null(),
    )
    return statement("reap_requeue", row, told(_lost(row), EventType.REAPED))


def _reap_settle(target: Status) -> Statement:
    """Refuses: the lease was renewed or taken meanwhile. `pending_effect` stays, as evidence."""
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


def _cancel() -> Statement:
    row = moved(
        legal.CANCEL,
        Status.CANCELLED,
        IN_NAMESPACE,
        reason=word(Reason.CANCELLED),
        cancel_requested_at=func.coalesce(runs.c.cancel_requested_at, now()),
        cancel_requested_by=func.coalesce(runs.c.cancel_requested_by, BY),
    )
    return final_statement("cancel", row, told(row, EventType.SETTLED))


def _ask_cancel() -> Statement:
    """Leaves the status: the owner ends the run at its next step, or the reaper does."""
    asked = (
        update(runs)
        .where(
            runs.c.id == RUN_ID,
            IN_NAMESPACE,
            RUNNING,
            runs.c.cancel_requested_at.is_(None),
        )
        .values(cancel_requested_at=now(), cancel_requested_by=BY)
        .returning(runs.c.id, runs.c.epoch)
        .cte("moved")
    )
    return statement("ask_cancel", asked, told(asked, EventType.CANCEL_REQUESTED))


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


def _redrive() -> Statement:
    """Refuses: not failed, or a write is still in flight (resolve it first)."""
    row = moved(
        legal.REDRIVE,
        Status.QUEUED,
        IN_NAMESPACE,
        runs.c.request.is_not(None),
        ~write_left_behind(runs.c.id),
        due_at=now(),
        requeue_count=number(0),
        redrive_count=runs.c.redrive_count + number(1),
        pending_effect=null(),
        cancel_requested_at=null(),
    )
    return statement("redrive", row, told(row, EventType.REDRIVEN), _redo_failed_steps(row), _reopened_waits(row))


def _reopened_waits(moved: CTE) -> CTE:
    """What was asked and never answered is asked still, and told again. A remote step may have ended since."""
    ended = exists().where(
        steps.c.run_id == waits.c.run_id, steps.c.key == waits.c.step_key, steps.c.finished_at.is_not(None)
    )
    # A child that came to nothing is brought back, or another one started, by the segment that asks for it.
    child = runs.alias("child")
    failed = beside_key(child.c.status).in_([word(Status.CANCELLED), word(Status.FAILED)])
    lost = exists().where(child.c.id == waits.c.child_id, failed)
    return (
        update(waits)
        .where(waits.c.run_id == moved.c.id, waits.c.status == word(WaitStatus.CLOSED), ~ended, ~lost)
        .values(status=word(WaitStatus.OPEN), resolved_at=null(), remind_at=now())
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
        unsettled = or_(unsettled, and_(steps.c.status == word(StepStatus.COMPLETED), _said_to_be_applied()))
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


def _said_to_be_applied() -> ColumnElement[bool]:
    """Whether an operator said of the step that it was applied: the event that RESOLVE tells."""
    return exists().where(
        moves.c.run_id == steps.c.run_id,
        moves.c.type == word(EventType.RESOLVED),
        text_in(moves.c.data, "key") == steps.c.key,
        text_in(moves.c.data, "applied") == word("true"),
    )


def _renew(name: str, skip_locked: bool) -> Statement:
    """One statement for every lease that a process holds. Rows locked by their own write are passed over.

    Without `skip_locked` it waits for them: for one lease at a time, which then holds no other lock.
    """
    held = func.unnest(param("run_ids", ARRAY(UUID)), param("epochs", ARRAY(BigInteger)))
    mine = held.table_valued("run_id", "epoch", name="mine").render_derived(name="mine")
    free = (
        select(runs.c.id)
        .join(mine, and_(runs.c.id == mine.c.run_id, runs.c.epoch == mine.c.epoch))
        .where(RUNNING)
        .order_by(runs.c.id)
        .with_for_update(key_share=True, skip_locked=skip_locked, of=runs)
        .cte("free")
    )
    renewed = (
        update(runs)
        .where(runs.c.id == free.c.id)
        .values(lease_expires_at=now() + seconds(LEASE))
        .returning(runs.c.id)
        .cte("renewed")
    )
    seen = (
        select(
            mine.c.run_id,
            and_(runs.c.status == word(Status.RUNNING), runs.c.epoch == mine.c.epoch).is_(true()).label("held"),
            renewed.c.id.is_not(None).label("renewed"),
            runs.c.cancel_requested_at.is_not(None).label("cancel_requested"),
            (runs.c.deadline_at < now()).is_(true()).label("deadline_passed"),
        )
        .select_from(mine)
        .outerjoin(runs, runs.c.id == mine.c.run_id)
        .outerjoin(renewed, renewed.c.id == mine.c.run_id)
    )
    return compiled(name, seen)


CLAIM_RUN = later(_claim)
SETTLE = {target: later(_settle, target) for target in sorted(FINAL)}
CONTINUE = later(_continue)
REQUEUE = later(_requeue)
HAND_BACK = later(_hand_back)
REAP_REQUEUE = later(_reap_requeue)
REAP_SETTLE = {target: later(_reap_settle, target) for target in (Status.FAILED, Status.CANCELLED)}
CANCEL = later(_cancel)
ASK_CANCEL = later(_ask_cancel)
EXPIRE = later(_expire)
DISPATCH_FAILED = later(_dispatch_failed)
REDRIVE = later(_redrive)
RESOLVE = {target: later(_resolve, target) for target in (StepStatus.COMPLETED, StepStatus.NOT_APPLIED)}
RENEW_ALL = later(_renew, "renew_all", True)
RENEW_WAITING = later(_renew, "renew_waiting", False)
