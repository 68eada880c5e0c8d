"""`redispatch`: the operator's hand. Safe on a healthy run, conditional, refused on a final one."""

from __future__ import annotations

from collections.abc import Iterator
from uuid import uuid4

import pytest

from agentrun import Actor, Forbidden, NotAllowed, NotFound, Scope
from agentrun.store import ending, offering, offers
from agentrun.store.sql import Statement
from agentrun.store.taking import BEAT, TAKE
from tests.races.conftest import Session
from tests.remote.conftest import Doing, Here

pytestmark = pytest.mark.usefixtures("bodies")


def test_what_is_pending_is_sent_again_at_once(here: Here) -> None:
    run_id = here.parked("fan", [1, 2, 3])
    first, _, _ = here.offers()
    here.take(run_id, first.step_key)
    did = here.client.redispatch(run_id, by="ops")
    assert (did.sent, did.left) == (2, {})
    assert [offer.cause for offer in here.offers()] == ["redispatch", "redispatch"]


def test_a_step_whose_taker_died_is_offered_again_without_waiting_for_the_sweep(here: Here) -> None:
    run_id = here.parked("asks", {"step": "double", "input": 1})
    here.taken_by_the_dead(run_id)
    assert here.client.redispatch(run_id, by="ops").sent == 1
    assert (here.step(run_id).status, here.step(run_id).redispatch_count) == ("offered", 1)
    event = next(event for event in here.client.events(run_id) if event.type == "redispatched")
    assert (event.data["by"], event.data["trouble"], event.data["lost"]) == ("ops", "by hand", "worker:dead:1")


def test_a_living_taker_keeps_its_step(here: Here, doing: Doing) -> None:
    run_id = here.parked("asks", {"step": "held", "input": 1})
    taking = here.taking(run_id)
    assert doing.began.wait(10)
    did = here.client.redispatch(run_id, by="ops")
    assert did.sent == 0
    assert "until its lease is over" in did.left[here.step(run_id).key]
    doing.go_on.set()
    assert taking.result(10).outcome == "completed"
    assert doing.done == [1]


def test_a_write_that_somebody_took_is_never_sent_again(here: Here) -> None:
    run_id = here.parked("asks", {"step": "charge", "input": 1})
    here.taken_by_the_dead(run_id)
    did = here.client.redispatch(run_id, by="ops")
    assert did.sent == 0
    assert "never repeated" in did.left[here.step(run_id).key]


def test_what_has_ended_is_not_touched_and_nothing_pending_is_nothing_sent(here: Here) -> None:
    run_id = here.parked("asks", {"step": "double", "input": 1})
    here.take(run_id)
    assert here.client.redispatch(run_id, by="ops").sent == 0
    assert here.step(run_id).status == "completed"


def test_a_final_run_is_refused_and_an_unknown_one_not_found(here: Here) -> None:
    run_id = here.parked("asks", {"step": "double", "input": 1})
    here.client.cancel(run_id)
    with pytest.raises(NotAllowed, match="cancelled"):
        here.client.redispatch(run_id, by="ops")
    with pytest.raises(NotFound):
        here.client.redispatch(uuid4(), by="ops")


def test_it_needs_the_operators_scope(here: Here) -> None:
    run_id = here.parked("asks", {"step": "double", "input": 1})
    with pytest.raises(Forbidden):
        here.client.acting(Actor("reader", frozenset({Scope.READ}))).redispatch(run_id)


def test_a_broker_that_is_away_is_told(here: Here) -> None:
    run_id = here.parked("asks", {"step": "double", "input": 1})
    did = here.client.redispatch(run_id, by="ops")
    assert did.sent == 1
    here.publisher.away = True
    did = here.client.redispatch(run_id, by="ops")
    assert did.sent == 0
    assert "broker" in did.left[here.step(run_id).key]


# ---- a result that lands between the decision and the re-dispatch


@pytest.fixture
def first(here: Here) -> Iterator[Session]:
    session = Session(here.rows, "first")
    yield session
    session.close()


@pytest.fixture
def second(here: Here) -> Iterator[Session]:
    session = Session(here.rows, "second")
    yield session
    session.close()


COMPLETION = {"token_digest": None, "result": "42", "error": None}


@pytest.mark.parametrize(
    "again", [offering.REDISPATCH, offering.REDISPATCH_BY_HAND, ending.FAIL_TROUBLED, offering.RETRY_TROUBLED],
    ids=lambda statement: statement.name,
)  # fmt: skip
def test_a_result_that_lands_meanwhile_stands(here: Here, first: Session, second: Session, again: Statement) -> None:
    run_id = here.parked("asks", {"step": "double", "input": 1})
    here.taken_by_the_dead(run_id)
    (row,) = here.rows.database.rows(offers.TROUBLED[0], {"namespace": "default", "limit": 10})
    said = {"key": row["key"], "step_epoch": row["step_epoch"], "mine": None}
    with first.holding(ending.COMPLETE, run_id, **said, **COMPLETION) as completed:
        waiting = second.tries(again, run_id, **said, token_digest=None)
    assert len(completed) == 1
    assert waiting.result() == []
    assert (here.step(run_id).status, here.step(run_id).result) == ("completed", 42)


def test_of_a_re_dispatch_and_a_late_result_both_land_in_that_order(
    here: Here, first: Session, second: Session
) -> None:
    """The control: the second was waiting, and was not simply refused."""
    run_id = here.parked("asks", {"step": "double", "input": 1})
    here.taken_by_the_dead(run_id)
    said = {"key": here.step(run_id).key, "step_epoch": 1, "mine": None}
    with first.holding(offering.REDISPATCH, run_id, **said, token_digest=None) as moved:
        waiting = second.tries(ending.COMPLETE, run_id, **said, **COMPLETION)
    assert len(moved) == 1
    assert len(waiting.result()) == 1
    assert here.step(run_id).status == "completed"


def test_of_two_takers_one_has_it(here: Here, first: Session, second: Session) -> None:
    run_id = here.parked("asks", {"step": "double", "input": 1})
    said = {"key": here.step(run_id).key, "names": ["double"], "reconcilable": [], "effects": "{}"}
    with first.holding(TAKE, run_id, **said, token_digest="a") as taken:
        waiting = second.tries(TAKE, run_id, **said, token_digest="b")
    assert len(taken) == 1
    assert waiting.result() == []


def test_a_beat_that_lands_first_keeps_the_step(here: Here, first: Session, second: Session) -> None:
    run_id = here.parked("asks", {"step": "double", "input": 1, "timeout": 30})
    here.taken_by_the_dead(run_id)
    here.sql("UPDATE agentrun.steps SET lease_expires_at = now() + interval '1 hour', due_at = now() - interval '1 s'")
    said = {"key": here.step(run_id).key, "step_epoch": 1, "token_digest": None, "mine": None}
    with first.holding(BEAT, run_id, **said, progress=None, silent_for=0.0) as beat:
        waiting = second.tries(ending.FAIL_TROUBLED, run_id, **said)
    assert len(beat) == 1
    assert waiting.result() == []
    assert here.step(run_id).status == "started"
