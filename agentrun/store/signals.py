"""Signals: kept in order until a step takes them, and forgotten when they expire.

A signal is taken under the epoch of the segment that waits for it, once.
"""

from __future__ import annotations

from sqlalchemy import (
    ColumnElement,
    Double,
    Integer,
    Text,
    case,
    delete,
    exists,
    false,
    func,
    or_,
    select,
    true,
    union_all,
    update,
)
from sqlalchemy.dialects.postgresql import JSON, insert
from sqlalchemy.sql.selectable import CTE

from agentrun.core import moves as legal
from agentrun.core.words import EventType, Status, WaitKind, WaitStatus
from agentrun.store.mover import BY, IN_NAMESPACE, NAMESPACE, RUN_ID, STILL_OPEN, moved, told
from agentrun.store.reads import RUN_COLUMNS
from agentrun.store.sql import Statement, compiled, later, now, number, param, seconds, word
from agentrun.store.tables import runs, signals, waits
from agentrun.store.waits import COUNTED, KEY, OPEN, SEEN_COLUMNS, held, registered

_KEPT = (
    signals.c.name == param("name", Text),
    signals.c.taken_by_step.is_(None),
    or_(signals.c.expires_at.is_(None), signals.c.expires_at > now()),
)


def _take_signal() -> Statement:
    """The oldest buffered signal of that name answers the step's wait.

    No row: none is buffered that has not expired, not held, or the step's wait has its answer. The last is for a
    statement sent twice over a broken connection: the second must not take a second signal.
    """
    source = held()
    answered = exists().where(waits.c.run_id == RUN_ID, waits.c.step_key == KEY, ~OPEN)
    oldest = select(func.min(signals.c.id)).where(signals.c.run_id == RUN_ID, *_KEPT, ~answered).scalar_subquery()
    taken = (
        update(signals)
        .where(signals.c.run_id == source.c.id, signals.c.id == oldest, signals.c.taken_by_step.is_(None))
        .values(taken_by_step=KEY)
        .returning(signals.c.run_id.label("id"), signals.c.payload, signals.c.sent_by, source.c.namespace)
        .cte("taken")
    )
    answer = {"status": word(WaitStatus.RESOLVED), "resolution": taken.c.payload, "resolved_by": taken.c.sent_by}
    stored = registered(taken, **answer, resolved_at=now())
    given = insert(waits).excluded
    stored = stored.on_conflict_do_update(
        index_elements=["run_id", "step_key"],
        set_={name: given[name] for name in (*answer, "resolved_at")},
        where=OPEN,
    )
    return compiled("take_signal", select(stored.returning(*SEEN_COLUMNS).cte("answered")))


def _send() -> Statement:
    """A signal for a run that `lock_runs` has locked in the same transaction. It is counted as every resolution is.

    It answers the oldest open wait for its name, and a parked run goes back to the queue. Where nobody waits for it, it
    is kept; and where an older one is kept already, that one answers in its place: a wait can open just after a signal
    was kept for it, and the order is that of their sending. Returns the run as it is then, and whether it is `woken` by
    that. Refuses (no row): there is none, it has ended, or it is in another namespace.
    """
    there = select(runs.c.id, runs.c.epoch).where(runs.c.id == RUN_ID, IN_NAMESPACE, runs.c.finished_at.is_(None))
    there = there.cte("there")
    oldest, first = _oldest_wait(there), _oldest_kept(there)
    from_kept = first.c.id.is_not(None)
    answer = {
        "resolution": case((from_kept, first.c.payload), else_=param("payload", JSON)),
        "resolved_by": case((from_kept, first.c.sent_by), else_=BY),
    }
    answering = select(oldest, *(value.label(name) for name, value in answer.items()))
    answering = answering.select_from(oldest.outerjoin(first, true())).cte("answering")
    answered = (
        update(waits)
        .where(waits.c.id == answering.c.id)
        .values(status=word(WaitStatus.RESOLVED), resolved_at=now(), **{name: answering.c[name] for name in answer})
        .returning(waits.c.run_id.label("id"), waits.c.resolved_by.label("by"), answering.c.epoch)
        .cte("answered")
    )
    taken = update(signals).where(signals.c.id == first.c.id).values(taken_by_step=answering.c.step_key).cte("taken")
    resolved = told(answered, EventType.RESOLVED, by=answered.c.by, name="resolved")
    queued = moved(
        legal.RESOLVE_WAIT, Status.QUEUED, of=resolved, returning=RUN_COLUMNS, due_at=now(), resolutions=COUNTED
    )
    # A row can be changed once in a statement.
    counted = (
        update(runs)
        .where(runs.c.id == there.c.id, ~exists(select(queued.c.id)))
        .values(resolutions=COUNTED)
        .returning(*RUN_COLUMNS)
        .cte("counted")
    )
    kept = _kept(there, or_(~exists(select(oldest.c.id)), exists(select(first.c.id))))
    sent = union_all(select(queued, true().label("woken")), select(counted, false().label("woken")))
    return compiled("send_signal", sent.add_cte(told(queued, EventType.REQUEUED), taken, kept))


def _oldest_wait(there: CTE) -> CTE:
    of_name = (waits.c.kind == word(WaitKind.SIGNAL), waits.c.name == param("name", Text))
    # A webhook's wait belongs to whoever has its token.
    asked = (waits.c.run_id == there.c.id, STILL_OPEN, *of_name, waits.c.token_digest.is_(None))
    oldest = select(waits.c.id, waits.c.step_key, there.c.epoch).where(*asked)
    return oldest.order_by(waits.c.created_at, waits.c.step_key).limit(number(1)).cte("oldest")


def _oldest_kept(there: CTE) -> CTE:
    kept = select(signals.c.id, signals.c.payload, signals.c.sent_by).where(signals.c.run_id == there.c.id, *_KEPT)
    return kept.order_by(signals.c.id).limit(number(1)).cte("first")


def _kept(of: CTE, nobody_waits: ColumnElement[bool]) -> CTE:
    entry = {
        "run_id": of.c.id,
        "name": param("name", Text),
        "payload": param("payload", JSON),
        "sent_by": BY,
        "sent_at": now(),
        "expires_at": now() + seconds(param("expires_in", Double)),
    }
    return insert(signals).from_select(list(entry), select(*entry.values()).where(nobody_waits)).cte("kept")


def _forget() -> Statement:
    """Kept signals that have expired, the oldest first. Passes over those that somebody is about to take."""
    stale = (
        select(signals.c.id)
        .join(runs, runs.c.id == signals.c.run_id)
        .where(runs.c.namespace == NAMESPACE, signals.c.taken_by_step.is_(None), signals.c.expires_at <= now())
        .order_by(signals.c.expires_at)
        .limit(param("limit", Integer))
        .with_for_update(skip_locked=True, of=signals)
        .cte("stale")
    )
    return compiled("forget_signals", delete(signals).where(signals.c.id == stale.c.id).returning(signals.c.id))


TAKE_SIGNAL = later(_take_signal)
SEND = later(_send)
FORGET = later(_forget)
