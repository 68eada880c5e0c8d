"""Waits: registered under the epoch, resolved from outside, and never missed in between.

Every resolution first counts itself on the run's row (`resolutions`); parking names the count that the segment has
seen. So a run cannot park past a resolution, whatever the moment: one of the two writes finds the other.
"""

from __future__ import annotations

from typing import Any

from sqlalchemy import ColumnElement, Double, Integer, Text, and_, delete, exists, func, null, or_, select, update
from sqlalchemy.dialects.postgresql import ARRAY, JSON, UUID, insert
from sqlalchemy.sql.selectable import CTE, FromClause
from sqlalchemy.types import DateTime

from agentrun.core import moves as legal
from agentrun.core.words import FINAL, EventType, Status, StepStatus, WaitKind, WaitStatus
from agentrun.store.inflight import write_in_flight
from agentrun.store.mover import (
    BY,
    DATA,
    EPOCH,
    IN_NAMESPACE,
    NAMESPACE,
    RUN_ID,
    RUNNING,
    STILL_OPEN,
    moved,
    statement,
    told,
)
from agentrun.store.sql import Statement, any_of, beside_key, compiled, later, listed, now, number, param, seconds, word
from agentrun.store.tables import event_seq, moves, runs, steps, waits

KEY = param("key", Text)
WAIT_ID = param("wait_id", UUID)
OPEN = waits.c.status == word(WaitStatus.OPEN)
COUNTED = runs.c.resolutions + number(1)
_MINE = and_(runs.c.id == RUN_ID, runs.c.epoch == EPOCH, RUNNING)
_NO_CHILD = waits.c.kind != word(WaitKind.CHILD)
_TIME = DateTime(timezone=True)
SEEN_COLUMNS = (
    waits.c.id, waits.c.step_key, waits.c.kind, waits.c.name, waits.c.status, waits.c.resolution, waits.c.resolved_by,
    waits.c.comment, waits.c.due_at, waits.c.child_id, func.extract("epoch", waits.c.due_at - now()).label("due_in"),
)  # fmt: skip


def held() -> CTE:
    """The run's row, locked, if the segment still holds it."""
    return select(runs.c.id, runs.c.namespace).where(_MINE).with_for_update(key_share=True).cte("held")


def registered(source: CTE, **values: ColumnElement[Any]) -> Any:
    """A new open wait of the locked run."""
    entry: dict[str, ColumnElement[Any]] = {
        "id": WAIT_ID,
        "run_id": source.c.id,
        "step_key": KEY,
        "namespace": source.c.namespace,
        "kind": param("kind", Text),
        "name": param("name", Text),
        "status": word(WaitStatus.OPEN),
        "asks": param("asks", JSON),
        "asks_digest": param("asks_digest", Text),
        "role": param("role", Text),
        "due_at": func.coalesce(param("due_at", _TIME), now() + seconds(param("due_in", Double))),
        "remind_at": now() + seconds(param("remind_in", Double)),
        "remind_seconds": param("remind_in", Double),
        "on_expiry": param("on_expiry", JSON),
        "token_digest": param("token_digest", Text),
        "created_at": now(),
        **values,
    }
    return insert(waits).from_select(list(entry), select(*entry.values()).select_from(source))


def asked(source: CTE, **values: ColumnElement[Any]) -> CTE:
    """A wait of the locked run, where its step has none yet.

    A step that is to be done again asks anew: its wait is opened, and the journal forgets how it had ended, both once.
    So does one whose wait the end of its run had closed.
    """
    redone = and_(steps.c.key == KEY, steps.c.status == word(StepStatus.REDO))
    forgotten = delete(steps).where(steps.c.run_id == source.c.id, redone).returning(steps.c.run_id).cte("forgotten")
    stored = registered(source, **values)
    again = {name: stored.excluded[name] for name in ("role", "on_expiry", "created_at", *values)}
    # A webhook says when it is made how long it waits, and not when it is waited for.
    as_long = now() + (waits.c.due_at - waits.c.created_at)
    again |= {"status": word(WaitStatus.OPEN), "due_at": func.coalesce(stored.excluded.due_at, as_long)}
    # Whoever was told of it before is told again.
    again |= {"remind_at": now(), "remind_seconds": stored.excluded.remind_seconds}
    again |= dict.fromkeys(("resolution", "resolved_by", "comment", "resolved_at"), null())
    ended = or_(exists(select(forgotten.c.run_id)), waits.c.status == word(WaitStatus.CLOSED))
    stored = stored.on_conflict_do_update(index_elements=["run_id", "step_key"], set_=again, where=ended)
    return stored.returning(*SEEN_COLUMNS).cte("registered")


def _register() -> Statement:
    """Refuses (no row): not running, another epoch, or the step has a wait already that is not to be asked anew."""
    return compiled("register_wait", select(asked(held())))


def _park() -> Statement:
    """Refuses (no row): not running, another epoch, no wait is open, or one was resolved that was not seen.

    And what would be forgotten while it waits: a cancel that was asked for, a write in flight.
    """
    open_waits = and_(waits.c.run_id == runs.c.id, STILL_OPEN)
    # When a child is to be started by is the sweep's to watch: the parent is not due then.
    first = select(func.min(waits.c.due_at)).where(open_waits, _NO_CHILD)
    parked = moved(
        legal.PARK,
        Status.WAITING,
        runs.c.resolutions == param("resolutions", Integer),
        exists().where(open_waits),
        runs.c.cancel_requested_at.is_(None),
        ~write_in_flight(runs.c.id),
        waiting_on=param("waiting_on", Text),
        due_at=first.scalar_subquery(),
    )
    due_in = func.extract("epoch", parked.c.due_at - now()).label("due_in")
    return compiled("park", select(parked, due_in).add_cte(told(parked, EventType.PARKED)))


def _count() -> Statement:
    """First of a resolution's three statements: lock the run's row and count. Refuses: unknown or final."""
    counted = (
        update(runs)
        .where(
            runs.c.id == RUN_ID,
            IN_NAMESPACE,
            beside_key(runs.c.status).in_([word(status) for status in sorted(set(Status) - FINAL)]),
        )
        .values(resolutions=COUNTED)
        .returning(runs.c.id, runs.c.status)
    )
    return compiled("count_resolution", counted)


def _lock() -> Statement:
    """First of a signal's two: lock the rows of the runs, in the order of their ids, so that the second sees what is
    asked now. Guards nothing itself."""
    # By `any_of` even here: for an array of one, PostgreSQL would make a plan of its own each time, and that takes six
    # times as long as to execute it.
    named = any_of(func.unnest(param("run_ids", ARRAY(UUID))).column_valued("named"))
    locked = select(runs.c.id).where(runs.c.id == named).order_by(runs.c.id)
    return compiled("lock_runs", locked.with_for_update(key_share=True))


def _close(status: WaitStatus) -> Statement:
    """Second: the answer. Refuses: the wait is not open, asks something else (digest), or another role (roles)."""
    digest, roles = param("asks_digest", Text), param("roles", ARRAY(Text))
    closed = (
        update(waits)
        .where(
            waits.c.id == WAIT_ID,
            waits.c.run_id == RUN_ID,
            STILL_OPEN,
            or_(digest.is_(None), waits.c.asks_digest == digest),
            or_(roles.is_(None), waits.c.role.is_(None), waits.c.role == func.any(roles)),
        )
        .values(
            status=word(status),
            resolution=param("resolution", JSON),
            resolved_by=BY,
            comment=param("comment", Text),
            resolved_at=now(),
        )
        .returning(waits.c.run_id.label("id"), waits.c.step_key)
        .cte("moved")
    )
    of_run = select(runs.c.epoch).where(runs.c.id == closed.c.id).scalar_subquery()
    entry = select(closed.c.id, event_seq.next_value(), word(EventType.RESOLVED), now(), of_run, BY, DATA)
    said = insert(moves).from_select(["run_id", "seq", "type", "at", "epoch", "by", "data"], entry).cte("told")
    return compiled(f"close_wait_{status}", select(closed).add_cte(said))


def _unpark() -> Statement:
    """Third: a parked run goes back to the queue. No row: it was not parked; then its segment sees the count."""
    queued = moved(legal.RESOLVE_WAIT, Status.QUEUED, due_at=now())
    return statement("unpark", queued, told(queued, EventType.REQUEUED))


def _of_run() -> Statement:
    return listed("waits_of_run", SEEN_COLUMNS, waits.c.run_id)


def _waiting_for() -> Statement:
    """Open waits of a run, oldest first; by kind, name or step where these are given."""
    filters = (
        waits.c.run_id == RUN_ID,
        STILL_OPEN,
        or_(param("kind", Text).is_(None), waits.c.kind == param("kind", Text)),
        or_(param("name", Text).is_(None), waits.c.name == param("name", Text)),
        or_(KEY.is_(None), waits.c.step_key == KEY),
    )
    return compiled("waiting_for", select(waits).where(*filters).order_by(waits.c.created_at, waits.c.step_key))


def _by_token() -> Statement:
    return compiled("wait_by_token", select(waits).where(waits.c.token_digest == param("token_digest", Text)))


def _due() -> Statement:
    """Open waits whose time has come, oldest first: timers, and answers that nobody gave. Children: see `starting`."""
    filters = (waits.c.namespace == NAMESPACE, OPEN, waits.c.due_at <= now(), _NO_CHILD)
    columns = (waits.c.id, waits.c.run_id, waits.c.step_key, waits.c.kind, waits.c.on_expiry, waits.c.role)
    return compiled(
        "waits_due", select(*columns).where(*filters).order_by(waits.c.due_at).limit(param("limit", Integer))
    )


def _due_of_run() -> Statement:
    columns = (waits.c.id, waits.c.run_id, waits.c.step_key, waits.c.kind, waits.c.on_expiry, waits.c.role)
    due = (waits.c.run_id == RUN_ID, STILL_OPEN, waits.c.due_at <= now(), _NO_CHILD)
    return compiled("waits_due_of_run", select(*columns).where(*due))


def _escalate() -> Statement:
    """Nobody of the role answered in time: another role is asked, and told. Refuses: answered meanwhile."""
    escalated = (
        update(waits)
        .where(waits.c.id == WAIT_ID, STILL_OPEN, waits.c.due_at <= now())
        .values(
            role=param("role", Text),
            due_at=now() + seconds(param("due_in", Double)),
            on_expiry=param("on_expiry", JSON),
            remind_at=now(),
        )
        .returning(waits.c.id, waits.c.run_id)
    )
    return compiled("escalate", escalated)


def lost_child(child: FromClause) -> tuple[ColumnElement[bool], ...]:
    """Of open waits for children: that the child has ended."""
    ended = beside_key(child.c.status).in_([word(status) for status in sorted(FINAL)])
    return (waits.c.namespace == NAMESPACE, OPEN, waits.c.kind == word(WaitKind.CHILD), ended)


def _lost_children() -> Statement:
    """Open waits for children that have ended: what their settling should have resolved."""
    child = runs.alias("child")
    columns = (waits.c.id, waits.c.run_id, waits.c.step_key, waits.c.child_id)
    listing = select(*columns).join(child, child.c.id == waits.c.child_id).where(*lost_child(child))
    return compiled("lost_children", listing.limit(param("limit", Integer)))


REGISTER = later(_register)
PARK = later(_park)
COUNT = later(_count)
LOCK = later(_lock)
CLOSE = {status: later(_close, status) for status in (WaitStatus.RESOLVED, WaitStatus.EXPIRED)}
UNPARK = later(_unpark)
OF_RUN = later(_of_run)
WAITING_FOR = later(_waiting_for)
BY_TOKEN = later(_by_token)
DUE = later(_due)
DUE_OF_RUN = later(_due_of_run)
ESCALATE = later(_escalate)
LOST_CHILDREN = later(_lost_children)
