"""What a database says when it cannot serve, in the words of agentrun's errors. Nothing is retried here."""

from __future__ import annotations

import sys
from collections.abc import Generator
from contextlib import contextmanager

import psycopg
import psycopg.errors
import sqlalchemy.exc

from agentrun.core.errors import ConfigurationError, InvalidRequest, SchemaMismatch
from agentrun.store.connect import broke

_OTHER_SCHEMA = (
    psycopg.errors.UndefinedTable,
    psycopg.errors.UndefinedColumn,
    psycopg.errors.UndefinedFunction,
    psycopg.errors.InvalidSchemaName,
)


def explained(error: BaseException) -> ConfigurationError | None:
    """The error that says which setting or command helps; None where `error` is no trouble with the database."""
    match error:
        case sqlalchemy.exc.DBAPIError():
            return explained(error.orig) if error.orig is not None else None
        case _ if _of_migrating(error):
            return SchemaMismatch(
                f"the schema cannot be migrated: {error}; a revision that this agentrun does not know is misspelt, "
                "or a newer agentrun's"
            )
        case psycopg.Error() if isinstance(error, _OTHER_SCHEMA):
            return SchemaMismatch(
                f"the database's schema is not the one this version of agentrun needs ({_first_line(error)}); "
                "run `agentrun migrate`"
            )
        case psycopg.errors.InsufficientPrivilege():
            return ConfigurationError(f"the user of AGENTRUN_DATABASE_URL may not do this: {_first_line(error)}")
        case psycopg.errors.ReadOnlySqlTransaction():
            return ConfigurationError(
                f"the database of AGENTRUN_DATABASE_URL takes no write ({_first_line(error)}): a standby, or its "
                "default_transaction_read_only is on; `agentrun doctor` says which, and the command that helps"
            )
        case psycopg.OperationalError() if not broke(error):
            return ConfigurationError(
                f"the database of AGENTRUN_DATABASE_URL ended a statement unfinished ({_first_line(error)}), and what "
                "it did is undone; its log says more, and `SHOW statement_timeout` whether a limit is too short"
            )
        case psycopg.OperationalError():
            return ConfigurationError(
                f"the database of AGENTRUN_DATABASE_URL cannot be reached: {_first_line(error)}; "
                "see whether the server is up and the URL is right"
            )
        case _:
            return None


def away(error: BaseException) -> bool:
    """Whether the database cannot be reached, or went away meanwhile: nothing is wrong with what was asked."""
    said_by = (error, error.__cause__, error.__context__) if isinstance(error, ConfigurationError) else (error,)
    return any(each is not None and broke(each) for each in said_by)


@contextmanager
def explaining() -> Generator[None]:
    """Raises `explained` in place of what psycopg raises, and InvalidRequest for a value that the database has no place
    for: nothing is stored then. A deadlock stays, and what nothing is known of."""
    try:
        yield
    except psycopg.errors.DeadlockDetected:
        raise
    except (psycopg.DataError, UnicodeEncodeError) as error:
        said = _first_line(error) if isinstance(error, psycopg.Error) else "a text that is no Unicode"
        raise InvalidRequest(f"PostgreSQL has no place for what was said, and stored nothing: {said}") from None
    except psycopg.Error as error:
        known = explained(error)
        if known is None:
            raise
        # The cause stays with it: who asked for a commit may want to know that it is in doubt.
        raise known from error


def _of_migrating(error: BaseException) -> bool:
    # Alembic takes 0.3 s to import, and who has not migrated cannot have an error of its.
    alembic = sys.modules.get("alembic.util")
    return alembic is not None and isinstance(error, alembic.CommandError)


def _first_line(error: psycopg.Error) -> str:
    return (str(error).splitlines() or [type(error).__name__])[0]
