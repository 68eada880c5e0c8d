"""A server that is away, in the log of a process: a line when it begins, one a minute while it lasts, one at its end.

Whoever of the process notices it says so here, as often as it likes: all of them together are those few lines.
"""

from __future__ import annotations

import logging
import threading
import time
from urllib.parse import urlsplit

from agentrun.core.safe_text import first_line

REMIND_SECONDS = 60.0
"""Between two lines of an outage that lasts."""

LONGEST_REASON = 200

_MEANWHILE = {
    "PostgreSQL": (
        logging.getLogger("agentrun.store"),
        "until it is back, nothing is claimed or recorded; a run whose lease ends meanwhile goes on from its journal",
    ),
    "the broker": (
        logging.getLogger("agentrun.broker"),
        "until it is back, nothing is sent or received; runs that execute go on",
    ),
}


class Outage:
    """One server's absences, as one process notices them. Thread-safe; costs nothing while all is well."""

    def __init__(self, server: str, url: str) -> None:
        self._log, self._meanwhile = _MEANWHILE[server]
        self._what = f"{server} at {without_password(url)}"
        self._lock = threading.Lock()
        self._waiting: set[str] = set()
        self._since: float | None = None
        self._told = 0.0

    def failed(self, error: BaseException, *, who: str | None = None) -> None:
        """Somebody could not use the server. `who` tries until it can: the outage lasts until then.

        Without a name it lasts until anybody comes through.
        """
        now = time.monotonic()
        with self._lock:
            if who is not None:
                self._waiting.add(who)
            began = self._since is None
            self._since = now if self._since is None else self._since
            if not began and now - self._told < REMIND_SECONDS:
                return
            self._told, lasted = now, now - self._since
        reason = f"{type(error).__name__}: {first_line(error, LONGEST_REASON)}".removesuffix(": ")
        if began:
            self._log.warning("%s cannot be used (%s); %s", self._what, reason, self._meanwhile)
        else:
            self._log.warning("%s still cannot be used, for %.0f s now (%s)", self._what, lasted, reason)

    def worked(self, *, who: str | None = None) -> None:
        """Somebody could use it. The last line, where nobody else still waits for it."""
        if self._since is None:
            return
        with self._lock:
            self._waiting.discard(who or "")
            lasted = self._over()
        if lasted is not None:
            self._log.warning("%s can be used again, after %.1f s", self._what, lasted)

    def _over(self) -> float | None:
        if self._since is None or self._waiting:
            return None
        lasted, self._since = time.monotonic() - self._since, None
        return lasted

    def gone(self, who: str) -> None:
        """`who` has ended, and waits for nothing any more. Where it was the last one, nobody sees the outage's end."""
        with self._lock:
            if who in self._waiting:
                self._waiting.discard(who)
                self._since = self._since if self._waiting else None


_outages: dict[tuple[str, str], Outage] = {}


def outage_of(server: str, url: str) -> Outage:
    """The process's one `Outage` of "PostgreSQL" or "the broker" at `url`."""
    known = _outages.get((server, url))
    return known or _outages.setdefault((server, url), Outage(server, url))


def of_postgres(url: str) -> Outage:
    """That of a PostgreSQL server."""
    return outage_of("PostgreSQL", url)


def of_broker(url: str) -> Outage:
    """That of a broker."""
    return outage_of("the broker", url)


def without_password(url: str) -> str:
    """`scheme://user@host:port/path`: neither the password nor options, which may hold one."""
    parts = urlsplit(url)
    credentials, at, place = parts.netloc.rpartition("@")
    user = credentials.partition(":")[0]
    return f"{parts.scheme}://{user}{at if user else ''}{place}{parts.path}"


class Quiet(logging.Filter):
    """Leaves out what psycopg's pools say of our own connections' every failed try: `Outage` tells of it."""

    def filter(self, record: logging.LogRecord) -> bool:
        """Whether the line is written."""
        args = record.args
        ours = isinstance(args, tuple) and bool(args) and str(args[0]).startswith("agentrun")
        return not (ours and str(record.msg).startswith(("error connecting in", "reconnection attempt in")))


def be_quiet() -> None:
    """Once per process, however often it is called."""
    pools = logging.getLogger("psycopg.pool")
    if not any(isinstance(each, Quiet) for each in pools.filters):
        pools.addFilter(Quiet())
