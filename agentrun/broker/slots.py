"""Slots of a worker for tasks that only wait: greenlets of the consumer's thread, which take no thread of the pool."""

from __future__ import annotations

import logging
import threading
from collections import deque
from collections.abc import Callable, Collection
from concurrent.futures import Future
from queue import Empty, SimpleQueue
from typing import Any, TypeVar

from celery.concurrency.base import apply_target
from greenlet import getcurrent, greenlet

log = logging.getLogger("agentrun.worker")
T = TypeVar("T")


class Slots:
    """As many as the pool has threads. What Celery does for a task, it does in the consumer's thread, in two halves.

    What a segment does, it does on the engine's loop. A thread that waits for it would take the interpreter from that
    loop twice for each run, and two thousand of them would be there for nothing.

    Celery keeps what it knows of a current task per greenlet, and context variables are per greenlet too.
    """

    def __init__(self, pool: Any, hub: Any, tasks: Collection[str]) -> None:
        self._pool, self._hub, self._tasks = pool, hub, frozenset(tasks)
        self._in_thread, self._stop_threads = pool.on_apply, pool.on_stop
        self._thread = threading.get_ident()
        self._taken: set[greenlet] = set()
        self._later: deque[Callable[[], None]] = deque()
        self._ended: SimpleQueue[greenlet | None] = SimpleQueue()
        self._stopping = False

    @classmethod
    def of(cls, pool: Any, hub: Any, tasks: Collection[str]) -> Slots:
        """Take over these tasks, by name, from the threads of a pool. Called by the thread of the hub."""
        slots = cls(pool, hub, tasks)
        pool.on_apply, pool.on_stop = slots.apply, slots.stop
        # Called after every connect, whose failure had the hub forget what it was to do soon.
        pool.register_with_event_loop = slots.connected
        return slots

    @property
    def taken(self) -> int:
        """How many tasks there are that have begun and not ended."""
        return len(self._taken)

    @property
    def full(self) -> bool:
        """Whether a task that comes now has to wait for a slot."""
        return bool(self._later) or len(self._taken) >= self._pool.limit

    def apply(self, target: Callable[..., Any], args: Any = (), kwargs: Any = None, **options: Any) -> Any:
        """Execute a task that came in: here if it is one of ours, in a thread of the pool otherwise."""
        if args[0] not in self._tasks or threading.get_ident() != self._thread:
            return self._in_thread(target, args, kwargs, **options)
        self._later.append(lambda: _execute(target, args, kwargs, options))
        self._begin()
        return None

    def end_of(self, future: Future[T]) -> T:
        """The future's result. A task of ours lets go of the thread until then; anybody else's blocks it."""
        task = getcurrent()
        if task in self._taken and task.parent is not None:
            future.add_done_callback(lambda _: self._has_ended(task))
            task.parent.switch()
        return future.result()

    def go_on(self) -> None:
        """Finish the tasks whose segments have ended, and begin those that waited for a slot."""
        while True:
            try:
                self._finish(self._ended.get_nowait())
            except Empty:
                break
        self._begin()
        self._look_again()

    def connected(self, hub: Any) -> None:
        """The consumer is about to begin, perhaps again."""
        self._hub = hub
        hub.call_soon(self.go_on)

    def stop(self) -> None:
        """The worker shuts down: returns when all tasks have ended, those in threads, too."""
        self._stopping = True
        self._begin()
        # Called by a signal's handler, it may have interrupted a task, which ends after this.
        while self._taken - {getcurrent()}:
            self._finish(self._ended.get())
            self._begin()
        self._look_again()
        self._stop_threads()

    def _look_again(self) -> None:
        """A signal's handler may have interrupted a `stop`, which waits for what the handler has just finished."""
        if self._stopping:
            self._ended.put(None)

    def _finish(self, task: greenlet | None) -> None:
        if task is not None:
            self._switch_to(task)

    def _begin(self) -> None:
        while self._later and len(self._taken) < self._pool.limit:
            task = greenlet(self._later.popleft())
            self._taken.add(task)
            self._switch_to(task)

    def _switch_to(self, task: greenlet) -> None:
        # Whoever goes on with it gets the thread back: a signal's handler, too, on top of a task that it interrupted.
        task.parent = getcurrent()
        try:
            task.switch()
        finally:
            if task.dead:
                self._taken.discard(task)

    def _has_ended(self, task: greenlet) -> None:
        """Called on the engine's loop."""
        self._ended.put(task)
        self._hub.call_soon(self.go_on)


def _execute(target: Callable[..., Any], args: Any, kwargs: Any, options: dict[str, Any]) -> None:
    try:
        apply_target(target, args, kwargs, options.get("callback"), options.get("accept_callback"))
    except Exception:
        # A thread of the pool would keep it to itself. The consumer must not end by it either.
        log.exception("Celery could not execute a task")
