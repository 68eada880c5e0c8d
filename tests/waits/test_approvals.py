"""Approvals: single-use, bound to what was read, edited only where that is permitted, and on the record."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import psycopg
import pytest

from agentrun import Client, Context, Status, durable
from agentrun.core.actors import Actor, Scope
from agentrun.core.errors import (
    AlreadyDecided,
    Forbidden,
    InvalidAnswer,
    InvalidRequest,
    NamespaceMismatch,
    NotAllowed,
    NotFound,
    WaitExpired,
)
from agentrun.runtime.kinds import Registry
from agentrun.settings import Settings
from agentrun.store.database import Database
from agentrun.testing.rows import Rows
from tests.waits.conftest import Go, Parked, Travel


@pytest.fixture(autouse=True)
def refund(client: Client) -> None:
    @durable("refund")
    async def body(ctx: Context, wishes: dict[str, Any]) -> list[Any]:
        try:
            said = await ctx.approval("refund?", payload={"amount": 50}, **wishes)
        except WaitExpired:
            return ["expired"]
        return [said.approved, said.by, said.comment, said.payload]


def test_a_decision_is_used_once_and_says_who_when_and_why(
    client: Client, parked: Parked, go: Go, travel: Travel
) -> None:
    run_id = parked("refund", {})
    (asked,) = client.waits(run_id)
    assert (asked["asks"]["question"], asked["asks"]["payload"]) == ("refund?", {"amount": 50})
    client.approve(run_id, by="ann", comment="fine", digest=asked["asks_digest"])
    with pytest.raises(AlreadyDecided):
        client.reject(run_id, by="bob")
    assert go(run_id).result == [True, "ann", "fine", {"amount": 50}]
    (wait,) = travel.waits(run_id)
    assert (wait["resolved_by"], wait["comment"]) == ("ann", "fine")
    assert wait["created_at"] <= wait["resolved_at"]
    (told,) = [event for event in client.events(run_id) if event.type == "resolved"]
    assert (told.data["by"], told.data["approved"]) == ("ann", True)
    with pytest.raises(AlreadyDecided):
        client.approve(run_id, by="bob")


def test_a_denial_is_a_result_for_the_body(client: Client, parked: Parked, go: Go) -> None:
    run_id = parked("refund", {})
    client.reject(run_id, by="ann", comment="too much")
    run = go(run_id)
    assert (run.status, run.result) == (Status.COMPLETED, [False, "ann", "too much", {"amount": 50}])


def test_of_decisions_at_the_same_time_one_wins_and_the_others_hear_of_it(
    client: Client, parked: Parked, go: Go, travel: Travel
) -> None:
    run_id = parked("refund", {})
    together = threading.Barrier(6)

    def decide(number: int) -> str:
        verb = client.approve if number % 2 else client.reject
        together.wait()
        try:
            verb(run_id, by=f"user {number}")
        except AlreadyDecided:
            return "told"
        return f"user {number}"

    with ThreadPoolExecutor(6) as pool:
        said = list(pool.map(decide, range(6)))
    assert said.count("told") == 5
    (winner,) = set(said) - {"told"}
    assert go(run_id).result[:2] == [winner in {"user 1", "user 3", "user 5"}, winner]
    assert [event.type for event in client.events(run_id)].count("resolved") == 1


def test_a_decision_on_something_else_is_refused_and_leaves_the_wait_open(
    client: Client, parked: Parked, rows: Rows
) -> None:
    run_id = parked("refund", {})
    before = rows.stored(run_id)
    with pytest.raises(AlreadyDecided, match="another digest"):
        client.approve(run_id, by="ann", digest="0" * 64)
    assert rows.stored(run_id) == before
    assert len(client.waits(run_id)) == 1


def test_edits_are_taken_only_where_the_body_permits_them_and_both_versions_are_kept(
    client: Client, parked: Parked, go: Go, travel: Travel
) -> None:
    fixed, editable = parked("refund", {}), parked("refund", {"editable": True})
    with pytest.raises(InvalidAnswer):
        client.approve(fixed, by="ann", edits={"amount": 1})
    with pytest.raises(InvalidAnswer):
        client.answers.decide(editable, approved=False, by="ann", edits={"amount": 1})
    client.approve(editable, by="ann", edits={"amount": 1})
    assert go(editable).result[3] == {"amount": 1}
    (wait,) = travel.waits(editable)
    assert '"amount": 50' in wait["asks"]
    assert '"amount":1' in wait["resolution"].replace(" ", "")
    assert client.status(fixed).status is Status.WAITING


def test_who_started_a_run_cannot_approve_it_where_four_eyes_are_asked_for(
    client: Client, parked: Parked, go: Go
) -> None:
    run_id = parked("refund", {"four_eyes": True}, owner="ann")
    with pytest.raises(Forbidden, match="somebody else"):
        client.approve(run_id, by="ann")
    with pytest.raises(Forbidden, match="somebody else"):
        client.approve(run_id, by=Actor("ann", frozenset(Scope)))
    client.approve(run_id, by="bob")
    assert go(run_id).result[:2] == [True, "bob"]
    denied = parked("refund", {"four_eyes": True}, owner="ann")
    client.reject(denied, by="ann")
    assert go(denied).result[:2] == [False, "ann"]


@pytest.mark.parametrize("wish", ["four_eyes", "editable"])
@pytest.mark.parametrize("value", ["no", 0, None])
def test_an_approval_whose_yes_or_no_is_neither_is_not_asked_for(
    client: Client, go: Go, wish: str, value: object
) -> None:
    run = go(client.enqueue("refund", {wish: value}))
    assert run.status is Status.FAILED
    assert run.error is not None
    assert run.error["message"].startswith(f"{wish} must be True or False, not {value!r}")
    assert client.waits(run.id) == []


@pytest.mark.parametrize(
    ("policy", "result"),
    [
        ({}, [False, None, "nobody decided in time", {"amount": 50}]),
        ({"on_expiry": "deny"}, [False, None, "nobody decided in time", {"amount": 50}]),
        ({"on_expiry": "fail"}, ["expired"]),
    ],
)
def test_an_approval_that_nobody_gives_ends_as_it_says(
    parked: Parked, go: Go, travel: Travel, sweep: Callable[[], Any], client: Client, policy: Any, result: Any
) -> None:
    run_id = parked("refund", {"expires": 60, **policy})
    assert sweep().answered == 0
    travel.past_due(run_id)
    assert sweep().answered == 1
    with pytest.raises(AlreadyDecided):
        client.approve(run_id, by="late")
    assert go(run_id).result == result


def test_an_approval_that_nobody_gives_is_put_to_another_role_and_then_denied(
    client: Client, parked: Parked, go: Go, travel: Travel, sweep: Callable[[], Any]
) -> None:
    run_id = parked("refund", {"expires": 60, "role": "clerk", "on_expiry": "escalate", "escalate_to": "boss"})
    travel.past_due(run_id)
    sweep()
    assert [row["run_id"] for row in client.inbox(role="boss")] == [run_id]
    assert client.inbox(role="clerk") == []
    assert client.status(run_id).status is Status.WAITING
    travel.past_due(run_id)
    sweep()
    assert go(run_id).result == [False, None, "nobody decided in time", {"amount": 50}]


def test_decisions_that_cannot_be_meant_each_have_their_own_error_and_change_nothing(
    client: Client, settings: Settings, parked: Parked, go: Go, rows: Rows
) -> None:
    waiting, ended = parked("refund", {}), parked("refund", {})
    client.cancel(ended)
    before = (rows.stored(waiting), rows.stored(ended))
    with pytest.raises(NotFound):
        client.approve("00000000-0000-7000-8000-000000000000", by="ann")
    with pytest.raises(InvalidRequest):
        client.approve("no uuid", by="ann")
    with pytest.raises(NotAllowed):
        client.approve(ended, by="ann")
    with pytest.raises(NotAllowed):
        client.submit_input(waiting, {}, by="ann")
    with pytest.raises(NotAllowed):
        client.approve(waiting, by="ann", key="no such step")
    with Client(settings=settings, namespace="other") as stranger, pytest.raises(NamespaceMismatch):
        stranger.approve(waiting, by="ann")
    assert (rows.stored(waiting), rows.stored(ended)) == before
    assert len(client.waits(waiting)) == 1


def test_one_of_several_approvals_is_named_by_its_key(client: Client, parked: Parked, go: Go, rows: Rows) -> None:
    @durable("two")
    async def two(ctx: Context) -> list[bool]:
        first, second = await ctx.gather(ctx.approval("first?"), ctx.approval("second?"))
        return [first.approved, second.approved]

    run_id = parked("two")
    with pytest.raises(InvalidRequest, match="name one by key"):
        client.approve(run_id, by="ann")
    first, second = client.waits(run_id)
    assert first["asks"]["question"] == "first?"
    client.reject(run_id, by="ann", key=second["step_key"])
    assert go(run_id).status is Status.WAITING
    client.approve(run_id, by="ann", key=first["step_key"])
    assert go(run_id).result == [True, False]


def test_a_decision_that_cannot_be_recorded_releases_nothing(
    client: Client, parked: Parked, go: Go, rows: Rows, database: Database
) -> None:
    run_id = parked("refund", {})
    with database.connection() as connection:
        connection.execute("ALTER TABLE agentrun.moves ADD CONSTRAINT disk_full CHECK (type <> 'resolved') NOT VALID")
    before = rows.stored(run_id)
    with pytest.raises(psycopg.errors.CheckViolation):
        client.approve(run_id, by="ann")
    assert rows.stored(run_id) == before
    assert len(client.waits(run_id)) == 1
    with database.connection() as connection:
        connection.execute("ALTER TABLE agentrun.moves DROP CONSTRAINT disk_full")
    client.approve(run_id, by="ann")
    assert go(run_id).result[0] is True


# ---- four eyes, by the kind


def test_a_kind_may_demand_four_eyes_of_all_its_approvals(client: Client, parked: Parked, go: Go) -> None:
    @durable("payment", four_eyes=True)
    async def payment(ctx: Context) -> list[Any]:
        first, second = await ctx.gather(ctx.approval("pay?"), ctx.approval("now?", four_eyes=False))
        return [first.by, second.by]

    run_id = parked("payment", owner="ann")
    for wait in client.waits(run_id):
        assert wait["asks"]["four_eyes"] is True
        for ann in ("ann", Actor("ann", frozenset(Scope))):
            with pytest.raises(Forbidden, match="somebody else"):
                client.approve(run_id, by=ann, key=wait["step_key"])
        client.approve(run_id, by="bob", key=wait["step_key"])
    assert go(run_id).result == ["bob", "bob"]


def test_four_eyes_that_were_demanded_hold_for_who_knows_nothing_of_the_kind(
    client: Client, settings: Settings, parked: Parked
) -> None:
    """They are part of what was asked: another process decides, and a later deployment has dropped the option."""

    @durable("payment", four_eyes=True)
    async def payment(ctx: Context) -> Any:
        return (await ctx.approval("pay?")).by

    run_id = parked("payment", owner="ann")
    with Client(settings=settings, kinds=Registry()) as elsewhere:
        with pytest.raises(Forbidden, match="somebody else"):
            elsewhere.approve(run_id, by="ann")
        assert elsewhere.reject(run_id, by="ann").status is Status.QUEUED, "it may deny"
