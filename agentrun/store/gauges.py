"""What `agentrun metrics` counts, beside what doctor asks. Reads only; each has an index, and counts up to a bound."""

from __future__ import annotations

from typing import Any

from sqlalchemy import Double, Integer, Numeric, and_, case, cast, func, literal_column, select, true
from sqlalchemy.dialects.postgresql import INTERVAL

from agentrun.core.words import Status
from agentrun.store.budgets import TODAY
from agentrun.store.mover import NAMESPACE
from agentrun.store.sql import Statement, compiled, later, now, number, param, word
from agentrun.store.sweeping import queue_names
from agentrun.store.tables import notices, runs, spend

MOST = param("most", Integer)
"""Rows of a sort (of a queue, where they are queued) that are counted."""

_HOUR = cast(literal_column("'1 hour'"), INTERVAL)


def _age(instant: Any) -> Any:
    return cast(func.extract("epoch", now() - instant), Double)


def _some(*columns: Any, where: Any) -> Any:
    return select(*columns).where(where).limit(MOST)


def _queued() -> Statement:
    """By queue: how many runs are due and since when, and how many are due later."""
    queues = queue_names()
    mine = and_(runs.c.namespace == NAMESPACE, runs.c.status == word(Status.QUEUED), runs.c.queue == queues.c.queue)
    # In the order of the index, so that the oldest is among those that are counted.
    due = _some(runs.c.due_at, where=and_(mine, runs.c.due_at <= now())).order_by(runs.c.due_at)
    ahead = _some(runs.c.due_at, where=and_(mine, runs.c.due_at > now()))
    due, ahead = due.correlate(queues).subquery("some_due"), ahead.correlate(queues).subquery("some_ahead")
    is_due = select(func.count().label("count"), func.min(due.c.due_at).label("oldest")).lateral("is_due")
    is_later = select(func.count().label("count")).select_from(ahead).lateral("is_later")
    facts = (is_due.c.count.label("due"), is_later.c.count.label("later"), _age(is_due.c.oldest).label("age"))
    found = select(queues.c.queue, *facts).select_from(queues.join(is_due, true()).join(is_later, true()))
    return compiled("queued_by_queue", found.where(queues.c.queue.is_not(None)))


def _running() -> Statement:
    """By queue: how many runs are running, and how many of these are past their lease."""
    mine = and_(runs.c.namespace == NAMESPACE, runs.c.status == word(Status.RUNNING))
    some = _some(runs.c.queue, runs.c.lease_expires_at, where=mine).subquery("some")
    expired = func.count().filter(some.c.lease_expires_at < now())
    facts = (func.count().label("count"), expired.label("expired"))
    return compiled("running_by_queue", select(some.c.queue, *facts).group_by(some.c.queue))


def _waiting() -> Statement:
    """By queue and the sort of what they wait for: how many runs are parked."""
    mine = and_(runs.c.namespace == NAMESPACE, runs.c.status == word(Status.WAITING))
    some = _some(runs.c.queue, runs.c.waiting_on, where=mine).subquery("some")
    # `signal:NAME`, or several joined by plus signs. What people have named stays out.
    several = func.strpos(some.c.waiting_on, literal_column("' + '")) > number(0)
    sort = func.split_part(some.c.waiting_on, literal_column("':'"), number(1))
    waits_on = case((several, word("several")), else_=sort).label("sort")
    by_sort = select(some.c.queue, waits_on, func.count().label("count"))
    return compiled("waiting_by_sort", by_sort.group_by(some.c.queue, waits_on))


def _failed() -> Statement:
    """By reason: how many runs failed within the last hour."""
    mine = and_(runs.c.namespace == NAMESPACE, runs.c.status == word(Status.FAILED), runs.c.finished_at > now() - _HOUR)
    some = _some(runs.c.reason, where=mine).subquery("some")
    return compiled("failed_by_reason", select(some.c.reason, func.count().label("count")).group_by(some.c.reason))


def _untold() -> Statement:
    """How many notices are due and not delivered yet, and since when the first one is."""
    mine = and_(notices.c.namespace == NAMESPACE, notices.c.ended_at.is_(None), notices.c.due_at <= now())
    some = _some(notices.c.created_at, where=mine).subquery("some")
    return compiled(
        "notices_untold", select(func.count().label("count"), _age(func.min(some.c.created_at)).label("age"))
    )


def _spent() -> Statement:
    """What the runs of all owners have spent today (UTC): the owners one by one, as the key has them, and today's rows
    of each. What was spent before is not read."""
    owners = select(func.min(spend.c.owner).label("owner")).where(spend.c.namespace == NAMESPACE)
    owners = owners.cte("owners", recursive=True)
    after = select(func.min(spend.c.owner)).where(spend.c.namespace == NAMESPACE, spend.c.owner > owners.c.owner)
    owners = owners.union_all(select(after.scalar_subquery()).where(owners.c.owner.is_not(None)))
    mine = and_(spend.c.namespace == NAMESPACE, spend.c.owner == owners.c.owner, spend.c.day == TODAY)
    sums = (func.sum(spend.c.cost).label("cost"), func.sum(spend.c.tokens).label("tokens"))
    today = select(*sums).where(mine).lateral("today")
    cost = func.coalesce(cast(func.sum(today.c.cost), Numeric), number(0)).label("cost")
    tokens = func.coalesce(func.sum(today.c.tokens), number(0)).label("tokens")
    return compiled("spent_today", select(cost, tokens).select_from(owners.join(today, true())))


QUEUED = later(_queued)
RUNNING = later(_running)
WAITING = later(_waiting)
FAILED = later(_failed)
UNTOLD = later(_untold)
SPENT = later(_spent)
