"""`ctx.options`: every verb keeps what it is asked for, or says that it cannot."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest
from pydantic_ai import Agent
from pydantic_ai.models.test import TestModel

from agentrun import Client, Context, Effect, Reason, Retries, Retryable, Status, StepFailed, SyncContext, durable
from agentrun.agents import register_agent
from agentrun.core.errors import BodyError, ConfigurationError, InvalidRequest
from agentrun.core.policy import Backoff
from agentrun.runtime.engine import Engine
from agentrun.runtime.kinds import Registry
from agentrun.runtime.remotesteps import remote_step, remote_steps
from agentrun.settings import Settings

QUICK = Backoff(base=0.001, cap=0.001)

ALL: dict[str, Any] = {"key": "mine", "name": "shown", "retries": 3, "timeout": 5}


async def act() -> str:
    return "done"


def enter(connection: Any) -> int:
    return connection.execute("SELECT 5 AS five").fetchone()["five"]


CANNOT: dict[str, tuple[set[str], Callable[[Context], Any]]] = {
    "write": ({"retries"}, lambda ctx: ctx.write(act)),
    "write (idempotent)": ({"retries"}, lambda ctx: ctx.write(act, effect=Effect.IDEMPOTENT_WRITE)),
    "transaction": ({"timeout"}, lambda ctx: ctx.transaction(enter)),
    "sleep": ({"name", "retries", "timeout"}, lambda ctx: ctx.sleep(hours=1)),
    "sleep (short)": ({"name", "retries", "timeout"}, lambda ctx: ctx.sleep(0)),
    "signal": ({"name", "retries", "timeout"}, lambda ctx: ctx.signal("go", timeout=0, default="none came")),
    "approval": ({"name", "retries", "timeout"}, lambda ctx: ctx.approval("sure?")),
    "input": ({"name", "retries", "timeout"}, lambda ctx: ctx.input("n?", schema={"type": "integer"})),
    "webhook": ({"name", "retries", "timeout"}, lambda ctx: ctx.webhook()),
    "child": ({"name", "retries", "timeout"}, lambda ctx: ctx.child("k")),
    "spawn": ({"name", "retries", "timeout"}, lambda ctx: ctx.spawn("k")),
    "remote": ({"name", "retries", "timeout"}, lambda ctx: ctx.remote("elsewhere")),
    "external": ({"name", "retries", "timeout"}, lambda ctx: ctx.external("outside")),
    "gather": (set(ALL), lambda ctx: ctx.gather(ctx.step(act))),
}


@pytest.mark.parametrize("said", CANNOT)
def test_a_verb_refuses_the_options_that_it_cannot_keep_and_nothing_is_recorded(
    run: Any, client: Client, said: str
) -> None:
    cannot, ask = CANNOT[said]
    verb = said.partition(" ")[0]
    told: dict[str, str] = {}

    @durable("k")
    async def body(ctx: Context) -> None:
        for word in cannot:
            with pytest.raises(BodyError, match=rf"`ctx\.{verb}` cannot keep `{word}` of `ctx\.options`; ") as refused:
                await ask(ctx.options(**{word: ALL[word]}))
            told[word] = str(refused.value)

    done = run("k")
    assert (done.status, told.keys()) == (Status.COMPLETED, cannot)
    assert client.steps(done.id) == []


def test_a_transaction_that_is_given_a_timeout_is_told_of_postgresqls_own(run: Any) -> None:
    @durable("k")
    async def body(ctx: Context) -> int:
        with pytest.raises(BodyError, match=r"cannot be interrupted.*SET LOCAL statement_timeout = '20s'"):
            await ctx.options(timeout=0.3).transaction(enter)

        def bounded(connection: Any) -> int:
            connection.execute("SET LOCAL statement_timeout = '50ms'")
            return connection.execute("SELECT 1 FROM pg_sleep(60)").rowcount

        with pytest.raises(StepFailed, match="QueryCanceled"):
            await ctx.transaction(bounded)
        return await ctx.transaction(enter)

    assert run("k").result == 5


def test_a_plain_body_is_refused_as_well(run: Any) -> None:
    @durable("k")
    def body(ctx: SyncContext) -> str:
        with pytest.raises(BodyError, match="cannot keep `timeout`"):
            ctx.options(timeout=0.3).transaction(enter)
        with pytest.raises(BodyError, match="cannot keep `name` and `timeout`"):
            ctx.options(name="shown", timeout=0.3).signal("go")
        return "refused"

    assert run("k").result == "refused"


def test_what_a_verb_can_keep_is_kept(run: Any, client: Client) -> None:
    attempts: list[str] = []

    def flaky(connection: Any) -> int:
        attempts.append("transaction")
        if len(attempts) < 3:
            raise ConnectionError("away")
        return enter(connection)

    @durable("k")
    async def body(ctx: Context) -> None:
        await ctx.options(key="a", name="entered", retries=Retries(3, QUICK)).transaction(flaky)
        await ctx.options(key="b", name="written", timeout=5).write(act)
        await ctx.options(key="c", name="read", timeout=5, retries=2).write(act, effect=Effect.READ_ONLY)
        await ctx.options(key="d", name="looked", timeout=5, retries=2).step(act)
        await ctx.options(key="e", name="when").now()
        await ctx.options(key="f").sleep(0)

    done = run("k")
    kept = [(step.key, step.name) for step in client.steps(done.id)]
    assert kept == [
        ("a", "entered"), ("b", "written"), ("c", "read"), ("d", "looked"), ("e", "when"), ("f", "sleep"),
    ]  # fmt: skip
    assert attempts == ["transaction"] * 3


def test_what_was_said_before_stays_and_the_same_word_said_anew_replaces_it(run: Any, client: Client) -> None:
    attempts: list[str] = []

    async def flaky() -> str:
        attempts.append("tried")
        if len(attempts) < 3:
            raise ConnectionError("away")
        return "looked"

    @durable("k")
    async def body(ctx: Context) -> None:
        charge = ctx.options(key="charge", name="charged", timeout=0.05)
        with pytest.raises(BodyError, match="cannot keep `retries` of"):
            await charge.options(retries=3).write(act)
        with pytest.raises(StepFailed, match="TimeoutError"):
            await charge.options(retries=1).step(asyncio.sleep, 5)
        await ctx.options(retries=Retries(3, QUICK)).options(key="a").options(name="looked").step(flaky)
        await charge.options(timeout=5).options(key="b").step(asyncio.sleep, 0.2)
        await charge.options(key="c", name="other").step(act)
        await ctx.step(act)

    done = run("k")
    assert done.status is Status.COMPLETED, done.error
    assert [(step.key, step.name) for step in client.steps(done.id)] == [
        ("charge", "charged"), ("a", "looked"), ("b", "charged"), ("c", "other"), ("#1", "act"),
    ]  # fmt: skip
    assert attempts == ["tried"] * 3


@pytest.mark.parametrize("word", ["key", "name", "timeout"])
def test_a_verb_refuses_what_was_said_before_as_well(word: str, run: Any) -> None:
    @durable("k")
    async def body(ctx: Context) -> None:
        for again in ALL.keys() - {word}:
            with pytest.raises(BodyError, match=rf"cannot keep .*`{word}`"):
                await ctx.options(**{word: ALL[word]}).options(**{again: ALL[again]}).gather(ctx.step(act))

    assert run("k").status is Status.COMPLETED


def test_the_retries_of_a_kind_are_for_its_steps_and_refused_by_no_other_verb(run: Any) -> None:
    @durable("k", retries=3)
    async def body(ctx: Context) -> list[str]:
        await ctx.sleep(0)
        return await ctx.gather(ctx.write(act), ctx.step(act))

    assert run("k").result == ["done", "done"]


def test_a_run_that_goes_on_as_new_takes_no_options_along(engine: Engine, client: Client) -> None:
    @durable("k")
    async def body(ctx: Context, times: int) -> None:
        with pytest.raises(BodyError, match=r"`ctx\.continue_as_new` cannot keep `retries`"):
            ctx.options(retries=3).continue_as_new(times - 1)
        raise Retryable("not gone on")

    run_id = client.enqueue("k", 2)
    engine.run(run_id)
    assert client.status(run_id).status is Status.QUEUED


# ---- what the guides say of writes that take too long


def test_a_timeout_of_asyncio_around_a_write_leaves_its_result_to_the_replay(run: Any) -> None:
    let, got = asyncio.Event(), list[str]()

    async def slow() -> str:
        await let.wait()
        return "written"

    @durable("k")
    async def body(ctx: Context) -> None:
        try:
            async with asyncio.timeout(0.05):
                got.append(await ctx.write(slow))
        except TimeoutError:
            got.append("timed out")
            let.set()
            raise Retryable("a second segment, please") from None

    assert run("k").status is Status.COMPLETED
    assert got == ["timed out", "written"]


def test_a_timeout_of_an_idempotent_write_is_recorded_as_its_failure(run: Any) -> None:
    got: list[str] = []

    @durable("k")
    async def body(ctx: Context) -> None:
        try:
            await ctx.options(timeout=0.05).write(asyncio.Event().wait, effect=Effect.IDEMPOTENT_WRITE)
        except StepFailed as failed:
            got.append(failed.error_type)
        if len(got) < 2:
            raise Retryable("a second segment, please")

    assert run("k").status is Status.COMPLETED
    assert got == ["TimeoutError", "TimeoutError"]


def test_a_timeout_of_another_write_leaves_it_unknown(run: Any) -> None:
    @durable("k")
    async def body(ctx: Context) -> str:
        try:
            await ctx.options(timeout=0.05).write(asyncio.Event().wait)
        except Exception:
            return "went on"
        return "in time"

    done = run("k")
    assert (done.status, done.reason, done.pending_effect) == (
        Status.FAILED, Reason.NOT_RETRYABLE, "non_idempotent_write",
    )  # fmt: skip


def test_the_time_is_shown_by_the_name_of_its_verb(run: Any, client: Client) -> None:
    @durable("k")
    async def body(ctx: Context) -> None:
        await ctx.now()

    assert [step.name for step in client.steps(run("k").id)] == ["now"]


# ---- values


def no_number(what: str) -> list[Any]:
    return [("a", f"{what}.*not 'a'"), ([], f"{what}.*not \\[\\]"), (True, f"{what}.*not True")]


BAD: dict[str, list[tuple[Any, str]]] = {
    "retries": [
        *no_number(r"retries must be 1 \(tried once\) to 1,000,000 attempts"),
        *((value, f"retries must be 1.*, not {value}") for value in (0, -2, 1.5, 10**9)),
    ],
    "timeout": [
        *no_number("timeout must be more than 0 seconds and at most 10 years, as seconds or a timedelta"),
        *((value, f"timeout must be more than 0.*, not {value}") for value in (0, -1, float("nan"), float("inf"))),
        (timedelta(0), r"timeout must be more than 0.*not datetime\.timedelta\(0\)"),
    ],
    "name": [("", "name must be 1 to 200"), (7, "name must be 1 to 200.*not 7"), ("x" * 201, "name must be 1 to 200")],
    "key": [("", "key must be 1 to 200"), (7, "key must be 1 to 200.*not 7"), ("#1", "must not start with '#'")],
}


@pytest.mark.parametrize("word", BAD)
def test_a_value_that_cannot_be_an_option_is_refused_where_it_is_said(word: str, run: Any) -> None:
    @durable("k")
    async def body(ctx: Context) -> int:
        for value, told in BAD[word]:
            with pytest.raises(BodyError, match=told):
                ctx.options(**{word: value})
        return len(BAD[word])

    assert run("k").result == len(BAD[word])


def test_a_timeout_may_be_a_timedelta(run: Any) -> None:
    @durable("k")
    async def body(ctx: Context) -> str:
        with pytest.raises(StepFailed, match="TimeoutError"):
            await ctx.options(timeout=timedelta(milliseconds=50)).step(asyncio.Event().wait)
        return await ctx.options(timeout=timedelta(minutes=1)).step(act)

    assert run("k").result == "done"


BAD_OF_A_KIND: dict[str, list[tuple[Any, str]]] = {
    **{word: BAD[word] for word in ("retries", "timeout")},
    "max_requeues": [
        *no_number(r"max_requeues must be 0 \(never\) to 1,000,000 times"),
        *((value, f"max_requeues must be 0.*, not {value}") for value in (-1, 1.5, float("nan"), 10**9)),
    ],
    "lease_seconds": [
        *no_number("lease_seconds must be 1 second to 10 years"),
        *((value, f"lease_seconds must be 1.*, not {value}") for value in (0, -1, 0.5, float("nan"), float("inf"))),
        (timedelta(seconds=30), r"lease_seconds must be 1.*not datetime\.timedelta\(seconds=30\)"),
    ],
    "queue": [
        (value, f"queue must be 1 to 200 printable .*, not {told}; leave it out for the usual queue")
        for value, told in (
            (7, "7"),
            (True, "True"),
            (["gpu"], r"\['gpu'\]"),
            ("", "''"),
            ("gpu\n", r"'gpu\\n'"),
            ("gpu,cpu", "'gpu,cpu'"),
            (" gpu", "' gpu'"),
            ("q" * 201, "'q{40}'"),
        )
    ],
    "four_eyes": [
        (value, f"four_eyes must be True or False, not {told}")
        for value, told in (("no", "'no'"), (0, "0"), (1, "1"), (None, "None"), (["ann"], r"\['ann'\]"))
    ],
}


@pytest.mark.parametrize("word", BAD_OF_A_KIND)
def test_a_kind_refuses_them_where_it_is_registered_and_names_itself(word: str, kinds: Registry) -> None:
    for value, told in BAD_OF_A_KIND[word]:
        with pytest.raises(ConfigurationError, match=f"kind `careless`: {told}"):
            durable("careless", **{word: value})
        with pytest.raises(ConfigurationError, match=f"kind `careless`: {told}"):
            register_agent(Agent(TestModel(), name="careless"), **{word: value})
    assert kinds.get("careless") is None


def test_the_least_that_a_kind_may_say_is_kept(kinds: Registry, client: Client, engine: Engine) -> None:
    @durable("k", max_requeues=0, lease_seconds=1)
    async def body(ctx: Context) -> None:
        raise Retryable("later")

    assert kinds.require("k").options.overrides() == {"max_requeues": 0, "lease_seconds": 1.0}
    run_id = client.enqueue("k")
    engine.run(run_id)
    assert client.status(run_id).reason is Reason.RETRIES_EXHAUSTED


@pytest.mark.parametrize("namespace", ["default", "team"])
def test_a_queue_that_cannot_be_one_is_refused_of_a_run_and_of_a_remote_step(
    namespace: str, settings: Settings
) -> None:
    with Client(settings=settings, namespace=namespace, kinds=Registry()) as there:
        for value, told in BAD_OF_A_KIND["queue"]:
            with pytest.raises(InvalidRequest, match=told):
                there.enqueue("k", queue=value)
            with pytest.raises(ConfigurationError, match=f"remote step `careless`: {told}"):
                remote_step("careless", queue=value)(act)
        assert (there.list(), remote_steps.get("careless")) == ([], None)


def test_retries_and_their_backoff_refuse_what_they_cannot_be() -> None:
    for value, told in BAD["retries"]:
        with pytest.raises(InvalidRequest, match=told):
            Retries(attempts=value)
    seconds: Any = 5
    with pytest.raises(InvalidRequest, match=r"must be a Backoff\(base, cap, jitter\), not 5"):
        Retries(3, backoff=seconds)
    for word in ("base", "cap", "jitter"):
        for value in (-1, float("nan"), float("inf"), "a", None, True):
            with pytest.raises(InvalidRequest, match=f"the {word} of a backoff must be a number, 0 or more, not "):
                Backoff(**{word: value})
