"""A broker inside the test's process: wakes and step messages go straight to an engine, one after the other.

What real workers do side by side happens here in one order, the same every time, and time passes only where the test
(or a drain that has nothing else to do) says so. It knows no more than a broker knows: the row decides.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Generator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from enum import StrEnum
from typing import Any
from uuid import UUID

from agentrun.core.errors import NotApplied
from agentrun.core.wake import Wake
from agentrun.core.words import Effect
from agentrun.runtime.engine import Engine
from agentrun.runtime.remotesteps import remote_step, remote_steps
from agentrun.runtime.settling import Report
from agentrun.testing.clock import Clock

MOST = 1_000
"""Segments and steps in one drain: a test that needs more of them goes round in circles."""

NEXT_DUE = """
SELECT min(at) AS at FROM (
    SELECT due_at + interval '1 second' AS at FROM agentrun.runs WHERE status = 'queued'
    UNION ALL
    SELECT w.due_at FROM agentrun.waits w JOIN agentrun.runs r ON r.id = w.run_id
        WHERE w.status = 'open' AND w.kind = 'timer' AND r.status = 'waiting'
    UNION ALL
    SELECT s.due_at + interval '1 second' FROM agentrun.steps s JOIN agentrun.runs r ON r.id = s.run_id
        WHERE s.status = 'offered' AND r.status IN ('waiting', 'running')
) AS due WHERE at > now()
"""
"""Retries and timers. The second on top is what a sweep grants to a message that is on its way."""


class Unregistered(StrEnum):
    """What becomes of a message that names a remote step (or a kind) that nobody in this process has registered."""

    STRICT = "strict"
    """A remote step fails at once, and is not retried; for a kind, the drain raises AssertionError."""

    SILENT = "silent"
    """It is lost, and nobody hears of it, as with a broker whose consumer has died."""


@dataclass(slots=True)
class LocalBroker:
    """A publisher, and the worker behind it. `drain()` executes everything that can be executed."""

    unregistered: Unregistered = Unregistered.STRICT
    away: bool = False
    """A broker that cannot be reached: nothing that is sent arrives."""

    lost: list[Wake] = field(default_factory=list[Wake])
    """Messages that were thrown away, or that nobody here could serve."""

    ended: list[UUID] = field(default_factory=list[UUID])
    """Runs of whose end somebody was told, in order."""

    _engine: Engine | None = None
    _clock: Clock | None = None
    _sweep: Callable[[], object] | None = None
    _messages: deque[Wake] = field(default_factory=deque[Wake])
    _later: list[Wake] = field(default_factory=list[Wake])
    """Sent with a delay. Looked at again whenever time may have passed: the row knows whether it is due."""

    _lock: threading.Lock = field(default_factory=threading.Lock)

    def serves(self, engine: Engine, clock: Clock, sweep: Callable[[], object]) -> None:
        """From now on messages go to this engine; `sweep` is what beat would send."""
        self._engine, self._clock, self._sweep = engine, clock, sweep

    # ---- the broker

    def wake(self, *wakes: Wake) -> int:
        """Take messages in; returns how many."""
        if self.away:
            return 0
        with self._lock:
            for wake in wakes:
                (self._later if wake.delay > 0 else self._messages).append(wake)
        return len(wakes)

    def soon(self, wake: Wake) -> None:
        """Take a message in."""
        self.wake(wake)

    def settled(self, run_id: UUID) -> None:
        """Remember."""
        self.ended.append(run_id)

    def depth(self, queue: str) -> int | None:
        """How many messages wait in the queue; None while the broker is away."""
        with self._lock:
            waiting = [*self._messages, *self._later]
        return None if self.away else sum(message.queue == queue for message in waiting)

    def close(self) -> None:
        """Nothing to close."""

    @property
    def messages(self) -> list[Wake]:
        """What waits to be delivered, in order."""
        with self._lock:
            return [*self._messages, *self._later]

    def lose(self) -> int:
        """Throw away what waits to be delivered: a Redis that was flushed. Returns how many messages that were."""
        with self._lock:
            gone, self._messages, self._later = [*self._messages, *self._later], deque(), []
        self.lost += gone
        return len(gone)

    # ---- the worker

    def drain(self, *, travel: bool = True, sweep: bool = True, most: int = MOST) -> list[Report]:
        """Execute what is there, and what comes of it, until nothing is left to do; returns what became of each.

        With `travel`, time passes until the next retry or timer when nothing else is due; what waits for a person, a
        signal or its expiry is left waiting. With `sweep`, what no message will wake is found, as by beat. Raises
        AssertionError after `most` segments and steps: then something wakes itself again and again.
        """
        told: list[Report] = []
        moved = True
        self._look_again()
        while True:
            moved |= self._delivered(told, most)
            if sweep and self._sweep is not None:
                self._sweep()
            if self._messages and moved:
                moved = False
            elif travel and self._travelled():
                moved = True
            else:
                return told

    def deliver(self) -> Report:
        """Execute one message, the oldest. Raises AssertionError where none waits."""
        with self._lock:
            assert self._messages, "no message waits to be delivered"
            message = self._messages.popleft()
        return self._served(message)

    def _delivered(self, told: list[Report], most: int) -> bool:
        """Execute what waits; whether that changed anything."""
        before = len(told)
        while self._messages:
            report = self.deliver()
            if report.epoch:
                told.append(report)
            assert len(told) < most, f"{most} segments and steps, and still not idle; the last of them: {told[-3:]}"
        return len(told) > before

    def _look_again(self) -> None:
        with self._lock:
            self._messages.extend(replace(message, delay=0.0) for message in self._later)
            self._later.clear()

    def _served(self, message: Wake) -> Report:
        engine, key = self._serving(), message.step_key
        report = engine.run(message.run_id) if key is None else engine.run_step(message.run_id, key)
        if report.outcome != "elsewhere":
            return report
        self.lost.append(message)
        if self.unregistered is Unregistered.SILENT:
            return report
        assert key is not None, (
            f"no kind `{report.kind}` is registered in this process: run {message.run_id} would wait for a worker that "
            "knows it; import the module that registers it"
        )
        with _failing(report.kind):
            return engine.run_step(message.run_id, key)

    def _travelled(self) -> bool:
        """Let time pass until something is due; whether anything ever will be."""
        with self._serving().database.connection() as connection:
            row = connection.execute(NEXT_DUE).fetchone()
        if self._clock is None or row is None or row["at"] is None:
            return False
        self._clock.travel_to(row["at"])
        self._look_again()
        return True

    def _serving(self) -> Engine:
        assert self._engine is not None, "this broker has no engine: `broker.serves(engine, clock, sweep)`"
        return self._engine


@contextmanager
def _failing(name: str) -> Generator[None]:
    """A remote step of that name that says only that nobody has registered it."""
    before = remote_steps.snapshot()

    @remote_step(name, effect=Effect.READ_ONLY)
    def nobody(value: Any) -> None:
        raise NoRemoteStep(f"no remote step `{name}` is registered in this process")

    try:
        yield
    finally:
        remote_steps.restore(before)


class NoRemoteStep(NotApplied):
    """A message named a remote step that this process has not registered. Nothing happened, and no retry helps."""
