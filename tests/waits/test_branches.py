"""Branches that wait side by side: what one gather leaves is no other's, however they are nested."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from agentrun import Client, Context, Status, durable
from agentrun.core.errors import StepFailed
from tests.waits.conftest import Go


async def _fails() -> None:
    await asyncio.sleep(0.05)
    raise ValueError("on purpose")


async def _left(ctx: Context, name: str) -> str:
    """A gather that fails over a branch that waits."""
    try:
        await ctx.gather(ctx.signal(name), ctx.step(_fails), on_failure="fail_fast")
    except StepFailed:
        return "failed"
    raise AssertionError


def test_a_gather_that_fails_fast_leaves_its_own_branches_and_no_others(client: Client, go: Go) -> None:
    """The body gathers by asyncio itself: the other branch's Parked is among its results, and its wait stays."""

    @durable("siblings")
    async def siblings(ctx: Context) -> Any:
        return await asyncio.gather(_left(ctx, "a"), ctx.signal("b"), return_exceptions=True)

    run_id = client.enqueue("siblings")
    run = go(run_id)
    assert (run.status, run.waiting_on) == (Status.WAITING, "signal:b"), run.error
    client.signal(run_id, "b", 2)
    assert go(run_id).result == ["failed", 2]


def test_of_gathers_side_by_side_the_failed_one_does_not_complete_the_run(client: Client, go: Go) -> None:
    @durable("side-by-side")
    async def side_by_side(ctx: Context) -> Any:
        waiting = ctx.gather(ctx.signal("b"), ctx.signal("c"))
        return await asyncio.gather(waiting, _left(ctx, "a"), return_exceptions=True)

    run_id = client.enqueue("side-by-side")
    run = go(run_id)
    assert (run.status, run.waiting_on) == (Status.WAITING, "signal:b + signal:c"), run.error
    for name in ("b", "c"):
        client.signal(run_id, name, name)
    assert go(run_id).result == [["b", "c"], "failed"]


def test_what_a_gather_inside_another_left_the_outer_one_does_not_wait_for(client: Client, go: Go) -> None:
    @durable("nested")
    async def nested(ctx: Context) -> list[Any]:
        return await ctx.gather(_left(ctx, "a"), ctx.gather(ctx.signal("a"), ctx.signal("b")))

    run_id = client.enqueue("nested")
    run = go(run_id)
    assert (run.status, run.waiting_on) == (Status.WAITING, "signal:a + signal:b"), run.error
    for name in ("a", "b"):
        client.signal(run_id, name, name)
    assert go(run_id).result[0] == "failed"


@pytest.mark.parametrize("outer", ["wait_all", "fail_fast"])
def test_an_outer_gather_that_fails_leaves_what_inner_ones_wait_for(client: Client, go: Go, outer: Any) -> None:
    """With wait_all it cannot: a branch that waits comes before the failure."""

    @durable("outer")
    async def body(ctx: Context) -> str:
        inner = ctx.gather(ctx.signal("a"), ctx.gather(ctx.signal("b"), ctx.signal("c")))
        try:
            await ctx.gather(inner, ctx.step(_fails), on_failure=outer)
        except StepFailed:
            return "failed"
        raise AssertionError

    run = go(client.enqueue("outer"))
    assert run.status is (Status.COMPLETED if outer == "fail_fast" else Status.WAITING), run.error
