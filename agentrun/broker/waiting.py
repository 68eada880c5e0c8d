"""Waiting for a run's end without busy polling: a hint through Redis pub/sub, and the row as the truth."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import selectors
import socket
import time
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any
from uuid import UUID

from agentrun.broker.hints import Hints, not_there
from agentrun.core.records import Run

LOOK_AGAIN = 5.0
"""Seconds after which the row is asked although no hint came: a hint may be lost."""

WITHOUT_HINTS = 0.5
"""Seconds between looks where there is no Redis to hint."""


def wait_for_end(hints: Hints, status: Callable[[UUID], Run], run_id: UUID, seconds: float | None) -> Run:
    """The run once it is final. Raises TimeoutError, and what `status` raises: at once where the client is closed."""
    ends = None if seconds is None else time.monotonic() + seconds
    with _Ears(hints, run_id) as ears:
        while True:
            # Subscribed first, asked second: an end in between is seen by one of the two.
            run = status(run_id)
            if run.status.final:
                return run
            ears.listen(_pause(ends, run, hinted=ears.hinted))


async def wait_for_end_async(
    hints: Hints, status: Callable[[UUID], Awaitable[Run]], run_id: UUID, seconds: float | None
) -> Run:
    """As `wait_for_end`, holding no thread."""
    ends = None if seconds is None else time.monotonic() + seconds
    redis: Any = hints.async_client() if hints.possible else None
    subscription: Any = redis.pubsub() if redis is not None else None
    loop, closed = asyncio.get_running_loop(), asyncio.Event()
    try:
        with hints.closing.telling(functools.partial(_tell_loop, loop, closed)):
            if subscription is not None:
                subscription = await _subscribed(subscription, hints.channel(run_id))
            while True:
                run = await status(run_id)
                if run.status.final:
                    return run
                pause = _pause(ends, run, hinted=subscription is not None)
                hint = asyncio.sleep(pause) if subscription is None else subscription.get_message(timeout=pause)
                try:
                    await _first(closed.wait(), hint)
                except not_there():
                    subscription = None
    finally:
        if redis is not None:
            await redis.aclose()


class _Ears:
    """What a thread waits with: a subscription of its own, where there is a Redis, and a line for whoever closes its
    client meanwhile, which takes no connection from under a thread that reads."""

    def __init__(self, hints: Hints, run_id: UUID) -> None:
        self._hints, self._channel = hints, hints.channel(run_id)
        self._undo = contextlib.ExitStack()
        self._subscription: Any = None

    def __enter__(self) -> _Ears:
        self._line, other = socket.socketpair()
        self._undo.callback(self._line.close)
        self._undo.callback(other.close)
        self._undo.enter_context(self._hints.closing.telling(functools.partial(_tell_line, other)))
        if self._hints.possible:
            redis: Any = self._hints.own_client()
            self._undo.callback(redis.close)
            self._subscription = _subscribe(redis, self._channel)
        return self

    def __exit__(self, *_: object) -> None:
        self._undo.close()

    @property
    def hinted(self) -> bool:
        """Whether hints can be heard."""
        return self._subscription is not None

    def listen(self, seconds: float) -> None:
        """Wait for a hint, for the client's closing, or for so long; Redis may have gone then."""
        with selectors.DefaultSelector() as any_of:
            any_of.register(self._line, selectors.EVENT_READ)
            if self._subscription is not None:
                # As kombu listens to Redis, too: redis-py has no other way to wait for two things at once.
                any_of.register(self._subscription.connection._sock, selectors.EVENT_READ)  # noqa: SLF001
            any_of.select(seconds)
        try:
            # To the last: what is left in a buffer would not show the next time.
            while self._subscription is not None and self._subscription.get_message() is not None:
                pass
        except not_there():
            self._subscription = None


def _tell_line(line: socket.socket) -> None:
    # Whoever listened has heard something else meanwhile.
    with contextlib.suppress(OSError):
        line.send(b"closed")


def _tell_loop(loop: asyncio.AbstractEventLoop, closed: asyncio.Event) -> None:
    # The loop may have ended, and nobody waits there any more.
    with contextlib.suppress(RuntimeError):
        loop.call_soon_threadsafe(closed.set)


async def _first(*each: Coroutine[Any, Any, Any]) -> None:
    """Until one of these is done. Raises what that one raises."""
    tasks = [asyncio.ensure_future(one) for one in each]
    try:
        done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        for task in done:
            task.result()
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


def _subscribe(redis: Any, channel: str) -> Any:
    subscription = redis.pubsub()
    try:
        subscription.subscribe(channel)
        return subscription
    except not_there():
        return None


async def _subscribed(subscription: Any, channel: str) -> Any:
    try:
        await subscription.subscribe(channel)
        return subscription
    except not_there():
        return None


def _pause(ends: float | None, run: Run, *, hinted: bool) -> float:
    pause = LOOK_AGAIN if hinted else WITHOUT_HINTS
    if ends is None:
        return pause
    left = ends - time.monotonic()
    if left <= 0:
        raise TimeoutError(f"run `{run.id}` is still {run.status}; it goes on, ask again later")
    return min(pause, left)
