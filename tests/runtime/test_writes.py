"""Writes: fenced, started at most once, and never guessed about."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable
from typing import Any

import pytest

from agentrun import (
    NOT_APPLIED,
    Applied,
    Client,
    Context,
    Effect,
    NotAllowed,
    NotApplied,
    Reason,
    Retryable,
    Status,
    StepFailed,
    SyncContext,
    current_step,
    durable,
    effect,
)
from agentrun.runtime.engine import Engine
from agentrun.store.claims import CLAIM_RUN
from agentrun.store.database import Database
from agentrun.store.journal import FENCE
from agentrun.testing import RecordingPublisher
from agentrun.testing.rows import Rows
from tests.runtime.conftest import finish


@pytest.fixture
def calls() -> Counter[str]:
    return Counter()


def test_a_fence_stands_while_a_write_is_in_flight_and_is_cleared_with_its_end(
    run: Any, client: Client, database: Database
) -> None:
    seen: list[Any] = []

    async def pay() -> str:
        there = await asyncio.to_thread(client.status, current_step().run_id)
        (step,) = await asyncio.to_thread(client.steps, current_step().run_id)
        seen.append((there.pending_effect, step.status, step.idempotency_key))
        return current_step().idempotency_key

    @durable("k")
    async def body(ctx: Context) -> str:
        return await ctx.write(pay)

    done = run("k")
    assert seen == [("non_idempotent_write", "started", done.result)]
    (step,) = client.steps(done.id)
    assert (done.pending_effect, step.status, step.effect) == (None, "completed", "non_idempotent_write")
    assert step.args_digest is not None


def test_not_applied_goes_back_to_the_body_as_the_steps_result(run: Any) -> None:
    async def pay() -> None:
        raise NotApplied("card refused")

    @durable("k")
    async def body(ctx: Context) -> str:
        try:
            await ctx.write(pay)
        except StepFailed as error:
            return error.message
        return "paid"

    assert run("k").result == "card refused"


@pytest.mark.parametrize("error", [ValueError("odd"), ConnectionError("reset"), TimeoutError(), KeyError("id")])
def test_any_other_error_of_a_write_stops_the_run_and_names_it(
    run: Any, client: Client, calls: Counter[str], error: Exception
) -> None:
    """Retryable or not: nobody knows whether it happened, and the body must not go on as if somebody did."""

    async def pay() -> None:
        calls["pay"] += 1
        raise error

    @durable("k")
    async def body(ctx: Context) -> str:
        try:
            await ctx.write(pay)
        except Exception:
            return "swallowed"
        return "paid"

    done = run("k")
    assert (done.status, done.reason) == (Status.FAILED, Reason.NOT_RETRYABLE)
    assert done.pending_effect == Effect.NON_IDEMPOTENT_WRITE
    assert calls["pay"] == 1
    assert type(error).__name__ in str(done.error)
    (step,) = client.steps(done.id)
    assert (step.status, step.name) == ("started", "pay")


def test_an_operator_resolves_and_the_run_goes_on_from_its_journal(
    run: Any, client: Client, engine: Engine, calls: Counter[str]
) -> None:
    async def pay() -> str:
        calls["pay"] += 1
        raise RuntimeError("the line went dead")

    async def after(receipt: str) -> str:
        calls["after"] += 1
        return f"thanks for {receipt}"

    @durable("k")
    async def body(ctx: Context) -> str:
        return await ctx.step(after, await ctx.write(pay))

    stopped = run("k")
    client.resolve(stopped.id, applied=True, result="receipt 7")
    engine.run(stopped.id)
    done = client.status(stopped.id)
    assert (done.status, done.result) == (Status.COMPLETED, "thanks for receipt 7")
    assert calls == {"pay": 1, "after": 1}


def test_a_result_that_does_not_fit_ends_the_run_and_may_be_said_again(
    run: Any, client: Client, engine: Engine, calls: Counter[str]
) -> None:
    """The body hears nothing of it: it would take the write for one that failed."""

    async def pay() -> str:
        calls["pay"] += 1
        raise RuntimeError("the line went dead")

    @durable("k")
    async def body(ctx: Context) -> str:
        try:
            return await ctx.write(pay)
        except Exception:
            return "swallowed"

    run_id = run("k").id
    client.resolve(run_id, applied=True, result={"secret": "s3cr3t"})
    for _ in range(2):
        engine.run(run_id)
        done: Any = client.status(run_id)
        assert (done.status, done.reason, done.error["step"]) == (Status.FAILED, Reason.NOT_RETRYABLE, "#1")
        assert done.error["type"] == "agentrun.core.errors.InvalidResult"
        for said in ("step `pay` (#1)", "should be a valid string", f"agentrun resolve {run_id} --key '#1' --applied"):
            assert said in done.error["message"]
        assert "s3cr3t" not in str(done)
        client.redrive(run_id)
    engine.run(run_id)
    with pytest.raises(NotAllowed, match="nothing is to be resolved"):
        client.resolve(run_id, applied=False)
    with pytest.raises(NotAllowed, match="no write in flight under key #1"):
        client.resolve(run_id, applied=False, key="#1")
    assert client.resolve(run_id, applied=True, result="paid", by="ann").status is Status.QUEUED
    engine.run(run_id)
    done = client.status(run_id)
    assert (done.status, done.result, calls["pay"]) == (Status.COMPLETED, "paid", 1)
    assert [event.data["by"] for event in client.events(run_id) if event.type == "resolved"] == ["client", "ann"]


def test_without_a_result_the_run_fails_and_another_can_be_said_by_its_key(
    run: Any, client: Client, engine: Engine
) -> None:
    async def pay() -> str:
        raise RuntimeError("the line went dead")

    @durable("k")
    async def body(ctx: Context) -> str:
        return await ctx.write(pay)

    run_id = run("k").id
    client.resolve(run_id, applied=True)
    engine.run(run_id)
    client.resolve(run_id, applied=True, result="paid", key="#1")
    engine.run(run_id)
    assert client.status(run_id).result == "paid"
    with pytest.raises(NotAllowed, match="is completed"):
        client.resolve(run_id, applied=True, result="paid twice", key="#1")


def test_a_result_that_a_step_recorded_itself_is_not_resolved_away(client: Client, engine: Engine, rows: Rows) -> None:
    """It fits no more since the code changed: the way out is the code, not another result."""

    async def before() -> int:
        return 4711

    async def after() -> str:
        return "receipt 4711"

    before.__name__ = after.__name__ = "pay"
    code: list[Callable[[], Any]] = [before]

    @durable("k")
    async def body(ctx: Context) -> Any:
        await ctx.write(code[-1])
        raise Retryable("later")

    run_id = client.enqueue("k")
    engine.run(run_id)
    code.append(after)
    done: Any = finish(client, engine, rows, run_id)
    assert (done.status, done.error["step"]) == (Status.FAILED, "#1")
    assert f"change the annotation back, then `agentrun redrive {run_id}`" in done.error["message"]
    for key in (None, "#1"):
        with pytest.raises(NotAllowed, match="no write in flight under key #1"):
            client.resolve(run_id, applied=True, result="paid", key=key)
    assert client.steps(run_id)[0].result == 4711


@pytest.mark.parametrize("promised", [object, Any, str, None], ids=repr)
def test_a_result_of_a_write_that_cannot_be_stored_stops_the_run(
    run: Any, client: Client, calls: Counter[str], promised: Any
) -> None:
    """It happened: the body may not be told that it failed, and nobody may do it again."""

    async def pay() -> Any:
        calls["pay"] += 1
        return object()

    pay.__annotations__ = {} if promised is None else {"return": promised}

    @durable("k")
    async def body(ctx: Context) -> str:
        try:
            await ctx.write(pay)
        except Exception:
            return "swallowed"
        return "paid"

    done = run("k")
    assert (done.status, calls["pay"]) == (Status.FAILED, 1)
    assert client.steps(done.id)[0].status == "started"


def test_an_idempotent_write_is_repeated_under_the_same_key(run: Any, calls: Counter[str]) -> None:
    keys: list[tuple[str, int]] = []

    @effect(Effect.IDEMPOTENT_WRITE)
    async def put() -> str:
        keys.append((current_step().idempotency_key, current_step().attempt))
        if len(keys) == 1:
            raise ConnectionError("away")
        return "put"

    @durable("k")
    async def body(ctx: Context) -> str:
        return await ctx.write(put)

    done = run("k")
    assert (done.status, done.result, done.requeue_count) == (Status.COMPLETED, "put", 1)
    assert len({key for key, _ in keys}) == 1
    assert [attempt for _, attempt in keys] == [1, 2]


def test_every_write_has_a_key_of_its_own(run: Any) -> None:
    async def pay() -> str:
        return current_step().idempotency_key

    @durable("k")
    async def body(ctx: Context) -> list[str]:
        return [await ctx.write(pay), await ctx.write(pay), *await ctx.gather(ctx.write(pay), ctx.write(pay))]

    keys = [*run("k").result, *run("k").result]
    assert len(set(keys)) == 8


def test_writes_side_by_side_are_fenced_one_by_one(run: Any, client: Client) -> None:
    async def pay(seconds: float) -> float:
        await asyncio.sleep(seconds)
        return seconds

    @durable("k")
    async def body(ctx: Context) -> list[float]:
        return await ctx.gather(*(ctx.write(pay, seconds) for seconds in (0.03, 0.0, 0.01)))

    done = run("k")
    assert (done.result, done.pending_effect) == ([0.03, 0.0, 0.01], None)
    assert {step.status for step in client.steps(done.id)} == {"completed"}


def test_the_interrupted_one_of_several_writes_stops_the_run_and_the_others_are_recorded(
    run: Any, client: Client
) -> None:
    async def pay(number: int) -> int:
        await asyncio.sleep(0.01 * number)
        if number == 0:
            raise RuntimeError("the line went dead")
        return number

    @durable("k")
    async def body(ctx: Context) -> list[int]:
        return await ctx.gather(*(ctx.write(pay, number) for number in range(3)))

    done = run("k")
    assert (done.status, done.pending_effect) == (Status.FAILED, Effect.NON_IDEMPOTENT_WRITE)
    assert {step.key: step.status for step in client.steps(done.id)} == {
        "#1": "started",
        "#2": "completed",
        "#3": "completed",
    }


def test_an_interrupted_write_that_the_body_gathered_among_its_results_still_stops_the_run(
    run: Any, client: Client, calls: Counter[str]
) -> None:
    async def pay(number: int) -> int:
        if number == 0:
            raise RuntimeError("the line went dead")
        return number

    async def after() -> None:
        calls["after"] += 1

    @durable("k")
    async def body(ctx: Context) -> str:
        await asyncio.gather(*(ctx.write(pay, number) for number in range(2)), return_exceptions=True)
        await ctx.step(after)
        return "went on"

    done = run("k")
    assert (done.status, done.reason, done.result) == (Status.FAILED, Reason.NOT_RETRYABLE, None)
    assert calls == {}


# ---- reconcile


@pytest.fixture
def interrupted(
    client: Client, engine: Engine, rows: Rows, sweep: Callable[[], Any], publisher: RecordingPublisher
) -> Callable[..., Any]:
    """A run whose reconcilable write is in flight when its owner vanishes; taken over once."""

    def make(reconcile: Callable[[str], Any], write: Callable[[], Any]) -> Any:
        @durable("k")
        async def body(ctx: Context) -> Any:
            try:
                return await ctx.write(effect(Effect.NON_IDEMPOTENT_WRITE, reconcile=reconcile)(write))
            except StepFailed as error:
                return f"failed: {error.message}"

        run_id = client.enqueue("k")
        rows.do(CLAIM_RUN, run_id, kinds=["k"])
        step = rows.step("#1", kind="write", name=write.__name__, effect="non_idempotent_write", reconcilable=True)
        rows.do(FENCE, run_id, **step)
        rows.expire_lease(run_id)
        sweep()
        assert client.status(run_id).status is Status.QUEUED
        engine.run(run_id)
        return client.status(run_id)

    return make


@pytest.mark.parametrize("plain", [False, True], ids=["async def", "def"])
def test_a_write_that_landed_is_recorded_as_reconcile_found_it(
    interrupted: Any, calls: Counter[str], plain: bool
) -> None:
    asked: list[str] = []

    async def find(key: str) -> Applied:
        asked.append(key)
        return Applied("receipt 7")

    def find_plain(key: str) -> Applied:
        asked.append(key)
        return Applied("receipt 7")

    async def pay() -> str:
        calls["pay"] += 1
        return "another"

    done = interrupted(find_plain if plain else find, pay)
    assert (done.status, done.result, done.pending_effect) == (Status.COMPLETED, "receipt 7", None)
    assert asked == ["key of #1"], "the key of the first attempt"
    assert calls["pay"] == 0


def test_a_write_of_which_nothing_landed_starts_afresh(interrupted: Any, client: Client, calls: Counter[str]) -> None:
    async def find(key: str) -> Any:
        return NOT_APPLIED

    async def pay() -> str:
        calls["pay"] += 1
        return "paid"

    done = interrupted(find, pay)
    assert (done.status, done.result, calls["pay"]) == (Status.COMPLETED, "paid", 1)
    (step,) = client.steps(done.id)
    assert (step.attempt, step.idempotency_key) == (2, "key of #1")


@pytest.mark.parametrize("answer", [None, "yes", True], ids=repr)
def test_a_reconcile_that_answers_nonsense_is_not_believed(interrupted: Any, calls: Counter[str], answer: Any) -> None:
    async def find(key: str) -> Any:
        return answer

    async def pay() -> str:
        calls["pay"] += 1
        return "paid"

    done = interrupted(find, pay)
    assert done.status is not Status.COMPLETED
    assert calls["pay"] == 0
    assert "reconcile" in str(done.error)


def test_a_reconcile_that_cannot_ask_now_is_asked_again_later(
    interrupted: Any, client: Client, engine: Engine, rows: Rows, calls: Counter[str]
) -> None:
    async def find(key: str) -> Applied:
        calls["find"] += 1
        if calls["find"] == 1:
            raise ConnectionError("the bank is closed")
        return Applied("receipt 7")

    async def pay() -> str:
        calls["pay"] += 1
        return "paid"

    waiting = interrupted(find, pay)
    assert waiting.status is Status.QUEUED
    rows.make_due(waiting.id)
    engine.run(waiting.id)
    assert client.status(waiting.id).result == "receipt 7"
    assert calls == {"find": 2}


def test_a_found_result_that_cannot_be_stored_stops_the_run(interrupted: Any, calls: Counter[str]) -> None:
    async def find(key: str) -> Applied:
        return Applied(object())

    async def pay() -> str:
        calls["pay"] += 1
        return "paid"

    done = interrupted(find, pay)
    assert done.status is not Status.COMPLETED
    assert calls["pay"] == 0
    assert done.pending_effect is not None or done.status is Status.QUEUED


# ---- transactions


def test_a_write_to_the_same_database_and_its_record_are_one_transaction(
    run: Any, database: Database, calls: Counter[str]
) -> None:
    with database.connection() as connection:
        connection.execute("CREATE TABLE ledger (entry text)")

    def enter(connection: Any, entry: str) -> str:
        connection.execute("INSERT INTO ledger VALUES (%s)", [entry])
        calls["enter"] += 1
        if calls["enter"] == 1:
            raise Retryable("before the commit")
        return entry

    @durable("k")
    async def body(ctx: Context) -> str:
        entered = await ctx.transaction(enter, "once")
        if calls["body"] == 0:
            calls["body"] += 1
            raise Retryable("after it")
        return entered

    assert run("k").result == "once"
    with database.connection() as connection:
        assert connection.execute("SELECT entry FROM ledger").fetchall() == [{"entry": "once"}]
    assert calls["enter"] == 2


def test_plain_bodies_write_as_well(run: Any, calls: Counter[str]) -> None:
    def pay(cents: int) -> str:
        calls["pay"] += 1
        return f"{cents} under {current_step().idempotency_key[:4]}"

    @durable("k")
    def body(ctx: SyncContext) -> str:
        paid = ctx.write(pay, 5)
        if calls["body"] == 0:
            calls["body"] += 1
            raise Retryable("a second segment")
        return paid

    assert run("k").result.startswith("5 under ")
    assert calls["pay"] == 1
