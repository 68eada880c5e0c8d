"""Steps that somebody else executes: offered under the run's epoch, taken under an epoch of their own, ended once.

Every statement locks the run's row first and the step's after it, so a step has one order of events and no two
statements deadlock. A wait of kind `remote` parks the run; it is resolved in the statement that ends its step.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from sqlalchemy import (
    BigInteger,
    ColumnElement,
    Double,
    Integer,
    Text,
    and_,
    case,
    cast,
    func,
    literal_column,
    null,
    or_,
    select,
    true,
    update,
)
from sqlalchemy.dialects.postgresql import ARRAY, JSON, JSONB, UUID, insert
from sqlalchemy.sql.selectable import CTE

from agentrun.core.words import Effect, EventType, StepKind, StepStatus, WaitStatus
from agentrun.store.mover import (
    BY,
    IN_NAMESPACE,
    NAMESPACE,
    RUN_ID,
    RUNNING,
    STILL_OPEN,
    counted,
    locked_among,
    said_of,
    told,
    told_resolved,
)
from agentrun.store.sql import (
    Statement,
    any_of,
    beside_key,
    compiled,
    compiled_many,
    later,
    now,
    number,
    param,
    recordset,
    seconds,
    word,
)
from agentrun.store.tables import event_seq, runs, steps, waits
from agentrun.store.waits import KEY, SEEN_COLUMNS, registered
from agentrun.store.waits import held as held_by_segment

STEP_EPOCH = param("step_epoch", BigInteger)
TOKEN = param("token_digest", Text)
LEASE = param("lease", Double)
REMOTE: ColumnElement[str] = literal_column("'remote'")
ELSEWHERE = steps.c.kind.in_([word(StepKind.REMOTE), word(StepKind.EXTERNAL)])
OFFERED = steps.c.status == word(StepStatus.OFFERED)
STARTED = steps.c.status == word(StepStatus.STARTED)
REDO = steps.c.status == word(StepStatus.REDO)
_ON_OFFER = beside_key(steps.c.status) == word(StepStatus.OFFERED)
MAY_REPEAT = or_(steps.c.effect != word(Effect.NON_IDEMPOTENT_WRITE), steps.c.reconcilable)
OFFER_COLUMNS = (steps.c.run_id, steps.c.key, steps.c.name, steps.c.queue, steps.c.attempt, steps.c.redispatch_count)


def policy(name: str) -> ColumnElement[Any]:
    """A number of the step's policy, or NULL."""
    return func.nullif(steps.c.policy.op("->>")(literal_column(f"'{name}'")), literal_column("''")).cast(Double)


# What the body said of its effect, and what the process that takes it declares.
_POLICY_EFFECT = steps.c.policy.op("->>")(literal_column("'effect'"))
_DECLARED_HERE = param("effects", JSONB).op("->>")(steps.c.name)

# Who may say something about a started step: its taker by the step's epoch, a program elsewhere by its token.
_TAKEN_BY_ME = and_(STARTED, or_(steps.c.step_epoch == STEP_EPOCH, steps.c.token_digest == TOKEN))


def _open_run() -> CTE:
    """The step's run, locked, in this namespace and not final."""
    return _run(runs.c.finished_at.is_(None))


def _run(*guards: ColumnElement[bool]) -> CTE:
    over = or_(runs.c.finished_at.is_not(None), runs.c.cancel_requested_at.is_not(None)).label("over")
    columns = (runs.c.id, runs.c.epoch, runs.c.status, runs.c.owner, runs.c.kind, runs.c.priority, over)
    mine = select(*columns).where(runs.c.id == RUN_ID, IN_NAMESPACE, *guards)
    return mine.with_for_update(key_share=True).cte("held")


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


def _locked_many(mine: CTE, *guards: ColumnElement[bool]) -> CTE:
    """The runs of a batch's steps, locked in the order of their ids, with what is said of each step."""
    columns = (runs.c.id, runs.c.status, runs.c.owner, runs.c.kind, runs.c.priority)
    named = select(*columns).where(runs.c.id == any_of(mine.c.run_id), IN_NAMESPACE, *guards)
    locked = named.order_by(runs.c.id).with_for_update(key_share=True).cte("locked")
    said = [mine.c[name] for name in mine.c.keys() if name != "run_id"]  # noqa: SIM118 - a column collection
    return select(locked, *said).join(mine, mine.c.run_id == locked.c.id).order_by(mine.c.nth).cte("held")


def _take(source: CTE, key: ColumnElement[str], *guards: Any, **values: Any) -> CTE:
    """The one place where a step is taken: exclusive, because it has to be on offer."""
    nth = (source.c.nth,) if "nth" in source.c else ()
    return (
        update(steps)
        .where(steps.c.run_id == source.c.id, steps.c.key == key, _ON_OFFER, steps.c.due_at <= now(), *guards)
        .values(
            status=word(StepStatus.STARTED),
            step_epoch=func.coalesce(steps.c.step_epoch, number(0)) + number(1),
            by=BY,
            started_seq=event_seq.next_value(),
            started_at=now(),
            heartbeat_at=null(),
            due_at=now() + seconds(policy("timeout")),
            **values,
        )
        .returning(
            *OFFER_COLUMNS, steps.c.effect, steps.c.args, steps.c.step_epoch, steps.c.policy, steps.c.idempotency_key,
            source.c.owner, source.c.kind.label("run_kind"), source.c.priority, *nth,
        )
        .cte("taken")
    )  # fmt: skip


_GOES_ON = (runs.c.finished_at.is_(None), runs.c.cancel_requested_at.is_(None))


def _take_remote() -> Statement:
    """Refuses (no row): not on offer, not due, the run is final or about to be cancelled, or unknown here."""
    taken = _take_known(_run(*_GOES_ON), KEY, TOKEN)
    return compiled("take_step", select(taken), _take_many())


def _take_many() -> Statement:
    """As `take_step`, for the messages of a batch. Of two for one step, one takes it."""
    columns = {"run_id": UUID, "key": Text, "token_digest": Text}
    source = _locked_many(recordset("mine", columns), *_GOES_ON)
    return compiled_many("take_steps", select(_take_known(source, source.c.key, source.c.token_digest)), columns)


def _take_known(source: CTE, key: ColumnElement[str], token: ColumnElement[str]) -> CTE:
    return _take(
        source,
        key,
        steps.c.kind == word(StepKind.REMOTE),
        steps.c.name == func.any(param("names", ARRAY(Text))),
        lease_expires_at=now() + seconds(LEASE),
        token_digest=token,
        reconcilable=steps.c.name == func.any(param("reconcilable", ARRAY(Text))),
        effect=func.coalesce(_POLICY_EFFECT, _DECLARED_HERE, steps.c.effect),
    )


def _take_external() -> Statement:
    """A program elsewhere takes a step and gets a token for it. Refuses as `take_step`, and a step with a queue."""
    # Without a window nobody's silence is too long. A time in 30 years is one that every driver can read.
    window = now() + seconds(func.coalesce(policy("window"), number(10**9)))
    of_kind = steps.c.kind == word(StepKind.EXTERNAL)
    taken = _take(_run(*_GOES_ON), KEY, of_kind, lease_expires_at=window, token_digest=TOKEN)
    return compiled("take_external", select(taken))


def _end(
    name: str, source: CTE, guard: ColumnElement[bool], status: StepStatus, many: Statement | None = None
) -> Statement:
    """End a step, resolve the run's wait, and put a parked run back to the queue: one statement.

    Returns the run with the status that it had. For a final run only the step changes.
    """
    said = {"result": param("result", JSON), "error": param("error", JSON)}
    done = _ended(source, guard, status, KEY, **said).returning(steps.c.run_id, steps.c.key).cte("done")
    return _resolving(name, source, done, null(), many)


def _ended(
    source: CTE, guard: ColumnElement[bool], status: StepStatus, key: ColumnElement[str], **said: ColumnElement[Any]
) -> Any:
    """The one place where a step ends that was done elsewhere."""
    return (
        update(steps)
        .where(steps.c.run_id == source.c.id, steps.c.key == key, ELSEWHERE, guard)
        .values(
            status=word(status),
            seq=event_seq.next_value(),
            finished_at=now(),
            lease_expires_at=null(),
            due_at=null(),
            token_digest=null(),
            **said,
        )
    )


def _resolving(
    name: str, source: CTE, done: CTE, resolution: ColumnElement[Any], many: Statement | None = None, **values: Any
) -> Statement:
    resolved = (
        update(waits)
        .where(waits.c.run_id == done.c.run_id, waits.c.step_key == done.c.key, STILL_OPEN)
        .values(status=word(WaitStatus.RESOLVED), resolution=resolution, resolved_by=BY, resolved_at=now())
        .returning(waits.c.run_id, waits.c.step_key)
        .cte("answered")
    )
    parent = counted(resolved, **values)
    woken = [parent.c[column] for column in ("queue", "kind", "priority")]
    both = select(source.c.id, source.c.status, *woken).select_from(
        done.join(source, source.c.id == done.c.run_id).outerjoin(parent, true())
    )
    return compiled(name, both.add_cte(told_resolved(parent, BY, REMOTE)), many)


def _complete() -> Statement:
    """The first result counts, also one of a taker whose lease had lapsed. Refuses: ended, or never taken by it."""
    mine = or_(_not_ended_since(STEP_EPOCH), and_(STARTED, steps.c.token_digest == TOKEN))
    return _end("complete_step", _run(), mine, StepStatus.COMPLETED, _complete_many())


def _not_ended_since(step_epoch: ColumnElement[int]) -> ColumnElement[bool]:
    """Also of a step that was shelved with its run, or has failed and is to be done again."""
    return and_(or_(STARTED, OFFERED, REDO), steps.c.step_epoch >= step_epoch)


def _complete_many() -> Statement:
    """As `complete_step`, for the results of a batch: each resolves its wait, and a run is counted and woken once."""
    columns = {"run_id": UUID, "key": Text, "step_epoch": BigInteger, "result": Text, "by": Text}
    source = _locked_many(recordset("mine", columns))
    said = {"result": cast(source.c.result, JSON), "error": null()}
    ended = _ended(source, _not_ended_since(source.c.step_epoch), StepStatus.COMPLETED, source.c.key, **said)
    done = ended.returning(steps.c.run_id, steps.c.key, source.c.nth, source.c.by).cte("done")
    resolved = (
        update(waits)
        .where(waits.c.run_id == done.c.run_id, waits.c.step_key == done.c.key, STILL_OPEN)
        .values(status=word(WaitStatus.RESOLVED), resolution=null(), resolved_by=done.c.by, resolved_at=now())
        .returning(waits.c.run_id, waits.c.step_key, waits.c.resolved_by)
        .cte("answered")
    )
    parent = counted(resolved)
    each = select(parent.c.id, parent.c.epoch, resolved.c.step_key, resolved.c.resolved_by)
    heard = each.join(resolved, resolved.c.run_id == parent.c.id).cte("heard")
    first = func.row_number().over(partition_by=done.c.run_id, order_by=done.c.nth) == number(1)
    woken = [parent.c[column] for column in ("queue", "kind", "priority")]
    rows = (
        select(source.c.id, done.c.nth, case((first, source.c.status)).label("status"), *woken)
        .select_from(done.join(source, source.c.nth == done.c.nth).outerjoin(parent, parent.c.id == done.c.run_id))
        .add_cte(told_resolved(heard, heard.c.resolved_by, REMOTE))
    )
    return compiled_many("complete_steps", rows, columns)


def _fail() -> Statement:
    """Refuses: ended, or taken by somebody else meanwhile."""
    return _end("fail_step", _run(), _TAKEN_BY_ME, StepStatus.FAILED)


# ---- from trouble, each guarded by the trouble itself

LOST = and_(STARTED, steps.c.lease_expires_at < now())
SILENT = and_(STARTED, steps.c.due_at < now())
UNCLAIMED = and_(OFFERED, steps.c.lease_expires_at < now())
_TROUBLED = and_(
    func.coalesce(steps.c.step_epoch, number(0)) == func.coalesce(STEP_EPOCH, number(0)), or_(LOST, SILENT, UNCLAIMED)
)


def _fail_troubled() -> Statement:
    """Give a step up. Refuses: its taker beat, it was taken, or it ended, all since the decision."""
    guard = and_(_TROUBLED, or_(OFFERED, MAY_REPEAT))
    return _end("fail_troubled_step", _open_run(), guard, StepStatus.FAILED)


def _back_on_offer(source: CTE, guard: ColumnElement[bool], **values: ColumnElement[Any]) -> CTE:
    """The one place where a step is offered again."""
    delay = func.coalesce(param("delay", Double), number(0))
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


def _again(name: str, guard: ColumnElement[bool], event: EventType | None, **values: ColumnElement[Any]) -> Statement:
    again = _back_on_offer(_open_run(), guard, **values)
    return compiled(name, select(again).add_cte(*([told(again, event)] if event is not None else [])))


_NEXT_ATTEMPT = {"attempt": steps.c.attempt + number(1), "error": param("error", JSON)}
_ONE_MORE = {"redispatch_count": steps.c.redispatch_count + number(1)}


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


def _interrupt() -> Statement:
    """Nobody works on a write any more, and nobody knows how it ended: its run hears that.

    It stays started, as any interrupted write, and keeps its taker's token: what the taker says after all still counts.
    Refuses: not such a write, its taker beat, or it ended. `mine` is given where the taker itself says so.
    """
    source = _open_run()
    mine = and_(_TAKEN_BY_ME, param("mine", Text).is_not(None))
    left = (
        update(steps)
        .where(
            steps.c.run_id == source.c.id,
            steps.c.key == KEY,
            ELSEWHERE,
            steps.c.effect == word(Effect.NON_IDEMPOTENT_WRITE),
            or_(and_(_TROUBLED, STARTED), mine),
        )
        .values(lease_expires_at=null(), due_at=null(), error=param("error", JSON))
        .returning(steps.c.run_id, steps.c.key)
        .cte("done")
    )
    interrupted = func.json_build_object(literal_column("'interrupted'"), true())
    return _resolving("interrupt_step", source, left, interrupted, pending_effect=word(Effect.NON_IDEMPOTENT_WRITE))


def _beat() -> Statement:
    """An explicit beat, with progress, of `silent_for` seconds ago: the step's silence starts anew then.

    Refuses: not taken by this one any more, or given up. Brings back whether the step's run is over, or about to be.
    """
    source = _run()
    spoken = now() - seconds(func.coalesce(param("silent_for", Double), number(0)))
    beat = (
        update(steps)
        .where(steps.c.run_id == source.c.id, steps.c.key == KEY, _TAKEN_BY_ME, steps.c.lease_expires_at.is_not(None))
        .values(
            heartbeat_at=spoken,
            progress=func.coalesce(param("progress", JSON), steps.c.progress),
            due_at=spoken + seconds(policy("timeout")),
            # Only an external step has a window; the lease of a remote one is its process's to renew.
            lease_expires_at=func.coalesce(now() + seconds(policy("window")), steps.c.lease_expires_at),
        )
        .returning(steps.c.run_id, source.c.over)
    )
    return compiled("beat_step", select(beat.cte("beat")))


def _renew_steps() -> Statement:
    """One statement for every remote step that a process works on. Rows locked by their own write are passed over."""
    held = func.unnest(param("run_ids", ARRAY(UUID)), param("keys", ARRAY(Text)), param("epochs", ARRAY(BigInteger)))
    mine = held.table_valued("run_id", "key", "epoch", name="mine").render_derived(name="mine")
    still = and_(steps.c.run_id == mine.c.run_id, steps.c.key == mine.c.key)
    held_still = and_(STARTED, steps.c.step_epoch == mine.c.epoch, steps.c.lease_expires_at.is_not(None))
    free = (
        select(steps.c.run_id, steps.c.key)
        .join(mine, and_(still, held_still))
        .order_by(steps.c.run_id, steps.c.key)
        .with_for_update(skip_locked=True, of=steps)
        .cte("free")
    )
    renewed = (
        update(steps)
        .where(steps.c.run_id == free.c.run_id, steps.c.key == free.c.key)
        .values(lease_expires_at=now() + seconds(LEASE))
        .returning(steps.c.run_id, steps.c.key)
        .cte("renewed")
    )
    over = or_(runs.c.finished_at.is_not(None), runs.c.cancel_requested_at.is_not(None))
    seen = (
        select(
            mine.c.run_id,
            mine.c.key,
            held_still.is_(true()).label("held"),
            renewed.c.key.is_not(None).label("renewed"),
            over.is_(true()).label("over"),
        )
        .select_from(mine)
        .outerjoin(steps, still)
        .outerjoin(runs, runs.c.id == mine.c.run_id)
        .outerjoin(renewed, and_(renewed.c.run_id == mine.c.run_id, renewed.c.key == mine.c.key))
    )
    return compiled("renew_steps", seen)


def _take_landed() -> Statement:
    """After a connection broke: did this take commit? Its token says so."""
    columns = (
        *OFFER_COLUMNS, steps.c.effect, steps.c.args, steps.c.step_epoch, steps.c.policy, steps.c.idempotency_key,
        runs.c.owner, runs.c.kind.label("run_kind"), runs.c.priority,
    )  # fmt: skip
    mine = (steps.c.run_id == RUN_ID, steps.c.key == KEY, STARTED, steps.c.token_digest == TOKEN)
    return compiled("take_landed", select(*columns).join(runs, runs.c.id == steps.c.run_id).where(*mine))


def _ended_by() -> Statement:
    """After a connection broke: did this process's own word on the step commit? The run is woken by the sweep then."""
    columns = (runs.c.id, *OFFER_COLUMNS, runs.c.kind, runs.c.priority, null().label("status"))
    ended = (steps.c.run_id == RUN_ID, steps.c.key == KEY, steps.c.by == BY, steps.c.status == param("ended", Text))
    return compiled("step_ended_by", select(*columns).join(runs, runs.c.id == steps.c.run_id).where(*ended))


OFFER = later(_offer)
TAKE = later(_take_remote)
TAKE_EXTERNAL = later(_take_external)
COMPLETE = later(_complete)
FAIL = later(_fail)
RETRY = later(_again, "retry_step", _TAKEN_BY_ME, EventType.STEP_RETRIED, **_NEXT_ATTEMPT)
GIVE_BACK = later(_again, "give_back_step", _TAKEN_BY_ME, None)
ASK_AGAIN = later(
    _again,
    "ask_again_about_step",
    and_(_TAKEN_BY_ME, steps.c.reconcilable),
    EventType.REDISPATCHED,
    **_ONE_MORE,
    error=param("error", JSON),
)
RETRY_TROUBLED = later(
    _again, "retry_troubled_step", and_(_TROUBLED, or_(OFFERED, MAY_REPEAT)), EventType.STEP_RETRIED, **_NEXT_ATTEMPT
)
REDISPATCH = later(_again, "redispatch_step", and_(_TROUBLED, STARTED, MAY_REPEAT), EventType.REDISPATCHED, **_ONE_MORE)
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
FAIL_TROUBLED = later(_fail_troubled)
INTERRUPT = later(_interrupt)
BEAT = later(_beat)
RENEW_STEPS = later(_renew_steps)
TAKE_LANDED = later(_take_landed)
STEP_ENDED_BY = later(_ended_by)
SHELVE_OFFERED = later(_shelve, "shelve_offered", and_(OFFERED, steps.c.queue == param("queue", Text)), steps.c.due_at)
SHELVE_EXTERNAL = later(_shelve, "shelve_external", and_(OFFERED, steps.c.queue.is_(None)), steps.c.due_at)
# A write of which nobody knows how it ended stays where an operator looks for it.
SHELVE_LOST = later(_shelve, "shelve_lost", and_(LOST, steps.c.effect != word(Effect.NON_IDEMPOTENT_WRITE)))
