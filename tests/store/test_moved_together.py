"""Claims and settlements that a batch makes with one statement: each guarded by its own run, stored as alone."""

from __future__ import annotations

import asyncio
import json
from typing import Any
from uuid import UUID, uuid4

from agentrun.core.words import Effect, Status
from agentrun.store import claims, journal, transitions
from agentrun.store.batches import Write
from agentrun.store.writer import Writer
from agentrun.testing.rows import Rows


async def together(writer: Writer, *writes: Write) -> list[list[dict[str, Any]]]:
    """Write them in one batch; their rows."""
    batches = writer.batches
    answers = await asyncio.gather(*(writer.write(write) for write in writes))
    assert writer.batches <= batches + 2, "one batch, after the one that was on its way"
    return list(answers)


def claim(rows: Rows, run_id: UUID, **params: Any) -> Write:
    return Write(claims.CLAIM_RUN, rows.params(run_id, data=json.dumps({"claim": str(run_id)}), **params))


def complete(rows: Rows, run_id: UUID, **params: Any) -> Write:
    said = {"reason": "completed", "result": '{"n": 1}', "data": '{"status": "completed"}'}
    return Write(transitions.SETTLE[Status.COMPLETED], rows.params(run_id, **said | params))


def story(rows: Rows, run_id: UUID) -> dict[str, Any]:
    stored = rows.stored(run_id)
    times = ("id", "run_id", "seq", "at", "request", "created_at", "due_at")
    return {
        table: [
            {name: value for name, value in row.items() if name not in times and not name.endswith("_at")}
            for row in each
        ]
        for table, each in stored.items()
    }


async def test_each_of_many_claims_is_refused_by_its_own_run_alone(rows: Rows, writer: Writer) -> None:
    free = [rows.run(Status.QUEUED) for _ in range(3)]
    early, other_kind = rows.run(Status.QUEUED), rows.run(Status.QUEUED)
    with rows.database.connection() as connection:
        connection.execute("UPDATE agentrun.runs SET due_at = now() + interval '1 h' WHERE id = %s", [early])
        connection.execute("UPDATE agentrun.runs SET kind = 'elsewhere' WHERE id = %s", [other_kind])
    busy, over = rows.running(), rows.run(Status.COMPLETED)
    wakes = [free[0], early, free[1], other_kind, busy, over, uuid4(), free[2]]
    answers = await together(writer, *(claim(rows, run_id) for run_id in wakes))
    assert [bool(answer) for answer in answers] == [True, False, True, False, False, False, False, True]
    assert [answer[0]["id"] for answer in answers if answer] == free, "each wake gets its own run"
    for run_id in free:
        stored = rows.stored(run_id)
        assert json.loads(stored["moves"][-1]["data"]) == {"claim": str(run_id)}
    assert rows.stored(early)["runs"][0]["status"] == "queued"


async def test_of_many_wakes_for_one_run_one_claims(rows: Rows, writer: Writer) -> None:
    run_id = rows.run(Status.QUEUED)
    answers = await together(writer, *(claim(rows, run_id) for _ in range(10)))
    assert sum(bool(answer) for answer in answers) == 1
    assert [move["type"] for move in rows.stored(run_id)["moves"]].count("claimed") == 1


async def test_a_claim_in_another_namespace_takes_nothing(rows: Rows, writer: Writer) -> None:
    runs = [rows.run(Status.QUEUED) for _ in range(2)]
    assert await together(writer, *(claim(rows, run_id, namespace="other") for run_id in runs)) == [[], []]


async def test_each_of_many_settlements_is_refused_by_its_own_run_alone(rows: Rows, writer: Writer) -> None:
    mine = [rows.running() for _ in range(2)]
    stale, asked, writing = rows.running(), rows.running(), rows.running()
    with rows.database.connection() as connection:
        connection.execute("UPDATE agentrun.runs SET cancel_requested_at = now() WHERE id = %s", [asked])
    rows.do(journal.FENCE, writing, **rows.step("w", effect=str(Effect.NON_IDEMPOTENT_WRITE)))
    writes = [complete(rows, mine[0]), complete(rows, stale, epoch=0), complete(rows, asked), complete(rows, writing)]
    answers = await together(writer, *writes, complete(rows, mine[1]))
    assert [bool(answer) for answer in answers] == [True, False, False, False, True]
    assert {rows.stored(run_id)["runs"][0]["status"] for run_id in (stale, asked, writing)} == {"running"}


async def test_a_run_claimed_and_settled_among_many_is_stored_as_one_alone(rows: Rows, writer: Writer) -> None:
    alone, among, other = (rows.run(Status.QUEUED) for _ in range(3))
    for run_id in (alone, among, other):
        rows.wait(run_id)
    same = {"data": '{"claim": "t"}'}
    rows.do(claims.CLAIM_RUN, alone, **same)
    both = [Write(claims.CLAIM_RUN, rows.params(run_id, **same)) for run_id in (among, other)]
    assert all(await together(writer, *both))
    assert story(rows, among) == story(rows, alone)
    epoch = rows.stored(alone)["runs"][0]["epoch"]
    said = complete(rows, alone, epoch=epoch)
    rows.database.rows(said.statement, said.params)
    assert all(await together(writer, *(complete(rows, run_id, epoch=epoch) for run_id in (among, other))))
    assert story(rows, among) == story(rows, alone)
    assert story(rows, among)["runs"][0]["status"] == "completed"


async def test_what_reaches_beyond_its_own_run_is_written_by_itself(rows: Rows, writer: Writer) -> None:
    """A child's end resolves its parent's wait: two children of one parent are two resolutions."""
    parent = rows.running()
    children = [rows.running() for _ in range(2)]
    for nth, child in enumerate(children):
        rows.wait(parent, key=f"#{nth}", kind="child", child_id=child)
    writes = [complete(rows, child) for child in children]
    for write in writes:
        write.alone = True
    assert all(await together(writer, *writes))
    assert rows.stored(parent)["runs"][0]["resolutions"] == 2
