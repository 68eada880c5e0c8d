"""The event stream: ordered within a run, complete however it is paged, and told in commit order."""

from __future__ import annotations

import asyncio
import itertools
from typing import Any
from uuid import UUID

from agentrun.core.words import Status, StepStatus
from agentrun.store import claims, journal, reads, steering, transitions
from agentrun.store.batches import Write
from agentrun.store.reads import EVENTS, as_event
from agentrun.store.writer import Writer
from agentrun.testing.rows import Rows


def events(rows: Rows, run_id: UUID, after: int = -1, limit: int = 1000) -> list[Any]:
    params = {"run_id": run_id, "after": after, "limit": limit}
    return [as_event(row) for row in rows.database.rows(EVENTS, params)]


def told(rows: Rows, run_id: UUID) -> list[str]:
    return [str(event.type) for event in events(rows, run_id)]


def life(rows: Rows) -> UUID:
    """Two segments: a step, a write that fails and ends the first one, and the write again."""
    run_id = rows.running()
    rows.do(journal.RECORD, run_id, **rows.step("look"))
    rows.fence(run_id, "pay")
    error = '{"type": "NotApplied", "message": "no"}'
    rows.do(journal.FINISH, run_id, **rows.step("pay", status="failed", result=None, error=error))
    rows.do(transitions.REQUEUE, run_id, redo=["pay"], error=error)
    rows.do(claims.CLAIM_RUN, run_id)
    write = rows.step("pay", effect="non_idempotent_write", attempt=2) | {"epoch": 2}
    rows.do(journal.FENCE, run_id, **write)
    rows.do(journal.FINISH, run_id, **write)
    rows.do(transitions.SETTLE[Status.COMPLETED], run_id, epoch=2, reason="completed", result="1")
    return run_id


def test_a_run_tells_its_story_in_order(rows: Rows) -> None:
    assert told(rows, life(rows)) == [
        "enqueued", "claimed", "step_completed", "requeued", "claimed", "step_started", "step_completed", "settled",
    ]  # fmt: skip


def test_numbers_grow_and_start_at_the_enqueueing(rows: Rows) -> None:
    story = events(rows, life(rows))
    assert story[0].seq == 0
    assert all(one.seq < other.seq for one, other in itertools.pairwise(story))
    assert [event.epoch for event in story] == [0, 1, 1, 1, 2, 2, 2, 2]
    assert all(one.at <= other.at for one, other in itertools.pairwise(story))


def test_pages_of_any_size_make_the_whole(rows: Rows) -> None:
    run_id = life(rows)
    whole = events(rows, run_id)
    for size in (1, 2, 3, 100):
        pages: list[Any] = []
        while page := events(rows, run_id, after=pages[-1].seq if pages else -1, limit=size):
            assert len(page) <= size
            pages.extend(page)
        assert pages == whole


def test_events_say_what_people_need_and_nothing_of_the_payload(rows: Rows) -> None:
    run_id = rows.running()
    rows.do(journal.RECORD, run_id, **rows.step("look", result='"secret"'))
    event = events(rows, run_id)[-1]
    assert event.data == {
        "by": "worker:test:1", "key": "look", "kind": "step", "name": "look", "effect": "read_only", "attempt": 1,
        "result_bytes": 8,
    }  # fmt: skip
    assert "secret" not in str(events(rows, run_id))


def test_a_resolution_is_told_with_the_step_that_it_ends(rows: Rows) -> None:
    run_id = rows.fenced("pay")
    rows.do(transitions.SETTLE[Status.FAILED], run_id)
    rows.do(steering.RESOLVE[StepStatus.COMPLETED], run_id, key="pay", result="1")
    assert sorted(told(rows, run_id)[-2:]) == ["resolved", "step_completed"]


async def test_whoever_pages_along_misses_nothing_that_is_told_meanwhile(rows: Rows) -> None:
    """A number is drawn under the row's lock: what becomes visible later has a higher one."""
    run_id = rows.running()
    writers = [Writer(rows.database.url) for _ in range(3)]
    seen: list[Any] = []
    done = asyncio.Event()

    def look() -> None:
        seen.extend(events(rows, run_id, after=seen[-1].seq if seen else -1))

    async def follow() -> None:
        while not done.is_set():
            await asyncio.to_thread(look)
        look()

    async def write(writer: Writer, who: int) -> None:
        for number in range(60):
            params = rows.params(run_id) | rows.step(f"{who}.{number}")
            statement, landed = journal.RECORD, {"landed_status": "completed"}
            assert await writer.write(Write(statement, params, landed=journal.STEP_LANDED, landed_params=landed))

    follower = asyncio.create_task(follow())
    await asyncio.gather(*(write(writer, who) for who, writer in enumerate(writers)))
    done.set()
    await follower
    for writer in writers:
        await writer.close()
    assert len(seen) == 182
    assert seen == events(rows, run_id)


def test_the_journal_reads_in_the_order_of_the_story(rows: Rows) -> None:
    run_id = rows.running()
    for key in ("b", "a", "c"):
        rows.do(journal.RECORD, run_id, **rows.step(key))
    assert [row["key"] for row in rows.database.rows(reads.JOURNAL, {"run_id": run_id})] == ["b", "a", "c"]
