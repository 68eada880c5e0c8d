"""An index by which the runs with an attribute are listed beside a long history of others."""

from __future__ import annotations

from agentrun.store.indexes import build, drop

revision = "0005"
down_revision = "0004"
branch_labels = None
depends_on = None


def upgrade() -> None:
    build(
        "runs_attributes",
        "runs",
        ["attributes"],
        where="attributes <> '{}'::jsonb",
        postgresql_using="gin",
        postgresql_ops={"attributes": "jsonb_path_ops"},
    )


def downgrade() -> None:
    drop("runs_attributes", "runs")
