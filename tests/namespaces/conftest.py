"""Two namespaces in one database: `here` is what the tests' own settings say, `other` is somebody else's."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any
from uuid import UUID

import pytest
from psycopg import sql

from agentrun import Client, Context, durable
from agentrun.runtime.engine import Engine
from agentrun.settings import Settings
from agentrun.store.database import Database
from agentrun.testing import RecordingPublisher
from agentrun.testing.rows import Rows
from tests.cli.conftest import Cli, cli
from tests.hooks.conftest import no_hooks

__all__ = ["Cli", "cli", "no_hooks"]

TABLES = ("runs", "moves", "steps", "waits", "signals", "episodes", "notices", "budgets", "processes", "spend")
MARK = "somebody-elses"
"""What everything of the other namespace is called."""


@dataclass
class Other:
    """Everything that a namespace may hold, and what is stored of it."""

    settings: Settings
    client: Client
    engine: Engine
    database: Database
    publisher: RecordingPublisher
    rows: Rows
    runs: dict[str, UUID] = field(default_factory=dict[str, UUID])
    token: str = ""

    def stored(self) -> dict[str, list[Any]]:
        """All rows of the other namespace, whatever they are."""
        mine = "namespace = 'other'"
        of_runs = "run_id IN (SELECT id FROM agentrun.runs WHERE namespace = 'other')"
        found: dict[str, list[Any]] = {}
        with self.database.connection() as connection:
            for table in TABLES:
                columns = {
                    row["column_name"]
                    for row in connection.execute(
                        "SELECT column_name FROM information_schema.columns"
                        " WHERE table_schema = 'agentrun' AND table_name = %s",
                        [table],
                    )
                }
                where = mine if "namespace" in columns else of_runs
                listing = sql.SQL("SELECT * FROM agentrun.{} WHERE {} ORDER BY 1, 2").format(
                    sql.Identifier(table),
                    sql.SQL(where),
                )
                found[table] = connection.execute(listing).fetchall()
        return found


@pytest.fixture
def bodies(client: Client) -> None:
    @durable("asks")
    async def asks(ctx: Context) -> Any:
        return await ctx.approval("Shall we?")

    @durable("elsewhere")
    async def elsewhere(ctx: Context) -> Any:
        return await ctx.external("translate", {"text": MARK})

    @durable("breaks")
    async def breaks(ctx: Context) -> None:
        raise ValueError(MARK)


@pytest.fixture
def other(settings: Settings, make_engine: Callable[..., Engine], bodies: None, database: Database) -> Iterator[Other]:
    """A namespace with a run in each state, signals, external steps, budgets, and a live worker."""
    theirs = settings.model_copy(update={"namespace": "other"})
    publisher = RecordingPublisher()
    engine = make_engine(settings=theirs, publisher=publisher, queues=("agentrun.other", "gpu.other"))
    engine.heartbeat.beat()
    with Client(settings=theirs) as client:
        made = Other(theirs, client, engine, database, publisher, Rows(database, namespace="other"))
        wishes: dict[str, Any] = {"owner": MARK, "tags": [MARK]}
        for kind in ("asks", "elsewhere", "breaks"):
            made.runs[kind] = client.enqueue(kind, **wishes)
            engine.run(made.runs[kind])
        made.runs["taken"] = client.enqueue("elsewhere", **wishes)
        engine.run(made.runs["taken"])
        made.token = client.take_step(made.runs["taken"], by=MARK).token
        made.runs["queued"] = client.enqueue("asks", **wishes)
        client.signal(made.runs["asks"], "early", MARK)
        client.set_budget(MARK, period="day", max_tokens=1)
        engine.heartbeat.close()
        yield made
