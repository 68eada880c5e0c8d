"""A parent and its child move at once: both lock runs before waits, so neither waits for the other in a circle."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any
from uuid import UUID

import pytest

from agentrun.core.words import Status
from agentrun.store import mover, steering, transitions, waits
from agentrun.store.batches import Write
from agentrun.store.connect import connect_async
from agentrun.store.sql import Statement
from agentrun.store.writer import Writer, _perhaps_again
from agentrun.testing import until
from agentrun.testing.rows import Rows
from tests.races.conftest import Session, somebody_is_blocked

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


ENDS_AN_ORPHAN = (steering.CANCEL_ORPHAN, steering.ASK_CANCEL_ORPHAN)


def broken_family(rows: Rows, ends: Statement) -> tuple[UUID, UUID]:
    """A parent that has failed, and its child, which lives on."""
    parent = rows.final(Status.FAILED)
    born = rows.queued if ends is steering.CANCEL_ORPHAN else rows.running
    child = born(parent_id=parent)
    rows.wait(parent, kind="child", child_id=child, status="closed", resolved_at="now")
    return parent, child


@pytest.mark.parametrize("ends", ENDS_AN_ORPHAN, ids=lambda statement: statement.name)
def test_a_child_whose_parent_is_just_redriven_is_not_ended_as_an_orphan(
    rows: Rows, first: Any, second: Any, ends: Statement
) -> None:
    parent, child = broken_family(rows, ends)
    before = rows.row(child)
    with first.holding(steering.REDRIVE, parent):
        ended = second.tries(ends, child)
    assert ended.result() == []
    assert rows.row(child) == before


def by_an_operator(rows: Rows, run_id: UUID) -> list[dict[str, Any]]:
    return rows.do(steering.REDRIVE, run_id)


def by_its_own_parents_segment(rows: Rows, run_id: UUID) -> list[dict[str, Any]]:
    async def written() -> list[dict[str, Any]]:
        writer = Writer(rows.database.url)
        try:
            return await writer.write(Write(steering.REDRIVE, rows.params(run_id)))
        finally:
            await writer.close()

    return asyncio.run(written())


def by_a_writer_that_lost_its_connection(rows: Rows, run_id: UUID) -> list[dict[str, Any]]:
    async def written() -> list[dict[str, Any]]:
        async with await connect_async(rows.database.url, name="third") as connection:
            return await _perhaps_again(connection, Write(steering.REDRIVE, rows.params(run_id)))

    return asyncio.run(written())


@pytest.mark.parametrize("redrives", [by_an_operator, by_its_own_parents_segment, by_a_writer_that_lost_its_connection])
@pytest.mark.parametrize("ends", ENDS_AN_ORPHAN, ids=lambda statement: statement.name)
def test_a_parent_that_is_redriven_while_its_child_is_ended_does_not_wait_for_that_child(
    rows: Rows, first: Any, ends: Statement, redrives: Callable[[Rows, UUID], list[dict[str, Any]]]
) -> None:
    parent, child = broken_family(rows, ends)
    with ThreadPoolExecutor(1) as thread, first.holding(ends, child):
        redriven = thread.submit(redrives, rows, parent)
        until(lambda: redriven.done() or somebody_is_blocked(rows), 10)
        assert not redriven.done()
    assert redriven.result()
    assert rows.do(waits.WAITING_FOR, parent, kind=None, name=None, key=None) == []


@pytest.mark.parametrize("ends", ENDS_AN_ORPHAN, ids=lambda statement: statement.name)
def test_a_child_that_ends_by_itself_and_is_ended_as_an_orphan_do_not_deadlock(
    rows: Rows, first: Any, second: Any, third: Any, ends: Statement
) -> None:
    parent, child = broken_family(rows, ends)
    child = rows.running(parent_id=parent)
    rows.wait(parent, "other", kind="child", child_id=child)
    with first.holding(mover.LOCK_RUN, parent):
        settled = second.tries(SETTLE, child, reason="completed", result="1")
        ended = third.tries(ends, child)
    assert (len(settled.result()), ended.result()) == (1, [])
