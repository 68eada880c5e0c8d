"""Runs that stand still: found by their shape, and kept as episodes, so that each is paged once across all processes.

When a run last moved is computed from its moves, steps and beats; no column has to be written for it.
"""

from __future__ import annotations

from typing import Any

from sqlalchemy import (
    Boolean,
    Double,
    Integer,
    Text,
    and_,
    exists,
    func,
    null,
    or_,
    select,
    true,
    union,
    union_all,
    update,
)
from sqlalchemy.dialects.postgresql import JSON, insert
from sqlalchemy.types import DateTime

from agentrun.core.alarms import Shape
from agentrun.core.words import Status, StepKind, StepStatus, WaitKind, WaitStatus
from agentrun.store.mover import BY, NAMESPACE, RUN_ID
from agentrun.store.sql import Statement, compiled, later, now, number, param, seconds, word
from agentrun.store.tables import episodes, moves, processes, runs, steps, sweeps, waits

LIMIT = param("limit", Integer)
LIVE_SECONDS = number(60)
"""A process that was not seen for so long is gone."""

_CUTOFF = now() - seconds(param("after", Double))
_HEARD = func.greatest(steps.c.offered_at, steps.c.started_at, steps.c.heartbeat_at)
_PENDING = steps.c.status.in_([word(StepStatus.OFFERED), word(StepStatus.STARTED)])
_ELSEWHERE = steps.c.kind.in_([word(StepKind.REMOTE), word(StepKind.EXTERNAL)])
# Offered for later: it pauses. Taken, and the lease renewed: it is worked on, however long it takes.
_QUIET_OFFER = and_(steps.c.status == word(StepStatus.OFFERED), steps.c.due_at <= now())
_QUIET_TAKER = and_(
    steps.c.status == word(StepStatus.STARTED),
    or_(steps.c.lease_expires_at.is_(None), steps.c.lease_expires_at < now()),
)
_LONG_SILENT = and_(_ELSEWHERE, _HEARD < _CUTOFF)
ALIVE = processes.c.seen_at > now() - seconds(LIVE_SECONDS)


def last_moved() -> Any:
    """When the run was last seen to move: the newest of its moves, steps and beats."""
    told = select(func.max(moves.c.at)).where(moves.c.run_id == runs.c.id).scalar_subquery()
    heard = func.max(func.greatest(_HEARD, steps.c.finished_at))
    stepped = select(heard).where(steps.c.run_id == runs.c.id).scalar_subquery()
    return func.greatest(runs.c.created_at, runs.c.claimed_at, told, stepped)


def taken_by_somebody() -> Any:
    """Whether a live process consumes the run's queue and knows its kind."""
    return exists().where(
        processes.c.namespace == runs.c.namespace,
        ALIVE,
        runs.c.queue == func.any(processes.c.queues),
        runs.c.kind == func.any(processes.c.kinds),
    )


def _silent_steps() -> Any:
    """Found from the steps, by the partial index of each status."""
    each = (select(steps.c.run_id).where(quiet, _LONG_SILENT) for quiet in (_QUIET_OFFER, _QUIET_TAKER))
    silent = union(*each).subquery("silent")
    step = _step(and_(or_(_QUIET_OFFER, _QUIET_TAKER), _LONG_SILENT))
    source = runs.join(silent, silent.c.run_id == runs.c.id).join(step, true())
    return _shaped(Shape.SILENT_STEP, source, step).where(runs.c.status == word(Status.WAITING), last_moved() < _CUTOFF)


def _never_resolved() -> Any:
    """Nobody can answer it: a child that is not there, a step that has ended, a time that was never set."""
    child = runs.alias("child")
    # Looked up one by one: as EXISTS, it may be answered by reading all the runs that there ever were.
    born = select(number(1)).where(child.c.id == waits.c.child_id).scalar_subquery()
    people = [word(WaitKind.APPROVAL), word(WaitKind.INPUT), word(WaitKind.SIGNAL)]
    of_step = (steps.c.run_id == waits.c.run_id, steps.c.key == waits.c.step_key, _PENDING)
    hopeful = or_(
        waits.c.kind.in_(people),
        waits.c.due_at.is_not(None),
        and_(waits.c.kind == word(WaitKind.CHILD), born.is_not(None)),
        and_(waits.c.kind == word(WaitKind.REMOTE), exists().where(*of_step)),
    )
    hope = exists().where(waits.c.run_id == runs.c.id, waits.c.status == word(WaitStatus.OPEN), hopeful)
    return _shaped(Shape.NEVER_RESOLVED, runs).where(
        runs.c.status == word(Status.WAITING), runs.c.due_at.is_(None), ~hope, last_moved() < _CUTOFF
    )


def _unclaimed() -> Any:
    """Due for long, and nobody would take it. A backlog of a fleet that works is no fault."""
    since = func.greatest(last_moved(), runs.c.due_at)
    return _shaped(Shape.UNCLAIMED, runs, since=since).where(
        runs.c.status == word(Status.QUEUED), runs.c.due_at < _CUTOFF, ~taken_by_somebody()
    )


def _no_progress() -> Any:
    step = _step(_PENDING)
    return _shaped(Shape.NO_PROGRESS, runs.outerjoin(step, true()), step).where(
        runs.c.status == word(Status.RUNNING),
        runs.c.claimed_at < _CUTOFF,
        runs.c.lease_expires_at > now(),
        last_moved() < _CUTOFF,
    )


def _step(which: Any) -> Any:
    """The step of the run that is silent for longest."""
    listens = (processes.c.namespace == NAMESPACE, ALIVE, steps.c.queue == func.any(processes.c.queues))
    columns = (
        steps.c.key, steps.c.name, steps.c.kind, steps.c.status, steps.c.attempt, steps.c.redispatch_count,
        steps.c.queue, exists().where(*listens).label("consumed"),
        func.extract("epoch", now() - func.coalesce(steps.c.offered_at, steps.c.started_at)).label("age"),
        func.extract("epoch", now() - steps.c.heartbeat_at).label("heartbeat_age"),
    )  # fmt: skip
    oldest = select(*columns).where(steps.c.run_id == runs.c.id, which).order_by(_HEARD).limit(number(1))
    return oldest.lateral("step")


_STEP_TYPES = {
    "key": Text, "name": Text, "kind": Text, "status": Text, "attempt": Integer, "redispatch_count": Integer,
    "queue": Text, "consumed": Boolean, "age": Double, "heartbeat_age": Double,
}  # fmt: skip


def _shaped(shape: Shape, source: Any, step: Any = None, *, since: Any = None) -> Any:
    """Runs of the namespace in this shape, with everything that people are told."""
    since = last_moved() if since is None else since
    of_step = [
        (null().cast(kind) if step is None else step.c[name]).label(f"step_{name}")
        for name, kind in _STEP_TYPES.items()
    ]
    return (
        select(
            runs.c.id.label("run_id"),
            runs.c.kind,
            word(shape).label("shape"),
            since.label("since"),
            func.extract("epoch", now() - since).label("age"),
            runs.c.queue,
            runs.c.waiting_on,
            runs.c.owner,
            *of_step,
        )
        .select_from(source)
        .where(runs.c.namespace == NAMESPACE)
    )


def _stranded(name: str, *, paged: bool) -> Statement:
    """Stranded runs, those that stand still for longest first; with those of open episodes, or without."""
    open_one = exists().where(episodes.c.run_id == runs.c.id, episodes.c.closed_at.is_(None))
    unpaged = () if paged else (~open_one,)
    shapes = (_silent_steps(), _never_resolved(), _unclaimed(), _no_progress())
    each = [shape.where(*unpaged).limit(LIMIT).subquery() for shape in shapes]
    found = union_all(*(select(one) for one in each)).subquery("stranded")
    return compiled(name, select(found).order_by(found.c.since).limit(LIMIT))


def _open() -> Statement:
    """One episode for a run at a time. Refuses: one is open, or the run has moved since it was looked at."""
    since = param("since", DateTime(timezone=True))
    row = {
        "run_id": runs.c.id,
        "namespace": runs.c.namespace,
        "shape": param("shape", Text),
        "since": since,
        "facts": param("facts", JSON),
        "opened_at": now(),
    }
    still = (runs.c.id == RUN_ID, runs.c.namespace == NAMESPACE, runs.c.finished_at.is_(None), last_moved() <= since)
    found = select(*(value.label(name) for name, value in row.items())).where(*still)
    opened = insert(episodes).from_select(list(row), found).on_conflict_do_nothing()
    return compiled("open_episode", opened.returning(episodes.c.id))


def _close() -> Statement:
    """End the episodes of runs that moved or ended: whoever strands again is paged again."""
    over = or_(runs.c.finished_at.is_not(None), last_moved() > episodes.c.since)
    closed = (
        update(episodes)
        .where(episodes.c.namespace == NAMESPACE, episodes.c.closed_at.is_(None), runs.c.id == episodes.c.run_id, over)
        .values(closed_at=now())
    )
    return compiled("close_episodes", closed.returning(episodes.c.id))


def _claim_pass() -> Statement:
    """The right to one pass of that name. Refuses: another process had one within `every` seconds."""
    mine = insert(sweeps).values(namespace=NAMESPACE, name=param("name", Text), swept_at=now(), swept_by=BY)
    claimed = mine.on_conflict_do_update(
        index_elements=["namespace", "name"],
        set_={"swept_at": mine.excluded.swept_at, "swept_by": mine.excluded.swept_by},
        where=sweeps.c.swept_at <= now() - seconds(param("every", Double)),
    )
    return compiled("claim_pass", claimed.returning(sweeps.c.name))


UNPAGED = later(_stranded, "unpaged", paged=False)
STRANDED = later(_stranded, "stranded", paged=True)
OPEN = later(_open)
CLOSE = later(_close)
CLAIM_PASS = later(_claim_pass)
