"""What a run may spend, over all its segments, and its owner with it: one gate, before the run and every model call."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from decimal import Decimal
from typing import Any
from uuid import UUID

import pytest

from agentrun import Client, Context, Reason, Run, RunFailed, Status, SyncContext, durable
from agentrun.runtime.engine import Engine
from agentrun.testing import until
from tests.writes.conftest import Look, ask_model

Ask = Callable[[Context], Any]


@pytest.fixture
def asks(kinds: Any) -> list[int]:
    """The kind `asks`: so many model calls of 10 tokens and 0.5 dollars each. Its calls are counted here."""
    made: list[int] = []

    @durable("asks")
    async def asks_model(ctx: Context, calls: int) -> int:
        for _ in range(calls):
            await ask_model(ctx, 10, "0.5")
            made.append(1)
        return calls

    return made


@pytest.mark.parametrize(
    ("limits", "made", "reason"),
    [
        ({"max_model_calls": 2}, 2, Reason.MAX_ITERATIONS),
        ({"max_tokens": 15}, 2, Reason.BUDGET_EXHAUSTED),
        ({"max_cost": 1.2}, 3, Reason.BUDGET_EXHAUSTED),
        ({"max_model_calls": 0}, 0, Reason.MAX_ITERATIONS),
        ({"max_tokens": 50}, 5, None),
    ],
    ids=str,
)
def test_a_run_ends_where_its_next_model_call_would_be_beyond_a_limit(
    client: Client, engine: Engine, asks: list[int], limits: dict[str, Any], made: int, reason: Reason | None
) -> None:
    run_id = client.enqueue("asks", 5, limits=limits)
    engine.run(run_id)
    run = client.status(run_id)
    assert (len(asks), run.usage.model_calls) == (made, made)
    if reason is None:
        assert run.status is Status.COMPLETED
    else:
        assert (run.status, run.reason) == (Status.FAILED, reason)
        assert run.error is not None
        assert next(iter(limits)) in run.error["message"]


def test_limits_count_over_all_segments(client: Client, engine: Engine, look: Look) -> None:
    """What an attempt that failed spent counts, and shows."""
    made: list[str] = []

    @durable("breaks-between")
    async def breaks_between(ctx: Context) -> None:
        await ask_model(ctx, 10, "0.5")
        made.append("first")
        await ctx.step(break_once)
        await ask_model(ctx, 10, "0.5")
        made.append("second")
        await ask_model(ctx, 10, "0.5")
        made.append("third")

    async def break_once() -> None:
        if made.count("first") == 1:
            raise ConnectionError("not now")

    run_id = client.enqueue("breaks-between", limits={"max_model_calls": 2})
    assert engine.run(run_id).outcome == "requeued"
    assert client.status(run_id).usage.cost == Decimal("0.5")
    until(lambda: engine.run(run_id).outcome == "failed")
    run = client.status(run_id)
    # The replayed call costs nothing again.
    assert (run.reason, run.usage.model_calls, run.usage.cost) == (Reason.MAX_ITERATIONS, 2, Decimal(1))
    assert made == ["first", "first", "second"]


@pytest.mark.parametrize("period", ["day", "month"])
@pytest.mark.parametrize("budget", [{"max_tokens": 15}, {"max_cost": Decimal("0.9")}], ids=str)
def test_an_owners_budget_stops_its_runs_and_nobody_elses(
    client: Client, engine: Engine, asks: list[int], period: Any, budget: dict[str, Any]
) -> None:
    client.set_budget("ann", period=period, **budget)
    first = client.enqueue("asks", 2, owner="ann")
    assert engine.run(first).outcome == "completed"
    second = client.enqueue("asks", 1, owner="ann")
    assert engine.run(second).outcome == "failed"
    run = client.status(second)
    assert run.reason is Reason.BUDGET_EXHAUSTED
    assert run.error is not None
    assert f"the {period}'s budget of owner `ann`" in run.error["message"]
    assert engine.run(client.enqueue("asks", 1, owner="bob")).outcome == "completed"
    assert len(asks) == 3
    client.set_budget("ann", period=period)
    assert engine.run(client.enqueue("asks", 1, owner="ann")).outcome == "completed"


def test_a_budget_stops_a_run_in_its_middle(client: Client, engine: Engine, asks: list[int]) -> None:
    client.set_budget("ann", period="day", max_tokens=25)
    run_id = client.enqueue("asks", 5, owner="ann")
    engine.run(run_id)
    assert client.status(run_id).reason is Reason.BUDGET_EXHAUSTED
    assert len(asks) == 3


def test_a_spent_budget_stops_a_run_before_its_body_starts(client: Client, engine: Engine) -> None:
    started: list[int] = []

    @durable("writes-first")
    async def writes_first(ctx: Context) -> None:
        started.append(1)

    client.set_budget("ann", period="day", max_tokens=0)
    engine.run(client.enqueue("writes-first", owner="ann"))
    assert started == []


def test_what_a_run_plans_to_cost_counts_at_the_gate(client: Client, engine: Engine, asks: list[int]) -> None:
    client.set_budget("ann", period="day", max_cost=Decimal(2))
    dear = client.enqueue("asks", 1, owner="ann", planned_cost=Decimal(3))
    assert engine.run(dear).outcome == "failed"
    assert client.status(dear).reason is Reason.BUDGET_EXHAUSTED
    assert asks == []
    assert engine.run(client.enqueue("asks", 1, owner="ann", planned_cost=Decimal(2))).outcome == "completed"


def test_a_run_here_and_now_passes_the_same_gate(client: Client, asks: list[int]) -> None:
    client.set_budget("ann", period="day", max_tokens=10)
    assert client.run("asks", 1, owner="ann") == 1
    with pytest.raises(RunFailed, match="budget_exhausted"):
        client.run("asks", 1, owner="ann")
    with pytest.raises(RunFailed, match="max_iterations"):
        client.run("asks", 2, limits={"max_model_calls": 1})
    assert len(asks) == 2


def test_yesterday_counts_for_the_month_and_not_for_the_day(
    client: Client, engine: Engine, asks: list[int], look: Look
) -> None:
    client.set_budget("ann", period="day", max_tokens=10)
    engine.run(client.enqueue("asks", 1, owner="ann"))
    look("UPDATE agentrun.spend SET day = day - interval '1 day'")
    assert engine.run(client.enqueue("asks", 1, owner="ann")).outcome == "completed"
    spent = {row["period"]: row["tokens"] for row in client.budgets("ann")}
    assert spent == {"day": 10}
    look("UPDATE agentrun.spend SET day = date_trunc('month', now())")
    client.set_budget("ann", period="month", max_tokens=20)
    run_id = client.enqueue("asks", 1, owner="ann")
    look("UPDATE agentrun.budgets SET max_tokens = NULL WHERE period = 'day'")
    engine.run(run_id)
    assert client.status(run_id).reason is Reason.BUDGET_EXHAUSTED


def test_a_step_that_never_ends_is_ended_by_its_runs_deadline(client: Client, engine: Engine) -> None:
    @durable("hangs")
    async def hangs(ctx: Context) -> None:
        await ctx.step(asyncio.Event().wait)

    run_id = client.enqueue("hangs", deadline=1.0)
    assert engine.run(run_id).outcome == "failed"
    assert client.status(run_id).reason is Reason.DEADLINE_EXCEEDED


def test_a_thread_that_never_ends_holds_no_run_beyond_its_deadline(client: Client, engine: Engine) -> None:
    released = threading.Event()

    @durable("hangs-in-thread")
    def hangs_in_thread(ctx: SyncContext) -> None:
        ctx.step(released.wait)

    run_id = client.enqueue("hangs-in-thread", deadline=1.0)
    assert engine.run(run_id).outcome == "failed"
    run = client.status(run_id)
    assert (run.status, run.reason) == (Status.FAILED, Reason.DEADLINE_EXCEEDED)
    settled = run.finished_at
    released.set()
    assert engine.run(run_id).outcome == "failed"
    assert client.status(run_id).finished_at == settled


def test_a_deadline_is_kept_by_the_sweep_where_nobody_executes(client: Client, look: Look, sweep: Any) -> None:
    @durable("waits-for-a-worker")
    async def waits_for_a_worker(ctx: Context) -> None: ...

    run_id: UUID = client.enqueue("waits-for-a-worker", deadline=60)
    sweep()
    assert client.status(run_id).status is Status.QUEUED
    look("UPDATE agentrun.runs SET deadline_at = now() - interval '1 s'")
    assert sweep().expired == 1
    run: Run = client.status(run_id)
    assert (run.status, run.reason) == (Status.FAILED, Reason.DEADLINE_EXCEEDED)
