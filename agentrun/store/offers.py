"""What is asked about remote and external steps: which are in trouble, which have no message, which are on offer.

These reads only choose candidates; the statements of `offering`, `taking` and `ending` check everything again.
"""

from __future__ import annotations

from typing import Any

from sqlalchemy import ColumnElement, Double, Integer, Text, and_, func, literal_column, or_, select, true
from sqlalchemy.dialects.postgresql import UUID

from agentrun.core.words import StepKind
from agentrun.store.elsewhere import ELSEWHERE, LOST, MAY_REPEAT, OFFER_COLUMNS, OFFERED, SILENT, STARTED, UNCLAIMED
from agentrun.store.episodes import ALIVE
from agentrun.store.mover import NAMESPACE, RUN_ID
from agentrun.store.sql import Statement, compiled, later, now, number, param, seconds, word
from agentrun.store.tables import processes, runs, steps
from agentrun.store.waits import KEY

QUEUE = param("queue", Text)
LIMIT = param("limit", Integer)
_IN_NAMESPACE = and_(runs.c.namespace == NAMESPACE, runs.c.finished_at.is_(None))
_FACTS = (
    *OFFER_COLUMNS, steps.c.kind, steps.c.status, steps.c.effect, steps.c.step_epoch, steps.c.policy, steps.c.by,
    MAY_REPEAT.label("may_repeat"), runs.c.priority,
)  # fmt: skip


def _age(since: ColumnElement[Any]) -> ColumnElement[Any]:
    return func.extract("epoch", now() - since)


def _of_open_runs(*columns: Any) -> Any:
    return select(*columns).join(runs, runs.c.id == steps.c.run_id).where(_IN_NAMESPACE)


def _troubled(name: str, trouble: ColumnElement[bool], word_for: str) -> Statement:
    listing = _of_open_runs(*_FACTS, word(word_for).label("trouble")).where(ELSEWHERE, trouble)
    # A row that somebody has locked is left for the next sweep.
    return compiled(name, listing.limit(LIMIT).with_for_update(skip_locked=True, key_share=True, of=steps))


def _offered_queues() -> Statement:
    """The queues that hold offered steps, one index probe each however many steps they hold."""
    waiting = and_(OFFERED, steps.c.queue.is_not(None))
    first = select(func.min(steps.c.queue).label("queue")).where(waiting).cte("names", recursive=True)
    after = select(func.min(steps.c.queue)).where(waiting, steps.c.queue > first.c.queue).scalar_subquery()
    names = first.union_all(select(after).where(first.c.queue.is_not(None)))
    return compiled("offered_queues", select(names.c.queue).where(names.c.queue.is_not(None)))


_DUE = and_(OFFERED, steps.c.queue == QUEUE, steps.c.due_at <= now())


def _offered_count() -> Statement:
    """How many offered steps of a queue are due, counted no further than `limit`."""
    some = _of_open_runs(number(1).label("one")).where(_DUE).limit(LIMIT).subquery("some")
    return compiled("offered_count", select(func.count().label("due")).select_from(some))


def _offered_due(name: str, *those: ColumnElement[bool]) -> Statement:
    """Offered steps of a queue, oldest first, passing over those whose message may still be on its way."""
    settled = steps.c.due_at <= now() - seconds(param("grace", Double))
    due = _of_open_runs(*OFFER_COLUMNS, runs.c.priority).where(_DUE, settled, *those)
    return compiled(name, due.order_by(steps.c.due_at).limit(LIMIT))


def _known() -> ColumnElement[bool]:
    """Whether a live process consumes the queue and has registered a step of that name."""
    told = processes.c.about.op("->")(literal_column("'remote_steps'"))
    names = func.json_array_elements_text(told).table_valued("name", name="told").render_derived(name="told")
    listening = select(names.c.name).select_from(processes.join(names, true()))
    listens = param("queue", Text) == func.any(processes.c.queues)
    listening = listening.where(processes.c.namespace == NAMESPACE, ALIVE, listens)
    # As an array, what processes tell is read once, however many steps it is compared with.
    return steps.c.name == func.any(func.array(listening.scalar_subquery()))


def _pending() -> Statement:
    """The steps of one run that are done elsewhere and have not ended."""
    open_steps = and_(steps.c.run_id == RUN_ID, ELSEWHERE, or_(OFFERED, STARTED))
    waiting = (OFFERED & (steps.c.due_at <= now())).label("due")
    lapsed = (STARTED & (steps.c.lease_expires_at < now())).is_(True).label("lapsed")
    listing = select(*_FACTS, waiting, lapsed).join(runs, runs.c.id == steps.c.run_id)
    return compiled("pending_steps", listing.where(open_steps).order_by(steps.c.offered_at, steps.c.key))


def _external(taken: bool) -> Statement:
    """External steps on offer, or `taken` as well, oldest first, with what they ask for."""
    columns = (
        steps.c.run_id, steps.c.key, steps.c.name, steps.c.status, steps.c.attempt, steps.c.effect, steps.c.args,
        steps.c.idempotency_key, steps.c.offered_at, steps.c.started_at, steps.c.heartbeat_at, steps.c.progress,
        steps.c.by, steps.c.redispatch_count, runs.c.kind.label("run_kind"), runs.c.owner,
        func.extract("epoch", func.greatest(steps.c.due_at - now(), now() - now())).label("due_in"),
        _age(func.coalesce(steps.c.heartbeat_at, steps.c.started_at, steps.c.offered_at)).label("silent_for"),
    )  # fmt: skip
    filters = (
        steps.c.kind == word(StepKind.EXTERNAL),
        or_(OFFERED, STARTED) if taken else OFFERED,
        or_(param("name", Text).is_(None), steps.c.name == param("name", Text)),
        or_(param("run_id", UUID).is_(None), steps.c.run_id == RUN_ID),
    )
    listing = _of_open_runs(*columns).where(*filters)
    return compiled("external_steps", listing.order_by(steps.c.offered_at).limit(LIMIT))


def _state() -> Statement:
    """One step and what its run is about to come to, in any namespace: why it could not be taken, and whose it is.

    `early` is how many seconds its message is early, `silent_for` how long ago its taker was heard of.
    """
    over = or_(runs.c.finished_at.is_not(None), runs.c.cancel_requested_at.is_not(None)).label("over")
    columns = (
        steps.c.status, steps.c.name, steps.c.queue, steps.c.kind, steps.c.effect, steps.c.attempt, steps.c.policy,
        steps.c.step_epoch, steps.c.by, steps.c.token_digest, steps.c.lease_expires_at, runs.c.namespace,
        runs.c.priority, over, func.extract("epoch", steps.c.due_at - now()).label("early"),
        _age(func.coalesce(steps.c.heartbeat_at, steps.c.started_at)).label("silent_for"),
    )  # fmt: skip
    state = select(*columns).join(runs, runs.c.id == steps.c.run_id)
    return compiled("step_state", state.where(steps.c.run_id == RUN_ID, steps.c.key == KEY))


TROUBLED = (
    _troubled("lost_steps", LOST, "lost"),
    _troubled("silent_steps", SILENT, "silent"),
    _troubled("unclaimed_steps", UNCLAIMED, "unclaimed"),
)
OFFERED_QUEUES = later(_offered_queues)
OFFERED_COUNT = later(_offered_count)
OFFERED_DUE = later(_offered_due, "offered_due")
OFFERED_DUE_AND_KNOWN = later(lambda: _offered_due("offered_due_and_known", _known()))
"""Without those that nobody takes, who stay the oldest for as long as that is so."""

PENDING = later(_pending)
EXTERNAL = {taken: later(_external, taken) for taken in (False, True)}
STATE = later(_state)
