"""Ending steps that were done elsewhere: once each, with the run's wait, in one statement.

A wait of kind `remote` parks the run; it is resolved in the statement that ends its step, or that interrupts it.
"""

from __future__ import annotations

from typing import Any

from sqlalchemy import (
    BigInteger,
    ColumnElement,
    Text,
    and_,
    case,
    cast,
    func,
    literal_column,
    null,
    or_,
    select,
    true,
    update,
)
from sqlalchemy.dialects.postgresql import JSON, UUID
from sqlalchemy.sql.selectable import CTE

from agentrun.core.words import Effect, EventType, StepStatus, WaitStatus
from agentrun.store.elsewhere import (
    ELSEWHERE,
    MAY_REPEAT,
    OFFER_COLUMNS,
    OFFERED,
    REDO,
    STARTED,
    STEP_EPOCH,
    STILL_TROUBLED,
    TAKEN_BY_ME,
    TOKEN,
    locked_many,
    locked_run,
    open_run,
)
from agentrun.store.mover import BY, RUN_ID, STILL_OPEN, counted, told, told_resolved
from agentrun.store.sql import Statement, compiled, compiled_many, later, now, number, param, recordset, word
from agentrun.store.tables import event_seq, runs, steps, waits
from agentrun.store.waits import KEY

REMOTE: ColumnElement[str] = literal_column("'remote'")


def _complete() -> Statement:
    """The first result counts, also one of a taker whose lease had lapsed. Refuses: ended, or never taken by it."""
    mine = or_(_not_ended_since(STEP_EPOCH), and_(STARTED, steps.c.token_digest == TOKEN))
    return _end("complete_step", locked_run(), mine, StepStatus.COMPLETED, _complete_many())


def _not_ended_since(step_epoch: ColumnElement[int]) -> ColumnElement[bool]:
    """Also of a step that was shelved with its run, or has failed and is to be done again."""
    return and_(or_(STARTED, OFFERED, REDO), steps.c.step_epoch >= step_epoch)


def _complete_many() -> Statement:
    """As `complete_step`, for the results of a batch: each resolves its wait, and a run is counted and woken once."""
    columns = {"run_id": UUID, "key": Text, "step_epoch": BigInteger, "result": Text, "by": Text}
    source = locked_many(recordset("mine", columns))
    said = {"result": cast(source.c.result, JSON), "error": null()}
    ended = _ended(source, _not_ended_since(source.c.step_epoch), StepStatus.COMPLETED, source.c.key, **said)
    done = ended.returning(steps.c.run_id, steps.c.key, source.c.nth, source.c.by).cte("done")
    resolved = (
        update(waits)
        .where(waits.c.run_id == done.c.run_id, waits.c.step_key == done.c.key, STILL_OPEN)
        .values(status=word(WaitStatus.RESOLVED), resolution=null(), resolved_by=done.c.by, resolved_at=now())
        .returning(waits.c.run_id, waits.c.step_key, waits.c.resolved_by)
        .cte("answered")
    )
    parent = counted(resolved)
    each = select(parent.c.id, parent.c.epoch, resolved.c.step_key, resolved.c.resolved_by)
    heard = each.join(resolved, resolved.c.run_id == parent.c.id).cte("heard")
    first = func.row_number().over(partition_by=done.c.run_id, order_by=done.c.nth) == number(1)
    woken = [parent.c[column] for column in ("queue", "kind", "priority")]
    rows = (
        select(source.c.id, done.c.nth, case((first, source.c.status)).label("status"), *woken)
        .select_from(done.join(source, source.c.nth == done.c.nth).outerjoin(parent, parent.c.id == done.c.run_id))
        .add_cte(told_resolved(heard, heard.c.resolved_by, REMOTE))
    )
    return compiled_many("complete_steps", rows, columns)


def _fail() -> Statement:
    """Refuses: ended, or taken by somebody else meanwhile."""
    return _end("fail_step", locked_run(), TAKEN_BY_ME, StepStatus.FAILED)


def _fail_troubled() -> Statement:
    """Give a step up. Refuses: its taker beat, it was taken, or it ended, all since the decision."""
    guard = and_(STILL_TROUBLED, or_(OFFERED, MAY_REPEAT))
    return _end("fail_troubled_step", open_run(), guard, StepStatus.FAILED)


def _resolve_external() -> Statement:
    """An operator says what an external step came to, in place of its taker; told so that it may be said again.

    Refuses: its run is over, or the step ended or was taken anew since it was looked at.
    """
    source = open_run()
    said = {"result": param("result", JSON), "error": null()}
    taken = and_(STARTED, steps.c.step_epoch == STEP_EPOCH)
    done = _ended(source, taken, StepStatus.COMPLETED, KEY, **said).returning(steps.c.run_id, steps.c.key).cte("done")
    resolved = select(source.c.id, source.c.epoch).join(done, done.c.run_id == source.c.id).cte("resolved")
    return _resolving("resolve_external", source, done, null(), heard=told(resolved, EventType.RESOLVED))


def _end(
    name: str, source: CTE, guard: ColumnElement[bool], status: StepStatus, many: Statement | None = None
) -> Statement:
    """End a step, resolve the run's wait, and put a parked run back to the queue: one statement.

    Returns the run with the status that it had. For a final run only the step changes.
    """
    said = {"result": param("result", JSON), "error": param("error", JSON)}
    done = _ended(source, guard, status, KEY, **said).returning(steps.c.run_id, steps.c.key).cte("done")
    return _resolving(name, source, done, null(), many)


def _ended(
    source: CTE, guard: ColumnElement[bool], status: StepStatus, key: ColumnElement[str], **said: ColumnElement[Any]
) -> Any:
    """The one place where a step ends that was done elsewhere."""
    return (
        update(steps)
        .where(steps.c.run_id == source.c.id, steps.c.key == key, ELSEWHERE, guard)
        .values(
            status=word(status),
            seq=event_seq.next_value(),
            finished_at=now(),
            lease_expires_at=null(),
            due_at=null(),
            token_digest=null(),
            **said,
        )
    )


def _interrupt() -> Statement:
    """Nobody works on a write any more, and nobody knows how it ended: its run hears that.

    It stays started, as any interrupted write, and keeps its taker's token: what the taker says after all still counts.
    Refuses: not such a write, its taker beat, or it ended. `mine` is given where the taker itself says so.
    """
    source = open_run()
    mine = and_(TAKEN_BY_ME, param("mine", Text).is_not(None))
    left = (
        update(steps)
        .where(
            steps.c.run_id == source.c.id,
            steps.c.key == KEY,
            ELSEWHERE,
            steps.c.effect == word(Effect.NON_IDEMPOTENT_WRITE),
            or_(and_(STILL_TROUBLED, STARTED), mine),
        )
        .values(lease_expires_at=null(), due_at=null(), error=param("error", JSON))
        .returning(steps.c.run_id, steps.c.key)
        .cte("done")
    )
    interrupted = func.json_build_object(literal_column("'interrupted'"), true())
    return _resolving("interrupt_step", source, left, interrupted)


def _resolving(
    name: str,
    source: CTE,
    done: CTE,
    resolution: ColumnElement[Any],
    many: Statement | None = None,
    *,
    heard: CTE | None = None,
    **values: Any,
) -> Statement:
    """`heard` is the event that says more than that the wait was resolved."""
    resolved = (
        update(waits)
        .where(waits.c.run_id == done.c.run_id, waits.c.step_key == done.c.key, STILL_OPEN)
        .values(status=word(WaitStatus.RESOLVED), resolution=resolution, resolved_by=BY, resolved_at=now())
        .returning(waits.c.run_id, waits.c.step_key)
        .cte("answered")
    )
    parent = counted(resolved, **values)
    woken = [parent.c[column] for column in ("queue", "kind", "priority")]
    both = select(source.c.id, source.c.status, *woken).select_from(
        done.join(source, source.c.id == done.c.run_id).outerjoin(parent, true())
    )
    return compiled(name, both.add_cte(told_resolved(parent, BY, REMOTE) if heard is None else heard), many)


def _ended_by() -> Statement:
    """After a connection broke: did this process's own word on the step commit? The run is woken by the sweep then."""
    columns = (runs.c.id, *OFFER_COLUMNS, runs.c.kind, runs.c.priority, null().label("status"))
    ended = (steps.c.run_id == RUN_ID, steps.c.key == KEY, steps.c.by == BY, steps.c.status == param("ended", Text))
    return compiled("step_ended_by", select(*columns).join(runs, runs.c.id == steps.c.run_id).where(*ended))


COMPLETE = later(_complete)
FAIL = later(_fail)
FAIL_TROUBLED = later(_fail_troubled)
RESOLVE_EXTERNAL = later(_resolve_external)
INTERRUPT = later(_interrupt)
STEP_ENDED_BY = later(_ended_by)
