"""The journal's statements: record a step, fence a write, finish it, replay. Every one of them names the epoch.

A read-only step is one statement; a write is two (fence, finish). The lock on the run's row makes a stale owner's
statement find nothing, and gives the event numbers drawn under it their order.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from sqlalchemy import (
    BigInteger,
    Boolean,
    ColumnElement,
    CompoundSelect,
    Double,
    Integer,
    Numeric,
    Text,
    and_,
    cast,
    func,
    null,
    or_,
    select,
    true,
    union_all,
    update,
)
from sqlalchemy.dialects.postgresql import JSON, UUID, insert
from sqlalchemy.sql.dml import ReturningInsert
from sqlalchemy.sql.selectable import CTE

from agentrun.core.words import Effect, StepStatus
from agentrun.store.budgets import TODAY
from agentrun.store.mover import BY, EPOCH, LEASE, RUN_ID, RUNNING, locked_among, said_of
from agentrun.store.sql import (
    Statement,
    beside_key,
    compiled,
    compiled_many,
    later,
    listed,
    now,
    number,
    param,
    recordset,
    seconds,
    word,
)
from agentrun.store.tables import event_seq, runs, spend, steps

KEY = param("key", Text)
_IN_FLIGHT = beside_key(steps.c.status) == word(StepStatus.STARTED)
"""Of a step that is found by its key: the index of what is in flight holds all that the run has ever written, until it
is vacuumed."""

_NOT_CANCELLED = runs.c.cancel_requested_at.is_(None)
_MINE = and_(runs.c.id == RUN_ID, runs.c.epoch == EPOCH, RUNNING)
_SAID: dict[str, ColumnElement[Any]] = {
    "status": param("status", Text),
    "result": param("result", JSON),
    "error": param("error", JSON),
}
_ENDED: dict[str, ColumnElement[Any]] = {
    **_SAID,
    "model": param("model", Text),
    "input_tokens": param("input_tokens", BigInteger),
    "output_tokens": param("output_tokens", BigInteger),
    "cost": param("cost", Numeric),
}
_NAMED: dict[str, ColumnElement[Any]] = {
    "key": KEY,
    "kind": param("kind", Text),
    "name": param("name", Text),
    "effect": param("effect", Text),
    "attempt": param("attempt", Integer),
    "epoch": EPOCH,
    "by": BY,
    "args_digest": param("args_digest", Text),
    "args": param("args", JSON),
}


def _since(took: ColumnElement[Any]) -> ColumnElement[Any]:
    """When what took so many seconds began: by the database's clock, as all times are."""
    return now() - seconds(took)


def _recorded(held: CTE, given: Mapping[str, ColumnElement[Any]]) -> ReturningInsert[Any, Any]:
    """The one place where a step is recorded: new, or to be done again."""
    values = {"run_id": held.c.id, "seq": event_seq.next_value(), "finished_at": now(), **given}
    return (
        insert(steps)
        .from_select(list(values), select(*values.values()).select_from(held))
        .on_conflict_do_update(
            index_elements=["run_id", "key"],
            set_={name: insert(steps).excluded[name] for name in values if name not in ("run_id", "key")},
            where=steps.c.status == word(StepStatus.REDO),
        )
        .returning(steps.c.run_id, steps.c.key)
    )


def _record_many() -> Statement:
    """As `record`, for the steps of a batch. A run may have several: its row is locked once."""
    named = (
        "key",
        "kind",
        "name",
        "effect",
        "attempt",
        "epoch",
        "by",
        "args_digest",
        "args",
        "status",
        "result",
        "error",
    )
    columns = {name: steps.c[name].type for name in named}
    texts = {"args": Text, "result": Text, "error": Text}
    mine = recordset("mine", {"run_id": UUID, **columns, **texts, "took": Double})
    held = said_of(locked_among(mine, RUNNING), mine)
    given = {name: cast(held.c[name], JSON) if name in texts else held.c[name] for name in named}
    recorded = _recorded(held, {**given, "started_at": _since(held.c.took)}).cte("recorded")
    return compiled_many("record_many", _all_or_each(recorded), ("run_id", *named, "took"))


def _all_or_each(done: CTE, held: CTE | None = None) -> CompoundSelect[Any, Any, Any, Any]:
    """One row with their number where all that the statement was told of are done, else a row for each that is, and
    before that one by number for each that is `held`.

    Nearly always it is all, and to bring and read a row for each takes a tenth of a step's time.
    """
    counted = select(func.count().label("landed")).select_from(done).cte("counted")
    not_all = select(counted.c.landed).scalar_subquery() < param("told_of", Integer)
    no_number, no_key = null().cast(Integer), null().cast(Text)
    every = select(
        no_number.label("nth"), null().cast(UUID).label("run_id"), no_key.label("key"), counted.c.landed
    ).where(counted.c.landed == param("told_of", Integer))
    each = select(no_number, done.c.run_id, done.c.key, null().cast(BigInteger)).where(not_all)
    if held is None:
        return union_all(every, each)
    return union_all(every, select(held.c.nth, held.c.id, no_key, null().cast(BigInteger)).where(not_all), each)


def _record(*, with_usage: bool) -> Statement:
    """Refuses (no row): not running, another epoch, or the step has already ended. Usage also lands on the run."""
    held = select(runs.c.id).where(_MINE).with_for_update(key_share=True).cte("held")
    began = {"started_at": _since(param("took", Double))}
    recorded = _recorded(held, {**_NAMED, **began, **(_ENDED if with_usage else _SAID)})
    if not with_usage:
        return compiled("record", select(recorded.cte("recorded")), _record_many())
    done = recorded.cte("recorded")
    spent = (
        update(runs)
        .where(runs.c.id == done.c.run_id)
        .values(lease_expires_at=now() + seconds(LEASE), **_spent())
        .returning(runs.c.id, runs.c.namespace, runs.c.owner)
        .cte("spent")
    )
    return compiled("record_with_usage", select(spent.c.id).add_cte(_booked(spent)))


def _record_in_transaction() -> Statement:
    """As `record`, last in the transaction that did the step: the time of both is that of its beginning, as told."""
    held = select(runs.c.id).where(_MINE).with_for_update(key_share=True).cte("held")
    times = {"started_at": now(), "finished_at": now() + seconds(func.coalesce(param("took", Double), number(0)))}
    recorded = _recorded(held, {**_NAMED, **_SAID, **times})
    return compiled("record_in_transaction", select(recorded.cte("recorded"), now().label("began")))


def _booked(spent: CTE) -> CTE:
    """What the run's owner spent today, for the budgets."""
    tokens = func.coalesce(_ENDED["input_tokens"], number(0)) + func.coalesce(_ENDED["output_tokens"], number(0))
    cost = func.coalesce(_ENDED["cost"], number(0))
    entry = select(
        spent.c.namespace,
        spent.c.owner,
        TODAY.label("day"),
        spent.c.id,
        tokens.label("tokens"),
        cost.label("cost"),
        number(1),
    )
    booked = insert(spend).from_select(
        ["namespace", "owner", "day", "run_id", "tokens", "cost", "model_calls"],
        entry.where(spent.c.owner.is_not(None)),
    )
    sums = {name: spend.c[name] + booked.excluded[name] for name in ("tokens", "cost", "model_calls")}
    return booked.on_conflict_do_update(index_elements=["namespace", "owner", "day", "run_id"], set_=sums).cte("booked")


def _spent() -> dict[str, Any]:
    return {
        "model_calls": runs.c.model_calls + number(1),
        "input_tokens": runs.c.input_tokens + func.coalesce(_ENDED["input_tokens"], number(0)),
        "output_tokens": runs.c.output_tokens + func.coalesce(_ENDED["output_tokens"], number(0)),
        "cost": runs.c.cost + func.coalesce(_ENDED["cost"], number(0)),
    }


def _fence() -> Statement:
    """Before a write: record it as started, and see to it that its lease lasts (ADR-112).

    No row: the lease is lost, or a cancel was asked for. A row without `key`: the step may not start (it is in flight
    since another attempt, or has ended), and nothing was changed.
    """
    held = select(runs.c.id, _SHORT).where(_MINE, _NOT_CANCELLED).with_for_update(key_share=True).cte("held")
    keyed = {"idempotency_key": param("idempotency_key", Text), "reconcilable": param("reconcilable", Boolean)}
    started = _started(held, {**_NAMED, **keyed})
    told = select(held.c.id, started.c.key).select_from(held.outerjoin(started, true()))
    return compiled("fence", told.add_cte(_renewed(held, started)), _fence_many())


def _fence_many() -> Statement:
    """As `fence`, for the writes of a batch. Where not all of them started: a row by number for every run that is held,
    then the started ones. To join the two, the planner would compare each with each."""
    named = ("key", "kind", "name", "effect", "attempt", "epoch", "by", "args_digest", "args", "idempotency_key")
    columns = {name: steps.c[name].type for name in named}
    mine = recordset("mine", {"run_id": UUID, **columns, "args": Text, "reconcilable": Boolean})
    locked = locked_among(mine, RUNNING, _NOT_CANCELLED, also=_SHORT)
    held = said_of(locked, mine)
    given = {name: cast(held.c[name], JSON) if name == "args" else held.c[name] for name in (*named, "reconcilable")}
    started = _started(held, given)
    told = _all_or_each(started, held)
    return compiled_many("fence_many", told.add_cte(_renewed(locked, started)), ("run_id", *named, "reconcilable"))


def _started(held: CTE, given: Mapping[str, ColumnElement[Any]]) -> CTE:
    """The one place where a write is recorded as started: new, or where it is known that it may start again."""
    values = {
        "run_id": held.c.id,
        **given,
        "status": word(StepStatus.STARTED),
        "started_seq": event_seq.next_value(),
        "started_at": now(),
    }
    again = {name: insert(steps).excluded[name] for name in values if name not in ("run_id", "key", "idempotency_key")}
    return (
        insert(steps)
        .from_select(list(values), select(*values.values()).select_from(held))
        .on_conflict_do_update(index_elements=["run_id", "key"], set_=again | {"error": null()}, where=_MAY_START)
        .returning(steps.c.run_id, steps.c.key, steps.c.effect)
        .cte("started")
    )


_SHORT = (runs.c.lease_expires_at < now() + seconds(LEASE / number(2))).label("short")
"""Whether less than half of a lease is left: the heartbeat is late. As it should be, there are two thirds and more."""


def _renewed(held: CTE, started: CTE) -> CTE:
    """A write never starts in a lease that is about to end.

    What is in flight is not noted on the run: see `pending_effect` in `inflight`.
    """
    short = select(held.c.id).where(held.c.short, held.c.id.in_(select(started.c.run_id)))
    return update(runs).where(runs.c.id.in_(short)).values(lease_expires_at=now() + seconds(LEASE)).cte("renewed")


# A non-idempotent write that is in flight never starts again: only once it is known that nothing happened. What was
# declared idempotent when it started and no longer is counts as one that is not.
_MAY_START = or_(
    steps.c.status.in_([word(StepStatus.NOT_APPLIED), word(StepStatus.REDO)]),
    and_(
        steps.c.status == word(StepStatus.STARTED),
        steps.c.effect == word(Effect.IDEMPOTENT_WRITE),
        insert(steps).excluded.effect == word(Effect.IDEMPOTENT_WRITE),
    ),
)


def _finish() -> Statement:
    """After a write: record how it ended.

    Refuses (no row): not running, another epoch, or the step is not in flight. A cancel does not refuse: what happened
    outside is recorded.
    """
    held = select(runs.c.id, KEY.label("key")).where(_MINE).with_for_update(key_share=True).cte("held")
    done = _finished(held, {**_SAID, "epoch": EPOCH, "by": BY})
    return compiled("finish", select(done), _finish_many())


def _finish_many() -> Statement:
    """As `finish`, for the writes of a batch."""
    named = ("epoch", "by", "status", "result", "error")
    columns = {name: steps.c[name].type for name in named}
    mine = recordset("mine", {"run_id": UUID, "key": Text, **columns, "result": Text, "error": Text})
    held = said_of(locked_among(mine, RUNNING), mine)
    given = {name: cast(held.c[name], JSON) if name in ("result", "error") else held.c[name] for name in named}
    done = _finished(held, given)
    return compiled_many("finish_many", _all_or_each(done), ("run_id", "key", *named))


def _finished(held: CTE, given: Mapping[str, ColumnElement[Any]]) -> CTE:
    """The one place where a write says how it ended."""
    return (
        update(steps)
        .where(steps.c.run_id == held.c.id, steps.c.key == held.c.key, _IN_FLIGHT)
        .values(**given, seq=event_seq.next_value(), finished_at=now())
        .returning(steps.c.run_id, steps.c.key)
        .cte("done")
    )


def _not_applied() -> Statement:
    """An interrupted write of which it is known that nothing happened: it may start afresh. Refuses as `finish`."""
    held = select(runs.c.id).where(_MINE).with_for_update(key_share=True).cte("held")
    freed = (
        update(steps)
        .where(steps.c.run_id == held.c.id, steps.c.key == KEY, steps.c.status == word(StepStatus.STARTED))
        .values(status=word(StepStatus.NOT_APPLIED))
        .returning(steps.c.run_id)
    )
    return compiled("not_applied", select(freed.cte("freed")))


def _replay() -> Statement:
    columns = (
        steps.c.key, steps.c.kind, steps.c.name, steps.c.status, steps.c.effect, steps.c.attempt, steps.c.result,
        steps.c.error, steps.c.idempotency_key, steps.c.reconcilable, steps.c.args_digest, steps.c.epoch,
    )  # fmt: skip
    return listed("replay", columns, steps.c.run_id)


def _step_landed() -> Statement:
    """After a connection broke in mid-write: did this attempt's statement commit?"""
    landed = select(steps.c.run_id, steps.c.run_id.label("id"), steps.c.key).where(
        steps.c.run_id == RUN_ID,
        steps.c.key == KEY,
        steps.c.epoch == EPOCH,
        steps.c.by == BY,
        steps.c.status == param("landed_status", Text),
    )
    return compiled("step_landed", landed)


RECORD = later(_record, with_usage=False)
RECORD_IN_TRANSACTION = later(_record_in_transaction)
RECORD_WITH_USAGE = later(_record, with_usage=True)
FENCE = later(_fence)
FINISH = later(_finish)
NOT_APPLIED = later(_not_applied)
REPLAY = later(_replay)
STEP_LANDED = later(_step_landed)
