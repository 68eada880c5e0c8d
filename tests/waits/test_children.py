"""Children: results in order, bounded, and every way in which one can end reaches the parent."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from datetime import timedelta
from typing import Any
from uuid import UUID

import pytest

from agentrun import Client, Context, Fatal, Reason, Status, durable
from agentrun.core.errors import StepFailed
from agentrun.runtime.engine import Engine
from agentrun.store import claims, steering
from agentrun.testing import RecordingPublisher
from agentrun.testing.rows import Rows
from tests.waits.conftest import Go, Parked


@pytest.fixture(autouse=True)
def family(client: Client) -> None:
    @durable("child")
    async def child(ctx: Context, value: int) -> int:
        if value < 0:
            raise Fatal("no negatives")
        return value * 10

    @durable("waiter")
    async def waiter(ctx: Context) -> Any:
        return await ctx.signal("go")

    @durable("all")
    async def all_(ctx: Context, values: list[int], limit: int | None = None, on_failure: Any = "wait_all") -> Any:
        branches = [ctx.child("child", value) for value in values]
        try:
            return await ctx.gather(*branches, limit=limit, on_failure=on_failure)
        except StepFailed as error:
            return f"failed: {error.message}"

    @durable("of-one")
    async def of_one(ctx: Context, kind: str, request: Any = None) -> Any:
        try:
            return await ctx.child(kind, request)
        except StepFailed as error:
            return f"failed: {error.message}"


Children = Callable[[UUID], list[UUID]]


@pytest.fixture
def living(client: Client) -> Children:
    """The children that have not ended. Born in one commit they are of one age: their order says nothing."""
    return lambda run_id: [run.id for run in reversed(client.list(parent=run_id)) if not run.status.final]


def _asked(client: Client, run_id: UUID, request: int) -> UUID:
    (child,) = [run.id for run in client.list(parent=run_id) if run.request == request]
    return child


def test_results_come_in_the_order_of_the_calls_whatever_ends_first(
    client: Client, parked: Parked, go: Go, living: Children, publisher: RecordingPublisher
) -> None:
    run_id = parked("all", {"values": [3, 1, 2]})
    children = living(run_id)
    for child in reversed(children):
        assert client.status(run_id).status in (Status.WAITING, Status.QUEUED)
        go(child)
    assert publisher.causes(run_id).count("child") >= 1
    assert go(run_id).result == [30, 10, 20]
    assert [run.owner for run in client.list(parent=run_id)] == [None] * 3


def test_attributes_that_cannot_be_stored_are_refused_before_the_child_is_born(client: Client, go: Go) -> None:
    @durable("attributes")
    async def attributes(ctx: Context) -> Any:
        return await ctx.child("child", 1, attributes={"text": "\0"})

    run = go(client.enqueue("attributes"))
    assert run.error is not None
    assert run.error["type"] == "agentrun.core.errors.InvalidRequest"
    assert "attributes cannot be stored" in run.error["message"]
    assert client.list(parent=run.id) == []


def test_children_are_the_owners_own(client: Client, parked: Parked) -> None:
    run_id = parked("all", {"values": [1]}, owner="ann")
    assert [run.owner for run in client.list(parent=run_id)] == ["ann"]


def test_never_more_children_are_alive_than_the_bound(client: Client, parked: Parked, go: Go, living: Children) -> None:
    run_id = client.enqueue("all", {"values": list(range(7)), "limit": 3})
    most = 0
    for _ in range(20):
        if go(run_id).status.final:
            break
        alive = living(run_id)
        most = max(most, len(alive))
        go(alive[-1])
    assert most == 3
    assert client.status(run_id).result == [value * 10 for value in range(7)]


def test_with_wait_all_the_others_end_before_the_failure_is_raised(
    client: Client, parked: Parked, go: Go, living: Children
) -> None:
    run_id = parked("all", {"values": [1, -1, 2]})
    first, bad, last = (_asked(client, run_id, value) for value in (1, -1, 2))
    go(bad)
    assert go(run_id).status is Status.WAITING
    go(first)
    assert go(run_id).status is Status.WAITING
    go(last)
    assert go(run_id).result.startswith("failed: child")


def test_with_fail_fast_the_first_failure_is_raised_at_once(
    client: Client, parked: Parked, go: Go, living: Children
) -> None:
    run_id = parked("all", {"values": [1, -1, 2], "on_failure": "fail_fast"})
    go(_asked(client, run_id, -1))

    assert go(run_id).result.startswith("failed: child")


def _cancelled(client: Client, go: Go, rows: Rows, engine: Engine, sweep: Any, child: UUID) -> str:
    client.cancel(child)
    return "is cancelled (cancelled)"


def _failed(client: Client, go: Go, rows: Rows, engine: Engine, sweep: Any, child: UUID) -> str:
    rows.make_due(child)
    go(child)
    return "is failed (not_retryable)"


def _dead(client: Client, go: Go, rows: Rows, engine: Engine, sweep: Any, child: UUID) -> str:
    """Its worker dies, and it has no more tries."""
    with rows.database.connection() as connection:
        connection.execute("UPDATE agentrun.runs SET max_requeues = 0 WHERE id = %s", [child])
    assert rows.do(claims.CLAIM_RUN, child, kinds=["child"])
    rows.expire_lease(child)
    sweep()
    return "is failed (retries_exhausted)"


def _late(client: Client, go: Go, rows: Rows, engine: Engine, sweep: Any, child: UUID) -> str:
    with rows.database.connection() as connection:
        connection.execute("UPDATE agentrun.runs SET deadline_at = now() - interval '1 s' WHERE id = %s", [child])
    sweep()
    return "is failed (deadline_exceeded)"


@pytest.mark.parametrize("ends", [_cancelled, _failed, _dead, _late], ids=lambda end: end.__name__)
def test_the_parent_hears_of_every_end_of_its_child(
    client: Client,
    parked: Parked,
    go: Go,
    rows: Rows,
    engine: Engine,
    sweep: Callable[[], Any],
    living: Children,
    publisher: RecordingPublisher,
    ends: Callable[..., str],
) -> None:
    run_id = parked("of-one", {"kind": "child", "request": -1})
    (child,) = living(run_id)
    said = ends(client, go, rows, engine, sweep, child)
    assert client.status(run_id).status is Status.QUEUED, "resolved by the settling itself"
    assert go(run_id).result == f"failed: child `{child}` {said}"


def test_a_cancel_goes_down_the_tree(
    client: Client, parked: Parked, go: Go, living: Children, sweep: Callable[[], Any]
) -> None:
    top = parked("of-one", {"kind": "of-one", "request": {"kind": "waiter"}})
    (middle,) = living(top)
    go(middle)
    (bottom,) = living(middle)
    go(bottom)
    client.cancel(top, by="ann")
    assert [client.status(each).status for each in (top, middle, bottom)] == [Status.CANCELLED] * 3


def test_the_sweep_cancels_what_a_dead_parent_leaves(
    client: Client, parked: Parked, go: Go, living: Children, sweep: Callable[[], Any], rows: Rows
) -> None:
    """The canceller died between the parent's end and its children's."""
    run_id = parked("of-one", {"kind": "waiter"})
    (child,) = living(run_id)
    assert rows.do(steering.CANCEL, run_id)
    assert client.status(child).status is Status.QUEUED
    sweep()
    assert client.status(child).status is Status.CANCELLED


def test_a_lost_notification_is_made_good_by_the_sweep(
    client: Client, parked: Parked, go: Go, living: Children, sweep: Callable[[], Any], rows: Rows
) -> None:
    run_id = parked("of-one", {"kind": "child", "request": 4})
    (child,) = living(run_id)
    with rows.database.connection() as connection:
        connection.execute("UPDATE agentrun.waits SET child_id = NULL WHERE run_id = %s", [run_id])
    go(child)
    with rows.database.connection() as connection:
        connection.execute("UPDATE agentrun.waits SET child_id = %s WHERE run_id = %s", [child, run_id])
    assert client.status(run_id).status is Status.WAITING
    assert sweep().answered == 1
    assert go(run_id).result == 40


def test_a_request_that_does_not_fit_is_refused_before_anything_is_stored(client: Client, go: Go) -> None:
    run_id = client.enqueue("of-one", {"kind": "child", "request": "no number"})
    run = go(run_id)
    assert (run.status, run.reason) == (Status.FAILED, Reason.NOT_RETRYABLE)
    assert client.list(parent=run_id) == []


def test_a_child_of_a_kind_that_nobody_knows_waits_for_one_who_does_until_it_is_cancelled(
    client: Client, parked: Parked, go: Go, living: Children, engine: Engine, rows: Rows
) -> None:
    """Its workers may be elsewhere: it is no error of the parent, and its cancellation is heard of."""
    run_id = parked("of-one", {"kind": "nobody's"})
    (child,) = living(run_id)
    assert engine.run(child).outcome == "elsewhere"
    client.cancel(child)
    assert "cancelled" in go(run_id).result


def test_a_child_that_is_started_is_waited_for_later_or_never(client: Client, go: Go, living: Children) -> None:
    @durable("spawns")
    async def spawns(ctx: Context) -> Any:
        first = await ctx.spawn("child", 1)
        await ctx.spawn("child", 2)
        before = await ctx.now()
        assert before
        return await first.result()

    run_id = client.enqueue("spawns")
    assert go(run_id).status is Status.WAITING
    first, other = _asked(client, run_id, 1), _asked(client, run_id, 2)
    go(first)
    run = go(run_id)
    assert (run.status, run.result) == (Status.COMPLETED, 10)
    assert go(other).result == 20, "a completed parent leaves its children alone"


def test_a_child_that_ended_before_anybody_waited_for_it_is_heard_of(client: Client, go: Go) -> None:
    @durable("spawns-and-waits")
    async def spawns(ctx: Context) -> Any:
        child = await ctx.spawn("child", 1)
        await ctx.signal("go")
        return await child.result()

    run_id = client.enqueue("spawns-and-waits")
    go(run_id)
    (child,) = client.list(parent=run_id)
    go(child.id)
    go(run_id)
    client.signal(run_id, "go")
    assert go(run_id).result == 10


def test_a_continuation_answers_for_the_child_that_it_continues(client: Client, parked: Parked, go: Go) -> None:
    @durable("chain")
    async def chain(ctx: Context, left: int) -> str:
        if left:
            ctx.continue_as_new(left - 1)
        return "the end"

    run_id = parked("of-one", {"kind": "chain", "request": 2})
    for _ in range(3):
        assert client.status(run_id).status is Status.WAITING
        (link,) = client.list(parent=run_id, status="queued")
        go(link.id)
    assert go(run_id).result == "the end"
    assert len(client.list(parent=run_id)) == 3


def test_a_cancel_reaches_the_continuation_of_a_child(
    client: Client, parked: Parked, go: Go, sweep: Callable[[], Any]
) -> None:
    @durable("chain-waits")
    async def chain(ctx: Context, left: int) -> Any:
        if left:
            ctx.continue_as_new(left - 1)
        return await ctx.signal("go")

    run_id = parked("of-one", {"kind": "chain-waits", "request": 1})
    (link,) = client.list(parent=run_id, status="queued")
    go(link.id)
    (link,) = client.list(parent=run_id, status="queued")
    go(link.id)
    client.cancel(run_id)
    assert client.status(link.id).status is Status.CANCELLED


def test_a_continuation_has_a_deadline_as_its_kind_says(client: Client, go: Go) -> None:
    @durable("hour", timeout=timedelta(hours=1))
    async def hour(ctx: Context, left: int) -> int:
        if left:
            ctx.continue_as_new(left - 1)
        return left

    first = client.enqueue("hour", 1)
    go(first)
    (second,) = client.list(kind="hour", status="queued")
    assert second.deadline_at is not None


def test_nested_gathers_give_nested_results(client: Client, go: Go, living: Children) -> None:
    @durable("nested")
    async def nested(ctx: Context) -> Any:
        def pair(left: int, right: int) -> Any:
            return ctx.gather(ctx.child("child", left), ctx.child("child", right))

        return await ctx.gather(pair(1, 2), pair(3, 4))

    run_id = client.enqueue("nested")
    for _ in range(10):
        if go(run_id).status.final:
            break
        for child in living(run_id):
            go(child)
    assert client.status(run_id).result == [[10, 20], [30, 40]]


def test_a_gather_of_nothing_is_nothing(client: Client, go: Go) -> None:
    run_id = client.enqueue("all", {"values": []})
    assert go(run_id).result == []


def test_branches_that_still_work_finish_before_the_run_parks(client: Client, go: Go) -> None:
    done: list[str] = []

    async def slow(name: str) -> str:
        await asyncio.sleep(0.2)
        done.append(name)
        return name

    @durable("mixed-branches")
    async def mixed(ctx: Context) -> Any:
        async def two() -> str:
            await ctx.step(slow, "first")
            return await ctx.step(slow, "second")

        return await ctx.gather(ctx.signal("go"), two(), ctx.child("child", 1))

    run_id = client.enqueue("mixed-branches")
    assert go(run_id).status is Status.WAITING
    assert done == ["first", "second"]
    (child,) = client.list(parent=run_id)
    go(child.id)
    assert go(run_id).status is Status.WAITING
    client.signal(run_id, "go", "now")
    assert go(run_id).result == ["now", "second", 10]
    assert done == ["first", "second"]
