"""How this package talks to PostgreSQL: connection arguments and adapters, the same for every connection."""

from __future__ import annotations

import re
from typing import Any, LiteralString

import psycopg
import psycopg.errors
from psycopg import AsyncConnection, Connection
from psycopg.conninfo import make_conninfo
from psycopg.rows import dict_row
from psycopg.types.string import TextLoader

from agentrun.core.errors import ConfigurationError

type_of_row = dict[str, Any]

_SCHEME = re.compile(r"[A-Za-z][A-Za-z0-9+.-]{,29}")

_KEEPALIVE = {
    "keepalives": 1,
    "keepalives_idle": 10,
    "keepalives_interval": 5,
    "keepalives_count": 3,
    "connect_timeout": 5,
}


def connect(url: str, *, name: str) -> Connection[type_of_row]:
    """A synchronous connection in autocommit. `name` is what pg_stat_activity shows. Raises as `adapt`."""
    connection = Connection[type_of_row].connect(conninfo(url, name=name), autocommit=True, row_factory=dict_row)
    adapt(connection)
    return connection


async def connect_async(url: str, *, name: str) -> AsyncConnection[type_of_row]:
    """An asynchronous connection in autocommit. Raises as `adapt`."""
    connection = await AsyncConnection[type_of_row].connect(
        conninfo(url, name=name), autocommit=True, row_factory=dict_row
    )
    _load_texts(connection)
    row = await (await connection.execute(UNUSUAL, [connection.info.backend_pid])).fetchone()
    if refusal := _heeded(connection, row):
        await connection.close()
        raise refusal
    return connection


def conninfo(url: str, *, name: str) -> str:
    """The connection string: the URL, keepalives that find a dead peer within half a minute, and our name."""
    return make_conninfo(plain(url), application_name=name, **_KEEPALIVE)


def adapt(connection: Connection[Any]) -> None:
    """Make a new connection one of ours, in autocommit and at READ COMMITTED, with rows as dicts.

    A pooler gives every transaction another session of the server, so nothing is prepared through it: the next
    transaction would not find it, or find another client's. A pooler shows by answering for a session that is not the
    one which it has told of.

    Raises ConfigurationError where a pooler's sessions have a stricter level: what one client sets, others find.
    """
    _load_texts(connection)
    row = connection.execute(UNUSUAL, [connection.info.backend_pid]).fetchone()
    if refusal := _heeded(connection, row):
        connection.close()
        raise refusal


def keeps_session(connection: Connection[Any]) -> bool:
    """Whether all transactions have the same session of the server: what a LISTEN and a session's lock need."""
    return connection.prepare_threshold is not None


UNUSUAL: LiteralString = """
SELECT other, level, strict,
CASE WHEN strict AND NOT other THEN set_config('default_transaction_isolation', 'read committed', false) END AS heeded
FROM (
    SELECT pg_backend_pid() != %s AS other, level, level IN ('repeatable read', 'serializable') AS strict
    FROM current_setting('default_transaction_isolation') AS level
) AS said
WHERE other OR strict
"""
"""Asked once, by every new connection. A row says that a pooler is in between (`other`), or that transactions would
begin at a stricter `level` than READ COMMITTED; those of a session that is ours alone no longer do then.

Every guard waits for whoever was first, and then sees what that one has committed. At a stricter level it would fail
instead, or look at what was there before.
"""

USUAL_LEVEL: LiteralString = "ALTER ROLE CURRENT_USER SET default_transaction_isolation TO 'read committed'"
"""Stands above what is set for the database or the server; every user may say it of themselves."""


def _heeded(connection: Connection[Any] | AsyncConnection[Any], row: type_of_row | None) -> ConfigurationError | None:
    """Prepares nothing through a pooler. The refusal, where its sessions' level is a stricter one."""
    if row is None or not row["other"]:
        return None
    connection.prepare_threshold = None
    if not row["strict"]:
        return None
    return ConfigurationError(
        f"through the pooler of AGENTRUN_DATABASE_URL, transactions begin at {row['level'].upper()}, and agentrun "
        f"needs READ COMMITTED; run `{USUAL_LEVEL}` as its user, then have the pooler connect anew (PgBouncer: "
        "RECONNECT)"
    )


def _load_texts(connection: Connection[Any] | AsyncConnection[Any]) -> None:
    """Stored JSON comes back as its text: pydantic reads it straight into types, and nothing is parsed twice."""
    connection.adapters.register_loader("json", TextLoader)


def plain(url: str, *, setting: str = "AGENTRUN_DATABASE_URL") -> str:
    """The URL without a SQLAlchemy driver name. Raises ConfigurationError where it is no PostgreSQL URL."""
    scheme, separator, rest = url.partition("://")
    if separator and scheme.split("+")[0] in ("postgresql", "postgres"):
        return f"postgresql://{rest}"
    # What stands where a scheme would, and is none, may be a password.
    said = f"its scheme is `{scheme}`" if separator and _SCHEME.fullmatch(scheme) else "it begins with no scheme"
    raise ConfigurationError(f"{setting} must be postgresql://user@host:port/name, but {said}")


_REFUSED = (
    psycopg.errors.DeadlockDetected,
    psycopg.errors.SerializationFailure,
    psycopg.errors.QueryCanceled,
    psycopg.errors.ProgramLimitExceeded,
    psycopg.errors.StatementTooComplex,
)
"""Operational errors too, in psycopg's words, and of what was asked: the connection lives."""


def broke(error: BaseException) -> bool:
    """Whether the connection is gone, so that nobody knows what had committed."""
    return isinstance(error, psycopg.OperationalError | psycopg.InterfaceError) and not isinstance(error, _REFUSED)
