"""What the outside may ask: enqueue, cancel, redrive, and the reads. Synchronous; every face calls these.

Bad input is refused before anything is stored. Nothing is sent before its commit.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import timedelta
from decimal import Decimal
from typing import Any
from uuid import UUID

import uuid_utils.compat as uuids

from agentrun.core.actors import Actor, Scope, may_enqueue, may_read, require
from agentrun.core.codec import digest, encode, within
from agentrun.core.errors import (
    EnqueueFailed,
    IdempotencyConflict,
    InvalidRequest,
    NamespaceMismatch,
    NotFound,
    UnknownKind,
)
from agentrun.core.records import Event, Run, Step
from agentrun.core.wake import Publisher, Wake
from agentrun.runtime.checks import (
    checked_attributes,
    checked_name,
    checked_names,
    checked_priority,
    checked_queue,
    checked_seconds,
)
from agentrun.runtime.filters import LARGEST_PAGE, checked_after, checked_filters, checked_limit
from agentrun.runtime.kinds import Kind, Registry, unknown
from agentrun.runtime.options import Options
from agentrun.runtime.settling import named_writes
from agentrun.runtime.spending import checked_cost, checked_limits
from agentrun.settings import Settings
from agentrun.store import births, reads, transitions
from agentrun.store.connect import type_of_row
from agentrun.store.database import Database
from agentrun.store.sweeping import IN_FLIGHT

log = logging.getLogger("agentrun.commands")


@dataclass(frozen=True, slots=True)
class Wishes:
    """How a run is to be enqueued. Durations are seconds or timedeltas; `priority` is 0 (most urgent) to 9."""

    queue: str | None = None
    priority: int = 0
    delay: float | timedelta | None = None
    deadline: float | timedelta | None = None
    tags: Sequence[str] = ()
    attributes: Mapping[str, Any] | None = None
    owner: str | None = None
    limits: Mapping[str, Any] | None = None
    planned_cost: Decimal | None = None


class Commands:
    """The verbs on one namespace of one database."""

    def __init__(
        self,
        settings: Settings,
        database: Database,
        publisher: Publisher,
        kinds: Registry,
        *,
        actor: Actor | None = None,
    ) -> None:
        self.settings, self.database, self.publisher, self.kinds = settings, database, publisher, kinds
        self.actor = actor
        self._namespace = {"namespace": settings.namespace}
        self._waited_for = set[str]()

    # ---- enqueue

    def prepare(self, kind: str, request: Any, wishes: Wishes, idempotency_key: str | None) -> dict[str, Any]:
        """The parameters of the row. Raises InvalidRequest, TooLarge or UnknownKind; nothing is stored yet."""
        registered = self.kinds.get(checked_name("kind", kind))
        params = self.shared(kind, registered.options if registered else Options(), wishes)
        text = self._request_text(kind, registered, request)
        if registered is None:
            self._refuse_misspelt(kind, params["queue"])
        key = checked_name("idempotency_key", idempotency_key) if idempotency_key is not None else None
        return params | {"run_id": self.new_id(), "request": text, "digest": digest(text) if key else None, "key": key}

    def shared(self, kind: str, options: Options, wishes: Wishes) -> dict[str, Any]:
        """What all rows of one call have in common. Raises Forbidden where the actor may not enqueue."""
        owner = wishes.owner
        if self.actor is not None:
            may_enqueue(self.actor)
            owner = owner or self.actor.id
        deadline = wishes.deadline if wishes.deadline is not None else options.timeout
        limits = checked_limits(wishes.limits)
        return {
            "namespace": self.settings.namespace,
            "kind": checked_name("kind", kind),
            "queue": checked_name("queue", self.settings.queue_of(checked_queue(wishes.queue), options.queue)),
            "priority": checked_priority(wishes.priority),
            "delay": checked_seconds("delay", wishes.delay),
            "deadline": checked_seconds("deadline", deadline),
            "lease_seconds": options.lease_seconds,
            "max_requeues": options.max_requeues,
            "limits": json.dumps(limits) if limits is not None else None,
            "planned_cost": checked_cost("planned_cost", wishes.planned_cost),
            "tags": checked_names("tag", wishes.tags),
            "attributes": checked_attributes(wishes.attributes or {}),
            "owner": checked_name("owner", owner) if owner is not None else None,
            "code_version": None,
        }

    def enqueue(self, params: dict[str, Any], *, strict: bool = False) -> UUID:
        """Store one run and wake a worker. Returns the run's id, or that of the run that has the idempotency key.

        Raises IdempotencyConflict where the key belongs to another request; EnqueueFailed where `strict` and no wake
        could be sent (the run is settled as failed first).
        """
        row = self.database.row(births.ENQUEUE, params)
        if row is None and params["key"] is None:
            # Sent twice over a broken connection, and the first time had committed.
            row = {"id": params["run_id"]}
        if row is None:
            return self.same_as_before(params, self.database.rows(births.BY_KEYS, params | {"keys": [params["key"]]}))
        sent = self.publisher.wake(self.wake_of(params, strict=strict))
        if strict and not sent:
            self._settle_undispatched(params["run_id"])
        return row["id"]

    def enqueue_many(
        self, kind: str, requests: Sequence[Any], wishes: Wishes, keys: Sequence[str] | None
    ) -> list[UUID]:
        """Store many runs in one statement and wake them; ids in the order of the requests."""
        registered = self.kinds.get(checked_name("kind", kind))
        shared = self.shared(kind, registered.options if registered else Options(), wishes)
        keys = checked_names("idempotency_key", keys) if keys is not None else None
        if keys is not None and (len(keys) != len(requests) or len(set(keys)) != len(keys)):
            raise InvalidRequest("idempotency_keys must be as many as the requests, and no key twice")
        texts = [self._request_text(kind, registered, request) for request in requests]
        ids = [self.new_id() for _ in texts]
        digests = [digest(text) for text in texts] if keys else [None] * len(texts)
        if registered is None:
            self._refuse_misspelt(kind, shared["queue"])
        each = {"run_ids": ids, "requests": texts, "digests": digests, "keys": list(keys or [None] * len(texts))}
        stored = {row["id"] for row in self.database.rows(births.ENQUEUE_MANY, shared | each)} if ids else set[UUID]()
        self.publisher.wake(*(self.wake_of(shared | {"run_id": run_id}) for run_id in ids if run_id in stored))
        if len(stored) == len(ids):
            return ids
        return self._with_earlier(ids, stored, each, shared)

    @staticmethod
    def new_id() -> UUID:
        """A run id: ordered by time, so that the tables' indexes grow at one end."""
        return uuids.uuid7()

    def wake_of(self, params: Mapping[str, Any], *, strict: bool = False) -> Wake:
        """The wake of a row that was stored with these parameters."""
        run_id, delay = params["run_id"], params["delay"] or 0.0
        return Wake(run_id, params["queue"], params["kind"], params["priority"], delay, "enqueue", strict=strict)

    def same_as_before(self, params: Mapping[str, Any], rows: Sequence[type_of_row]) -> UUID:
        """The run that has the idempotency key. Raises IdempotencyConflict where its request is another one."""
        for row in rows:
            if row["request_digest"] == params["digest"]:
                return row["id"]
            raise IdempotencyConflict(
                f"idempotency key `{params['key']}` of kind `{params['kind']}` belongs to run `{row['id']}` with "
                "another request; use another key, or send the same request"
            )
        raise NotFound(
            "the run that holds the idempotency key cannot be seen from this transaction; try again after it"
        )

    def _with_earlier(
        self, ids: list[UUID], stored: set[UUID], each: dict[str, Any], shared: dict[str, Any]
    ) -> list[UUID]:
        rows = {row["idempotency_key"]: row for row in self.database.rows(births.BY_KEYS, shared | each)}
        found: list[UUID] = []
        for run_id, key, text_digest in zip(ids, each["keys"], each["digests"], strict=True):
            params = shared | {"key": key, "digest": text_digest}
            ours = run_id in stored or key is None
            found.append(run_id if ours else self.same_as_before(params, [rows[key]]))
        return found

    def _request_text(self, kind: str, registered: Kind | None, request: Any) -> str:
        what = f"the request of kind `{kind}`"
        text = registered.encode_request(request) if registered else encode(request, what=what)
        return within(text, self.settings.max_request_bytes, what=what, setting="AGENTRUN_MAX_REQUEST_BYTES")

    def _refuse_misspelt(self, kind: str, queue: str) -> None:
        """Raises UnknownKind for a kind that is certainly misspelt, as seen by a producer that knows some kinds.

        Certain is it where a live worker takes runs from the queue, and no process seen within the hour knows the
        kind. Without such a worker nobody can say: the run is stored, and waits for one, and the log says so once.
        """
        if not self.settings.imports:
            return
        told = self.database.rows(reads.KINDS_TOLD, self._namespace | {"queue": queue})
        known = {row["kind"] for row in told}
        if kind in known:
            return
        said = unknown(kind, tuple(sorted({*known, *self.kinds.names()})))
        if any(row["serves"] for row in told):
            raise UnknownKind(said)
        if kind not in self._waited_for:
            self._waited_for.add(kind)
            log.warning("%s; its runs are stored, and wait for a worker that knows it", said)

    def _settle_undispatched(self, run_id: UUID) -> None:
        settled = self.database.row(
            transitions.DISPATCH_FAILED,
            self._namespace
            | {"run_id": run_id, "by": "enqueue", "data": json.dumps({"reason": "no wake could be sent"})},
        )
        if settled is not None:
            raise EnqueueFailed(
                f"run `{run_id}` was stored, but no wake could be sent, and it is settled as failed; "
                "see whether the broker of AGENTRUN_BROKER_URL is up, then enqueue again",
                str(run_id),
            )

    # ---- reads

    def status(self, run_id: UUID) -> Run:
        """The run. Raises NotFound (also where the actor may not see it), NamespaceMismatch."""
        run = self.unchecked(run_id)
        if self.actor is not None:
            require(self.actor, Scope.READ, run)
        return run

    def unchecked(self, run_id: UUID, *, asking: Actor | str | None = None) -> Run:
        """The run, whoever asks: for verbs that check a scope of their own.

        To an actor (this one, or the one that is asking) a run of another namespace is not there.
        """
        run = self.known(run_id, self.database.row(reads.RUN_BY_ID, {"run_id": run_id}), asking=asking)
        return self._with_writes_in_flight(run)

    def _with_writes_in_flight(self, run: Run) -> Run:
        """The error of a run that has ended names the writes that are in flight now. What its last segment knew of them
        stands in its row: a write done elsewhere may have been given up at the same moment, or since."""
        if not run.status.final or run.error is None:
            return run
        rows = self.database.rows(IN_FLIGHT, {"run_id": run.id})
        known = rows or "in_flight" in run.error
        return replace(run, error={**run.error, "in_flight": named_writes(rows)}) if known else run

    def known(self, run_id: UUID, row: type_of_row | None, *, asking: Actor | str | None = None) -> Run:
        """The run of a row that was read, as `unchecked` has it."""
        elsewhere = row is not None and row["namespace"] != self.settings.namespace
        if row is None or (elsewhere and isinstance(self.actor or asking, Actor)):
            raise NotFound(f"no run `{run_id}`; `agentrun list` shows what is there")
        if elsewhere:
            raise NamespaceMismatch(
                f"run `{run_id}` belongs to namespace `{row['namespace']}`, this is `{self.settings.namespace}`; "
                "set AGENTRUN_NAMESPACE to work there"
            )
        return reads.as_run(row)

    def shown(self, run_id: UUID, *, to: Actor | str | None = None) -> Run:
        """The run as far as whoever acted may know it: without READ, an actor learns where it is and nothing of what
        it was asked or came to."""
        return self.shown_as(self.unchecked(run_id), to)

    def shown_as(self, run: Run, to: Actor | str | None) -> Run:
        """As `shown`, of a run that was read."""
        actor = self.actor or to
        if actor is None or may_read(actor, run):
            return run
        return replace(run, request=None, result=None, error=None, attributes={}, tags=())

    def list(self, filters: Mapping[str, Any], *, limit: int, before: UUID | None) -> list[Run]:
        """Runs, newest first. `before` is the last id of the page before."""
        filters, limit = checked_filters(filters), checked_limit(limit, most=LARGEST_PAGE)
        if self.actor is not None and Scope.READ not in self.actor.scopes:
            filters |= {"owner": self.actor.id}
        filters |= {"before": before}
        rows = self.database.rows(reads.listing(filters), filters | self._namespace | {"limit": limit})
        return [reads.as_run(row) for row in rows]

    def events(self, run_id: UUID, *, after: int, limit: int) -> list[Event]:
        """The run's story from `after` on, in order."""
        page = {"after": checked_after(after), "limit": checked_limit(limit)}
        self.status(run_id)
        rows = self.database.rows(reads.EVENTS, {"run_id": run_id, **page})
        return [reads.as_event(row) for row in rows]

    def steps(self, run_id: UUID) -> Sequence[Step]:
        """The run's journal, in the order of its entries."""
        self.status(run_id)
        return [reads.as_step(row) for row in self.database.rows(reads.JOURNAL, {"run_id": run_id})]
