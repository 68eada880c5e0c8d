"""The engine of one process: one event loop, one journal writer, one heartbeat, one publisher.

Made lazily and per process id, so that a fork never shares any of them.
"""

from __future__ import annotations

import asyncio
import itertools
import logging
import os
import socket
import threading
import time
import uuid
from collections.abc import Callable, Coroutine, Mapping
from concurrent.futures import Future
from dataclasses import replace
from typing import Any, TypeVar
from uuid import UUID

from psycopg import Connection

from agentrun.core.outcome import LeaseLost
from agentrun.core.wake import Publisher, Wake
from agentrun.core.words import Segment
from agentrun.runtime.answers import Answers
from agentrun.runtime.commands import Commands
from agentrun.runtime.handing_on import HandingOn
from agentrun.runtime.keys import branching_tasks
from agentrun.runtime.kinds import Registry, registry
from agentrun.runtime.lease import Heartbeat, drain
from agentrun.runtime.observing import Observer
from agentrun.runtime.presence import celery_app, presence
from agentrun.runtime.pulse import Pulse
from agentrun.runtime.segment import Executing, run_segment
from agentrun.runtime.settling import Report
from agentrun.runtime.taking import run_step
from agentrun.runtime.threads import DaemonThreads
from agentrun.settings import Settings
from agentrun.store.connect import keeps_session, type_of_row
from agentrun.store.database import Database
from agentrun.store.heirs import HERE, INHERIT_RUNS, INHERIT_STEPS
from agentrun.store.sweeping import PROCESS_GONE, PROCESS_SEEN
from agentrun.store.waits import DUE_OF_RUN
from agentrun.store.watching import OWN_APP
from agentrun.store.writer import Writer

log = logging.getLogger("agentrun.runtime")
T = TypeVar("T")

LONGEST_TIMER = 3600.0
"""Seconds ahead that a process keeps timers of parked runs; the sweep has them all."""

MOST_TIMERS = 10_000

RESERVED = 1.0
"""Seconds of the drain budget, half of it at most, for handing back what has reached no step and for telling others."""

LAST_WORDS = 1.0
"""Seconds in which what still runs at the close may end: its `finally`, the connections that it has open."""

HOST = socket.gethostname()[:40]


class Engine:
    """Executes segments in this process. Thread-safe; `close` ends its threads. `sweep` starts one in the background,
    and says why; `observer` looks on; `hearing` says with each beat, for so many leases, what the process hears."""

    def __init__(
        self,
        settings: Settings,
        database: Database,
        publisher: Publisher,
        *,
        kinds: Registry = registry,
        queues: tuple[str, ...] = (),
        about: Mapping[str, Any] | None = None,
        hearing: Callable[[int], Mapping[str, Any]] | None = None,
        sweep: Callable[[str], None] | None = None,
        observer: Observer | None = None,
    ) -> None:
        self.settings, self.database, self.publisher, self.registry = settings, database, publisher, kinds
        self.id, self._tokens = uuid.uuid4(), itertools.count()
        self.queues, self.about, self.observer = queues, about or {}, observer
        self.draining = False
        self._closing = self._ended = False
        self._closed = threading.Lock()
        self._timers: dict[UUID, tuple[Wake, asyncio.TimerHandle]] = {}
        self.executing: dict[UUID, Executing] = {}
        self.taking: dict[tuple[UUID, str], Any] = {}
        self.handing_on = HandingOn(publisher)
        self._sweep, self._hearing = sweep, hearing
        self._here: Connection[type_of_row] | None = None
        self._since = time.monotonic()
        self.threads = DaemonThreads(settings.worker_threads, name="agentrun body")
        self.writer = Writer(database.url)
        self.heartbeat = Heartbeat(
            database, every=settings.heartbeat_seconds, lease=settings.lease_seconds, on_beat=self._on_beat
        )
        self.loop = asyncio.new_event_loop()
        self._pulse = Pulse(self.loop)
        self.loop.set_task_factory(branching_tasks)  # pyright: ignore[reportArgumentType]
        self._thread = threading.Thread(target=self._serve, name="agentrun loop", daemon=True)
        self._thread.start()

    def owner(self, segment: Segment) -> str:
        """`worker:host:pid`, or `worker:STABLE_ID:pid:instance`; for people. `host:pid` repeats, and guards nothing."""
        return f"{segment}:{self.owner_suffix}"

    @property
    def owner_suffix(self) -> str:
        """`host:pid` of this process; with a stable id, a name that no other process ever has."""
        stable_id = self.settings.stable_id
        return f"{stable_id}:{os.getpid()}:{self.id.hex[:12]}" if stable_id else f"{HOST}:{os.getpid()}"

    def token(self) -> str:
        """What no other claim says: who does not know whether one landed looks for it."""
        return f"{self.id.hex}{next(self._tokens):x}"

    def run(self, run_id: UUID) -> Report:
        """Execute one segment of a queued run and wait for its end. For worker threads."""
        return self.begin(run_id).result()

    def begin(self, run_id: UUID, *, claimed: Callable[[], object] = int) -> Future[Report]:
        """Execute one segment of a queued run; what becomes of it. `claimed` is called on the engine's loop once the
        claim was answered, whichever way."""
        return self.submit(run_segment(self, run_id, claimed=claimed))

    def run_step(self, run_id: UUID, key: str) -> Report:
        """Take and execute one remote step and wait for its end. For worker threads."""
        return self.begin_step(run_id, key).result()

    def begin_step(self, run_id: UUID, key: str) -> Future[Report]:
        """Take and execute one remote step; what becomes of it."""
        return self.submit(run_step(self, run_id, key))

    def submit(self, coroutine: Coroutine[Any, Any, T]) -> Future[T]:
        """Run a coroutine on the engine's loop."""
        return asyncio.run_coroutine_threadsafe(coroutine, self.loop)

    def announce(self) -> None:
        """Tell the database that this process is here, and go on telling."""
        self.heartbeat.start()

    def wake_later(self, wake: Wake, seconds: float) -> None:
        """Wake a parked run when its timer is due. Held in this process only: the sweep is there if it dies."""
        if seconds <= LONGEST_TIMER and len(self._timers) < MOST_TIMERS:
            self.loop.call_soon_threadsafe(self._set_timer, wake, max(seconds, 0.0))

    def end_due_waits(self, run_id: UUID) -> None:
        """Resolve what of a parked run is due; its run is woken again by that."""
        answers = Answers(Commands(self.settings, self.database, self.publisher, self.registry))
        for row in self.database.rows(DUE_OF_RUN, {"run_id": run_id}):
            answers.due(row, f"timer:{self.owner_suffix}")

    def keeps_time_of(self, run_id: UUID) -> bool:
        """Whether this process has a timer of that run."""
        return run_id in self._timers

    def _set_timer(self, wake: Wake, seconds: float) -> None:
        if self.draining:
            # Somebody else has to keep the time: whoever gets this wake too early does.
            self.publisher.soon(replace(wake, cause="drain"))
            return
        before = self._timers.pop(wake.run_id, None)
        if before is not None:
            before[1].cancel()
        self._timers[wake.run_id] = wake, self.loop.call_later(seconds, self._timer_due, wake)

    def _timer_due(self, wake: Wake) -> None:
        self._timers.pop(wake.run_id, None)
        self.publisher.soon(wake)

    def drain(self, *, within: float | None = None) -> None:
        """Hand every run back: at its next step, or after `within` seconds (the drain budget) wherever it is.

        Returns at once; `idle` waits for the end. Remote steps are offered again after that time, and the timers of
        parked runs are given to other processes. Heartbeats go on until the last segment has ended. A write in flight
        is always waited for, unless it is idempotent: that one is done again elsewhere.
        """
        self.draining = True
        drain(self.heartbeat.held())
        budget = self.settings.drain_seconds if within is None else within
        self.loop.call_soon_threadsafe(self._begin_drain, budget - min(RESERVED, budget / 2))

    def idle(self, timeout: float) -> bool:
        """Wait until this process executes nothing any more, at most `timeout` seconds. False where it still does."""
        ends = time.monotonic() + timeout
        while self.heartbeat.held():
            left = ends - time.monotonic()
            if left <= 0:
                return False
            busy = [*self.executing.values(), *self.taking.values()]
            # What was claimed just now has not begun yet.
            (busy[0].ended if busy else threading.Event()).wait(left if busy else min(left, 0.01))
        return True

    def _begin_drain(self, seconds: float) -> None:
        self.loop.call_later(seconds, self._interrupt_all)
        timers, self._timers = self._timers, {}
        for wake, timer in timers.values():
            timer.cancel()
            self.publisher.soon(replace(wake, cause="drain"))

    def release(self, run_id: UUID) -> None:
        """This process is about to die: hand the run back now, or leave it to its lease."""
        executing = self.executing.get(run_id)
        if executing is not None:
            drain([executing.lease])
            self.loop.call_soon_threadsafe(executing.interrupt)
            executing.ended.wait(2)

    def release_step(self, run_id: UUID, key: str) -> None:
        """As `release`, for a remote step that may be done again."""
        taking = self.taking.get((run_id, key))
        if taking is not None:
            drain([taking.lease])
            self.loop.call_soon_threadsafe(taking.interrupt)
            taking.ended.wait(2)

    def _interrupt_all(self) -> None:
        for executing in list(self.executing.values()):
            drain([executing.lease])
            executing.interrupt()
        for taking in list(self.taking.values()):
            taking.interrupt()

    def close(self) -> None:
        """End the threads. Segments that still run are cancelled, write nothing any more, and lose their leases to the
        reaper. Does nothing the second time."""
        if not self._closed.acquire(blocking=False):
            return
        self._closing = True
        self.heartbeat.close()
        self.submit(self._end_all()).result(10)
        self._ended = True
        self.loop.call_soon_threadsafe(self.loop.stop)
        self._thread.join(5)
        self.threads.shutdown(wait=False, cancel_futures=True)
        try:
            self.database.rows(PROCESS_GONE, {"process_id": self.id})
        except Exception as error:
            # Its row goes stale by itself; an unreachable database must not keep a process from ending.
            log.debug("the process's row stays behind: %s", type(error).__name__)

    async def _end_all(self) -> None:
        """Write what waits, and end what runs. A task that is dropped with its loop would never end: neither would its
        `finally` be reached, nor would whoever waits for it hear anything."""
        await self.writer.close()
        for lease in self.heartbeat.held():
            lease.stop(LeaseLost())
        left = {task for task in asyncio.all_tasks() if task is not asyncio.current_task()}
        for task in left:
            task.cancel()
        if left:
            await asyncio.wait(left, timeout=LAST_WORDS)

    @property
    def closed(self) -> bool:
        """Whether `close` was called."""
        return self._closing

    def _serve(self) -> None:
        asyncio.set_event_loop(self.loop)
        while not self._ended:
            try:
                self.loop.run_forever()
            except (SystemExit, KeyboardInterrupt) as error:
                # Raised in a task of a body, asyncio lets these through: the other runs of this process go on.
                log.warning("a body raised %s; its run has failed", type(error).__name__)
        self.loop.close()

    def _on_beat(self, connection: Connection[type_of_row], holds: int) -> None:
        named = self.settings.stable_id is not None and self._be_here(connection)
        heard: Mapping[str, Any] = {} if self._hearing is None else self._hearing(holds)
        about = {**self.about, "blocked": self._pulse.silent(), **heard}
        params = presence(self.settings, self.registry, self.queues, about) | {
            "process_id": self.id,
            # A row that names it without the lock would be a dead process's.
            "stable_id": self.settings.stable_id if named else None,
            # A process on no queue is a client, whose segments are called so.
            "by": self.owner(Segment.WORKER if self.queues else Segment.INTERACTIVE),
            "holds": holds,
            "draining": self.draining,
        }
        row = connection.execute(PROCESS_SEEN.sql, params).fetchone()
        age = row["sweep_age"] if row is not None else None
        # Where nobody has ever swept, beat may be starting just now: it gets as long as after any other sweep.
        seconds = time.monotonic() - self._since if age is None else float(age)
        if self._sweep is not None and seconds > 3 * self.settings.sweep_seconds:
            self._sweep(
                f"no sweep for a while; this worker does one (is `celery -A {celery_app() or OWN_APP} beat` running?)"
            )
        if named and time.monotonic() - self._since < self.settings.lease_seconds:
            self._inherit(connection, params)

    def _be_here(self, connection: Connection[type_of_row]) -> bool:
        """Before the row says that this process is here, its lock is held: a row without the lock is a dead one's.

        False through a pooler: which of its connections held the lock, and how long it lives, says nothing of us.
        """
        held = keeps_session(connection)
        if self._here is not connection:
            if held:
                connection.execute(HERE.sql, {"process_name": str(self.id)})
            else:
                log.warning(
                    "AGENTRUN_STABLE_ID does nothing through a pooler: what this process holds when it dies is left to "
                    "its leases, unless AGENTRUN_DIRECT_DATABASE_URL names the server itself"
                )
            self._here = connection
        return held

    def _inherit(self, connection: Connection[type_of_row], params: Mapping[str, Any]) -> None:
        """Take back at once what a process of the same stable id held that died; later, its leases are over."""
        left = sum(len(connection.execute(each.sql, params).fetchall()) for each in (INHERIT_RUNS, INHERIT_STEPS))
        if left:
            log.warning("%d runs and steps were held by a dead process of %s", left, self.settings.stable_id)
            if self._sweep is not None:
                self._sweep("a sweep takes them back")
