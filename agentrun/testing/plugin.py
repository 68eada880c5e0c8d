"""The fixtures: `pytest_plugins = ["agentrun.testing.plugin"]`. Real servers, a database per test, real workers.

`settings`, `database`, `client`, `engine` and `redis` are for one process; `worker` and `beat` start real ones.
Servers come from AGENTRUN_TEST_DATABASE_URL and AGENTRUN_TEST_BROKER_URL, or are embedded.
"""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from typing import Any

import pytest
from redis import Redis

from agentrun.async_client import AsyncClient
from agentrun.broker.hints import redis_url
from agentrun.client import Client
from agentrun.core.wake import Publisher
from agentrun.runtime.engine import Engine
from agentrun.runtime.kinds import Registry, registry
from agentrun.runtime.remotesteps import remote_steps
from agentrun.runtime.upkeep import Sweep
from agentrun.settings import Settings
from agentrun.store.database import Database
from agentrun.testing import environment
from agentrun.testing.clock import Clock
from agentrun.testing.publishing import RecordingPublisher
from agentrun.testing.rows import Rows
from agentrun.testing.servers import Servers, embedded_only, given_or_embedded

pytest_plugins = ["agentrun.testing.inside", "agentrun.testing.processes"]

SHORT_TIMES: Mapping[str, Any] = {
    "lease_seconds": 3.0,
    "heartbeat_seconds": 0.5,
    "sweep_seconds": 1.0,
    "backoff_base_seconds": 0.2,
    "backoff_max_seconds": 2.0,
    "drain_seconds": 3.0,
}

_taken = pytest.StashKey[Mapping[str, str]]()


def pytest_configure(config: pytest.Config) -> None:
    """Register the markers, and take the developer's own configuration away."""
    config.addinivalue_line("markers", "settings(**values): settings of agentrun for this test")
    config.addinivalue_line("markers", "own_servers: the test kills or restarts its servers, so they must be embedded")
    config.stash[_taken] = environment.take_away()


def pytest_unconfigure(config: pytest.Config) -> None:
    """Give it back."""
    environment.give_back(config.stash[_taken])


# ---- servers


@pytest.fixture(scope="session")
def shared_servers() -> Iterator[Servers]:
    """The session's servers: given ones, or embedded."""
    with given_or_embedded() as servers:
        yield servers


@pytest.fixture(scope="session")
def embedded_servers(shared_servers: Servers) -> Iterator[Servers]:
    """Servers that are ours to break: the session's where these are embedded, else a pair beside them."""
    if shared_servers.embedded is not None:
        yield shared_servers
    else:
        with embedded_only() as servers:
            yield servers


@pytest.fixture
def agentrun_servers(request: pytest.FixtureRequest, shared_servers: Servers) -> Servers:
    """This test's servers; with the marker `own_servers`, embedded ones."""
    if request.node.get_closest_marker("own_servers"):
        return request.getfixturevalue("embedded_servers")
    return shared_servers


@pytest.fixture
def database_url(request: pytest.FixtureRequest, agentrun_servers: Servers) -> Iterator[str]:
    """A migrated database of this test's own; its clock can travel where the test uses `clock` or `broker`."""
    url = agentrun_servers.create_database()
    if "clock" in request.fixturenames:
        Clock.install(url)
    yield url
    agentrun_servers.drop_database(url)


@pytest.fixture
def empty_database_url(agentrun_servers: Servers) -> Iterator[str]:
    """A database without agentrun's schema."""
    url = agentrun_servers.create_database(migrated=False)
    yield url
    agentrun_servers.drop_database(url)


@pytest.fixture
def redis(agentrun_servers: Servers) -> Iterator[Redis]:
    """A client of the broker's Redis, flushed."""
    url = redis_url(agentrun_servers.broker_url)
    with Redis.from_url(url, decode_responses=True) as client:  # pyright: ignore[reportUnknownMemberType]
        client.flushdb()  # pyright: ignore[reportUnknownMemberType]
        yield client


@pytest.fixture
def broker_url(agentrun_servers: Servers, redis: Redis) -> str:
    """The broker, flushed."""
    return agentrun_servers.broker_url


# ---- one process


@pytest.fixture
def settings(request: pytest.FixtureRequest, database_url: str) -> Settings:
    """Short times, this test's servers; `@pytest.mark.settings(lease_seconds=…)` overrides (the nearest mark wins)."""
    values = dict(SHORT_TIMES)
    broker_url = "memory://" if "broker" in request.fixturenames else request.getfixturevalue("broker_url")
    for mark in reversed(list(request.node.iter_markers("settings"))):
        values |= mark.kwargs
    return Settings(database_url=database_url, broker_url=broker_url, **values)


@pytest.fixture
def kinds() -> Iterator[Registry]:
    """The registry of kinds: what a test registers with `@durable` or `@remote_step` is forgotten after it."""
    before, steps_before = dict(registry._kinds), remote_steps.snapshot()  # noqa: SLF001  # pyright: ignore[reportPrivateUsage]
    yield registry
    registry._kinds = before  # noqa: SLF001  # pyright: ignore[reportPrivateUsage]
    remote_steps.restore(steps_before)


@pytest.fixture
def database(settings: Settings) -> Iterator[Database]:
    """This test's database."""
    with contextlib.closing(Database(settings.require_database(), name="agentrun test")) as database:
        yield database


@pytest.fixture
def client(request: pytest.FixtureRequest, settings: Settings, kinds: Registry) -> Iterator[Client]:
    """A producer."""
    _broker_first(request)
    with Client(settings=settings, kinds=kinds) as client:
        yield client


@pytest.fixture
async def async_client(
    request: pytest.FixtureRequest, settings: Settings, kinds: Registry
) -> AsyncIterator[AsyncClient]:
    """A producer on this test's event loop."""
    _broker_first(request)
    async with AsyncClient(settings=settings, kinds=kinds) as client:
        yield client


def _broker_first(request: pytest.FixtureRequest) -> None:
    if "broker" in request.fixturenames:
        request.getfixturevalue("broker")


@pytest.fixture
def publisher() -> RecordingPublisher:
    """What the engine and the sweeps of this test send."""
    return RecordingPublisher()


@pytest.fixture
def make_engine(settings: Settings, kinds: Registry, publisher: RecordingPublisher) -> Iterator[Callable[..., Engine]]:
    """Makes engines inside this process: `make_engine(publisher=…, settings=…)`; the recording publisher by default."""
    default_settings, default_publisher = settings, publisher
    with contextlib.ExitStack() as undo:

        def make(
            *, settings: Settings = default_settings, publisher: Publisher = default_publisher, **options: Any
        ) -> Engine:
            database = Database(
                settings.require_database(), name="agentrun engine", direct_url=settings.direct_database_url
            )
            undo.callback(database.close)
            engine = Engine(settings, database, publisher, kinds=kinds, **options)
            undo.callback(lambda: engine.loop.is_closed() or engine.close())
            return engine

        yield make


@pytest.fixture
def engine(make_engine: Callable[..., Engine]) -> Engine:
    """An engine inside this process: `engine.run(run_id)` executes one segment and reports how it ended."""
    return make_engine()


@pytest.fixture
def sweep(settings: Settings, database: Database, publisher: RecordingPublisher) -> Callable[[], Any]:
    """One sweep, now, inside this process; returns what it found."""
    return lambda: Sweep(settings, database, publisher, by="sweep:test").run()


@pytest.fixture
def rows(database: Database, settings: Settings) -> Rows:
    """Rows by life stage, and travel: `rows.expire_lease(run_id)`, `rows.make_due(run_id)`."""
    return Rows(database, namespace=settings.namespace)
