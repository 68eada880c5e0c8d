"""Steps: recorded once, replayed the same, and refused where they could not be."""

from __future__ import annotations

import asyncio
import contextlib
import math
import threading
import time
from collections import Counter
from datetime import UTC, datetime
from typing import Any
from uuid import UUID

import pytest
from pydantic import BaseModel

from agentrun import (
    Client,
    Context,
    NonDeterminism,
    Reason,
    Retries,
    Retryable,
    Status,
    Step,
    StepFailed,
    SyncContext,
    current_step,
    durable,
)
from agentrun.core.errors import BodyError
from agentrun.core.policy import Backoff
from agentrun.runtime.engine import Engine
from agentrun.testing.rows import Rows

QUICK = Backoff(base=0.001, cap=0.001)


class Once:
    """Raises at the first call of each run, so that the run takes a second segment."""

    def __init__(self) -> None:
        self.seen: set[UUID] = set()

    def __call__(self, ctx: Context | SyncContext) -> None:
        if ctx.run_id not in self.seen:
            self.seen.add(ctx.run_id)
            raise Retryable("a second segment, please")


@pytest.fixture
def once() -> Once:
    return Once()


@pytest.fixture
def calls() -> Counter[str]:
    return Counter()


class Order(BaseModel):
    at: datetime
    cents: int


def test_a_recorded_step_is_returned_and_not_executed_again(run: Any, once: Once, calls: Counter[str]) -> None:
    async def look(value: int) -> int:
        calls["look"] += 1
        return value * 2

    @durable("k")
    async def body(ctx: Context) -> int:
        first = await ctx.step(look, 20)
        once(ctx)
        return first + await ctx.step(look, 1)

    done = run("k")
    assert (done.status, done.result, done.epoch) == (Status.COMPLETED, 42, 2)
    assert calls["look"] == 2


def test_what_a_replay_returns_has_the_type_that_the_first_pass_had(run: Any, once: Once) -> None:
    seen: list[tuple[Any, ...]] = []

    async def order() -> Order:
        return Order(at=datetime(2026, 11, 29, tzinfo=UTC), cents=5)

    async def pair() -> tuple[int, str]:
        return 1, "a"

    def untyped():  # type: ignore[no-untyped-def]
        return {"n": (1, 2)}

    @durable("k")
    async def body(ctx: Context) -> None:
        seen.append((await ctx.step(order), await ctx.step(pair), await ctx.step(untyped), await ctx.now()))
        once(ctx)

    assert run("k").status is Status.COMPLETED
    assert seen[0] == seen[1]
    assert seen[0][:3] == (Order(at=datetime(2026, 11, 29, tzinfo=UTC), cents=5), (1, "a"), {"n": [1, 2]})


def test_a_step_that_failed_raises_the_same_error_at_the_first_pass_and_at_the_replay(run: Any, once: Once) -> None:
    seen: list[tuple[Any, ...]] = []
    causes: list[BaseException | None] = []

    async def fails() -> None:
        raise ValueError("no good")

    @durable("k")
    async def body(ctx: Context) -> str:
        try:
            await ctx.step(fails)
        except StepFailed as error:
            seen.append((str(error), error.key, error.name, error.error_type, error.message, error.failure_class))
            causes.append(error.__cause__)
        once(ctx)
        return "went on"

    assert run("k").result == "went on"
    assert seen[0] == seen[1]
    assert seen[0] == (
        "step `fails` (#1) raised ValueError: no good",
        "#1",
        "fails",
        "ValueError",
        "no good",
        "unknown",
    )
    assert isinstance(causes[0], ValueError)


def test_a_caught_failure_is_replayed_and_the_one_that_ended_the_segment_is_done_again(
    run: Any, calls: Counter[str], client: Client
) -> None:
    async def optional() -> None:
        calls["optional"] += 1
        raise ConnectionError("the cache is away")

    async def needed() -> str:
        calls["needed"] += 1
        if calls["needed"] == 1:
            raise ConnectionError("the store is away")
        return "stored"

    @durable("k")
    async def body(ctx: Context) -> str:
        with contextlib.suppress(StepFailed):
            await ctx.step(optional)
        return await ctx.step(needed)

    done = run("k")
    assert (done.result, done.requeue_count, done.error_count) == ("stored", 1, 1)
    assert calls == {"optional": 1, "needed": 2}
    assert {step.key: (step.status, step.attempt) for step in client.steps(done.id)} == {
        "#1": ("failed", 1),
        "#2": ("completed", 2),
    }


@pytest.mark.parametrize("swallow", [False, True], ids=["let through", "caught by the body"])
def test_a_changed_body_fails_the_run_and_touches_nothing(
    client: Client, engine: Engine, rows: Rows, calls: Counter[str], swallow: bool
) -> None:
    version = 1

    async def charge() -> int:
        return 1

    async def refund() -> int:
        calls["refund"] += 1
        return 2

    async def after() -> int:
        calls["after"] += 1
        return 3

    @durable("k")
    async def body(ctx: Context) -> int:
        if version == 1:
            await ctx.step(charge)
            raise Retryable("later")
        try:
            await ctx.step(refund)
        except Exception:
            if not swallow:
                raise
        return await ctx.step(after)

    run_id = client.enqueue("k")
    engine.run(run_id)
    version = 2
    journal = client.steps(run_id)
    rows.make_due(run_id)
    engine.run(run_id)
    run = client.status(run_id)
    assert (run.status, run.reason) == (Status.FAILED, Reason.NOT_RETRYABLE)
    assert run.error is not None
    assert run.error["type"] == f"{NonDeterminism.__module__}.NonDeterminism"
    assert "#1" in run.error["message"]
    assert "step `charge`" in run.error["message"]
    assert "step `refund`" in run.error["message"]
    assert calls == {}
    assert client.steps(run_id) == journal


def test_explicit_keys_let_steps_move(client: Client, engine: Engine, rows: Rows, calls: Counter[str]) -> None:
    version = 1

    async def work(name: str) -> str:
        calls[name] += 1
        return name

    @durable("k")
    async def body(ctx: Context) -> list[str]:
        names = ["a", "b"] if version == 1 else ["new", "b", "a"]
        answers = [await ctx.options(key=name).step(work, name) for name in names]
        if version == 1:
            raise Retryable("later")
        return answers

    run_id = client.enqueue("k")
    engine.run(run_id)
    version = 2
    rows.make_due(run_id)
    engine.run(run_id)
    assert client.status(run_id).result == ["new", "b", "a"]
    assert calls == {"a": 1, "b": 1, "new": 1}


@pytest.mark.parametrize("fails", [False, True], ids=["completed", "failed"])
def test_a_key_asked_for_twice_is_one_step(run: Any, calls: Counter[str], fails: bool) -> None:
    async def work() -> int:
        calls["work"] += 1
        if fails:
            raise ValueError("no")
        return calls["work"]

    async def one(ctx: Context) -> int:
        try:
            return await ctx.options(key="same").step(work)
        except StepFailed:
            return -1

    @durable("k")
    async def body(ctx: Context) -> list[int]:
        return [await one(ctx), await one(ctx), *await ctx.gather(one(ctx), one(ctx))]

    done = run("k")
    assert (done.status, done.result) == (Status.COMPLETED, [-1 if fails else 1] * 4)
    assert calls["work"] == 1
    assert done.crash_count == 0


def test_the_same_key_for_two_steps_at_once_is_one_execution(run: Any, calls: Counter[str]) -> None:
    async def slow() -> int:
        calls["slow"] += 1
        await asyncio.sleep(0.02)
        return calls["slow"]

    @durable("k")
    async def body(ctx: Context) -> list[int]:
        keyed = ctx.options(key="same")
        return await ctx.gather(keyed.step(slow), keyed.step(slow))

    done = run("k")
    assert (done.status, done.result, done.epoch) == (Status.COMPLETED, [1, 1], 1)


def test_a_gather_ends_all_branches_before_it_raises_the_first_failure_in_order(run: Any, client: Client) -> None:
    async def work(seconds: float, error: str | None) -> None:
        await asyncio.sleep(seconds)
        if error is not None:
            raise ValueError(error)

    @durable("k")
    async def body(ctx: Context) -> str:
        branches = [ctx.step(work, 0.02, "slow"), ctx.step(work, 0.0, "quick"), ctx.step(work, 0.03, None)]
        try:
            await ctx.gather(*branches)
        except StepFailed as error:
            return error.message
        return "nothing raised"

    done = run("k")
    assert done.result == "slow"
    assert [step.status for step in sorted(client.steps(done.id), key=lambda s: s.key)] == [
        "failed",
        "failed",
        "completed",
    ]


def test_a_gather_runs_no_more_at_once_than_its_limit(run: Any) -> None:
    running, most = 0, 0

    async def work() -> None:
        nonlocal running, most
        running += 1
        most = max(most, running)
        await asyncio.sleep(0.005)
        running -= 1

    @durable("k")
    async def body(ctx: Context) -> None:
        await ctx.gather(*(ctx.step(work) for _ in range(9)), limit=3)

    assert run("k").status is Status.COMPLETED
    assert most == 3


@pytest.mark.parametrize("plain", [False, True], ids=["async def", "def"])
def test_a_step_inside_a_step_is_refused(run: Any, calls: Counter[str], plain: bool) -> None:
    async def inner() -> None:
        calls["inner"] += 1

    @durable("k")
    async def body(ctx: Context) -> None:
        async def outer() -> None:
            await ctx.step(inner)

        def outer_plain() -> None:
            asyncio.run(ctx.step(inner))

        await ctx.step(outer_plain if plain else outer)

    done = run("k")
    assert (done.status, done.reason) == (Status.FAILED, Reason.NOT_RETRYABLE)
    assert "inside another step" in done.error["message"]
    assert calls == {}


def test_a_declared_write_is_not_taken_for_a_step(run: Any) -> None:
    from agentrun import Effect, effect

    @effect(Effect.NON_IDEMPOTENT_WRITE)
    async def pay() -> None: ...

    @durable("k")
    async def body(ctx: Context) -> None:
        await ctx.step(pay)

    assert "use ctx.write" in run("k").error["message"]


# ---- retries and timeouts of a step


def test_a_step_is_retried_within_its_segment(run: Any, client: Client, calls: Counter[str]) -> None:
    attempts: list[tuple[int, str]] = []

    async def flaky() -> str:
        step = current_step()
        attempts.append((step.attempt, step.idempotency_key))
        if len(attempts) < 3:
            raise ConnectionError("away")
        return "there"

    @durable("k")
    async def body(ctx: Context) -> str:
        return await ctx.options(retries=Retries(attempts=3, backoff=QUICK)).step(flaky)

    done = run("k")
    assert (done.result, done.requeue_count, done.epoch) == ("there", 0, 1)
    assert [attempt for attempt, _ in attempts] == [1, 2, 3]
    assert len({key for _, key in attempts}) == 1
    (step,) = client.steps(done.id)
    assert (step.status, step.attempt) == ("completed", 3)


def test_retries_of_a_step_end_and_are_not_for_errors_that_last(run: Any, calls: Counter[str]) -> None:
    async def away() -> None:
        calls["away"] += 1
        raise ConnectionError("away")

    async def wrong() -> None:
        calls["wrong"] += 1
        raise ValueError("wrong")

    @durable("k", retries=Retries(attempts=3, backoff=QUICK))
    async def body(ctx: Context) -> None:
        for each in (away, wrong):
            try:
                await ctx.step(each)
            except StepFailed:
                continue

    assert run("k").status is Status.COMPLETED
    assert calls == {"away": 3, "wrong": 1}


def test_a_step_that_takes_too_long_is_ended_and_counts_as_a_connection_lost(run: Any) -> None:
    ended: list[str] = []

    async def hangs() -> None:
        try:
            await asyncio.sleep(60)
        except asyncio.CancelledError:
            ended.append("cancelled")
            raise

    @durable("k")
    async def body(ctx: Context) -> str:
        try:
            await ctx.options(timeout=0.05).step(hangs)
        except StepFailed as error:
            return f"{error.error_type} {error.failure_class}"
        return "in time"

    assert run("k").result == "TimeoutError connection"
    assert ended == ["cancelled"]


# ---- plain functions


def test_plain_bodies_and_steps_run_in_threads_and_know_their_step(run: Any, once: Once) -> None:
    threads: set[str] = set()

    def look(value: int) -> str:
        threads.add(threading.current_thread().name)
        return f"{current_step().key} {value}"

    @durable("k")
    def body(ctx: SyncContext) -> list[str]:
        threads.add(threading.current_thread().name)
        seen = [ctx.step(look, number) for number in range(3)]
        once(ctx)
        return seen

    done = run("k")
    assert (done.result, done.epoch) == (["#1 0", "#2 1", "#3 2"], 2)
    assert all(name.startswith("agentrun body") for name in threads)


def test_plain_bodies_that_block_do_not_hold_each_other_up(client: Client, engine: Engine) -> None:
    meeting = threading.Barrier(8, timeout=10)

    @durable("k")
    def body(ctx: SyncContext) -> int:
        return ctx.step(meeting.wait)

    ids = [client.enqueue("k") for _ in range(8)]
    from agentrun.runtime.segment import run_segment

    reports = [engine.submit(run_segment(engine, run_id)) for run_id in ids]
    assert {report.result(20).outcome for report in reports} == {"completed"}


def test_a_body_that_blocks_its_loop_does_not_lose_its_lease(run: Any) -> None:
    @durable("k", lease_seconds=1.5)
    async def body(ctx: Context) -> str:
        time.sleep(2.0)
        return await ctx.step(_there)

    done = run("k")
    assert (done.status, done.epoch) == (Status.COMPLETED, 1)


def _there() -> str:
    return "there"


def test_current_step_is_refused_outside_a_step(run: Any) -> None:
    @durable("k")
    async def body(ctx: Context) -> str:
        try:
            current_step()
        except BodyError as error:
            return str(error)
        return "there was one"

    assert run("k").result.startswith("there is no current step here")


def test_numbers_that_json_does_not_know_come_back_as_they_were(
    client: Client, engine: Engine, rows: Rows, once: Once
) -> None:
    async def measured() -> dict[str, float]:
        return {"high": math.inf, "low": -math.inf, "none": math.nan}

    seen: list[dict[str, float]] = []

    @durable("measures")
    async def measures(ctx: Context) -> None:
        seen.append(await ctx.step(measured))
        once(ctx)

    run_id = client.enqueue("measures")
    engine.run(run_id)
    rows.make_due(run_id)
    engine.run(run_id)
    assert len(seen) == 2, "the second time from the journal"
    for each in seen:
        assert (each["high"], each["low"], math.isnan(each["none"])) == (math.inf, -math.inf, True)


def test_the_journal_says_how_long_each_step_took(client: Client, engine: Engine) -> None:
    """Of its last attempt: what was before that, and the pause after it, are not the step's."""
    spans: list[float] = []

    async def work(seconds: float) -> None:
        began = time.monotonic()
        await asyncio.sleep(seconds)  # the work that is measured
        spans.append(time.monotonic() - began)

    async def at_second_try() -> None:
        await work(0.3 if len(spans) == 1 else 0.01)
        if len(spans) == 2:
            raise Retryable("once more")

    @durable("long")
    async def long(ctx: Context) -> None:
        await ctx.step(work, 0.05)
        await ctx.options(retries=Retries(attempts=2, backoff=QUICK)).step(at_second_try)
        await ctx.transaction(lambda connection: connection.execute("SELECT pg_sleep(0.01)") and None)

    run_id = client.enqueue("long")
    began = time.monotonic()
    engine.run(run_id)
    once, again, transaction = (_took(step) for step in client.steps(run_id))
    assert spans[0] <= once <= time.monotonic() - began - spans[1]
    assert spans[2] <= again < spans[1]
    assert transaction >= 0.01


def test_a_transaction_ends_after_what_came_before_it(client: Client, engine: Engine) -> None:
    """PostgreSQL's time stands still in a transaction, at its beginning."""

    async def work() -> None:
        await asyncio.sleep(0.05)  # shorter than the transaction that is beside it

    @durable("in-order")
    async def in_order(ctx: Context) -> None:
        book = ctx.transaction(lambda connection: connection.execute("SELECT pg_sleep(0.2)") and None)
        await asyncio.gather(book, ctx.step(work))
        await ctx.step(work)

    run_id = client.enqueue("in-order")
    engine.run(run_id)
    ends = {step.key: step.finished_at for step in client.steps(run_id)}
    told = [event.at for event in client.events(run_id)]
    assert told == sorted(told)
    assert [key for key, _ in sorted(ends.items(), key=lambda end: str(end[1]))] == ["#2", "#1", "#3"]


def _took(step: Step) -> float:
    assert step.started_at is not None
    assert step.finished_at is not None
    return (step.finished_at - step.started_at).total_seconds()
