"""Who is there: processes, what each holds, and namespaces. Reads, but for what nobody needs to know any more."""

from __future__ import annotations

from typing import Any

from sqlalchemy import Double, Text, cast, delete, func, literal_column, or_, select

from agentrun.core.words import Status, StepStatus
from agentrun.store.episodes import ALIVE
from agentrun.store.mover import NAMESPACE
from agentrun.store.sql import Statement, compiled, later, now, param, word
from agentrun.store.tables import processes, runs, steps, sweeps


def age(instant: Any) -> Any:
    """Seconds since then."""
    return cast(func.extract("epoch", now() - instant), Double)


def _of_everybody(column: Any) -> Any:
    """In one namespace, or in all where none is given."""
    return or_(param("namespace", Text).is_(None), column == NAMESPACE)


def _processes() -> Statement:
    """Who was seen within the last hour, and what each said of itself."""
    columns = (
        processes.c.id, processes.c.namespace, processes.c.name, processes.c.stable_id, processes.c.deployment,
        processes.c.version, processes.c.kinds, processes.c.queues, processes.c.holds, processes.c.draining,
        processes.c.about, processes.c.clock_skew_seconds, processes.c.started_at, processes.c.seen_at,
        ALIVE.label("alive"), age(processes.c.started_at).label("age"), age(processes.c.seen_at).label("silent"),
        age(processes.c.draining_since).label("draining_for"),
    )  # fmt: skip
    seen = select(*columns).where(_of_everybody(processes.c.namespace))
    return compiled("processes", seen.order_by(processes.c.namespace, processes.c.name))


def _holdings() -> Statement:
    """What the owners hold: running runs, and remote steps that were taken."""
    running = (
        runs.c.claimed_by.label("by"), runs.c.id.label("run_id"), literal_column("NULL").cast(Text).label("step"),
        runs.c.kind, runs.c.claimed_at.label("since"), age(runs.c.claimed_at).label("age"),
    )  # fmt: skip
    held = select(*running).where(_of_everybody(runs.c.namespace), runs.c.status == word(Status.RUNNING))
    taken = (
        select(steps.c.by, steps.c.run_id, steps.c.key, steps.c.name, steps.c.started_at, age(steps.c.started_at))
        .join(runs, runs.c.id == steps.c.run_id)
        .where(
            _of_everybody(runs.c.namespace),
            steps.c.status == word(StepStatus.STARTED),
            steps.c.lease_expires_at > now(),
        )
    )
    every = held.union_all(taken).subquery("held")
    return compiled("holdings", select(every).order_by(every.c.since))


def _namespaces() -> Statement:
    """Every namespace that there is, one index probe each however many runs it holds."""
    first = select(func.min(runs.c.namespace).label("name")).cte("names", recursive=True)
    after = select(func.min(runs.c.namespace)).where(runs.c.namespace > first.c.name).scalar_subquery()
    names = first.union_all(select(after).where(first.c.name.is_not(None)))
    of_runs = select(names.c.name).where(names.c.name.is_not(None))
    every = of_runs.union(select(processes.c.namespace), select(sweeps.c.namespace)).subquery("every")
    return compiled("namespaces", select(every.c.name).order_by(every.c.name))


def _forget_gone() -> Statement:
    """Processes that were not seen for an hour have told everything that they will."""
    long_ago = processes.c.seen_at < now() - literal_column("interval '1 hour'")
    gone = delete(processes).where(processes.c.namespace == NAMESPACE, long_ago)
    return compiled("forget_gone", gone.returning(processes.c.id))


PROCESSES = later(_processes)
HOLDINGS = later(_holdings)
NAMESPACES = later(_namespaces)
FORGET_GONE = later(_forget_gone)
