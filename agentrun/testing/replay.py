"""Replays for tests: a run of the test's database, or an exported journal, against today's code."""

from __future__ import annotations

import contextlib
from pathlib import Path
from uuid import UUID

from agentrun.client import Client
from agentrun.runtime.journals import Journal
from agentrun.runtime.kinds import Registry, registry
from agentrun.runtime.parting import Replay
from agentrun.runtime.replaying import replay as replayed
from agentrun.store.database import Database


def recorded(client: Client, run_id: UUID | str) -> Journal:
    """The journal of a run; `.as_json()` is what a file keeps. Raises NotFound, NamespaceMismatch."""
    run = client.status(run_id)
    with contextlib.closing(Database(client.settings.require_database(), name="agentrun replay")) as database:
        return Journal.stored(database, run.id)


def replay(client: Client, run_id: UUID | str, *, kinds: Registry = registry) -> Replay:
    """What today's code makes of a run's journal: `assert replay(client, run_id)`. Executes and writes nothing.

    Raises UnknownKind where no body is registered for it.
    """
    return replayed(recorded(client, run_id), kinds=kinds, settings=client.settings)


def replay_file(path: Path | str, *, kinds: Registry = registry) -> Replay:
    """As `replay`, of a journal that `agentrun replay RUN --journal` has printed: no database is needed."""
    return replayed(Journal.parsed(Path(path).read_text()), kinds=kinds)
