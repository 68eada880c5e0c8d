"""Whether a sweep has anything to do: one statement in place of fifteen, where nothing has happened.

Each of its probes looks at the first row of the index that the question itself goes by. Some say yes to more than the
question finds, none says no where it would find something.
"""

from __future__ import annotations

from typing import Any

from sqlalchemy import or_, select

from agentrun.core.words import Status
from agentrun.store.elsewhere import ELSEWHERE, LOST, OFFERED, SILENT
from agentrun.store.mover import NAMESPACE
from agentrun.store.orphans import orphans
from agentrun.store.sql import Statement, compiled, later, now, number, word
from agentrun.store.sweeping import PAST_DEADLINE, STALE
from agentrun.store.tables import runs, signals, steps, waits
from agentrun.store.waits import OPEN, lost_child


def _needs() -> Statement:
    """A yes or no for each of: expired, deadlines, waits, lost_children, signals, orphans, offered, started, queued."""
    one, child = select(number(1)), runs.alias("child")
    queued = one.where(runs.c.namespace == NAMESPACE, runs.c.status == word(Status.QUEUED))
    due = one.where(waits.c.namespace == NAMESPACE, OPEN, waits.c.due_at <= now())
    children = one.join_from(waits, child, child.c.id == waits.c.child_id)
    kept = one.where(signals.c.taken_by_step.is_(None), signals.c.expires_at <= now())
    probes = {
        "expired": one.where(STALE),
        "deadlines": one.where(PAST_DEADLINE).order_by(runs.c.deadline_at),
        "waits": due.order_by(waits.c.due_at),
        "lost_children": children.where(*lost_child(child)),
        "signals": kept.order_by(signals.c.expires_at),
        "orphans": orphans(number(1)),
        "offered": one.where(OFFERED).order_by(steps.c.queue),
        "started": one.where(ELSEWHERE, or_(LOST, SILENT)),
        "queued": queued.order_by(runs.c.queue),
    }
    return compiled("needs", select(*(_any(probe).label(name) for name, probe in probes.items())))


def _any(probe: Any) -> Any:
    """Not as EXISTS: that is planned as if any row would do, and may read a long history for it."""
    return probe.limit(number(1)).scalar_subquery().is_not(None)


NEEDS = later(_needs)
