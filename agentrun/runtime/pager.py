"""The pager: finds runs that stand still although nobody is asked, and opens an episode for each; hooks tell people.

An episode is a row, so a run is paged once for as long as it does not move, whichever process looks and whatever
restarts. Nothing here moves a run.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, assert_never

from agentrun.core.alarms import Occasion, Shape
from agentrun.core.words import StepKind, StepStatus
from agentrun.runtime import hooks
from agentrun.runtime.healing import WORKER
from agentrun.runtime.presence import celery_app
from agentrun.settings import Settings
from agentrun.store import episodes
from agentrun.store.database import Database
from agentrun.store.watching import OWN_APP

PASS = "pager"  # noqa: S105 - the name of its row in `sweeps`
EVERY_SECONDS = 60.0
MOST_RUNS = 100

Row = Mapping[str, Any]


def page(database: Database, settings: Settings, *, by: str, draining: bool = False) -> int:
    """One pass, at most one a minute across all processes; how many episodes it opened.

    Nothing is asked of the database by a process that drains, or that has no `on_stalled` hook.
    """
    if draining or not hooks.names(Occasion.STALLED):
        return 0
    scope = {"namespace": settings.namespace, "after": settings.stalled_after_seconds, "limit": MOST_RUNS}
    if database.row(episodes.CLAIM_PASS, scope | {"name": PASS, "by": by, "every": EVERY_SECONDS}) is None:
        return 0
    database.rows(episodes.CLOSE, scope)
    return sum(_opened(database, settings.namespace, row) for row in database.rows(episodes.UNPAGED, scope))


def _opened(database: Database, namespace: str, row: Row) -> bool:
    params = {name: row[name] for name in ("run_id", "shape", "since")}
    stored = database.rows(episodes.OPEN, params | {"namespace": namespace, "facts": json.dumps(facts(row))})
    return bool(stored)


def facts(row: Row) -> dict[str, Any]:
    """What people are told of a run that stands still: no payload."""
    return {
        "run_id": str(row["run_id"]),
        "kind": row["kind"],
        "run_kind": row["kind"],
        "shape": row["shape"],
        "since": row["since"].isoformat(),
        "age_seconds": float(row["age"]),
        "queue": row["queue"],
        "waiting_on": row["waiting_on"],
        "owner": row["owner"],
        "step": _step(row),
        "command": command(Shape(row["shape"]), row, app=celery_app() or OWN_APP),
    }


def command(shape: Shape, row: Row, *, app: str) -> str:
    """The one command that helps a run of this shape; `app` is what `celery -A` is told here."""
    match shape:
        case Shape.SILENT_STEP if row["step_status"] == StepStatus.OFFERED and row["step_kind"] == StepKind.EXTERNAL:
            return f"agentrun step list --run {row['run_id']}"
        case Shape.SILENT_STEP if row["step_status"] == StepStatus.OFFERED and not row["step_consumed"]:
            return WORKER.format(app=app, queue=row["step_queue"])
        case Shape.SILENT_STEP:
            return f"agentrun redispatch {row['run_id']}"
        case Shape.UNCLAIMED:
            return WORKER.format(app=app, queue=row["queue"])
        case Shape.NEVER_RESOLVED | Shape.NO_PROGRESS:
            return f"agentrun cancel {row['run_id']}"
        case _:
            assert_never(shape)


def _step(row: Row) -> dict[str, Any] | None:
    if row["step_key"] is None:
        return None
    same = {
        name: row[f"step_{name}"] for name in ("key", "name", "kind", "status", "attempt", "redispatch_count", "queue")
    }
    ages = {f"{name}_seconds": row[f"step_{name}"] for name in ("age", "heartbeat_age")}
    return same | {name: None if age is None else float(age) for name, age in ages.items()}
