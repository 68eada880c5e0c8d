"""What a worker's consumer does otherwise than Celery's: in our own application, and with a pool of threads in any."""

from __future__ import annotations

import logging
import threading
import time
import warnings
from collections.abc import Callable
from typing import Any

from celery import bootsteps
from celery.exceptions import CPendingDeprecationWarning
from celery.worker.state import reserved_requests
from kombu.transport import virtual
from kombu.transport.redis import QoS
from kombu.utils.encoding import bytes_to_str
from kombu.utils.json import dumps, loads
from redis.exceptions import ResponseError

from agentrun.store.outages import Outage, of_broker

log = logging.getLogger("agentrun.worker")

_CELERYS = "celery.worker.consumer.consumer"
"""Celery's module and logger of that name."""

A_MOMENT = 0.025
"""Seconds within which most messages are acknowledged."""

BUSY = 0.005
"""Seconds between two messages, where others are likely to wait already."""

MOST_AT_ONCE = 8
"""Messages that a consumer takes in one go: it takes them from other workers."""


class OneClient(bootsteps.StartStopStep):
    """Redis commands of a consumer's channel go through one client object.

    kombu makes one for each command, which costs a fifth of the consumer's time. A client is no more than a way to a
    pool of connections; where kombu opens another pool, there is another client.
    """

    requires = ("celery.worker.consumer.tasks:Tasks",)

    def __init__(self, parent: Any, **options: Any) -> None:
        super().__init__(parent, **options)
        self._outage = of_broker(str(parent.app.conf.broker_url))
        logging.getLogger(_CELERYS).addFilter(Lost(self._outage))
        # What it warns of is set on purpose, and it would be said at every loss of the connection.
        warnings.filterwarnings("ignore", category=CPendingDeprecationWarning, module=_CELERYS)

    def start(self, parent: Any) -> None:
        """After every connect: the channel is a new one then."""
        self._outage.worked(who="consumer")
        channel = parent.task_consumer.channel
        if one_client(parent.connection, channel) and parent.hub is not None:
            # Nothing has been received yet. kombu has no other way to another class's object.
            before = channel.qos
            before._on_collect.cancel()  # noqa: SLF001
            channel._qos = Held(channel, before.prefetch_count, parent.hub, before.can_consume)  # noqa: SLF001
            channel.handlers["BRPOP"] = Several(channel, parent).read


class Lost(logging.Filter):
    """In place of what Celery says of a connection that is lost, with its traceback, and of each try to get it back."""

    def __init__(self, outage: Outage) -> None:
        super().__init__()
        self._outage = outage

    def filter(self, record: logging.LogRecord) -> bool:
        """Whether the line is written."""
        said, error = str(record.msg), None
        if said.startswith("consumer: Connection to broker lost") and record.exc_info:
            error = record.exc_info[1]
        elif said.startswith("consumer: Cannot connect to") and isinstance(record.args, tuple):
            error = record.args[1]
        if not isinstance(error, BaseException):
            return True
        self._outage.failed(error, who="consumer")
        return False


class Held(QoS):
    """What a worker holds without having acknowledged it, written to Redis for the case that the worker dies.

    kombu writes each message before it hands it on, and takes it out when it is acknowledged: half of the consumer's
    time. Here that is done every moment for all of them together, and not at all for those that are acknowledged by
    then. A message of this moment is lost with its worker: the sweep sends it again.
    """

    def __init__(
        self, channel: Any, prefetch_count: int, hub: Any, has_room: Callable[[], bool] = lambda: True
    ) -> None:
        super().__init__(channel, prefetch_count)
        self._hub, self._has_room = hub, has_room
        self._lock = threading.Lock()
        self._fresh: dict[str, Any] = {}
        self._gone: list[str] = []
        self._asked = False

    def can_consume(self) -> bool:
        """Whether another message is wanted. Celery, too, may have said when: `worker_disable_prefetch`."""
        return super().can_consume() and self._has_room()

    def append(self, message: Any, delivery_tag: str) -> None:
        """Called by the consumer for each message that it receives."""
        virtual.QoS.append(self, message, delivery_tag)
        with self._lock:
            self._fresh[delivery_tag] = message
            asks, self._asked = not self._asked, True
        if asks:
            self._hub.call_later(A_MOMENT, self.write)

    def ack(self, delivery_tag: str) -> None:
        """Called by any thread."""
        with self._lock:
            if self._fresh.pop(delivery_tag, None) is None:
                self._gone.append(delivery_tag)
            asks = bool(self._gone) and not self._asked
            self._asked = self._asked or asks
        if asks:
            self._hub.call_soon(self._hub.call_later, A_MOMENT, self.write)
        virtual.QoS.ack(self, delivery_tag)

    def reject(self, delivery_tag: str, requeue: bool = False) -> None:
        """Called by any thread."""
        self.write()
        super().reject(delivery_tag, requeue)

    def restore_unacked(self, client: Any = None) -> None:
        """The worker ends: everything that it holds goes back to its queue."""
        self.write()
        super().restore_unacked(client)

    def write(self) -> None:
        """What has come and what has gone since the last time, in one round trip."""
        # An acknowledgement waits for the lock: it may not reach Redis before its message.
        with self._lock:
            self._asked = False
            (fresh, self._fresh), (gone, self._gone) = (self._fresh, {}), (self._gone, [])
            if not fresh and not gone:
                return
            with self.pipe_or_acquire() as pipe:
                if fresh:
                    now = time.time()  # noqa: TID251 - by kombu's clock, which decides how old it is
                    pipe.zadd(self.unacked_index_key, dict.fromkeys(fresh, now))
                    pipe.hset(self.unacked_key, mapping={tag: _kept(message) for tag, message in fresh.items()})
                if gone:
                    pipe.zrem(self.unacked_index_key, *gone)
                    pipe.hdel(self.unacked_key, *gone)
                pipe.execute()


class Several:
    """Takes what waits behind a message along with it, where messages come thick and fast.

    kombu asks for each message by itself: for four tenths of the time that the consumer spends on it.
    """

    def __init__(self, channel: Any, consumer: Any) -> None:
        self._channel, self._consumer = channel, consumer
        self._one = channel.handlers["BRPOP"]
        # Redis has known the command since version 7, and kombu puts no prefix before its keys.
        self._possible = not channel.global_keyprefix
        self._last = 0.0

    def read(self, **options: Any) -> Any:
        """Called by the hub when there is an answer: a message, or none within kombu's own timeout (kombu's Empty)."""
        found = self._one(**options)
        last, self._last = self._last, time.monotonic()
        if self._possible and self._last - last < BUSY:
            self._take(min(MOST_AT_ONCE, self._room()))
        return found

    def _room(self) -> int:
        # As Celery itself decides whether to ask for another one.
        most = getattr(self._consumer.controller, "max_concurrency", None) or self._consumer.pool.num_processes
        return most - len(reserved_requests)

    def _take(self, most: int) -> None:
        if most <= 0 or not self._channel.active_queues:
            return
        queues = self._channel._queue_cycle.consume(len(self._channel.active_queues))  # noqa: SLF001 - as for one
        keys = [self._channel._q_for_pri(queue, step) for step in self._channel.priority_steps for queue in queues]  # noqa: SLF001
        try:
            with self._channel.conn_or_acquire() as client:
                key, messages = client.lmpop(len(keys), *keys, direction="RIGHT", count=most) or (b"", ())
        except ResponseError as error:
            log.debug("messages are taken one by one: %s", error)
            self._possible = False
            return
        queue = bytes_to_str(key).rsplit(self._channel.sep, 1)[0]
        for message in messages:
            self._channel.connection._deliver(loads(bytes_to_str(message)), queue)  # noqa: SLF001


class Flushing:
    """Has a consumer send its buffered task events at its hub's next pass. Called by any thread, as often as it likes.

    Celery adds to the hub's set of what is ready without its lock. A pool's thread that does so while the hub goes
    through the set ends the worker, or is not heard: the event then waits for the next one.
    """

    def __init__(self, consumer: Any) -> None:
        self._consumer, self._asked = consumer, False

    @classmethod
    def begin(cls, consumer: Any) -> None:
        """From now on, and after every connect."""
        if consumer.hub is not None:
            consumer.on_send_event_buffered = flushing = cls(consumer)
            consumer.event_dispatcher.on_send_buffered = flushing

    def __call__(self) -> None:
        """There is something to send."""
        if not self._asked:
            self._asked = True
            self._consumer.hub.call_soon(self._flush)

    def _flush(self) -> None:
        self._asked = False
        if self._consumer.event_dispatcher:
            self._consumer.event_dispatcher.flush()


def one_client(connection: Any, channel: Any) -> bool:
    """Keep one client for the channel's pool of connections. False where the broker is not Redis."""
    if connection.transport.driver_type != "redis":
        return False
    channel.Client = OfOnePool(channel.Client)
    return True


def _kept(message: Any) -> str:
    """As kombu restores it."""
    delivery = message.delivery_info
    return dumps([message._raw, delivery["exchange"], delivery["routing_key"]])  # noqa: SLF001 - as kombu does


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
