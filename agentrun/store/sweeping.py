"""What the sweep asks. Every question has a partial index of its own, so its cost does not grow with history.

These reads only choose candidates; the moves that follow re-check everything in their own statement.
"""

from __future__ import annotations

from typing import Any

from sqlalchemy import (
    Boolean,
    ColumnElement,
    DateTime,
    Double,
    Integer,
    Select,
    Text,
    and_,
    case,
    delete,
    func,
    literal_column,
    or_,
    select,
)
from sqlalchemy.dialects.postgresql import ARRAY, JSON, UUID, insert
from sqlalchemy.sql.selectable import CTE

from agentrun.core.words import Effect, Status, StepKind, StepStatus
from agentrun.store.episodes import taken_by_somebody
from agentrun.store.inflight import write_in_flight
from agentrun.store.mover import NAMESPACE, RUN_ID
from agentrun.store.sql import Statement, compiled, later, now, number, param, seconds, word
from agentrun.store.tables import processes, runs, steps, sweeps

QUEUE = param("queue", Text)
LIMIT = param("limit", Integer)
_DUE = and_(runs.c.namespace == NAMESPACE, runs.c.status == word(Status.QUEUED), runs.c.due_at <= now())
STALE = and_(runs.c.namespace == NAMESPACE, runs.c.status == word(Status.RUNNING), runs.c.lease_expires_at < now())
PAST_DEADLINE = and_(
    runs.c.namespace == NAMESPACE,
    runs.c.deadline_at < now(),
    runs.c.status.in_([word(Status.QUEUED), word(Status.WAITING)]),
)
_WAKE = (runs.c.id, runs.c.namespace, runs.c.kind, runs.c.queue, runs.c.priority)


def _expired() -> Statement:
    """Running rows whose lease ran out, oldest first, with the facts of the retry decision."""
    facts = (
        runs.c.id,
        runs.c.epoch,
        runs.c.claimed_by,
        runs.c.requeue_count,
        runs.c.max_requeues,
        runs.c.request.is_not(None).label("has_request"),
        write_in_flight(runs.c.id).label("write_in_flight"),
        func.coalesce(runs.c.deadline_at < now(), literal_column("false")).label("deadline_passed"),
        runs.c.cancel_requested_at.is_not(None).label("cancel_requested"),
        *_WAKE[1:],
    )
    return compiled("expired", _unlocked(select(*facts).where(STALE).order_by(runs.c.lease_expires_at).limit(LIMIT)))


def _unlocked(candidates: Any) -> Select[Any]:
    """Rows that somebody has locked are left for the next sweep: an owner that froze inside a transaction, or lost its
    network there, would otherwise hold up everybody's sweeps for as long as its connection lives."""
    return candidates.with_for_update(key_share=True, skip_locked=True, of=runs)


# A remote step's input stands in its row in any case; what is told of a write has it only where arguments are kept.
_ELSEWHERE = steps.c.kind.in_([word(StepKind.REMOTE), word(StepKind.EXTERNAL)])
_KEPT_ARGS = case((~_ELSEWHERE, steps.c.args)).label("args")


def _in_flight() -> Statement:
    """The writes of a run that started and have not said how they ended, for an operator to look up. Oldest first."""
    named = (
        steps.c.key, steps.c.name, steps.c.effect, steps.c.args_digest, _KEPT_ARGS, steps.c.idempotency_key,
        steps.c.by, steps.c.started_at, steps.c.reconcilable,
    )  # fmt: skip
    left = or_(steps.c.lease_expires_at.is_(None), steps.c.lease_expires_at < now())
    started = and_(steps.c.run_id == RUN_ID, steps.c.status == word(StepStatus.STARTED), left)
    listing = select(*named).where(started, steps.c.effect != word(Effect.READ_ONLY))
    return compiled("in_flight", listing.order_by(steps.c.started_at, steps.c.key))


def _queues() -> Statement:
    names = queue_names()
    return compiled("queues", select(names.c.queue).where(names.c.queue.is_not(None)))


def queue_names() -> CTE:
    """The queues that hold queued runs, one index probe each however many runs they hold; and a NULL at the end."""
    queued = and_(runs.c.namespace == NAMESPACE, runs.c.status == word(Status.QUEUED))
    first = select(func.min(runs.c.queue).label("queue")).where(queued).cte("names", recursive=True)
    after = select(func.min(runs.c.queue)).where(queued, runs.c.queue > first.c.queue).scalar_subquery()
    return first.union_all(select(after).where(first.c.queue.is_not(None)))


def _due_count() -> Statement:
    """How many runs of a queue are due, counted no further than `limit`."""
    some = select(number(1).label("one")).where(_DUE, runs.c.queue == QUEUE).limit(LIMIT).subquery("some")
    return compiled("due_count", select(func.count().label("due")).select_from(some))


def _due(name: str, *those: ColumnElement[bool]) -> Statement:
    """Due runs of a queue, oldest first, passing over those whose wake may still be on its way."""
    settled = runs.c.due_at <= now() - seconds(param("grace", Double))
    due = select(*_WAKE).where(_DUE, settled, runs.c.queue == QUEUE, *those)
    return compiled(name, due.order_by(runs.c.due_at).limit(LIMIT))


def _deadlines() -> Statement:
    passed = select(runs.c.id).where(PAST_DEADLINE).order_by(runs.c.deadline_at)
    return compiled("deadlines", _unlocked(passed.limit(LIMIT)))


def _swept() -> Statement:
    done = insert(sweeps).values(
        namespace=NAMESPACE,
        name=param("name", Text),
        swept_at=now(),
        swept_by=param("by", Text),
        found=param("found", JSON),
    )
    return compiled(
        "swept",
        done.on_conflict_do_update(
            index_elements=["namespace", "name"],
            set_={"swept_at": done.excluded.swept_at, "swept_by": done.excluded.swept_by, "found": done.excluded.found},
        ).returning(sweeps.c.name),
    )


def _process_seen() -> Statement:
    """This process is alive. Brings back how many seconds ago the last sweep was (NULL: never)."""
    seen = insert(processes).values(
        id=param("process_id", UUID),
        namespace=NAMESPACE,
        name=param("by", Text),
        stable_id=param("stable_id", Text),
        deployment=param("deployment", Text),
        version=param("version", Text),
        kinds=param("kinds", ARRAY(Text)),
        queues=param("queues", ARRAY(Text)),
        holds=param("holds", Integer),
        draining=param("draining", Boolean),
        draining_since=case((param("draining", Boolean), now())),
        clock_skew_seconds=func.extract("epoch", param("host_time", DateTime(timezone=True)) - func.clock_timestamp()),
        about=param("about", JSON),
        started_at=now(),
        seen_at=now(),
    )
    upsert = seen.on_conflict_do_update(
        index_elements=["id"],
        set_={name: seen.excluded[name] for name in ("kinds", "queues", "holds", "draining", "seen_at", "about")}
        | {
            "draining_since": func.coalesce(processes.c.draining_since, seen.excluded.draining_since),
            "clock_skew_seconds": seen.excluded.clock_skew_seconds,
        },
    ).returning(processes.c.id)
    ages = select(func.extract("epoch", now() - sweeps.c.swept_at)).where(
        sweeps.c.namespace == NAMESPACE, sweeps.c.name == word("sweep")
    )
    return compiled("process_seen", select(upsert.cte("seen"), ages.scalar_subquery().label("sweep_age")))


def _process_gone() -> Statement:
    gone = delete(processes).where(processes.c.id == param("process_id", UUID)).returning(processes.c.id)
    return compiled("process_gone", gone)


EXPIRED = later(_expired)
IN_FLIGHT = later(_in_flight)
QUEUES = later(_queues)
DUE_COUNT = later(_due_count)
DUE = later(_due, "due")
DUE_AND_KNOWN = later(_due, "due_and_known", taken_by_somebody())
"""Without those that nobody takes, who stay the oldest for as long as that is so."""

DEADLINES = later(_deadlines)
SWEPT = later(_swept)
PROCESS_SEEN = later(_process_seen)
PROCESS_GONE = later(_process_gone)
