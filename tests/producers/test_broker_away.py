"""A broker that is away, or does not answer, is not the producer's failure: everything is bounded in time."""

from __future__ import annotations

import contextlib
import socket
import threading
import time
from collections.abc import AsyncIterator, Callable, Iterator
from typing import Any

import psycopg
import pytest
from redis import Redis

from agentrun import AsyncClient, Client, Settings, Status
from agentrun.broker import CeleryPublisher
from agentrun.core.errors import EnqueueFailed
from agentrun.core.words import Reason
from agentrun.runtime.upkeep import Sweep
from agentrun.store.database import Database
from agentrun.testing import until
from agentrun.testing.nodes import Node
from agentrun.testing.servers import Servers

BOUND = 2.0
"""Seconds within which `enqueue` returns, whatever the broker does."""


@contextlib.contextmanager
def within(seconds: float) -> Iterator[None]:
    began = time.monotonic()
    yield
    took = time.monotonic() - began
    assert took < seconds, f"took {took:.2f} s"


@pytest.fixture
def deaf() -> Iterator[str]:
    """The URL of a server that accepts connections, reads what comes, and never answers."""
    held: list[socket.socket] = []
    with socket.create_server(("127.0.0.1", 0)) as server:

        def accept() -> None:
            with contextlib.suppress(OSError):
                while True:
                    held.append(server.accept()[0])

        threading.Thread(target=accept, daemon=True).start()
        yield f"redis://127.0.0.1:{server.getsockname()[1]}/0"
        server.shutdown(socket.SHUT_RDWR)
    for connection in held:
        connection.close()


@pytest.fixture
def closed() -> str:
    """The URL of a port on which nobody listens."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        return f"redis://127.0.0.1:{server.getsockname()[1]}/0"


@pytest.fixture(params=["closed", "deaf"])
def away(request: pytest.FixtureRequest) -> str:
    return request.getfixturevalue(request.param)


@pytest.fixture
def producer(settings: Settings, away: str) -> Iterator[Client]:
    """A producer whose broker is away; it can be closed in time all the same."""
    client = Client(settings=settings, broker_url=away)
    yield client
    with within(5):
        client.close()


@pytest.fixture
async def async_producer(settings: Settings, away: str) -> AsyncIterator[AsyncClient]:
    client = AsyncClient(settings=settings, broker_url=away)
    yield client
    with within(5):
        await client.aclose()


def test_enqueue_returns_in_time_and_the_run_is_there(producer: Client) -> None:
    for number in range(3):
        with within(BOUND):
            run_id = producer.enqueue("echo", str(number))
        assert producer.status(run_id).status is Status.QUEUED


def test_enqueue_many_returns_in_time_and_the_runs_are_there(producer: Client) -> None:
    with within(BOUND):
        runs = producer.enqueue_many("echo", ["x"] * 200)
    assert {producer.status(run_id).status for run_id in runs[::50]} == {Status.QUEUED}


def test_what_is_not_sent_after_a_failure_is_counted_in_one_line(
    settings: Settings, closed: str, caplog: pytest.LogCaptureFixture
) -> None:
    patient = settings.model_copy(update={"publish_timeout_seconds": 60.0})
    with Client(settings=patient, broker_url=closed) as client:
        for _ in range(4):
            client.enqueue("somewhere else")
    said = [record.message for record in caplog.records if record.name == "agentrun.broker"]
    assert len(said) == 2
    assert said[0].startswith("the broker at redis://127.0.0.1:")
    assert "cannot be used (OperationalError: Error 111" in said[0]
    assert said[1].startswith("4 wakes not sent while the broker was away")


def test_strict_dispatch_settles_the_run_as_failed_and_raises(settings: Settings, away: str) -> None:
    client = Client(settings=settings, broker_url=away, dispatch_failure="fail")
    with within(BOUND), pytest.raises(EnqueueFailed, match="no wake could be sent") as failed:
        client.enqueue("echo", "now or never")
    run = client.status(failed.value.run_id)
    assert (run.status, run.reason, run.epoch) == (Status.FAILED, Reason.PROVIDER_FAILED, 0)
    assert [event.type for event in client.events(run.id)] == ["enqueued", "settled"]
    client.close()


def test_the_log_promises_no_sweep_where_strict_dispatch_settles_the_run(
    settings: Settings, closed: str, caplog: pytest.LogCaptureFixture
) -> None:
    patient = settings.model_copy(update={"publish_timeout_seconds": 60.0})
    with Client(settings=patient, broker_url=closed, dispatch_failure="fail") as client:
        for _ in range(3):
            with pytest.raises(EnqueueFailed):
                client.enqueue("now or never")
        client.enqueue_many("whenever", ["x"] * 2)
    said = [record.message for record in caplog.records if record.name == "agentrun.broker"]
    assert said[0].startswith("the broker at redis://127.0.0.1:")
    assert "sweep" not in said[0]
    assert said[1:] == [
        "a wake could not be sent (OperationalError); strict dispatch: its run fails",
        "2 wakes not sent while the broker was away; the sweep will send what is due",
    ]


def test_strict_dispatch_leaves_many_runs_and_those_of_a_transaction_to_the_sweep(
    settings: Settings, closed: str, database_url: str
) -> None:
    with Client(settings=settings, broker_url=closed, dispatch_failure="fail") as client:
        with psycopg.connect(database_url) as connection:
            inside = client.enqueue("echo", "inside", connection=connection)
        runs = [inside, *client.enqueue_many("echo", ["x"] * 2)]
        assert {client.status(run_id).status for run_id in runs} == {Status.QUEUED}


def test_a_commit_is_not_held_up(producer: Client, database_url: str) -> None:
    with within(BOUND + 1), psycopg.connect(database_url) as connection:
        run_id = producer.enqueue("echo", "inside", connection=connection)
    assert producer.status(run_id).status is Status.QUEUED


def test_operators_are_not_held_up(producer: Client) -> None:
    run_id = producer.enqueue("echo", "x")
    with within(BOUND):
        assert producer.cancel(run_id).status is Status.CANCELLED


def test_a_wait_keeps_its_timeout_and_sees_the_end(producer: Client) -> None:
    run_id = producer.enqueue("echo", "x", delay=60)
    with within(1 + 2 * BOUND), pytest.raises(TimeoutError):
        producer.wait(run_id, timeout=1)
    threading.Timer(1, producer.cancel, (run_id,)).start()
    with within(1 + 2 * BOUND):
        assert producer.wait(run_id, timeout=20).status is Status.CANCELLED


async def test_the_asynchronous_producer_does_the_same(async_producer: AsyncClient) -> None:
    with within(BOUND):
        run_id = await async_producer.enqueue("echo", "x", delay=60)
    with within(1 + 2 * BOUND), pytest.raises(TimeoutError):
        await async_producer.wait(run_id, timeout=1)
    timer = threading.Timer(1, async_producer._client.cancel, (run_id,))
    timer.start()
    with within(1 + 2 * BOUND):
        assert (await async_producer.wait(run_id, timeout=20)).status is Status.CANCELLED


def test_a_sweep_reaps_in_time_and_leaves_the_waking_to_the_next_one(
    producer: Client, settings: Settings, database: Database, away: str
) -> None:
    dead = producer.enqueue("echo", "dead")
    with database.connection() as connection:
        connection.execute(
            "UPDATE agentrun.runs SET status = 'running', claimed_by = 'gone', epoch = 1,"
            " lease_expires_at = now() - interval '1 s'"
        )
    publisher = CeleryPublisher(settings.model_copy(update={"broker_url": away}))
    with within(2 * BOUND):
        found = Sweep(settings, database, publisher, by="sweep:test").run()
    assert (found.requeued, found.woken) == (1, 0)
    assert producer.status(dead).status is Status.QUEUED
    publisher.close()


def test_a_connection_that_redis_closed_meanwhile_costs_no_wake(client: Client, redis: Redis) -> None:
    client.enqueue("echo", "first")
    redis.client_kill_filter(skipme=True)
    client.enqueue("echo", "second")
    client.enqueue_many("echo", ["third"] * 3)
    assert redis.llen("agentrun") == 5


@pytest.mark.processes
@pytest.mark.own_servers
def test_runs_enqueued_while_redis_is_down_start_when_it_is_back_without_anyone_acting(
    client: Client,
    settings: Settings,
    worker: Callable[..., Node],
    beat: Callable[..., Node],
    agentrun_servers: Servers,
    redis: Redis,
) -> None:
    clock, node = beat(wait=False), worker("--without-mingle", imports=["tests.bodies.basic"])
    clock.container.wait_ready()
    assert client.wait(client.enqueue("echo", "before"), timeout=10).result == "before"
    server: Any = agentrun_servers.embedded
    server.redis.stop()
    with within(BOUND):
        alone = client.enqueue("echo", "alone")
    with within(BOUND):
        many = client.enqueue_many("echo", ["many"] * 20)
    assert client.status(alone).status is Status.QUEUED
    server.redis.start()
    until(lambda: all(client.status(run_id).status is Status.COMPLETED for run_id in (alone, *many)), 20)
    assert {client.status(run_id).epoch for run_id in (alone, *many)} == {1}
    assert node.alive
    with within(BOUND):
        assert client.wait(client.enqueue("echo", "after"), timeout=BOUND).result == "after"
