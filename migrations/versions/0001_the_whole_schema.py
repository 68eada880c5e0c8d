"""The whole schema, laid down at once: later behaviour needs no later columns."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects import postgresql

revision = "0001"
down_revision = None
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.execute(sa.schema.CreateSequence(sa.Sequence("event_seq", schema="agentrun")))
    op.create_table(
        "budgets",
        sa.Column("namespace", sa.Text(), nullable=False),
        sa.Column("owner", sa.Text(), nullable=False),
        sa.Column("period", sa.Text(), nullable=False),
        sa.Column("max_tokens", sa.BigInteger(), nullable=True),
        sa.Column("max_cost", sa.Numeric(precision=18, scale=8), nullable=True),
        sa.CheckConstraint("period IN ('day', 'month')", name=op.f("budgets_period")),
        sa.PrimaryKeyConstraint("namespace", "owner", "period", name=op.f("budgets_pkey")),
        schema="agentrun",
    )
    op.create_table(
        "moves",
        sa.Column("run_id", sa.UUID(), nullable=False),
        sa.Column("seq", sa.BigInteger(), server_default=sa.text("nextval('agentrun.event_seq')"), nullable=False),
        sa.Column("type", sa.Text(), nullable=False),
        sa.Column("at", sa.DateTime(timezone=True), server_default=sa.text("now()"), nullable=False),
        sa.Column("epoch", sa.BigInteger(), nullable=False),
        sa.Column("by", sa.Text(), nullable=True),
        sa.Column("data", postgresql.JSON(astext_type=sa.Text()), nullable=True),
        sa.PrimaryKeyConstraint("run_id", "seq", name=op.f("moves_pkey")),
        schema="agentrun",
    )
    op.create_table(
        "processes",
        sa.Column("id", sa.UUID(), nullable=False),
        sa.Column("namespace", sa.Text(), nullable=False),
        sa.Column("name", sa.Text(), nullable=False),
        sa.Column("stable_id", sa.Text(), nullable=True),
        sa.Column("deployment", sa.Text(), nullable=True),
        sa.Column("version", sa.Text(), nullable=True),
        sa.Column("kinds", postgresql.ARRAY(sa.Text()), server_default=sa.text("'{}'::text[]"), nullable=False),
        sa.Column("queues", postgresql.ARRAY(sa.Text()), server_default=sa.text("'{}'::text[]"), nullable=False),
        sa.Column("holds", sa.Integer(), server_default=sa.text("0"), nullable=False),
        sa.Column("draining", sa.Boolean(), server_default=sa.text("false"), nullable=False),
        sa.Column("draining_since", sa.DateTime(timezone=True), nullable=True),
        sa.Column("clock_skew_seconds", sa.Double(), nullable=True),
        sa.Column("about", postgresql.JSON(astext_type=sa.Text()), nullable=True),
        sa.Column("started_at", sa.DateTime(timezone=True), server_default=sa.text("now()"), nullable=False),
        sa.Column("seen_at", sa.DateTime(timezone=True), server_default=sa.text("now()"), nullable=False),
        sa.PrimaryKeyConstraint("id", name=op.f("processes_pkey")),
        schema="agentrun",
    )
    op.create_table(
        "runs",
        sa.Column("id", sa.UUID(), nullable=False),
        sa.Column("namespace", sa.Text(), nullable=False),
        sa.Column("kind", sa.Text(), nullable=False),
        sa.Column("status", sa.Text(), nullable=False),
        sa.Column("reason", sa.Text(), nullable=True),
        sa.Column("waiting_on", sa.Text(), nullable=True),
        sa.Column("request", postgresql.JSON(astext_type=sa.Text()), nullable=True),
        sa.Column("request_digest", sa.Text(), nullable=True),
        sa.Column("result", postgresql.JSON(astext_type=sa.Text()), nullable=True),
        sa.Column("error", postgresql.JSON(astext_type=sa.Text()), nullable=True),
        sa.Column("idempotency_key", sa.Text(), nullable=True),
        sa.Column("queue", sa.Text(), nullable=False),
        sa.Column("priority", sa.SmallInteger(), server_default=sa.text("0"), nullable=False),
        sa.Column("due_at", sa.DateTime(timezone=True), nullable=True),
        sa.Column("deadline_at", sa.DateTime(timezone=True), nullable=True),
        sa.Column("lease_seconds", sa.Double(), nullable=True),
        sa.Column("max_requeues", sa.Integer(), nullable=True),
        sa.Column("requeue_count", sa.Integer(), server_default=sa.text("0"), nullable=False),
        sa.Column("crash_count", sa.Integer(), server_default=sa.text("0"), nullable=False),
        sa.Column("error_count", sa.Integer(), server_default=sa.text("0"), nullable=False),
        sa.Column("handback_count", sa.Integer(), server_default=sa.text("0"), nullable=False),
        sa.Column("redrive_count", sa.Integer(), server_default=sa.text("0"), nullable=False),
        sa.Column("epoch", sa.BigInteger(), server_default=sa.text("0"), nullable=False),
        sa.Column("claimed_by", sa.Text(), nullable=True),
        sa.Column("lease_expires_at", sa.DateTime(timezone=True), nullable=True),
        sa.Column("pending_effect", sa.Text(), nullable=True),
        sa.Column("resolutions", sa.Integer(), server_default=sa.text("0"), nullable=False),
        sa.Column("cancel_requested_at", sa.DateTime(timezone=True), nullable=True),
        sa.Column("cancel_requested_by", sa.Text(), nullable=True),
        sa.Column("limits", postgresql.JSONB(astext_type=sa.Text()), nullable=True),
        sa.Column("planned_cost", sa.Numeric(precision=18, scale=8), nullable=True),
        sa.Column("model_calls", sa.Integer(), server_default=sa.text("0"), nullable=False),
        sa.Column("input_tokens", sa.BigInteger(), server_default=sa.text("0"), nullable=False),
        sa.Column("output_tokens", sa.BigInteger(), server_default=sa.text("0"), nullable=False),
        sa.Column("cost", sa.Numeric(precision=18, scale=8), server_default=sa.text("0"), nullable=False),
        sa.Column("tags", postgresql.ARRAY(sa.Text()), server_default=sa.text("'{}'::text[]"), nullable=False),
        sa.Column(
            "attributes", postgresql.JSONB(astext_type=sa.Text()), server_default=sa.text("'{}'::jsonb"), nullable=False
        ),
        sa.Column("owner", sa.Text(), nullable=True),
        sa.Column("parent_id", sa.UUID(), nullable=True),
        sa.Column("parent_step_key", sa.Text(), nullable=True),
        sa.Column("root_id", sa.UUID(), nullable=True),
        sa.Column("continued_from", sa.UUID(), nullable=True),
        sa.Column("code_version", sa.Text(), nullable=True),
        sa.Column("created_at", sa.DateTime(timezone=True), server_default=sa.text("now()"), nullable=False),
        sa.Column("started_at", sa.DateTime(timezone=True), nullable=True),
        sa.Column("claimed_at", sa.DateTime(timezone=True), nullable=True),
        sa.Column("finished_at", sa.DateTime(timezone=True), nullable=True),
        sa.CheckConstraint(
            "(status = 'running') = (lease_expires_at IS NOT NULL) AND (status = 'running') = (claimed_by IS NOT NULL)",
            name=op.f("runs_running_iff_leased"),
        ),
        sa.CheckConstraint("(status = 'waiting') = (waiting_on IS NOT NULL)", name=op.f("runs_waiting_iff_waiting_on")),
        sa.CheckConstraint(
            "(status IN ('cancelled', 'completed', 'failed')) = (finished_at IS NOT NULL)",
            name=op.f("runs_final_iff_finished"),
        ),
        sa.CheckConstraint(
            "(status IN ('cancelled', 'completed', 'failed')) = (reason IS NOT NULL)",
            name=op.f("runs_final_iff_reason"),
        ),
        sa.CheckConstraint(
            "pending_effect IS NULL OR pending_effect IN ('idempotent_write', 'non_idempotent_write')",
            name=op.f("runs_pending_effect"),
        ),
        sa.CheckConstraint(
            "reason IS NULL OR reason IN ('approval_denied', 'budget_exhausted', 'cancelled', 'completed', 'deadline_exceeded', 'max_iterations', 'not_retryable', 'policy_denied', 'provider_failed', 'retries_exhausted')",
            name=op.f("runs_reason"),
        ),
        sa.CheckConstraint("status <> 'completed' OR error IS NULL", name=op.f("runs_completed_without_error")),
        sa.CheckConstraint(
            "status <> 'queued' OR (due_at IS NOT NULL AND request IS NOT NULL)", name=op.f("runs_queued_is_runnable")
        ),
        sa.CheckConstraint(
            "status IN ('cancelled', 'completed', 'failed', 'queued', 'running', 'waiting')", name=op.f("runs_status")
        ),
        sa.CheckConstraint(
            "requeue_count >= 0 AND crash_count >= 0 AND error_count >= 0 AND handback_count >= 0",
            name=op.f("runs_counts"),
        ),
        sa.PrimaryKeyConstraint("id", name=op.f("runs_pkey")),
        schema="agentrun",
        postgresql_with={"fillfactor": 80},
    )
    op.create_index(
        "runs_children",
        "runs",
        ["namespace", "parent_id"],
        unique=False,
        schema="agentrun",
        postgresql_where=sa.text("parent_id IS NOT NULL AND status IN ('queued', 'running', 'waiting')"),
    )
    op.create_index("runs_created", "runs", ["namespace", "created_at", "id"], unique=False, schema="agentrun")
    op.create_index(
        "runs_deadline",
        "runs",
        ["namespace", "deadline_at"],
        unique=False,
        schema="agentrun",
        postgresql_where=sa.text("deadline_at IS NOT NULL AND status IN ('queued', 'running', 'waiting')"),
    )
    op.create_index(
        "runs_due",
        "runs",
        ["namespace", "queue", "due_at"],
        unique=False,
        schema="agentrun",
        postgresql_where=sa.text("status = 'queued'"),
    )
    op.create_index(
        "runs_failed",
        "runs",
        ["namespace", "finished_at"],
        unique=False,
        schema="agentrun",
        postgresql_where=sa.text("status = 'failed'"),
    )
    op.create_index(
        "runs_idempotency",
        "runs",
        ["namespace", "kind", "idempotency_key"],
        unique=True,
        schema="agentrun",
        postgresql_where=sa.text("idempotency_key IS NOT NULL"),
    )
    op.create_index(
        "runs_running",
        "runs",
        ["namespace"],
        unique=False,
        schema="agentrun",
        postgresql_where=sa.text("status = 'running'"),
    )
    op.create_index(
        "runs_tags",
        "runs",
        ["tags"],
        unique=False,
        schema="agentrun",
        postgresql_using="gin",
        postgresql_where=sa.text("tags <> '{}'::text[]"),
    )
    op.create_index(
        "runs_waiting",
        "runs",
        ["namespace", "created_at"],
        unique=False,
        schema="agentrun",
        postgresql_where=sa.text("status = 'waiting'"),
    )
    op.create_index(
        "runs_waiting_due",
        "runs",
        ["namespace", "due_at"],
        unique=False,
        schema="agentrun",
        postgresql_where=sa.text("status = 'waiting' AND due_at IS NOT NULL"),
    )
    op.create_table(
        "spend",
        sa.Column("namespace", sa.Text(), nullable=False),
        sa.Column("owner", sa.Text(), nullable=False),
        sa.Column("day", sa.DateTime(), nullable=False),
        sa.Column("run_id", sa.UUID(), nullable=False),
        sa.Column("tokens", sa.BigInteger(), server_default=sa.text("0"), nullable=False),
        sa.Column("cost", sa.Numeric(precision=18, scale=8), server_default=sa.text("0"), nullable=False),
        sa.Column("model_calls", sa.BigInteger(), server_default=sa.text("0"), nullable=False),
        sa.PrimaryKeyConstraint("namespace", "owner", "day", "run_id", name=op.f("spend_pkey")),
        schema="agentrun",
    )
    op.create_table(
        "steps",
        sa.Column("run_id", sa.UUID(), nullable=False),
        sa.Column("key", sa.Text(), nullable=False),
        sa.Column("kind", sa.Text(), nullable=False),
        sa.Column("name", sa.Text(), nullable=False),
        sa.Column("effect", sa.Text(), nullable=False),
        sa.Column("status", sa.Text(), nullable=False),
        sa.Column("attempt", sa.Integer(), server_default=sa.text("1"), nullable=False),
        sa.Column("epoch", sa.BigInteger(), nullable=False),
        sa.Column("by", sa.Text(), nullable=True),
        sa.Column("args_digest", sa.Text(), nullable=True),
        sa.Column("args", postgresql.JSON(astext_type=sa.Text()), nullable=True),
        sa.Column("idempotency_key", sa.Text(), nullable=True),
        sa.Column("reconcilable", sa.Boolean(), server_default=sa.text("false"), nullable=False),
        sa.Column("result", postgresql.JSON(astext_type=sa.Text()), nullable=True),
        sa.Column("error", postgresql.JSON(astext_type=sa.Text()), nullable=True),
        sa.Column("started_seq", sa.BigInteger(), nullable=True),
        sa.Column("seq", sa.BigInteger(), nullable=True),
        sa.Column("started_at", sa.DateTime(timezone=True), nullable=True),
        sa.Column("finished_at", sa.DateTime(timezone=True), nullable=True),
        sa.Column("model", sa.Text(), nullable=True),
        sa.Column("input_tokens", sa.BigInteger(), nullable=True),
        sa.Column("output_tokens", sa.BigInteger(), nullable=True),
        sa.Column("cost", sa.Numeric(precision=18, scale=8), nullable=True),
        sa.Column("queue", sa.Text(), nullable=True),
        sa.Column("offered_at", sa.DateTime(timezone=True), nullable=True),
        sa.Column("due_at", sa.DateTime(timezone=True), nullable=True),
        sa.Column("step_epoch", sa.BigInteger(), nullable=True),
        sa.Column("lease_expires_at", sa.DateTime(timezone=True), nullable=True),
        sa.Column("heartbeat_at", sa.DateTime(timezone=True), nullable=True),
        sa.Column("progress", postgresql.JSON(astext_type=sa.Text()), nullable=True),
        sa.Column("redispatch_count", sa.Integer(), server_default=sa.text("0"), nullable=False),
        sa.Column("policy", postgresql.JSON(astext_type=sa.Text()), nullable=True),
        sa.Column("token_digest", sa.Text(), nullable=True),
        sa.CheckConstraint(
            "(status IN ('completed', 'failed')) = (finished_at IS NOT NULL)", name=op.f("steps_ended_iff_finished")
        ),
        sa.CheckConstraint(
            "effect IN ('idempotent_write', 'non_idempotent_write', 'read_only')", name=op.f("steps_effect")
        ),
        sa.CheckConstraint("status <> 'started' OR started_seq IS NOT NULL", name=op.f("steps_started_is_told")),
        sa.CheckConstraint(
            "status IN ('completed', 'failed', 'not_applied', 'offered', 'redo', 'started')", name=op.f("steps_status")
        ),
        sa.PrimaryKeyConstraint("run_id", "key", name=op.f("steps_pkey")),
        schema="agentrun",
    )
    op.create_index(
        "steps_in_flight",
        "steps",
        ["run_id"],
        unique=False,
        schema="agentrun",
        postgresql_where=sa.text("status = 'started'"),
    )
    op.create_index(
        "steps_offered",
        "steps",
        ["queue", "due_at"],
        unique=False,
        schema="agentrun",
        postgresql_where=sa.text("status = 'offered'"),
    )
    op.create_index(
        "steps_token",
        "steps",
        ["token_digest"],
        unique=True,
        schema="agentrun",
        postgresql_where=sa.text("token_digest IS NOT NULL"),
    )
    op.create_index(
        "steps_unclaimed",
        "steps",
        ["lease_expires_at"],
        unique=False,
        schema="agentrun",
        postgresql_where=sa.text("status = 'offered' AND lease_expires_at IS NOT NULL"),
    )
    op.create_table(
        "sweeps",
        sa.Column("namespace", sa.Text(), nullable=False),
        sa.Column("name", sa.Text(), nullable=False),
        sa.Column("swept_at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("swept_by", sa.Text(), nullable=True),
        sa.Column("found", postgresql.JSON(astext_type=sa.Text()), nullable=True),
        sa.PrimaryKeyConstraint("namespace", "name", name=op.f("sweeps_pkey")),
        schema="agentrun",
    )
    op.create_table(
        "episodes",
        sa.Column("id", sa.BigInteger(), autoincrement=True, nullable=False),
        sa.Column("run_id", sa.UUID(), nullable=False),
        sa.Column("namespace", sa.Text(), nullable=False),
        sa.Column("shape", sa.Text(), nullable=False),
        sa.Column("since", sa.DateTime(timezone=True), nullable=False),
        sa.Column("facts", postgresql.JSON(astext_type=sa.Text()), nullable=False),
        sa.Column("opened_at", sa.DateTime(timezone=True), server_default=sa.text("now()"), nullable=False),
        sa.Column("closed_at", sa.DateTime(timezone=True), nullable=True),
        sa.CheckConstraint(
            "shape IN ('never_resolved', 'no_progress', 'silent_step', 'unclaimed')", name=op.f("episodes_shape")
        ),
        sa.ForeignKeyConstraint(
            ["run_id"], ["agentrun.runs.id"], name=op.f("episodes_run_id_fkey"), ondelete="CASCADE"
        ),
        sa.PrimaryKeyConstraint("id", name=op.f("episodes_pkey")),
        schema="agentrun",
    )
    op.create_index("episodes_of_run", "episodes", ["run_id"], unique=False, schema="agentrun")
    op.create_index(
        "episodes_open",
        "episodes",
        ["run_id"],
        unique=True,
        schema="agentrun",
        postgresql_where=sa.text("closed_at IS NULL"),
    )
    op.create_table(
        "notices",
        sa.Column("id", sa.BigInteger(), autoincrement=True, nullable=False),
        sa.Column("namespace", sa.Text(), nullable=False),
        sa.Column("run_id", sa.UUID(), nullable=False),
        sa.Column("occasion", sa.Text(), nullable=False),
        sa.Column("subject", sa.Text(), nullable=False),
        sa.Column("wait_id", sa.UUID(), nullable=True),
        sa.Column("episode_id", sa.BigInteger(), nullable=True),
        sa.Column("hook", sa.Text(), nullable=False),
        sa.Column("round", sa.Integer(), server_default=sa.text("1"), nullable=False),
        sa.Column("data", postgresql.JSON(astext_type=sa.Text()), nullable=True),
        sa.Column("created_at", sa.DateTime(timezone=True), server_default=sa.text("now()"), nullable=False),
        sa.Column("due_at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("attempts", sa.Integer(), server_default=sa.text("0"), nullable=False),
        sa.Column("ended_at", sa.DateTime(timezone=True), nullable=True),
        sa.Column("ending", sa.Text(), nullable=True),
        sa.Column("last_error", sa.Text(), nullable=True),
        sa.CheckConstraint("ending IN ('delivered', 'given_up', 'outdated')", name=op.f("notices_ending")),
        sa.CheckConstraint("occasion IN ('dead', 'stalled', 'waiting')", name=op.f("notices_occasion")),
        sa.CheckConstraint("(ended_at IS NULL) = (ending IS NULL)", name=op.f("notices_ended_iff_ending")),
        sa.ForeignKeyConstraint(["run_id"], ["agentrun.runs.id"], name=op.f("notices_run_id_fkey"), ondelete="CASCADE"),
        sa.PrimaryKeyConstraint("id", name=op.f("notices_pkey")),
        schema="agentrun",
    )
    op.create_index(
        "notices_due",
        "notices",
        ["namespace", "due_at"],
        unique=False,
        schema="agentrun",
        postgresql_where=sa.text("ended_at IS NULL"),
    )
    op.create_index(
        "notices_given_up",
        "notices",
        ["namespace", "ended_at"],
        unique=False,
        schema="agentrun",
        postgresql_where=sa.text("ending = 'given_up'"),
    )
    op.create_index("notices_of_run", "notices", ["run_id"], unique=False, schema="agentrun")
    op.create_index("notices_once", "notices", ["subject", "hook", "occasion", "round"], unique=True, schema="agentrun")
    op.create_table(
        "signals",
        sa.Column("id", sa.BigInteger(), autoincrement=True, nullable=False),
        sa.Column("run_id", sa.UUID(), nullable=False),
        sa.Column("name", sa.Text(), nullable=False),
        sa.Column("payload", postgresql.JSON(astext_type=sa.Text()), nullable=True),
        sa.Column("sent_by", sa.Text(), nullable=True),
        sa.Column("sent_at", sa.DateTime(timezone=True), server_default=sa.text("now()"), nullable=False),
        sa.Column("expires_at", sa.DateTime(timezone=True), nullable=True),
        sa.Column("taken_by_step", sa.Text(), nullable=True),
        sa.ForeignKeyConstraint(["run_id"], ["agentrun.runs.id"], name=op.f("signals_run_id_fkey"), ondelete="CASCADE"),
        sa.PrimaryKeyConstraint("id", name=op.f("signals_pkey")),
        schema="agentrun",
    )
    op.create_index(
        "signals_buffered",
        "signals",
        ["run_id", "name", "id"],
        unique=False,
        schema="agentrun",
        postgresql_where=sa.text("taken_by_step IS NULL"),
    )
    op.create_index(
        "signals_expiring",
        "signals",
        ["expires_at"],
        unique=False,
        schema="agentrun",
        postgresql_where=sa.text("taken_by_step IS NULL AND expires_at IS NOT NULL"),
    )
    op.create_table(
        "waits",
        sa.Column("id", sa.UUID(), nullable=False),
        sa.Column("run_id", sa.UUID(), nullable=False),
        sa.Column("step_key", sa.Text(), nullable=False),
        sa.Column("namespace", sa.Text(), nullable=False),
        sa.Column("kind", sa.Text(), nullable=False),
        sa.Column("name", sa.Text(), nullable=True),
        sa.Column("status", sa.Text(), server_default=sa.text("'open'"), nullable=False),
        sa.Column("asks", postgresql.JSON(astext_type=sa.Text()), nullable=True),
        sa.Column("asks_digest", sa.Text(), nullable=True),
        sa.Column("role", sa.Text(), nullable=True),
        sa.Column("due_at", sa.DateTime(timezone=True), nullable=True),
        sa.Column("remind_at", sa.DateTime(timezone=True), nullable=True),
        sa.Column("remind_seconds", sa.Double(), nullable=True),
        sa.Column("on_expiry", postgresql.JSON(astext_type=sa.Text()), nullable=True),
        sa.Column("child_id", sa.UUID(), nullable=True),
        sa.Column("token_digest", sa.Text(), nullable=True),
        sa.Column("resolution", postgresql.JSON(astext_type=sa.Text()), nullable=True),
        sa.Column("resolved_by", sa.Text(), nullable=True),
        sa.Column("comment", sa.Text(), nullable=True),
        sa.Column("created_at", sa.DateTime(timezone=True), server_default=sa.text("now()"), nullable=False),
        sa.Column("resolved_at", sa.DateTime(timezone=True), nullable=True),
        sa.CheckConstraint("(status = 'open') = (resolved_at IS NULL)", name=op.f("waits_open_iff_unresolved")),
        sa.CheckConstraint(
            "kind IN ('approval', 'child', 'input', 'remote', 'signal', 'timer')", name=op.f("waits_kind")
        ),
        sa.CheckConstraint("status IN ('closed', 'expired', 'open', 'resolved')", name=op.f("waits_status")),
        sa.ForeignKeyConstraint(["run_id"], ["agentrun.runs.id"], name=op.f("waits_run_id_fkey"), ondelete="CASCADE"),
        sa.PrimaryKeyConstraint("id", name=op.f("waits_pkey")),
        sa.UniqueConstraint("run_id", "step_key", name=op.f("waits_run_id_step_key_key")),
        schema="agentrun",
    )
    op.create_index(
        "waits_child",
        "waits",
        ["child_id"],
        unique=False,
        schema="agentrun",
        postgresql_where=sa.text("child_id IS NOT NULL"),
    )
    op.create_index(
        "waits_due",
        "waits",
        ["namespace", "due_at"],
        unique=False,
        schema="agentrun",
        postgresql_where=sa.text("status = 'open' AND due_at IS NOT NULL"),
    )
    op.create_index(
        "waits_open",
        "waits",
        ["namespace", "created_at"],
        unique=False,
        schema="agentrun",
        postgresql_where=sa.text("status = 'open'"),
    )
    op.create_index(
        "waits_token",
        "waits",
        ["token_digest"],
        unique=True,
        schema="agentrun",
        postgresql_where=sa.text("token_digest IS NOT NULL"),
    )


def downgrade() -> None:
    op.drop_index(
        "waits_token", table_name="waits", schema="agentrun", postgresql_where=sa.text("token_digest IS NOT NULL")
    )
    op.drop_index("waits_open", table_name="waits", schema="agentrun", postgresql_where=sa.text("status = 'open'"))
    op.drop_index(
        "waits_due",
        table_name="waits",
        schema="agentrun",
        postgresql_where=sa.text("status = 'open' AND due_at IS NOT NULL"),
    )
    op.drop_index(
        "waits_child", table_name="waits", schema="agentrun", postgresql_where=sa.text("child_id IS NOT NULL")
    )
    op.drop_table("waits", schema="agentrun")
    op.drop_index(
        "signals_expiring",
        table_name="signals",
        schema="agentrun",
        postgresql_where=sa.text("taken_by_step IS NULL AND expires_at IS NOT NULL"),
    )
    op.drop_index(
        "signals_buffered", table_name="signals", schema="agentrun", postgresql_where=sa.text("taken_by_step IS NULL")
    )
    op.drop_table("signals", schema="agentrun")
    op.drop_index("notices_once", table_name="notices", schema="agentrun")
    op.drop_index("notices_of_run", table_name="notices", schema="agentrun")
    op.drop_index(
        "notices_given_up", table_name="notices", schema="agentrun", postgresql_where=sa.text("ending = 'given_up'")
    )
    op.drop_index("notices_due", table_name="notices", schema="agentrun", postgresql_where=sa.text("ended_at IS NULL"))
    op.drop_table("notices", schema="agentrun")
    op.drop_index(
        "episodes_open", table_name="episodes", schema="agentrun", postgresql_where=sa.text("closed_at IS NULL")
    )
    op.drop_index("episodes_of_run", table_name="episodes", schema="agentrun")
    op.drop_table("episodes", schema="agentrun")
    op.drop_table("sweeps", schema="agentrun")
    op.drop_index(
        "steps_unclaimed",
        table_name="steps",
        schema="agentrun",
        postgresql_where=sa.text("status = 'offered' AND lease_expires_at IS NOT NULL"),
    )
    op.drop_index(
        "steps_token", table_name="steps", schema="agentrun", postgresql_where=sa.text("token_digest IS NOT NULL")
    )
    op.drop_index(
        "steps_offered", table_name="steps", schema="agentrun", postgresql_where=sa.text("status = 'offered'")
    )
    op.drop_index(
        "steps_in_flight", table_name="steps", schema="agentrun", postgresql_where=sa.text("status = 'started'")
    )
    op.drop_table("steps", schema="agentrun")
    op.drop_table("spend", schema="agentrun")
    op.drop_index(
        "runs_waiting_due",
        table_name="runs",
        schema="agentrun",
        postgresql_where=sa.text("status = 'waiting' AND due_at IS NOT NULL"),
    )
    op.drop_index("runs_waiting", table_name="runs", schema="agentrun", postgresql_where=sa.text("status = 'waiting'"))
    op.drop_index(
        "runs_tags",
        table_name="runs",
        schema="agentrun",
        postgresql_using="gin",
        postgresql_where=sa.text("tags <> '{}'::text[]"),
    )
    op.drop_index("runs_running", table_name="runs", schema="agentrun", postgresql_where=sa.text("status = 'running'"))
    op.drop_index(
        "runs_idempotency",
        table_name="runs",
        schema="agentrun",
        postgresql_where=sa.text("idempotency_key IS NOT NULL"),
    )
    op.drop_index("runs_failed", table_name="runs", schema="agentrun", postgresql_where=sa.text("status = 'failed'"))
    op.drop_index("runs_due", table_name="runs", schema="agentrun", postgresql_where=sa.text("status = 'queued'"))
    op.drop_index(
        "runs_deadline",
        table_name="runs",
        schema="agentrun",
        postgresql_where=sa.text("deadline_at IS NOT NULL AND status IN ('queued', 'running', 'waiting')"),
    )
    op.drop_index("runs_created", table_name="runs", schema="agentrun")
    op.drop_index(
        "runs_children",
        table_name="runs",
        schema="agentrun",
        postgresql_where=sa.text("parent_id IS NOT NULL AND status IN ('queued', 'running', 'waiting')"),
    )
    op.drop_table("runs", schema="agentrun")
    op.drop_table("processes", schema="agentrun")
    op.drop_table("moves", schema="agentrun")
    op.drop_table("budgets", schema="agentrun")
    op.execute(sa.schema.DropSequence(sa.Sequence("event_seq", schema="agentrun")))
