"""Group commit: every write lands exactly once, whatever happens to its neighbours, its connection or the server."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable
from typing import Any
from uuid import UUID

import psycopg
import pytest
from psycopg.rows import scalar_row

from agentrun.core.outcome import LeaseLost
from agentrun.core.words import Effect, EventType, Status
from agentrun.store import claims, journal, reads, transitions
from agentrun.store.batches import Write
from agentrun.store.writer import Writer
from agentrun.testing import until
from agentrun.testing.proxy import Proxy
from agentrun.testing.rows import Rows


def record(rows: Rows, run_id: UUID, key: str, **params: Any) -> Write:
    said = rows.params(run_id) | rows.step(key, **params)
    return Write(journal.RECORD, said, landed=journal.STEP_LANDED, landed_params={"landed_status": said["status"]})


def fence(rows: Rows, run_id: UUID, key: str) -> Write:
    said = rows.params(run_id) | rows.step(key, effect=str(Effect.NON_IDEMPOTENT_WRITE))
    return Write(journal.FENCE, said, landed=journal.STEP_LANDED, landed_params={"landed_status": "started"})


def requeue(rows: Rows, run_id: UUID) -> Write:
    landed = {"landed_type": str(EventType.REQUEUED)}
    return Write(transitions.REQUEUE, rows.params(run_id), landed=reads.MOVE_LANDED, landed_params=landed)


def completed(rows: Rows, run_id: UUID) -> Write:
    landed = {"landed_type": str(EventType.SETTLED)}
    params = rows.params(run_id, reason="completed", result="1")
    return Write(transitions.SETTLE[Status.COMPLETED], params, landed=reads.MOVE_LANDED, landed_params=landed)


async def eventually(predicate: Callable[[], object], timeout: float = 10) -> None:
    await asyncio.to_thread(until, predicate, timeout)


def keys(rows: Rows, run_id: UUID) -> list[str]:
    return [step["key"] for step in rows.stored(run_id)["steps"]]


async def test_many_writers_share_few_transactions(rows: Rows, writer: Writer) -> None:
    runs = [rows.running() for _ in range(100)]
    answers = await asyncio.gather(*(writer.write(record(rows, run_id, "s")) for run_id in runs))
    assert all(answers)
    assert writer.writes == 100
    assert writer.batches <= 3, "100 writes that wait at once are not written one by one"


async def test_a_lone_write_waits_for_nobody(rows: Rows, writer: Writer) -> None:
    assert await writer.write(record(rows, rows.running(), "s"))
    assert (writer.batches, writer.writes) == (1, 1)


async def test_one_loser_does_not_spoil_the_batch(rows: Rows, writer: Writer) -> None:
    runs = [rows.running() for _ in range(30)]
    stale = Write(journal.RECORD, rows.params(runs[7], epoch=0) | rows.step("stale"))
    answers = await asyncio.gather(
        *(writer.write(stale if run_id is runs[7] else record(rows, run_id, "s")) for run_id in runs)
    )
    assert [bool(answer) for answer in answers] == [run_id is not runs[7] for run_id in runs]
    assert keys(rows, runs[7]) == []
    assert all(keys(rows, run_id) == ["s"] for run_id in runs if run_id is not runs[7])
    assert writer.batches <= 2


@pytest.mark.parametrize(
    ("params", "error"),
    [
        ({"status": "nonsense"}, psycopg.errors.CheckViolation),
        ({"name": "\ud800"}, Exception),
        ({"name": "\0"}, Exception),
    ],
    ids=["refused by a constraint", "not to be encoded", "a NUL"],
)
async def test_an_error_of_one_write_fails_only_that_one(
    rows: Rows, writer: Writer, params: dict[str, Any], error: type[Exception]
) -> None:
    runs = [rows.running() for _ in range(10)]
    writes = [record(rows, run_id, "s", **(params if run_id is runs[4] else {})) for run_id in runs]
    outcome = await asyncio.wait_for(
        asyncio.gather(*(writer.write(write) for write in writes), return_exceptions=True), 10
    )
    assert isinstance(outcome.pop(4), error)
    assert all(answer and not isinstance(answer, BaseException) for answer in outcome)
    assert [len(keys(rows, run_id)) for run_id in runs] == [1, 1, 1, 1, 0, 1, 1, 1, 1, 1]
    assert await asyncio.wait_for(writer.write(record(rows, runs[4], "s")), 5), "the writer goes on"


async def test_what_is_more_than_an_index_takes_fails_only_that_one(rows: Rows, writer: Writer) -> None:
    """psycopg calls it operational, as a connection that is gone: the write would be tried for ever, and no other."""
    too_long = "".join(chr(0x4E00 + number * 7919 % 20_000) for number in range(3_000))
    writes = [record(rows, rows.running(), key) for key in (too_long, "s")]
    answers = asyncio.gather(*(writer.write(write) for write in writes), return_exceptions=True)
    refused, written = await asyncio.wait_for(answers, 10)
    assert isinstance(refused, psycopg.errors.ProgramLimitExceeded)
    assert written


@contextlib.contextmanager
def locked(rows: Rows, run_id: UUID) -> Any:
    with rows.database.transaction() as connection:
        connection.execute("SELECT 1 FROM agentrun.runs WHERE id = %s FOR UPDATE", [run_id])
        yield


def blocked_backend(rows: Rows) -> int | None:
    with psycopg.connect(rows.database.url, row_factory=scalar_row) as connection:
        return connection.execute(
            "SELECT pid FROM pg_stat_activity WHERE datname = current_database()"
            " AND application_name = 'writer of the test' AND wait_event_type = 'Lock'"
        ).fetchone()


async def test_a_connection_killed_in_the_middle_of_a_batch_doubles_nothing(rows: Rows, writer: Writer) -> None:
    """The batch is half executed, and blocked on the last run's row, when its backend is terminated."""
    runs = sorted(rows.running() for _ in range(12))
    writes = [
        *(record(rows, run_id, "s") for run_id in runs[:4]),
        *(fence(rows, run_id, "w") for run_id in runs[4:8]),
        *(requeue(rows, run_id) for run_id in runs[8:10]),
        *(completed(rows, run_id) for run_id in runs[10:]),
    ]
    with locked(rows, runs[-1]):
        waiting = [asyncio.create_task(writer.write(write)) for write in writes]
        await eventually(lambda: blocked_backend(rows))
        with rows.database.connection() as connection:
            connection.execute("SELECT pg_terminate_backend(%s)", [blocked_backend(rows)])
    answers = await asyncio.wait_for(asyncio.gather(*waiting), 10)
    assert all(answers)
    assert_exactly_once(rows, runs)


async def test_an_answer_that_was_lost_doubles_nothing(rows: Rows) -> None:
    """COMMIT happened, and the connection broke before anybody heard of it."""
    runs = sorted(rows.running() for _ in range(12))
    with Proxy(rows.database.url) as proxy:
        writer = Writer(proxy.url)
        await writer.write(Write(reads.HELD, rows.params(runs[0])))
        proxy.hold_answers()
        writes = [
            *(record(rows, run_id, "s") for run_id in runs[:4]),
            *(fence(rows, run_id, "w") for run_id in runs[4:8]),
            *(requeue(rows, run_id) for run_id in runs[8:10]),
            *(completed(rows, run_id) for run_id in runs[10:]),
        ]
        waiting = [asyncio.create_task(writer.write(write)) for write in writes]
        await eventually(lambda: rows.row(runs[-1])["status"] == Status.COMPLETED)
        assert not any(task.done() for task in waiting)
        before = [rows.stored(run_id) for run_id in runs]
        proxy.cut()
        answers = await asyncio.wait_for(asyncio.gather(*waiting), 10)
        await writer.close()
    assert all(answers)
    assert [rows.stored(run_id) for run_id in runs] == before
    assert_exactly_once(rows, runs)


def assert_exactly_once(rows: Rows, runs: list[UUID]) -> None:
    """Four records, four fences, two requeues, two settlements: each told once."""
    for run_id in runs[:8]:
        assert len(rows.stored(run_id)["steps"]) == 1
        assert [move["type"] for move in rows.stored(run_id)["moves"]] == ["claimed"]
    for run_id in runs[4:8]:
        assert rows.stored(run_id)["steps"][0]["attempt"] == 1
    for run_id in runs[8:10]:
        assert [move["type"] for move in rows.stored(run_id)["moves"]] == ["claimed", "requeued"]
        assert rows.row(run_id)["requeue_count"] == 1
    for run_id in runs[10:]:
        assert [move["type"] for move in rows.stored(run_id)["moves"]] == ["claimed", "settled"]


async def test_a_claim_whose_answer_was_lost_is_still_ours(rows: Rows) -> None:
    run_id = rows.queued()
    with Proxy(rows.database.url) as proxy:
        writer = Writer(proxy.url)
        await writer.write(Write(reads.HELD, rows.params(run_id)))
        proxy.hold_answers()
        params = rows.params(run_id, data='{"claim": "mine"}')
        claim = Write(claims.CLAIM_RUN, params, landed=reads.CLAIM_LANDED, landed_params={"claim": "mine"})
        waiting = asyncio.create_task(writer.write(claim))
        await eventually(lambda: rows.row(run_id)["status"] == Status.RUNNING)
        proxy.cut()
        (claimed,) = await asyncio.wait_for(waiting, 10)
        await writer.close()
    assert (claimed["epoch"], rows.row(run_id)["epoch"]) == (1, 1)


async def test_whoever_lost_the_lease_hears_so_at_once(rows: Rows, writer: Writer) -> None:
    """`abandon`: what is sent may land or not (the epoch decides), and what is not sent stays unsent."""
    blocked, other = sorted([rows.running(), rows.running()])
    with locked(rows, blocked):
        sent = asyncio.create_task(writer.write(record(rows, blocked, "sent")))
        await eventually(lambda: blocked_backend(rows))
        unsent = asyncio.create_task(writer.write(record(rows, blocked, "unsent")))
        unharmed = asyncio.create_task(writer.write(record(rows, other, "s")))
        await asyncio.sleep(0)
        writer.abandon(blocked, LeaseLost())
        for task in (sent, unsent):
            with pytest.raises(LeaseLost):
                await asyncio.wait_for(asyncio.shield(task), 5)
    assert await asyncio.wait_for(unharmed, 5)
    assert "unsent" not in keys(rows, blocked)


async def test_closing_writes_what_waits(rows: Rows) -> None:
    runs = [rows.running() for _ in range(20)]
    writer = Writer(rows.database.url)
    waiting = [asyncio.create_task(writer.write(record(rows, run_id, "s"))) for run_id in runs]
    await asyncio.sleep(0)
    await writer.close()
    assert all(await asyncio.gather(*waiting))
    assert all(keys(rows, run_id) == ["s"] for run_id in runs)


async def test_a_closed_writer_writes_nothing_and_leaves_no_task_behind(rows: Rows) -> None:
    """One that came while it closed had a task and a connection of its own, which nobody ended."""
    run_id, other = rows.running(), rows.running()
    writer = Writer(rows.database.url, name="writer of the test")
    with locked(rows, run_id):
        waiting = asyncio.create_task(writer.write(record(rows, run_id, "s")))
        await eventually(lambda: blocked_backend(rows))
        closing = asyncio.create_task(writer.close())
        await asyncio.sleep(0)
        late = asyncio.create_task(writer.write(record(rows, other, "late")))
        await asyncio.sleep(0)
    assert await waiting
    await closing
    (told,) = await asyncio.gather(late, return_exceptions=True)
    assert isinstance(told, LeaseLost) or keys(rows, other) == ["late"]
    with pytest.raises(LeaseLost):
        await writer.write(record(rows, other, "later"))
    await writer.close()
    assert asyncio.all_tasks() == {asyncio.current_task()}
    assert "later" not in keys(rows, other)


async def test_two_writers_over_the_same_rows_never_deadlock(rows: Rows) -> None:
    runs = [rows.running() for _ in range(40)]
    writers = [Writer(rows.database.url), Writer(rows.database.url)]

    def load(writer: Writer, order: list[UUID], who: str) -> list[Awaitable[Any]]:
        return [writer.write(record(rows, run_id, f"{who}{n}")) for n in range(5) for run_id in order]

    answers = await asyncio.gather(*load(writers[0], runs, "a"), *load(writers[1], runs[::-1], "b"))
    for writer in writers:
        await writer.close()
    assert all(answers)
    with psycopg.connect(rows.database.url, row_factory=scalar_row) as connection:
        assert (
            connection.execute("SELECT deadlocks FROM pg_stat_database WHERE datname = current_database()").fetchone()
            == 0
        )
