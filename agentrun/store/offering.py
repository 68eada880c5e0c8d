"""Offering steps to whoever executes them: first under the run's epoch, with the run's wait; then again.

It is again on offer where its taker fails or gives it back, and out of trouble. Once its run is over it is put aside.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from sqlalchemy import BigInteger, ColumnElement, Double, Integer, Text, and_, cast, func, null, or_, select, update
from sqlalchemy.dialects.postgresql import JSON, UUID, insert
from sqlalchemy.sql.selectable import CTE

from agentrun.core.words import Effect, EventType, StepKind, StepStatus, WaitStatus
from agentrun.store.elsewhere import (
    ELSEWHERE,
    LOST,
    MAY_REPEAT,
    OFFER_COLUMNS,
    OFFERED,
    STARTED,
    STEP_EPOCH,
    STILL_TROUBLED,
    TAKEN_BY_ME,
    open_run,
    policy,
)
from agentrun.store.mover import NAMESPACE, RUNNING, locked_among, said_of, told
from agentrun.store.sql import Statement, compiled, compiled_many, later, now, number, param, recordset, seconds, word
from agentrun.store.tables import runs, steps, waits
from agentrun.store.waits import KEY, SEEN_COLUMNS, registered
from agentrun.store.waits import held as held_by_segment

LONGEST_DELAY = 315_360_000
"""Seconds: ten years. What overflows here would end every sweep that comes to its step."""


def _offer() -> Statement:
    """Offer a step and register the run's wait for it. Refuses (no row): not held, or the step is offered already.

    A step that has to be done again (it failed with its segment, or is known not to have happened) is offered afresh.
    """
    source = held_by_segment()
    offered = _offered(source, {name: param(name, kind) for name, kind in _OFFERED_COLUMNS.items()})
    asking = select(source.c.id, source.c.namespace).join(offered, offered.c.run_id == source.c.id).cte("asking")
    waiting = _reopened(registered(asking)).returning(*SEEN_COLUMNS).cte("waiting")
    return compiled("offer_step", select(waiting), _offer_many())


_OFFERED_COLUMNS: dict[str, Any] = {
    "key": Text, "epoch": BigInteger, "step_kind": Text, "name": Text, "effect": Text, "args_digest": Text,
    "args": JSON, "idempotency_key": Text, "queue": Text, "pickup": Double, "policy": JSON,
}  # fmt: skip
_ASKED_COLUMNS: dict[str, Any] = {"wait_id": UUID, "asks": JSON, "asks_digest": Text}


def _offer_many() -> Statement:
    """As `offer_step`, for the steps of a batch: a run that offers a thousand is locked once."""
    columns = {"run_id": UUID, **_OFFERED_COLUMNS, **_ASKED_COLUMNS}
    mine = recordset("mine", {name: Text if kind is JSON else kind for name, kind in columns.items()})
    locked = locked_among(mine, RUNNING)
    source = said_of(locked, mine)
    offered = _offered(source, {name: _as(source.c[name], kind) for name, kind in _OFFERED_COLUMNS.items()})
    same = and_(offered.c.run_id == source.c.id, offered.c.key == source.c.key)
    asking = select(source, NAMESPACE.label("namespace")).join(offered, same).cte("asking")
    said = {
        "id": asking.c.wait_id,
        "step_key": asking.c.key,
        "name": asking.c.name,
        "asks": _as(asking.c.asks, JSON),
        "asks_digest": asking.c.asks_digest,
    }
    stored = _reopened(registered(asking, **said)).returning(*SEEN_COLUMNS, waits.c.run_id).cte("waiting")
    its = and_(asking.c.id == stored.c.run_id, asking.c.key == stored.c.step_key)
    return compiled_many("offer_steps", select(stored, asking.c.nth).join(asking, its), columns)


def _as(value: ColumnElement[Any], kind: Any) -> ColumnElement[Any]:
    """JSON travels as text, so that it is stored as it was written."""
    return cast(value, JSON) if kind is JSON else value


def _offered(source: CTE, given: Mapping[str, ColumnElement[Any]]) -> CTE:
    """The one place where a step is offered for the first time."""
    columns = {name: value for name, value in given.items() if name not in ("step_kind", "pickup")}
    values: dict[str, Any] = {
        "run_id": source.c.id,
        **columns,
        "kind": given["step_kind"],
        "status": word(StepStatus.OFFERED),
        "attempt": number(1),
        "offered_at": now(),
        "due_at": now(),
        "lease_expires_at": now() + seconds(given["pickup"]),
    }
    again = {name: insert(steps).excluded[name] for name in values if name not in ("run_id", "key", "idempotency_key")}
    again |= {"attempt": steps.c.attempt + number(1), "error": null(), "finished_at": null()}
    again |= {"redispatch_count": number(0)}
    return (
        insert(steps)
        .from_select(list(values), select(*values.values()).select_from(source))
        .on_conflict_do_update(
            index_elements=["run_id", "key"],
            set_=again,
            where=steps.c.status.in_([word(StepStatus.NOT_APPLIED), word(StepStatus.REDO)]),
        )
        .returning(steps.c.run_id, steps.c.key)
        .cte("offered")
    )


def _reopened(stored: Any) -> Any:
    """The wait of a step that is offered afresh is open again."""
    return stored.on_conflict_do_update(
        index_elements=["run_id", "step_key"],
        set_={"status": word(WaitStatus.OPEN), "resolution": null(), "resolved_by": null(), "resolved_at": null()},
    )


# ---- again, or put aside

_NEXT_ATTEMPT = {"attempt": steps.c.attempt + number(1), "error": param("error", JSON)}
_ONE_MORE = {"redispatch_count": steps.c.redispatch_count + number(1)}


def _again(name: str, guard: ColumnElement[bool], event: EventType | None, **values: ColumnElement[Any]) -> Statement:
    again = _back_on_offer(open_run(), guard, **values)
    return compiled(name, select(again).add_cte(*([told(again, event)] if event is not None else [])))


def _back_on_offer(source: CTE, guard: ColumnElement[bool], **values: ColumnElement[Any]) -> CTE:
    """The one place where a step is offered again. A pause that no clock can hold ends at the longest that may be."""
    asked = func.coalesce(param("delay", Double), number(0))
    delay = func.least(func.greatest(asked, number(0)), number(LONGEST_DELAY))
    return (
        update(steps)
        .where(steps.c.run_id == source.c.id, steps.c.key == KEY, ELSEWHERE, guard)
        .values(
            status=word(StepStatus.OFFERED),
            offered_at=now() + seconds(delay),
            due_at=now() + seconds(delay),
            lease_expires_at=now() + seconds(delay) + seconds(policy("pickup_timeout")),
            heartbeat_at=null(),
            token_digest=null(),
            **values,
        )
        .returning(steps.c.run_id.label("id"), *OFFER_COLUMNS, source.c.epoch, source.c.priority)
        .cte("moved")
    )


def _shelve(name: str, trouble: ColumnElement[bool], *order: ColumnElement[Any]) -> Statement:
    """Steps of runs that are over are nobody's work, and are not looked at by every sweep: a redrive does them again.

    Looks at the first `limit` that are in question. Refuses: the run is not final (any more), or the step has ended.
    """
    looked = select(steps.c.run_id, steps.c.key).join(runs, runs.c.id == steps.c.run_id)
    looked = looked.where(ELSEWHERE, trouble, runs.c.namespace == NAMESPACE).order_by(*order)
    those = looked.limit(param("limit", Integer)).cte("those")
    over = (
        select(runs.c.id)
        .where(runs.c.id.in_(select(those.c.run_id)), runs.c.finished_at.is_not(None))
        .order_by(runs.c.id)
        .with_for_update(key_share=True, skip_locked=True)
        .cte("over")
    )
    shelved = (
        update(steps)
        .where(steps.c.run_id == over.c.id, steps.c.run_id == those.c.run_id, steps.c.key == those.c.key, trouble)
        .values(status=word(StepStatus.REDO), lease_expires_at=null(), due_at=null())
        .returning(steps.c.run_id, steps.c.key)
    )
    return compiled(name, select(shelved.cte("shelved")))


OFFER = later(_offer)
RETRY = later(_again, "retry_step", TAKEN_BY_ME, EventType.STEP_RETRIED, **_NEXT_ATTEMPT)
GIVE_BACK = later(_again, "give_back_step", TAKEN_BY_ME, None)
ASK_AGAIN = later(
    _again,
    "ask_again_about_step",
    and_(TAKEN_BY_ME, steps.c.reconcilable),
    EventType.REDISPATCHED,
    **_ONE_MORE,
    error=param("error", JSON),
)
RETRY_TROUBLED = later(
    _again,
    "retry_troubled_step",
    and_(STILL_TROUBLED, or_(OFFERED, MAY_REPEAT)),
    EventType.STEP_RETRIED,
    **_NEXT_ATTEMPT,
)
REDISPATCH = later(
    _again, "redispatch_step", and_(STILL_TROUBLED, STARTED, MAY_REPEAT), EventType.REDISPATCHED, **_ONE_MORE
)
REDISPATCH_BY_HAND = later(
    _again,
    "redispatch_by_hand",
    and_(
        steps.c.step_epoch == STEP_EPOCH,
        STARTED,
        MAY_REPEAT,
        or_(steps.c.lease_expires_at < now(), steps.c.kind == word(StepKind.EXTERNAL)),
    ),
    EventType.REDISPATCHED,
    **_ONE_MORE,
)
SHELVE_OFFERED = later(_shelve, "shelve_offered", and_(OFFERED, steps.c.queue == param("queue", Text)), steps.c.due_at)
SHELVE_EXTERNAL = later(_shelve, "shelve_external", and_(OFFERED, steps.c.queue.is_(None)), steps.c.due_at)
# A write of which nobody knows how it ended stays where an operator looks for it.
SHELVE_LOST = later(_shelve, "shelve_lost", and_(LOST, steps.c.effect != word(Effect.NON_IDEMPOTENT_WRITE)))
