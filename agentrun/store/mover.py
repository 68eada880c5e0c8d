"""The one private mover: the only place where a run's status changes, and where a move is told.

Every statement that moves a run is built on it, whatever module it is in; no other statement changes a status.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from sqlalchemy import (
    BigInteger,
    ColumnElement,
    Double,
    Text,
    and_,
    case,
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
from sqlalchemy.dialects.postgresql import ARRAY, JSON, UUID
from sqlalchemy.sql.selectable import CTE
from sqlalchemy.types import TypeEngine

from agentrun.core.moves import Move
from agentrun.core.words import FINAL, EventType, Status, StepStatus, WaitStatus
from agentrun.store.sql import Statement, any_of, beside_key, compiled, later, now, number, param, recordset, word
from agentrun.store.tables import event_seq, moves, runs, steps, waits

RUN_ID = param("run_id", UUID)
EPOCH = param("epoch", BigInteger)
NAMESPACE = param("namespace", Text)
BY = param("by", Text)
_KEY: ColumnElement[str] = literal_column("'key'")
_KIND: ColumnElement[str] = literal_column("'kind'")
CHILD: ColumnElement[str] = literal_column("'child'")
DATA = param("data", JSON)
LEASE = func.coalesce(runs.c.lease_seconds, param("lease", Double))
IN_NAMESPACE = beside_key(runs.c.namespace) == NAMESPACE
RUNNING = beside_key(runs.c.status) == word(Status.RUNNING)
STILL_OPEN = beside_key(waits.c.status) == word(WaitStatus.OPEN)
"""Of a run, and of a wait, that is found by its key."""

WAKE_COLUMNS = (runs.c.id, runs.c.namespace, runs.c.kind, runs.c.queue, runs.c.priority, runs.c.due_at, runs.c.epoch)


def moved(
    move: Move,
    target: Status,
    *guards: ColumnElement[bool],
    returning: tuple[ColumnElement[Any], ...] = WAKE_COLUMNS,
    of: CTE | None = None,
    **values: ColumnElement[Any],
) -> CTE:
    """The one place where a status changes. What a status implies is set here: half states cannot be asked for.

    Moves the run of the parameters, or those of `of` (see `locked_rows`), a fenced move each with the epoch that is
    named there.
    """
    if target not in move.targets:
        raise ValueError(f"{move.verb} does not lead to {target}")
    sources = beside_key(runs.c.status).in_([word(source) for source in sorted(move.sources)])
    run_id = RUN_ID if of is None else of.c.id
    fence = (runs.c.epoch == (EPOCH if of is None else of.c.named_epoch),) if move.fenced else ()
    return (
        update(runs)
        .where(runs.c.id == run_id, sources, *fence, *guards)
        .values({"status": word(target), **_implied_by(target), **values})
        .returning(*returning)
        .cte("moved")
    )


def locked_rows(source: Status, names: Mapping[str, type[TypeEngine[Any]]]) -> CTE:
    """The runs that the parameter `rows` names, locked in the order of their ids, with what is said for each."""
    mine = recordset("mine", {"run_id": UUID, "epoch": BigInteger, "by": Text, "data": Text, **names})
    said = [mine.c[name] for name in ("nth", "by", "data", *names)]
    locked = locked_among(mine, beside_key(runs.c.status) == word(source))
    of_locked = select(locked.c.id, mine.c.epoch.label("named_epoch"), *said).join(mine, mine.c.run_id == locked.c.id)
    return of_locked.cte("said")


def locked_among(mine: CTE, *guards: ColumnElement[bool], also: ColumnElement[Any] | None = None) -> CTE:
    """The runs that a recordset names, locked in the order of their ids."""
    asked = (runs.c.id, runs.c.epoch) if also is None else (runs.c.id, runs.c.epoch, also)
    named = select(*asked).where(runs.c.id == any_of(mine.c.run_id), *guards).order_by(runs.c.id)
    return named.with_for_update(key_share=True).cte("locked")


def said_of(locked: CTE, mine: CTE) -> CTE:
    """What is said of the locked runs under their own epoch, in the order in which it was said."""
    of_run = and_(mine.c.run_id == locked.c.id, mine.c.epoch == locked.c.epoch)
    return select(locked.c.id, mine).join(mine, of_run).order_by(mine.c.nth).cte("held")


def _implied_by(target: Status) -> dict[str, ColumnElement[Any]]:
    implied: dict[str, ColumnElement[Any]] = {}
    if target is not Status.RUNNING:
        implied |= {"claimed_by": null(), "lease_expires_at": null()}
    if target is not Status.WAITING:
        implied |= {"waiting_on": null()}
    if target in FINAL:
        return implied | {"finished_at": now(), "due_at": null()}
    return implied | {"finished_at": null(), "reason": null()}


def told(
    moved: CTE,
    event: EventType,
    data: ColumnElement[Any] = DATA,
    *,
    by: ColumnElement[Any] = BY,
    name: str = "told",
) -> CTE:
    """The event of a move. Its seq is drawn from the moved row, hence under that row's lock: ordered within the run.

    Of several events, each is told from the one before it: PostgreSQL executes unconnected ones in any order.
    """
    entry = select(
        moved.c.id, event_seq.next_value(), word(event), now(), moved.c.epoch, by.label("by"), data.label("data")
    )
    entered = insert(moves).from_select(["run_id", "seq", "type", "at", "epoch", "by", "data"], entry)
    return entered.returning(moves.c.run_id.label("id"), moves.c.epoch).cte(name)


def final_statement(name: str, row: CTE, *effects: CTE) -> Statement:
    """A final move: its open waits close, and a parent that waits for the run hears of it, in the same statement.

    Returns the moved row, and in `parent_…` the parent's, where one has to be woken.
    """
    parent = _answered_parent(row)
    woken = tuple(parent.c[name].label(f"parent_{name}") for name in ("id", "kind", "queue", "priority"))
    both = select(row, *woken).select_from(row.outerjoin(parent, true()))
    return compiled(name, both.add_cte(*effects, closed_waits(row), told_resolved(parent, CHILD, CHILD)))


def closed_waits(row: CTE) -> CTE:
    return (
        update(waits)
        .where(waits.c.run_id == row.c.id, STILL_OPEN)
        .values(status=word(WaitStatus.CLOSED), resolved_at=now())
        .cte("closed")
    )


def redone(moved: CTE) -> CTE:
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


def _answered_parent(row: CTE) -> CTE:
    """The child's wait is resolved, and its parent counted and, where it is parked, put back to the queue.

    The parent's row is locked before its wait, as by all that moves the parent: or a cancel of it deadlocks with this.
    """
    of_child = row.join(waits, waits.c.child_id == row.c.id).join(runs, runs.c.id == waits.c.run_id)
    heard = select(waits.c.id, row.c.id.label("child")).select_from(of_child)
    heard = heard.with_for_update(key_share=True, of=runs).cte("heard")
    answered = (
        update(waits)
        .where(waits.c.id == heard.c.id, STILL_OPEN)
        .values(
            status=word(WaitStatus.RESOLVED),
            resolution=func.json_build_object(CHILD, heard.c.child),
            resolved_by=CHILD,
            resolved_at=now(),
        )
        .returning(waits.c.run_id, waits.c.step_key)
        .cte("answered")
    )
    return counted(answered)


def counted(answered: CTE, **values: ColumnElement[Any]) -> CTE:
    """The runs of the resolved waits: each counted on its row and, where it is parked, put back to the queue."""
    parked = runs.c.status == word(Status.WAITING)
    return (
        update(runs)
        .where(runs.c.id == answered.c.run_id, runs.c.finished_at.is_(None))
        .values(
            resolutions=runs.c.resolutions + literal_column("1"),
            status=case((parked, word(Status.QUEUED)), else_=runs.c.status),
            due_at=case((parked, now()), else_=runs.c.due_at),
            waiting_on=case((parked, null()), else_=runs.c.waiting_on),
            **values,
        )
        .returning(*WAKE_COLUMNS, runs.c.status, answered.c.step_key)
        .cte("parent")
    )


def told_resolved(parent: CTE, by: ColumnElement[Any], kind: ColumnElement[Any]) -> CTE:
    """The event of a wait that was resolved for a run."""
    said = func.json_build_object(_KEY, parent.c.step_key, _KIND, kind)
    entry = select(
        parent.c.id,
        event_seq.next_value(),
        word(EventType.RESOLVED),
        now(),
        parent.c.epoch,
        by,
        said,
    )
    return insert(moves).from_select(["run_id", "seq", "type", "at", "epoch", "by", "data"], entry).cte("told_parent")


def statement(name: str, moved: CTE, *effects: CTE) -> Statement:
    """A move with what goes with it; returns the moved row, or nothing where a guard refused."""
    return compiled(name, select(moved).add_cte(*effects))


def _lock_run() -> Statement:
    return compiled("lock_run", select(runs.c.id).where(runs.c.id == RUN_ID).with_for_update(key_share=True))


LOCK_RUN = later(_lock_run)
"""Locks the run's row, and guards nothing itself: what comes after it sees what whoever held the row has left."""
