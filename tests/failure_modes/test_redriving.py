"""An operator's redrive after a wait ended the run: what failed is done again, what has a result by now is not."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from typing import Any
from uuid import UUID

import pytest

from agentrun import Client, Context, Effect, Fatal, Reason, Status, durable
from agentrun.runtime.engine import Engine
from agentrun.runtime.operators import Operators
from agentrun.store.claims import CLAIM_RUN
from agentrun.store.steering import REDRIVE
from agentrun.store.transitions import SETTLE
from agentrun.testing.rows import Rows
from tests.waits.conftest import Go, Parked, Travel, go, parked, travel

__all__ = ["go", "parked", "travel"]


@pytest.fixture
def tried(client: Client) -> list[int]:
    """`parent` waits for `child`, which fails at its first two tries; every try is noted."""
    tries: list[int] = []

    @durable("child")
    async def child(ctx: Context) -> int:
        tries.append(1)
        if len(tries) <= 2:
            raise Fatal("not repaired")
        return 42

    @durable("parent")
    async def parent(ctx: Context) -> Any:
        return await ctx.child("child")

    return tries


def child_of(client: Client, run_id: UUID) -> UUID:
    (child,) = client.list(parent=run_id)
    return child.id


def test_a_redriven_parent_takes_its_failed_child_along(
    client: Client, parked: Parked, go: Go, tried: list[int]
) -> None:
    run_id = parked("parent")
    child = child_of(client, run_id)
    for _ in range(2):
        assert go(child).status is Status.FAILED
        assert (go(run_id).status, client.status(run_id).reason) == (Status.FAILED, Reason.NOT_RETRYABLE)
        client.redrive(run_id)
        assert go(run_id).status is Status.WAITING
        assert client.status(child).status is Status.QUEUED
    go(child)
    assert (go(run_id).result, len(tried), len(client.list(parent=run_id))) == (42, 3, 1)


def test_a_child_that_was_repaired_by_itself_is_not_done_again_by_its_redriven_parent(
    client: Client, parked: Parked, go: Go, tried: list[int], sweep: Callable[[], Any]
) -> None:
    run_id = parked("parent")
    child = child_of(client, run_id)
    go(child)
    go(run_id)
    for status in (Status.FAILED, Status.COMPLETED):
        client.redrive(child)
        sweep()
        assert client.status(child).status is Status.QUEUED, "an orphan that an operator brought back is none"
        assert go(child).status is status
    client.redrive(run_id)
    assert (go(run_id).result, len(tried)) == (42, 3)


def test_a_child_that_a_sweep_found_just_before_its_parent_was_redriven_goes_on(
    client: Client, rows: Rows, sweep: Callable[[], Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    parent = rows.final(Status.FAILED)
    children = rows.queued(parent_id=parent), rows.running(parent_id=parent)
    end_orphan, ended = Operators.end_orphan, list[bool]()

    def late(operators: Operators, run_id: UUID, *, by: str) -> bool:
        if not ended:
            client.redrive(parent)
        ended.append(end_orphan(operators, run_id, by=by))
        return ended[-1]

    monkeypatch.setattr(Operators, "end_orphan", late)
    sweep()
    assert ended == [False, False]
    assert [client.status(child).status for child in children] == [Status.QUEUED, Status.RUNNING]
    assert not any(client.status(child).cancel_requested_at for child in children)


def test_what_a_redriven_run_asked_may_be_answered_for_as_long_as_at_first_and_its_timer_ends_when_it_would_have(
    rows: Rows, travel: Travel
) -> None:
    """Twice: no redrive makes the time longer."""
    run_id = rows.final(Status.FAILED)
    for key in ("approval", "timer"):
        rows.wait(run_id, key, kind=key, status="closed", resolved_at="now")
    travel("UPDATE agentrun.waits SET created_at = now() - interval '3 h', due_at = now() - interval '2 h'"
           " WHERE run_id = %s", run_id)  # fmt: skip
    before = {row["step_key"]: row for row in travel.waits(run_id)}
    for _ in range(2):
        assert rows.do(REDRIVE, run_id)
        after = {row["step_key"]: row for row in travel.waits(run_id)}
        assert after["timer"]["due_at"] == before["timer"]["due_at"]
        assert after["approval"]["due_at"] - after["approval"]["created_at"] == timedelta(hours=1)
        assert after["approval"]["created_at"] > before["approval"]["due_at"]
        travel("UPDATE agentrun.waits SET status = 'closed', resolved_at = now() WHERE run_id = %s", run_id)
        travel("UPDATE agentrun.runs SET status = 'failed', reason = 'not_retryable', finished_at = now(),"
               " due_at = NULL WHERE id = %s", run_id)  # fmt: skip


def test_a_redriven_run_forgets_who_asked_to_cancel_it(client: Client, rows: Rows) -> None:
    run_id = rows.final(Status.FAILED, cancel_requested_by="alice")
    client.redrive(run_id)
    assert rows.row(run_id)["cancel_requested_by"] is None


def test_a_parent_that_is_redriven_while_its_child_is_at_it_again_waits_for_it(
    client: Client, parked: Parked, go: Go, tried: list[int]
) -> None:
    tried.append(0)
    run_id = parked("parent")
    child = child_of(client, run_id)
    go(child)
    go(run_id)
    client.redrive(child)
    client.redrive(run_id)
    assert go(run_id).status is Status.WAITING
    assert client.status(child).status is Status.QUEUED
    go(child)
    assert (go(run_id).result, len(tried)) == (42, 3)


def test_a_child_that_went_on_as_a_fresh_run_after_its_parents_failure_answers_with_that(
    client: Client, parked: Parked, go: Go, travel: Travel, engine: Engine
) -> None:
    """Of the links of a chain only the last one has a result: the others ended with none."""

    @durable("chain")
    async def chain(ctx: Context, left: int) -> str:
        await ctx.signal("go")
        if left:
            ctx.continue_as_new(left - 1)
        return "the result"

    @durable("impatient")
    async def impatient(ctx: Context) -> Any:
        return await ctx.gather(ctx.child("chain", 1), ctx.signal("soon", timeout=60), on_failure="fail_fast")

    run_id = parked("impatient")
    first = child_of(client, run_id)
    go(first)
    client.signal(first, "go")
    travel.past_due(run_id)
    engine.end_due_waits(run_id)
    assert go(run_id).status is Status.FAILED
    assert go(first).status is Status.COMPLETED
    client.redrive(run_id)
    client.signal(run_id, "soon", "signalled")
    assert go(run_id).status is Status.WAITING
    last = next(run.id for run in client.list(parent=run_id) if not run.status.final)
    go(last)
    client.signal(last, "go")
    go(last)
    assert go(run_id).result == ["the result", "signalled"]


def test_a_child_that_was_repaired_by_itself_and_went_on_as_a_fresh_run_answers_with_that(
    client: Client, parked: Parked, go: Go
) -> None:
    tries: list[int] = []

    @durable("chain")
    async def chain(ctx: Context, left: int) -> str:
        tries.append(left)
        if len(tries) == 1:
            raise Fatal("not repaired")
        if left:
            ctx.continue_as_new(left - 1)
        return "the result"

    @durable("one-chain")
    async def one_chain(ctx: Context) -> Any:
        return await ctx.child("chain", 1)

    run_id = parked("one-chain")
    first = child_of(client, run_id)
    go(first)
    assert go(run_id).status is Status.FAILED
    client.redrive(first)
    assert go(first).status is Status.COMPLETED
    client.redrive(run_id)
    assert go(run_id).status is Status.WAITING
    go(next(run.id for run in client.list(parent=run_id) if not run.status.final))
    assert (go(run_id).result, tries) == ("the result", [1, 1, 0])


@pytest.fixture
def hasty(client: Client, tried: list[int]) -> None:
    """`hasty-parent` fails as soon as one of its two children has."""
    tried.append(0)

    @durable("patient")
    async def patient(ctx: Context) -> Any:
        return await ctx.signal("go")

    @durable("hasty-parent")
    async def hasty(ctx: Context) -> Any:
        return await ctx.gather(ctx.child("child"), ctx.child("patient"), on_failure="fail_fast")


@pytest.mark.usefixtures("hasty")
def test_a_child_that_is_asked_to_end_when_its_parent_is_redriven_has_a_successor(
    client: Client, parked: Parked, go: Go, sweep: Callable[[], Any], rows: Rows
) -> None:
    """It was in the middle of a step, and ends after it: what it comes to is no answer to the parent."""
    run_id = parked("hasty-parent")
    children = {run.kind: run.id for run in client.list(parent=run_id)}
    assert rows.do(CLAIM_RUN, children["patient"], kinds=["patient"])
    go(children["child"])
    assert go(run_id).status is Status.FAILED
    sweep()
    assert client.status(children["patient"]).cancel_requested_at is not None
    client.redrive(run_id)
    assert go(run_id).status is Status.WAITING
    assert rows.do(SETTLE[Status.CANCELLED], children["patient"], reason="cancelled")
    assert go(run_id).status is Status.WAITING, client.status(run_id).error
    assert [run.status for run in client.list(parent=run_id, kind="patient")] == [Status.QUEUED, Status.CANCELLED]


@pytest.mark.usefixtures("hasty")
def test_a_child_that_was_cancelled_with_its_siblings_failure_has_a_successor(
    client: Client, parked: Parked, go: Go, tried: list[int], sweep: Callable[[], Any]
) -> None:
    """Nobody would have read what it finds; whoever redrives the parent wants to."""
    run_id = parked("hasty-parent")
    children = {run.kind: run.id for run in client.list(parent=run_id)}
    go(children["patient"])
    go(children["child"])
    assert go(run_id).status is Status.FAILED
    sweep()
    assert client.status(children["patient"]).status is Status.CANCELLED
    client.redrive(run_id)
    sweep()
    assert go(run_id).status is Status.WAITING
    (successor,) = [run.id for run in client.list(parent=run_id, kind="patient") if run.status is Status.QUEUED]
    go(children["child"])
    go(successor)
    client.signal(successor, "go", 7)
    go(successor)
    assert (go(run_id).result, len(tried), len(client.list(parent=run_id))) == ([42, 7], 3, 3)


def test_a_child_that_cannot_go_on_ends_its_redriven_parent_once_more_until_it_is_resolved(
    client: Client, parked: Parked, go: Go, sweep: Callable[[], Any]
) -> None:
    async def charge() -> int:
        raise RuntimeError("in the middle")

    @durable("charging")
    async def charging(ctx: Context) -> int:
        return await ctx.write(charge, effect=Effect.NON_IDEMPOTENT_WRITE)

    @durable("parent-of-charging")
    async def parent(ctx: Context) -> int:
        return await ctx.child("charging")

    run_id = parked("parent-of-charging")
    child = child_of(client, run_id)
    go(child)
    go(run_id)
    client.redrive(run_id)
    run = go(run_id)
    assert run.error is not None
    assert (run.status, run.error["message"]) == (Status.FAILED, f"child `{child}` is failed (not_retryable)")
    client.resolve(child, applied=True, result=7)
    sweep()
    go(child)
    client.redrive(run_id)
    assert go(run_id).result == 7


def test_what_nobody_answered_in_time_is_asked_anew_by_a_redriven_run(
    client: Client, parked: Parked, go: Go, sweep: Callable[[], Any], travel: Travel, rows: Rows
) -> None:
    @durable("asks")
    async def asks(ctx: Context) -> Any:
        return (await ctx.approval("go on?", expires=3600, on_expiry="fail")).by

    run_id = parked("asks")
    for _ in range(2):
        travel.past_due(run_id)
        sweep()
        assert go(run_id).status is Status.FAILED
        client.redrive(run_id)
        assert go(run_id).status is Status.WAITING
        sweep()
        assert client.status(run_id).status is Status.WAITING, "it has its hour again"
    client.approve(run_id, by="ann")
    assert go(run_id).result == "ann"


def test_what_was_answered_is_not_asked_again(client: Client, parked: Parked, go: Go) -> None:
    """A failure that the body caught stays recorded, and so does every answer."""
    broken = [True]

    @durable("goes-on")
    async def goes_on(ctx: Context) -> Any:
        said = await ctx.approval("go on?")
        if broken[0]:
            raise Fatal("later")
        return said.by

    run_id = parked("goes-on")
    client.approve(run_id, by="ann")
    assert go(run_id).status is Status.FAILED
    broken.clear()
    broken.append(False)
    client.redrive(run_id)
    assert go(run_id).result == "ann"


def test_a_webhook_that_expired_has_its_time_again_under_the_same_token(
    client: Client, parked: Parked, go: Go, sweep: Callable[[], Any], travel: Travel
) -> None:
    tokens: list[str] = []

    @durable("hooked")
    async def hooked(ctx: Context) -> Any:
        hook = await ctx.webhook(expires=3600)
        tokens.append(hook.token)
        return await hook.wait()

    run_id = parked("hooked")
    travel("UPDATE agentrun.waits SET created_at = created_at - interval '2 h' WHERE run_id = %s", run_id)
    travel("UPDATE agentrun.waits SET due_at = due_at - interval '2 h' WHERE run_id = %s", run_id)
    travel("UPDATE agentrun.runs SET due_at = now() WHERE id = %s", run_id)
    sweep()
    assert go(run_id).status is Status.FAILED
    client.redrive(run_id)
    assert go(run_id).status is Status.WAITING
    (wait,) = travel.waits(run_id)
    assert round((wait["due_at"] - wait["created_at"]).total_seconds()) == 3600
    client.webhook(tokens[0], "here")
    assert (go(run_id).result, len(set(tokens))) == ("here", 1)
