"""Where messages come thick and fast, a consumer takes several at once: never more than it has slots for."""

from __future__ import annotations

from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest
from celery.worker.state import reserved_requests
from kombu import Connection, Exchange, Producer, Queue
from redis import Redis
from redis.exceptions import ResponseError

from agentrun.broker import consumer
from agentrun.broker.consumer import MOST_AT_ONCE, Several

QUEUE = "several"
URGENT, USUAL = 0, 6


class Request:
    """A message that Celery holds. It keeps such ones in a weak set."""


class Reading:
    """A channel that is read as a worker's hub reads it, with so many slots."""

    def __init__(self, url: str, *, slots: int = 100, **options: Any) -> None:
        self.connection = Connection(url, transport_options={"queue_order_strategy": "priority"} | options)
        self.channel: Any = self.connection.channel()
        self.queue = Queue(QUEUE, Exchange(QUEUE), QUEUE)
        self.taken: list[int] = []
        self.kept: list[Request] = []
        bound = self.queue(self.channel)
        bound.declare()
        bound.consume("tag", callback=self.take, no_ack=True)
        worker = SimpleNamespace(controller=SimpleNamespace(), pool=SimpleNamespace(num_processes=slots))
        self.several = Several(self.channel, worker)

    def take(self, message: Any) -> None:
        self.taken.append(message.payload["number"])
        self.kept.append(Request())
        reserved_requests.add(self.kept[-1])

    def send(self, *numbers: int, priority: int = USUAL) -> None:
        producer = Producer(self.channel, self.queue.exchange, QUEUE)
        for number in numbers:
            producer.publish({"number": number}, priority=priority)

    def read(self) -> list[int]:
        """One answer to kombu's own question, and what came with it."""
        before, client = len(self.taken), self.channel.client
        # As kombu's poller does.
        client.connection = client.connection or client.connection_pool.get_connection()
        self.channel._brpop_start()
        self.several.read()
        return self.taken[before:]


@pytest.fixture
def reading(broker_url: str, redis: Redis, monkeypatch: pytest.MonkeyPatch) -> Iterator[Reading]:
    monkeypatch.setattr(consumer, "BUSY", 60.0)
    before = set(reserved_requests)
    reading = Reading(broker_url)
    yield reading
    reading.connection.release()
    for request in set(reserved_requests) - before:
        reserved_requests.discard(request)


def test_the_first_message_is_taken_alone_and_the_next_bring_others_along(reading: Reading, redis: Redis) -> None:
    reading.send(*range(20))
    assert reading.read() == [0], "nobody knows yet whether others wait"
    assert reading.read() == list(range(1, 2 + MOST_AT_ONCE))
    assert reading.read() == list(range(2 + MOST_AT_ONCE, 3 + 2 * MOST_AT_ONCE))
    assert reading.taken == list(range(len(reading.taken)))


def test_where_messages_come_slowly_each_is_taken_alone(reading: Reading, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(consumer, "BUSY", 0.0)
    reading.send(*range(3))
    assert [reading.read(), reading.read(), reading.read()] == [[0], [1], [2]]


def test_none_is_taken_that_there_is_no_slot_for(broker_url: str, reading: Reading) -> None:
    few = Reading(broker_url, slots=3 + len(reserved_requests))
    few.send(*range(9))
    assert [few.read(), few.read()] == [[0], [1, 2]]
    few.connection.release()


def test_the_urgent_come_first(reading: Reading) -> None:
    reading.send(1, 2, 3)
    reading.send(10, 11, priority=URGENT)
    assert [reading.read(), reading.read()] == [[10], [11, 1, 2, 3]]


def test_a_redis_that_does_not_know_the_command_gives_them_one_by_one(
    reading: Reading, redis: Redis, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[int] = []

    def unknown(*_: Any, **__: Any) -> Any:
        asked.append(1)
        raise ResponseError("unknown command 'LMPOP'")

    monkeypatch.setattr(reading.channel.Client, "lmpop", unknown)
    reading.send(*range(4))
    assert [reading.read() for _ in range(4)] == [[0], [1], [2], [3]]
    assert len(asked) == 1


def test_keys_with_a_prefix_are_left_to_kombu(broker_url: str, reading: Reading) -> None:
    prefixed = Reading(broker_url, global_keyprefix="theirs:")
    prefixed.send(*range(3))
    assert [prefixed.read() for _ in range(3)] == [[0], [1], [2]]
    prefixed.connection.release()
