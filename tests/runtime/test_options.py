"""`ctx.options`: every verb keeps what it is asked for, or says that it cannot."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from agentrun import Client, Context, Effect, Retries, Retryable, Status, StepFailed, SyncContext, durable
from agentrun.core.errors import BodyError
from agentrun.core.policy import Backoff
from agentrun.runtime.engine import Engine

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
