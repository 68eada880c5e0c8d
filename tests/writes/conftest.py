"""What the tests of writes share: eyes past agentrun, the table of effects, model calls without a model."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any
from uuid import UUID

import psycopg
import pytest
from psycopg.rows import dict_row

from agentrun import Context, Effect
from agentrun.core.words import StepKind
from agentrun.runtime.keys import key_for
from agentrun.runtime.stepspec import Spent, StepSpec
from agentrun.testing.nodes import Node

BODIES = "tests.bodies.writes"


class Look:
    """SQL on a new connection each time, so that servers may come and go."""

    def __init__(self, url: str) -> None:
        self.url = url

    def __call__(self, statement: str, params: Any = None) -> list[dict[str, Any]]:
        with psycopg.connect(self.url, autocommit=True, row_factory=dict_row, connect_timeout=5) as connection:
            cursor = connection.execute(statement, params)  # type: ignore[arg-type]
            return cursor.fetchall() if cursor.description else []

    def effects(self, run_id: UUID | str) -> list[str]:
        """What a run did outside, in order."""
        return [row["what"] for row in self._effects(run_id)]

    def doers(self, run_id: UUID | str) -> dict[str, int]:
        """Which process did what."""
        return {row["what"]: row["pid"] for row in self._effects(run_id)}

    def journal(self, run_id: UUID) -> list[Any]:
        """All that agentrun stored of a run."""
        return [
            self(f"SELECT * FROM agentrun.{table} WHERE {key} = %s ORDER BY 1, 2", [run_id])
            for table, key in (("runs", "id"), ("moves", "run_id"), ("steps", "run_id"))
        ]

    def _effects(self, run_id: UUID | str) -> list[dict[str, Any]]:
        return self("SELECT what, pid FROM side_effects WHERE run_id = %s ORDER BY at", [run_id])


@pytest.fixture
def look(database_url: str) -> Look:
    """The test's own eyes, with the table of effects, which takes the same one any number of times."""
    eyes = Look(database_url)
    eyes(
        "CREATE TABLE side_effects (run_id uuid, what text, key text, pid int, "
        "at timestamptz DEFAULT clock_timestamp())"
    )
    return eyes


@pytest.fixture
def start(worker: Callable[..., Node], look: Look) -> Callable[..., Node]:
    """A worker with our bodies that does not spend a second on greeting its neighbours."""

    def started(*arguments: str, **options: Any) -> Node:
        imports = [BODIES, *options.pop("imports", ())]
        return worker("--without-mingle", "--without-gossip", *arguments, imports=imports, **options)

    return started


async def ask_model(ctx: Context, tokens: int = 10, cost: str | None = None, *, fails: Exception | None = None) -> str:
    """A model call as a binding makes one, without a model."""

    async def call() -> str:
        if fails is not None:
            raise fails
        return "answer"

    spec = StepSpec(
        key=key_for(ctx.wishes.key),
        kind=StepKind.MODEL,
        name="model",
        effect=Effect.READ_ONLY,
        call=call,
        encode=json.dumps,
        decode=json.loads,
        spent=lambda _: Spent("scripted", tokens, 0, cost),
    )
    return await ctx.perform(spec)
