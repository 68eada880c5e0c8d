"""What is sent for a wake: Celery and kombu make the first message of each kind, and the ids go into copies of it."""

from __future__ import annotations

import base64
import logging
import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any
from uuid import uuid4

from pydantic_core import from_json, to_json

from agentrun.broker.names import STEP, WAKE
from agentrun.core.wake import Wake

if TYPE_CHECKING:
    # Celery takes 0.5 s to import: it comes with the first wake.
    from celery import Celery

log = logging.getLogger("agentrun.broker")

MOST_KINDS = 1000
"""Messages that are kept to be copied."""


class Messages:
    """The messages of wakes, as `Producer.publish` takes them.

    `send_task` would make each of them anew, which costs four times as much.
    """

    def __init__(self, app: Celery) -> None:
        self._amqp: Any = app.amqp
        self._first: dict[tuple[str, str], Any] = {}

    def of(self, wake: Wake, countdown: float = 0.0) -> dict[str, Any]:
        """What `Producer.publish` takes. With a countdown (seconds), workers hold it back for that long."""
        task, args, said = _task_of(wake)
        first = self._first.get((task, said)) if countdown <= 0 else None
        if first is None:
            first = self._amqp.as_task_v2(
                "", task, args=args, kwargs={}, kwargsrepr=said, ignore_result=True, countdown=countdown or None
            )
            if countdown <= 0 and len(self._first) < MOST_KINDS:
                self._first[task, said] = first
        task_id = str(uuid4())
        headers = {**first.headers, "id": task_id, "root_id": task_id, "argsrepr": repr(args)}
        properties = {**first.properties, "correlation_id": task_id}
        none: dict[str, Any] = {}
        body = (args, none, first.body[2])
        return {"body": body, "serializer": "json", "routing_key": wake.queue, "headers": headers, **properties}


def _task_of(wake: Wake) -> tuple[str, tuple[str, ...], str]:
    """The task, its arguments, and what people see in place of keyword arguments."""
    said = repr({"kind": wake.kind, "cause": wake.cause})
    if wake.step_key is None:
        return WAKE, (str(wake.run_id),), said
    return STEP, (str(wake.run_id), wake.step_key), said


class Straight:
    """Messages that go straight into Redis, once kombu has been seen to send one of the same kind, queue and priority.

    Through kombu's and redis-py's layers a lone message takes twice as long, and more where the processor has done
    something else in between. Not thread-safe. What it raises is what redis-py does; then nobody knows whether the
    message arrived, and this object is to be thrown away.
    """

    def __init__(self, producer: Any) -> None:
        self._producer = producer
        self._seen: dict[tuple[str, str, str, int], Seen | None] = {}
        self._connection: Any = None
        self._process_id = 0

    def send(self, message: Mapping[str, Any], priority: int) -> None:
        """Send what `Producer.publish` takes."""
        headers = message["headers"]
        kind = headers["task"], headers["kwargsrepr"], message["routing_key"], priority
        if seen := self._seen.get(kind):
            self._push(seen.key, seen.copy(message))
            return
        with Watch(self._producer.channel) as pushed:
            self._producer.publish(**message, priority=priority)
        if kind not in self._seen and len(self._seen) < MOST_KINDS:
            self._seen[kind] = pushed.as_seen(message)

    def _push(self, key: str, text: bytes) -> None:
        if self._process_id != os.getpid():
            # After a fork, the connection is the other process's.
            self._connection, self._process_id = self._producer.channel.pool.get_connection(), os.getpid()
        self._connection.send_command("LPUSH", key, text)
        self._connection.read_response()


@dataclass(frozen=True, slots=True)
class Seen:
    """A message as kombu has pushed it, and the list that it has pushed it to."""

    key: str
    message: Mapping[str, Any]

    def copy(self, message: Mapping[str, Any]) -> bytes:
        """The text for another message of its kind."""
        body = base64.b64encode(to_json(message["body"])).decode()
        own = {"correlation_id": message["correlation_id"], "delivery_tag": str(uuid4())}
        properties = {**self.message["properties"], **own}
        return to_json({**self.message, "body": body, "headers": message["headers"], "properties": properties})


@dataclass(slots=True)
class Watch:
    """While it is open, what kombu asks of a channel's Redis client is noted, and done."""

    channel: Any
    pushed: list[tuple[str, str]] = field(default_factory=list[tuple[str, str]])
    more: bool = False
    """Something else was asked for: a queue that expires, a prefix of keys. Then there is nothing to be copied."""

    _make: Any = field(init=False)

    def __enter__(self) -> Watch:
        self._make, self.channel.Client = self.channel.Client, self._watched
        return self

    def __exit__(self, *_: object) -> None:
        self.channel.Client = self._make

    def _watched(self, **options: Any) -> Any:
        from redis import Redis

        client = self._make(**options)
        self.more = self.more or type(client) is not Redis
        return _Noting(client, self)

    def as_seen(self, message: Mapping[str, Any]) -> Seen | None:
        """What to copy from now on; None where a copy would not be what kombu has pushed."""
        if self.more or len(self.pushed) != 1:
            return None
        key, text = self.pushed[0]
        seen = Seen(key, from_json(text))
        if _read(seen.copy(message)) != _read(text):
            log.debug("messages of %s do not go straight to Redis: kombu's are made otherwise", key)
            return None
        return seen


@dataclass(frozen=True, slots=True)
class _Noting:
    client: Any
    watch: Watch

    def lpush(self, key: str, text: str) -> Any:
        self.watch.pushed.append((key, text))
        return self.client.lpush(key, text)

    def __getattr__(self, name: str) -> Any:
        self.watch.more = True
        return getattr(self.client, name)


def _read(text: str | bytes) -> Any:
    """What a worker reads in a message, but for the tag that each has of its own."""
    message = from_json(text)
    message["body"] = from_json(base64.b64decode(message["body"]))
    message["properties"].pop("delivery_tag")
    return message
