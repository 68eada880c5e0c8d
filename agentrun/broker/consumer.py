"""What our own Celery application adds to a worker's consumer."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from celery import bootsteps


class OneClient(bootsteps.StartStopStep):
    """Redis commands of a consumer's channel go through one client object.

    kombu makes one for each command, which costs a fifth of the consumer's time. A client is no more than a way to a
    pool of connections; where kombu opens another pool, there is another client.
    """

    requires = ("celery.worker.consumer.tasks:Tasks",)

    def start(self, parent: Any) -> None:
        """After every connect: the channel is a new one then."""
        channel = parent.task_consumer.channel
        if parent.connection.transport.driver_type == "redis":
            channel.Client = OfOnePool(channel.Client)


class OfOnePool:
    """Makes clients as kombu asks for them, and keeps the last."""

    def __init__(self, make: Callable[..., Any]) -> None:
        self._make = make
        self._last: tuple[dict[str, Any], Any] | None = None

    def __call__(self, **options: Any) -> Any:
        """The client for these options: the last one where nothing has changed."""
        last = self._last
        if (
            last is None
            or last[0].keys() != options.keys()
            or any(last[0][name] is not options[name] for name in options)
        ):
            last = self._last = (options, self._make(**options))
        return last[1]
