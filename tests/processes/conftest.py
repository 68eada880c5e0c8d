"""What the process tests share: a look into the database past agentrun, the table `effects`, quick workers."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import psycopg
import pytest

from agentrun.testing import until
from agentrun.testing.nodes import Node

BODIES = "tests.bodies.processes"
EFFECTS = """
CREATE TABLE IF NOT EXISTS effects (
    id uuid PRIMARY KEY, run_id uuid, key text, what text, pid int, attempt int, idempotency_key text,
    at timestamptz DEFAULT clock_timestamp()
);
"""
HALF_STATES = """
SELECT id, status, 'runs without a lease' FROM agentrun.runs WHERE status = 'running' AND lease_expires_at < now()
UNION ALL
SELECT r.id, r.status, 'is final with a step in flight' FROM agentrun.runs r JOIN agentrun.steps s ON s.run_id = r.id
WHERE r.status IN ('completed', 'cancelled') AND s.status = 'started'
UNION ALL
SELECT id, status, 'has settled twice' FROM agentrun.runs
WHERE (SELECT count(*) FROM agentrun.moves WHERE run_id = id AND type = 'settled') > 1
"""


class Look:
    """The test's own eyes: SQL on a new connection each time, so that servers may come and go."""

    def __init__(self, url: str) -> None:
        self._url = url

    def __call__(self, statement: str, params: Any = None) -> list[Any]:
        with psycopg.connect(self._url, autocommit=True) as connection:
            cursor = connection.execute(statement, params)  # pyright: ignore[reportArgumentType]
            return cursor.fetchall() if cursor.description else []

    def one(self, statement: str, params: Any = None) -> Any:
        """The first column of the first row."""
        return self(statement, params)[0][0]

    def effects(self, run_id: Any) -> list[str]:
        """What a run did outside, in order."""
        return [what for (what,) in self("SELECT what FROM effects WHERE run_id = %s ORDER BY at", (run_id,))]

    def recorded(self, run_id: Any, count: int, timeout: float = 20) -> None:
        """Wait until so many steps of a run are in the journal: what is not there yet may be done again."""
        steps = "SELECT count(*) FROM agentrun.steps WHERE run_id = %s AND status = 'completed'"
        until(lambda: self.one(steps, (run_id,)) >= count, timeout, tell=lambda: self.effects(run_id))

    def done(self, count: int, timeout: float) -> None:
        """Wait until so many runs are completed. AssertionError at once where one has failed."""

        def completed() -> bool:
            statuses = dict(self("SELECT status, count(*) FROM agentrun.runs GROUP BY 1"))
            assert "failed" not in statuses, self("SELECT kind, error::text FROM agentrun.runs WHERE status = 'failed'")
            return statuses.get("completed", 0) >= count

        until(completed, timeout, tell=lambda: self("SELECT status, kind, count(*) FROM agentrun.runs GROUP BY 1, 2"))

    def seconds_between(self, run_id: Any, first: str, then: str) -> float:
        """From the first event of one type to the first later one of another, by the database's clock."""
        moves = "SELECT min(at) FROM agentrun.moves WHERE run_id = %(run)s AND type = %(type)s"
        (began,) = self(moves, {"run": run_id, "type": first})[0]
        (ended,) = self(f"{moves} AND at >= %(after)s", {"run": run_id, "type": then, "after": began})[0]
        return (ended - began).total_seconds()


@pytest.fixture
def look(database_url: str) -> Look:
    """The test's own eyes, with the table `effects`."""
    eyes = Look(database_url)
    eyes(EFFECTS)
    return eyes


@pytest.fixture
def start(worker: Callable[..., Node], look: Look) -> Callable[..., Node]:
    """A worker with our bodies that does not spend a second on greeting its neighbours."""

    def started(*arguments: str, **options: Any) -> Node:
        imports = [BODIES, *options.pop("imports", ())]
        return worker("--without-mingle", *arguments, imports=imports, **options)

    return started


def consume(node: Node, *queues: str) -> None:
    """Have a running worker take from these queues as well."""
    with node.app.connection_for_write() as connection:
        for queue in queues:
            node.app.control.add_consumer(queue, destination=[node.hostname()], connection=connection)


@pytest.fixture
def sound(look: Look) -> Callable[[], None]:
    """Asserts that no fault left half a state behind."""

    def checked() -> None:
        assert look(HALF_STATES) == []

    return checked
