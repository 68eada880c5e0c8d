"""Whether an event loop answers: what one heartbeat asks of it, and the next one tells.

A body that calls blocking code stops every run of its process, and leases do not notice: a thread of its own renews
them.
"""

from __future__ import annotations

import asyncio
import contextlib
import time


class Pulse:
    """One loop's. For one thread beside it, which calls `silent` again and again."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop, self._asked, self._answered = loop, time.monotonic(), True

    def silent(self) -> float:
        """For how many seconds the loop has left the last question open; 0 where it has answered. Asks anew then."""
        if not self._answered:
            return time.monotonic() - self._asked
        self._asked, self._answered = time.monotonic(), False
        with contextlib.suppress(RuntimeError):  # closed: the process ends
            self._loop.call_soon_threadsafe(self._answer)
        return 0.0

    def _answer(self) -> None:
        self._answered = True
