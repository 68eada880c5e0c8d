"""Writes of which nobody has said how they ended: what may not be done again, completed over, or forgotten."""

from __future__ import annotations

from typing import Any

from sqlalchemy import ColumnElement, exists, func, or_, select

from agentrun.core.words import Effect, StepStatus
from agentrun.store.sql import now, word
from agentrun.store.tables import steps


def write_in_flight(run_id: ColumnElement[Any]) -> ColumnElement[bool]:
    """Whether a non-idempotent write of the run started, has not said how it ended, and cannot be asked.

    A remote one counts once nobody works on it any more: until then its taker says how it ends. The sweep gives it up
    when its lease has lapsed, and the run hears of that.
    """
    return _started_write(run_id, steps.c.lease_expires_at.is_(None))


def write_left_behind(run_id: ColumnElement[Any]) -> ColumnElement[bool]:
    """The same of a run that has ended: there a lapsed lease says by itself that nobody works on a remote one."""
    return _started_write(run_id, or_(steps.c.lease_expires_at.is_(None), steps.c.lease_expires_at < now()))


def write_unanswered(run_id: ColumnElement[Any]) -> ColumnElement[bool]:
    """Whether such a write was begun and nobody has said how it ended, whether or not somebody still works on it."""
    return _started_write(run_id)


def write_under_way(run_id: ColumnElement[Any]) -> ColumnElement[bool]:
    """Whether a taker whose lease still lives may be about to say how such a write ended."""
    return _started_write(run_id, steps.c.lease_expires_at >= now())


def pending_effect(run_id: ColumnElement[Any]) -> ColumnElement[Any]:
    """The strongest effect of the run's writes that began and have not said how they ended; not of what a living taker
    does elsewhere. In the alphabet, too, a non-idempotent write is last.

    It is asked, and not noted on the run: two updates of its row with each write cost a quarter of PostgreSQL's time
    for it (decision 26).
    """
    began = (steps.c.run_id == run_id, steps.c.status == word(StepStatus.STARTED), steps.c.lease_expires_at.is_(None))
    strongest = select(func.max(steps.c.effect)).where(*began, steps.c.effect != word(Effect.READ_ONLY))
    return strongest.scalar_subquery().label("pending_effect")


def _started_write(run_id: ColumnElement[Any], *whose: ColumnElement[bool]) -> ColumnElement[bool]:
    return exists().where(
        steps.c.run_id == run_id,
        steps.c.status == word(StepStatus.STARTED),
        steps.c.effect == word(Effect.NON_IDEMPOTENT_WRITE),
        ~steps.c.reconcilable,
        *whose,
    )
