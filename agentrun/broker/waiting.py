"""Waiting for a run's end without busy polling: a hint through Redis pub/sub, and the row as the truth."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Awaitable, Callable
from typing import Any
from uuid import UUID

from agentrun.broker.hints import Hints, not_there
from agentrun.core.records import Run

LOOK_AGAIN = 5.0
"""Seconds after which the row is asked although no hint came: a hint may be lost."""

WITHOUT_HINTS = 0.5
"""Seconds between looks where there is no Redis to hint."""


def wait_for_end(hints: Hints, status: Callable[[UUID], Run], run_id: UUID, seconds: float | None) -> Run:
    """The run once it is final. Raises TimeoutError, and what `status` raises."""
    ends = None if seconds is None else time.monotonic() + seconds
    # One's own: another thread may close the client while this one reads.
    redis: Any = hints.own_client() if hints.possible else None
    subscription = _subscribe(redis, hints.channel(run_id)) if redis is not None else None
    try:
        while True:
            # Subscribed first, asked second: an end in between is seen by one of the two.
            run = status(run_id)
            if run.status.final:
                return run
            pause = _pause(ends, run, hinted=subscription is not None)
            if subscription is None:
                threading.Event().wait(pause)
                continue
            try:
                subscription.get_message(timeout=pause)
            except not_there():
                subscription = None
    finally:
        if redis is not None:
            redis.close()


async def wait_for_end_async(
    hints: Hints, status: Callable[[UUID], Awaitable[Run]], run_id: UUID, seconds: float | None
) -> Run:
    """As `wait_for_end`, holding no thread."""
    ends = None if seconds is None else time.monotonic() + seconds
    redis: Any = hints.async_client() if hints.possible else None
    subscription: Any = redis.pubsub(ignore_subscribe_messages=True) if redis is not None else None
    try:
        if subscription is not None:
            subscription = await _subscribed(subscription, hints.channel(run_id))
        while True:
            run = await status(run_id)
            if run.status.final:
                return run
            pause = _pause(ends, run, hinted=subscription is not None)
            if subscription is None:
                await asyncio.sleep(pause)
                continue
            try:
                await subscription.get_message(timeout=pause)
            except not_there():
                subscription = None
    finally:
        if redis is not None:
            await redis.aclose()


def _subscribe(redis: Any, channel: str) -> Any:
    subscription = redis.pubsub(ignore_subscribe_messages=True)
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
