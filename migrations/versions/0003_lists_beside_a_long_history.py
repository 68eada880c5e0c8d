"""Indexes by which runs are listed beside a long history: what has gone wrong, an owner's, a parent's."""

from __future__ import annotations

from agentrun.store.indexes import build, drop

revision = "0003"
down_revision = "0002"
branch_labels = None
depends_on = None

INDEXES = {
    "runs_unsuccessful": (["namespace", "created_at", "id"], "status IN ('cancelled', 'failed')"),
    "runs_of_owner": (["namespace", "owner", "created_at", "id"], "owner IS NOT NULL"),
    "runs_of_parent": (["parent_id", "created_at", "id"], "parent_id IS NOT NULL"),
}


def upgrade() -> None:
    for name, (columns, which) in INDEXES.items():
        build(name, "runs", columns, where=which)


def downgrade() -> None:
    for name in INDEXES:
        drop(name, "runs")
