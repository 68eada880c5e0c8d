"""What a worker holds is written to Redis moment by moment, and is given back when the worker ends."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any

import pytest
from kombu import Connection, Exchange, Producer, Queue
from kombu.transport.redis import QoS
from redis import Redis

from agentrun.broker.consumer import Held, OneClient

QUEUE = "held"


class Moments:
    """A hub whose moments pass when the test says so."""

    def __init__(self) -> None:
        self.due: list[Callable[[], Any]] = []

    def call_later(self, _seconds: float, call: Callable[[], Any]) -> None:
        self.due.append(call)

    def call_soon(self, call: Callable[..., Any], *args: Any) -> None:
        call(*args)

    def passes(self) -> None:
        due, self.due = self.due, []
        for call in due:
            call()


class Consuming:
    """A channel with our messages, consumed by hand."""

    def __init__(self, url: str, qos: Callable[[Any], Any] | None) -> None:
        self.connection = Connection(url)
        self.channel: Any = self.connection.channel()
        if qos is not None:
            self.channel._qos = qos(self.channel)
        self.queue = Queue(QUEUE, Exchange(QUEUE), QUEUE)
        self.queue(self.channel).declare()
        self.held: list[Any] = []

    def take(self, count: int) -> list[Any]:
        bound = self.queue(self.channel)
        taken = [bound.get() for _ in range(count)]
        assert None not in taken
        self.held += taken
        return taken


@pytest.fixture
def moments() -> Moments:
    return Moments()


@pytest.fixture
def consuming(broker_url: str, redis: Redis, moments: Moments) -> Iterator[Consuming]:
    consuming = Consuming(broker_url, lambda channel: Held(channel, 0, moments))
    producer = Producer(consuming.channel, consuming.queue.exchange, QUEUE)
    for number in range(4):
        producer.publish({"number": number})
    yield consuming
    consuming.connection.release()


def unacked(redis: Redis) -> tuple[int, int]:
    return redis.hlen("unacked"), redis.zcard("unacked_index")  # pyright: ignore[reportReturnType]


def hsets(redis: Redis) -> int:
    stats: Any = redis.info("commandstats")
    return stats.get("cmdstat_hset", {"calls": 0})["calls"]


def test_what_is_acknowledged_within_the_moment_is_never_written(
    consuming: Consuming, redis: Redis, moments: Moments
) -> None:
    for message in consuming.take(3):
        message.ack()
    before = hsets(redis)
    moments.passes()
    assert (hsets(redis), unacked(redis)) == (before, (0, 0))
    assert consuming.channel.qos.can_consume()


def test_what_is_held_longer_is_written_once_and_taken_out_when_it_is_acknowledged(
    consuming: Consuming, redis: Redis, moments: Moments
) -> None:
    first, second, third = consuming.take(3)
    second.ack()
    assert len(moments.due) == 1, "one round trip for all that came"
    moments.passes()
    assert unacked(redis) == (2, 2)
    moments.passes()
    threading.Thread(target=first.ack).start()
    deadline = threading.Event()
    while not moments.due:
        assert not deadline.wait(0.001)
    third.ack()
    assert len(moments.due) == 1
    moments.passes()
    assert unacked(redis) == (0, 0)


def test_a_worker_that_ends_gives_back_what_it_holds_written_or_not(
    consuming: Consuming, redis: Redis, moments: Moments
) -> None:
    consuming.take(1)
    moments.passes()
    acknowledged, _ = consuming.take(2)
    acknowledged.ack()
    assert (redis.llen(QUEUE), unacked(redis)) == (1, (1, 1))
    consuming.channel.qos.restore_unacked_once()
    assert (redis.llen(QUEUE), unacked(redis)) == (3, (0, 0))


def test_kombu_restores_what_another_process_held_when_it_died(
    consuming: Consuming, redis: Redis, moments: Moments, broker_url: str
) -> None:
    """Written as kombu writes it: any consumer finds it when its time is over."""
    (message,) = consuming.take(1)
    moments.passes()
    survivor = Consuming(broker_url, None)
    assert type(survivor.channel.qos) is QoS
    survivor.channel.qos.restore_by_tag(message.delivery_tag)
    assert (redis.llen(QUEUE), unacked(redis)) == (4, (0, 0))
    assert {each.payload["number"] for each in survivor.take(4)} == {0, 1, 2, 3}
    survivor.connection.release()


def test_a_message_that_is_refused_goes_back(consuming: Consuming, redis: Redis) -> None:
    (message,) = consuming.take(1)
    message.requeue()
    assert (redis.llen(QUEUE), unacked(redis)) == (4, (0, 0))


def test_no_message_is_asked_for_that_celery_has_no_slot_for(broker_url: str, redis: Redis, moments: Moments) -> None:
    """Without prefetching, another worker with a free slot gets it."""
    room = [True, False]
    consuming = Consuming(broker_url, lambda channel: Held(channel, 1, moments, lambda: room[-1]))
    qos = consuming.channel.qos
    assert not qos.can_consume()
    room.append(True)
    assert qos.can_consume()
    Producer(consuming.channel, consuming.queue.exchange, QUEUE).publish({"number": 0})
    (message,) = consuming.take(1)
    assert not qos.can_consume(), "one is held, and one may be"
    message.ack()
    assert qos.can_consume()
    consuming.connection.release()


def test_a_worker_of_ours_asks_for_no_message_that_it_has_no_slot_for(broker_url: str, redis: Redis) -> None:
    """What Celery's own step says to the channel, ours does not lose."""
    with Connection(broker_url) as connection:
        consumer: Any = SimpleNamespace(
            app=SimpleNamespace(conf=SimpleNamespace(broker_url=broker_url)),
            connection=connection,
            hub=Moments(),
            task_consumer=SimpleNamespace(channel=connection.default_channel),
        )
        connection.default_channel.qos.can_consume = lambda: False
        OneClient(consumer).start(consumer)
        assert type(connection.default_channel.qos) is Held
        assert not connection.default_channel.qos.can_consume()
