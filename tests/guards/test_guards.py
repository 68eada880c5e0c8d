"""Every guard in the SQL holds, and is needed: without it one of these cases fails.

The whole of it, with the table of guard and case: `python -m tests.guards`.
"""

from __future__ import annotations

import pytest

from agentrun.store.database import Database
from tests.guards.conditions import Condition, statements
from tests.guards.mutants import CASES, NO_GUARD, guards, judge, play
from tests.guards.scene import Case

QUICK = ("fence", "finish", "record", "claim", "settle_completed", "requeue", "reap_requeue", "redrive")
"""Where a missing guard would cost an effect. All the others: `python -m tests.guards`."""


@pytest.mark.parametrize("case", CASES, ids=str)
def test_it_holds(case: Case, stage: Database) -> None:
    play(case, stage)


def test_every_statement_has_a_case() -> None:
    """A new one needs cases beside its guards; see tests/guards/cases_*.py."""
    assert set(statements()) - {case.statement for case in CASES} == set()


def test_without_its_guards_a_statement_is_caught(stage: Database) -> None:
    survivors = [str(v.condition) for v in (judge(each, stage) for each in guards(QUICK)) if not _as_expected(v)]
    assert survivors == [], "no case of tests/guards notices when these conditions are gone"


def _as_expected(verdict: object) -> bool:
    return (verdict.killed_by is None) == (verdict.excused is not None)  # type: ignore[attr-defined]


def test_no_excuse_is_for_a_condition_that_is_gone() -> None:
    assert set(NO_GUARD) - {str(each) for each in guards()} == set()


@pytest.mark.parametrize("condition", list(guards(["fence"])), ids=str)
def test_a_condition_is_found_where_it_stands(condition: Condition) -> None:
    """The control of the mutation itself: what is replaced is what is named."""
    sql = statements()[condition.statement].sql[condition.start : condition.end]
    assert sql.strip() == sql
    assert sql.count("(") == sql.count(")")
