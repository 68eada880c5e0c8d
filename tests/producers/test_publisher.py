"""Whatever a broker's libraries raise is no producer's failure and ends no thread: what was not sent is the sweep's."""

from __future__ import annotations

from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest
from redis import Redis

from agentrun import Client, Settings, Status
from agentrun.broker import CeleryPublisher
from agentrun.broker.hints import Hints
from agentrun.core.wake import Wake
from agentrun.testing import until


def test_an_error_of_the_channel_is_not_the_producers_failure(
    settings: Settings, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """A broker of files whose folder is not there raises what an AMQP broker does that closes a channel."""
    monkeypatch.chdir(tmp_path)
    with Client(settings=settings, broker_url="filesystem://") as client:
        run_id = client.enqueue("anything")
        assert client.status(run_id).status is Status.QUEUED
    assert "a wake could not be sent (ChannelError); the sweep will send it" in caplog.text


def test_an_error_that_nobody_foresaw_ends_neither_hints_nor_wakes(
    settings: Settings, redis: Redis, caplog: pytest.LogCaptureFixture
) -> None:
    hasty = settings.model_copy(update={"publish_timeout_seconds": 0.5})
    publisher, first, second = CeleryPublisher(hasty), uuid4(), uuid4()
    client: Any = redis
    heard = client.pubsub(ignore_subscribe_messages=True)
    heard.subscribe(*(Hints(settings).channel(each) for each in (first, second)))
    broken: Any = "no number"
    # In one batch with the hint: put before there is a thread to take it.
    publisher._soon.put(Wake(first, "agentrun", "k", delay=broken))  # pyright: ignore[reportPrivateUsage]
    publisher.settled(first)
    until(lambda: heard.get_message(timeout=0.1))
    publisher.settled(second)
    until(lambda: heard.get_message(timeout=0.1))
    until(lambda: publisher.wake(Wake(second, "agentrun", "k")))
    publisher.soon(Wake(second, "agentrun", "k"))
    until(lambda: redis.llen("agentrun") == 2)
    publisher.close()
    assert "a wake could not be sent (TypeError)" in caplog.text
