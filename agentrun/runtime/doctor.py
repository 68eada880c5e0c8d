"""`agentrun doctor` without its screen: facts, read by few statements, and the findings that checks make of them.

A check is a pure function over facts; the checks are in `symptoms` (runs) and `fleet` (processes and broker). Nothing
here changes anything.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Any

from agentrun.core.codec import decode
from agentrun.runtime.healing import WORKER, needs
from agentrun.settings import Settings
from agentrun.store import diagnosis, episodes, roster
from agentrun.store.database import Database
from agentrun.store.watching import OWN_APP

Row = Mapping[str, Any]
MOST_STRANDED = 100
LATE_BEATS, LATE_SECONDS = 3, 15.0


class Severity(StrEnum):
    """How bad it is. An error: runs do not go on. A warning: it will hurt, or a run needs somebody. A notice: good to
    know."""

    ERROR = "error"
    WARNING = "warning"
    NOTICE = "notice"


EXIT_CODES = {Severity.ERROR: 2, Severity.WARNING: 1, Severity.NOTICE: 0}
"""As monitoring plugins have it: 0 fine, 1 warning, 2 critical."""


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing that is wrong now: what is seen, why, what says so, and the one command that heals it."""

    check: str
    severity: Severity
    symptom: str
    cause: str
    evidence: str
    heal: str
    needs: str | None = None
    """What the command needs beside itself."""

    run_id: str | None = None
    namespace: str | None = None


@dataclass(frozen=True, slots=True)
class Broker:
    """What the broker says of itself. `problem` is why it cannot be asked; None is what it does not tell."""

    about: str = ""
    problem: str | None = None
    policy: str | None = None
    evicted: int | None = None
    full: tuple[int, int] | None = None
    """Where it takes nothing more: the bytes that it uses, and those that it may use (`maxmemory`)."""

    late: tuple[tuple[str, float], ...] = ()
    """Messages whose countdown is longer than the cap: the task, and seconds from now."""

    depths: Mapping[str, int] | None = None
    """How many messages lie in each queue."""


@dataclass(frozen=True, slots=True)
class Facts:
    """One namespace as it is now. Ages are seconds, by the database's clock."""

    settings: Settings
    namespace: str
    processes: Sequence[Row]
    due: Sequence[Row]
    offered: Sequence[Row]
    sweep: Row
    expired: Row
    waiting: Row
    dead: Sequence[Row]
    stranded: Sequence[Row]
    episodes: Row
    given_up: Sequence[Row]
    broker: Broker | None = None
    """None where it was not asked."""

    @property
    def alive(self) -> list[Row]:
        """Processes that were seen within the last minute."""
        return [each for each in self.processes if each["alive"]]

    @property
    def workers(self) -> list[Row]:
        """Those that take runs or steps from a queue."""
        return [each for each in self.alive if each["queues"] and not each["draining"]]

    @property
    def late(self) -> list[Row]:
        """Those of the living that have missed beats: killed, perhaps."""
        return [each for each in self.alive if is_late(each, self.settings)]

    @property
    def app(self) -> str:
        """What `celery -A` is told here, as far as anybody has said within the last hour."""
        said = [each for each in self.processes if each["about"].get("app")]
        return max(said, key=lambda each: each["seen_at"])["about"]["app"] if said else OWN_APP

    def worker(self, queue: str) -> str:
        """The command that starts a worker of this installation for a queue."""
        return WORKER.format(app=self.app, queue=queue)

    @property
    def queues(self) -> set[str]:
        """The queues that somebody consumes."""
        return {queue for each in self.workers for queue in each["queues"]}


def is_late(process: Row, settings: Settings) -> bool:
    """Not seen for three beats, and for a moment."""
    return process["silent"] > longest_silence(process["about"].get("heartbeat") or settings.heartbeat_seconds)


def longest_silence(beat: float) -> float:
    """How long nothing is heard, at most, of a process that lives and beats every so many seconds."""
    return max(LATE_BEATS * beat, LATE_SECONDS)


Check = Callable[[Facts], Iterator[Finding]]


def gather(database: Database, settings: Settings, namespace: str) -> Facts:
    """Read the facts: one statement for each, each with an index of its own or a small table."""
    scope = {"namespace": namespace, "after": settings.stalled_after_seconds, "limit": MOST_STRANDED}

    def rows(statement: Any) -> list[Row]:
        return [*database.rows(statement, scope)]

    return Facts(
        settings=settings,
        namespace=namespace,
        processes=[{**each, "about": decode(each["about"]) or {}} for each in rows(roster.PROCESSES)],
        due=rows(diagnosis.DUE_BY_KIND),
        offered=rows(diagnosis.OFFERED_BY_QUEUE),
        sweep=rows(diagnosis.LAST_SWEEP)[0],
        expired=rows(diagnosis.EXPIRED_LEASES)[0],
        waiting=rows(diagnosis.LONG_WAITS)[0],
        dead=rows(diagnosis.DEAD_LETTERS),
        stranded=rows(episodes.STRANDED),
        episodes=rows(diagnosis.OPEN_EPISODES)[0],
        given_up=rows(diagnosis.GIVEN_UP),
    )


def namespaces(database: Database) -> list[str]:
    """Every namespace in the database."""
    return [row["name"] for row in database.rows(roster.NAMESPACES)]


def examined(facts: Facts, checks: Sequence[Check]) -> list[Finding]:
    """What the checks find in one namespace, the worst first."""
    found = [
        replace(
            finding,
            namespace=facts.namespace,
            needs=finding.needs or needs(finding.heal, namespace=facts.namespace),
        )
        for check in checks
        for finding in check(facts)
    ]
    return sorted(found, key=lambda finding: list(Severity).index(finding.severity))


def place(process: Row) -> tuple[str, str]:
    """A process's host and number there. A process with a stable id has that one in its name, where others have their
    host: what its Celery calls its host is preferred."""
    where, pid, *_ = process["name"].split(":")[1:]
    return (process["about"].get("node") or "").partition("@")[2] or where, pid


def exit_code(findings: Sequence[Finding]) -> int:
    """That of the worst finding."""
    return max((EXIT_CODES[finding.severity] for finding in findings), default=0)


def span(seconds: float) -> str:
    """A duration in its largest unit but seconds: `3 min`, `26 h`."""
    for unit, size in (("days", 2 * 86_400.0), ("h", 2 * 3_600.0), ("min", 120.0)):
        if seconds >= size:
            return f"{seconds / {'days': 86_400, 'h': 3_600, 'min': 60}[unit]:.0f} {unit}"
    return f"{seconds:.0f} s"
