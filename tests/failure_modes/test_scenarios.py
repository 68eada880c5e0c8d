"""Scenarios of docs/reference/failure-modes.md that no other test shows, inside this process."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import pytest

from agentrun import Client, Context, Effect, Status, durable, remote_step
from agentrun.runtime.engine import Engine
from agentrun.runtime.segment import run_segment
from agentrun.settings import Settings
from agentrun.testing import RecordingPublisher
from agentrun.testing.crash import Crash
from tests.waits.conftest import Go, Parked, go, parked

__all__ = ["go", "parked"]


def test_a_producer_that_knows_the_kind_executes_nothing(client: Client) -> None:
    """2.1.1, and symptom B: a web process that enqueues stays as quick as it was."""
    done: list[int] = []

    @durable("elsewhere")
    async def elsewhere(ctx: Context) -> None:
        done.append(1)

    run_id = client.enqueue("elsewhere")
    client.enqueue_many("elsewhere", [None] * 3)
    with pytest.raises(TimeoutError):
        client.wait(run_id, timeout=0.2)
    assert (done, client.status(run_id).status, client.status(run_id).epoch) == ([], Status.QUEUED, 0)


def test_a_segment_that_dies_between_offering_a_step_and_parking_loses_neither_step_nor_result(
    client: Client, engine: Engine, crash: Crash, go: Go
) -> None:
    """2.2.9: a process that executed the run has died, and that is counted. The step knows nothing of it."""
    done: list[int] = []

    @remote_step("far", effect=Effect.NON_IDEMPOTENT_WRITE)
    async def far() -> str:
        done.append(1)
        return "done"

    @durable("asks-far")
    async def asks(ctx: Context) -> Any:
        return await ctx.remote("far")

    run_id = client.enqueue("asks-far")
    assert crash.at(2, run_id), "the claim, then the offer"
    (step,) = client.steps(run_id)
    assert (client.status(run_id).status, step.status) == (Status.QUEUED, "offered")
    assert engine.run_step(run_id, step.key).outcome == "completed"
    run = go(run_id)
    assert (run.result, run.crash_count, len(done)) == ("done", 1, 1)


@pytest.mark.settings(max_requeues=0)
def test_a_parked_run_outlives_more_deaths_of_its_processes_than_its_budget_has(
    client: Client, make_engine: Callable[..., Engine], sweep: Callable[[], Any]
) -> None:
    """2.2.9: with a step pending there is no lease that could lapse, so there is nothing to count."""

    @remote_step("later", effect=Effect.READ_ONLY)
    async def later() -> int:
        return 1

    @durable("waits-for-later")
    async def waits(ctx: Context) -> Any:
        return await ctx.remote("later")

    run_id = client.enqueue("waits-for-later")
    first = make_engine()
    first.run(run_id)
    first.close()
    for _ in range(5):
        sweep()
    run = client.status(run_id)
    assert (run.status, run.lease_expires_at, run.crash_count, run.requeue_count) == (Status.WAITING, None, 0, 0)
    other = make_engine()
    (step,) = client.steps(run_id)
    assert other.run_step(run_id, step.key).outcome == "completed"
    assert other.run(run_id).outcome == "completed"


def test_a_drain_ends_a_chain_of_continuations_at_its_next_link(
    client: Client, make_engine: Callable[..., Engine], publisher: RecordingPublisher
) -> None:
    """2.10.7, and symptom Q: each link is a run of its own, so a hot chain keeps no process from ending."""

    @durable("endless")
    async def endless(ctx: Context, link: int) -> None:
        await ctx.now()
        ctx.continue_as_new(link + 1)

    engine = make_engine()
    run_id = client.enqueue("endless", 0)
    assert engine.run(run_id).outcome == "completed"
    (successor,) = client.list(kind="endless", status="queued")
    engine.drain()
    began = time.monotonic()
    assert engine.idle(5)
    assert time.monotonic() - began < 1
    assert engine.run(successor.id).outcome not in ("completed", "failed")
    assert client.status(successor.id).status is Status.QUEUED
    assert make_engine().run(successor.id).outcome == "completed"


@pytest.mark.settings(namespace="blue")
def test_children_and_continuations_are_of_their_runs_namespace(client: Client, parked: Parked, go: Go) -> None:
    """2.11.5."""

    @durable("small")
    async def small(ctx: Context, link: int) -> int:
        if link:
            ctx.continue_as_new(link - 1)
        return link

    @durable("big")
    async def big(ctx: Context) -> Any:
        return await ctx.child("small", 1)

    run_id = parked("big")
    (child,) = client.list(parent=run_id)
    go(child.id)
    for run in client.list(kind="small", status="queued"):
        go(run.id)
    assert go(run_id).result == 0
    assert {run.namespace for run in client.list()} == {"blue"}
    assert len(client.list()) == 3


def test_two_deployments_that_name_no_namespace_are_one_pool(
    client: Client, make_engine: Callable[..., Engine], settings: Settings
) -> None:
    """2.11.1: the mistake can be made, and `doctor` tells of it (`shared_namespace`)."""

    @durable("anybodys")
    async def anybodys(ctx: Context) -> str:
        return "done"

    other = make_engine(settings=settings.model_copy(update={"deployment": "green"}))
    run_id = client.enqueue("anybodys")
    assert other.run(run_id).outcome == "completed"
    elsewhere = make_engine(settings=settings.model_copy(update={"namespace": "green"}))
    run_id = client.enqueue("anybodys")
    assert elsewhere.submit(run_segment(elsewhere, run_id)).result(5).outcome != "completed"
    assert client.status(run_id).status is Status.QUEUED
