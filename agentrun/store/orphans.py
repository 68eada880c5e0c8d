"""Orphans: children that live on although their parent has come to nothing. Nobody will read what they find."""

from __future__ import annotations

from typing import Any

from sqlalchemy import ColumnElement, Integer, Select, exists, or_, select
from sqlalchemy.dialects.postgresql import UUID

from agentrun.core.words import FINAL, EventType, Status
from agentrun.store.mover import NAMESPACE, RUN_ID
from agentrun.store.sql import Statement, beside_key, compiled, later, param, word
from agentrun.store.tables import moves, runs

_PARENT = runs.alias("parent")


def orphans(*columns: ColumnElement[Any], status: ColumnElement[str] = runs.c.status) -> Select[Any]:
    """Children whose parent was cancelled or has failed; not those that an operator brought back since: their parent
    may be redriven after them."""
    ended = [word(Status.CANCELLED), word(Status.FAILED)]
    return (
        select(*columns)
        .join_from(runs, _PARENT, _PARENT.c.id == runs.c.parent_id)
        .where(
            runs.c.parent_id.is_not(None),
            status.in_([word(status) for status in sorted(set(Status) - FINAL)]),
            runs.c.cancel_requested_at.is_(None),
            beside_key(_PARENT.c.status).in_(ended),
            runs.c.namespace == NAMESPACE,
            ~exists().where(
                moves.c.run_id == runs.c.id,
                moves.c.type == word(EventType.REDRIVEN),
                moves.c.at >= _PARENT.c.finished_at,
                _PARENT.c.status == word(Status.FAILED),
            ),
        )
    )


def is_orphan() -> ColumnElement[bool]:
    """Of the run of the parameters, asked under the locks of both: its parent may just be redriven.

    The child is locked first, as by its own end, which tells the parent.
    """
    mine = orphans(runs.c.id, status=beside_key(runs.c.status)).where(runs.c.id == RUN_ID)
    return exists(select(mine.with_for_update(key_share=True, of=[runs, _PARENT]).cte("orphan").c.id))


def _open_children() -> Statement:
    of_one = or_(param("parent_id", UUID).is_(None), runs.c.parent_id == param("parent_id", UUID))
    return compiled("open_children", orphans(runs.c.id).where(of_one).limit(param("limit", Integer)))


OPEN_CHILDREN = later(_open_children)
