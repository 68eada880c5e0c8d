"""Children that nobody starts: the wait of their parent has a time for it, and these statements watch it.

A child counts as started once anybody has claimed it, or where it is the continuation of one.
"""

from __future__ import annotations

from sqlalchemy import Double, Integer, and_, exists, func, literal_column, null, or_, select, update
from sqlalchemy.dialects.postgresql import JSON

from agentrun.core import moves as legal
from agentrun.core.words import EventType, Reason, Status, WaitKind, WaitStatus
from agentrun.store.episodes import ALIVE
from agentrun.store.mover import IN_NAMESPACE, NAMESPACE, RUN_ID, STILL_OPEN, final_statement, moved, told
from agentrun.store.sql import Statement, beside_key, compiled, later, now, number, param, seconds, word
from agentrun.store.tables import processes, runs, waits
from agentrun.store.waits import WAIT_ID

_CHILD = runs.alias("child")
_ALIVE = and_(processes.c.namespace == NAMESPACE, ALIVE)
_KNOWN = exists().where(_ALIVE, _CHILD.c.kind == func.any(processes.c.kinds))
_BEGUN = or_(_CHILD.c.epoch > number(0), _CHILD.c.continued_from.is_not(None))
_WATCHED = and_(
    waits.c.namespace == NAMESPACE,
    waits.c.status == word(WaitStatus.OPEN),
    waits.c.due_at <= now(),
    waits.c.kind == word(WaitKind.CHILD),
    waits.c.child_id == _CHILD.c.id,
)
_POLICY = waits.c.on_expiry.op("->>")(literal_column("'policy'"))


def _started() -> Statement:
    """Watched no more: children that were started, and those of kinds that some live process knows by now.

    The latter only where no time was given: a known kind may still be started too late for a parent that said when.
    """
    seen = or_(_BEGUN, and_(word("unknown") == _POLICY, _KNOWN))
    return compiled("child_started", update(waits).where(_WATCHED, seen).values(due_at=null()).returning(waits.c.id))


def _late() -> Statement:
    """Children that were not started by their time, longest ago first; and whether any live process knows the kind."""
    columns = (
        waits.c.id, waits.c.run_id, waits.c.step_key, waits.c.child_id, waits.c.on_expiry, _CHILD.c.kind,
        _KNOWN.label("known"), exists().where(_ALIVE).label("anybody"),
    )  # fmt: skip
    late = select(*columns).where(_WATCHED, _CHILD.c.status == word(Status.QUEUED), ~_BEGUN)
    return compiled("child_late", late.order_by(waits.c.due_at).limit(param("limit", Integer)))


def _look_again() -> Statement:
    """The next look at the same child. Refuses: not open, or somebody looked meanwhile."""
    again = (
        update(waits)
        .where(waits.c.id == WAIT_ID, STILL_OPEN, waits.c.due_at <= now())
        .values(due_at=now() + seconds(param("due_in", Double)), on_expiry=param("on_expiry", JSON))
    )
    return compiled("child_look_again", again.returning(waits.c.id))


def _not_started() -> Statement:
    """Settle the child as failed; its parent hears of it in the same statement.

    Refuses: it was claimed meanwhile, or has ended, or nobody waits for it with a time that has passed.
    """
    missed = exists().where(waits.c.child_id == RUN_ID, STILL_OPEN, waits.c.due_at <= now())
    row = moved(
        legal.EXPIRE,
        Status.FAILED,
        IN_NAMESPACE,
        beside_key(runs.c.status) == word(Status.QUEUED),
        runs.c.epoch == number(0),
        missed,
        reason=word(Reason.NOT_RETRYABLE),
        error=param("error", JSON),
    )
    return final_statement("child_not_started", row, told(row, EventType.SETTLED))


STARTED = later(_started)
LATE = later(_late)
LOOK_AGAIN = later(_look_again)
NOT_STARTED = later(_not_started)
