"""Takes each condition out and sees which case notices."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

import psycopg

from agentrun.core.errors import AgentrunError
from agentrun.store.database import Database
from tests.guards import cases_moves, cases_people, cases_reads, cases_steps, cases_waits
from tests.guards.conditions import Condition, conditions, statements, without
from tests.guards.scene import CASES, Case, Scene

__all__ = ["CASES", "cases_moves", "cases_people", "cases_reads", "cases_steps", "cases_waits"]

RESTATES_A_CONSTRAINT = "only a running row has a lease: the table's own CHECK says so"
NO_GUARD = {
    "reap_requeue: runs.status IN ('running')": RESTATES_A_CONSTRAINT,
    "reap_settle_failed: runs.status IN ('running')": RESTATES_A_CONSTRAINT,
    "reap_settle_cancelled: runs.status IN ('running')": RESTATES_A_CONSTRAINT,
    "expired: runs.status = 'running'": RESTATES_A_CONSTRAINT,
    "dispatch_failed: runs.status IN ('queued', 'waiting')": "the next condition is narrower",
    "child_not_started: runs.status IN ('queued', 'waiting')": "the next condition is narrower",
    "child_not_started: waits.status = 'open' (3)": "it settles only what an open wait is for",
    "take_signal: runs.id = :run_id": "the signal is of this run and of the run that is held",
    "take_signal: signals.run_id = held.id": "the signal is of this run and of the run that is held",
    "take_signal: signals.taken_by_step IS NULL (2)": "who holds the run is alone in taking its signals",
    "take_signal: waits.status = 'open'": "a step that has its answer has taken no signal in the first place",
}
"""Conditions without which nothing changes, and why they stand there nevertheless."""


@dataclass(frozen=True, slots=True)
class Verdict:
    """What became of a mutant: the case that noticed, or none."""

    condition: Condition
    killed_by: Case | None
    excused: str | None = None


def play(case: Case, database: Database) -> None:
    """Raises where the case does not hold."""
    case.play(Scene(database, statements()[case.statement]))


def guards(names: Iterable[str] | None = None) -> Iterator[Condition]:
    """The conditions of these statements, or of all."""
    for name, statement in statements().items():
        if names is None or name in set(names):
            yield from (each for each in conditions(statement) if each.text != "true")


def judge(condition: Condition, database: Database) -> Verdict:
    """Play the statement's cases without the condition until one fails."""
    excused = NO_GUARD.get(str(condition))
    with without(condition):
        for case in CASES:
            if case.statement != condition.statement:
                continue
            try:
                play(case, database)
            except (AssertionError, psycopg.Error, AgentrunError, KeyError, ValueError):
                return Verdict(condition, case, excused)
    return Verdict(condition, None, excused)
