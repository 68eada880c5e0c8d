"""Signals: kept in order until a step takes them, and forgotten when they expire.

A signal is taken under the epoch of the segment that waits for it, once.
"""

from __future__ import annotations

from sqlalchemy import Double, Integer, Text, delete, exists, func, or_, select, update
from sqlalchemy.dialects.postgresql import JSON, insert

from agentrun.core.words import WaitStatus
from agentrun.store.mover import BY, NAMESPACE, RUN_ID
from agentrun.store.sql import Statement, compiled, later, now, param, seconds, word
from agentrun.store.tables import runs, signals, waits
from agentrun.store.waits import KEY, OPEN, SEEN_COLUMNS, held, registered


def _take_signal() -> Statement:
    """The oldest buffered signal of that name answers the step's wait.

    No row: none is buffered that has not expired, not held, or the step's wait has its answer. The last is for a
    statement sent twice over a broken connection: the second must not take a second signal.
    """
    source = held()
    answered = exists().where(waits.c.run_id == RUN_ID, waits.c.step_key == KEY, ~OPEN)
    oldest = (
        select(func.min(signals.c.id))
        .where(
            signals.c.run_id == RUN_ID,
            signals.c.name == param("name", Text),
            signals.c.taken_by_step.is_(None),
            or_(signals.c.expires_at.is_(None), signals.c.expires_at > now()),
            ~answered,
        )
        .scalar_subquery()
    )
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


def _buffer() -> Statement:
    buffered = insert(signals).values(
        run_id=RUN_ID,
        name=param("name", Text),
        payload=param("payload", JSON),
        sent_by=BY,
        sent_at=now(),
        expires_at=now() + seconds(param("expires_in", Double)),
    )
    return compiled("buffer_signal", buffered.returning(signals.c.id))


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
BUFFER = later(_buffer)
FORGET = later(_forget)
