"""An index by which a kind's runs are listed beside a long history of others."""

from __future__ import annotations

from agentrun.store.indexes import build, drop

revision = "0004"
down_revision = "0003"
branch_labels = None
depends_on = None


def upgrade() -> None:
    build("runs_of_kind", "runs", ["namespace", "kind", "created_at", "id"])


def downgrade() -> None:
    drop("runs_of_kind", "runs")
