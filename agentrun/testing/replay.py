"""Replays for tests: a run of the test's database, or an exported journal, against today's code."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from pathlib import Path
from typing import Any
from uuid import UUID

from agentrun.client import Client
from agentrun.runtime.journals import Journal
from agentrun.runtime.kinds import Registry, kind_of, registry
from agentrun.runtime.parting import Replay
from agentrun.runtime.replaying import replay as replayed
from agentrun.store.database import Database


def recorded(client: Client, run_id: UUID | str) -> Journal:
    """The journal of a run; `.as_json()` is what a file keeps. Raises NotFound, NamespaceMismatch."""
    run = client.status(run_id)
    with contextlib.closing(Database(client.settings.require_database(), name="agentrun replay")) as database:
        return Journal.stored(database, run.id)


def replay(
    client: Client, run_id: UUID | str, body: Callable[..., Any] | None = None, *, kinds: Registry = registry
) -> Replay:
    """What today's code makes of a run's journal: `assert replay(client, run_id)`. Executes and writes nothing.

    Today's code is `body`, or the body that is registered for the run's kind. Raises UnknownKind where none is.
    """
    journal = recorded(client, run_id)
    return replayed(journal, kinds=_with(kinds, journal, body), settings=client.settings)


def replay_file(path: Path | str, body: Callable[..., Any] | None = None, *, kinds: Registry = registry) -> Replay:
    """As `replay`, of a journal that `agentrun replay RUN --journal` has printed: no database is needed."""
    journal = Journal.parsed(Path(path).read_text())
    return replayed(journal, kinds=_with(kinds, journal, body))


def _with(kinds: Registry, journal: Journal, body: Callable[..., Any] | None) -> Registry:
    if body is None:
        return kinds
    name, others = journal.run["kind"], Registry()
    for other in set(kinds.names()) - {name}:
        others.add(kinds.require(other))
    others.add(kind_of(name, body))
    return others
