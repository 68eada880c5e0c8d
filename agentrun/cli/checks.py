"""What `agentrun check` looks at, one thing after the other. Errors stop runs; warnings will hurt one day."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from enum import StrEnum

from agentrun.cli.desk import database_of, found_settings, load_kinds
from agentrun.cli.screen import span
from agentrun.cli.unusable import read_only
from agentrun.core.errors import AgentrunError, ConfigurationError
from agentrun.runtime import doctor, fleet
from agentrun.runtime.kinds import registry
from agentrun.runtime.remotesteps import remote_steps
from agentrun.settings import Settings
from agentrun.store.database import Database
from agentrun.store.diagnosis import READ_ONLY
from agentrun.store.schema import head, require_head
from agentrun.store.troubles import explained
from agentrun.store.watching import Moment, moment

LARGEST_SKEW_SECONDS = 5.0


class Level(StrEnum):
    """How bad a finding is."""

    OK = "ok"
    WARNING = "warning"
    ERROR = "error"


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing that was looked at. `exit_code` is that of the error's class."""

    about: str
    level: Level
    says: str
    exit_code: int = 0


def findings() -> Iterator[Finding]:
    """Everything, in the order in which one depends on the other. What cannot be looked at is left out."""
    try:
        settings = found_settings()
    except ConfigurationError as error:
        yield _error("settings", error)
        return
    yield _ok("settings", f"namespace {settings.namespace}, queues {settings.queue} and {settings.system_queue}")
    yield from _database(settings)
    yield from _broker(settings)
    yield _kinds(settings)
    yield from _effects()


def _database(settings: Settings) -> Iterator[Finding]:
    try:
        with database_of(settings) as database:
            yield from _schema(settings, database)
    except Exception as error:
        known = error if isinstance(error, ConfigurationError) else explained(error)
        if known is None:
            raise
        yield _error("database", known)


def _schema(settings: Settings, database: Database) -> Iterator[Finding]:
    try:
        require_head(database.url)
    except ConfigurationError as error:
        yield _error("schema", error)
        return
    (writing,) = database.rows(READ_ONLY)
    if writing["read_only"]:
        yield _found("database", read_only(writing))
    now = moment(database, settings.namespace)
    yield _server(now, settings, pooled=database.pooled)
    yield _ok("schema", f"revision {head()}")
    yield _clock(now)
    yield _sweep(now, settings)
    yield _workers(now)


def _server(moment: Moment, settings: Settings, *, pooled: bool) -> Finding:
    says = f"PostgreSQL {moment.server}{', through a pooler' if pooled else ''}"
    if pooled and settings.stable_id is not None and settings.direct_database_url is None:
        return _warning("database", f"{says}: AGENTRUN_STABLE_ID does nothing without AGENTRUN_DIRECT_DATABASE_URL")
    return _ok("database", says)


def _clock(moment: Moment) -> Finding:
    # Compared, never used: every instant that counts is the database's.
    skew = abs((datetime.now(UTC) - moment.now).total_seconds())  # noqa: TID251
    if skew <= LARGEST_SKEW_SECONDS:
        return _ok("clock", f"within {span(LARGEST_SKEW_SECONDS)} of the database's")
    return _warning("clock", f"this machine's clock is {span(skew)} off the database's; runs go by the database's")


def _sweep(moment: Moment, settings: Settings) -> Finding:
    if moment.sweep_age is None:
        return _warning("sweep", f"there was never one; start `celery -A {moment.app} beat`, or run `agentrun sweep`")
    if moment.sweep_age > 3 * settings.sweep_seconds:
        return _warning(
            "sweep", f"the last was {span(moment.sweep_age)} ago; is `celery -A {moment.app} beat` running?"
        )
    return _ok("sweep", f"{span(moment.sweep_age)} ago")


def _workers(moment: Moment) -> Finding:
    if not moment.processes:
        return _warning(
            "workers", f"none within the last minute; start `celery -A {moment.app} worker -P threads -c 100`"
        )
    return _ok("workers", f"{moment.processes} alive; they know: {', '.join(moment.kinds) or 'no kinds'}")


def _broker(settings: Settings) -> Iterator[Finding]:
    try:
        settings.require_broker()
    except ConfigurationError as error:
        yield _error("broker", error)
        return
    # Celery and Redis come with it: 0.4 s that other commands do without.
    from agentrun.broker.look import look

    said = look(settings, {settings.queue, settings.system_queue})
    if said.problem:
        yield _error("broker", ConfigurationError(said.problem))
        return
    found = [each for each in fleet.broker_findings(said, settings) if each.severity is not doctor.Severity.NOTICE]
    yield from (_found("broker", each) for each in found)
    if not found:
        yield _ok("broker", said.about)


def _kinds(settings: Settings) -> Finding:
    try:
        load_kinds(settings)
    except ConfigurationError as error:
        return _error("kinds", error)
    names = registry.names()
    if names:
        return _ok("kinds", ", ".join(names))
    return _warning("kinds", "none is registered; name the modules that hold your bodies in AGENTRUN_IMPORTS")


def _effects() -> Iterator[Finding]:
    """Tools that declare no effect: each is treated as a non-idempotent write, and an interruption stops its run."""
    listed = [
        (name, kind.about["tools"]())
        for name in registry.names()
        if (kind := registry.require(name)).about.get("tools")
    ]
    for name, tools in listed:
        silent = sorted(tool.name for tool in tools if tool.effect is None)
        if silent:
            says = f"agent `{name}`: {', '.join(silent)} declare no effect and are treated as non-idempotent writes; "
            yield _warning("effects", says + "declare them with @effect, or in register_agent(..., effects={...})")
    silent = remote_steps.undeclared()
    if silent:
        says = (
            f"remote steps {', '.join(silent)} declare no effect and are treated as non-idempotent writes, which are "
        )
        yield _warning("effects", says + "never repeated; declare them with @remote_step(..., effect=…)")
    if listed and not any(tool.effect is None for _, tools in listed for tool in tools):
        yield _ok("effects", "every tool of every agent says what it does")


def _found(about: str, found: doctor.Finding) -> Finding:
    """What doctor would find too."""
    says = f"{found.symptom}: {found.cause}; run {found.heal}"
    return _error(about, ConfigurationError(says)) if found.severity is doctor.Severity.ERROR else _warning(about, says)


def _ok(about: str, says: str) -> Finding:
    return Finding(about, Level.OK, says)


def _warning(about: str, says: str) -> Finding:
    return Finding(about, Level.WARNING, says)


def _error(about: str, error: AgentrunError) -> Finding:
    return Finding(about, Level.ERROR, str(error), error.exit_code)
