"""What `agentrun doctor` asks of runs, waits, sweeps and the server. Reads only.

Each question has an index, or a table with few rows; what may be many is counted no further than a bound.
"""

from __future__ import annotations

from typing import Any

from sqlalchemy import Text, and_, case, cast, func, literal_column, or_, select, true
from sqlalchemy.dialects.postgresql import ARRAY, INTERVAL, UUID, aggregate_order_by

from agentrun.core.alarms import NoticeEnding
from agentrun.core.errors import NonDeterminism
from agentrun.core.failures import WAIT_EXPIRED, qualified_name
from agentrun.core.words import Status, StepStatus, WaitKind, WaitStatus
from agentrun.store.inflight import write_left_behind
from agentrun.store.mover import NAMESPACE
from agentrun.store.notices import DEAD_REASONS
from agentrun.store.roster import age
from agentrun.store.sql import Statement, compiled, error_type, later, now, number, text_in, word
from agentrun.store.steering import unfit_answer
from agentrun.store.sweeping import queue_names
from agentrun.store.tables import episodes, notices, runs, steps, sweeps, waits

MOST = 10_000
"""How many due runs of a queue, or dead letters, are counted."""

NAMED = number(3)
"""How many dead letters of a sort are named."""

_DAY = cast(literal_column("'1 day'"), INTERVAL)
_WEEK = cast(literal_column("'7 days'"), INTERVAL)


def _due() -> Statement:
    """Runs that are due, by queue and kind: the oldest of each queue, however long another one is."""
    queues = queue_names()
    due = and_(runs.c.namespace == NAMESPACE, runs.c.status == word(Status.QUEUED), runs.c.due_at <= now())
    oldest = select(runs.c.kind, runs.c.due_at).where(due, runs.c.queue == queues.c.queue).order_by(runs.c.due_at)
    some = oldest.limit(number(MOST)).lateral("some")
    facts = (func.count().label("count"), age(func.min(some.c.due_at)).label("oldest"))
    found = select(queues.c.queue, some.c.kind, *facts).join_from(queues, some, true())
    return compiled("due_by_kind", found.group_by(queues.c.queue, some.c.kind))


def _offered() -> Statement:
    """Remote steps that may be taken, by queue and name."""
    offered = (steps.c.status == word(StepStatus.OFFERED), steps.c.queue.is_not(None), steps.c.due_at <= now())
    some = (
        select(steps.c.queue, steps.c.name, steps.c.offered_at)
        .join(runs, runs.c.id == steps.c.run_id)
        .where(*offered, runs.c.namespace == NAMESPACE)
        .limit(number(MOST))
        .subquery("some")
    )
    facts = (func.count().label("count"), age(func.min(some.c.offered_at)).label("oldest"))
    return compiled("offered_by_name", select(some.c.queue, some.c.name, *facts).group_by(some.c.queue, some.c.name))


def _sweeps() -> Statement:
    """When the namespace was last swept, and whether anything in it is not final."""
    last = select(sweeps.c.swept_at, sweeps.c.swept_by).where(
        sweeps.c.namespace == NAMESPACE, sweeps.c.name == word("sweep")
    )
    last = last.subquery("last")
    living = [
        _first_of(Status.QUEUED, runs.c.queue), _first_of(Status.RUNNING, runs.c.namespace),
        _first_of(Status.WAITING, runs.c.created_at),
    ]  # fmt: skip
    one = select(number(1).label("one")).subquery("one")
    return compiled(
        "last_sweep",
        select(
            age(last.c.swept_at).label("age"), last.c.swept_by.label("by"), or_(*living).label("living")
        ).select_from(one.outerjoin(last, literal_column("true"))),
    )


def _first_of(status: Status, order: Any) -> Any:
    """Whether a run has the status: the first in the order of its index. An EXISTS might read the whole history."""
    there = select(number(1)).where(runs.c.namespace == NAMESPACE, runs.c.status == word(status))
    return there.order_by(order).limit(number(1)).scalar_subquery().is_not(None)


def _expired() -> Statement:
    """Runs past their lease: how many, the oldest, and since when."""
    stale = (runs.c.namespace == NAMESPACE, runs.c.status == word(Status.RUNNING), runs.c.lease_expires_at < now())
    return compiled("expired_leases", _counted(select(runs.c.id, runs.c.lease_expires_at.label("at")).where(*stale)))


def _waiting() -> Statement:
    """What waits for people for more than a day."""
    people = [word(WaitKind.APPROVAL), word(WaitKind.INPUT), word(WaitKind.SIGNAL)]
    long = (
        waits.c.namespace == NAMESPACE,
        waits.c.status == word(WaitStatus.OPEN),
        waits.c.kind.in_(people),
        waits.c.created_at < now() - _DAY,
    )
    found = select(waits.c.run_id.label("id"), waits.c.created_at.label("at")).where(*long)
    return compiled("long_waits", _counted(found))


def _dead() -> Statement:
    """Dead letters of the last seven days, by what they died of."""
    died_of = text_in(runs.c.error, "type")
    cause = case(
        (write_left_behind(runs.c.id), word("write")),
        (died_of == word("remote_step_lost"), word("lost_step")),
        (died_of == error_type(qualified_name(NonDeterminism)), word("code")),
        (died_of == error_type(WAIT_EXPIRED), word("unanswered")),
        (and_(runs.c.reason == word("retries_exhausted"), runs.c.crash_count > number(0)), word("crashes")),
        else_=word("other"),
    )
    unfit = unfit_answer().label("unfit")
    died = (
        runs.c.namespace == NAMESPACE,
        runs.c.status == word(Status.FAILED),
        runs.c.reason.in_([word(reason) for reason in DEAD_REASONS]),
        runs.c.finished_at > now() - _WEEK,
    )
    some = (
        select(runs.c.id, runs.c.reason, runs.c.finished_at.label("at"), cause.label("cause"), unfit)
        .where(*died)
        .order_by(runs.c.finished_at.desc())
        .limit(number(MOST))
        .subquery("some")
    )
    latest = func.array_agg(aggregate_order_by(some.c.id, some.c.at.desc()), type_=ARRAY(UUID))
    facts = (
        func.count().label("count"),
        latest[number(1) : NAMED].label("run_ids"),
        func.array_agg(some.c.reason.distinct(), type_=ARRAY(Text)).label("reasons"),
        age(func.max(some.c.at)).label("newest"),
        _first(some.c.unfit, some.c.at.desc()).label("unfit"),
    )
    return compiled("dead_letters", select(some.c.cause, *facts).group_by(some.c.cause))


def _episodes() -> Statement:
    """Open episodes: runs for which somebody was paged, and which stand still."""
    still = (episodes.c.namespace == NAMESPACE, episodes.c.closed_at.is_(None))
    found = select(episodes.c.run_id.label("id"), episodes.c.opened_at.label("at")).where(*still)
    return compiled("open_episodes", _counted(found))


def _given_up() -> Statement:
    """Notices that nobody could be told within the last day, by hook."""
    lost = (
        notices.c.namespace == NAMESPACE,
        notices.c.ending == word(NoticeEnding.GIVEN_UP),
        notices.c.ended_at > now() - _DAY,
    )
    newest = notices.c.ended_at.desc()
    facts = (
        func.count().label("count"),
        _first(notices.c.run_id, newest).label("run_id"),
        _first(notices.c.last_error, newest).label("error"),
    )
    return compiled("notices_given_up", select(notices.c.hook, *facts).where(*lost).group_by(notices.c.hook))


def _counted(found: Any) -> Any:
    """How many, the one of the earliest `at`, and its age."""
    some = found.limit(number(MOST)).subquery("some")
    return select(
        func.count().label("count"),
        _first(some.c.id, some.c.at).label("run_id"),
        age(func.min(some.c.at)).label("age"),
    )


def _first(column: Any, order: Any) -> Any:
    """The column's value in the first row of a group."""
    return func.array_agg(aggregate_order_by(column, order), type_=ARRAY(column.type))[number(1)]


def _read_only() -> Statement:
    """Whether the server takes no write in a session of this user, and whether it is a standby."""
    said = func.current_setting(literal_column("'transaction_read_only'")) == literal_column("'on'")
    return compiled("read_only", select(said.label("read_only"), func.pg_is_in_recovery().label("standby")))


DUE_BY_KIND = later(_due)
OFFERED_BY_QUEUE = later(_offered)
LAST_SWEEP = later(_sweeps)
EXPIRED_LEASES = later(_expired)
LONG_WAITS = later(_waiting)
DEAD_LETTERS = later(_dead)
OPEN_EPISODES = later(_episodes)
GIVEN_UP = later(_given_up)
READ_ONLY = later(_read_only)
