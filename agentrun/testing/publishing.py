"""A publisher that sends nothing and remembers everything: for segments and sweeps inside one process."""

from __future__ import annotations

import threading
from uuid import UUID

from agentrun.core.wake import Wake


class RecordingPublisher:
    """Keeps wakes and hints in the order in which they were sent. `away` makes it a broker that cannot be reached."""

    def __init__(self) -> None:
        self.wakes: list[Wake] = []
        self.ended: list[UUID] = []
        self.depths: dict[str, int] = {}
        self.away = False
        self._lock = threading.Lock()

    def wake(self, *wakes: Wake) -> int:
        """Remember; returns how many."""
        if self.away:
            return 0
        with self._lock:
            self.wakes.extend(wakes)
        return len(wakes)

    def soon(self, wake: Wake) -> None:
        """Remember at once: tests need no background."""
        self.wake(wake)

    def settled(self, run_id: UUID) -> None:
        """Remember."""
        with self._lock:
            self.ended.append(run_id)

    def depth(self, queue: str) -> int | None:
        """What a test put into `depths`, else 0."""
        return None if self.away else self.depths.get(queue, 0)

    def close(self) -> None:
        """Nothing to close."""

    def causes(self, run_id: UUID) -> list[str]:
        """Why this run was woken, in order."""
        return [wake.cause for wake in self.wakes if wake.run_id == run_id]
