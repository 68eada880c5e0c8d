"""Going on in the caller's own process: a segment as any other, with lease, retry, and somebody who takes it over."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

from agentrun import Client, Context, Retryable, RunFailed, Status, durable
from agentrun.core.errors import AlreadyDecided, NotAllowed, NotFound, UnknownKind
from agentrun.core.words import Segment
from agentrun.runtime.kinds import Registry
from agentrun.runtime.segment import run_segment
from agentrun.settings import Settings
from agentrun.store import claims
from agentrun.testing import RecordingPublisher, until
from agentrun.testing.rows import Rows
from tests.waits.conftest import Go, Parked


@pytest.fixture
def seen(client: Client) -> list[dict[str, Any]]:
    """The row of each run while it executes after its approval."""
    found: list[dict[str, Any]] = []

    @durable("ask")
    async def ask(ctx: Context) -> str:
        said = await ctx.approval("sure?")
        run = await asyncio.to_thread(client.status, ctx.run_id)
        found.append({"by": run.claimed_by, "lease": run.lease_expires_at, "status": run.status})
        return f"{said.by} said {said.approved}"

    return found


def test_an_approval_with_here_goes_on_in_this_process_under_a_lease(
    client: Client, parked: Parked, seen: list[dict[str, Any]]
) -> None:
    run_id = parked("ask")
    run = client.approve(run_id, by="ann", here=True)
    assert (run.status, run.result) == (Status.COMPLETED, "ann said True")
    (during,) = seen
    assert during["status"] is Status.RUNNING
    assert during["by"].startswith("resume:")
    assert during["lease"] is not None


def test_a_rejection_and_data_may_go_on_here_too(client: Client, parked: Parked, seen: Any) -> None:
    @durable("number")
    async def number(ctx: Context) -> int:
        return 2 * await ctx.input("n?", schema={"type": "integer"})

    assert client.reject(parked("ask"), by="ann", here=True).result == "ann said False"
    assert client.submit_input(parked("number"), 21, by="ann", here=True).result == 42


def test_a_run_that_asks_again_waits_again(client: Client, parked: Parked) -> None:
    @durable("twice")
    async def twice(ctx: Context) -> str:
        await ctx.approval("first?")
        await ctx.approval("second?")
        return "both"

    run_id = parked("twice")
    assert client.approve(run_id, by="ann", here=True).status is Status.WAITING
    assert client.approve(run_id, by="ann", here=True).result == "both"


def test_a_failure_here_is_retried_by_workers_as_any_other(client: Client, parked: Parked, go: Go) -> None:
    fails = [True]

    @durable("fragile")
    async def fragile(ctx: Context) -> str:
        await ctx.approval("sure?")
        if fails:
            fails.clear()
            raise Retryable("once")
        return "fine"

    run_id = parked("fragile")
    run = client.approve(run_id, by="ann", here=True)
    assert (run.status, run.requeue_count) == (Status.QUEUED, 1)
    assert go(run_id).result == "fine"


def test_a_resume_that_dies_is_taken_over_from_the_journal(
    client: Client,
    parked: Parked,
    go: Go,
    rows: Rows,
    sweep: Callable[[], Any],
    publisher: RecordingPublisher,
    make_engine: Callable[..., Any],
) -> None:
    done: list[str] = []
    stuck = [True]

    async def once() -> str:
        done.append("once")
        return "done"

    @durable("long")
    async def long(ctx: Context) -> str:
        said = await ctx.approval("sure?")
        await ctx.step(once)
        if stuck:
            await asyncio.sleep(3600)
        return f"{said.by} after all"

    run_id = parked("long")
    client.approve(run_id, by="ann")
    dying = make_engine()
    resumed = dying.submit(run_segment(dying, run_id, Segment.RESUME))
    until(lambda: done == ["once"] and [step.name for step in client.steps(run_id) if step.name.endswith("once")])
    assert client.status(run_id).claimed_by.startswith("resume:")
    stuck.clear()
    dying.close()
    rows.expire_lease(run_id)
    assert sweep().requeued == 1
    assert publisher.causes(run_id)[-1] == "reap"
    assert go(run_id).result == "ann after all"
    assert done == ["once"]
    resumed.cancel()


def test_only_a_queued_run_can_go_on_here(client: Client, parked: Parked, go: Go, seen: Any) -> None:
    run_id = parked("ask")
    with pytest.raises(NotAllowed, match="waiting"):
        client.resume(run_id)
    client.approve(run_id, by="ann")
    assert client.resume(run_id).status is Status.COMPLETED
    with pytest.raises(NotAllowed, match="completed"):
        client.resume(run_id)
    with pytest.raises(NotFound):
        client.resume("00000000-0000-7000-8000-000000000000")


def test_a_run_here_and_now_that_waits_is_left_to_workers_and_says_so(
    client: Client, go: Go, seen: list[dict[str, Any]]
) -> None:
    with pytest.raises(RunFailed) as left:
        client.run("ask")
    assert "waiting" in str(left.value)
    (run,) = client.list(kind="ask")
    assert str(run.id) in str(left.value)
    assert run.status is Status.WAITING
    client.approve(run.id, by="ann")
    assert go(run.id).result == "ann said True"


def test_a_plain_function_cannot_wait_since_nobody_else_could_go_on_with_it(client: Client) -> None:
    async def plain(ctx: Context) -> Any:
        return await ctx.signal("go")

    with pytest.raises(RunFailed, match="register it"):
        client.run(plain)
    (run,) = client.list()
    assert run.status is Status.FAILED
    assert client.waits(run.id) == []


def test_a_plain_function_may_wait_for_what_is_there_already(client: Client) -> None:
    async def plain(ctx: Context) -> str:
        await ctx.sleep(0.01)
        return "rested"

    assert client.run(plain) == "rested"


def test_a_decision_that_cannot_go_on_here_is_refused_before_it_is_recorded(
    client: Client, settings: Settings, parked: Parked, rows: Rows, seen: Any
) -> None:
    run_id = parked("ask")
    before = rows.stored(run_id)
    with Client(settings=settings, kinds=Registry()) as stranger, pytest.raises(UnknownKind, match="ask"):
        stranger.approve(run_id, by="ann", here=True)
    assert rows.stored(run_id) == before
    assert len(client.waits(run_id)) == 1


def test_a_decision_whose_run_somebody_else_has_taken_is_kept_and_the_run_returned_as_it_is(
    client: Client, parked: Parked, rows: Rows, seen: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    run_id = parked("ask")
    go_on = client._segment_here  # pyright: ignore[reportPrivateUsage]

    def taken_first(run_id: Any) -> Any:
        assert rows.do(claims.CLAIM_RUN, run_id, kinds=["ask"])
        return go_on(run_id)

    monkeypatch.setattr(client, "_segment_here", taken_first)
    run = client.approve(run_id, by="ann", here=True)
    assert run.status is Status.RUNNING
    with pytest.raises(AlreadyDecided):
        client.approve(run_id, by="bob")
