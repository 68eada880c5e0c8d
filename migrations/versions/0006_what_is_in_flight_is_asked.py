"""What a run has in flight is asked of its steps: to note it on the run, too, was two updates with each write."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

from agentrun.store.tables import SCHEMA

revision = "0006"
down_revision = "0005"
branch_labels = None
depends_on = None

_NOTED = """
UPDATE agentrun.runs SET pending_effect = noted.effect FROM (
    SELECT run_id, max(effect) AS effect FROM agentrun.steps
    WHERE status IN ('started') AND effect <> 'read_only' AND lease_expires_at IS NULL GROUP BY run_id
) AS noted WHERE noted.run_id = runs.id
"""


def upgrade() -> None:
    op.drop_column("runs", "pending_effect", schema=SCHEMA)


def downgrade() -> None:
    op.add_column("runs", sa.Column("pending_effect", sa.Text(), nullable=True), schema=SCHEMA)
    op.execute(_NOTED)
    op.create_check_constraint(
        op.f("runs_pending_effect"),
        "runs",
        "pending_effect IS NULL OR pending_effect IN ('idempotent_write', 'non_idempotent_write')",
        schema=SCHEMA,
    )
