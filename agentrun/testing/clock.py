"""A clock that travels: the database's `now()`, ahead of the server's by what a test says.

Every instant of agentrun comes from an unqualified SQL `now()`. A test's database gets a schema in front of
`pg_catalog` with a `now()` of its own; production code and production databases know nothing of it.
"""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any
from urllib.parse import urlsplit

import psycopg
import pytest
from psycopg import sql

from agentrun.runtime import context

_SCHEMA = """
CREATE SCHEMA agentrun_clock;
CREATE TABLE agentrun_clock.travelled (ahead interval NOT NULL);
INSERT INTO agentrun_clock.travelled VALUES ('0');
CREATE FUNCTION agentrun_clock.now() RETURNS timestamptz LANGUAGE sql STABLE PARALLEL SAFE AS
    'SELECT pg_catalog.now() + ahead FROM agentrun_clock.travelled';
GRANT USAGE ON SCHEMA agentrun_clock TO PUBLIC;
GRANT SELECT ON agentrun_clock.travelled TO PUBLIC;
"""
_IN_FRONT = "ALTER DATABASE {} SET search_path = agentrun_clock, pg_catalog, public"


class Clock:
    """The time of one test's database. It goes on by itself, and further where a test says so; never back."""

    def __init__(self, url: str) -> None:
        self._url = url

    @staticmethod
    def install(url: str) -> None:
        """Give a database this clock. Connections that are open already keep the server's time."""
        name = urlsplit(url).path.lstrip("/")
        with psycopg.connect(url) as connection:
            connection.execute(_SCHEMA)
            connection.execute(sql.SQL(_IN_FRONT).format(sql.Identifier(name)))

    def travel(
        self,
        span: timedelta | float = 0,
        *,
        seconds: float = 0,
        minutes: float = 0,
        hours: float = 0,
        days: float = 0,
    ) -> datetime:
        """Let that much time pass at once; returns what time it is then.

        Leases lapse, backoffs end, timers and deadlines are due, for whoever looks next: a sweep, a claim, a drain of
        the broker fixture. Raises ValueError for a way back: a database's clock that goes back is another test.
        """
        base = span if isinstance(span, timedelta) else timedelta(seconds=span)
        total = base + timedelta(seconds=seconds, minutes=minutes, hours=hours, days=days)
        if total < timedelta(0):
            raise ValueError(f"a clock travels ahead only, not by {total}")
        with psycopg.connect(self._url, autocommit=True) as connection:
            connection.execute("UPDATE agentrun_clock.travelled SET ahead = ahead + %s", [total])
        return self.now()

    def travel_to(self, when: datetime) -> datetime:
        """Let time pass until an instant (with a time zone); nothing where it has passed already."""
        return self.travel(max(when - self.now(), timedelta(0)))

    def now(self) -> datetime:
        """What time it is."""
        return self._asked("SELECT now()")

    @property
    def ahead(self) -> timedelta:
        """How far it has travelled."""
        return self._asked("SELECT ahead FROM agentrun_clock.travelled")

    def lead(self, patch: pytest.MonkeyPatch) -> None:
        """Let `ctx.now()` of this process's bodies follow: the one time that comes from a host's clock."""

        def _utc_now() -> datetime:
            return self.now().astimezone(UTC)

        patch.setattr(context, _utc_now.__name__, _utc_now)

    def _asked(self, question: str) -> Any:
        with psycopg.connect(self._url, autocommit=True) as connection:
            row = connection.execute(question.encode()).fetchone()
        assert row is not None
        return row[0]
