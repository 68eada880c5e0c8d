"""A database that cannot be used, for `agentrun doctor`: why, by what it answered, and what helps. Changes nothing."""

from __future__ import annotations

from agentrun.core.errors import ConfigurationError
from agentrun.runtime.doctor import Finding, Row, Severity
from agentrun.store.connect import USUAL_LEVEL

_URL = '"$AGENTRUN_DATABASE_URL"'
_DOWN = ("it is down, cannot be reached from here, or AGENTRUN_DATABASE_URL is wrong", f"pg_isready -d {_URL}")
_NEW_URL = "export AGENTRUN_DATABASE_URL=postgresql://USER:PASSWORD@HOST:5432/NAME"
_WHO = "select application_name, state, count(*) from pg_stat_activity group by 1, 2 order by 3 desc"
_FULL = (
    "all its connections are taken; fewer for each process (AGENTRUN_MAX_CONNECTIONS), or a higher max_connections",
    f'psql {_URL} -c "{_WHO}"',
)
_ANSWERS = {
    "password authentication failed": ("AGENTRUN_DATABASE_URL has a wrong user or password", _NEW_URL),
    "no password supplied": ("AGENTRUN_DATABASE_URL has no password", _NEW_URL),
    "does not exist": ("AGENTRUN_DATABASE_URL names a user or database that the server does not have", _NEW_URL),
    "too many c": _FULL,
    "connection slots are reserved": _FULL,
    USUAL_LEVEL: (
        "default_transaction_isolation is not READ COMMITTED behind the pooler, which has to connect anew afterwards",
        f'psql {_URL} -c "{USUAL_LEVEL}"',
    ),
    "statement timeout": (
        "its statement_timeout is too short for this command, and perhaps for the workers",
        f"psql {_URL} -c \"alter role current_user set statement_timeout = '60s'\"",
    ),
}
"""By words of PostgreSQL's answer: a connection that was refused carries no code."""


def unusable(error: ConfigurationError) -> Finding:
    """The finding for a database that refuses, or does not answer."""
    said = str(error)
    cause, heal = next((known for words, known in _ANSWERS.items() if words in said), _DOWN)
    return Finding("database", Severity.ERROR, "nothing works without the database", cause, said, heal)


def read_only(row: Row) -> Finding:
    """The finding for a database that can be read and takes no write."""
    if row["standby"]:
        cause = "AGENTRUN_DATABASE_URL leads to a standby, or a failover is under way"
        heal = (
            "export AGENTRUN_DATABASE_URL='postgresql://USER:PASSWORD@HOST,HOST/NAME?target_session_attrs=read-write'"
        )
    else:
        cause = "default_transaction_read_only is on for this user, database or server"
        setting = "default_transaction_read_only = off"
        heal = f'psql {_URL} -c "set {setting}" -c "alter role current_user set {setting}"'
    return Finding(
        "read_only",
        Severity.ERROR,
        "no run is stored, starts, moves or ends",
        cause,
        f"PostgreSQL takes no write in this session; in recovery: {'yes' if row['standby'] else 'no'}",
        heal,
        None if row["standby"] else "workers that have connected meanwhile are restarted after it",
    )
