"""What becomes of remote steps that nobody took, whose taker died, or that are silent: offered again, or given up.

A re-dispatch repeats nothing that its effect forbids and costs no try; a retry is a new try after a failure.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any
from uuid import UUID

from agentrun.core.codec import decode
from agentrun.core.failures import Failure
from agentrun.core.wake import Publisher, Wake
from agentrun.core.words import Effect, FailureClass, StepKind, StepStatus
from agentrun.runtime.luck import luck
from agentrun.runtime.taking import backoff_of, redispatch_max
from agentrun.settings import Settings
from agentrun.store import ending, offering, offers
from agentrun.store.connect import type_of_row
from agentrun.store.database import Database
from agentrun.store.sql import Statement

Row = Mapping[str, Any]

MOST_SHELVED = 1_000
MOST_IN_A_PASS = 20_000
"""Steps of one trouble that one pass settles; the next pass has the rest."""


@dataclass(slots=True)
class Healed:
    """What one pass did."""

    redispatched: int = 0
    retried: int = 0
    given_up: int = 0
    interrupted: int = 0


class Redispatch:
    """One pass over one namespace's remote and external steps. Any number may run at once."""

    def __init__(self, settings: Settings, database: Database, publisher: Publisher, *, by: str) -> None:
        self._settings, self._database, self._publisher, self._by = settings, database, publisher, by
        self._scope = {"namespace": settings.namespace, "limit": settings.sweep_batch}
        self.healed = Healed()

    def run(self) -> Healed:
        """Settle every step in trouble: a fan that was lost as a whole is offered again as a whole."""
        for statement in offers.TROUBLED:
            seen: set[tuple[Any, str]] = set()
            while len(seen) < MOST_IN_A_PASS:
                rows = self._database.rows(statement, self._scope)
                fresh = [row for row in rows if (row["run_id"], row["key"]) not in seen]
                seen.update((row["run_id"], row["key"]) for row in fresh)
                self._publisher.wake(*(wake for row in fresh for wake in self._settled(row)))
                if not fresh or len(rows) < self._settings.sweep_batch:
                    break
        self._shelve()
        return self.healed

    def _shelve(self) -> None:
        """What the ends of runs left behind is put aside, at most so many of each in a pass."""
        scope = self._scope | {"limit": MOST_SHELVED}
        for row in self._database.rows(offers.OFFERED_QUEUES, {}):
            self._database.rows(offering.SHELVE_OFFERED, scope | {"queue": row["queue"]})
        self._database.rows(offering.SHELVE_EXTERNAL, scope)
        self._database.rows(offering.SHELVE_LOST, scope)

    def _settled(self, row: Row) -> list[Wake]:
        policy: dict[str, Any] = decode(row["policy"]) or {}
        if not row["may_repeat"] and row["status"] == StepStatus.STARTED:
            return self._given_up(row)
        if row["trouble"] == "lost":
            return self._offered_again(row, policy)
        if row["attempt"] < policy.get("attempts", 1):
            delay = backoff_of(policy).delay(row["attempt"] - 1, luck())
            moved = self._do(offering.RETRY_TROUBLED, row, _failure(row), delay=delay)
            self.healed.retried += len(moved)
            return [Wake.of_step(step, delay=delay, cause="retry") for step in moved if step["queue"]]
        return self._given_up(row)

    def _offered_again(self, row: Row, policy: Mapping[str, Any]) -> list[Wake]:
        if row["redispatch_count"] >= redispatch_max(policy, self._settings):
            return self._given_up(row)
        moved = self._do(offering.REDISPATCH, row, None)
        self.healed.redispatched += len(moved)
        return [Wake.of_step(step, cause="redispatch") for step in moved if step["queue"]]

    def _given_up(self, row: Row) -> list[Wake]:
        """What may have happened once is told as interrupted, not as failed: a body must not do it by another name."""
        if row["effect"] == Effect.NON_IDEMPOTENT_WRITE and row["status"] == StepStatus.STARTED:
            moved = self._do(ending.INTERRUPT, row, _failure(row))
            self.healed.interrupted += len(moved)
        else:
            moved = self._do(ending.FAIL_TROUBLED, row, _failure(row))
            self.healed.given_up += len(moved)
        return self._woken(moved)

    def _woken(self, rows: list[type_of_row]) -> list[Wake]:
        return [Wake.of(row, cause="step") for row in rows if row["status"] == "waiting"]

    def _do(
        self, statement: Statement, row: Row, failure: Failure | None, *, delay: float | None = None
    ) -> list[type_of_row]:
        said: dict[str, Any] = {"key": row["key"], "name": row["name"], "attempt": row["attempt"]}
        said |= {"trouble": row["trouble"], "lost": row["by"], "redispatch_count": row["redispatch_count"]}
        params = {
            "run_id": row["run_id"],
            "key": row["key"],
            "step_epoch": row["step_epoch"],
            "token_digest": None,
            "namespace": self._settings.namespace,
            "by": self._by,
            "result": None,
            "error": json.dumps(failure.as_json()) if failure is not None else None,
            "delay": delay,
            "data": json.dumps(said),
            "mine": None,
        }
        return self._database.rows(statement, params)


def redispatch_run(
    settings: Settings, database: Database, publisher: Publisher, run_id: UUID, *, by: str
) -> tuple[int, dict[str, str]]:
    """Send every pending remote step of a run again, now; returns how many, and by key why others were left.

    Safe on a healthy run: a step whose worker lives is left to it, a step on offer only gets another message, a
    result that lands meanwhile stands, and a non-idempotent write that somebody took is never repeated.
    """
    wakes: list[Wake] = []
    left: dict[str, str] = {}
    elsewhere = 0
    for row in database.rows(offers.PENDING, {"run_id": run_id}):
        if row["status"] == StepStatus.OFFERED:
            if row["queue"] is None:
                left[row["key"]] = "it is on offer already, for a program elsewhere to take"
            elif not row["due"]:
                left[row["key"]] = "its next try is not due yet"
            else:
                wakes.append(Wake.of_step(row, cause="redispatch"))
            continue
        said = {"key": row["key"], "name": row["name"], "trouble": "by hand", "lost": row["by"]}
        params = {"run_id": run_id, "key": row["key"], "step_epoch": row["step_epoch"], "by": by, "delay": None}
        params |= {"namespace": settings.namespace, "data": json.dumps(said)}
        moved = database.rows(offering.REDISPATCH_BY_HAND, params)
        wakes += [Wake.of_step(step, cause="redispatch") for step in moved if step["queue"]]
        elsewhere += sum(1 for step in moved if not step["queue"])
        if not moved:
            left[row["key"]] = _why_left(row)
    sent = publisher.wake(*wakes) if wakes else 0
    left |= {wake.step_key or "": "the broker is away; the sweep sends its message" for wake in wakes[sent:]}
    return sent + elsewhere, left


def _why_left(row: Row) -> str:
    if not row["may_repeat"]:
        heals = "" if row["kind"] == StepKind.REMOTE else f"; `agentrun resolve {row['run_id']}` says how it ended"
        return f"`{row['by']}` took it, and a non-idempotent write is never repeated{heals}"
    if row["kind"] == StepKind.REMOTE and not row["lapsed"]:
        return f"`{row['by']}` has it until its lease is over; if that worker is dead, the step is offered again then"
    return "it ended meanwhile"


def _failure(row: Row) -> Failure:
    tries = row["attempt"]
    match row["trouble"]:
        case "lost":
            said = f"`{row['by']}` stopped renewing the lease of step `{row['name']}`"
            if row["may_repeat"]:
                said += f", after {row['redispatch_count']} re-dispatches (AGENTRUN_REDISPATCH_MAX)"
            return Failure(FailureClass.UNKNOWN, "remote_step_lost", said, row["key"])
        case "silent":
            said = f"`{row['by']}` was silent for longer than the timeout of step `{row['name']}`, at try {tries}"
            return Failure(FailureClass.CONNECTION, "remote_step_timeout", said, row["key"])
        case _:
            said = f"nobody took step `{row['name']}` from queue `{row['queue']}` in its pickup_timeout, at try {tries}"
            return Failure(FailureClass.CONNECTION, "remote_step_timeout", said, row["key"])
