"""The statements of waits, one by one: what is not held, seen or open writes nothing at all."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any
from uuid import uuid4

import pytest

from agentrun.core.words import FINAL, Status, WaitStatus
from agentrun.store import signals, steering, transitions, waits
from agentrun.store.asked import LONGEST_WAITS
from agentrun.store.births import CHILD_BORN
from agentrun.store.database import Database
from agentrun.store.sql import Statement
from agentrun.testing.rows import Rows
from agentrun.testing.servers import Servers
from tests.waits.statements import asked, child_of, everything, waits_of

NOT_RUNNING = sorted(set(Status) - {Status.RUNNING})
SEGMENTS = [waits.REGISTER, signals.TAKE_SIGNAL, waits.PARK, CHILD_BORN, transitions.CONTINUE]
RESOLVED = waits.CLOSE[WaitStatus.RESOLVED]


@pytest.fixture(scope="module")
def rows(shared_servers: Servers) -> Iterator[Rows]:
    url = shared_servers.create_database()
    with contextlib.closing(Database(url, name="agentrun test")) as database:
        yield Rows(database)
    shared_servers.drop_database(url)


def ready_for_all(rows: Rows, status: Status) -> tuple[Any, dict[str, Any]]:
    """A run with an open wait and a buffered signal, and parameters with which every statement lands if it is held."""
    run_id = rows.run(status)
    params = child_of(rows, run_id, "new")
    with rows.database.connection() as connection:
        connection.execute("INSERT INTO agentrun.signals (run_id, name, payload) VALUES (%s, 'test', '1')", [run_id])
    rows.wait(run_id, "open")
    return run_id, params


@pytest.mark.parametrize("statement", SEGMENTS, ids=lambda statement: statement.name)
def test_only_the_segment_that_holds_a_run_registers_takes_and_parks(rows: Rows, statement: Statement) -> None:
    for status in NOT_RUNNING:
        run_id, params = ready_for_all(rows, status)
        before = everything(rows, run_id)
        assert rows.do(statement, run_id, **params) == [], status
        assert everything(rows, run_id) == before, status
    run_id, params = ready_for_all(rows, Status.RUNNING)
    before = everything(rows, run_id)
    for epoch in (0, 2):
        assert rows.do(statement, run_id, **params | {"epoch": epoch}) == []
    assert rows.do(statement, uuid4(), **params) == []
    assert everything(rows, run_id) == before
    assert len(rows.do(statement, run_id, **params)) == 1, "the control: the holder's own lands"
    assert everything(rows, run_id) != before


@pytest.mark.parametrize("statement", [waits.REGISTER, CHILD_BORN], ids=lambda statement: statement.name)
def test_what_is_registered_twice_is_there_once_and_unchanged(rows: Rows, statement: Statement) -> None:
    run_id = rows.running()
    params = child_of(rows, run_id)
    assert (
        len(
            rows.do(
                statement,
                run_id,
                **params,
            )
        )
        == 1
    )
    before = everything(rows, run_id)
    assert rows.do(statement, run_id, **params | {"name": "other", "due_in": 5.0}) == []
    assert everything(rows, run_id) == before


def test_a_run_parks_past_no_resolution_that_it_has_not_seen(rows: Rows) -> None:
    run_id = rows.running()
    rows.do(waits.REGISTER, run_id, **asked(run_id, "a"))
    rows.do(waits.REGISTER, run_id, **asked(run_id, "b"))
    rows.do(waits.COUNT, run_id)
    rows.do(RESOLVED, run_id, **asked(run_id, "a"))
    before = everything(rows, run_id)
    for seen in (0, 2):
        assert rows.do(waits.PARK, run_id, resolutions=seen) == []
    assert everything(rows, run_id) == before
    assert rows.do(waits.PARK, run_id, resolutions=1)
    assert rows.row(run_id)["status"] == Status.WAITING


def test_a_run_that_waits_for_nothing_does_not_park(rows: Rows) -> None:
    run_id = rows.running()
    assert rows.do(waits.PARK, run_id) == []
    rows.do(waits.REGISTER, run_id, **asked(run_id))
    rows.do(waits.COUNT, run_id)
    rows.do(RESOLVED, run_id, **asked(run_id))
    assert rows.do(waits.PARK, run_id, resolutions=1) == []
    assert rows.row(run_id)["status"] == Status.RUNNING


def test_a_cancel_that_was_asked_for_and_a_write_in_flight_keep_a_run_from_parking(rows: Rows) -> None:
    cancelled, writing = rows.running(), rows.running()
    rows.do(steering.ASK_CANCEL, cancelled)
    rows.fence(writing, "pay")
    for run_id in (cancelled, writing):
        rows.wait(run_id)
        assert rows.do(waits.PARK, run_id) == []


def test_a_parked_run_is_due_when_its_first_wait_is(rows: Rows) -> None:
    run_id = rows.running()
    rows.do(waits.REGISTER, run_id, **asked(run_id, "long", due_in=500.0))
    rows.do(waits.REGISTER, run_id, **asked(run_id, "short", due_in=50.0))
    rows.do(waits.REGISTER, run_id, **asked(run_id, "never"))
    (parked,) = rows.do(waits.PARK, run_id)
    assert 40 < parked["due_in"] <= 50
    row = rows.row(run_id)
    assert (row["claimed_by"], row["lease_expires_at"], row["due_at"]) == (
        None,
        None,
        waits_of(rows, run_id)["short"]["due_at"],
    )


def test_a_resolution_is_counted_only_for_runs_that_live_in_this_namespace(rows: Rows) -> None:
    for status in Status:
        run_id = rows.run(status)
        before = rows.row(run_id)["resolutions"]
        assert rows.do(waits.COUNT, run_id, namespace="other") == []
        assert len(rows.do(waits.COUNT, run_id)) == (0 if status in FINAL else 1)
        assert rows.row(run_id)["resolutions"] - before == (0 if status in FINAL else 1)
    assert rows.do(waits.COUNT, uuid4()) == []


@pytest.mark.parametrize("status", [WaitStatus.RESOLVED, WaitStatus.EXPIRED])
def test_a_wait_is_closed_once_and_only_on_what_was_read(rows: Rows, status: WaitStatus) -> None:
    run_id = rows.waiting()
    rows.wait(run_id, id=asked(run_id)["wait_id"], asks_digest="right")
    before = everything(rows, run_id)
    close = waits.CLOSE[status]
    assert rows.do(close, run_id, **asked(run_id, asks_digest="wrong")) == []
    assert rows.do(close, run_id, **asked(run_id, wait_id=uuid4())) == []
    assert rows.do(close, rows.waiting(), **asked(run_id)) == [], "another run's wait"
    assert everything(rows, run_id) == before
    assert len(rows.do(close, run_id, **asked(run_id, asks_digest="right", resolution='"first"'))) == 1
    decided = everything(rows, run_id)
    for again in waits.CLOSE.values():
        assert rows.do(again, run_id, **asked(run_id, resolution='"second"')) == []
    assert everything(rows, run_id) == decided
    assert waits_of(rows, run_id)["w"]["resolution"] == '"first"'
    assert [move["type"] for move in rows.stored(run_id)["moves"]] == ["resolved"]


def test_only_a_parked_run_goes_back_to_the_queue(rows: Rows) -> None:
    for status in sorted(set(Status) - {Status.WAITING}):
        run_id = rows.run(status)
        before = everything(rows, run_id)
        assert rows.do(waits.UNPARK, run_id) == [], status
        assert everything(rows, run_id) == before
    run_id = rows.waiting()
    assert rows.do(waits.UNPARK, run_id)
    assert rows.row(run_id)["status"] == Status.QUEUED


def test_a_signal_is_counted_once_whatever_it_finds(rows: Rows) -> None:
    """Parked or not, waited for or kept: a run that looked before must look again."""
    parked, executing, kept = rows.waiting(), rows.running(), rows.running()
    rows.wait(parked)
    rows.wait(executing)
    for run_id in (parked, executing, kept):
        before = rows.row(run_id)["resolutions"]
        assert rows.do(waits.LOCK, run_id)
        (told,) = rows.do(signals.SEND, run_id, **asked(run_id))
        stored = rows.row(run_id)
        assert stored["resolutions"] == before + 1
        assert told == {name: stored[name] for name in told if name in stored} | {
            "woken": run_id == parked,
            "pending_effect": None,
        }
    assert [rows.row(run_id)["status"] for run_id in (parked, executing, kept)] == ["queued", "running", "running"]


def test_signals_are_taken_oldest_first_each_by_one_step(rows: Rows) -> None:
    run_id = rows.running()
    for value in "123":
        rows.do(signals.SEND, run_id, **asked(run_id, payload=value))
    rows.do(signals.SEND, run_id, **asked(run_id, name="other", payload="0"))
    taken = [rows.do(signals.TAKE_SIGNAL, run_id, **asked(run_id, key))[0]["resolution"] for key in ("a", "b")]
    assert taken == ["1", "2"]
    assert rows.do(signals.TAKE_SIGNAL, run_id, **asked(run_id, "a")) == [], "an answered step takes no second one"
    assert rows.do(signals.TAKE_SIGNAL, run_id, **asked(run_id, "c"))[0]["resolution"] == "3"
    assert rows.do(signals.TAKE_SIGNAL, run_id, **asked(run_id, "d")) == []


def test_a_signal_answers_the_open_wait_of_its_step(rows: Rows) -> None:
    run_id = rows.running()
    rows.do(signals.SEND, run_id, **asked(run_id, payload="7"))
    rows.do(waits.REGISTER, run_id, **asked(run_id))
    (answered,) = rows.do(signals.TAKE_SIGNAL, run_id, **asked(run_id))
    assert (answered["status"], answered["resolution"]) == ("resolved", "7")
    assert len(waits_of(rows, run_id)) == 1


def test_a_continuation_and_its_predecessors_end_are_one_statement(rows: Rows) -> None:
    run_id = rows.running(owner="ann", tags=["a"])
    next_id = uuid4()
    rows.fence(run_id, "pay")
    assert rows.do(transitions.CONTINUE, run_id, next_id=next_id) == [], "a write is in flight"
    assert rows.stored(next_id)["runs"] == []
    run_id = rows.running(owner="ann", tags=["a"])
    assert rows.do(transitions.CONTINUE, run_id, next_id=next_id, request="2")
    following = rows.row(next_id)
    assert (rows.row(run_id)["status"], following["status"]) == (Status.COMPLETED, Status.QUEUED)
    assert (following["owner"], following["tags"], following["continued_from"]) == ("ann", ["a"], run_id)
    assert rows.do(transitions.CONTINUE, run_id, next_id=uuid4()) == []


def test_only_a_wait_that_is_due_is_put_to_somebody_else(rows: Rows) -> None:
    run_id = rows.waiting()
    params = asked(run_id, role="boss", due_in=60.0, on_expiry="{}")
    rows.wait(run_id, id=params["wait_id"])
    assert rows.do(waits.ESCALATE, run_id, **params) == [], "never due"
    with rows.database.connection() as connection:
        connection.execute("UPDATE agentrun.waits SET due_at = now() - interval '1 s' WHERE run_id = %s", [run_id])
    assert rows.do(waits.ESCALATE, run_id, **params)
    assert rows.do(waits.ESCALATE, run_id, **params) == [], "twice"


def test_what_waits_longest_is_listed_first_and_says_for_what(rows: Rows) -> None:
    here = Rows(rows.database, namespace="longest")
    parent, asking, sleeping = here.waiting(), here.waiting(), here.waiting()
    child = here.queued()
    here.wait(asking, "a", kind="approval", name="pay?", role="boss")
    here.wait(parent, "c", kind="child", name="test", child_id=child)
    here.wait(sleeping, "s", kind="timer", name="sleep")
    with rows.database.connection() as connection:
        connection.execute("UPDATE agentrun.waits SET created_at = now() - interval '1 h' WHERE run_id = %s", [parent])
    found = rows.database.rows(LONGEST_WAITS, {"namespace": "longest", "limit": 10})
    assert [(row["run_id"], row["kind"]) for row in found] == [(parent, "child"), (asking, "approval")]
    assert (found[0]["child_id"], found[0]["child_status"], found[1]["role"]) == (child, "queued", "boss")
    assert found[0]["age"] >= 3600
    assert len(rows.database.rows(LONGEST_WAITS, {"namespace": "longest", "limit": 1})) == 1
