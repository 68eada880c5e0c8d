"""Indexes by which a purge finds what belongs to a run."""

from __future__ import annotations

from agentrun.store.indexes import build, drop

revision = "0002"
down_revision = "0001"
branch_labels = None
depends_on = None

INDEXES = {"signals_of_run": "signals", "spend_of_run": "spend"}


def upgrade() -> None:
    for name, table in INDEXES.items():
        build(name, table, ["run_id"])


def downgrade() -> None:
    for name, table in INDEXES.items():
        drop(name, table)
