"""A longer look at the broker, for `agentrun doctor`: whether it throws messages away, and what it holds for later."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Collection, Iterable, Iterator, Mapping
from datetime import UTC, datetime
from itertools import chain, islice
from typing import Any

from redis import Redis
from redis.exceptions import RedisError

from agentrun.broker.away import AWAY
from agentrun.broker.hints import Hints
from agentrun.broker.names import STEP, SWEEP, WAKE
from agentrun.broker.probe import probe
from agentrun.runtime.doctor import Broker
from agentrun.settings import Settings

MOST_MESSAGES = 500
PRIORITIES = ("", "\x06\x163", "\x06\x166", "\x06\x169")
"""What kombu appends to a queue's name for its urgencies."""


def look(settings: Settings, queues: Collection[str]) -> Broker:
    """Ask the broker of the settings, within the publish timeout. Never raises for a broker that is away."""
    probed = probe(settings)
    hints = Hints(settings)
    if probed.problem is not None or not hints.possible:
        return Broker(probed.about, probed.problem)
    try:
        client = hints.client()
        return Broker(
            probed.about,
            policy=_policy(client),
            evicted=int(client.info("stats").get("evicted_keys", 0)),  # pyright: ignore[reportUnknownMemberType]
            full=_full(client.info("memory")),  # pyright: ignore[reportUnknownMemberType]
            depths=_depths(client, queues),
            late=tuple(_late(_messages(client, queues), settings.longest_countdown_seconds)),
        )
    except AWAY as error:
        return Broker(problem=str(error) or repr(error))
    finally:
        hints.close()


def _policy(client: Redis) -> str | None:
    try:
        found: Any = client.config_get("maxmemory-policy")  # pyright: ignore[reportUnknownMemberType]
    except RedisError:  # hosted ones do not tell
        return None
    return str(found["maxmemory-policy"]) if found.get("maxmemory-policy") else None


def _full(memory: Mapping[str, Any]) -> tuple[int, int] | None:
    """Bytes used and allowed, where it refuses what would take more of them."""
    used, most = int(memory.get("used_memory", 0)), int(memory.get("maxmemory", 0))
    evicts = str(memory.get("maxmemory_policy", "noeviction")).startswith("allkeys")
    return (used, most) if 0 < most <= used and not evicts else None


def _depths(client: Any, queues: Iterable[str]) -> Mapping[str, int]:
    """How many messages lie in each queue, over all urgencies."""
    return {queue: sum(client.llen(queue + priority) for priority in PRIORITIES) for queue in queues}


def _messages(client: Any, queues: Iterable[str]) -> Iterator[Mapping[str, Any]]:
    """Messages that workers hold, and the first that wait in the queues."""
    held = (value for _, value in islice(client.hscan_iter("unacked", count=100), MOST_MESSAGES))
    names = [queue + priority for queue in sorted(set(queues)) for priority in PRIORITIES]
    waiting = chain.from_iterable(client.lrange(name, 0, 99) for name in names)
    for text in chain(held, waiting):
        with contextlib.suppress(ValueError, IndexError):
            message = json.loads(text)
            yield message[0] if isinstance(message, list) else message


def _late(messages: Iterable[Mapping[str, Any]], cap: float) -> Iterator[tuple[str, float]]:
    """Ours that are to be executed later than any countdown of ours."""
    for message in messages:
        headers: Mapping[str, Any] = message.get("headers") or {}
        if headers.get("task") in (WAKE, STEP, SWEEP) and headers.get("eta"):
            # Compared, never used: what is due when is in the rows.
            ahead = (datetime.fromisoformat(headers["eta"]) - datetime.now(UTC)).total_seconds()  # noqa: TID251
            if ahead > cap:
                yield headers["task"], ahead
