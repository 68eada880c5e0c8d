"""Redis pub/sub as a hint that a run has ended; the row is the truth. Without Redis there are no hints."""

from __future__ import annotations

import logging
import time
from typing import TYPE_CHECKING, Any
from uuid import UUID

from agentrun.broker.closing import Closing
from agentrun.settings import Settings

if TYPE_CHECKING:
    # Takes 0.2 s to import, and is needed only where somebody waits for an end, or brings one about.
    from redis import Redis
    from redis.asyncio import Redis as AsyncRedis

log = logging.getLogger("agentrun.broker")


class Hints:
    """Redis pub/sub as a hint that a run has ended; the row is the truth. Without Redis there are no hints."""

    def __init__(self, settings: Settings) -> None:
        self.url, self._namespace = settings.broker_url or "", settings.namespace
        self._timeout = settings.publish_timeout_seconds
        self._redis: Redis | None = None
        self._away_until = 0.0
        self.closing = Closing()

    @property
    def possible(self) -> bool:
        """Whether the broker is a Redis."""
        return self.url.startswith(("redis://", "rediss://", "unix://", "redis+socket://", "valkey://"))

    def channel(self, run_id: UUID) -> str:
        """The channel that tells of one run's end."""
        return f"agentrun:{self._namespace}:settled:{run_id}"

    def settled(self, *run_ids: UUID) -> None:
        """Publish, or don't: nobody's correctness hangs on it. Of several, all at once."""
        if not run_ids or not self.possible or time.monotonic() < self._away_until:
            return
        try:
            client: Any = self.client()
            with client.pipeline(transaction=False) as pipe:
                for run_id in run_ids:
                    pipe.publish(self.channel(run_id), "settled")
                pipe.execute()
        except not_there() as error:
            # Wakes wait behind hints: they are not held up by one after the other.
            self._away_until = time.monotonic() + self._timeout
            log.debug("a hint could not be sent: %s", type(error).__name__)

    def client(self) -> Redis:
        """The Redis connection of the hints, bounded in time."""
        if self._redis is None:
            self._redis = self.own_client()
        return self._redis

    def own_client(self) -> Redis:
        """As `client`, for one thread that listens, and that one's to close: `close` takes nothing from under it."""
        from redis import Redis
        from redis.backoff import NoBackoff
        from redis.retry import Retry

        return Redis.from_url(redis_url(self.url), retry=Retry(NoBackoff(), 1), **self._bounds())  # pyright: ignore[reportUnknownMemberType]

    def async_client(self) -> AsyncRedis:
        """As `own_client`, for the caller's event loop, and the caller's to close."""
        from redis.asyncio import Redis as AsyncRedis
        from redis.asyncio.retry import Retry as AsyncRetry
        from redis.backoff import NoBackoff

        retry = AsyncRetry(NoBackoff(), 1)
        return AsyncRedis.from_url(redis_url(self.url), retry=retry, **self._bounds())  # pyright: ignore[reportUnknownMemberType]

    def _bounds(self) -> dict[str, Any]:
        return {"socket_connect_timeout": self._timeout, "socket_timeout": self._timeout}

    def close(self) -> None:
        """Close the connection."""
        if self._redis is not None:
            self._redis.close()
            self._redis = None


def not_there() -> tuple[type[Exception], ...]:
    """What a Redis that is away, full or restarting raises."""
    from redis.exceptions import RedisError

    return (RedisError, OSError)


def redis_url(broker_url: str) -> str:
    """A broker URL as redis-py spells it."""
    if broker_url.startswith("redis+socket://"):
        path, _, query = broker_url.removeprefix("redis+socket://").partition("?")
        return f"unix://{path}" + (f"?{query.replace('virtual_host', 'db')}" if query else "")
    return broker_url.replace("valkey://", "redis://", 1)
