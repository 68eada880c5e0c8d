"""Sending wakes: bounded in time, thread-safe, and never the producer's failure. Nothing but ids in a message."""

from __future__ import annotations

import contextlib
import logging
import queue
import threading
import time
from collections.abc import Iterator, Sequence
from functools import cached_property
from typing import TYPE_CHECKING, Any, Literal
from uuid import UUID

from agentrun.broker.hints import Hints
from agentrun.broker.messages import Messages, Straight
from agentrun.broker.names import LEAST_URGENT, REDIS_SCHEMES
from agentrun.broker.urls import require_usable
from agentrun.core.counting import counted
from agentrun.core.wake import Wake
from agentrun.settings import Settings
from agentrun.store.outages import of_broker

if TYPE_CHECKING:
    # Celery and Redis take 0.5 s to import, and who only reads runs sends nothing: they come with the first wake.
    from celery import Celery
    from kombu import Connection, Producer

log = logging.getLogger("agentrun.broker")

LARGEST_BATCH = 500
"""Wakes in one pipeline."""

BUSY, A_MOMENT = 0.01, 0.003
"""Seconds between hints, where others are likely to follow; and for which they are kept for those, then."""


class CeleryPublisher:
    """Sends wakes through one connection per process and thread-safe; a broker that is away costs a bounded time."""

    def __init__(self, settings: Settings) -> None:
        """Raises ConfigurationError for a URL that no broker can have: no sweep would ever get a wake through."""
        require_usable(settings.broker_url)
        self._settings = settings
        self._lock = threading.Lock()
        self._connection: Connection | None = None
        self._producer: Producer | None = None
        self._straight: Straight | None = None
        self._away_until, self._left = 0.0, 0
        self._outage = of_broker(settings.broker_url or "")
        self._soon: queue.SimpleQueue[Wake | Literal["hints"] | None] = queue.SimpleQueue()
        self._thread: threading.Thread | None = None
        self._hints, self._ended, self._hinted = Hints(settings), list[UUID](), 0.0
        self._ending = threading.Lock()

    def wake(self, *wakes: Wake) -> int:
        """Send wakes; returns how many were sent. Stops at the first failure: the rest is the sweep's.

        But for a strict one: its run is its caller's to settle, who tells of it.
        """
        sent = 0
        if not wakes:
            return sent
        with self._lock:
            if time.monotonic() < self._away_until:
                self._left += _for_the_sweep(wakes)
                return 0
            try:
                for batch in batched(wakes, LARGEST_BATCH):
                    self._send_all(batch)
                    sent += len(batch)
            except _away() as error:
                self._failed(error, wakes[sent:])
            except Exception as error:
                self._gave_up(error, wakes[sent:])
            else:
                self._outage.worked()
                self._tell_left()
        return sent

    def _failed(self, error: Exception, unsent: Sequence[Wake]) -> None:
        self._outage.failed(error)
        if unsent[0].strict:
            log.warning("a wake could not be sent (%s); strict dispatch: its run fails", type(error).__name__)
        self._left += _for_the_sweep(unsent)
        self._pause()

    def _gave_up(self, error: Exception, unsent: Sequence[Wake]) -> None:
        """No outage: an AMQP channel that was closed, a queue of another sort. The runs are there all the same."""
        what_now = "strict dispatch: its run fails" if unsent[0].strict else "the sweep will send it"
        log.exception("a wake could not be sent (%s); %s", type(error).__name__, what_now)
        self._left += _for_the_sweep(unsent[1:])
        self._pause()

    def _pause(self) -> None:
        # Until the broker is back, callers are not made to wait for it one by one.
        self._away_until = time.monotonic() + self._settings.publish_timeout_seconds
        self._drop()

    def soon(self, wake: Wake) -> None:
        """Send in the background."""
        self._soon.put(wake)
        self._start()

    def settled(self, run_id: UUID) -> None:
        """Hint in the background to whoever waits for the run's end."""
        with self._ending:
            self._ended.append(run_id)
            first = len(self._ended) == 1
        if first:
            self._soon.put("hints")
            self._start()

    def depth(self, queue: str) -> int | None:
        """How many messages wait in a queue, over all priorities; None where the broker cannot be asked."""
        with self._lock:
            try:
                channel: Any = self._connected().default_channel
                waiting = int(channel.queue_declare(queue, passive=True).message_count)
                self._outage.worked()
                return waiting
            except _away() as error:
                self._drop()
                self._outage.failed(error)
                return None
            except Exception as error:
                # A queue nobody has declared yet raises the transport's own channel error: it holds nothing.
                log.debug("queue %s: %s", queue, type(error).__name__)
                self._drop()
                return 0

    def close(self) -> None:
        """Send what is waiting, within the publish timeout."""
        thread, self._thread = self._thread, None
        if thread is not None:
            self._soon.put(None)
            thread.join(2 * self._settings.publish_timeout_seconds + 1)
        with self._lock:
            self._tell_left()
            self._drop()
        self._hints.close()

    def _tell_left(self) -> None:
        """One line for all that was not sent, once it is over."""
        left, self._left = self._left, 0
        if left:
            log.warning("%s not sent while the broker was away; the sweep will send what is due", counted(left, "wake"))

    def _send_all(self, wakes: Sequence[Wake]) -> None:
        """One by one, or many in one pipeline: of a batch that failed, nobody knows how much arrived."""
        if len(wakes) == 1:
            self._send(wakes[0])
            return
        producer: Any = self._ready()
        with producer.batch(LARGEST_BATCH):
            for wake in wakes:
                producer.publish(**self._message(wake), priority=_wire_priority(self._settings, wake.priority))

    def _send(self, wake: Wake) -> None:
        """Send, and again where the connection turns out to be an old one: that shows at once, a silent broker not."""
        began = time.monotonic()
        try:
            self._send_once(wake)
        except _away():
            if time.monotonic() - began > self._settings.publish_timeout_seconds / 2:
                raise
            self._drop()
            self._send_once(wake)

    def _send_once(self, wake: Wake) -> None:
        producer: Any = self._ready()
        priority = _wire_priority(self._settings, wake.priority)
        if self._straight is None or wake.delay > 0:
            producer.publish(**self._message(wake), priority=priority)
        else:
            self._straight.send(self._message(wake), priority)

    def _message(self, wake: Wake) -> dict[str, Any]:
        return self._messages.of(wake, min(wake.delay, self._settings.longest_countdown_seconds))

    @cached_property
    def _messages(self) -> Messages:
        return Messages(self._app)

    @cached_property
    def _app(self) -> Celery:
        from agentrun.broker.app import make_app

        app = make_app(self._settings, name="agentrun publisher")
        app.conf.broker_transport_options = _bounded(self._settings)
        app.conf.task_publish_retry_policy = {"max_retries": 0}
        return app

    def _ready(self) -> Producer:
        if self._producer is None:
            from agentrun.broker.consumer import one_client

            connection = self._connected()
            self._producer = self._app.amqp.Producer(connection)
            # kombu would make a Redis client for each message, in a tenth of an enqueue's time.
            if one_client(connection, connection.default_channel):
                self._straight = Straight(self._producer)
        return self._producer

    def _connected(self) -> Connection:
        if self._connection is None:
            self._connection = self._app.connection_for_write()
        return self._connection

    def _drop(self) -> None:
        connection, self._connection = self._connection, None
        self._producer = self._straight = None
        if connection is not None:
            try:
                connection.collect(socket_timeout=0.1)
            except Exception as error:
                log.debug("closing a broken broker connection raised %s", type(error).__name__)

    def _start(self) -> None:
        if self._thread is None or not self._thread.is_alive():
            with self._lock:
                if self._thread is None or not self._thread.is_alive():
                    self._thread = threading.Thread(target=self._serve, name="agentrun publisher", daemon=True)
                    self._thread.start()

    def _serve(self) -> None:
        while True:
            items = [self._soon.get()]
            # What came meanwhile goes with it: a fan's messages in a few pipelines, not one by one.
            with contextlib.suppress(queue.Empty):
                while len(items) < LARGEST_BATCH:
                    items.append(self._soon.get_nowait())
            self.wake(*(item for item in items if isinstance(item, Wake)))
            if "hints" in items:
                try:
                    self._hint()
                except Exception:
                    log.exception("hints could not be sent; whoever waits looks at the rows")
            if None in items:
                return

    def _hint(self) -> None:
        """One round trip for all that end in a moment: the interpreter is asked for once, and not for each of them."""
        if time.monotonic() - self._hinted < BUSY:
            time.sleep(A_MOMENT)  # noqa: TID251 - nothing tells that others follow
        with self._ending:
            ended, self._ended = self._ended, []
        self._hints.settled(*ended)
        self._hinted = time.monotonic()


def _for_the_sweep(wakes: Sequence[Wake]) -> int:
    return sum(not wake.strict for wake in wakes)


def _away() -> tuple[type[Exception], ...]:
    from agentrun.broker.away import AWAY

    return AWAY


def _bounded(settings: Settings) -> dict[str, Any]:
    from agentrun.broker.app import transport_options

    options = transport_options(settings)
    if options:
        timeout = settings.publish_timeout_seconds
        options |= {
            "socket_connect_timeout": timeout,
            "socket_timeout": timeout,
            "retry_on_timeout": False,
            "max_retries": 0,
        }
    return options


def _wire_priority(settings: Settings, priority: int) -> int:
    """0 is the most urgent, as on Redis; AMQP counts the other way."""
    return priority if (settings.broker_url or "").startswith(REDIS_SCHEMES) else LEAST_URGENT - priority


def batched(wakes: Sequence[Wake], size: int) -> Iterator[Sequence[Wake]]:
    """`wakes` in slices of at most `size`."""
    return (wakes[start : start + size] for start in range(0, len(wakes), size))
