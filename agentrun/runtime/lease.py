"""Leases: what a segment holds, and the one thread per process that renews them all.

A lease is lost when its row says so, or when its time by this process's own monotonic clock may be over. Either way
the segment is told at once, and a lost lease never comes back.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import threading
import time
from collections.abc import Callable, Iterable
from typing import Any
from uuid import UUID

import psycopg
from psycopg import Connection

from agentrun.core.outcome import Cancelled, HandedBack, LeaseLost, LimitReached, StopSegment
from agentrun.store.claims import RENEW_ALL, RENEW_WAITING
from agentrun.store.connect import type_of_row
from agentrun.store.database import Database
from agentrun.store.outages import of_postgres
from agentrun.store.sql import Statement
from agentrun.store.taking import RENEW_STEPS

log = logging.getLogger("agentrun.runtime")

MARGIN = 0.1
"""The share of a lease that is not relied on: a step does not start in it."""

LOCK_TIMEOUT = "SET LOCAL lock_timeout = '500ms'"
"""No longer does one lease wait for its row: the others of the process have to be renewed too."""


class Lease:
    """The right of one segment to write to its run, under one epoch; with a `key`, the right to end a remote step.

    `on_stop` is called once, from any thread, when the segment has to end.
    """

    __slots__ = (
        "_ending", "_lock", "_on_stop", "_until", "epoch", "key", "owner", "run_id", "seconds", "stopped", "unsure",
    )  # fmt: skip

    def __init__(
        self, run_id: UUID, epoch: int, owner: str, seconds: float, *, asked_at: float, key: str | None = None
    ) -> None:
        self.run_id, self.epoch, self.owner, self.seconds, self.key = run_id, epoch, owner, seconds, key
        self._until = asked_at + seconds * (1 - MARGIN)
        self.stopped: StopSegment | None = None
        self.unsure: asyncio.Future[Any] | None = None
        """Done once it is known whether the claim has committed; None where that is known."""

        self._ending = False
        self._on_stop: Callable[[StopSegment], None] | None = None
        self._lock = threading.Lock()

    def check(self) -> None:
        """Raises what ends the segment: LeaseLost, Cancelled, HandedBack. Called before every step starts."""
        if self.stopped is None and time.monotonic() >= self._until:
            self.stop(LeaseLost())
        if self.stopped is not None:
            raise self.stopped

    @property
    def expired(self) -> bool:
        """Whether the lease may be over by this process's own clock."""
        return time.monotonic() >= self._until

    def extend(self, asked_at: float) -> None:
        """The row was renewed by a statement that was sent at `asked_at` (monotonic)."""
        self._until = max(self._until, asked_at + self.seconds * (1 - MARGIN))

    def stop(self, ending: StopSegment) -> None:
        """Tell the segment to end. The first ending stands, except that a lost lease overrides the gentler ones."""
        with self._lock:
            if self._ending or isinstance(self.stopped, LeaseLost):
                return
            if self.stopped is not None and not isinstance(ending, LeaseLost):
                return
            self.stopped = ending
            told = self._on_stop
        if told is not None:
            told(ending)

    def begin_ending(self) -> bool:
        """The segment settles now and nothing interrupts that any more. False where the lease is lost already."""
        with self._lock:
            self._ending = not isinstance(self.stopped, LeaseLost)
            return self._ending

    def go_on(self) -> None:
        """The segment does not end after all: parking was refused."""
        with self._lock:
            self._ending = False

    def when_stopped(self, told: Callable[[StopSegment], None]) -> None:
        """Register the segment's reaction; called at once where the lease is stopped already."""
        with self._lock:
            self._on_stop, ending = told, self.stopped
        if ending is not None:
            told(ending)


class Heartbeat:
    """One daemon thread per process with a connection of its own: a blocked event loop loses no lease."""

    def __init__(
        self, database: Database, *, every: float, lease: float, on_beat: Callable[[Connection[type_of_row], int], None]
    ) -> None:
        self._database, self._every, self._default_lease, self._on_beat = database, every, lease, on_beat
        self._outage = of_postgres(database.own_url)
        self._leases: dict[tuple[UUID, str | None], Lease] = {}
        self._lock = threading.Lock()
        self._wanted = threading.Event()
        self._closing = False
        self._thread: threading.Thread | None = None
        self._connection: Connection[type_of_row] | None = None

    def hold(self, lease: Lease) -> None:
        """Renew this lease from now on."""
        with self._lock:
            self._leases[lease.run_id, lease.key] = lease
            first = lease.seconds < self._default_lease
        self.start()
        if first:
            self._wanted.set()

    def drop(self, lease: Lease) -> None:
        """Renew it no more: its segment has ended."""
        with self._lock:
            if self._leases.get((lease.run_id, lease.key)) is lease:
                del self._leases[lease.run_id, lease.key]

    def held(self) -> list[Lease]:
        """The leases held now."""
        with self._lock:
            return list(self._leases.values())

    def start(self) -> None:
        """Start the thread where it does not run yet."""
        if self._thread is None:
            with self._lock:
                if self._thread is None and not self._closing:
                    self._thread = threading.Thread(target=self._serve, name="agentrun heartbeat", daemon=True)
                    self._thread.start()

    def close(self) -> None:
        """End the thread."""
        self._closing = True
        self._wanted.set()
        if self._thread is not None:
            self._thread.join(5)
        if self._connection is not None:
            self._connection.close()

    def _serve(self) -> None:
        while not self._closing:
            try:
                self.beat()
            except psycopg.Error as error:
                self._outage.failed(error, who="heartbeat")
                self._connection = None
                self._give_up_expired()
                self._wanted.wait(min(0.5, self._pause()))
            except Exception:
                # This thread keeps every lease of the process: nothing that goes wrong in one beat ends it.
                log.exception("a heartbeat failed; trying again")
                self._give_up_expired()
                self._wanted.wait(min(0.5, self._pause()))
            else:
                self._outage.worked(who="heartbeat")
                self._wanted.wait(self._pause())
            self._wanted.clear()
        self._outage.gone("heartbeat")

    def _pause(self) -> float:
        return min([self._every, *(lease.seconds / 4 for lease in self.held())])

    def beat(self) -> None:
        """Renew every lease held, and tell the segments of those that are lost or asked to end."""
        held = self.held()
        leases = {lease.run_id: lease for lease in held if lease.key is None}
        taken = {(lease.run_id, lease.key): lease for lease in held if lease.key is not None}
        for _ in range(4):
            leases, taken = self._renew(leases), self._renew_steps(taken)
            if not leases and not taken:
                break
            # The row was locked by its own segment's write: that takes milliseconds.
            self._wanted.wait(0.02)
        for lease in leases.values():
            self._renew_waiting(lease)
        self._give_up_expired()
        self._on_beat(self._connected(), len(self._leases))

    def _renew(self, leases: dict[UUID, Lease], statement: Statement = RENEW_ALL) -> dict[UUID, Lease]:
        """One statement for all; returns those whose row was locked."""
        if not leases:
            return {}
        asked_at = time.monotonic()
        passed_over: dict[UUID, Lease] = {}
        # Noted before asking: what commits in between is not seen in the answer.
        unsure = {run_id for run_id, lease in leases.items() if lease.unsure is not None}
        for row in self._answers(statement, leases.values()):
            lease = leases[row["run_id"]]
            if not row["held"]:
                if lease.run_id not in unsure:
                    lease.stop(LeaseLost())
            elif row["renewed"]:
                lease.extend(asked_at)
            else:
                passed_over[lease.run_id] = lease
            if row["held"] and row["cancel_requested"]:
                lease.stop(Cancelled())
            elif row["held"] and row["deadline_passed"]:
                lease.stop(LimitReached())
        return passed_over

    def _renew_waiting(self, lease: Lease) -> None:
        """A run whose steps end elsewhere one after the other: its row is never free when one looks, so get in line."""
        connection = self._connected()
        with contextlib.suppress(psycopg.errors.LockNotAvailable), connection.transaction():
            connection.execute(LOCK_TIMEOUT)
            self._renew({lease.run_id: lease}, RENEW_WAITING)

    def _renew_steps(self, taken: dict[tuple[UUID, str], Lease]) -> dict[tuple[UUID, str], Lease]:
        """The same for remote steps."""
        if not taken:
            return {}
        asked_at = time.monotonic()
        ordered = sorted(taken.items())
        params = {
            "run_ids": [run_id for (run_id, _), _ in ordered],
            "keys": [key for (_, key), _ in ordered],
            "epochs": [lease.epoch for _, lease in ordered],
            "lease": self._default_lease,
        }
        passed_over: dict[tuple[UUID, str], Lease] = {}
        for row in self._connected().execute(RENEW_STEPS.sql, params).fetchall():
            lease = taken[row["run_id"], row["key"]]
            if not row["held"]:
                lease.stop(LeaseLost())
            elif row["renewed"]:
                lease.extend(asked_at)
            else:
                passed_over[lease.run_id, row["key"]] = lease
            if row["held"] and row["over"]:
                lease.stop(Cancelled())
        return passed_over

    def _answers(self, statement: Statement, leases: Iterable[Lease]) -> list[type_of_row]:
        ordered = sorted(leases, key=lambda lease: lease.run_id)
        params = {
            "run_ids": [lease.run_id for lease in ordered],
            "epochs": [lease.epoch for lease in ordered],
            "lease": self._default_lease,
        }
        return self._connected().execute(statement.sql, params).fetchall()

    def _give_up_expired(self) -> None:
        for lease in self.held():
            if lease.expired:
                lease.stop(LeaseLost())

    def _connected(self) -> Connection[type_of_row]:
        if self._connection is None or self._connection.closed:
            self._connection = self._database.dedicated("agentrun heartbeat")
        return self._connection


def drain(leases: Iterable[Lease]) -> None:
    """Ask every segment to hand its run back at its next step."""
    for lease in leases:
        lease.stop(HandedBack())
