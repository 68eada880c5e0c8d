"""Indexes by which a purge finds what belongs to a run."""

from __future__ import annotations

from alembic import op

revision = "0002"
down_revision = "0001"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.create_index("signals_of_run", "signals", ["run_id"], schema="agentrun")
    op.create_index("spend_of_run", "spend", ["run_id"], schema="agentrun")


def downgrade() -> None:
    op.drop_index("spend_of_run", table_name="spend", schema="agentrun")
    op.drop_index("signals_of_run", table_name="signals", schema="agentrun")
