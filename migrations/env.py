"""Alembic's entry: online migrations of the schema `agentrun`, one at a time even when several processes migrate."""

from __future__ import annotations

from alembic import context
from sqlalchemy import text

from agentrun.settings import Settings
from agentrun.store.schema import engine
from agentrun.store.tables import SCHEMA, metadata


def _ours(name: str | None, kind: str, parents: object) -> bool:
    return kind != "schema" or name == SCHEMA


def _of_settings(settings: Settings) -> str:
    return settings.direct_database_url or settings.require_database()


def run() -> None:
    url = context.config.attributes.get("url") or _of_settings(Settings())
    with engine(url).begin() as connection:
        connection.execute(text("SELECT pg_advisory_xact_lock(hashtext('agentrun migrate'))"))
        connection.execute(text(f"CREATE SCHEMA IF NOT EXISTS {SCHEMA}"))
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
        )
        context.run_migrations()


run()
