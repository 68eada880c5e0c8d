"""The outbox of hooks: what has to be told to people, written first and told after the commit, until it worked."""

from __future__ import annotations

from typing import Any

from sqlalchemy import Double, Integer, Text, exists, func, literal_column, null, select, update
from sqlalchemy.dialects.postgresql import ARRAY, insert

from agentrun.core.words import WaitKind, WaitStatus
from agentrun.store.mover import NAMESPACE
from agentrun.store.sql import Statement, compiled, now, number, param, seconds, word
from agentrun.store.tables import notices, runs, waits

LIMIT = param("limit", Integer)
_PEOPLE = waits.c.kind.in_([word(WaitKind.APPROVAL), word(WaitKind.INPUT), word(WaitKind.SIGNAL)])
_OPEN = waits.c.status == word(WaitStatus.OPEN)


def _announce() -> Statement:
    """A first notice for every open wait and hook that has none, and the next one where a reminder is due."""
    hooks = func.unnest(param("hooks", ARRAY(Text))).table_valued("hook", name="hooks").render_derived(name="hooks")
    told = select(func.count()).where(notices.c.wait_id == waits.c.id, notices.c.hook == hooks.c.hook).scalar_subquery()
    never = ~exists().where(notices.c.wait_id == waits.c.id, notices.c.hook == hooks.c.hook)
    due = (
        select(
            waits.c.namespace,
            waits.c.run_id,
            waits.c.id,
            hooks.c.hook,
            (told + number(1)).label("round"),
            _said(),
            now(),
        )
        .select_from(waits.join(runs, runs.c.id == waits.c.run_id).join(hooks, literal_column("true")))
        .where(waits.c.namespace == NAMESPACE, _OPEN, _PEOPLE, never | (waits.c.remind_at <= now()))
        .limit(LIMIT)
    )
    names = ["namespace", "run_id", "wait_id", "hook", "round", "data", "due_at"]
    stored = insert(notices).from_select(names, due)
    return compiled(
        "announce", stored.on_conflict_do_nothing(index_elements=["hook", "wait_id", "round"]).returning(notices.c.id)
    )


def _said() -> Any:
    """What people are told: no payload, only what is asked and of whom."""
    pairs: list[Any] = []
    for name, column in (
        ("run_id", waits.c.run_id), ("wait_id", waits.c.id), ("kind", waits.c.kind), ("key", waits.c.step_key),
        ("question", waits.c.name), ("role", waits.c.role), ("run_kind", runs.c.kind), ("owner", runs.c.owner),
        ("digest", waits.c.asks_digest), ("since", waits.c.created_at), ("due_at", waits.c.due_at),
    ):  # fmt: skip
        pairs += [word(name), column]
    return func.json_build_object(*pairs).label("data")


def _reminded() -> Statement:
    """Put the next reminder a period ahead."""
    every = param("unused", Double)
    pushed = (
        update(waits)
        .where(waits.c.namespace == NAMESPACE, _OPEN, waits.c.remind_at <= now())
        .values(remind_at=now() + seconds(func.coalesce(waits.c.remind_seconds, every)))
    )
    return compiled("reminded", pushed.returning(waits.c.id))


def _take() -> Statement:
    """Notices that are due, for the hooks of this process. Taken ones come back by themselves if it dies."""
    free = (
        select(notices.c.id)
        .where(
            notices.c.namespace == NAMESPACE,
            notices.c.delivered_at.is_(None),
            notices.c.due_at <= now(),
            notices.c.hook == func.any(param("hooks", ARRAY(Text))),
        )
        .order_by(notices.c.due_at)
        .limit(LIMIT)
        .with_for_update(skip_locked=True)
        .cte("free")
    )
    taken = (
        update(notices)
        .where(notices.c.id == free.c.id)
        .values(attempts=notices.c.attempts + number(1), due_at=now() + seconds(param("again_in", Double)))
        .returning(notices.c.id, notices.c.hook, notices.c.data, notices.c.attempts, notices.c.round)
    )
    return compiled("take_notices", taken)


def _delivered() -> Statement:
    done = update(notices).where(notices.c.id == param("id", Integer)).values(delivered_at=now(), last_error=null())
    return compiled("notice_delivered", done.returning(notices.c.id))


def _failed() -> Statement:
    """Again later; after the last attempt it is left undelivered, with its error."""
    later = (
        update(notices)
        .where(notices.c.id == param("id", Integer))
        .values(last_error=param("last_error", Text), due_at=now() + seconds(param("again_in", Double)))
    )
    return compiled("notice_failed", later.returning(notices.c.id))


ANNOUNCE = _announce()
REMINDED = _reminded()
TAKE = _take()
DELIVERED = _delivered()
FAILED = _failed()
