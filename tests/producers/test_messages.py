"""What is sent for many runs at once is what Celery itself sends for each."""

from __future__ import annotations

import base64
import json
from collections.abc import Iterator
from contextlib import closing
from typing import Any
from uuid import uuid4

import pytest
from redis import Redis

from agentrun import Settings
from agentrun.broker import CeleryPublisher
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


@pytest.mark.parametrize("step_key", [None, "#3"], ids=["run", "step"])
def test_many_messages_are_what_celery_makes_of_each(
    publisher: CeleryPublisher, redis: Redis, step_key: str | None
) -> None:
    wakes = [Wake(uuid4(), "one", "digest", cause="sweep", step_key=step_key) for _ in range(3)]
    for wake in wakes:
        assert publisher.wake(wake) == 1
    alone = sent(redis, "one")
    assert publisher.wake(*(Wake(w.run_id, "many", w.kind, cause=w.cause, step_key=step_key) for w in wakes)) == 3
    together = sent(redis, "many")
    assert len({message.pop("id") for message in alone + together}) == 6
    for message in alone + together:
        message["properties"]["delivery_info"].pop("routing_key")
        message["properties"].pop("reply_to")
        # Celery leaves its own option among the properties; nobody reads it there.
        message["properties"].pop("kwargsrepr", None)
    for one, other in zip(together, alone, strict=True):
        for part in one.keys() | other.keys():
            assert one.get(part) == other.get(part), part
    args = [message["body"][0] for message in together]
    assert args == [[str(wake.run_id), *([step_key] if step_key else [])] for wake in wakes]
