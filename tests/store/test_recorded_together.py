"""Steps that a batch records with one statement: each is guarded by its own run, and stored as it would be alone."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from agentrun.core.words import Status
from agentrun.store import journal, waits
from agentrun.store.batches import Write
from agentrun.store.writer import Writer
from agentrun.testing.rows import Rows


async def together(writer: Writer, *writes: Write) -> list[bool]:
    """Write them in one batch; whether each landed."""
    batches = writer.batches
    answers = await asyncio.gather(*(writer.write(write) for write in writes))
    assert writer.batches <= batches + 2, "one batch, after the one that was on its way"
    return [bool(answer) for answer in answers]


def stored(rows: Rows, run_id: Any) -> list[dict[str, Any]]:
    left_out = ("run_id", "seq", "started_at", "finished_at", "key")
    steps = rows.stored(run_id)["steps"]
    took = [step["started_at"] and step["finished_at"] - step["started_at"] for step in steps]
    return [{name: step[name] for name in step if name not in left_out} | {"took": took} for step in steps]


async def test_each_of_many_is_refused_by_its_own_run_alone(rows: Rows, writer: Writer) -> None:
    mine, stale, ended = rows.running(), rows.running(), rows.run(Status.COMPLETED)
    unknown = rows.params(rows.running())["run_id"].__class__(int=7)
    writes = [
        Write(journal.RECORD, rows.params(mine) | rows.step("a")),
        Write(journal.RECORD, rows.params(stale, epoch=0) | rows.step("a")),
        Write(journal.RECORD, rows.params(ended) | rows.step("a")),
        Write(journal.RECORD, rows.params(unknown) | rows.step("a")),
        Write(journal.RECORD, rows.params(mine) | rows.step("b")),
    ]
    assert await together(writer, *writes) == [True, False, False, False, True]
    assert [step["key"] for step in rows.stored(mine)["steps"]] == ["a", "b"]
    assert [rows.stored(other)["steps"] for other in (stale, ended)] == [[], []]


async def test_what_has_ended_stays_and_what_is_to_be_done_again_is_recorded_anew(rows: Rows, writer: Writer) -> None:
    run_id = rows.running()
    rows.do(journal.RECORD, run_id, **rows.step("ended", result='"first"'))
    rows.do(journal.RECORD, run_id, **rows.step("again", status="failed", result=None, error='{"type": "Oops"}'))
    with rows.database.connection() as connection:
        connection.execute("UPDATE agentrun.steps SET status = 'redo', finished_at = NULL WHERE key = 'again'")
    ended = Write(journal.RECORD, rows.params(run_id) | rows.step("ended", result='"second"'))
    again = Write(journal.RECORD, rows.params(run_id) | rows.step("again", result='"second"', attempt=2))
    assert await together(writer, ended, again) == [False, True]
    by_key = {step["key"]: step for step in rows.stored(run_id)["steps"]}
    assert by_key["ended"]["result"] == '"first"'
    assert (by_key["again"]["result"], by_key["again"]["attempt"], by_key["again"]["error"]) == ('"second"', 2, None)


@pytest.mark.parametrize(
    "step",
    [
        {"result": '{"umlaut": "ä\\u0001", "big": 12345678901234567890, "nested": [1, {"a": null}]}'},
        {"status": "failed", "result": None, "error": '{"type": "Oops", "message": "\\"quoted\\""}'},
        {"result": None, "args": '["x"]', "args_digest": "d", "attempt": 3},
        {"result": "null"},
        {"took": 90.5},
    ],
    ids=["json", "failure", "arguments", "null", "took"],
)
async def test_a_step_recorded_among_many_is_stored_as_one_alone(
    rows: Rows, writer: Writer, step: dict[str, Any]
) -> None:
    alone, among, other = rows.running(), rows.running(), rows.running()
    rows.do(journal.RECORD, alone, **rows.step("s", **step))
    writes = [Write(journal.RECORD, rows.params(run) | rows.step("s", **step)) for run in (among, other)]
    assert await together(writer, *writes) == [True, True]
    assert stored(rows, among) == stored(rows, alone)


async def test_large_results_are_written_by_themselves(rows: Rows, writer: Writer) -> None:
    """Many of them in one statement would be one document, of which PostgreSQL takes no more than a gigabyte."""
    large = f'"{"x" * 2_000_000}"'
    runs = [rows.running() for _ in range(4)]
    assert await together(
        writer, *(Write(journal.RECORD, rows.params(run) | rows.step("s", result=large)) for run in runs)
    )
    assert [len(rows.stored(run)["steps"][0]["result"]) for run in runs] == [len(large)] * 4


async def test_the_events_of_a_run_keep_the_order_in_which_its_steps_were_written(rows: Rows, writer: Writer) -> None:
    run_id = rows.running()
    keys = [f"k{nth}" for nth in range(20)]
    await together(writer, *(Write(journal.RECORD, rows.params(run_id) | rows.step(key)) for key in keys))
    by_seq = sorted(rows.stored(run_id)["steps"], key=lambda step: step["seq"])
    assert [step["key"] for step in by_seq] == keys


async def test_what_many_runs_left_is_read_at_once_and_each_gets_its_own(rows: Rows, writer: Writer) -> None:
    many, none, asking = rows.running(), rows.running(), rows.running()
    for key in ("a", "b"):
        rows.do(journal.RECORD, many, **rows.step(key, result=f'"{key}"'))
    rows.wait(many, "c")
    rows.wait(asking, "d")
    runs = (many, none, asking, many)
    batches = writer.batches
    asked = [Write(of, {"run_id": run_id}) for of in (journal.REPLAY, waits.OF_RUN) for run_id in runs]
    answers = await asyncio.gather(*(writer.write(write) for write in asked))
    assert writer.batches <= batches + 2
    alone = [rows.database.rows(write.statement, write.params) for write in asked]
    assert [[{**row, "due_in": None} for row in mine] for mine in answers] == [
        [{**row, "run_id": write.run_id, "due_in": None} for row in each]
        for write, each in zip(asked, alone, strict=True)
    ]
    assert [len(each) for each in answers] == [2, 0, 0, 2, 1, 0, 1, 1]
