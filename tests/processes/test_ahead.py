"""A run begins when its message comes, where a slot is free; the task that Celery makes of it picks that up."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any
from uuid import UUID

import pytest
from celery.concurrency.thread import TaskPool
from kombu.utils.limits import TokenBucket

from agentrun import Client, Context, Settings, durable
from agentrun.broker.names import STEP, WAKE
from agentrun.broker.slots import Slots
from agentrun.broker.worker import Process
from agentrun.core.words import Status
from agentrun.testing import until


@pytest.fixture
def process(settings: Settings, client: Client, kinds: Any) -> Iterator[Process]:
    @durable("ahead")
    async def ahead(ctx: Context, number: int) -> int:
        return number

    process = Process(settings)
    process.engine()
    yield process
    process.engine().close()


@pytest.fixture
def receive(process: Process) -> Callable[..., None]:
    def received(run_id: UUID | str, *, slots: int = 1, rate: Any = None, **request: Any) -> None:
        message = {"name": WAKE, "eta": None, "id": "message", "args": [str(run_id)], "kwargs": {}}
        message |= {"delivery_info": {"routing_key": "agentrun"}} | request
        pool = TaskPool(limit=1)
        pool.limit = slots
        process._slots = Slots(pool, None, [WAKE])
        process.received(sender=SimpleNamespace(task_buckets={WAKE: rate}), request=SimpleNamespace(**message))

    return received


def ended(client: Client, run_id: UUID) -> None:
    until(lambda: client.status(run_id).status is Status.COMPLETED, 10)


def test_a_run_is_executed_once_and_its_task_gets_its_end(
    client: Client, process: Process, receive: Callable[..., None]
) -> None:
    run_id = client.enqueue("ahead", 1)
    receive(run_id)
    ended(client, run_id)
    report = process.wake((str(run_id),), {}, message="message")
    assert (report["outcome"], report["epoch"]) == ("completed", 1)
    assert process.wake((str(run_id),), {}, message="message")["outcome"] == "completed", "a wake of its own, too late"
    assert client.status(run_id).epoch == 1


def test_what_was_begun_before_the_worker_drains_is_waited_for(
    client: Client, process: Process, receive: Callable[..., None]
) -> None:
    begun, late = client.enqueue_many("ahead", [1, 2])
    receive(begun)
    ended(client, begun)
    process.engine().draining = True
    receive(late, id="late")
    assert process.wake((str(begun),), {}, message="message")["outcome"] == "completed"
    assert process.wake((str(late),), {}, message="late")["outcome"] == "draining"
    assert client.status(late).status is Status.QUEUED


@pytest.mark.parametrize("kept", ["no slot", "a countdown", "a rate", "another task", "no run", "arguments"])
def test_nothing_begins_that_has_to_wait_or_is_no_wake(
    client: Client, process: Process, receive: Callable[..., None], kept: str
) -> None:
    run_id, other = client.enqueue_many("ahead", [1, 2])
    match kept:
        case "no slot":
            receive(run_id, slots=0)
        case "a countdown":
            receive(run_id, eta="2030-01-01T00:00:00+00:00")
        case "a rate":
            receive(run_id, rate=TokenBucket(1))
        case "another task":
            receive(run_id, name=STEP)
        case "no run":
            receive("none")
        case _:
            receive(run_id, args=[str(run_id), "more"])
    receive(other, id="other")
    ended(client, other)
    assert client.status(run_id).status is Status.QUEUED
    assert process.wake((str(run_id),), {}, message="message")["outcome"] == "completed", "the task does it itself"
