"""The tables of the schema `agentrun`, laid down whole: guarantees first, as CHECK constraints.

No index holds a column that a step or a heartbeat changes, so that these updates stay HOT. Payloads are JSON, not
JSONB: they are stored once, read back exactly, and never searched. Steps and moves have no foreign key: they are only
ever inserted from the locked row of their run, and a key check would lock that row once more for each.
"""

from __future__ import annotations

from sqlalchemy import (
    BigInteger,
    Boolean,
    CheckConstraint,
    Column,
    DateTime,
    Double,
    ForeignKey,
    Index,
    Integer,
    MetaData,
    Numeric,
    Sequence,
    SmallInteger,
    Table,
    Text,
    UniqueConstraint,
    text,
)
from sqlalchemy.dialects.postgresql import ARRAY, JSON, JSONB, UUID

from agentrun.core.alarms import NoticeEnding, Occasion, Shape
from agentrun.core.words import FINAL, Effect, Reason, Status, StepStatus, WaitKind, WaitStatus

SCHEMA = "agentrun"

metadata = MetaData(
    schema=SCHEMA,
    naming_convention={
        "ix": "%(table_name)s_%(column_0_N_name)s",
        "uq": "%(table_name)s_%(column_0_N_name)s_key",
        "ck": "%(table_name)s_%(constraint_name)s",
        "fk": "%(table_name)s_%(column_0_name)s_fkey",
        "pk": "%(table_name)s_pkey",
    },
)


def _one_of(column: str, words: object) -> str:
    return f"{column} IN ({', '.join(repr(str(word)) for word in sorted(words))})"  # type: ignore[call-overload]


_FINAL = _one_of("status", FINAL)
_OPEN = _one_of("status", set(Status) - FINAL)
_TIME = DateTime(timezone=True)

event_seq = Sequence("event_seq", schema=SCHEMA, metadata=metadata)
"""One sequence for everything in the event stream. Drawn under the run's row lock, it is ordered within a run."""

runs = Table(
    "runs",
    metadata,
    Column("id", UUID(as_uuid=True), primary_key=True),
    Column("namespace", Text, nullable=False),
    Column("kind", Text, nullable=False),
    Column("status", Text, nullable=False),
    Column("reason", Text),
    Column("waiting_on", Text),
    Column("request", JSON),
    Column("request_digest", Text),
    Column("result", JSON),
    Column("error", JSON),
    Column("idempotency_key", Text),
    Column("queue", Text, nullable=False),
    Column("priority", SmallInteger, nullable=False, server_default=text("0")),
    Column("due_at", _TIME),
    Column("deadline_at", _TIME),
    Column("lease_seconds", Double),
    Column("max_requeues", Integer),
    Column("requeue_count", Integer, nullable=False, server_default=text("0")),
    Column("crash_count", Integer, nullable=False, server_default=text("0")),
    Column("error_count", Integer, nullable=False, server_default=text("0")),
    Column("handback_count", Integer, nullable=False, server_default=text("0")),
    Column("redrive_count", Integer, nullable=False, server_default=text("0")),
    Column("epoch", BigInteger, nullable=False, server_default=text("0")),
    Column("claimed_by", Text),
    Column("lease_expires_at", _TIME),
    # Counted by whoever resolves a wait; parking names the count that the segment has seen.
    Column("resolutions", Integer, nullable=False, server_default=text("0")),
    Column("cancel_requested_at", _TIME),
    Column("cancel_requested_by", Text),
    Column("limits", JSONB),
    Column("planned_cost", Numeric(18, 8)),
    Column("model_calls", Integer, nullable=False, server_default=text("0")),
    Column("input_tokens", BigInteger, nullable=False, server_default=text("0")),
    Column("output_tokens", BigInteger, nullable=False, server_default=text("0")),
    Column("cost", Numeric(18, 8), nullable=False, server_default=text("0")),
    Column("tags", ARRAY(Text), nullable=False, server_default=text("'{}'::text[]")),
    Column("attributes", JSONB, nullable=False, server_default=text("'{}'::jsonb")),
    Column("owner", Text),
    Column("parent_id", UUID(as_uuid=True)),
    Column("parent_step_key", Text),
    Column("root_id", UUID(as_uuid=True)),
    Column("continued_from", UUID(as_uuid=True)),
    Column("code_version", Text),
    Column("created_at", _TIME, nullable=False, server_default=text("now()")),
    Column("started_at", _TIME),
    Column("claimed_at", _TIME),
    Column("finished_at", _TIME),
    CheckConstraint(_one_of("status", Status), name="status"),
    CheckConstraint(f"reason IS NULL OR {_one_of('reason', Reason)}", name="reason"),
    CheckConstraint(
        "(status = 'running') = (lease_expires_at IS NOT NULL) AND (status = 'running') = (claimed_by IS NOT NULL)",
        name="running_iff_leased",
    ),
    CheckConstraint(f"({_FINAL}) = (finished_at IS NOT NULL)", name="final_iff_finished"),
    CheckConstraint(f"({_FINAL}) = (reason IS NOT NULL)", name="final_iff_reason"),
    CheckConstraint("(status = 'waiting') = (waiting_on IS NOT NULL)", name="waiting_iff_waiting_on"),
    CheckConstraint("status <> 'queued' OR (due_at IS NOT NULL AND request IS NOT NULL)", name="queued_is_runnable"),
    CheckConstraint("status <> 'completed' OR error IS NULL", name="completed_without_error"),
    CheckConstraint(
        "requeue_count >= 0 AND crash_count >= 0 AND error_count >= 0 AND handback_count >= 0", name="counts"
    ),
    postgresql_with={"fillfactor": 80},
)
Index("runs_idempotency", runs.c.namespace, runs.c.kind, runs.c.idempotency_key, unique=True,
      postgresql_where=text("idempotency_key IS NOT NULL"))  # fmt: skip
Index("runs_due", runs.c.namespace, runs.c.queue, runs.c.due_at, postgresql_where=text("status = 'queued'"))
Index("runs_running", runs.c.namespace, postgresql_where=text("status = 'running'"))
Index("runs_waiting", runs.c.namespace, runs.c.created_at, postgresql_where=text("status = 'waiting'"))
Index("runs_waiting_due", runs.c.namespace, runs.c.due_at,
      postgresql_where=text("status = 'waiting' AND due_at IS NOT NULL"))  # fmt: skip
Index("runs_deadline", runs.c.namespace, runs.c.deadline_at,
      postgresql_where=text(f"deadline_at IS NOT NULL AND {_OPEN}"))  # fmt: skip
Index("runs_failed", runs.c.namespace, runs.c.finished_at, postgresql_where=text("status = 'failed'"))
Index("runs_created", runs.c.namespace, runs.c.created_at, runs.c.id)
Index("runs_of_kind", runs.c.namespace, runs.c.kind, runs.c.created_at, runs.c.id)
Index("runs_unsuccessful", runs.c.namespace, runs.c.created_at, runs.c.id,
      postgresql_where=text("status IN ('cancelled', 'failed')"))  # fmt: skip
Index("runs_of_owner", runs.c.namespace, runs.c.owner, runs.c.created_at, runs.c.id,
      postgresql_where=text("owner IS NOT NULL"))  # fmt: skip
Index("runs_of_parent", runs.c.parent_id, runs.c.created_at, runs.c.id,
      postgresql_where=text("parent_id IS NOT NULL"))  # fmt: skip
Index("runs_tags", runs.c.tags, postgresql_using="gin", postgresql_where=text("tags <> '{}'::text[]"))
Index("runs_attributes", runs.c.attributes, postgresql_using="gin",
      postgresql_ops={"attributes": "jsonb_path_ops"}, postgresql_where=text("attributes <> '{}'::jsonb"))  # fmt: skip
Index("runs_children", runs.c.namespace, runs.c.parent_id,
      postgresql_where=text(f"parent_id IS NOT NULL AND {_OPEN}"))  # fmt: skip

moves = Table(
    "moves",
    metadata,
    Column("run_id", UUID(as_uuid=True), primary_key=True),
    Column("seq", BigInteger, event_seq, primary_key=True, server_default=event_seq.next_value()),
    Column("type", Text, nullable=False),
    Column("at", _TIME, nullable=False, server_default=text("now()")),
    Column("epoch", BigInteger, nullable=False),
    Column("by", Text),
    Column("data", JSON),
)

steps = Table(
    "steps",
    metadata,
    Column("run_id", UUID(as_uuid=True), primary_key=True),
    Column("key", Text, primary_key=True),
    Column("kind", Text, nullable=False),
    Column("name", Text, nullable=False),
    Column("effect", Text, nullable=False),
    Column("status", Text, nullable=False),
    Column("attempt", Integer, nullable=False, server_default=text("1")),
    Column("epoch", BigInteger, nullable=False),
    Column("by", Text),
    Column("args_digest", Text),
    Column("args", JSON),
    Column("idempotency_key", Text),
    Column("reconcilable", Boolean, nullable=False, server_default=text("false")),
    Column("result", JSON),
    Column("error", JSON),
    Column("started_seq", BigInteger),
    Column("seq", BigInteger),
    Column("started_at", _TIME),
    Column("finished_at", _TIME),
    Column("model", Text),
    Column("input_tokens", BigInteger),
    Column("output_tokens", BigInteger),
    Column("cost", Numeric(18, 8)),
    # Remote and external steps only; external ones have no queue.
    Column("queue", Text),
    Column("offered_at", _TIME),
    # Offered: it may be taken from then on. Started: its silence is too long from then on.
    Column("due_at", _TIME),
    Column("step_epoch", BigInteger),
    # Offered: its time in the queue is over then. Started: its taker's lease; NULL where nobody works on it.
    Column("lease_expires_at", _TIME),
    Column("heartbeat_at", _TIME),
    Column("progress", JSON),
    Column("redispatch_count", Integer, nullable=False, server_default=text("0")),
    Column("policy", JSON),
    Column("token_digest", Text),
    CheckConstraint(_one_of("status", StepStatus), name="status"),
    CheckConstraint(_one_of("effect", Effect), name="effect"),
    CheckConstraint("(status IN ('completed', 'failed')) = (finished_at IS NOT NULL)", name="ended_iff_finished"),
    CheckConstraint("status <> 'started' OR started_seq IS NOT NULL", name="started_is_told"),
)
Index("steps_in_flight", steps.c.run_id, postgresql_where=text("status = 'started'"))
Index("steps_offered", steps.c.queue, steps.c.due_at, postgresql_where=text("status = 'offered'"))
Index("steps_unclaimed", steps.c.lease_expires_at,
      postgresql_where=text("status = 'offered' AND lease_expires_at IS NOT NULL"))  # fmt: skip
Index("steps_token", steps.c.token_digest, unique=True, postgresql_where=text("token_digest IS NOT NULL"))

waits = Table(
    "waits",
    metadata,
    Column("id", UUID(as_uuid=True), primary_key=True),
    Column("run_id", UUID(as_uuid=True), ForeignKey(runs.c.id, ondelete="CASCADE"), nullable=False),
    Column("step_key", Text, nullable=False),
    Column("namespace", Text, nullable=False),
    Column("kind", Text, nullable=False),
    Column("name", Text),
    Column("status", Text, nullable=False, server_default=text("'open'")),
    Column("asks", JSON),
    Column("asks_digest", Text),
    Column("role", Text),
    Column("due_at", _TIME),
    Column("remind_at", _TIME),
    Column("remind_seconds", Double),
    Column("on_expiry", JSON),
    Column("child_id", UUID(as_uuid=True)),
    Column("token_digest", Text),
    Column("resolution", JSON),
    Column("resolved_by", Text),
    Column("comment", Text),
    Column("created_at", _TIME, nullable=False, server_default=text("now()")),
    Column("resolved_at", _TIME),
    UniqueConstraint("run_id", "step_key"),
    CheckConstraint(_one_of("kind", WaitKind), name="kind"),
    CheckConstraint(_one_of("status", WaitStatus), name="status"),
    CheckConstraint("(status = 'open') = (resolved_at IS NULL)", name="open_iff_unresolved"),
)
Index("waits_open", waits.c.namespace, waits.c.created_at, postgresql_where=text("status = 'open'"))
Index("waits_due", waits.c.namespace, waits.c.due_at, postgresql_where=text("status = 'open' AND due_at IS NOT NULL"))
Index("waits_child", waits.c.child_id, postgresql_where=text("child_id IS NOT NULL"))
Index("waits_token", waits.c.token_digest, unique=True, postgresql_where=text("token_digest IS NOT NULL"))

signals = Table(
    "signals",
    metadata,
    Column("id", BigInteger, primary_key=True, autoincrement=True),
    Column("run_id", UUID(as_uuid=True), ForeignKey(runs.c.id, ondelete="CASCADE"), nullable=False),
    Column("name", Text, nullable=False),
    Column("payload", JSON),
    Column("sent_by", Text),
    Column("sent_at", _TIME, nullable=False, server_default=text("now()")),
    Column("expires_at", _TIME),
    Column("taken_by_step", Text),
)
Index("signals_buffered", signals.c.run_id, signals.c.name, signals.c.id,
      postgresql_where=text("taken_by_step IS NULL"))  # fmt: skip
Index("signals_expiring", signals.c.expires_at,
      postgresql_where=text("taken_by_step IS NULL AND expires_at IS NOT NULL"))  # fmt: skip
Index("signals_of_run", signals.c.run_id)

processes = Table(
    "processes",
    metadata,
    Column("id", UUID(as_uuid=True), primary_key=True),
    Column("namespace", Text, nullable=False),
    Column("name", Text, nullable=False),
    Column("stable_id", Text),
    Column("deployment", Text),
    Column("version", Text),
    Column("kinds", ARRAY(Text), nullable=False, server_default=text("'{}'::text[]")),
    Column("queues", ARRAY(Text), nullable=False, server_default=text("'{}'::text[]")),
    Column("holds", Integer, nullable=False, server_default=text("0")),
    Column("draining", Boolean, nullable=False, server_default=text("false")),
    Column("draining_since", _TIME),
    # Its host's clock minus the database's.
    Column("clock_skew_seconds", Double),
    # What it says of its configuration and hooks.
    Column("about", JSON),
    Column("started_at", _TIME, nullable=False, server_default=text("now()")),
    Column("seen_at", _TIME, nullable=False, server_default=text("now()")),
)

sweeps = Table(
    "sweeps",
    metadata,
    Column("namespace", Text, primary_key=True),
    Column("name", Text, primary_key=True),
    Column("swept_at", _TIME, nullable=False),
    Column("swept_by", Text),
    Column("found", JSON),
)

episodes = Table(
    "episodes",
    metadata,
    Column("id", BigInteger, primary_key=True, autoincrement=True),
    Column("run_id", UUID(as_uuid=True), ForeignKey(runs.c.id, ondelete="CASCADE"), nullable=False),
    Column("namespace", Text, nullable=False),
    Column("shape", Text, nullable=False),
    # When the run was last seen to move: whatever moves later ends the episode.
    Column("since", _TIME, nullable=False),
    Column("facts", JSON, nullable=False),
    Column("opened_at", _TIME, nullable=False, server_default=text("now()")),
    Column("closed_at", _TIME),
    CheckConstraint(_one_of("shape", Shape), name="shape"),
)
Index("episodes_open", episodes.c.run_id, unique=True, postgresql_where=text("closed_at IS NULL"))
Index("episodes_of_run", episodes.c.run_id)

notices = Table(
    "notices",
    metadata,
    Column("id", BigInteger, primary_key=True, autoincrement=True),
    Column("namespace", Text, nullable=False),
    Column("run_id", UUID(as_uuid=True), ForeignKey(runs.c.id, ondelete="CASCADE"), nullable=False),
    Column("occasion", Text, nullable=False),
    # What is told once to each hook: a wait, an episode, or an end of the run.
    Column("subject", Text, nullable=False),
    Column("wait_id", UUID(as_uuid=True)),
    Column("episode_id", BigInteger),
    Column("hook", Text, nullable=False),
    Column("round", Integer, nullable=False, server_default=text("1")),
    Column("data", JSON),
    Column("created_at", _TIME, nullable=False, server_default=text("now()")),
    Column("due_at", _TIME, nullable=False),
    Column("attempts", Integer, nullable=False, server_default=text("0")),
    Column("ended_at", _TIME),
    Column("ending", Text),
    Column("last_error", Text),
    CheckConstraint(_one_of("occasion", Occasion), name="occasion"),
    CheckConstraint(_one_of("ending", NoticeEnding), name="ending"),
    CheckConstraint("(ended_at IS NULL) = (ending IS NULL)", name="ended_iff_ending"),
)
Index("notices_once", notices.c.subject, notices.c.hook, notices.c.occasion, notices.c.round, unique=True)
Index("notices_of_run", notices.c.run_id)
Index("notices_due", notices.c.namespace, notices.c.due_at, postgresql_where=text("ended_at IS NULL"))
Index("notices_given_up", notices.c.namespace, notices.c.ended_at, postgresql_where=text("ending = 'given_up'"))

budgets = Table(
    "budgets",
    metadata,
    Column("namespace", Text, primary_key=True),
    Column("owner", Text, primary_key=True),
    Column("period", Text, primary_key=True),
    Column("max_tokens", BigInteger),
    Column("max_cost", Numeric(18, 8)),
    CheckConstraint("period IN ('day', 'month')", name="period"),
)

spend = Table(
    "spend",
    metadata,
    Column("namespace", Text, primary_key=True),
    Column("owner", Text, primary_key=True),
    Column("day", DateTime(timezone=False), primary_key=True),
    # A row per run, so that runs of one owner do not wait for one another's commits.
    Column("run_id", UUID(as_uuid=True), primary_key=True),
    Column("tokens", BigInteger, nullable=False, server_default=text("0")),
    Column("cost", Numeric(18, 8), nullable=False, server_default=text("0")),
    Column("model_calls", BigInteger, nullable=False, server_default=text("0")),
)
Index("spend_of_run", spend.c.run_id)
