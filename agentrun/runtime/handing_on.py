"""Handing a message on: a worker that lacks what a message is for puts it back at once, for another worker to take."""

from __future__ import annotations

import time

from agentrun.core.wake import Publisher, Wake

PAUSE_SECONDS = 1.0
"""Where nobody else takes it either, it comes back: no more than this often is it handed on by one process."""

MOST = 10_000


class HandingOn:
    """What one process handed on lately. Left to the sweep alone, a message might come to the same worker each time."""

    def __init__(self, publisher: Publisher) -> None:
        self._publisher = publisher
        self._at: dict[tuple[object, str | None], float] = {}

    def hand_on(self, wake: Wake) -> None:
        """Send it again, unless this process did so just now: then the sweep will."""
        now, name = time.monotonic(), (wake.run_id, wake.step_key)
        if now - self._at.get(name, -PAUSE_SECONDS) < PAUSE_SECONDS:
            return
        if len(self._at) >= MOST:
            self._at = {each: at for each, at in self._at.items() if now - at < PAUSE_SECONDS}
        self._at[name] = now
        self._publisher.soon(wake)
