"""A kind that this process does not know: stored all the same, unless it is certainly misspelt."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from typing import Any
from uuid import uuid4

import pytest
from redis import Redis

from agentrun import AsyncClient, Client, Settings
from agentrun.core.errors import UnknownKind
from agentrun.runtime.kinds import Registry
from agentrun.store.database import Database
from tests.cli.conftest import Cli, cli

__all__ = ["cli"]

Seen = Callable[..., None]


@pytest.fixture
def known(settings: Settings) -> Settings:
    """Settings as a web process has them beside its workers: the modules of the bodies are named."""
    return settings.model_copy(update={"imports": ("tests.bodies.basic",)})


@pytest.fixture
def producer(known: Settings, redis: Redis) -> Iterator[Client]:
    """A producer that is told of modules, and has imported none."""
    with Client(settings=known, kinds=Registry()) as client:
        yield client


@pytest.fixture
def seen(database: Database) -> Seen:
    """A process that was seen so many seconds ago."""

    def tell(*kinds: str, queue: str | None = "agentrun", ago: float = 0, draining: bool = False) -> None:
        with database.connection() as connection:
            connection.execute(
                "INSERT INTO agentrun.processes (id, namespace, name, kinds, queues, draining, seen_at)"
                " VALUES (%s, 'default', 'worker', %s, %s, %s, now() - %s * interval '1 second')",
                [uuid4(), list(kinds), [queue] if queue else [], draining, ago],
            )

    return tell


NOBODY_CAN_SAY: dict[str, Callable[[Seen], Any]] = {
    "no worker has ever been seen": lambda seen: None,
    "the only worker was stopped": lambda seen: seen("echo", ago=120),
    "the only worker drains": lambda seen: seen("echo", draining=True),
    "only another queue has a worker": lambda seen: seen("echo", queue="slow"),
    "a worker has told of no kinds yet": lambda seen: seen(),
    "only a web process is up": lambda seen: seen("echo", queue=None),
    "a worker that knew it was killed within the hour": lambda seen: (seen("echo"), seen("square", ago=1800)),
}


@pytest.mark.parametrize("given", NOBODY_CAN_SAY.values(), ids=NOBODY_CAN_SAY.keys())
def test_a_run_is_stored_where_no_worker_can_say_whether_its_kind_is_misspelt(
    producer: Client, seen: Seen, given: Callable[[Seen], Any]
) -> None:
    given(seen)
    run_id = producer.enqueue("square", 1)
    assert [run_id, *producer.enqueue_many("square", [2, 3])] == [run.id for run in producer.list()][::-1]


def test_the_log_says_once_that_nobody_knows_the_kind(producer: Client, caplog: pytest.LogCaptureFixture) -> None:
    for number in range(3):
        producer.enqueue("square", number)
    (said,) = [record.getMessage() for record in caplog.records if record.name == "agentrun.commands"]
    assert "no kind `square` is registered" in said
    assert "its runs are stored, and wait for a worker that knows it" in said


async def test_the_asynchronous_client_stores_it_too(known: Settings, redis: Redis) -> None:
    async with AsyncClient(settings=known, kinds=Registry()) as producer:
        run_id = await asyncio.wait_for(producer.enqueue("square", 1), 20)
        assert (await producer.status(run_id)).status == "queued"


def test_doctor_names_the_runs_that_nobody_takes(producer: Client, seen: Seen, cli: Cli) -> None:
    producer.enqueue("square", 1)
    assert "no_worker" in {each["check"] for each in cli("doctor", "--json").json["findings"]}
    seen("echo")
    findings = {each["check"]: each["symptom"] for each in cli("doctor", "--json").json["findings"]}
    assert "of kind `square`" in findings["unknown_kind"]


def test_a_kind_that_no_worker_of_a_queue_with_workers_knows_is_refused_with_the_near_miss(
    producer: Client, seen: Seen
) -> None:
    seen("echo")
    seen("report", queue="slow")
    for enqueue in (lambda: producer.enqueue("ecko", "x"), lambda: producer.enqueue_many("ecko", ["x"])):
        with pytest.raises(UnknownKind, match=r"no kind `ecko` is registered; did you mean `echo`\?.*AGENTRUN_IMPORTS"):
            enqueue()
    assert producer.list() == []
    assert producer.enqueue("report", "x", queue="slow")


def test_who_names_no_modules_may_enqueue_any_kind(client: Client, seen: Seen) -> None:
    seen("echo")
    assert client.enqueue("ecko", "x")
