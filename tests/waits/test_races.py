"""Two sessions on one run, in both orders: an answer and a parking run never miss each other."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

import psycopg
import pytest

from agentrun.core.words import Status, WaitStatus
from agentrun.store import claims, signals, steering, transitions, waits
from agentrun.store.births import CHILD_BORN
from agentrun.store.database import Database
from agentrun.store.starting import NOT_STARTED
from agentrun.testing.rows import Rows
from agentrun.testing.servers import Servers
from tests.races.conftest import Session
from tests.waits.statements import asked, child_of, waits_of

RESOLVED, EXPIRED = waits.CLOSE[WaitStatus.RESOLVED], waits.CLOSE[WaitStatus.EXPIRED]
DONE = {"reason": "completed", "result": "1"}


@pytest.fixture(scope="module")
def rows(shared_servers: Servers) -> Iterator[Rows]:
    url = shared_servers.create_database()
    with contextlib.closing(Database(url, name="agentrun test")) as database:
        yield Rows(database)
    shared_servers.drop_database(url)


@pytest.fixture
def first(rows: Rows) -> Iterator[Session]:
    with contextlib.closing(Session(rows, "first")) as session:
        yield session


@pytest.fixture
def second(rows: Rows) -> Iterator[Session]:
    with contextlib.closing(Session(rows, "second")) as session:
        yield session


@pytest.fixture
def run_id(rows: Rows) -> Any:
    """A run that executes, with an open wait, about to park."""
    run_id = rows.running()
    rows.do(waits.REGISTER, run_id, **asked(run_id))
    return run_id


def status_of(rows: Rows, run_id: Any) -> tuple[str, str]:
    return rows.row(run_id)["status"], waits_of(rows, run_id)["w"]["status"]


def test_a_run_does_not_park_past_an_answer_that_is_being_given(
    rows: Rows, first: Session, second: Session, run_id: Any
) -> None:
    with first.holding(waits.COUNT, run_id):
        first.does(RESOLVED, run_id, **asked(run_id))
        assert first.does(waits.UNPARK, run_id) == []
        parking = second.tries(waits.PARK, run_id)
    assert parking.result() == []
    assert status_of(rows, run_id) == ("running", "resolved")


def test_an_answer_that_is_rolled_back_lets_the_run_park(
    rows: Rows, first: Session, second: Session, run_id: Any
) -> None:
    """The control: parking waited for the answer's end."""
    with first.holding(waits.COUNT, run_id):
        first.does(RESOLVED, run_id, **asked(run_id))
        parking = second.tries(waits.PARK, run_id)
        raise psycopg.Rollback
    assert len(parking.result()) == 1
    assert status_of(rows, run_id) == ("waiting", "open")


def test_an_answer_that_comes_while_its_run_parks_puts_it_back_to_the_queue(
    rows: Rows, first: Session, second: Session, run_id: Any
) -> None:
    with first.holding(waits.PARK, run_id):
        counting = second.tries(waits.COUNT, run_id)
    assert counting.result()[0]["status"] == Status.WAITING
    assert second.does(RESOLVED, run_id, **asked(run_id))
    assert second.does(waits.UNPARK, run_id)
    assert status_of(rows, run_id) == ("queued", "resolved")


def test_of_two_answers_the_second_finds_the_wait_closed(
    rows: Rows, first: Session, second: Session, run_id: Any
) -> None:
    rows.do(waits.PARK, run_id)
    with first.holding(waits.COUNT, run_id):
        first.does(RESOLVED, run_id, **asked(run_id, resolution='"first"'))
        first.does(waits.UNPARK, run_id)
        counting = second.tries(waits.COUNT, run_id)
    assert counting.result()
    for late in (RESOLVED, EXPIRED):
        assert second.does(late, run_id, **asked(run_id, resolution='"second"')) == []
    assert second.does(waits.UNPARK, run_id) == []
    assert waits_of(rows, run_id)["w"]["resolution"] == '"first"'
    assert [move["type"] for move in rows.stored(run_id)["moves"]].count("resolved") == 1


def test_a_timer_that_ends_while_its_run_parks_is_not_slept_through(
    rows: Rows, first: Session, second: Session
) -> None:
    run_id = rows.running()
    timer = asked(run_id, kind="timer", name="sleep", due_in=0.0, resolution="null")
    rows.do(waits.REGISTER, run_id, **timer)
    (due,) = rows.database.rows(waits.DUE_OF_RUN, {"run_id": run_id})
    assert due["kind"] == "timer"
    with first.holding(waits.COUNT, run_id):
        first.does(RESOLVED, run_id, **timer)
        parking = second.tries(waits.PARK, run_id)
    assert parking.result() == []
    assert status_of(rows, run_id) == ("running", "resolved")


def test_a_signal_sent_while_its_wait_is_registered_is_found_before_the_run_parks(
    rows: Rows, first: Session, second: Session
) -> None:
    """The sender saw no wait, and the segment's statement saw no signal: the count tells the segment to look again."""
    run_id = rows.running()
    with first.holding(waits.LOCK, run_id):
        first.does(signals.SEND, run_id, **asked(run_id, payload="7"))
        assert second.does(signals.TAKE_SIGNAL, run_id, **asked(run_id)) == []
        registering = second.tries(waits.REGISTER, run_id, **asked(run_id))
    assert registering.result()[0]["status"] == "open"
    assert second.does(waits.PARK, run_id) == []
    taken = second.does(signals.TAKE_SIGNAL, run_id, **asked(run_id))
    assert taken[0]["resolution"] == "7"
    assert second.does(signals.TAKE_SIGNAL, run_id, **asked(run_id, "next")) == []


def test_signals_keep_their_order_whenever_the_wait_is_registered(rows: Rows, first: Session, second: Session) -> None:
    """The first is kept before the wait is there, the second finds the wait open."""
    run_id = rows.running()
    with first.holding(waits.LOCK, run_id):
        first.does(signals.SEND, run_id, **asked(run_id, payload="1"))
        assert second.does(signals.TAKE_SIGNAL, run_id, **asked(run_id)) == []
        registering = second.tries(waits.REGISTER, run_id, **asked(run_id))
    assert registering.result()[0]["status"] == "open"
    with first.holding(waits.LOCK, run_id):
        first.does(signals.SEND, run_id, **asked(run_id, payload="2"))
    assert second.does(waits.OF_RUN, run_id)[0]["resolution"] == "1"
    assert second.does(signals.TAKE_SIGNAL, run_id, **asked(run_id, "next"))[0]["resolution"] == "2"


def test_a_signal_sent_after_its_wait_was_registered_finds_it(rows: Rows, first: Session, second: Session) -> None:
    run_id = rows.running()
    with first.holding(waits.REGISTER, run_id, **asked(run_id)):
        locking = second.tries(waits.LOCK, run_id)
    assert locking.result()
    assert second.does(signals.SEND, run_id, **asked(run_id, payload="7"))
    assert status_of(rows, run_id) == ("running", "resolved")


@pytest.fixture
def family(rows: Rows) -> tuple[Any, Any, dict[str, Any]]:
    """A parent that executes and waits for its child, which executes too."""
    parent = rows.running()
    params = child_of(rows, parent)
    rows.do(CHILD_BORN, parent, **params)
    assert rows.do(claims.CLAIM_RUN, params["child_id"])
    return parent, params["child_id"], params


SETTLE = transitions.SETTLE[Status.COMPLETED]


def test_a_parent_does_not_park_past_the_end_of_its_child(
    rows: Rows, first: Session, second: Session, family: Any
) -> None:
    parent, child, _ = family
    with first.holding(SETTLE, child, **DONE):
        parking = second.tries(waits.PARK, parent)
    assert parking.result() == []
    assert status_of(rows, parent) == ("running", "resolved")


def test_a_child_that_ends_while_its_parent_parks_puts_it_back_to_the_queue(
    rows: Rows, first: Session, second: Session, family: Any
) -> None:
    parent, child, _ = family
    with first.holding(waits.PARK, parent):
        settling = second.tries(SETTLE, child, **DONE)
    (settled,) = settling.result()
    assert settled["parent_id"] == parent
    assert status_of(rows, parent) == ("queued", "resolved")


def test_children_that_end_together_are_both_heard_of(rows: Rows, first: Session, second: Session, family: Any) -> None:
    parent, child, _ = family
    other = child_of(rows, parent, "x")
    rows.do(CHILD_BORN, parent, **other)
    rows.do(claims.CLAIM_RUN, other["child_id"])
    rows.do(waits.PARK, parent)
    with first.holding(SETTLE, child, **DONE):
        settling = second.tries(SETTLE, other["child_id"], **DONE)
    assert settling.result()
    assert {wait["status"] for wait in waits_of(rows, parent).values()} == {"resolved"}
    row = rows.row(parent)
    assert (row["status"], row["resolutions"]) == (Status.QUEUED, 2)


def test_a_child_that_ends_and_the_sweep_that_misses_it_resolve_its_wait_once(
    rows: Rows, first: Session, second: Session, family: Any
) -> None:
    parent, child, params = family
    rows.do(waits.PARK, parent)
    with first.holding(SETTLE, child, **DONE):
        counting = second.tries(waits.COUNT, parent)
    assert counting.result()
    assert second.does(RESOLVED, parent, **params) == []
    assert [move["type"] for move in rows.stored(parent)["moves"]].count("resolved") == 1


def test_a_run_that_is_being_cancelled_takes_no_answer(
    rows: Rows, first: Session, second: Session, run_id: Any
) -> None:
    rows.do(waits.PARK, run_id)
    with first.holding(steering.CANCEL, run_id):
        counting = second.tries(waits.COUNT, run_id)
    assert counting.result() == []
    assert rows.row(run_id)["status"] == Status.CANCELLED


def test_a_run_whose_wait_is_being_answered_can_still_be_cancelled(
    rows: Rows, first: Session, second: Session, run_id: Any
) -> None:
    rows.do(waits.PARK, run_id)
    with first.holding(waits.COUNT, run_id):
        first.does(RESOLVED, run_id, **asked(run_id))
        first.does(waits.UNPARK, run_id)
        cancelling = second.tries(steering.CANCEL, run_id)
    assert cancelling.result()
    assert rows.row(run_id)["status"] == Status.CANCELLED


def test_a_wait_that_is_being_answered_is_not_put_to_another_role(rows: Rows, first: Session, second: Session) -> None:
    run_id = rows.running()
    params = asked(run_id, due_in=0.0)
    rows.do(waits.REGISTER, run_id, **params)
    with first.holding(waits.COUNT, run_id):
        first.does(RESOLVED, run_id, **params)
        escalating = second.tries(waits.ESCALATE, run_id, **params | {"role": "boss"})
    assert escalating.result() == []
    assert waits_of(rows, run_id)["w"]["role"] is None


def late_child(rows: Rows) -> tuple[Any, Any]:
    """A parked parent, and its child that was to be started by now."""
    parent, child = rows.waiting(), rows.queued()
    rows.wait(parent, "w", kind="child", child_id=child)
    with rows.database.connection() as connection:
        connection.execute("UPDATE agentrun.waits SET due_at = now() - interval '1 s' WHERE run_id = %s", [parent])
    return parent, child


def test_a_child_that_is_claimed_at_the_last_moment_is_not_given_up(
    rows: Rows, first: Session, second: Session
) -> None:
    parent, child = late_child(rows)
    with first.holding(claims.CLAIM_RUN, child):
        giving_up = second.tries(NOT_STARTED, child)
    assert giving_up.result() == []
    assert (rows.row(child)["status"], rows.row(parent)["status"]) == ("running", "waiting")


def test_a_child_that_is_given_up_is_not_claimed_any_more(rows: Rows, first: Session, second: Session) -> None:
    parent, child = late_child(rows)
    with first.holding(NOT_STARTED, child):
        claiming = second.tries(claims.CLAIM_RUN, child)
    assert claiming.result() == []
    assert (rows.row(child)["status"], rows.row(parent)["status"]) == ("failed", "queued")
