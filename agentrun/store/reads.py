"""Reads for people, producers and the engine. None of them decides anything: the guarded writes do."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from decimal import Decimal
from functools import lru_cache
from typing import Any

from sqlalchemy import (
    BigInteger,
    ColumnElement,
    Integer,
    Text,
    and_,
    case,
    func,
    literal_column,
    null,
    or_,
    select,
    true,
    tuple_,
    union_all,
)
from sqlalchemy.dialects.postgresql import JSON, JSONB, UUID

from agentrun.core.codec import decode
from agentrun.core.records import Event, Run, Step, Usage
from agentrun.core.words import FINAL, EventType, Reason, Status, StepStatus
from agentrun.store.claims import CLAIMED_COLUMNS
from agentrun.store.episodes import ALIVE
from agentrun.store.inflight import pending_effect, write_in_flight, write_left_behind
from agentrun.store.mover import BY, EPOCH, NAMESPACE, RUN_ID, RUNNING
from agentrun.store.sql import Statement, compiled, later, now, number, param, word
from agentrun.store.tables import moves, processes, runs, steps

_DERIVED = ("request_digest", "lease_seconds", "max_requeues", "limits", "planned_cost", "code_version")
_NO_TAGS: ColumnElement[Any] = literal_column("'{}'::text[]")
_NO_ATTRIBUTES: ColumnElement[Any] = literal_column("'{}'::jsonb")
RUN_COLUMNS = (*(column for column in runs.c if column.name not in _DERIVED), pending_effect(runs.c.id))
"""What `as_run` takes."""


def _by_id() -> Statement:
    """In any namespace: who asks decides between 'unknown' and 'not yours'."""
    return compiled("run_by_id", select(*RUN_COLUMNS).where(runs.c.id == RUN_ID))


_EQUAL = {"kind": runs.c.kind, "reason": runs.c.reason, "owner": runs.c.owner}
_OTHER = ("tag", "attributes", "parent_id", "before")


def listing(filters: Mapping[str, Any]) -> Statement:
    """The statement for what is given of kind, reason, owner, tag, attributes, parent_id, and `status`, a list.

    One for each choice of filters: a condition on what is not given would keep the indexes out of a prepared plan.
    `before` is the last run of the page before.
    """
    given = {name for name in (*_EQUAL, *_OTHER) if filters.get(name) is not None}
    statuses: Sequence[str] = filters.get("status") or (_ended_with(filters["reason"]) if "reason" in given else ())
    return _listed(frozenset(given), tuple(sorted(set(statuses))))


def _ended_with(reason: str) -> Sequence[str]:
    """What runs of that reason are: few, in an index of their own, unless they have completed."""
    return [Status.COMPLETED] if reason == Reason.COMPLETED else sorted(FINAL - {Status.COMPLETED})


@lru_cache(maxsize=1000)
def _listed(given: frozenset[str], statuses: tuple[str, ...]) -> Statement:
    """Newest first.

    Planned for the values at hand: a rare tag or attribute is found by its index, one that half of all runs have by
    walking back through time.
    """
    filters = [runs.c.namespace == NAMESPACE]
    if statuses:
        filters += [runs.c.status.in_([word(status) for status in statuses])]
    filters += [column == param(name, Text) for name, column in _EQUAL.items() if name in given]
    if "tag" in given:
        tag = func.array_append(_NO_TAGS, param("tag", Text))
        filters += [runs.c.tags.contains(tag), runs.c.tags != _NO_TAGS]  # the second for its index, as below
    if "attributes" in given:
        filters += [runs.c.attributes.contains(param("attributes", JSONB)), runs.c.attributes != _NO_ATTRIBUTES]
    if "parent_id" in given:
        filters += [runs.c.parent_id == param("parent_id", UUID)]
    if "before" in given:
        last = runs.alias("last")
        since = select(last.c.created_at).where(last.c.id == param("before", UUID)).scalar_subquery()
        filters += [tuple_(runs.c.created_at, runs.c.id) < tuple_(since, param("before", UUID))]
    listed = select(*RUN_COLUMNS).where(*filters).order_by(runs.c.created_at.desc(), runs.c.id.desc())
    return replace(compiled("runs_listed", listed.limit(param("limit", Integer))), by_values=True)


def _events() -> Statement:
    """The stream is read from what is stored anyway: the run's birth, its moves, and its steps' two ends."""
    steps_only = (_none(Text), _none(Text), _none(Text), _none(Text), _none(Integer), _none(JSON), _none(Integer))
    names = ("key", "kind", "name", "effect", "attempt", "error", "result_bytes")
    born = select(
        number(0).label("seq"),
        word(EventType.ENQUEUED).label("type"),
        runs.c.created_at.label("at"),
        number(0).label("epoch"),
        _none(Text).label("by"),
        _none(JSON).label("data"),
        *(column.label(name) for column, name in zip(steps_only, names, strict=True)),
    ).where(runs.c.id == RUN_ID)
    moved = select(moves.c.seq, moves.c.type, moves.c.at, moves.c.epoch, moves.c.by, moves.c.data, *steps_only).where(
        moves.c.run_id == RUN_ID
    )
    one = (
        steps.c.epoch,
        steps.c.by,
        _none(JSON),
        steps.c.key,
        steps.c.kind,
        steps.c.name,
        steps.c.effect,
        steps.c.attempt,
    )
    said = func.json_build_object(literal_column("'redispatched'"), true())
    again = case((steps.c.redispatch_count > number(0), said))
    begun = (*one[:2], again, *one[3:])
    started = select(
        steps.c.started_seq, word(EventType.STEP_STARTED), steps.c.started_at, *begun, _none(JSON), _none(Integer)
    ).where(steps.c.run_id == RUN_ID, steps.c.started_seq.is_not(None))
    failed = (steps.c.status == word(StepStatus.FAILED), word(EventType.STEP_FAILED))
    told_as = case(failed, else_=word(EventType.STEP_COMPLETED))
    size = func.octet_length(steps.c.result.cast(Text))
    ended = select(steps.c.seq, told_as, steps.c.finished_at, *one, steps.c.error, size).where(
        steps.c.run_id == RUN_ID, steps.c.finished_at.is_not(None)
    )
    told = union_all(born, moved, started, ended).subquery("told")
    page = select(told).where(told.c.seq > param("after", BigInteger)).order_by(told.c.seq)
    return compiled("events", page.limit(param("limit", Integer)))


def _failed() -> Statement:
    """Failed runs that may be redriven, oldest first."""
    filters = (
        runs.c.namespace == NAMESPACE,
        runs.c.status == word(Status.FAILED),
        runs.c.request.is_not(None),
        or_(param("kind", Text).is_(None), runs.c.kind == param("kind", Text)),
        or_(param("reason", Text).is_(None), runs.c.reason == param("reason", Text)),
        ~write_left_behind(runs.c.id),
    )
    return compiled(
        "runs_failed", select(runs.c.id).where(*filters).order_by(runs.c.finished_at).limit(param("limit", Integer))
    )


def _child_result() -> Statement:
    ended = (runs.c.status, runs.c.reason, runs.c.result, runs.c.error)
    to_end = runs.c.cancel_requested_at.is_not(None).label("cancel_requested")
    return compiled("child_result", select(*ended, to_end).where(runs.c.id == RUN_ID))


def _none(kind: Any) -> Any:
    return null().cast(kind)


def _journal() -> Statement:
    listing = select(steps).where(steps.c.run_id == RUN_ID)
    return compiled("journal", listing.order_by(func.coalesce(steps.c.seq, steps.c.started_seq), steps.c.offered_at))


def _move_landed() -> Statement:
    """After a connection broke: a fenced move happens at most once in an epoch, so its event says whether it did.

    With everything that a move's own row may be asked for: when a parked run is due, and the parent that was told.
    """
    parent = runs.alias("parent")
    told = tuple(parent.c[name].label(f"parent_{name}") for name in ("kind", "queue", "priority"))
    due_in = func.extract("epoch", runs.c.due_at - now()).label("due_in")
    of_run = runs.join(moves, moves.c.run_id == runs.c.id).outerjoin(parent, parent.c.id == runs.c.parent_id)
    landed = (
        select(*CLAIMED_COLUMNS, due_in, *told)
        .select_from(of_run)
        .where(
            runs.c.id == RUN_ID, moves.c.type == param("landed_type", Text), moves.c.by == BY, moves.c.epoch == EPOCH
        )
    )
    return compiled("move_landed", landed.limit(number(1)))


def _claim_landed() -> Statement:
    """As above for a claim, which draws its epoch itself: its event carries the claim's own token."""
    landed = (
        select(*CLAIMED_COLUMNS)
        .select_from(runs.join(moves, and_(moves.c.run_id == runs.c.id, moves.c.epoch == runs.c.epoch)))
        .where(
            runs.c.id == RUN_ID,
            RUNNING,
            moves.c.type == word(EventType.CLAIMED),
            moves.c.data.op("->>")(literal_column("'claim'")) == param("claim", Text),
        )
    )
    return compiled("claim_landed", landed)


def _unclaimed() -> Statement:
    """Why a claim found nothing: the run's status, namespace, and how many seconds it is early."""
    early = func.extract("epoch", runs.c.due_at - func.now())
    return compiled(
        "unclaimed",
        select(runs.c.status, runs.c.namespace, runs.c.kind, runs.c.queue, runs.c.priority, early.label("early")).where(
            runs.c.id == RUN_ID
        ),
    )


def _held() -> Statement:
    """Whether a segment still holds its run, and whether its end was asked for. No row: another owner's."""
    held = (runs.c.id == RUN_ID, runs.c.epoch == EPOCH, RUNNING)
    return compiled(
        "held",
        select(runs.c.cancel_requested_at.is_not(None).label("cancel_requested"), runs.c.resolutions).where(*held),
    )


def _facts() -> Statement:
    """What the retry decision stands on, for a segment that failed."""
    passed = func.coalesce(runs.c.deadline_at < func.now(), literal_column("false")).label("deadline_passed")
    facts = select(
        runs.c.requeue_count,
        runs.c.max_requeues,
        runs.c.request.is_not(None).label("has_request"),
        write_in_flight(runs.c.id).label("write_in_flight"),
        passed,
        runs.c.cancel_requested_at.is_not(None).label("cancel_requested"),
    )
    return compiled("facts", facts.where(runs.c.id == RUN_ID, runs.c.epoch == EPOCH))


def _kinds_told() -> Statement:
    """The kinds that processes told of within the last hour, and whether a live worker that takes runs from the queue
    was among them."""
    takes = param("queue", Text) == func.any(processes.c.queues)
    kinds = func.unnest(processes.c.kinds).label("kind")
    serves = func.bool_or(and_(ALIVE, ~processes.c.draining, takes)).label("serves")
    return compiled("kinds_told", select(kinds, serves).where(processes.c.namespace == NAMESPACE).group_by("kind"))


RUN_BY_ID = later(_by_id)
RUNS_LISTED = later(listing, {})
RUNS_FAILED = later(_failed)
EVENTS = later(_events)
JOURNAL = later(_journal)
MOVE_LANDED = later(_move_landed)
CLAIM_LANDED = later(_claim_landed)
UNCLAIMED = later(_unclaimed)
HELD = later(_held)
FACTS = later(_facts)
CHILD_RESULT = later(_child_result)
KINDS_TOLD = later(_kinds_told)


def as_run(row: Mapping[str, Any]) -> Run:
    """A row of `runs` as a record."""
    same = {name: row[name] for name in Run.__slots__ if name in row and name not in ("usage", "request", "result")}
    same |= {"status": Status(row["status"]), "reason": Reason(row["reason"]) if row["reason"] else None}
    return Run(
        **{**same, "error": decode(row["error"]), "request": decode(row["request"]), "result": decode(row["result"])},
        usage=Usage(row["model_calls"], row["input_tokens"], row["output_tokens"], row["cost"]),
    )


def as_event(row: Mapping[str, Any]) -> Event:
    """A row of the event stream as a record."""
    data: dict[str, Any] = decode(row["data"]) or {}
    for name in ("by", "key", "kind", "name", "effect", "attempt", "result_bytes"):
        if row[name] is not None:
            data[name] = row[name]
    if row["error"] is not None:
        data["error"] = decode(row["error"])
    return Event(row["seq"], EventType(row["type"]), row["at"], row["epoch"], data)


def as_step(row: Mapping[str, Any]) -> Step:
    """A row of the journal as a record."""
    names = [name for name in Step.__slots__ if name not in ("usage", "result", "error", "progress")]
    usage = Usage(
        int(row["model"] is not None), row["input_tokens"] or 0, row["output_tokens"] or 0, row["cost"] or Decimal(0)
    )
    payloads = {name: decode(row[name]) for name in ("result", "error", "progress")}
    return Step(**{name: row[name] for name in names}, **payloads, usage=usage)
