"""What people ask about waits: who has to answer what, what waits longest, which signals nobody took. Reads only."""

from __future__ import annotations

from sqlalchemy import Integer, Text, func, or_, select
from sqlalchemy.dialects.postgresql import UUID

from agentrun.core.words import WaitKind, WaitStatus
from agentrun.store.mover import NAMESPACE
from agentrun.store.sql import Statement, compiled, later, now, param, word
from agentrun.store.tables import runs, signals, waits

LIMIT = param("limit", Integer)
_OPEN = waits.c.status == word(WaitStatus.OPEN)
_AGE = func.extract("epoch", now() - waits.c.created_at).label("age")


def _inbox() -> Statement:
    """What waits for people (and for signals), oldest first."""
    columns = (
        waits.c.id, waits.c.run_id, waits.c.step_key, waits.c.kind, waits.c.name, waits.c.asks, waits.c.asks_digest,
        waits.c.role, waits.c.due_at, waits.c.created_at, runs.c.kind.label("run_kind"), runs.c.owner, _AGE,
        waits.c.token_digest.is_not(None).label("webhook"),
    )  # fmt: skip
    people = waits.c.kind.in_([word(WaitKind.APPROVAL), word(WaitKind.INPUT), word(WaitKind.SIGNAL)])
    filters = (
        waits.c.namespace == NAMESPACE,
        _OPEN,
        people,
        or_(param("role", Text).is_(None), waits.c.role == param("role", Text)),
        or_(param("kind", Text).is_(None), waits.c.kind == param("kind", Text)),
        or_(param("owner", Text).is_(None), runs.c.owner == param("owner", Text)),
    )
    listing = select(*columns).join(runs, runs.c.id == waits.c.run_id).where(*filters)
    return compiled("inbox", listing.order_by(waits.c.created_at).limit(LIMIT))


def _longest_waits() -> Statement:
    """Open waits, the oldest first, whatever for but time: timers wait as long as they were told to.

    No payloads. `child_status` and `child_kind` are those of the child that is waited for.
    """
    child = runs.alias("child")
    columns = (
        waits.c.run_id, waits.c.step_key, waits.c.kind, waits.c.name, waits.c.role, waits.c.due_at, waits.c.created_at,
        _AGE, runs.c.kind.label("run_kind"), runs.c.owner, waits.c.token_digest.is_not(None).label("webhook"),
        waits.c.child_id, child.c.kind.label("child_kind"), child.c.status.label("child_status"),
    )  # fmt: skip
    source = waits.join(runs, runs.c.id == waits.c.run_id).outerjoin(child, child.c.id == waits.c.child_id)
    mine = (waits.c.namespace == NAMESPACE, _OPEN, waits.c.kind != word(WaitKind.TIMER))
    listing = select(*columns).select_from(source).where(*mine)
    return compiled("longest_waits", listing.order_by(waits.c.created_at).limit(LIMIT))


def _signals_kept() -> Statement:
    """Signals that no step has taken and that have not expired, oldest first; of one run where it is given."""
    columns = (
        signals.c.id, signals.c.run_id, signals.c.name, signals.c.payload, signals.c.sent_by, signals.c.sent_at,
        signals.c.expires_at, runs.c.kind.label("run_kind"), runs.c.status.label("run_status"),
        func.extract("epoch", now() - signals.c.sent_at).label("age"),
    )  # fmt: skip
    filters = (
        runs.c.namespace == NAMESPACE,
        signals.c.taken_by_step.is_(None),
        or_(signals.c.expires_at.is_(None), signals.c.expires_at > now()),
        or_(param("run_id", UUID).is_(None), signals.c.run_id == param("run_id", UUID)),
        or_(param("owner", Text).is_(None), runs.c.owner == param("owner", Text)),
    )
    listing = select(*columns).join(runs, runs.c.id == signals.c.run_id).where(*filters)
    return compiled("signals_kept", listing.order_by(signals.c.id).limit(LIMIT))


INBOX = later(_inbox)
LONGEST_WAITS = later(_longest_waits)
SIGNALS_KEPT = later(_signals_kept)
