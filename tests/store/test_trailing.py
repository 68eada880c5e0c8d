"""Writes for which nobody waits: they come before whatever their segment writes next, and are not lost."""

from __future__ import annotations

import asyncio
from uuid import UUID

import psycopg
import pytest

from agentrun.core.outcome import LeaseLost
from agentrun.core.words import Status
from agentrun.store.writer import LARGEST_BATCH, Writer
from agentrun.testing.proxy import Proxy
from agentrun.testing.rows import Rows
from tests.store.test_writer import blocked_backend, completed, eventually, keys, locked, record


def told(rows: Rows, run_id: UUID) -> tuple[list[str], str]:
    """The steps that are recorded, and the run's status."""
    return keys(rows, run_id), rows.row(run_id)["status"]


async def test_it_goes_with_what_is_written_next(rows: Rows, writer: Writer) -> None:
    run_id = rows.running()
    writer.trail(record(rows, run_id, "answer"))
    assert await writer.write(completed(rows, run_id))
    assert told(rows, run_id) == (["answer"], Status.COMPLETED)
    assert writer.batches == 1


async def test_it_is_written_though_nothing_follows(rows: Rows, writer: Writer) -> None:
    run_id = rows.running()
    writer.trail(record(rows, run_id, "answer"))
    await eventually(lambda: keys(rows, run_id) == ["answer"])


async def test_what_follows_never_overtakes_it(rows: Rows, writer: Writer) -> None:
    """Ends are written first here, as the oldest that waits is one; but for those that something trails ahead of."""
    runs = [rows.running() for _ in range(3 * LARGEST_BATCH // 2)]
    blocked = rows.running()
    ends = []
    with locked(rows, blocked):
        first = asyncio.ensure_future(writer.write(record(rows, blocked, "s")))
        await eventually(lambda: blocked_backend(rows))
        for nth, run_id in enumerate(runs):
            if nth % 3:
                writer.trail(record(rows, run_id, "answer"))
            ends.append(asyncio.ensure_future(writer.write(completed(rows, run_id))))
            await asyncio.sleep(0)
    assert await first
    assert all(await asyncio.gather(*ends))
    assert writer.batches > 3
    assert [told(rows, run_id) for run_id in runs] == [
        (["answer"] if nth % 3 else [], Status.COMPLETED) for nth in range(len(runs))
    ]


async def test_a_batch_that_goes_one_by_one_keeps_the_order(rows: Rows, writer: Writer) -> None:
    run_id, other = rows.running(), rows.running()
    writer.trail(record(rows, run_id, "answer"))
    bad = asyncio.ensure_future(writer.write(record(rows, other, "bad", result="no json")))
    assert await writer.write(completed(rows, run_id))
    with pytest.raises(psycopg.Error):
        await bad
    assert told(rows, run_id) == (["answer"], Status.COMPLETED)


@pytest.mark.parametrize("at_once", [True, False], ids=["in one batch", "later"])
async def test_what_follows_is_not_written_where_it_failed(rows: Rows, writer: Writer, at_once: bool) -> None:
    run_id = rows.running()
    failing = record(rows, run_id, "answer", result="no json")
    writer.trail(failing)
    if not at_once:
        await eventually(failing.done.done)
    with pytest.raises(psycopg.Error):
        await writer.write(completed(rows, run_id))
    with pytest.raises(psycopg.Error):
        await writer.write(record(rows, run_id, "next"))
    assert told(rows, run_id) == ([], Status.RUNNING)
    elsewhere = record(rows, run_id, "elsewhere")
    elsewhere.of_step = True
    assert await writer.write(elsewhere), "it is not the segment's"
    writer.forget(run_id, failing.params["epoch"])
    assert await writer.write(completed(rows, run_id)), "another segment of the run is free of it"


async def test_what_follows_hears_of_a_lost_lease(rows: Rows, writer: Writer) -> None:
    run_id = rows.running()
    stale = record(rows, run_id, "answer")
    stale.params = {**stale.params, "epoch": 0}
    following = completed(rows, run_id)
    following.params = {**following.params, "epoch": 0}
    writer.trail(stale)
    await eventually(stale.done.done)
    with pytest.raises(LeaseLost):
        await writer.write(following)
    assert await writer.write(completed(rows, run_id)), "whoever has the run now does not"


async def test_another_connection_waits_for_it(rows: Rows, writer: Writer) -> None:
    run_id, other = rows.running(), rows.running()
    trailing, stale = record(rows, run_id, "answer"), record(rows, other, "answer")
    stale.params = {**stale.params, "epoch": 0}
    with locked(rows, run_id):
        writer.trail(trailing)
        caught_up = asyncio.ensure_future(writer.caught_up(*trailing.segment))  # type: ignore[arg-type]
        await eventually(lambda: blocked_backend(rows))
        assert not caught_up.done()
    await caught_up
    assert keys(rows, run_id) == ["answer"]
    writer.trail(stale)
    with pytest.raises(LeaseLost):
        await writer.caught_up(other, 0)


async def test_an_abandoned_segment_writes_neither(rows: Rows, writer: Writer) -> None:
    run_id = rows.running()
    writer.trail(record(rows, run_id, "answer"))
    ending = asyncio.ensure_future(writer.write(completed(rows, run_id)))
    await asyncio.sleep(0)
    writer.abandon(run_id, LeaseLost())
    with pytest.raises(LeaseLost):
        await ending
    assert await writer.write(record(rows, rows.running(), "another run's"))
    assert told(rows, run_id) == ([], Status.RUNNING)


async def test_both_land_once_over_a_connection_that_broke(rows: Rows) -> None:
    run_id = rows.running()
    with Proxy(rows.database.url) as proxy:
        writer = Writer(proxy.url)
        assert await writer.write(record(rows, rows.running(), "connects"))
        proxy.hold_answers()
        writer.trail(record(rows, run_id, "answer"))
        ending = asyncio.ensure_future(writer.write(completed(rows, run_id)))
        await eventually(lambda: told(rows, run_id) == (["answer"], Status.COMPLETED))
        proxy.cut()
        assert await asyncio.wait_for(ending, 20)
        await writer.close()
    assert told(rows, run_id) == (["answer"], Status.COMPLETED)
    assert [move["type"] for move in rows.stored(run_id)["moves"]].count("settled") == 1
