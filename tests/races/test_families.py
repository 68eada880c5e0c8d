"""A parent and its child move at once: both lock runs before waits, so neither waits for the other in a circle."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any
from uuid import UUID

import pytest

from agentrun.core.words import Status
from agentrun.store import steering, transitions, waits
from agentrun.store.sql import Statement
from agentrun.testing.rows import Rows
from tests.races.conftest import Session

SETTLE = transitions.SETTLE[Status.COMPLETED]


@pytest.fixture
def third(rows: Rows) -> Iterator[Session]:
    with contextlib.closing(Session(rows, "third")) as session:
        yield session


def family(rows: Rows) -> tuple[UUID, UUID]:
    """A parked parent, and the child that it waits for, executing."""
    parent = rows.waiting()
    child = rows.running(parent_id=parent)
    rows.wait(parent, kind="child", child_id=child)
    return parent, child


@pytest.mark.parametrize("ends", [steering.CANCEL, transitions.EXPIRE], ids=lambda statement: statement.name)
def test_a_parent_that_is_ended_and_a_child_that_ends_do_not_deadlock(
    rows: Rows, first: Any, second: Any, third: Any, ends: Statement
) -> None:
    parent, child = family(rows)
    rows.pass_deadline(parent)
    with first.holding(waits.LOCK, parent, run_ids=[parent]):
        ended = second.tries(ends, parent)
        settled = third.tries(SETTLE, child, reason="completed", result="1")
    assert [len(ended.result()), len(settled.result())] == [1, 1]
    assert (rows.row(parent)["status"], rows.row(child)["status"]) != ("waiting", "running")
