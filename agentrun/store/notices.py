"""The outbox of hooks: what has to be told to people, written first and told after the commit, until it worked.

A notice is written once for each hook, subject and round, whichever process comes first; who told it is not kept.
"""

from __future__ import annotations

from typing import Any

from sqlalchemy import (
    BigInteger,
    ColumnElement,
    Double,
    Integer,
    TableValuedAlias,
    Text,
    and_,
    case,
    cast,
    exists,
    func,
    literal_column,
    null,
    or_,
    select,
    true,
    update,
)
from sqlalchemy.dialects.postgresql import ARRAY, insert

from agentrun.core.alarms import NoticeEnding, Occasion
from agentrun.core.words import Reason, Status, WaitKind, WaitStatus
from agentrun.store.inflight import pending_effect
from agentrun.store.mover import NAMESPACE
from agentrun.store.sql import Statement, compiled, later, now, number, param, seconds, text_in, word
from agentrun.store.steering import unfit_answer
from agentrun.store.tables import episodes, notices, runs, sweeps, waits

LIMIT = param("limit", Integer)
HOOKS = param("hooks", ARRAY(Text))
NOTICE_ID = param("id", BigInteger)
DEAD_REASONS = (Reason.NOT_RETRYABLE, Reason.RETRIES_EXHAUSTED)
_PEOPLE = waits.c.kind.in_([word(WaitKind.APPROVAL), word(WaitKind.INPUT), word(WaitKind.SIGNAL)])
_OPEN = waits.c.status == word(WaitStatus.OPEN)


def _named_hooks(name: str) -> TableValuedAlias:
    return func.unnest(HOOKS).table_valued("hook", name=name).render_derived(name=name)


_HOOKS = _named_hooks("hooks")
LATEST_COMMIT_SECONDS = 600.0
"""A wait and a run's end are dated by their transaction's start; nothing commits so much later than it began."""


def _announce(
    occasion: Occasion, values: dict[str, Any], source: Any, *filters: Any, name: str = "announce"
) -> Statement:
    """A notice for every subject and hook that the filters find; one that is written already stays as it is."""
    known = {"namespace": NAMESPACE, "occasion": word(occasion), "hook": _HOOKS.c.hook, "created_at": now()}
    row = {**known, "due_at": now(), **values}
    found = select(*(value.label(name) for name, value in row.items())).select_from(source).where(*filters)
    stored = insert(notices).from_select(list(row), found.limit(LIMIT)).on_conflict_do_nothing()
    return compiled(f"{name}_{occasion}", stored.returning(notices.c.id))


def _mark(occasion: Any, hooks: TableValuedAlias = _HOOKS) -> Any:
    """The name under which `sweeps` keeps until when a hook has heard of everything."""
    return literal_column("'told of '").op("||")(occasion).op("||")(literal_column("': '")).op("||")(hooks.c.hook)


def _new(at: ColumnElement[Any], occasion: Occasion, otherwise: Any) -> tuple[ColumnElement[bool], ...]:
    """What this hook has not heard of; and first what not all of them have, which an index finds in any plan."""
    every = _named_hooks("every")
    earliest = select(func.min(_heard_until(occasion, otherwise, every))).select_from(every).scalar_subquery()
    return at > earliest, at > _heard_until(occasion, otherwise)


def _heard_until(occasion: Occasion, otherwise: Any, hooks: TableValuedAlias = _HOOKS) -> Any:
    """Everything before it was told to this hook; `otherwise` for a hook that is new."""
    mark = (sweeps.c.namespace == NAMESPACE, sweeps.c.name == _mark(word(occasion), hooks))
    heard = select(sweeps.c.swept_at).where(*mark).scalar_subquery()
    return func.coalesce(heard, otherwise) - seconds(literal_column(str(LATEST_COMMIT_SECONDS)))


def _waiting() -> Statement:
    """Of every open wait for people, for the first time."""
    subject = cast(waits.c.id, Text)
    values = {
        "run_id": waits.c.run_id,
        "subject": subject,
        "wait_id": waits.c.id,
        "round": number(1),
        "data": _asked(),
    }
    source = waits.join(runs, runs.c.id == waits.c.run_id).join(_HOOKS, true())
    ever = cast(literal_column("'-infinity'"), waits.c.created_at.type)
    new = _new(waits.c.created_at, Occasion.WAITING, ever)
    filters = (waits.c.namespace == NAMESPACE, _OPEN, _PEOPLE, *new, _untold(Occasion.WAITING, subject))
    return _announce(Occasion.WAITING, values, source, *filters)


def _reminder() -> Statement:
    """Again, where this hook's next reminder is due.

    Rounds are counted for each hook: one that was away misses reminders, and takes none from another.
    """
    subject = cast(waits.c.id, Text)
    told = notices.alias("told")
    last = (
        select(told.c.round, told.c.created_at)
        .where(told.c.subject == subject, told.c.hook == _HOOKS.c.hook, told.c.occasion == word(Occasion.WAITING))
        .order_by(told.c.round.desc())
        .limit(number(1))
        .lateral("last")
    )
    values = {
        "run_id": waits.c.run_id,
        "subject": subject,
        "wait_id": waits.c.id,
        "round": last.c.round + number(1),
        "data": _asked(),
    }
    source = waits.join(runs, runs.c.id == waits.c.run_id).join(_HOOKS, true()).join(last, true())
    due = or_(last.c.created_at < waits.c.remind_at, last.c.created_at <= now() - seconds(waits.c.remind_seconds))
    filters = (waits.c.namespace == NAMESPACE, _OPEN, _PEOPLE, waits.c.remind_at <= now(), due)
    return _announce(Occasion.WAITING, values, source, *filters, name="remind")


def _asked() -> Any:
    """What people are told of a wait: no payload, only what is asked and of whom."""
    return _object(
        run_id=waits.c.run_id, wait_id=waits.c.id, kind=waits.c.kind, key=waits.c.step_key, question=waits.c.name,
        role=waits.c.role, run_kind=runs.c.kind, owner=runs.c.owner, digest=waits.c.asks_digest,
        since=waits.c.created_at, due_at=waits.c.due_at,
    )  # fmt: skip


def _stalled() -> Statement:
    """Of every open episode, once."""
    subject = cast(episodes.c.id, Text)
    values = {
        "run_id": episodes.c.run_id,
        "subject": subject,
        "episode_id": episodes.c.id,
        "round": number(1),
        "data": episodes.c.facts,
    }
    still = (episodes.c.namespace == NAMESPACE, episodes.c.closed_at.is_(None))
    return _announce(
        Occasion.STALLED, values, episodes.join(_HOOKS, true()), *still, _untold(Occasion.STALLED, subject)
    )


def _dead() -> Statement:
    """Of every run that was dead-lettered since this hook was last brought up to date, whoever settled it.

    The subject names the end: a run that is redriven and dies again is told again. A hook that nobody has brought up
    to date before hears of the last minutes only.
    """
    subject = cast(runs.c.id, Text).op("||")(literal_column("' '")).op("||")(
        cast(func.extract("epoch", runs.c.finished_at), Text)
    )  # fmt: skip
    values = {"run_id": runs.c.id, "subject": subject, "round": number(1), "data": _died()}
    filters = (
        runs.c.namespace == NAMESPACE,
        runs.c.status == word(Status.FAILED),
        runs.c.reason.in_([word(reason) for reason in DEAD_REASONS]),
        *_new(runs.c.finished_at, Occasion.DEAD, now()),
        _untold(Occasion.DEAD, subject),
    )
    return _announce(Occasion.DEAD, values, runs.join(_HOOKS, true()), *filters)


def _died() -> Any:
    """What people are told of a dead letter. Messages of errors may quote what a run works on: they stay here."""
    error = {name: text_in(runs.c.error, name) for name in ("class", "type", "step")}
    return _object(
        run_id=runs.c.id, kind=runs.c.kind, run_kind=runs.c.kind, reason=runs.c.reason, failure_class=error["class"],
        error_type=error["type"], step=error["step"], write_in_flight=pending_effect(runs.c.id).is_not(None),
        owner=runs.c.owner, queue=runs.c.queue, since=runs.c.finished_at, requeues=runs.c.requeue_count,
        crashes=runs.c.crash_count, unfit=unfit_answer(),
    )  # fmt: skip


def _object(**pairs: Any) -> Any:
    arguments = [each for name, value in pairs.items() for each in (word(name), value)]
    return func.json_build_object(*arguments)


def _untold(occasion: Occasion, subject: Any) -> Any:
    told = notices.alias("told")
    same = (told.c.subject == subject, told.c.hook == _HOOKS.c.hook, told.c.occasion == word(occasion))
    return ~exists().where(*same)


def _up_to_date() -> Statement:
    """These hooks have notices of everything of this occasion up to now."""
    row = {"namespace": NAMESPACE, "name": _mark(param("occasion", Text)), "swept_at": now()}
    found = select(*(value.label(name) for name, value in row.items())).select_from(_HOOKS)
    mark = insert(sweeps).from_select(list(row), found)
    return compiled(
        "up_to_date",
        mark.on_conflict_do_update(
            index_elements=["namespace", "name"], set_={"swept_at": mark.excluded.swept_at}
        ).returning(sweeps.c.name),
    )


def _outdated() -> Any:
    """Nobody needs to hear it any more: it was answered, or the run moved on, or a later round is there."""
    newer = notices.alias("newer")
    same = (newer.c.subject == notices.c.subject, newer.c.hook == notices.c.hook)
    return or_(
        and_(notices.c.wait_id.is_not(None), ~exists().where(waits.c.id == notices.c.wait_id, _OPEN)),
        and_(
            notices.c.episode_id.is_not(None),
            ~exists().where(episodes.c.id == notices.c.episode_id, episodes.c.closed_at.is_(None)),
        ),
        exists().where(*same, newer.c.occasion == notices.c.occasion, newer.c.round > notices.c.round),
    )


def _drop() -> Statement:
    """End what nobody needs to hear any more."""
    dropped = (
        update(notices)
        .where(notices.c.namespace == NAMESPACE, notices.c.ended_at.is_(None), _outdated())
        .values(ended_at=now(), ending=word(NoticeEnding.OUTDATED))
    )
    return compiled("drop_notices", dropped.returning(notices.c.id))


def _take() -> Statement:
    """The notice of this occasion and these hooks that is due for longest. A taken one comes back if its taker dies."""
    free = (
        select(notices.c.id)
        .where(
            notices.c.namespace == NAMESPACE,
            notices.c.ended_at.is_(None),
            notices.c.due_at <= now(),
            notices.c.occasion == param("occasion", Text),
            notices.c.hook == func.any(HOOKS),
            ~_outdated(),
        )
        .order_by(notices.c.due_at)
        .limit(number(1))
        .with_for_update(skip_locked=True)
        .cte("free")
    )
    taken = (
        update(notices)
        .where(notices.c.id == free.c.id)
        .values(attempts=notices.c.attempts + number(1), due_at=now() + seconds(param("again_in", Double)))
    )
    columns = (notices.c.id, notices.c.hook, notices.c.subject, notices.c.data, notices.c.attempts, notices.c.round)
    return compiled("take_notice", taken.returning(*columns))


def _delivered() -> Statement:
    done = (
        update(notices)
        .where(notices.c.id == NOTICE_ID, notices.c.ended_at.is_(None))
        .values(ended_at=now(), ending=word(NoticeEnding.DELIVERED), last_error=null())
    )
    return compiled("notice_delivered", done.returning(notices.c.id))


def _failed() -> Statement:
    """Again later; after the last attempt (`again_in` is NULL) it is given up, and keeps its error."""
    again_in = param("again_in", Double)
    again = (
        update(notices)
        .where(notices.c.id == NOTICE_ID, notices.c.ended_at.is_(None))
        .values(
            last_error=param("last_error", Text),
            due_at=now() + seconds(func.coalesce(again_in, number(0))),
            ended_at=case((again_in.is_(None), now())),
            ending=case((again_in.is_(None), word(NoticeEnding.GIVEN_UP))),
        )
    )
    return compiled("notice_failed", again.returning(notices.c.id))


ANNOUNCE = {
    Occasion.WAITING: (later(_waiting), later(_reminder)),
    Occasion.STALLED: (later(_stalled),),
    Occasion.DEAD: (later(_dead),),
}
UP_TO_DATE = later(_up_to_date)
DROP = later(_drop)
TAKE = later(_take)
DELIVERED = later(_delivered)
FAILED = later(_failed)
