"""Alembic's entry: online migrations of the schema `agentrun`, by one process at a time, one revision after another."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator

from alembic import context
from sqlalchemy import Engine, text

from agentrun.settings import Settings
from agentrun.store.schema import engine
from agentrun.store.tables import SCHEMA, metadata

LOCK = text("SELECT pg_try_advisory_xact_lock(hashtext('agentrun migrate'))")
A_MOMENT = 0.1
"""Seconds until somebody who waits for another process's migration looks again."""


def _ours(name: str | None, kind: str, parents: object) -> bool:
    return kind != "schema" or name == SCHEMA


def _of_settings(settings: Settings) -> str:
    return settings.direct_database_url or settings.require_database()


@contextlib.contextmanager
def _alone(database: Engine) -> Iterator[None]:
    """Nobody else migrates meanwhile. The lock is a transaction's own, so that a pooler may be in between.

    Who waits does not wait in a statement: an index that is built concurrently waits for the statements of everybody,
    also of those who wait for it.
    """
    with database.connect() as connection:
        while not connection.execute(LOCK).scalar():
            connection.rollback()
            threading.Event().wait(A_MOMENT)
        connection.execute(text("SET LOCAL idle_in_transaction_session_timeout = 0"))
        yield
        connection.rollback()


def run() -> None:
    database = engine(context.config.attributes.get("url") or _of_settings(Settings()))
    with _alone(database), database.connect() as connection:
        connection.execute(text(f"CREATE SCHEMA IF NOT EXISTS {SCHEMA}"))
        connection.commit()
        # A database user named like the schema has it as the default one, and autogenerate would look past it.
        connection.dialect.default_schema_name = "public"
        context.configure(
            connection=connection,
            target_metadata=metadata,
            version_table_schema=SCHEMA,
            include_schemas=True,
            include_name=_ours,
            compare_type=True,
            compare_server_default=False,
            transaction_per_migration=True,
        )
        with context.begin_transaction():
            context.run_migrations()


run()
