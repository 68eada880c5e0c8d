"""Removing the history of runs that ended long ago: one statement looks at a few runs and deletes those that may go.

What is kept, it passes over by a cursor, so that a statement costs the same whatever is kept. It never moves a run.
"""

from __future__ import annotations

from typing import Any

from sqlalchemy import (
    Boolean,
    ColumnElement,
    DateTime,
    Double,
    Integer,
    Text,
    and_,
    case,
    delete,
    exists,
    func,
    literal_column,
    not_,
    or_,
    select,
    tuple_,
    update,
)
from sqlalchemy.dialects.postgresql import ARRAY, JSON, UUID, insert
from sqlalchemy.sql.selectable import CTE

from agentrun.core.words import FINAL, Status, WaitStatus
from agentrun.store.budgets import THIS_MONTH
from agentrun.store.inflight import write_unanswered, write_under_way
from agentrun.store.mover import BY, NAMESPACE
from agentrun.store.notices import DEAD_REASONS
from agentrun.store.sql import Statement, any_of, compiled, later, now, number, param, seconds, word
from agentrun.store.tables import moves, runs, spend, steps, sweeps, waits

_TIME = DateTime(timezone=True)
_LONG_AGO = now() - seconds(param("older_than", Double))
_EVER: ColumnElement[Any] = literal_column("'-infinity'::timestamptz")
_LEAST: ColumnElement[Any] = literal_column("'00000000-0000-0000-0000-000000000000'::uuid")
NOBODY = _LEAST
"""In place of a run: what runs spent that are gone."""

_NAME = word("retention")
_AFTER: ColumnElement[str] = literal_column("'after'")


def _looked() -> CTE:
    """The next runs after the cursor, oldest first. Who ended before an instant was born before it."""
    cursor = tuple_(func.coalesce(param("after_at", _TIME), _EVER), func.coalesce(param("after_id", UUID), _LEAST))
    young = tuple_(runs.c.created_at, runs.c.id) > cursor
    looked = select(runs.c.id, runs.c.created_at).where(runs.c.namespace == NAMESPACE, runs.c.created_at < _LONG_AGO)
    looked = looked.where(young).order_by(runs.c.created_at, runs.c.id).limit(param("limit", Integer))
    return looked.cte("looked").prefix_with("MATERIALIZED")


def _may_go() -> tuple[ColumnElement[bool], ...]:
    """Ended long enough ago, chosen by the filters, no dead letter, and nobody that lives on depends on it."""
    kind, of_status = param("kind", Text), param("statuses", ARRAY(Text))
    parent, child = runs.alias("parent"), runs.alias("child")
    dead = or_(runs.c.reason.in_([word(reason) for reason in DEAD_REASONS]), write_unanswered(runs.c.id))
    # A failed parent may be redriven, and asks for its children again.
    needed = [word(status) for status in sorted(set(Status) - {Status.COMPLETED, Status.CANCELLED})]
    living = [word(status) for status in sorted(set(Status) - FINAL)]
    return (
        runs.c.finished_at < _LONG_AGO,
        runs.c.status == func.any(of_status),
        or_(kind.is_(None), runs.c.kind == kind),
        or_(param("dead", Boolean), not_(dead)),
        # Not even then: its taker's answer would find nothing, and nobody would know that it was ever asked for.
        ~write_under_way(runs.c.id),
        ~exists().where(parent.c.id == runs.c.parent_id, parent.c.status.in_(needed)),
        ~exists().where(
            child.c.namespace == NAMESPACE, child.c.parent_id == runs.c.id, child.c.status.in_(living)
        ),
        ~exists().where(waits.c.child_id == runs.c.id, waits.c.status == word(WaitStatus.OPEN)),
    )  # fmt: skip


def _purge() -> Statement:
    """Delete what may go among the next runs, with all that belongs to it. One row: how much, and where to go on.

    Refuses, and passes over: a run that is not final, or has not been for so long; another status or kind than those
    asked for; a dead letter or an interrupted write, unless `dead`; a write that its taker, elsewhere, may still
    answer; a run whose parent is open or has failed, whose children are open, or for which an open wait waits; and a
    row that somebody has locked.
    """
    looked = _looked()
    chosen = select(runs.c.id).where(runs.c.id == any_of(looked.c.id), *_may_go())
    gone = chosen.with_for_update(skip_locked=True, of=runs).cte("gone").prefix_with("MATERIALIZED")
    # Waits, signals, episodes and notices go with their run by their foreign keys.
    steps_gone = delete(steps).where(steps.c.run_id == any_of(gone.c.id)).returning(steps.c.run_id).cte("steps_gone")
    moves_gone = delete(moves).where(moves.c.run_id == any_of(gone.c.id)).returning(moves.c.run_id).cte("moves_gone")
    spent = delete(spend).where(spend.c.run_id == any_of(gone.c.id)).returning(spend).cte("spend_gone")
    purged = delete(runs).where(runs.c.id == any_of(gone.c.id)).returning(runs.c.id).cte("purged")
    told = (
        _count(purged).label("purged"),
        _count(steps_gone).label("steps"),
        _count(moves_gone).label("events"),
        *_place(looked),
    )
    return compiled("purge", select(*told).add_cte(_still_counted(spent)))


def _still_counted(spent: CTE) -> CTE:
    """This month's spend counts for its owner's budgets when its runs are gone: by day, under `NOBODY`.

    Not under the runs' own ids: nobody would find it once it counts no more.
    """
    sums = [func.sum(spent.c[name]).label(name) for name in ("tokens", "cost", "model_calls")]
    by_day = (spent.c.namespace, spent.c.owner, spent.c.day)
    this_month = select(*by_day, NOBODY.label("run_id"), *sums).where(spent.c.day >= THIS_MONTH)
    # In one order, so that two purges at once do not wait for each other.
    counted = insert(spend).from_select(
        ["namespace", "owner", "day", "run_id", "tokens", "cost", "model_calls"],
        this_month.group_by(*by_day).order_by(*by_day),
    )
    added = {name: spend.c[name] + counted.excluded[name] for name in ("tokens", "cost", "model_calls")}
    keys = ["namespace", "owner", "day", "run_id"]
    return counted.on_conflict_do_update(index_elements=keys, set_=added).cte("still_counted")


def _forget_spend() -> Statement:
    """What runs that are gone spent in months before this one: no budget counts it any more."""
    over = (spend.c.run_id == NOBODY, spend.c.namespace == NAMESPACE, spend.c.day < THIS_MONTH)
    return compiled("forget_spend", delete(spend).where(*over).returning(spend.c.owner))


def _purgeable() -> Statement:
    """The same without deleting anything: how many would go, were nobody to come in between."""
    looked = _looked()
    chosen = select(runs.c.id).where(runs.c.id == any_of(looked.c.id), *_may_go()).cte("gone")
    return compiled("purgeable", select(_count(chosen).label("purged"), *_place(looked)))


def _count(some: CTE) -> Any:
    return select(func.count()).select_from(some).scalar_subquery()


def _place(looked: CTE) -> tuple[Any, ...]:
    """How many runs were looked at, and the last of them: the next cursor."""
    latest = (looked.c.created_at.desc(), looked.c.id.desc())
    last = {name: select(looked.c[name]).order_by(*latest).limit(number(1)) for name in ("created_at", "id")}
    return (
        _count(looked).label("looked"),
        last["created_at"].scalar_subquery().label("after_at"),
        last["id"].scalar_subquery().label("after_id"),
    )


def _claim() -> Statement:
    """The right to the next batch of scheduled retention, with where it goes on.

    Refuses: another process had it within `every` seconds; or, once all was looked at, within `rest` seconds.
    """
    mine = insert(sweeps).values(namespace=NAMESPACE, name=_NAME, swept_at=now(), swept_by=BY)
    under_way = sweeps.c.found.op("->")(_AFTER).is_not(None)
    pause = case((under_way, param("every", Double)), else_=param("rest", Double))
    claimed = mine.on_conflict_do_update(
        index_elements=["namespace", "name"],
        set_={"swept_at": mine.excluded.swept_at, "swept_by": mine.excluded.swept_by},
        where=sweeps.c.swept_at <= now() - seconds(pause),
    )
    return compiled("claim_retention", claimed.returning(sweeps.c.found))


def _mark() -> Statement:
    """Where scheduled retention goes on; without a place, it begins again after its rest."""
    here = and_(sweeps.c.namespace == NAMESPACE, sweeps.c.name == _NAME)
    marked = update(sweeps).where(here).values(found=param("found", JSON))
    return compiled("mark_retention", marked.returning(sweeps.c.name))


PURGE = later(_purge)
PURGEABLE = later(_purgeable)
FORGET_SPEND = later(_forget_spend)
CLAIM_RETENTION = later(_claim)
MARK_RETENTION = later(_mark)
