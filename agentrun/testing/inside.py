"""Fixtures that make a test's process a whole installation: the clock, the broker, crashes. Part of the plugin."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from agentrun.client import Client
from agentrun.core.wake import Publisher
from agentrun.runtime.engine import Engine
from agentrun.runtime.kinds import Registry
from agentrun.runtime.upkeep import Sweep
from agentrun.settings import Settings
from agentrun.store.database import Database
from agentrun.testing.broker import LocalBroker
from agentrun.testing.clock import Clock
from agentrun.testing.crash import Crash, CrashSweep
from agentrun.testing.publishing import RecordingPublisher
from agentrun.testing.rows import Rows


@pytest.fixture
def clock(database_url: str, monkeypatch: pytest.MonkeyPatch) -> Clock:
    """The database's time: `clock.travel(hours=3)`. `ctx.now()` of bodies in this process travels along."""
    clock = Clock(database_url)
    clock.lead(monkeypatch)
    return clock


@pytest.fixture
def broker(
    settings: Settings,
    database: Database,
    clock: Clock,
    monkeypatch: pytest.MonkeyPatch,
    make_engine: Callable[..., Engine],
) -> LocalBroker:
    """A broker and a worker inside this process: `client.enqueue(…)`, then `broker.drain()`. Neither Redis nor Celery.

    Every Client that the test makes sends its wakes here.
    """
    broker = LocalBroker()

    def instead_of_celery(_: Settings) -> LocalBroker:
        return broker

    monkeypatch.setattr("agentrun.client.CeleryPublisher", instead_of_celery)
    broker.serves(
        make_engine(publisher=broker), clock, lambda: Sweep(settings, database, broker, by="sweep:test").run()
    )
    return broker


@pytest.fixture
def crash(
    request: pytest.FixtureRequest,
    settings: Settings,
    kinds: Registry,
    client: Client,
    database: Database,
    publisher: RecordingPublisher,
    rows: Rows,
) -> Crash:
    """`crash.at(3, run_id)`: a process takes the run and dies at its third commit; then it is anybody's again."""
    sends: Publisher = request.getfixturevalue("broker") if "broker" in request.fixturenames else publisher
    return Crash(settings, kinds, client, sends, lambda: Sweep(settings, database, sends, by="sweep:test").run(), rows)


@pytest.fixture
def crash_sweep(crash: Crash, client: Client, rows: Rows, engine: Engine) -> CrashSweep:
    """`for story in crash_sweep(lambda: client.enqueue("kind")):` a run per commit, which dies there and recovers."""
    return CrashSweep(crash, client, rows, engine)
