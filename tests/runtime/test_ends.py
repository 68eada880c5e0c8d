"""How a run ends when what goes in or comes out cannot be: clear errors, the run failed, nothing lost."""

from __future__ import annotations

from typing import Any

import pytest
from pydantic import BaseModel

from agentrun import (
    Client,
    Context,
    Fatal,
    InvalidRequest,
    Reason,
    Retryable,
    Settings,
    Status,
    SyncContext,
    TooLarge,
    durable,
)
from agentrun.runtime.engine import Engine
from agentrun.runtime.kinds import Registry
from agentrun.store.database import Database
from agentrun.testing import RecordingPublisher
from agentrun.testing.rows import Rows


class Order(BaseModel):
    id: str
    cents: int


def stored(database: Database) -> int:
    with database.connection() as connection:
        row = connection.execute("SELECT count(*) AS n FROM agentrun.runs").fetchone()
    assert row is not None
    return row["n"]


@pytest.fixture
def stranger(settings: Settings) -> Any:
    """A producer that knows no kinds: another process, or another language."""
    with Client(settings=settings, kinds=Registry()) as client:
        yield client


# ---- requests


@pytest.mark.parametrize(
    ("request_", "error", "says"),
    [
        ({"id": "a", "cents": "many"}, InvalidRequest, "kind `order`: cents"),
        ({"id": "a"}, InvalidRequest, "cents: Field required"),
        ("a", InvalidRequest, "kind `order`"),
        (object(), InvalidRequest, "cannot be stored as JSON"),
        ({"id": "x" * 5000, "cents": 1}, TooLarge, "over the limit of 1,000.* raise AGENTRUN_MAX_REQUEST_BYTES"),
    ],
    ids=["wrong type", "member missing", "wrong shape", "not JSON", "too large"],
)
@pytest.mark.settings(max_request_bytes=1_000)
def test_a_bad_request_is_refused_before_anything_is_stored(
    client: Client, database: Database, request_: Any, error: type[Exception], says: str
) -> None:
    @durable("order")
    async def order(ctx: Context, order: Order) -> None: ...

    with pytest.raises(error, match=says):
        client.enqueue("order", request_)
    assert stored(database) == 0


def test_a_refusal_never_shows_the_values(client: Client) -> None:
    @durable("order")
    async def order(ctx: Context, order: Order) -> None: ...

    with pytest.raises(InvalidRequest) as refused:
        client.enqueue("order", {"id": "a", "cents": "secret-4711"})
    assert "4711" not in str(refused.value)


def test_a_bad_request_of_a_stranger_fails_its_run_with_the_same_message(
    stranger: Client, client: Client, engine: Engine
) -> None:
    @durable("order")
    async def order(ctx: Context, order: Order) -> None: ...

    run_id = stranger.enqueue("order", {"id": "a"})
    assert engine.run(run_id).outcome == "failed"
    run = client.status(run_id)
    assert (run.status, run.reason) == (Status.FAILED, Reason.NOT_RETRYABLE)
    assert "cents: Field required" in (run.error or {})["message"]
    assert run.request == {"id": "a"}, "what was asked for is kept"


def test_several_parameters_are_the_members_of_one_object(client: Client, stranger: Client, engine: Engine) -> None:
    @durable("send")
    def send(ctx: SyncContext, to: str, text: str = "hello") -> str:
        return f"{to}: {text}"

    run_id = stranger.enqueue("send", {"to": "you"})
    engine.run(run_id)
    assert client.status(run_id).result == "you: hello"
    with pytest.raises(InvalidRequest, match="extra"):
        client.enqueue("send", {"to": "you", "extra": 1})


def test_a_kind_that_is_known_elsewhere_is_left_to_others(
    stranger: Client, engine: Engine, publisher: RecordingPublisher
) -> None:
    run_id = stranger.enqueue("somewhere-else")
    assert engine.run(run_id).outcome == "elsewhere"
    assert stranger.status(run_id).status is Status.QUEUED


# ---- results


@pytest.mark.settings(max_result_bytes=1_000)
@pytest.mark.parametrize(
    ("result", "says"),
    [("x" * 5_000, "AGENTRUN_MAX_RESULT_BYTES"), (object(), "serialize"), ([object()], "serialize")],
    ids=["too large", "not JSON", "not JSON inside"],
)
@pytest.mark.parametrize("of", ["body", "step"])
def test_a_result_that_cannot_be_stored_fails_the_run_and_says_why(
    run: Any, client: Client, result: Any, says: str, of: str
) -> None:
    async def step() -> Any:
        return result

    async def before() -> int:
        return 1

    @durable("k")
    async def body(ctx: Context) -> Any:
        await ctx.step(before)
        if of == "step":
            await ctx.step(step)
        return result

    done = run("k")
    assert (done.status, done.reason, done.result) == (Status.FAILED, Reason.NOT_RETRYABLE, None)
    assert says in done.error["message"]
    assert ("step `step`" if of == "step" else "kind `k`") in done.error["message"]
    assert client.steps(done.id)[0].status == "completed", "what was recorded before stays"


def test_a_result_of_another_shape_than_promised_fails_the_run(run: Any) -> None:
    @durable("k")
    async def body(ctx: Context) -> Order:
        return {"id": "a"}  # type: ignore[return-value]

    done = run("k")
    assert done.status is Status.FAILED
    assert "kind `k` returned what its annotation does not allow: cents" in done.error["message"]


def test_the_limit_is_on_what_is_stored_not_on_what_is_passed_around(run: Any) -> None:
    @durable("k")
    async def body(ctx: Context) -> str:
        return "x" * 900_000

    assert len(run("k").result) == 900_000


@pytest.mark.parametrize("text", ["\0", "a\0b", "😀", "\u2028"], ids=ascii)
def test_odd_characters_survive_in_requests_steps_results_and_errors(run: Any, client: Client, text: str) -> None:
    async def same(value: str) -> str:
        return value

    async def fails(value: str) -> None:
        raise ValueError(value)

    @durable("k")
    async def body(ctx: Context, value: str) -> list[str]:
        seen = [value, await ctx.step(same, value)]
        try:
            await ctx.step(fails, value)
        except Exception as error:
            seen.append(str(error).removeprefix("step `fails` (#2) raised ValueError: "))
        return seen

    done = run("k", text)
    assert done.status is Status.COMPLETED
    assert done.result[:2] == [text, text]
    assert client.steps(done.id)[1].status == "failed"


def test_a_lone_surrogate_fails_its_own_run_and_no_other(run: Any, client: Client) -> None:
    @durable("bad")
    async def bad(ctx: Context) -> str:
        return "\ud800"

    @durable("odd")
    async def odd(ctx: Context) -> None:
        raise ValueError("\ud800")

    @durable("good")
    async def good(ctx: Context) -> str:
        return "fine"

    assert run("bad").status is Status.FAILED
    assert run("odd").status is Status.FAILED
    assert run("good").result == "fine"


# ---- errors


def test_an_unknown_error_is_not_retried(run: Any) -> None:
    @durable("k")
    async def body(ctx: Context) -> None:
        raise KeyError("x")

    done = run("k")
    assert (done.status, done.reason, done.requeue_count) == (Status.FAILED, Reason.NOT_RETRYABLE, 0)
    assert done.error["type"] == "KeyError"


def test_fatal_ends_at_once_and_retryable_is_tried_to_the_end_of_the_budget(run: Any) -> None:
    attempts: list[str] = []

    @durable("fatal")
    async def fatal(ctx: Context) -> None:
        attempts.append("fatal")
        raise Fatal("never")

    @durable("later", max_requeues=2)
    async def later(ctx: Context) -> None:
        attempts.append("later")
        raise Retryable("later")

    assert run("fatal").reason is Reason.NOT_RETRYABLE
    given_up = run("later")
    assert (given_up.reason, given_up.requeue_count, given_up.error_count) == (Reason.RETRIES_EXHAUSTED, 2, 2)
    assert attempts == ["fatal", "later", "later", "later"]


@pytest.mark.settings(backoff_base_seconds=30, backoff_max_seconds=600)
def test_backoff_is_on_the_row_and_an_early_wake_cannot_jump_it(
    client: Client, engine: Engine, rows: Rows, publisher: RecordingPublisher
) -> None:
    @durable("k")
    async def body(ctx: Context) -> None:
        raise Retryable("later")

    run_id = client.enqueue("k")
    delays: list[float] = []
    for _ in range(3):
        engine.run(run_id)
        run = client.status(run_id)
        assert run.due_at is not None
        delays.append(publisher.wakes[-1].delay)
        assert engine.run(run_id).outcome == "early"
        assert client.status(run_id).epoch == run.epoch
        rows.make_due(run_id)
    assert [delay // 30 for delay in delays] == [1, 2, 4]


def test_a_delayed_run_is_not_started_early(client: Client, engine: Engine, publisher: RecordingPublisher) -> None:
    @durable("k")
    async def body(ctx: Context) -> None: ...

    run_id = client.enqueue("k", delay=3600)
    report = engine.run(run_id)
    assert report.outcome == "early"
    assert 3590 < report.early <= 3600
    assert 3590 < publisher.wakes[-1].delay <= 3600
    assert client.status(run_id).status is Status.QUEUED


@pytest.mark.parametrize("error", [SystemExit(3), KeyboardInterrupt(), GeneratorExit()], ids=lambda e: type(e).__name__)
def test_a_body_that_raises_what_ends_processes_fails_only_its_run(run: Any, error: BaseException) -> None:
    @durable("exits")
    async def exits(ctx: Context) -> None:
        raise error

    @durable("good")
    async def good(ctx: Context) -> str:
        return "fine"

    assert run("exits").status is Status.FAILED
    assert run("good").result == "fine"
