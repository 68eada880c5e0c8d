"""A recorded journal against today's code: the same way, or the first key where it parts. Nothing is executed."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest
from pydantic_ai import Agent
from pydantic_ai.models.test import TestModel
from typer.testing import CliRunner

from agentrun import Client, Context, Effect, Settings, durable, remote_step
from agentrun.agents import register_agent
from agentrun.cli import app
from agentrun.core.errors import InvalidRequest, StepFailed, UnknownKind
from agentrun.runtime.journals import Journal
from agentrun.testing import LocalBroker, environment, recorded, replay, replay_file
from agentrun.testing.rows import Rows

calls: list[str] = []


def look(what: str = "") -> str:
    calls.append(what)
    return f"saw {what}"


def pay() -> None:
    calls.append("paid")


@pytest.fixture
def redefine(kinds: Any) -> Callable[..., None]:
    """Register another body for a kind: today's code."""

    def again(name: str, body: Callable[..., Any]) -> None:
        kinds._kinds.pop(name, None)
        durable(name)(body)

    return again


async def everything(ctx: Context, name: str) -> list[Any]:
    first = await ctx.step(look, name)
    both = await ctx.gather(ctx.step(look, "a"), ctx.child("small", 1))
    await ctx.write(pay)
    await ctx.sleep(hours=1)
    said = await ctx.signal("go")
    hook = await ctx.webhook()
    spawned = await ctx.spawn("small", 2)
    decision = await ctx.approval("may I?")
    try:
        await ctx.step(_breaks)
    except StepFailed as error:
        failed = error.error_type
    return [first, both, said, bool(decision), await spawned.result(), await hook.wait(), failed]


def _breaks() -> None:
    raise ValueError("always")


async def small(ctx: Context, n: int) -> None:
    await ctx.step(look, str(n))


@pytest.fixture
def done(client: Client, broker: LocalBroker, redefine: Callable[..., None]) -> UUID:
    """A run of everything, at its end."""
    redefine("everything", everything)
    redefine("small", small)
    run_id = client.enqueue("everything", "x")
    broker.drain()
    client.signal(run_id, "go", {"n": 1})
    broker.drain()
    client.approve(run_id, by="ann")
    token = next(step.result for step in client.steps(run_id) if step.name == "token")
    client.webhook(token, "ping")
    broker.drain()
    assert client.status(run_id).status == "completed", client.status(run_id)
    calls.clear()
    return run_id


def test_todays_code_takes_the_same_way_and_nothing_happens(client: Client, done: UUID, rows: Rows) -> None:
    before = rows.stored(done)
    told = replay(client, done)
    assert told, str(told)
    assert (told.ending, told.same_result, told.goes_on) == ("completes", True, ())
    assert told.replayed == told.recorded == len(before["steps"])
    assert calls == []
    assert rows.stored(done) == before


def test_every_kind_of_change_is_found_at_its_key(client: Client, done: UUID, redefine: Callable[..., None]) -> None:
    async def other_step(ctx: Context, name: str) -> None:
        await ctx.write(pay)

    async def other_wait(ctx: Context, name: str) -> None:
        await ctx.step(look, name)
        try:
            await ctx.gather(ctx.step(look, "a"), ctx.signal("small"))
        except Exception:
            calls.append("swallowed")

    async def shorter(ctx: Context, name: str) -> None:
        await ctx.step(look, name)

    async def longer(ctx: Context, name: str) -> list[Any]:
        result = await everything(ctx, name)
        await ctx.step(look, "more")
        return result

    async def raises(ctx: Context, name: str) -> None:
        raise KeyError("new")

    async def another_result(ctx: Context, name: str) -> int:
        return len(await everything(ctx, name))

    def found(body: Callable[..., Any]) -> tuple[str, str, str]:
        redefine("everything", body)
        parts = replay(client, done).parts
        assert parts is not None
        return parts.key, parts.recorded, parts.now

    assert found(other_step) == ("#1", "step `look`", "asks for write `pay`")
    assert found(other_wait)[:2] == ("#3", "child `small`")
    assert found(shorter) == ("#2", "step `look`", "completes without it")
    assert found(longer)[1:] == ("nothing: the run had completed", "asks for `#11` step look")
    assert found(raises)[0] == "#1"
    assert "KeyError" in found(raises)[2]
    told = replay(client, done, another_result)
    assert told
    assert told.same_result is False


def test_a_run_that_is_not_over_goes_on_from_its_frontier(
    client: Client, broker: LocalBroker, redefine: Callable[..., None]
) -> None:
    redefine("everything", everything)
    redefine("small", small)
    run_id = client.enqueue("everything", "x")
    told = replay(client, run_id)
    assert (told.same, told.ending, told.goes_on) == (True, "goes on", ("#1 step look",))
    broker.drain()
    told = replay(client, run_id)
    assert (told.same, told.goes_on) == (True, ("#6 signal go",))


def test_steps_that_others_do_are_replayed_too(
    client: Client, broker: LocalBroker, redefine: Callable[..., None]
) -> None:
    @remote_step("ocr", effect=Effect.READ_ONLY)
    def ocr(page: int) -> str:
        calls.append("ocr")
        return f"page {page}"

    async def reads(ctx: Context) -> list[Any]:
        return [await ctx.remote("ocr", 1, queue="gpu"), await ctx.external("stamp", 1)]

    redefine("reads", reads)
    run_id = client.enqueue("reads")
    assert replay(client, run_id).goes_on == ("#1 remote ocr",)
    broker.drain()
    calls.clear()
    told = replay(client, run_id)
    assert (told.same, told.replayed, told.ending, calls) == (True, 1, "goes on", [])

    async def stamps(ctx: Context) -> Any:
        return await ctx.remote("stamp", 1, queue="gpu")

    redefine("reads", stamps)
    assert str(replay(client, run_id).parts) == (
        "at #1: recorded is remote `ocr`; today's code asks for remote `stamp`"
    )


def test_steps_with_keys_may_come_and_go(client: Client, broker: LocalBroker, redefine: Callable[..., None]) -> None:
    async def old(ctx: Context) -> None:
        await ctx.options(key="first").step(look, "1")
        await ctx.step(look, "2")

    async def without(ctx: Context) -> None:
        await ctx.step(look, "2")

    async def with_more(ctx: Context) -> None:
        await ctx.options(key="new").step(look, "0")
        await old(ctx)

    redefine("keyed", old)
    run_id = client.enqueue("keyed")
    broker.drain()
    redefine("keyed", without)
    told = replay(client, run_id)
    assert (told.same, told.left_out) == (True, ("first step look",))
    redefine("keyed", with_more)
    told = replay(client, run_id)
    assert (told.same, told.goes_on) == (True, ("new step look",))
    assert told.left_out == ("first step look", "#1 step look")


def test_a_failed_run_may_be_mended(client: Client, broker: LocalBroker, redefine: Callable[..., None]) -> None:
    async def broken(ctx: Context) -> str:
        await ctx.step(look, "x")
        raise ValueError("a bug")

    async def mended(ctx: Context) -> str:
        return await ctx.step(look, "x")

    redefine("buggy", broken)
    run_id = client.enqueue("buggy")
    broker.drain()
    assert client.status(run_id).status == "failed"
    assert replay(client, run_id).ending == "fails"
    redefine("buggy", mended)
    told = replay(client, run_id)
    assert (told.same, told.ending) == (True, "completes")


def test_a_plain_body_is_replayed_too(client: Client, broker: LocalBroker, redefine: Callable[..., None]) -> None:
    def plain(ctx: Any, n: int) -> list[str]:
        return [ctx.step(look, str(i)) for i in range(n)]

    redefine("plain", plain)
    run_id = client.enqueue("plain", 3)
    broker.drain()
    calls.clear()
    assert replay(client, run_id).replayed == 3
    assert calls == []


def test_an_agents_run_is_replayed_without_its_model_and_tools(client: Client, broker: LocalBroker, kinds: Any) -> None:
    def desk(model: Any) -> None:
        kinds._kinds.pop("desk", None)
        agent = Agent(model, name="desk")
        agent.tool_plain(look)
        register_agent(agent)

    desk(TestModel())
    run_id = client.enqueue("desk", "help")
    broker.drain()
    assert client.status(run_id).status == "completed"
    calls.clear()
    told = replay(client, run_id)
    assert told, str(told)
    assert (told.replayed, calls) == (told.recorded, [])


def test_a_journal_out_of_a_file_needs_no_database(client: Client, done: UUID, tmp_path: Path) -> None:
    (tmp_path / "run.json").write_text(recorded(client, done).as_json())
    told = replay_file(tmp_path / "run.json")
    assert told, str(told)
    assert told == replay(client, done)


def test_what_cannot_be_replayed_says_why(client: Client, done: UUID, kinds: Any, tmp_path: Path) -> None:
    with pytest.raises(InvalidRequest, match="no exported journal"):
        Journal.parsed('{"agentrun_journal": 1}')
    with pytest.raises(InvalidRequest, match="format 99"):
        Journal.parsed('{"agentrun_journal": 99}')
    kinds._kinds.pop("everything")
    with pytest.raises(UnknownKind):
        replay(client, done)


def test_the_command_replays_runs_and_files(
    client: Client, done: UUID, redefine: Callable[..., None], settings: Settings, monkeypatch: Any, tmp_path: Path
) -> None:
    for name, value in environment.variables(settings).items():
        monkeypatch.setenv(name, value)

    def agentrun(*arguments: str) -> Any:
        return CliRunner().invoke(app, ["replay", *arguments])

    told = agentrun(str(done))
    assert (told.exit_code, "takes the same way" in told.output) == (0, True), told.output
    file = tmp_path / "journal.json"
    file.write_text(agentrun(str(done), "--journal").output)
    redefine("everything", small)
    for what in (str(done), str(file)):
        told = agentrun(what, "--json")
        assert told.exit_code == 1
        assert json.loads(told.output)["parts"]["key"] == "#1"
    assert agentrun(str(tmp_path / "nothing.json")).exit_code not in (0, 1)
