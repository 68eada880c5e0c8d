"""How runs come into being: enqueued (one or many, in one statement), or born running in an interactive segment."""

from __future__ import annotations

from typing import Any

from sqlalchemy import ColumnElement, Double, Integer, Numeric, Select, SmallInteger, Text, func, select
from sqlalchemy.dialects.postgresql import ARRAY, JSON, JSONB, UUID, insert

from agentrun.core.words import EventType, Status
from agentrun.store.claims import CLAIMED_COLUMNS
from agentrun.store.mover import BY, DATA, NAMESPACE, RUN_ID
from agentrun.store.sql import Statement, compiled, later, now, number, param, seconds, word
from agentrun.store.tables import event_seq, moves, runs
from agentrun.store.waits import asked, held

_SHARED: dict[str, ColumnElement[Any]] = {
    "namespace": NAMESPACE,
    "kind": param("kind", Text),
    "queue": param("queue", Text),
    "priority": param("priority", SmallInteger),
    "deadline_at": now() + seconds(param("deadline", Double)),
    "lease_seconds": param("lease_seconds", Double),
    "max_requeues": param("max_requeues", Integer),
    "limits": param("limits", JSONB),
    "planned_cost": param("planned_cost", Numeric),
    "tags": param("tags", ARRAY(Text)),
    "attributes": param("attributes", JSONB),
    "owner": param("owner", Text),
    "code_version": param("code_version", Text),
    "created_at": now(),
}


def _enqueue_many() -> Statement:
    """Rows whose idempotency key is taken are left out; the caller asks for these (`BY_KEYS`)."""
    each = (
        func.unnest(
            param("run_ids", ARRAY(UUID)),
            param("requests", ARRAY(Text)),
            param("digests", ARRAY(Text)),
            param("keys", ARRAY(Text)),
        )
        .table_valued("id", "request", "digest", "key", name="each")
        .render_derived()
    )
    values = {
        "id": each.c.id,
        "request": each.c.request.cast(JSON),
        "request_digest": each.c.digest,
        "idempotency_key": each.c.key,
        "status": word(Status.QUEUED),
        "due_at": now() + seconds(func.coalesce(param("delay", Double), number(0))),
        **_SHARED,
    }
    return compiled(
        "enqueue_many", _unless_taken(values, select(*values.values()).select_from(each)).returning(runs.c.id)
    )


def _enqueue() -> Statement:
    """No row where the idempotency key is taken."""
    values = {
        "id": RUN_ID,
        "request": param("request", JSON),
        "request_digest": param("digest", Text),
        "idempotency_key": param("key", Text),
        "status": word(Status.QUEUED),
        "due_at": now() + seconds(func.coalesce(param("delay", Double), number(0))),
        **_SHARED,
    }
    return compiled("enqueue", _unless_taken(values, select(*values.values())).returning(runs.c.id))


def _unless_taken(values: dict[str, ColumnElement[Any]], source: Select[Any]) -> Any:
    # Whichever is taken: the idempotency key, or the id itself where a broken connection made the caller send it twice.
    return insert(runs).from_select(list(values), source).on_conflict_do_nothing()


def _born_running() -> Statement:
    """An interactive segment claims its run at birth (ADR-141): epoch 1, leased, told as claimed."""
    values = {
        "id": RUN_ID,
        "request": param("request", JSON),
        "request_digest": param("digest", Text),
        "idempotency_key": param("key", Text),
        "status": word(Status.RUNNING),
        "epoch": number(1),
        "claimed_by": BY,
        "lease_expires_at": now() + seconds(func.coalesce(param("lease_seconds", Double), param("lease", Double))),
        "claimed_at": now(),
        "started_at": now(),
        **_SHARED,
    }
    born = _unless_taken(values, select(*values.values())).returning(*CLAIMED_COLUMNS).cte("born")
    entry = select(born.c.id, event_seq.next_value(), word(EventType.CLAIMED), now(), born.c.epoch, BY, DATA)
    told = insert(moves).from_select(["run_id", "seq", "type", "at", "epoch", "by", "data"], entry).cte("told")
    return compiled("born_running", select(born).add_cte(told))


def _child_born() -> Statement:
    """A child and its parent's wait for it, under the parent's epoch. No row: not held, or born before.

    Where the step's earlier child was cancelled, the step is done again with this one.
    """
    source = held()
    values = {
        "id": param("child_id", UUID),
        "namespace": source.c.namespace,
        "kind": param("child_kind", Text),
        "request": param("child_request", JSON),
        "status": word(Status.QUEUED),
        "due_at": now(),
        "queue": param("child_queue", Text),
        "priority": param("child_priority", SmallInteger),
        "deadline_at": now() + seconds(param("child_deadline", Double)),
        "lease_seconds": param("child_lease_seconds", Double),
        "max_requeues": param("child_max_requeues", Integer),
        "tags": param("child_tags", ARRAY(Text)),
        "attributes": param("child_attributes", JSONB),
        "owner": param("child_owner", Text),
        "parent_id": source.c.id,
        "parent_step_key": param("key", Text),
        "created_at": now(),
    }
    born = insert(runs).from_select(list(values), select(*values.values()).select_from(source))
    born = born.on_conflict_do_nothing(index_elements=["id"]).returning(runs.c.id).cte("born")
    return compiled("child_born", select(asked(source, child_id=param("child_id", UUID))).add_cte(born))


def _by_keys() -> Statement:
    taken = select(runs.c.id, runs.c.idempotency_key, runs.c.request_digest, runs.c.status).where(
        runs.c.namespace == NAMESPACE,
        runs.c.kind == param("kind", Text),
        runs.c.idempotency_key == func.any(param("keys", ARRAY(Text))),
    )
    return compiled("by_keys", taken)


ENQUEUE = later(_enqueue)
ENQUEUE_MANY = later(_enqueue_many)
BORN_RUNNING = later(_born_running)
CHILD_BORN = later(_child_born)
BY_KEYS = later(_by_keys)
