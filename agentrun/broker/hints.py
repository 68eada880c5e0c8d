"""Redis pub/sub as a hint that a run has ended; the row is the truth. Without Redis there are no hints."""

from __future__ import annotations

import logging
from uuid import UUID

from redis import Redis
from redis.exceptions import RedisError

from agentrun.settings import Settings

log = logging.getLogger("agentrun.broker")


class Hints:
    """Redis pub/sub as a hint that a run has ended; the row is the truth. Without Redis there are no hints."""

    def __init__(self, settings: Settings) -> None:
        self.url, self._namespace = settings.broker_url or "", settings.namespace
        self._timeout = settings.publish_timeout_seconds
        self._redis: Redis | None = None

    @property
    def possible(self) -> bool:
        """Whether the broker is a Redis."""
        return self.url.startswith(("redis://", "rediss://", "unix://", "redis+socket://", "valkey://"))

    def channel(self, run_id: UUID) -> str:
        """The channel that tells of one run's end."""
        return f"agentrun:{self._namespace}:settled:{run_id}"

    def settled(self, run_id: UUID) -> None:
        """Publish, or don't: nobody's correctness hangs on it."""
        if not self.possible:
            return
        try:
            self.client().publish(self.channel(run_id), "settled")  # pyright: ignore[reportUnknownMemberType]
        except (RedisError, OSError) as error:
            log.debug("a hint could not be sent: %s", type(error).__name__)

    def client(self) -> Redis:
        """The Redis connection of the hints, bounded in time."""
        if self._redis is None:
            self._redis = Redis.from_url(  # pyright: ignore[reportUnknownMemberType]
                redis_url(self.url), socket_connect_timeout=self._timeout, socket_timeout=self._timeout
            )
        return self._redis

    def close(self) -> None:
        """Close the connection."""
        if self._redis is not None:
            self._redis.close()
            self._redis = None


def redis_url(broker_url: str) -> str:
    """A broker URL as redis-py spells it."""
    if broker_url.startswith("redis+socket://"):
        path, _, query = broker_url.removeprefix("redis+socket://").partition("?")
        return f"unix://{path}" + (f"?{query.replace('virtual_host', 'db')}" if query else "")
    return broker_url.replace("valkey://", "redis://", 1)
