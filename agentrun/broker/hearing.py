"""What a worker's process takes from its queues, and whether it had room for more: told with every heartbeat.

A worker can live and hear nothing: its connection to the broker went deaf, or its consumer was cancelled. Its heartbeat
does not notice, so it says what `agentrun doctor` needs to notice it.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from celery import signals
from celery.utils.time import rate
from celery.worker.state import reserved_requests

from agentrun.broker.about import queues_of
from agentrun.broker.names import STEP, SWEEP, WAKE
from agentrun.runtime.doctor import longest_silence

Room = Callable[[int], bool]
"""Whether a process that holds so many leases would begin with one more message at once."""


class Hearing:
    """Since when a process has taken nothing from each of its queues, and since when it has had room for more.

    In seconds before the heartbeat, by this process's own clock: they are compared with each other only.
    """

    def __init__(self, queues: Sequence[str], *, beat: float, room: Room | None, consumer: Any = None) -> None:
        self._took = dict.fromkeys(queues, time.monotonic())
        self._longest, self._room, self._consumer = longest_silence(beat), room, consumer
        self._free_since: float | None = None
        self._told_at = time.monotonic()

    def heard(self, name: str, delivery: Mapping[str, Any] | None) -> None:
        """A task of anybody came. Ours say so themselves; a sweep's queue is no queue of runs."""
        if name not in (WAKE, STEP, SWEEP):
            self.took((delivery or {}).get("routing_key"))

    def took(self, queue: str | None) -> None:
        """A message came from that queue; from any, where its routing key names none of them."""
        now = time.monotonic()
        for name in (queue,) if queue in self._took else (*self._took,):
            self._took[name] = now

    def told(self, holds: int) -> Mapping[str, Any]:
        """For the process's row. `free` is None without room; `cancelled` where the process has no consumer to ask."""
        if self._room is None:
            return {}
        now, before = time.monotonic(), self._told_at
        self._told_at = now
        if not self._room(holds):
            self._free_since = None
        elif self._free_since is None or now - before > self._longest:
            # After a gap it was frozen, or the database was away: what it did not take meanwhile says nothing.
            self._free_since = now
        return {
            "free": None if self._free_since is None else round(now - self._free_since, 1),
            "took": {queue: round(now - at, 1) for queue, at in dict(self._took).items()},
            "cancelled": self._cancelled(),
        }

    def _cancelled(self) -> list[str] | None:
        return None if self._consumer is None else sorted(set(self._took) - set(queues_of(self._consumer)))


class RoomOfPool:
    """Room in the process that consumes: leases count, and whatever Celery has taken of other applications' tasks.

    Messages of ours are not counted but by their leases: a pool that does not end them, or does not begin them, has no
    room by Celery's count for ever.
    """

    def __init__(self, consumer: Any) -> None:
        self._consumer = consumer

    def __call__(self, holds: int) -> bool:
        """Called by the heartbeat's thread."""
        if limited(self._consumer.app):
            return False
        most = getattr(self._consumer.controller, "max_concurrency", None) or self._consumer.pool.num_processes
        try:
            others = sum(request.name not in (WAKE, STEP) for request in reserved_requests)
        except RuntimeError:
            # One came or went just now: it hears.
            return False
        return holds + others < most


class RoomOfChild:
    """Room in a child of a pool: it executes one task at a time, of whomever."""

    def __init__(self, app: Any, heard: Callable[[str, Mapping[str, Any] | None], object]) -> None:
        self._app, self._heard, self._executing = app, heard, 0
        signals.task_prerun.connect(self.begins, weak=False)
        signals.task_postrun.connect(self.has_ended, weak=False)

    def __call__(self, holds: int) -> bool:
        """Called by the heartbeat's thread."""
        return not holds and not self._executing and not limited(self._app)

    def begins(self, task: Any = None, **_: object) -> None:
        """Called by Celery, as `has_ended`."""
        if task is not None:
            self._heard(task.name, task.request.delivery_info)
        self._executing += 1

    def has_ended(self, **_: object) -> None:
        """However it ended."""
        self._executing -= 1


def limited(app: Any) -> bool:
    """Whether Celery decides how often a message of ours is begun with: by a `rate_limit`."""
    tasks: Mapping[str, Any] = {} if app is None else app.tasks
    return any(rate(tasks[name].rate_limit) for name in (WAKE, STEP) if name in tasks)
