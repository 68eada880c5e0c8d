"""A healthy installation inside this process, to break: a worker that was seen, a sweep, a pager's hook."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from agentrun import durable, log_line, on_stalled
from agentrun.runtime.engine import Engine
from agentrun.settings import Settings
from agentrun.store.database import Database
from agentrun.testing.rows import KIND
from tests.cli.conftest import Cli, cli
from tests.hooks.conftest import Past, no_hooks, past

__all__ = ["Past", "cli", "no_hooks", "past"]

Worker = Callable[..., Engine]


@pytest.fixture
def seen_worker(make_engine: Callable[..., Engine], settings: Settings, kinds: Any, no_hooks: None) -> Worker:
    """A worker that was seen just now. It knows the kind of the tests' rows, and pages."""
    durable(KIND)(lambda ctx, request: None)
    on_stalled(log_line())

    def start(*, queues: tuple[str, ...] | None = None, **options: Any) -> Engine:
        usual = (settings.queue, settings.system_queue)
        engine = make_engine(queues=usual if queues is None else queues, **options)
        engine.heartbeat.beat()
        return engine

    return start


@pytest.fixture
def healthy(seen_worker: Worker, sweep: Callable[[], Any]) -> Engine:
    """The worker of a healthy installation."""
    engine = seen_worker()
    sweep()
    return engine


@pytest.fixture
def run_sql(database: Database) -> Callable[..., None]:
    """One statement of a test's own."""

    def run(statement: str, *params: Any) -> None:
        with database.connection() as connection:
            connection.execute(statement, params)  # pyright: ignore[reportArgumentType]

    return run


Doctor = Callable[..., dict[str, Any]]


@pytest.fixture
def doctor(cli: Cli) -> Doctor:
    """The findings by their check, with `exit` beside them."""

    def call(*options: str, **env: str | None) -> dict[str, Any]:
        said = cli("doctor", "--json", *options, env=env)
        assert said.json["healthy"] == (said.code == 0)
        return {each["check"]: each for each in said.json["findings"]} | {"exit": said.code}

    return call
