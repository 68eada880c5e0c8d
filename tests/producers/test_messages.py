"""What is sent for a run or a step is what Celery itself would send."""

from __future__ import annotations

import base64
import json
import os
from collections.abc import Iterator
from contextlib import closing
from typing import Any
from uuid import uuid4

import pytest
from kombu.messaging import Producer
from redis import Redis

from agentrun import Settings
from agentrun.broker import CeleryPublisher
from agentrun.broker.app import make_app
from agentrun.core.wake import Wake


@pytest.fixture
def publisher(settings: Settings) -> Iterator[CeleryPublisher]:
    with closing(CeleryPublisher(settings)) as publisher:
        yield publisher


def sent(redis: Redis, queue: str) -> list[dict[str, Any]]:
    """The messages of a queue, oldest first, without what is every message's own."""
    texts: list[Any] = redis.lrange(queue, 0, -1)  # type: ignore[assignment]
    messages = [json.loads(text) for text in reversed(texts)]
    for message in messages:
        message["body"] = json.loads(base64.b64decode(message["body"]))
        ids = {message["headers"].pop("id"), message["headers"].pop("root_id")}
        ids.add(message["properties"].pop("correlation_id"))
        assert len(ids) == 1, "one id, the message's own"
        message["id"] = ids.pop()
        message["properties"].pop("delivery_tag")
    return messages


@pytest.mark.parametrize("together", [True, False], ids=["together", "one by one"])
@pytest.mark.parametrize("step_key", [None, "#3"], ids=["run", "step"])
def test_a_message_is_what_celery_makes_of_it(
    publisher: CeleryPublisher, settings: Settings, redis: Redis, step_key: str | None, together: bool
) -> None:
    count = 3
    wakes = [Wake(uuid4(), "ours", "digest", cause="sweep", step_key=step_key) for _ in range(count)]
    assert (publisher.wake(*wakes) if together else sum(publisher.wake(wake) for wake in wakes)) == count
    ours = sent(redis, "ours")
    app = make_app(settings)
    # A connection of its own: Celery's pools are shared by all applications of a process, and some test closed them.
    with app.connection_for_write() as connection:
        for wake in wakes:
            app.send_task(
                "agentrun.step" if step_key else "agentrun.wake",
                args=(str(wake.run_id), *([step_key] if step_key else [])),
                queue="celerys",
                priority=0,
                kwargsrepr="{'kind': 'digest', 'cause': 'sweep'}",
                ignore_result=True,
                producer=app.amqp.Producer(connection),
            )
    celerys = sent(redis, "celerys")
    assert len({message.pop("id") for message in celerys + ours}) == 2 * count
    for message in celerys + ours:
        message["properties"]["delivery_info"].pop("routing_key")
        message["properties"].pop("reply_to")
        # Celery leaves its own option among the properties; nobody reads it there.
        message["properties"].pop("kwargsrepr", None)
    for one, other in zip(ours, celerys, strict=True):
        for part in one.keys() | other.keys():
            assert one.get(part) == other.get(part), part
    args = [message["body"][0] for message in ours]
    assert args == [[str(wake.run_id), *([step_key] if step_key else [])] for wake in wakes]


def test_a_message_goes_straight_to_redis_once_kombu_has_sent_one_of_its_kind(
    publisher: CeleryPublisher, redis: Redis, monkeypatch: pytest.MonkeyPatch
) -> None:
    kinds: list[tuple[str, int]] = []
    publish = Producer.publish

    def noted(self: Any, *args: Any, **options: Any) -> Any:
        kinds.append((options["routing_key"], options["priority"]))
        return publish(self, *args, **options)

    monkeypatch.setattr(Producer, "publish", noted)
    for queue, priority in [("a", 0), ("a", 0), ("a", 9), ("b", 0), ("a", 9), ("a", 0)]:
        assert publisher.wake(Wake(uuid4(), queue, "digest", priority=priority)) == 1
    assert kinds == [("a", 0), ("a", 9), ("b", 0)]
    assert [len(sent(redis, key)) for key in ("a", "a\x06\x169", "b")] == [3, 2, 1]


def test_a_connection_that_redis_has_closed_costs_no_message(publisher: CeleryPublisher, redis: Redis) -> None:
    wakes = [Wake(uuid4(), "ours", "digest") for _ in range(4)]
    assert publisher.wake(wakes[0]) == publisher.wake(wakes[1]) == 1
    redis.client_kill_filter(_type="normal", skipme=True)
    assert publisher.wake(wakes[2]) == publisher.wake(wakes[3]) == 1
    assert [message["body"][0] for message in sent(redis, "ours")] == [[str(wake.run_id)] for wake in wakes]


def test_a_process_that_is_forked_sends_over_a_connection_of_its_own(publisher: CeleryPublisher, redis: Redis) -> None:
    def send() -> int:
        return publisher.wake(Wake(uuid4(), "ours", "digest"))

    def connections() -> int:
        return redis.info("stats")["total_connections_received"]  # type: ignore[index]

    assert [send(), send()] == [1, 1]
    before = connections()
    child = os.fork()
    if child == 0:
        os._exit(1 - send())
    assert os.waitpid(child, 0)[1] == 0
    assert connections() > before
    assert send() == 1
    assert len(sent(redis, "ours")) == 4


def test_where_keys_have_a_prefix_kombu_sends_each_message(publisher: CeleryPublisher, redis: Redis) -> None:
    publisher._app.conf.broker_transport_options |= {"global_keyprefix": "team:"}
    for _ in range(3):
        assert publisher.wake(Wake(uuid4(), "ours", "digest")) == 1
    assert len(sent(redis, "team:ours")) == 3
    assert not sent(redis, "ours")


def test_a_countdown_becomes_a_time_before_which_no_worker_starts_it(publisher: CeleryPublisher, redis: Redis) -> None:
    assert publisher.wake(Wake(uuid4(), "later", "digest", delay=30.0), Wake(uuid4(), "later", "digest")) == 2
    later, now = sent(redis, "later")
    assert later["headers"]["eta"] is not None
    assert now["headers"]["eta"] is None
