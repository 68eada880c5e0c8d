"""Takes each condition out and sees which case notices."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace

import psycopg

from agentrun.core.errors import AgentrunError
from agentrun.store.database import Database
from tests.guards import (
    cases_heirs,
    cases_many,
    cases_moves,
    cases_notices,
    cases_people,
    cases_purge,
    cases_reads,
    cases_remote,
    cases_steps,
    cases_trouble,
    cases_waits,
)
from tests.guards.conditions import Condition, conditions, statements, without
from tests.guards.scene import CASES, Case, Scene

__all__ = [
    "CASES",
    "cases_heirs",
    "cases_many",
    "cases_moves",
    "cases_notices",
    "cases_people",
    "cases_purge",
    "cases_reads",
    "cases_remote",
    "cases_steps",
    "cases_trouble",
    "cases_waits",
]

ALONE = {each.many.name: each for each in statements().values() if each.many is not None}
"""Of each statement for many rows, the one for one."""

CASES.extend(
    replace(each, statement=many) for many, one in ALONE.items() for each in list(CASES)
    if each.statement == one.name and not each.alone
)  # fmt: skip

RESTATES_A_CONSTRAINT = "only a running row has a lease: the table's own CHECK says so"
OF_STEPS_ELSEWHERE = "no other step has an epoch, a lease, a time or a token of its own"
OF_ONE_RUN = "both are of the one run that is held"
ONLY_LOCKED = "it moves what it has locked in that very status, and nobody else moves that"
ONLY_STARTED = "a later condition asks for a started step in any case"
SUBJECTS_DIFFER = "the subjects of two occasions never look alike"
SPARES_LOCKS = "it spares the locks of runs of which nothing is put aside"
ALL_IN_QUESTION = "a step that was not looked at would be put aside with good reason as well"
LONG_AGO = "now() - CAST(:older_than AS DOUBLE PRECISION) * CAST('1 second' AS INTERVAL)"
BORN_BEFORE = "what has ended by then was born by then; it bounds what is looked at"
OF_ITS_NAMESPACE = "children are of their parent's namespace; its index begins with it"
ASKED_TWICE = "it is asked when steps are looked for, and again of what is put aside"
LOCKS_THE_PARENT = "it names whose row is locked before its wait: see tests/races/test_families.py"
AS_CANCEL = "the end of a final move: it is `cancel`'s, and judged there"
MOVED_BY_THE_SAME = "it is asked again of the run as it is moved"
ONE_CHANGE = "of two changes of a row in one statement PostgreSQL makes one, and does not promise which"
BOUNDS_WHAT_IS_READ = "the next condition is narrower; this one finds the few in an index"
NO_GUARD = {
    **{
        str(each): BOUNDS_WHAT_IS_READ
        for name in ("announce_waiting", "announce_dead")
        for each in conditions(statements()[name])
        if "> (SELECT min(" in each.text
    },
    "reap_requeue: runs.status IN ('running')": RESTATES_A_CONSTRAINT,
    "reap_settle_failed: runs.status IN ('running')": RESTATES_A_CONSTRAINT,
    "reap_settle_cancelled: runs.status IN ('running')": RESTATES_A_CONSTRAINT,
    "expired: runs.status = 'running'": RESTATES_A_CONSTRAINT,
    "inherit_runs: runs.status = 'running'": RESTATES_A_CONSTRAINT,
    "dispatch_failed: runs.status IN ('queued', 'waiting')": "the next condition is narrower",
    "child_not_started: runs.status IN ('queued', 'waiting')": "the next condition is narrower",
    "child_not_started: waits.status = 'open' (3)": "it settles only what an open wait is for",
    "claim_many: runs.status IN ('queued')": ONLY_LOCKED,
    "settle_completed_many: runs.status IN ('running')": ONLY_LOCKED,
    **{
        str(each): LOCKS_THE_PARENT
        for name in statements()
        for each in conditions(statements()[name])
        if each.text == "runs.id = waits.run_id" and "heard AS" in statements()[name].sql
    },
    **{
        str(each).replace("cancel:", "cancel_orphan:", 1): AS_CANCEL
        for each in conditions(statements()["cancel"])
        if each.text.startswith("waits.") or each.text in ("runs.id = answered.run_id", "runs.finished_at IS NULL")
    },
    **{
        f"{name}: {condition}": MOVED_BY_THE_SAME
        for name in cases_people.ORPHANS
        for condition in (
            "runs.status IN ('queued', 'running', 'waiting')",
            "runs.cancel_requested_at IS NULL",
            "runs.namespace = :namespace",
        )
    },
    **{f"{name}: runs.namespace = :namespace (2)": "of the same run" for name in cases_people.ORPHANS},
    **{f"{name}: runs.parent_id IS NOT NULL": "it is joined by that" for name in cases_people.ORPHANS},
    "ask_cancel_orphan: runs.cancel_requested_at IS NULL (2)": "of the same run",
    "fail_troubled_step: runs.finished_at IS NULL (2)": "only a run that has not ended is held",
    "interrupt_step: runs.finished_at IS NULL (2)": "only a run that has not ended is held",
    "resolve_external: runs.finished_at IS NULL (2)": "only a run that has not ended is held",
    "resolve_external: done.run_id = held.id": OF_ONE_RUN,
    "offer_step: offered.run_id = held.id": OF_ONE_RUN,
    "announce_waiting: told.occasion = 'waiting'": SUBJECTS_DIFFER,
    "announce_stalled: told.occasion = 'stalled'": SUBJECTS_DIFFER,
    "announce_dead: told.occasion = 'dead'": SUBJECTS_DIFFER,
    "remind_waiting: told.occasion = 'waiting'": SUBJECTS_DIFFER,
    "send_signal: NOT (EXISTS (SELECT moved.id FROM moved))": ONE_CHANGE,
    "take_signal: runs.id = :run_id": "the signal is of this run and of the run that is held",
    "take_signal: signals.run_id = held.id": "the signal is of this run and of the run that is held",
    "take_signal: signals.taken_by_step IS NULL (2)": "who holds the run is alone in taking its signals",
    "take_signal: waits.status = 'open'": "a step that has its answer has taken no signal in the first place",
    f"purge: runs.created_at < {LONG_AGO}": BORN_BEFORE,
    "purge: child.namespace = :namespace": OF_ITS_NAMESPACE,
    **{f"{name}: runs.id IN (SELECT those.run_id FROM those)": SPARES_LOCKS for name in cases_remote.SHELVES},
    **{f"{name}: steps.run_id = those.run_id": ALL_IN_QUESTION for name in cases_remote.SHELVES},
    **{
        f"{name}: {condition}{number}": ASKED_TWICE
        for name, conditions_of in {
            "shelve_offered": ("steps.status = 'offered'", "steps.queue = :queue"),
            "shelve_external": ("steps.status = 'offered'", "steps.queue IS NULL"),
            "shelve_lost": (
                "steps.status = 'started'",
                "steps.lease_expires_at < now()",
                "steps.effect != 'non_idempotent_write'",
            ),
        }.items()
        for condition in conditions_of
        for number in ("", " (2)")
    },
    **{f"{name}: held.id = done.run_id": OF_ONE_RUN for name in cases_remote.RESOLVING},
    **{
        f"{name}: steps.kind IN ('remote', 'external')": OF_STEPS_ELSEWHERE
        for name in (*cases_remote.FOUND, "complete_steps")
    },
    **{
        f"{name}: {condition}": ONLY_STARTED
        for name in ("redispatch_step", "interrupt_step")
        for condition in (
            "steps.status = 'started'",
            "steps.status = 'started' (2)",
            "steps.status = 'offered'",
            "steps.lease_expires_at < now() (2)",
        )
    },
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
    statement = statements()[case.statement]
    one = ALONE.get(statement.name)
    case.play(Scene(database, statement) if one is None else Scene(database, one, statement))


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
