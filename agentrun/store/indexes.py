"""For migrations: indexes of tables that may be large, built and dropped beside whoever reads and writes them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from sqlalchemy import text

from agentrun.store.tables import SCHEMA

_INVALID = text(
    "SELECT 1 FROM pg_index WHERE NOT indisvalid AND indexrelid = to_regclass(format('%I.%I', CAST(:schema AS text), "
    "CAST(:name AS text)))"
)


def build(name: str, table: str, columns: Sequence[str], *, where: str | None = None, **options: Any) -> None:
    """Build an index outside of any transaction; what its revision did before is committed. `options` are Alembic's.

    A build that was interrupted leaves an index that is kept up to date and never used: that one is made anew. One that
    can be used is left, so that a revision that was interrupted between two is simply run again.
    """
    from alembic import op

    with op.get_context().autocommit_block():
        if op.get_bind().execute(_INVALID, {"schema": SCHEMA, "name": name}).first() is not None:
            _drop(name, table)
        op.create_index(
            name, table, columns, schema=SCHEMA, if_not_exists=True, postgresql_concurrently=True,
            postgresql_where=text(where) if where is not None else None, **options,
        )  # fmt: skip


def drop(name: str, table: str) -> None:
    """Drop an index where it is there, outside of any transaction."""
    from alembic import op

    with op.get_context().autocommit_block():
        _drop(name, table)


def _drop(name: str, table: str) -> None:
    from alembic import op

    op.drop_index(name, table_name=table, schema=SCHEMA, if_exists=True, postgresql_concurrently=True)
