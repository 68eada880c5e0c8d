"""What the statements on steps that somebody else executes have in common: their words, and the locks that they take.

Such a step is offered under the run's epoch, taken under an epoch of its own, and ended once. Every statement locks the
run's row first and the step's after it, so a step has one order of events and no two statements deadlock.
"""

from __future__ import annotations

from typing import Any

from sqlalchemy import BigInteger, ColumnElement, Double, Text, and_, func, literal_column, or_, select
from sqlalchemy.sql.selectable import CTE

from agentrun.core.words import Effect, StepKind, StepStatus
from agentrun.store.mover import IN_NAMESPACE, RUN_ID
from agentrun.store.sql import any_of, now, number, param, word
from agentrun.store.tables import runs, steps

STEP_EPOCH = param("step_epoch", BigInteger)
TOKEN = param("token_digest", Text)
ELSEWHERE = steps.c.kind.in_([word(StepKind.REMOTE), word(StepKind.EXTERNAL)])
OFFERED = steps.c.status == word(StepStatus.OFFERED)
STARTED = steps.c.status == word(StepStatus.STARTED)
REDO = steps.c.status == word(StepStatus.REDO)
MAY_REPEAT = or_(steps.c.effect != word(Effect.NON_IDEMPOTENT_WRITE), steps.c.reconcilable)
OFFER_COLUMNS = (steps.c.run_id, steps.c.key, steps.c.name, steps.c.queue, steps.c.attempt, steps.c.redispatch_count)

# Who may say something about a started step: its taker by the step's epoch, a program elsewhere by its token.
TAKEN_BY_ME = and_(STARTED, or_(steps.c.step_epoch == STEP_EPOCH, steps.c.token_digest == TOKEN))

# The troubles. What is done about one is guarded by the trouble itself.
LOST = and_(STARTED, steps.c.lease_expires_at < now())
SILENT = and_(STARTED, steps.c.due_at < now())
UNCLAIMED = and_(OFFERED, steps.c.lease_expires_at < now())
STILL_TROUBLED = and_(
    func.coalesce(steps.c.step_epoch, number(0)) == func.coalesce(STEP_EPOCH, number(0)), or_(LOST, SILENT, UNCLAIMED)
)


def policy(name: str) -> ColumnElement[Any]:
    """A number of the step's policy, or NULL."""
    return func.nullif(steps.c.policy.op("->>")(literal_column(f"'{name}'")), literal_column("''")).cast(Double)


def open_run() -> CTE:
    """The step's run, locked, in this namespace and not final."""
    return locked_run(runs.c.finished_at.is_(None))


def locked_run(*guards: ColumnElement[bool]) -> CTE:
    """The step's run, locked, in this namespace, and whether it is over or about to be."""
    over = or_(runs.c.finished_at.is_not(None), runs.c.cancel_requested_at.is_not(None)).label("over")
    columns = (runs.c.id, runs.c.epoch, runs.c.status, runs.c.owner, runs.c.kind, runs.c.priority, over)
    mine = select(*columns).where(runs.c.id == RUN_ID, IN_NAMESPACE, *guards)
    return mine.with_for_update(key_share=True).cte("held")


def locked_many(mine: CTE, *guards: ColumnElement[bool]) -> CTE:
    """The runs of a batch's steps, locked in the order of their ids, with what is said of each step."""
    columns = (runs.c.id, runs.c.status, runs.c.owner, runs.c.kind, runs.c.priority)
    named = select(*columns).where(runs.c.id == any_of(mine.c.run_id), IN_NAMESPACE, *guards)
    locked = named.order_by(runs.c.id).with_for_update(key_share=True).cte("locked")
    said = [mine.c[name] for name in mine.c.keys() if name != "run_id"]  # noqa: SIM118 - a column collection
    return select(locked, *said).join(mine, mine.c.run_id == locked.c.id).order_by(mine.c.nth).cte("held")
