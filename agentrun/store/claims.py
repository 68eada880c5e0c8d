"""Who holds a run: the claim that begins a lease, and what renews it."""

from __future__ import annotations

from typing import Any

from sqlalchemy import BigInteger, ColumnElement, Double, Integer, Text, and_, cast, func, select, true, update
from sqlalchemy.dialects.postgresql import ARRAY, JSON, JSONB, UUID
from sqlalchemy.sql.selectable import CTE
from sqlalchemy.types import TypeEngine

from agentrun.core import moves as legal
from agentrun.core.words import EventType, Status
from agentrun.store.mover import BY, IN_NAMESPACE, LEASE, RUNNING, locked_rows, moved, told
from agentrun.store.sql import Statement, compiled, compiled_many, later, now, number, param, seconds, word
from agentrun.store.tables import runs

CLAIMED_COLUMNS = (
    runs.c.id, runs.c.epoch, runs.c.kind, runs.c.request, runs.c.queue, runs.c.priority, runs.c.requeue_count,
    runs.c.max_requeues, runs.c.lease_seconds, runs.c.owner, runs.c.limits, runs.c.deadline_at,
    runs.c.cancel_requested_at, runs.c.model_calls, runs.c.input_tokens, runs.c.output_tokens, runs.c.cost,
    runs.c.attributes, runs.c.tags, runs.c.parent_id, runs.c.claimed_by, runs.c.planned_cost, runs.c.resolutions,
    runs.c.created_at,
    (runs.c.deadline_at < now()).is_(true()).label("deadline_passed"),
)  # fmt: skip


def _claim() -> Statement:
    """Refuses: not queued, not due yet, another namespace, or a kind that is not known here.

    What the run's producer did not say, its kind's options say from now on.
    """
    row = _claimed(None, BY)
    return compiled("claim", select(row).add_cte(told(row, EventType.CLAIMED)), _claim_many())


def _claim_many() -> Statement:
    """As `claim`, for the wakes of a batch. Of two wakes for one run, one claims."""
    locked = locked_rows(Status.QUEUED, {})
    row = _claimed(locked, locked.c.by, locked.c.nth, locked.c.by, locked.c.data)
    claimed = told(row, EventType.CLAIMED, cast(row.c.data, JSON), by=row.c.by)
    columns = [row.c[name] for name in row.c.keys() if name not in ("by", "data")]  # noqa: SIM118 - a column collection
    return compiled_many("claim_many", select(*columns).add_cte(claimed), ("run_id", "by", "data"))


def _claimed(of: CTE | None, by: ColumnElement[Any], *said: ColumnElement[Any]) -> CTE:
    lease = func.coalesce(runs.c.lease_seconds, _of_kind("lease_seconds", Double))
    return moved(
        legal.CLAIM,
        Status.RUNNING,
        IN_NAMESPACE,
        runs.c.due_at <= now(),
        runs.c.kind == func.any(param("kinds", ARRAY(Text))),
        returning=(*CLAIMED_COLUMNS, *said),
        of=of,
        epoch=runs.c.epoch + number(1),
        claimed_by=by,
        lease_expires_at=now() + seconds(func.coalesce(lease, param("lease", Double))),
        lease_seconds=lease,
        max_requeues=func.coalesce(runs.c.max_requeues, _of_kind("max_requeues", Integer)),
        deadline_at=func.coalesce(runs.c.deadline_at, runs.c.created_at + seconds(_of_kind("timeout", Double))),
        claimed_at=now(),
        started_at=func.coalesce(runs.c.started_at, now()),
    )


def _of_kind(name: str, as_type: type[TypeEngine[Any]]) -> ColumnElement[Any]:
    """What the claiming process's kind overrides: a producer that knows no kinds could not store it."""
    own = param("options", JSONB).op("->")(runs.c.kind)
    return cast(own.op("->>")(word(name)), as_type)


def _renew(name: str, skip_locked: bool) -> Statement:
    """One statement for every lease that a process holds. Rows locked by their own write are passed over.

    Without `skip_locked` it waits for them: for one lease at a time, which then holds no other lock.
    """
    held = func.unnest(param("run_ids", ARRAY(UUID)), param("epochs", ARRAY(BigInteger)))
    mine = held.table_valued("run_id", "epoch", name="mine").render_derived(name="mine")
    free = (
        select(runs.c.id)
        .join(mine, and_(runs.c.id == mine.c.run_id, runs.c.epoch == mine.c.epoch))
        .where(RUNNING)
        .order_by(runs.c.id)
        .with_for_update(key_share=True, skip_locked=skip_locked, of=runs)
        .cte("free")
    )
    renewed = (
        update(runs)
        .where(runs.c.id == free.c.id)
        .values(lease_expires_at=now() + seconds(LEASE))
        .returning(runs.c.id)
        .cte("renewed")
    )
    seen = (
        select(
            mine.c.run_id,
            and_(runs.c.status == word(Status.RUNNING), runs.c.epoch == mine.c.epoch).is_(true()).label("held"),
            renewed.c.id.is_not(None).label("renewed"),
            runs.c.cancel_requested_at.is_not(None).label("cancel_requested"),
            (runs.c.deadline_at < now()).is_(true()).label("deadline_passed"),
        )
        .select_from(mine)
        .outerjoin(runs, runs.c.id == mine.c.run_id)
        .outerjoin(renewed, renewed.c.id == mine.c.run_id)
    )
    return compiled(name, seen)


CLAIM_RUN = later(_claim)
RENEW_ALL = later(_renew, "renew_all", True)
RENEW_WAITING = later(_renew, "renew_waiting", False)
