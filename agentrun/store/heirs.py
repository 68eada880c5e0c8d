"""What a process left behind that was killed, for the one that runs under the same stable id after it.

A process is dead when nobody holds its lock any more: PostgreSQL frees it with the connection, at once. Nothing here
moves a run: the leases end early, and the sweep does what it does with every lease that is over.
"""

from __future__ import annotations

from sqlalchemy import ColumnElement, Text, and_, cast, func, literal_column, select, update
from sqlalchemy.dialects.postgresql import UUID
from sqlalchemy.sql.selectable import CTE

from agentrun.core.words import Status, StepKind, StepStatus
from agentrun.store.mover import NAMESPACE
from agentrun.store.sql import Statement, compiled, later, now, number, param, word
from agentrun.store.tables import processes, runs, steps

STABLE_ID = param("stable_id", Text)
PROCESS_ID = param("process_id", UUID)
_SEED = number(7_201_955)
_COLON: ColumnElement[str] = literal_column("':'")


def _lock_of(process_id: ColumnElement[str]) -> ColumnElement[int]:
    return func.hashtextextended(process_id, _SEED)


def _here() -> Statement:
    """Hold this process's lock for as long as the connection lives. Shared: an older connection of the same process,
    of which the server has not heard yet that it broke, is not waited for."""
    mine = func.pg_advisory_lock_shared(_lock_of(param("process_name", Text)))
    return compiled("process_here", select(cast(mine, Text).label("here")))


def _dead() -> CTE:
    """The dead processes of this stable id, by what their segments are called after: `id:pid:instance`.

    A server that was restarted holds nobody's lock: who was not seen since is left to its leases.
    """
    gone = (
        select(processes.c.id, func.substr(processes.c.name, _after_segment(processes.c.name)).label("suffix"))
        .where(
            processes.c.namespace == NAMESPACE,
            processes.c.stable_id == STABLE_ID,
            processes.c.id != PROCESS_ID,
            processes.c.seen_at > func.pg_postmaster_start_time(),
        )
        .cte("gone")
        .prefix_with("MATERIALIZED")
    )
    unheld = func.pg_try_advisory_xact_lock(_lock_of(gone.c.id.cast(Text)))
    return select(gone.c.suffix).where(unheld).cte("dead").prefix_with("MATERIALIZED")


def _after_segment(name: ColumnElement[str]) -> ColumnElement[int]:
    return func.strpos(name, _COLON) + number(1)


def _runs() -> Statement:
    """End the leases of the runs that a dead process held. Never this process's: each instance has another name."""
    dead = _dead()
    theirs = func.substr(runs.c.claimed_by, _after_segment(runs.c.claimed_by)) == dead.c.suffix
    left = (
        select(runs.c.id)
        .join(dead, theirs)
        .where(
            runs.c.namespace == NAMESPACE,
            runs.c.status == word(Status.RUNNING),
            runs.c.lease_expires_at > now(),
        )
        .order_by(runs.c.id)
        .with_for_update(key_share=True, skip_locked=True, of=runs)
        .cte("left_behind")
    )
    ended = update(runs).where(runs.c.id == left.c.id).values(lease_expires_at=now()).returning(runs.c.id)
    return compiled("inherit_runs", ended)


def _steps() -> Statement:
    """The same for remote steps that a dead process had taken."""
    dead = _dead()
    theirs = and_(
        func.substr(steps.c.by, _after_segment(steps.c.by)) == dead.c.suffix, steps.c.kind == word(StepKind.REMOTE)
    )
    left = (
        select(steps.c.run_id, steps.c.key)
        .join(dead, theirs)
        .where(steps.c.status == word(StepStatus.STARTED), steps.c.lease_expires_at > now())
        .order_by(steps.c.run_id, steps.c.key)
        .with_for_update(skip_locked=True, of=steps)
        .cte("left_behind")
    )
    mine = and_(steps.c.run_id == left.c.run_id, steps.c.key == left.c.key)
    ended = update(steps).where(mine).values(lease_expires_at=now()).returning(steps.c.run_id, steps.c.key)
    return compiled("inherit_steps", ended)


HERE = later(_here)
INHERIT_RUNS = later(_runs)
INHERIT_STEPS = later(_steps)
