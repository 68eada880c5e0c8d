"""Reads for who watches from the command line: runs by the start of their id, and what is alive just now."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any
from uuid import UUID

from sqlalchemy import func, literal_column, select
from sqlalchemy.dialects.postgresql import UUID as UUID_TYPE

from agentrun.store.database import Database
from agentrun.store.mover import NAMESPACE
from agentrun.store.sql import Statement, compiled, later, now, number, param, word
from agentrun.store.tables import processes, runs, sweeps

OWN_APP = "agentrun.broker.default"
"""The Celery application of who has none of their own: it is there wherever agentrun is installed."""


@dataclass(frozen=True, slots=True)
class Moment:
    """The database's time, and what it has seen: the age of the last sweep in seconds (None: there was none), how many
    worker processes were alive within the last minute, and the kinds they know."""

    now: datetime
    server: str
    sweep_age: float | None
    processes: int
    kinds: tuple[str, ...]
    app: str
    """What `celery -A` is told here, as the worker that was seen last says."""


def moment(database: Database, namespace: str) -> Moment:
    """What is alive in the namespace now."""
    return _as_moment(database.rows(MOMENT, {"namespace": namespace})[0])


def ids_by_prefix(database: Database, namespace: str, prefix: str) -> list[UUID]:
    """The runs whose id starts with these hex characters; two of them at most. One look into the primary key."""
    params = {"namespace": namespace, "lowest": UUID(prefix.ljust(32, "0")), "highest": UUID(prefix.ljust(32, "f"))}
    return [row["id"] for row in database.rows(BY_PREFIX, params)]


def _by_prefix() -> Statement:
    between = runs.c.id.between(param("lowest", UUID_TYPE), param("highest", UUID_TYPE))
    return compiled("runs_by_prefix", select(runs.c.id).where(between, runs.c.namespace == NAMESPACE).limit(number(2)))


def _moment() -> Statement:
    alive = (processes.c.namespace == NAMESPACE, processes.c.seen_at > now() - literal_column("interval '1 minute'"))
    age = select(func.extract("epoch", now() - sweeps.c.swept_at)).where(
        sweeps.c.namespace == NAMESPACE, sweeps.c.name == word("sweep")
    )
    said = processes.c.about.op("->>")(word("app"))
    app = select(said).where(processes.c.namespace == NAMESPACE, said.is_not(None)).order_by(processes.c.seen_at.desc())
    known = select(func.unnest(processes.c.kinds).label("kind")).where(*alive).distinct().subquery("known")
    return compiled(
        "moment",
        select(
            now().label("now"),
            func.current_setting(literal_column("'server_version'")).label("server"),
            age.scalar_subquery().label("sweep_age"),
            select(func.count()).select_from(processes).where(*alive).scalar_subquery().label("processes"),
            select(func.array_agg(known.c.kind)).scalar_subquery().label("kinds"),
            app.limit(number(1)).scalar_subquery().label("app"),
        ),
    )


def _as_moment(row: Mapping[str, Any]) -> Moment:
    age = row["sweep_age"]
    kinds = tuple(sorted(row["kinds"] or ()))
    sweep_age = None if age is None else float(age)
    return Moment(row["now"], row["server"], sweep_age, row["processes"], kinds, row["app"] or OWN_APP)


MOMENT = later(_moment)
BY_PREFIX = later(_by_prefix)
