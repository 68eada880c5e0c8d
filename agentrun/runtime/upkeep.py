"""The sweep: what no message will wake, and what has expired. Any number may run at once; each write re-checks.

It only ever chooses candidates and asks for moves, so it may be killed anywhere and simply runs again.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Generator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from typing import Any, assert_never

from agentrun.core.errors import ConfigurationError
from agentrun.core.policy import Backoff, Crash, GiveUp, RetryIn, decide
from agentrun.core.wake import Publisher, Wake
from agentrun.runtime.answers import Answers
from agentrun.runtime.commands import Commands
from agentrun.runtime.hooks import notify
from agentrun.runtime.kinds import registry
from agentrun.runtime.luck import luck
from agentrun.runtime.operators import Operators
from agentrun.runtime.pager import page
from agentrun.runtime.purging import retain
from agentrun.runtime.redispatch import Redispatch
from agentrun.runtime.settling import facts_of, named_writes, woken_parents
from agentrun.settings import Settings
from agentrun.store import sweeping, transitions
from agentrun.store.connect import broke, type_of_row
from agentrun.store.database import Database
from agentrun.store.needs import NEEDS
from agentrun.store.offers import OFFERED_COUNT, OFFERED_DUE, OFFERED_DUE_AND_KNOWN, OFFERED_QUEUES
from agentrun.store.orphans import OPEN_CHILDREN
from agentrun.store.roster import FORGET_GONE
from agentrun.store.sql import Statement
from agentrun.store.waits import DUE, LOST_CHILDREN

log = logging.getLogger("agentrun.upkeep")

GRACE_SECONDS = 1.0
"""A run that became due just now has its wake on the way: it is counted, but not woken again yet."""

LONGEST_COUNTED = 10_000
"""A queue with more messages is not compared with what is due: counting would cost more with every run of a backlog,
and a message that was lost is sent when the queue is shorter, where it waits for no longer."""

STEPS_TO_A_RUN = 10
"""How many messages for steps one sweep sends for each that it may send for a run: fans are lost as a whole."""


@dataclass(slots=True)
class Found:
    """What one sweep did."""

    requeued: int = 0
    dead_lettered: int = 0
    cancelled: int = 0
    expired: int = 0
    answered: int = 0
    woken: int = 0
    paged: int = 0
    told: int = 0
    forgotten: int = 0
    redispatched: int = 0
    steps_retried: int = 0
    steps_given_up: int = 0
    purged: int = 0


class Sweep:
    """One pass over one namespace."""

    def __init__(
        self, settings: Settings, database: Database, publisher: Publisher, *, by: str, draining: bool = False
    ) -> None:
        commands = Commands(settings, database, publisher, registry)
        self._answers, self._operators = Answers(commands), Operators(commands)
        self._settings, self._database, self._publisher, self._by = settings, database, publisher, by
        self._draining = draining
        self._scope = {"namespace": settings.namespace, "limit": settings.sweep_batch}
        self._needs: type_of_row = {}
        self.found = Found()
        self._errors: list[Exception] = []

    def run(self) -> Found:
        """Reap expired leases, end what is past its deadline, wake what is due and has no message.

        What goes wrong with one row is no other's affair: it is raised when all the rest is done. Where the database is
        away, at once.
        """
        self._needs = self._database.rows(NEEDS, self._scope)[0]
        for part in (
            self._reap, self._expire, self._end_waits, self._cancel_orphans, self._heal_steps, self._wake_due,
            self._tell, self._retain,
        ):  # fmt: skip
            with self._apart():
                part()
        params = self._scope | {"name": "sweep", "by": self._by, "found": json.dumps(asdict(self.found))}
        self._database.rows(sweeping.SWEPT, params)
        if any(asdict(self.found).values()):
            log.info("sweep of %s: %s", self._settings.namespace, asdict(self.found))
        for error in self._errors:
            raise error
        return self.found

    @contextmanager
    def _apart(self) -> Generator[None]:
        """What fails in it ends nothing else."""
        try:
            yield
        except Exception as error:
            if broke(error) or isinstance(error, ConfigurationError):
                raise
            log.warning("a sweep passes over what raised %s", type(error).__name__)
            self._errors.append(error)

    def _each(self, statement: Statement, params: Mapping[str, Any], act: Callable[[type_of_row], object]) -> None:
        """Do it with each row that the statement finds."""
        for row in self._database.rows(statement, params):
            with self._apart():
                act(row)

    def _retain(self) -> None:
        self.found.purged = retain(self._database, self._settings, by=self._by)

    def _tell(self) -> None:
        """Page for what stands still, and tell the hooks of this process; forget processes that are long gone."""
        self.found.paged = page(self._database, self._settings, by=self._by, draining=self._draining)
        self.found.told = notify(self._database, self._settings.namespace, limit=self._settings.sweep_batch)
        self._database.rows(FORGET_GONE, self._scope)

    def _may_find(self, *needs: str) -> bool:
        """Whether there is something to find: there was when the sweep began, or what it did may have led to it."""
        return any(self._needs[need] for need in needs) or any(asdict(self.found).values())

    def _reap(self) -> None:
        if not self._may_find("expired"):
            return
        self._each(sweeping.EXPIRED, self._scope, self._reap_one)

    def _reap_one(self, row: type_of_row) -> None:
        backoff = Backoff(self._settings.backoff_base_seconds, self._settings.backoff_max_seconds)
        decision = decide(facts_of(row, self._settings.max_requeues), Crash(), backoff, luck=luck())
        match decision:
            case RetryIn():
                self._requeue(row)
            case GiveUp():
                self._dead_letter(row, decision)
            case _:
                assert_never(decision)

    def _requeue(self, row: type_of_row) -> None:
        for moved in self._move(transitions.REAP_REQUEUE, row, {"lost": row["claimed_by"], "to": "queued"}):
            self.found.requeued += 1
            self._publisher.wake(Wake.of(moved, cause="reap"))

    def _dead_letter(self, row: type_of_row, decision: GiveUp) -> None:
        writes = self._database.rows(sweeping.IN_FLIGHT, {"run_id": row["id"]})
        error = {
            "class": "unknown",
            "type": "WorkerLost",
            "message": _why(row, writes),
            "step": writes[0]["key"] if writes else None,
            "in_flight": named_writes(writes),
        }
        said = {"lost": row["claimed_by"], "to": str(decision.status), "reason": str(decision.reason)}
        params = {"reason": str(decision.reason), "error": json.dumps(error)}
        for moved in self._move(transitions.REAP_SETTLE[decision.status], row, said, params):
            self.found.dead_lettered += decision.status == "failed"
            self.found.cancelled += decision.status == "cancelled"
            self._publisher.settled(moved["id"])
            self._publisher.wake(*woken_parents([moved]))

    def _move(
        self, statement: Statement, row: type_of_row, said: Mapping[str, Any], params: Mapping[str, Any] | None = None
    ) -> list[type_of_row]:
        guard = {"run_id": row["id"], "epoch": row["epoch"], "by": self._by, "data": json.dumps(said), "redo": None}
        return self._database.rows(statement, {**(params or {}), **guard})

    def _expire(self) -> None:
        if not self._may_find("deadlines"):
            return
        self._each(sweeping.DEADLINES, self._scope, self._expire_one)

    def _expire_one(self, row: type_of_row) -> None:
        params = {"run_id": row["id"], "by": self._by, "data": json.dumps({"reason": "deadline_exceeded"})}
        for moved in self._database.rows(transitions.EXPIRE, self._scope | params):
            self.found.expired += 1
            self._publisher.settled(moved["id"])
            self._publisher.wake(*woken_parents([moved]))

    def _end_waits(self) -> None:
        """Timers that are due, answers that nobody gave in time, children whose end their parent missed or that nobody
        starts, and signals that have expired."""
        if self._may_find("waits"):
            self._each(DUE, self._scope, lambda row: self._answered(self._answers.due(row, self._by)))
        if self._may_find("lost_children"):
            self._each(LOST_CHILDREN, self._scope, lambda row: self._answered(self._answers.lost_child(row, self._by)))
        if self._may_find("waits"):
            self.found.dead_lettered += self._answers.end_unstarted(self._by, limit=self._settings.sweep_batch)
        if self._may_find("signals"):
            self.found.forgotten += self._answers.forget_signals(limit=self._settings.sweep_batch)

    def _answered(self, done: bool) -> None:
        self.found.answered += done

    def _cancel_orphans(self) -> None:
        """A cancel goes down the tree, and so does a parent's failure: nobody will read what its children find."""
        if not self._may_find("orphans"):
            return
        self._each(OPEN_CHILDREN, self._scope | {"parent_id": None}, self._end_orphan)

    def _end_orphan(self, row: type_of_row) -> None:
        self.found.cancelled += self._operators.end_orphan(row["id"], by=self._by)

    def _heal_steps(self) -> None:
        """Remote steps that nobody took, whose taker died, or that are silent."""
        if not self._may_find("offered", "started"):
            return
        healed = Redispatch(self._settings, self._database, self._publisher, by=self._by).run()
        self.found.redispatched += healed.redispatched
        self.found.steps_retried += healed.retried
        self.found.steps_given_up += healed.given_up + healed.interrupted

    def _wake_due(self) -> None:
        """Send at most as many messages as there are due runs and steps without one, oldest first.

        A backlog is no fault, and costs no more the longer it is.
        """
        queues = set[str]()
        if self._may_find("queued"):
            queues |= {row["queue"] for row in self._database.rows(sweeping.QUEUES, self._scope)}
        if self._may_find("offered"):
            queues |= {row["queue"] for row in self._database.rows(OFFERED_QUEUES, {})}
        for queue in sorted(queues):
            depth = self._publisher.depth(queue)
            if depth is None or depth > LONGEST_COUNTED:
                continue
            batch = self._settings.sweep_batch
            due = self._count(sweeping.DUE_COUNT, queue, depth + batch)
            due += self._count(OFFERED_COUNT, queue, depth + STEPS_TO_A_RUN * batch)
            if due <= depth:
                continue
            params = self._scope | {"queue": queue, "grace": GRACE_SECONDS, "limit": min(due - depth, batch)}
            oldest = self._database.rows(sweeping.DUE, params)
            lost = self._with_known(oldest, sweeping.DUE_AND_KNOWN, params)
            wakes = [Wake.of(run, cause="sweep") for run in lost]
            left = min(due - depth - len(oldest), STEPS_TO_A_RUN * batch)
            if left > 0:
                params |= {"limit": left}
                lost = self._with_known(self._database.rows(OFFERED_DUE, params), OFFERED_DUE_AND_KNOWN, params)
                wakes += [Wake.of_step(step, cause="redispatch") for step in lost]
            self.found.woken += self._publisher.wake(*wakes)

    def _with_known(self, oldest: list[type_of_row], known: Statement, params: Mapping[str, Any]) -> list[type_of_row]:
        """And, where there are more than those, the oldest that somebody takes: what nobody knows, a run by its kind or
        a step by its name, stays due, and would hold up what came after it for as long as that is so."""
        if len(oldest) < params["limit"]:
            return oldest
        there = {tuple(row.values()) for row in oldest}
        return oldest + [row for row in self._database.rows(known, params) if tuple(row.values()) not in there]

    def _count(self, statement: Statement, queue: str, most: int) -> int:
        row = self._database.row(statement, self._scope | {"queue": queue, "limit": most})
        return row["due"] if row is not None else 0


def _why(row: type_of_row, writes: list[type_of_row]) -> str:
    lost = f"`{row['claimed_by']}` stopped renewing its lease"
    if row["write_in_flight"] and writes:
        return f"{lost} while the write `{writes[0]['name']}` was in flight; find out whether it happened, then resolve"
    if not row["has_request"]:
        return f"{lost}, and the run keeps no request to start again from"
    return lost
