"""The schema's revision: migrate to it, and refuse to work on another one."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from sqlalchemy import Engine, create_engine
from sqlalchemy.pool import NullPool

from agentrun.core.errors import SchemaMismatch
from agentrun.store.connect import plain
from agentrun.store.tables import SCHEMA

if TYPE_CHECKING:
    # Alembic takes 0.3 s to import, which most commands would spend for nothing.
    from alembic.config import Config
    from alembic.script import ScriptDirectory


def migrate(url: str, revision: str = "head") -> str | None:
    """Bring the database to `revision`; returns the revision it is at. Safe to run from several places at once.

    Raises SchemaMismatch where a newer agentrun was there: nothing is known of the way from its revision.
    """
    from alembic import command

    go = command.downgrade if leads_down(url, revision) else command.upgrade
    go(_config(url), revision)
    return current(url)


def leads_down(url: str, revision: str) -> bool:
    """Whether `revision` is older than what the database is at, so that going there drops what came since.

    Raises SchemaMismatch as `migrate`.
    """
    there, scripts = current(url), _scripts(url)
    _require_known(there, scripts)
    if there is None or revision == "base":
        return revision == "base"
    target = scripts.get_revision(revision).revision
    return target != there and target in {script.revision for script in scripts.iterate_revisions(there, "base")}


def current(url: str) -> str | None:
    """The revision that the database is at, or None where agentrun's schema is not there."""
    from alembic.runtime.migration import MigrationContext

    with engine(url).connect() as connection:
        options = {"version_table_schema": SCHEMA}
        return MigrationContext.configure(connection, opts=options).get_current_revision()


def head() -> str | None:
    """The revision that this code needs."""
    return _scripts("postgresql://").get_current_head()


def require_head(url: str) -> None:
    """Raises SchemaMismatch where the database is not at this code's revision."""
    there, scripts = current(url), _scripts(url)
    needed = scripts.get_current_head()
    if there is None:
        raise SchemaMismatch(
            f"the database has no schema yet, this version of agentrun needs {needed}; run `agentrun migrate`",
            missing=True,
        )
    if there != needed:
        _require_known(there, scripts)
        raise SchemaMismatch(
            f"the database's schema is at revision {there}, this version of agentrun needs {needed}; "
            "run `agentrun migrate`"
        )


def _require_known(there: str | None, scripts: ScriptDirectory) -> None:
    """Raises SchemaMismatch where a newer agentrun has made the schema: migrating would not help."""
    if there is not None and there not in {script.revision for script in scripts.walk_revisions()}:
        raise SchemaMismatch(
            f"the database's schema is at revision {there} of a newer agentrun, and this version needs "
            f"{scripts.get_current_head()}; run `pip install --upgrade agentrun`",
            newer=True,
        )


def engine(url: str) -> Engine:
    """A SQLAlchemy engine without a pool, for migrations. It prepares nothing, so that a pooler may be in between.

    Each transaction says its level itself: what the server's default is does not matter, nor whose session it is.
    """
    driver = plain(url).replace("postgresql://", "postgresql+psycopg://", 1)
    unprepared = {"prepare_threshold": None}
    return create_engine(driver, poolclass=NullPool, connect_args=unprepared, isolation_level="READ COMMITTED")


def _scripts(url: str) -> ScriptDirectory:
    from alembic.script import ScriptDirectory

    return ScriptDirectory.from_config(_config(url))


def _config(url: str) -> Config:
    from alembic.config import Config

    config = Config()
    config.set_main_option("script_location", str(_folder()))
    config.attributes["url"] = url
    return config


def _folder() -> Path:
    """Inside the wheel the scripts are part of the package; in a checkout they stand beside it."""
    package = Path(__file__).parents[1]
    inside = package / "_migrations"
    return inside if inside.is_dir() else package.parent / "migrations"
