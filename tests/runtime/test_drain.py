"""A process that ends: what it still does, what it gives to others, and how soon. Counted against nobody."""

from __future__ import annotations

import asyncio
import threading
import time
from collections import Counter
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from uuid import UUID

import pytest
from redis import Redis

from agentrun import Client, Context, Effect, NotAllowed, Outcome, RunFailed, Settings, Status, durable, remote_step
from agentrun.core.outcome import LeaseLost
from agentrun.runtime.engine import Engine
from agentrun.runtime.segment import run_segment
from agentrun.runtime.taking import run_step
from agentrun.testing import RecordingPublisher, until
from agentrun.testing.rows import Rows

pytestmark = pytest.mark.settings(heartbeat_seconds=0.1, lease_seconds=2.0, drain_seconds=0.5)


@pytest.fixture
def calls() -> Counter[str]:
    return Counter()


@pytest.fixture
def began(client: Client, calls: Counter[str]) -> threading.Event:
    """Set when a body of the kind `slow` is in its step, in which it stays for long at its first pass."""
    reached = threading.Event()

    async def slowly() -> str:
        calls["slow"] += 1
        reached.set()
        await asyncio.sleep(0 if calls["slow"] > 1 else 20)
        return "done"

    @durable("slow")
    async def slow(ctx: Context) -> str:
        return await ctx.step(slowly)

    @durable("slow-write")
    async def slow_write(ctx: Context) -> str:
        return await ctx.write(slowly, effect=Effect.IDEMPOTENT_WRITE)

    @durable("asks")
    async def asks(ctx: Context) -> str:
        await ctx.approval("Go?")
        return await ctx.step(slowly)

    @durable("sleeps")
    async def sleeps(ctx: Context, seconds: float) -> str:
        await ctx.sleep(seconds)
        return "rested"

    return reached


def test_an_idempotent_write_is_not_waited_for_beyond_the_budget_and_done_again_elsewhere(
    client: Client, make_engine: Callable[..., Engine], began: threading.Event, calls: Counter[str]
) -> None:
    draining = make_engine()
    run_id = client.enqueue("slow-write")
    segment = draining.submit(run_segment(draining, run_id))
    assert began.wait(10)
    asked = time.monotonic()
    draining.drain()
    assert segment.result(5).outcome == Outcome.HANDED_BACK
    assert time.monotonic() - asked < client.settings.drain_seconds + 0.5
    run = client.status(run_id)
    assert (run.status, run.handback_count, run.requeue_count) == (Status.QUEUED, 1, 0)
    assert run.pending_effect == Effect.IDEMPOTENT_WRITE, "it began, and nobody has said how it ended"
    assert make_engine().run(run_id).outcome == Outcome.COMPLETED
    assert calls == {"slow": 2}


@pytest.mark.parametrize("plain", [False, True], ids=["coroutine", "thread"])
def test_a_remote_step_that_is_not_over_within_the_budget_is_offered_again_and_costs_no_try(
    client: Client, make_engine: Callable[..., Engine], publisher: RecordingPublisher, plain: bool
) -> None:
    reached, over = threading.Event(), threading.Event()

    async def long() -> None:
        reached.set()
        await asyncio.sleep(20)

    def long_in_thread() -> None:
        reached.set()
        assert over.wait(20)

    remote_step("long", effect=Effect.IDEMPOTENT_WRITE)(long_in_thread if plain else long)

    @durable("far")
    async def far(ctx: Context) -> None:
        await ctx.remote("long")

    draining, run_id = make_engine(), client.enqueue("far")
    draining.run(run_id)
    (step,) = client.steps(run_id)
    taking = draining.submit(run_step(draining, run_id, step.key))
    assert reached.wait(10)
    draining.drain()
    assert draining.idle(client.settings.drain_seconds)
    assert taking.result(5).outcome == "handed_back"
    (step,) = client.steps(run_id)
    assert (step.status, step.attempt, step.redispatch_count) == ("offered", 1, 0)
    assert publisher.wakes[-1].cause == "hand back"
    over.set()


def test_the_timers_of_a_process_that_drains_are_kept_by_whoever_hears_of_them(
    client: Client, make_engine: Callable[..., Engine], publisher: RecordingPublisher, began: threading.Event
) -> None:
    """Without that, what sleeps here would start late by up to a sweep."""
    draining, other = make_engine(), make_engine()
    run_id = client.enqueue("sleeps", 1.5)
    assert draining.run(run_id).outcome == Outcome.WAITING
    draining.drain()
    until(lambda: publisher.causes(run_id) == ["drain"])
    assert other.run(run_id).outcome == Status.WAITING
    assert other.keeps_time_of(run_id)
    until(lambda: publisher.causes(run_id) == ["drain", "timer"])
    until(lambda: other.run(run_id).outcome == Outcome.COMPLETED)


def test_a_body_that_has_not_begun_does_not_begin_in_a_process_that_drains(
    make_engine: Callable[..., Engine], client: Client
) -> None:
    """It may have no step at which it could be handed back."""
    executed: list[bool] = []

    @durable("at-once")
    async def at_once(ctx: Context) -> None:
        executed.append(True)

    engine, elsewhere = make_engine(), make_engine()
    run_id = client.enqueue("at-once")
    engine.drain()
    assert engine.run(run_id).outcome == Outcome.HANDED_BACK
    assert (executed, client.status(run_id).handback_count) == ([], 1)
    assert elsewhere.run(run_id).outcome == Outcome.COMPLETED


def test_an_idle_process_drains_at_once(make_engine: Callable[..., Engine], client: Client) -> None:
    engine, asked = make_engine(), time.monotonic()
    engine.drain(within=60)
    assert engine.idle(60)
    assert client.drain(within=60)
    assert time.monotonic() - asked < 1


def test_an_engine_and_a_client_may_be_closed_twice(
    make_engine: Callable[..., Engine], settings: Settings, began: threading.Event
) -> None:
    engine = make_engine()
    engine.close()
    engine.close()
    client = Client(settings=settings)
    with pytest.raises(NotAllowed):
        client.resume(client.enqueue("sleeps", 1.0, delay=60))
    client.close()
    client.close()


@pytest.mark.parametrize("what", ["body", "step", "write", "remote write"])
def test_what_still_runs_at_the_close_ends_and_writes_nothing(
    what: str, client: Client, make_engine: Callable[..., Engine], began: threading.Event
) -> None:
    """Whoever waits for it hears so; what it came to is for the reaper."""
    ended: list[str] = []

    @remote_step("works", effect=Effect.NON_IDEMPOTENT_WRITE)
    async def works() -> None:
        began.set()
        try:
            await asyncio.sleep(3600)
        finally:
            ended.append("inside")

    @durable("body")
    async def body(ctx: Context) -> None:
        try:
            await works()
        finally:
            await ctx.step(ended.append, "a step that must not start")

    @durable("step")
    async def step(ctx: Context) -> None:
        await ctx.step(works)

    @durable("write")
    async def write(ctx: Context) -> None:
        await ctx.write(works, effect=Effect.NON_IDEMPOTENT_WRITE)

    @durable("remote write")
    async def remote(ctx: Context) -> None:
        await ctx.remote("works")

    closing, run_id = make_engine(), client.enqueue(what)
    report = closing.begin(run_id)
    if what == "remote write":
        assert report.result(5).outcome == Status.WAITING
        report = closing.begin_step(run_id, client.steps(run_id)[0].key)
    assert began.wait(10)
    before = client.status(run_id).status, client.steps(run_id), client.events(run_id)
    closing.close()
    assert report.result(0).outcome == Outcome.LEASE_LOST
    assert ended == ["inside"]
    assert asyncio.all_tasks(closing.loop) == set()
    assert (client.status(run_id).status, client.steps(run_id), client.events(run_id)) == before


def test_a_web_process_that_ends_hands_its_runs_to_workers_and_tells_their_callers(
    client: Client, engine: Engine, began: threading.Event, calls: Counter[str], redis: Redis
) -> None:
    with ThreadPoolExecutor() as web:
        request = web.submit(client.run, "slow", None)
        assert began.wait(10)
        assert client.drain()
        with pytest.raises(RunFailed, match=r"is handed_back: this process drains, .* wait for it with another client"):
            request.result(5)
    (run,) = client.list()
    assert (run.status, run.handback_count, run.error_count) == (Status.QUEUED, 1, 0)
    until(lambda: redis.llen(client.settings.queue) == 1)
    with pytest.raises(NotAllowed, match="drains"):
        client.run("slow", None)
    assert engine.run(run.id).outcome == Outcome.COMPLETED
    with pytest.raises(NotAllowed, match="drains"):
        client.resume(run.id)


CLOSED = (
    "this process closed its client before the run had ended; once its lease is over, the sweep gives it to a worker"
)


@pytest.mark.parametrize(
    ("how", "told", "next_step"),
    [("closed", CLOSED, "agentrun show"), ("reaped", "another process has taken the run over", "")],
)
def test_who_waits_for_a_run_here_hears_why_it_was_lost(
    settings: Settings, rows: Rows, sweep: Callable[[], object], how: str, told: str, next_step: str
) -> None:
    """A write of which nobody knows the end outlasts the drain."""
    began = threading.Event()

    async def pay() -> None:
        began.set()
        await asyncio.sleep(3600)

    async def pays(ctx: Context) -> None:
        await ctx.write(pay, effect=Effect.NON_IDEMPOTENT_WRITE)

    with Client(settings=settings) as client, ThreadPoolExecutor() as web:
        request = web.submit(client.run, pays)
        assert began.wait(10)
        (run,) = client.list()
        if how == "closed":
            client.close()
        while how == "reaped" and not client.status(run.id).status.final:
            rows.expire_lease(run.id)
            sweep()
        with pytest.raises(RunFailed, match="lease_lost") as lost:
            request.result(5)
    assert lost.value.detail is not None
    assert told in lost.value.detail
    assert (f"`{next_step} {run.id}`" if next_step else "") in lost.value.detail


def test_a_run_that_goes_on_here_is_handed_back_and_a_later_decision_wakes_a_worker(
    client: Client, engine: Engine, began: threading.Event, redis: Redis
) -> None:
    decided, later = _parked(client, engine), _parked(client, engine)
    redis.flushdb()  # pyright: ignore[reportUnknownMemberType]
    with ThreadPoolExecutor() as web:
        request = web.submit(client.approve, decided, by="ann", here=True)
        assert began.wait(10)
        client.drain()
        assert request.result(5).status == Status.QUEUED
    assert client.approve(later, by="ann", here=True).status == Status.QUEUED
    until(lambda: redis.llen(client.settings.queue) == 2)
    assert engine.run(later).outcome == engine.run(decided).outcome == Outcome.COMPLETED


def _parked(client: Client, engine: Engine) -> UUID:
    run_id = client.enqueue("asks")
    assert engine.run(run_id).outcome == Outcome.WAITING
    return run_id


@pytest.mark.settings(drain_seconds=5)
def test_who_is_interrupted_while_it_waits_for_its_run_leaves_it_to_a_worker(
    client: Client, began: threading.Event, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Ctrl-C, or `sys.exit` in a signal handler of the main thread."""

    def interrupted(_: object) -> None:
        assert began.wait(10)
        raise KeyboardInterrupt

    monkeypatch.setattr(Future, "result", interrupted)
    with pytest.raises(KeyboardInterrupt):
        client.run("slow", None)
    monkeypatch.undo()
    (run,) = client.list()
    assert (run.status, run.handback_count) == (Status.QUEUED, 1)


def test_a_segment_that_comes_after_a_lost_one_in_the_same_process_is_interrupted_by_a_drain(
    client: Client, make_engine: Callable[..., Engine], rows: Rows, sweep: Callable[[], object]
) -> None:
    """The lost one takes its time, and its end is none of the later one's."""
    began: list[threading.Event] = [threading.Event(), threading.Event()]
    over = asyncio.Event()
    tries: list[int] = []

    @durable("stubborn")
    async def stubborn(ctx: Context) -> None:
        mine = len(tries)
        tries.append(mine)
        began[mine].set()
        try:
            await asyncio.sleep(60)
        except asyncio.CancelledError:
            if mine == 0:
                await over.wait()
            raise

    draining = make_engine()
    run_id = client.enqueue("stubborn")
    first = draining.begin(run_id)
    assert began[0].wait(10)
    for lease in draining.heartbeat.held():
        lease.stop(LeaseLost())

    def taken_back() -> bool:
        # A heartbeat that is under way renews it once more.
        rows.expire_lease(run_id)
        sweep()
        return client.status(run_id).status is Status.QUEUED

    until(taken_back, 10)
    second = draining.begin(run_id)
    assert began[1].wait(10)
    draining.loop.call_soon_threadsafe(over.set)
    assert first.result(10).outcome == Outcome.LEASE_LOST
    draining.drain()
    assert second.result(10).outcome == Outcome.HANDED_BACK
