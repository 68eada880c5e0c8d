"""Where a command works: the settings, the servers (those of a running `agentrun up` where none are set), a client."""

from __future__ import annotations

import contextlib
import getpass
import sys
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path
from uuid import UUID

from agentrun.cli import screen
from agentrun.client import Client
from agentrun.core.errors import InvalidRequest, NotFound
from agentrun.embedded import EmbeddedError, find_running
from agentrun.runtime.doctor import namespaces
from agentrun.runtime.kinds import registry
from agentrun.settings import Settings
from agentrun.store.database import Database
from agentrun.store.watching import Moment, ids_by_prefix, moment

SHORTEST_PREFIX = 8


def found_settings() -> Settings:
    """The settings; with no URL set, those of this user's `agentrun up` if it runs, and stderr says so.

    With only one URL set nothing is looked for: half of one installation and half of another would be neither.
    """
    settings = Settings()
    if settings.database_url is not None or settings.broker_url is not None:
        return settings
    with contextlib.suppress(EmbeddedError):  # another user's state folder: then nothing of ours runs
        running = find_running()
        if running is not None:
            screen.remark(f"no URL is set: using the servers of `agentrun up` (process {running.pid})")
            return settings.model_copy(update={"database_url": running.database_url, "broker_url": running.broker_url})
    return settings


def load_kinds(settings: Settings) -> None:
    """Import what AGENTRUN_IMPORTS names; from the current folder too, as `celery` does."""
    here = str(Path.cwd())
    if here not in sys.path:
        sys.path.insert(0, here)
    registry.load(settings.imports)


@contextmanager
def database_of(settings: Settings) -> Generator[Database]:
    """The database, for reads of the command line's own. Raises ConfigurationError where no URL is set."""
    with contextlib.closing(Database(settings.require_database(), name="agentrun cli", max_connections=2)) as database:
        yield database


@contextmanager
def client(settings: Settings | None = None, *, strict: bool = False) -> Generator[Client]:
    """A client for one command. Raises ConfigurationError where a URL is missing or the database is away."""
    with Client(settings=settings or found_settings(), dispatch_failure="fail" if strict else "leave") as made:
        yield made


def run_id_of(settings: Settings, text: str) -> UUID:
    """The run that `text` names, in full or by its start.

    Raises InvalidRequest where it is neither or several runs start so, NotFound where none does.
    """
    with contextlib.suppress(ValueError):
        return UUID(text)
    digits = text.replace("-", "").lower()
    if not SHORTEST_PREFIX <= len(digits) < 32 or not set(digits) <= set("0123456789abcdef"):
        raise InvalidRequest(
            f"`{text[:40]}` is no run: give its id as `agentrun list` shows it, or at least its first "
            f"{SHORTEST_PREFIX} characters"
        )
    with database_of(settings) as database:
        found = ids_by_prefix(database, settings.namespace, digits)
    if not found:
        raise NotFound(f"no run starts with `{text}`; `agentrun list` shows what is there")
    if len(found) > 1:
        raise InvalidRequest(f"several runs start with `{text}`; give more of the id")
    return found[0]


def places(settings: Settings, *, all_namespaces: bool) -> list[Settings]:
    """Where a command looks: here, or in every namespace of the database."""
    if not all_namespaces:
        return [settings]
    with database_of(settings) as database:
        return [settings.model_copy(update={"namespace": name}) for name in namespaces(database)]


def found_in(settings: Settings, text: str, *, all_namespaces: bool) -> tuple[Settings, UUID]:
    """The run that `text` names, and where it is. Raises as `run_id_of`."""
    for place in places(settings, all_namespaces=all_namespaces):
        with contextlib.suppress(NotFound), client(place) as reader:
            return place, reader.status(run_id_of(place, text)).id
    return settings, run_id_of(settings, text)


def moment_of(settings: Settings) -> Moment:
    """What is alive now, by the database's clock."""
    with database_of(settings) as database:
        return moment(database, settings.namespace)


def somebody(by: str | None) -> str:
    """Who acts: `by`, else the user of this shell."""
    if by is not None:
        return by
    try:
        return f"cli:{getpass.getuser()}"
    except (KeyError, OSError):  # an account without a name
        return "cli"
