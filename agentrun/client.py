"""The producer's face: `Client`. Needs neither the bodies nor a Celery application."""

from __future__ import annotations

import atexit
import copy
import json
import os
import threading
import weakref
from collections.abc import Callable, Mapping, Sequence
from datetime import timedelta
from decimal import Decimal
from typing import Any, Literal, ParamSpec, TypeVar
from uuid import UUID

from agentrun.broker import CeleryPublisher, Hints
from agentrun.broker.waiting import wait_for_end
from agentrun.core.actors import Actor
from agentrun.core.errors import InvalidRequest, NotAllowed, RunFailed
from agentrun.core.records import Event, Purged, Redispatched, Run, Step, TakenStep
from agentrun.core.wake import Wake
from agentrun.core.words import Outcome, Segment, Status
from agentrun.runtime.answers import Answers
from agentrun.runtime.asked import Asked
from agentrun.runtime.commands import Commands, Wishes
from agentrun.runtime.engine import Engine
from agentrun.runtime.external import External
from agentrun.runtime.interactive import Interactive, awaited, refuse_draining
from agentrun.runtime.kinds import Registry, registry
from agentrun.runtime.operators import Operators
from agentrun.runtime.purging import BATCH, purge
from agentrun.runtime.segment import run_segment
from agentrun.runtime.settling import Report
from agentrun.settings import Settings
from agentrun.store.borrowed import enqueue_in
from agentrun.store.database import Database
from agentrun.store.relay import Relay

P = ParamSpec("P")
T = TypeVar("T")
RunId = UUID | str
Dispatch = Literal["leave", "fail"]

LAST_SECONDS = 2.0
"""How long a process that ends without closing its client takes to hand its runs back."""


class Client:
    """Synchronous verbs on one namespace. Thread-safe, and safe to keep across a fork.

    `database_url`, `broker_url` and `namespace` override the settings. With `dispatch_failure="leave"` (the default)
    a run whose wake cannot be sent stays queued and starts when the broker is back; with `"fail"` it is settled as
    failed and EnqueueFailed is raised (ADR-102). Raises ConfigurationError where a URL is missing.
    """

    def __init__(
        self,
        *,
        database_url: str | None = None,
        broker_url: str | None = None,
        namespace: str | None = None,
        dispatch_failure: Dispatch = "leave",
        settings: Settings | None = None,
        kinds: Registry = registry,
    ) -> None:
        given = {"database_url": database_url, "broker_url": broker_url, "namespace": namespace}
        overrides = {name: value for name, value in given.items() if value is not None}
        self.settings = settings.model_copy(update=overrides) if settings is not None else Settings(**overrides)
        self.settings.require_broker()
        self._strict = dispatch_failure == "fail"
        self._database = Database(
            self.settings.require_database(),
            name="agentrun client",
            max_connections=self.settings.max_connections,
            direct_url=self.settings.direct_database_url,
        )
        self._publisher = CeleryPublisher(self.settings)
        self.hints = Hints(self.settings)
        self.commands = Commands(self.settings, self._database, self._publisher, kinds)
        self.operators = Operators(self.commands)
        self.answers, self.asked = Answers(self.commands), Asked(self.commands)
        self.external = External(self.commands)
        self.relay = Relay(self._database, self._publisher)
        self._kinds = kinds
        self._engines: dict[int, Engine] = {}
        self._lock = threading.Lock()
        self._drained = threading.Event()

    def acting(self, actor: Actor) -> Client:
        """The same client for one actor: every verb checks its scopes, and records its id.

        Without READ an actor sees the runs it owns and no others: they are not there (NotFound), for every verb.
        Without ENQUEUE it starts none (Forbidden). What it enqueues is its own unless `owner` says otherwise.
        """
        view = copy.copy(self)
        view.commands = Commands(self.settings, self._database, self._publisher, self._kinds, actor=actor)
        view.operators = Operators(view.commands)
        view.answers, view.asked = Answers(view.commands), Asked(view.commands)
        view.external = External(view.commands)
        return view

    # ---- enqueue

    def enqueue(
        self,
        kind: str,
        request: Any = None,
        *,
        idempotency_key: str | None = None,
        queue: str | None = None,
        priority: int = 0,
        delay: float | timedelta | None = None,
        deadline: float | timedelta | None = None,
        tags: Sequence[str] = (),
        attributes: Mapping[str, Any] | None = None,
        owner: str | None = None,
        limits: Mapping[str, Any] | None = None,
        planned_cost: Decimal | None = None,
        connection: Any = None,
    ) -> UUID:
        """Store a run and wake a worker; returns its id.

        `delay` and `deadline` are seconds (or timedeltas) from now; `priority` is 0 (most urgent) to 9. The same
        `idempotency_key` (within namespace and kind) returns the run that has it. `connection` is the caller's own
        SQLAlchemy connection or session, or psycopg connection, inside its transaction: the run exists if and only if
        that commits, and is woken then.

        Raises InvalidRequest (and its kinds: UnknownKind, TooLarge, IdempotencyConflict) before anything is stored,
        EnqueueFailed with strict dispatch.
        """
        wishes = Wishes(queue, priority, delay, deadline, tags, attributes or {}, owner, limits, planned_cost)
        params = self.commands.prepare(kind, request, wishes, idempotency_key)
        if connection is None:
            return self.commands.enqueue(params, strict=self._strict)
        wake = self.commands.wake_of(params)
        taken = enqueue_in(connection, params, self.relay.announcing(wake))
        return params["run_id"] if taken is None else self.commands.same_as_before(params, taken)

    def enqueue_many(
        self,
        kind: str,
        requests: Sequence[Any],
        *,
        idempotency_keys: Sequence[str] | None = None,
        queue: str | None = None,
        priority: int = 0,
        delay: float | timedelta | None = None,
        deadline: float | timedelta | None = None,
        tags: Sequence[str] = (),
        attributes: Mapping[str, Any] | None = None,
        owner: str | None = None,
    ) -> list[UUID]:
        """Store many runs of one kind in one statement and wake them; ids in the order of `requests`."""
        wishes = Wishes(queue, priority, delay, deadline, tags, attributes or {}, owner)
        return self.commands.enqueue_many(kind, list(requests), wishes, idempotency_keys)

    def run(
        self,
        kind: str | Callable[..., Any],
        request: Any = None,
        *,
        idempotency_key: str | None = None,
        deadline: float | timedelta | None = None,
        tags: Sequence[str] = (),
        attributes: Mapping[str, Any] | None = None,
        owner: str | None = None,
        limits: Mapping[str, Any] | None = None,
        planned_cost: Decimal | None = None,
    ) -> Any:
        """Execute a run here and now, in an interactive segment with a lease of its own, and return its typed result.

        `kind` is registered in this process, or is the body itself. If this process dies, a worker goes on with a
        registered kind's run; the run of a plain function is dead-lettered, because nobody else could load it.

        Raises UnknownKind, InvalidRequest, and RunFailed where the run ends, or goes on elsewhere, without a result.
        """
        wishes = Wishes(None, 0, None, deadline, tags, attributes or {}, owner, limits, planned_cost)
        return Interactive(self._engine(), self.commands).run(kind, request, wishes, idempotency_key)

    # ---- reads

    def status(self, run_id: RunId) -> Run:
        """The run as its row says. Raises NotFound, NamespaceMismatch."""
        return self.commands.status(as_uuid(run_id))

    def list(
        self,
        *,
        status: Status | str | Sequence[Status | str] | None = None,
        kind: str | None = None,
        reason: str | None = None,
        tag: str | None = None,
        owner: str | None = None,
        attributes: Mapping[str, Any] | None = None,
        parent: RunId | None = None,
        limit: int = 50,
        before: RunId | None = None,
    ) -> list[Run]:
        """Runs, newest first; page with `before=runs[-1].id`. `attributes` must be contained in the run's."""
        filters = _filters(status, kind, reason, tag, owner, attributes, parent)
        return self.commands.list(filters, limit=limit, before=as_uuid(before) if before is not None else None)

    def events(self, run_id: RunId, *, after: int = -1, limit: int = 1000) -> list[Event]:
        """The run's story in order; page with `after=events[-1].seq`. Raises NotFound, NamespaceMismatch."""
        return self.commands.events(as_uuid(run_id), after=after, limit=limit)

    def steps(self, run_id: RunId) -> Sequence[Step]:
        """The run's journal. Raises NotFound, NamespaceMismatch."""
        return self.commands.steps(as_uuid(run_id))

    def wait(self, run_id: RunId, *, timeout: float | timedelta | None = None) -> Run:
        """Wait until the run is final and return it; TimeoutError after `timeout` (the run goes on).

        A hint through Redis ends the wait; the row is asked to be sure, and every few seconds in case no hint came.
        """
        return wait_for_end(self.hints, self.commands.status, as_uuid(run_id), seconds_of(timeout))

    def result(self, run_id: RunId, *, timeout: float | timedelta | None = None) -> Any:
        """Wait, then the run's result as a JSON value. Raises RunFailed where it ended without one."""
        return result_of(self.wait(run_id, timeout=timeout))

    # ---- operators

    def inbox(
        self, *, role: str | None = None, kind: str | None = None, limit: int = 100
    ) -> Sequence[Mapping[str, Any]]:
        """What waits for people, oldest first: approvals, inputs and signals, with what they ask."""
        return self.asked.inbox(role=role, kind=kind, limit=limit)

    def waits(self, run_id: RunId) -> Sequence[Mapping[str, Any]]:
        """The open waits of a run, oldest first, with what they ask and its digest."""
        return self.asked.open_waits(as_uuid(run_id))

    def approve(
        self,
        run_id: RunId,
        *,
        by: Actor | str,
        key: str | None = None,
        digest: str | None = None,
        comment: str | None = None,
        edits: Any = None,
        here: bool = False,
    ) -> Run:
        """Approve what a run asks; `key` names one of several. With `here`, the run goes on in this process.

        `digest` binds the decision to what was read: a changed question is refused. An actor needs APPROVE, with `here`
        READ too (it hears what the run comes to), and the role that is asked. Raises NotAllowed, AlreadyDecided,
        Forbidden, InvalidAnswer, NotFound.
        """
        run = self.answers.decide(
            as_uuid(run_id), approved=True, by=by, key=key, digest=digest, comment=comment, edits=edits, here=here
        )
        return self._go_on(run.id) if here else run

    def reject(
        self,
        run_id: RunId,
        *,
        by: Actor | str,
        key: str | None = None,
        digest: str | None = None,
        comment: str | None = None,
        here: bool = False,
    ) -> Run:
        """Deny what a run asks: a result for its body or model, not the run's end. Raises as `approve`."""
        run = self.answers.decide(
            as_uuid(run_id), approved=False, by=by, key=key, digest=digest, comment=comment, here=here
        )
        return self._go_on(run.id) if here else run

    def submit_input(
        self,
        run_id: RunId,
        data: Any,
        *,
        by: Actor | str,
        key: str | None = None,
        digest: str | None = None,
        here: bool = False,
    ) -> Run:
        """Give the data that a run waits for, validated in full first. Raises InvalidAnswer, and as `approve`."""
        run = self.answers.submit(as_uuid(run_id), data, by=by, key=key, digest=digest, here=here)
        return self._go_on(run.id) if here else run

    def signal(
        self,
        run_id: RunId,
        name: str,
        payload: Any = None,
        *,
        by: Actor | str = "client",
        expires: float | timedelta | None = None,
    ) -> Run:
        """Send a signal. Where nobody waits for it yet it is kept, in order (see `signals`).

        It is kept for `expires` (seconds or a timedelta), by default as long as AGENTRUN_SIGNAL_EXPIRES_SECONDS says.
        """
        return self.answers.signal(as_uuid(run_id), name, payload, by=by, expires=expires)

    def signals(self, run_id: RunId | None = None, *, limit: int = 100) -> Sequence[Mapping[str, Any]]:
        """Signals that nobody has waited for yet, oldest first: of one run, or of all. Expired ones are not there."""
        return self.asked.signals(as_uuid(run_id) if run_id is not None else None, limit=limit)

    def webhook(self, token: str, payload: Any = None) -> Run:
        """Resolve the one wait that the token belongs to. Raises NotFound, AlreadyDecided."""
        return self.answers.webhook(token, payload)

    def resume(self, run_id: RunId) -> Run:
        """Go on with a queued run in this process, in a `resume` segment with lease, fence, heartbeat and retry.

        Returns the run as it is afterwards: final, or waiting again. Raises NotAllowed where it is not queued (it still
        waits, is executed elsewhere, or has ended).
        """
        refuse_draining(self._engine())
        self.operators.may_resume(as_uuid(run_id))
        report = self._segment_here(as_uuid(run_id))
        run = self.commands.shown(as_uuid(run_id))
        if not isinstance(report.outcome, Outcome):
            raise NotAllowed(f"run `{run.id}` cannot go on here: it is {run.status} ({report.outcome})")
        return run

    def cancel(self, run_id: RunId, *, by: Actor | str = "client") -> Run:
        """End a queued or waiting run at once; ask a running one to end at its next step. Idempotent."""
        return self.operators.cancel(as_uuid(run_id), by=by)

    def redrive(self, run_id: RunId, *, by: Actor | str = "client") -> Run:
        """Put a failed run back to the queue with its journal and a fresh budget. Raises NotAllowed."""
        return self.operators.redrive(as_uuid(run_id), by=by)

    def redrivable(self, *, kind: str | None = None, reason: str | None = None, limit: int = 1000) -> list[UUID]:
        """The failed runs that `redrive` would take, oldest first: what a redrive of many would touch."""
        return self.operators.redrivable(kind=kind, reason=reason, limit=limit)

    def resolve(
        self, run_id: RunId, *, applied: bool, result: Any = None, key: str | None = None, by: Actor | str = "client"
    ) -> Run:
        """Say how an interrupted write ended; the run then goes on from its journal.

        `applied=True` records `result` as the write's result, `applied=False` lets it start afresh. `key` names the
        step where several writes are in flight. Of a run that waits for an external step, it says so in place of
        whoever took that. Raises NotAllowed where none is in flight, or somebody was first.
        """
        return self.operators.resolve(as_uuid(run_id), applied=applied, result=result, key=key, by=by)

    def redispatch(self, run_id: RunId, *, by: Actor | str = "client") -> Redispatched:
        """Send every pending remote step of a run again, now: how many were, and why each other one was left.

        Safe on a healthy run: a living worker keeps its step, a result that lands meanwhile stands, and a
        non-idempotent write that somebody took is never repeated. Raises NotFound, and NotAllowed for a final run.
        """
        return self.external.redispatch(as_uuid(run_id), by=by)

    # ---- steps done elsewhere

    def external_steps(
        self, *, name: str | None = None, run_id: RunId | None = None, taken: bool = False, limit: int = 100
    ) -> Sequence[Mapping[str, Any]]:
        """External steps on offer, oldest first, with their input; with `taken` those in progress too."""
        wanted = as_uuid(run_id) if run_id is not None else None
        return self.external.listed(name=name, run_id=wanted, taken=taken, limit=limit)

    def take_step(self, run_id: RunId, key: str | None = None, *, by: Actor | str) -> TakenStep:
        """Take an external step that is on offer: its input, and a token to answer with. Exclusive.

        `key` may be left out where the run offers one only. An actor needs OPERATE. Raises NotFound, InvalidRequest,
        and NotAllowed where the step is taken, has ended, is not due yet, or its run is over.
        """
        return self.external.take(as_uuid(run_id), key, by=by)

    def complete_step(self, token: str, result: Any = None) -> None:
        """Say what a taken step came to; its run goes on. The first result counts.

        Raises NotFound for no token of ours, StaleToken where that take is over, AlreadyDecided where the step has
        ended, InvalidRequest and TooLarge for what cannot be stored.
        """
        self.external.complete(token, result)

    def fail_step(
        self,
        token: str,
        message: str,
        *,
        error_type: str = "ExternalStepFailed",
        retryable: bool = False,
        retry_after: float | None = None,
        not_applied: bool = False,
    ) -> str:
        """Say that a taken step failed; returns `retried`, `failed` or `interrupted`.

        `retryable` uses up one of its tries. Of a non-idempotent write say `not_applied=True` where nothing happened
        outside: without, nobody knows how it ended, and the run stops as at any interrupted write. Raises as
        `complete_step`.
        """
        return self.external.fail(
            token, message, error_type=error_type, retryable=retryable, retry_after=retry_after, not_applied=not_applied
        )

    def heartbeat_step(self, token: str, progress: Any = None) -> bool:
        """Say that somebody works on a taken step, and how far. False: its run is over, so stop. Raises as above."""
        return self.external.heartbeat(token, progress)

    def purge(
        self,
        *,
        older_than: float | timedelta,
        status: Status | str | Sequence[Status | str] | None = None,
        kind: str | None = None,
        dead: bool = False,
        dry_run: bool = False,
        batch: int = BATCH,
        told: Callable[[Purged], object] = lambda _: None,
    ) -> Purged:
        """Remove runs that ended longer ago than `older_than` (seconds or a timedelta), and all that is stored of them.

        `status` (final ones) and `kind` choose among them. Kept are dead letters and interrupted writes unless `dead`,
        runs whose children are open, and the children of runs that are open or have failed. Idempotency keys of runs
        that went are free again. In transactions of at most `batch` runs, with pauses; `told` hears after each what
        went so far. With `dry_run` they are only counted. Raises InvalidRequest, and Forbidden for an actor.
        """
        return purge(
            self._database, self.settings, actor=self.commands.actor, older_than=older_than, status=status, kind=kind,
            dead=dead, dry_run=dry_run, batch=batch, told=told,
        )  # fmt: skip

    def set_budget(
        self,
        owner: str,
        *,
        period: Literal["day", "month"],
        max_tokens: int | None = None,
        max_cost: Decimal | None = None,
    ) -> None:
        """An owner's ceiling per day or month (UTC), in tokens and US dollars; None lifts it."""
        self.operators.set_budget(owner, period=period, max_tokens=max_tokens, max_cost=max_cost)

    def budgets(self, owner: str | None = None) -> Sequence[Mapping[str, Any]]:
        """Budgets, with the tokens and cost spent of them."""
        return self.operators.budgets(owner)

    def drain(self, *, within: float | None = None) -> bool:
        """Hand back what executes in this process (`run`, and whatever goes on `here`): for a web process's shutdown.

        Each run goes to a worker at its next step, or after `within` seconds (AGENTRUN_DRAIN_SECONDS) wherever it is;
        nothing is counted against it, and its caller gets RunFailed, or the run as it is. From now on `run` and
        `resume` are refused with NotAllowed, and a decision `here` wakes a worker instead. Returns at once where
        nothing executes; False where a non-idempotent write is still in flight: `close` would leave it to its lease.
        """
        with self._lock:
            self._drained.set()
            engine = self._engines.get(os.getpid())
        if engine is None:
            return True
        budget = self.settings.drain_seconds if within is None else within
        engine.drain(within=budget)
        return engine.idle(budget)

    def close(self) -> None:
        """Hand back what still executes here (see `drain`), then close connections and threads. Twice does no harm."""
        self.drain()
        self.relay.close()
        engine = self._engines.pop(os.getpid(), None)
        if engine is not None:
            engine.close()
        self._publisher.close()
        self.hints.close()
        self._database.close()

    def _go_on(self, run_id: UUID) -> Run:
        """Go on with a run whose decision is recorded. Where somebody else was faster, it is returned as it is."""
        if self._drained.is_set():
            run = self.commands.unchecked(run_id)
            self._publisher.wake(Wake(run.id, run.queue, run.kind, run.priority, cause="drain"))
        else:
            self._segment_here(run_id)
        return self.commands.shown(run_id)

    def _segment_here(self, run_id: UUID) -> Report:
        engine = self._engine()
        return awaited(engine, run_id, engine.submit(run_segment(engine, run_id, Segment.RESUME)))

    def _engine(self) -> Engine:
        with self._lock:
            engine = self._engines.get(os.getpid())
            if engine is None:
                engine = Engine(self.settings, self._database, self._publisher, kinds=self._kinds)
                engine.draining = self._drained.is_set()
                self._engines[os.getpid()] = engine
                atexit.register(_hand_back, weakref.ref(engine), os.getpid())
            return engine

    def __enter__(self) -> Client:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def _hand_back(there: weakref.ref[Engine], process_id: int) -> None:
    """A process that ends without closing its client: what still executes goes to workers, and not to the reaper."""
    engine = there()
    if engine is not None and os.getpid() == process_id and not engine.closed:
        engine.drain(within=LAST_SECONDS)
        engine.idle(LAST_SECONDS)
        engine.publisher.close()


def as_uuid(value: RunId) -> UUID:
    """A run id. Raises InvalidRequest where it is none."""
    try:
        return value if isinstance(value, UUID) else UUID(value)
    except (ValueError, AttributeError, TypeError):
        raise InvalidRequest(f"a run id is a uuid, not {str(value)[:40]!r}") from None


def result_of(run: Run) -> Any:
    """The result of a completed run. Raises RunFailed for any other."""
    if run.status is not Status.COMPLETED:
        detail = run.error.get("message") if run.error else None
        raise RunFailed(str(run.id), run.status, run.reason, detail)
    return run.result


def seconds_of(timeout: float | timedelta | None) -> float | None:
    """Seconds or a timedelta as seconds."""
    return timeout.total_seconds() if isinstance(timeout, timedelta) else timeout


def _filters(
    status: Status | str | Sequence[Status | str] | None,
    kind: str | None,
    reason: str | None,
    tag: str | None,
    owner: str | None,
    attributes: Mapping[str, Any] | None,
    parent: RunId | None,
) -> dict[str, Any]:

    wanted = [status] if isinstance(status, str) else status
    try:
        statuses = [str(Status(each)) for each in wanted] if wanted is not None else None
    except ValueError as error:
        raise InvalidRequest(f"{error}; a status is one of {', '.join(Status)}") from None
    return {
        "status": statuses,
        "kind": kind,
        "reason": reason,
        "tag": tag,
        "owner": owner,
        "attributes": json.dumps(dict(attributes)) if attributes else None,
        "parent_id": as_uuid(parent) if parent is not None else None,
    }
