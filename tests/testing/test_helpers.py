"""The small parts of the kit: the scripted model, crashes, failures, stories."""

from __future__ import annotations

from typing import Any

import pytest
from pydantic import BaseModel
from pydantic_ai import Agent

from agentrun import Client, Context, durable, effect
from agentrun.agents import register_agent
from agentrun.core.words import Effect
from agentrun.runtime.effects import declared
from agentrun.testing import LocalBroker, When, fail_times, story
from agentrun.testing.crash import Crash
from agentrun.testing.scripted import Output, ScriptEnded, call, scripted


class Refund(BaseModel):
    order: int
    amount: float


def test_a_scripted_model_says_what_the_script_says_and_keeps_what_it_was_asked(
    client: Client, broker: LocalBroker
) -> None:
    model = scripted(ConnectionError("not now"), [call("look", what="a"), call("look", what="b")], "done")
    agent = Agent(model, name="desk", instructions="be brief")
    seen = []

    @agent.tool_plain
    def look(what: str) -> str:
        seen.append(what)
        return f"saw {what}"

    register_agent(agent)
    run_id = client.enqueue("desk", "help me")
    broker.drain()
    assert client.status(run_id).result == "done"
    assert sorted(seen) == ["a", "b"]
    assert [each.prompt for each in model.asked] == ["help me"] * 3
    assert model.asked[-1].results == {"look": "saw b"}
    assert (model.asked[0].tools, model.asked[0].instructions) == (("look",), "be brief")
    assert {step.name for step in client.steps(run_id) if step.kind == "model"} == {"desk"}
    assert client.status(run_id).usage.model_calls == 2
    model.assert_done()


def test_a_crash_does_not_make_the_scripted_model_lose_its_place(
    client: Client, broker: LocalBroker, crash: Crash
) -> None:
    model = scripted(call("look"), "done")
    agent = Agent(model, name="desk")
    agent.tool_plain(effect(Effect.READ_ONLY)(fail_times(0, function=look)))
    register_agent(agent)
    for commit in (2, 3, 4):
        run_id = client.enqueue("desk", "help")
        assert crash.at(commit, run_id)
        broker.drain()
        run = client.status(run_id)
        assert (run.result, run.crash_count, run.error) == ("done", 1, None)


def look() -> str:
    return "seen"


async def test_a_script_may_end_in_an_output_and_says_so_where_it_is_too_short() -> None:
    model = scripted(Output(Refund(order=7, amount=1.5)), "x")
    assert (await Agent(model, output_type=Refund).run("go")).output == Refund(order=7, amount=1.5)
    with pytest.raises(AssertionError, match="not reached"):
        model.assert_done()
    agent = Agent(scripted(call("look")))
    agent.tool_plain(look)
    with pytest.raises(ScriptEnded, match="has 1 turns and was asked for another one"):
        await agent.run("go")
    assert scripted("x").model_name == "scripted"


async def test_a_scripted_model_streams() -> None:
    agent = Agent(scripted(call("look"), "all is seen"))
    agent.tool_plain(look)
    async with agent.run_stream("go") as streamed:
        assert await streamed.get_output() == "all is seen"


@pytest.mark.parametrize("when", list(When))
def test_a_process_dies_where_the_test_says(client: Client, broker: LocalBroker, crash: Crash, when: When) -> None:
    done = []

    @durable("pays")
    async def pays(ctx: Context) -> int:
        first = await ctx.step(done.append, "a")
        await ctx.write(done.append, "b", effect=Effect.IDEMPOTENT_WRITE)
        return len(done) if first is None else 0

    run_id = client.enqueue("pays")
    assert crash.at(2, run_id, when=when)
    broker.drain()
    assert client.status(run_id).result == (3 if when is When.BEFORE else 2)
    assert client.status(run_id).crash_count == (0 if when is When.LOST else 1)
    assert not crash.at(50, client.enqueue("pays"))


def test_a_function_fails_as_often_as_it_should(client: Client, broker: LocalBroker) -> None:
    @effect(Effect.IDEMPOTENT_WRITE)
    def send(to: str) -> str:
        return f"sent to {to}"

    flaky = fail_times(1, ConnectionError("not now"), send)
    assert declared(flaky) == declared(send)

    @durable("sends")
    async def sends(ctx: Context) -> Any:
        return await ctx.options(retries=3).step(flaky, "ann")

    run_id = client.enqueue("sends")
    broker.drain()
    assert client.status(run_id).result == "sent to ann"
    assert flaky.failing.calls == 2


def test_a_story_is_compared_line_by_line(client: Client, broker: LocalBroker) -> None:
    @durable("told")
    async def told(ctx: Context) -> None:
        await ctx.step(look)
        await ctx.write(look, effect=Effect.NON_IDEMPOTENT_WRITE)
        await ctx.signal("go")

    run_id = client.enqueue("told")
    broker.drain()
    client.signal(run_id, "go")
    broker.drain()
    now = story(client, run_id)
    assert now == [
        "enqueued",
        "claimed",
        "step_completed look",
        "step_started look",
        "step_completed look",
        "parked signal:go",
        "resolved go",
        "requeued go",
        "claimed",
        "step_completed go",
        "settled completed",
    ]
    assert now.effects == ["#2 write look: completed"]
    assert now.steps == ["#1 step look: completed", *now.effects, "#3 signal go: completed"]
    assert now.count("claimed") == 2
    now.assert_in_order("parked", "resolved", "settled completed")
    with pytest.raises(AssertionError, match="'parked' does not come"):
        now.assert_in_order("resolved", "parked")


def test_what_no_model_can_say_is_refused_where_it_is_written() -> None:
    def look() -> str: ...  # pyright: ignore[reportReturnType]

    with pytest.raises(TypeError, match=r'call takes the name of a tool, as `call\("look", …\)`, not a function'):
        call(look)  # pyright: ignore[reportArgumentType]
    for wrong in (None, 7, Output):
        with pytest.raises(TypeError, match="turn 2 of the script is a"):
            scripted("a", wrong)  # pyright: ignore[reportArgumentType]
    with pytest.raises(TypeError, match="turn 1 of the script has a part of type int"):
        scripted(["a", 7])  # pyright: ignore[reportArgumentType]
