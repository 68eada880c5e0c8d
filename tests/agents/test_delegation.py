"""Agents inside bodies and inside tools of other agents: their steps stand apart, and are replayed as any other."""

from __future__ import annotations

import asyncio
import time
from typing import Any

import pytest
from pydantic_ai import Agent, RunContext
from pydantic_ai.exceptions import ModelHTTPError
from pydantic_ai.messages import ModelMessage, ModelResponse, TextPart
from pydantic_ai.models.function import AgentInfo, FunctionModel

from agentrun import (
    BodyError,
    Client,
    ConfigurationError,
    Context,
    Effect,
    Retries,
    Status,
    SyncContext,
    durable,
    effect,
)
from agentrun.agents import AgentrunDurability, register_agent, run_agent
from agentrun.core.policy import Backoff
from tests.agents.conftest import Script, Ward


def keys(client: Client, run_id: Any) -> list[str]:
    return sorted(step.key for step in client.steps(run_id))


def small(script: Script, name: str = "small") -> Agent[None, str]:
    return Agent(script.model, name=name)


# ---- in bodies


def test_an_agent_in_a_body_stands_under_the_position_of_its_call(client: Client, ward: Ward) -> None:
    first, second = Script(["one"]), Script(["two"])

    @durable("digest")
    async def digest(ctx: Context) -> str:
        a = await run_agent(ctx, small(first), "go")
        b = await run_agent(ctx.options(key="second"), small(second), "go")
        return f"{a.output} {b.output} {await ctx.step(len, 'abc')}"

    run_id = client.enqueue("digest")
    ward.die_after(run_id, 3)
    run = ward.run(run_id)
    assert (run.status, run.result) == (Status.COMPLETED, "one two 3"), run.error
    assert keys(client, run_id) == ["#1/model:1", "#2", "second/model:1"]
    assert (first.calls, second.calls) == (1, 1)


@pytest.mark.parametrize(
    ("word", "value", "instead"),
    [("name", "shown", r"Agent\(…, name=…\)"), ("timeout", 5, "`timeout=…` of run_agent itself")],
)
def test_an_agent_in_a_body_refuses_the_options_that_it_cannot_keep(
    word: str, value: Any, instead: str, client: Client, ward: Ward
) -> None:
    script = Script(["one"])

    @durable("digest")
    async def digest(ctx: Context) -> None:
        with pytest.raises(BodyError, match=rf"`run_agent` cannot keep `{word}` of `ctx\.options`; .*{instead}"):
            await run_agent(ctx.options(key="a", **{word: value}), small(script), "go")

    run = ward.run(client.enqueue("digest"))
    assert run.status is Status.COMPLETED, run.error
    assert (keys(client, run.id), script.calls) == ([], 0)


def test_the_retries_of_a_body_are_for_each_request_of_its_agent(client: Client, ward: Ward) -> None:
    asked: list[int] = []

    def answer(messages: list[ModelMessage], info: AgentInfo) -> ModelResponse:
        asked.append(len(messages))
        if len(asked) < 3:
            raise ModelHTTPError(503, "flaky")
        return ModelResponse(parts=[TextPart("done")])

    @durable("digest")
    async def digest(ctx: Context) -> str:
        patient = ctx.options(retries=Retries(3, Backoff(base=0.001, cap=0.001))).options(key="patient")
        return (await run_agent(patient, Agent(FunctionModel(answer), name="small"), "go")).output

    run = ward.run(client.enqueue("digest"))
    assert (run.result, run.requeue_count) == ("done", 0), run.error
    assert (keys(client, run.id), len(asked)) == (["patient/model:1"], 3)


def test_a_plain_body_runs_an_agent_through_its_asynchronous_context_alone(client: Client, ward: Ward) -> None:
    script = Script(["one"])

    @durable("digest")
    def digest(ctx: SyncContext) -> str:
        unfit: Any = ctx
        with pytest.raises(BodyError, match=r"ctx\.wait\(run_agent\(ctx\.asynchronous, agent, …\)\)"):
            ctx.wait(run_agent(unfit, small(script), "go"))
        return ctx.wait(run_agent(ctx.asynchronous, small(script), "go")).output

    run = ward.run(client.enqueue("digest"))
    assert run.result == "one", run.error
    assert (keys(client, run.id), script.calls) == (["#1/model:1"], 1)


def test_an_agent_in_a_body_does_not_move_the_positions_after_it(client: Client, ward: Ward) -> None:
    @durable("digest")
    async def digest(ctx: Context) -> list[int]:
        await run_agent(ctx, small(Script(["one"])), "go")
        return list(await asyncio.gather(ctx.step(len, "a"), _later(ctx)))

    async def _later(ctx: Context) -> int:
        return await ctx.step(len, "ab")

    run_id = ward.run(client.enqueue("digest")).id
    assert keys(client, run_id) == ["#1/model:1", "#2", "#2.1"]


def test_agents_side_by_side_in_a_body_stand_apart(client: Client, ward: Ward) -> None:
    scripts = [Script([f"answer {number}"]) for number in range(3)]

    @durable("digest")
    async def digest(ctx: Context) -> list[str]:
        results = await ctx.gather(*(run_agent(ctx, small(script), "go") for script in scripts))
        return [result.output for result in results]

    run_id = client.enqueue("digest")
    ward.die_after(run_id, 2)
    assert ward.run(run_id).result == ["answer 0", "answer 1", "answer 2"]
    assert keys(client, run_id) == ["#1/model:1", "#2/model:1", "#3/model:1"]


def test_an_agent_that_carries_the_capability_is_not_run_past_the_journal(client: Client, ward: Ward) -> None:
    script = Script(["one", "two"])
    agent = Agent(script.model, name="small", capabilities=[AgentrunDurability()])

    async def plain() -> str:
        return (await agent.run("go")).output

    @durable("digest")
    async def digest(ctx: Context) -> str:
        with pytest.raises(BodyError, match=r"agent `small` was run by `agent\.run` in a body.*run_agent\(ctx, agent"):
            await agent.run("go")
        return await ctx.step(plain) + (await run_agent(ctx, agent, "go")).output

    run = ward.run(client.enqueue("digest"))
    assert (run.status, script.calls) == (Status.COMPLETED, 2), run.error


def test_an_agent_in_a_body_needs_a_name() -> None:
    with pytest.raises(ConfigurationError, match="needs a name"):
        run_agent(None, Agent(Script(["x"]).model), "go")  # pyright: ignore[reportArgumentType]


# ---- in tools


def test_a_delegated_agents_answers_are_not_asked_again(client: Client, ward: Ward) -> None:
    inner, outer = Script([[("look", {})], "found it"]), Script([[("research", {})], "done"])
    looked: list[int] = []

    @effect(Effect.READ_ONLY)
    async def look() -> str:
        looked.append(1)
        return "seen"

    helper = Agent(inner.model, name="helper", tools=[look])

    @effect(Effect.READ_ONLY)
    async def research(ctx: RunContext[Any]) -> str:
        return (await run_agent(ctx, helper, "go")).output

    register_agent(Agent(outer.model, name="desk", tools=[research]))
    run_id = client.enqueue("desk", "go")
    ward.die_after(run_id, 4)
    run = ward.run(run_id)
    assert run.status is Status.COMPLETED, run.error
    inside = "tool:call-0-0"
    expected = ["model:1", "model:2", inside, f"{inside}/model:1", f"{inside}/model:2", f"{inside}/tool:call-0-0"]
    assert keys(client, run_id) == expected
    assert (inner.calls, outer.calls, len(looked)) == (2, 2, 1)
    assert run.usage.model_calls == 4


def test_agents_that_carry_the_capability_are_journaled_where_they_are_called(client: Client, ward: Ward) -> None:
    scripts = [Script(["a"]), Script(["b"])]
    helpers = [Agent(each.model, name="helper", capabilities=[AgentrunDurability()]) for each in scripts]
    outer = Script([[("research", {})], "done"])

    @effect(Effect.READ_ONLY)
    async def research() -> str:
        results = await asyncio.gather(*(helper.run("go") for helper in helpers))
        return " ".join(result.output for result in results)

    register_agent(Agent(outer.model, name="desk", tools=[research]))
    run_id = client.enqueue("desk", "go")
    ward.die_after(run_id, 3)
    run = ward.run(run_id)
    assert run.status is Status.COMPLETED, run.error
    inside = "tool:call-0-0"
    assert keys(client, run_id) == ["model:1", "model:2", inside, f"{inside}/model:1", f"{inside}/run:2/model:1"]
    assert [script.calls for script in scripts] == [1, 1]


def test_an_agent_inside_a_write_is_one_with_the_write(client: Client, ward: Ward) -> None:
    inner, outer = Script(["sent"]), Script([[("send", {})], "done"])

    async def send(ctx: RunContext[Any]) -> str:
        return (await run_agent(ctx, small(inner), "go")).output

    register_agent(Agent(outer.model, name="desk", tools=[send]))
    run = ward.run(client.enqueue("desk", "go"))
    assert run.status is Status.COMPLETED, run.error
    assert keys(client, run.id) == ["model:1", "model:2", "tool:call-0-0"]


def test_a_write_inside_a_delegated_agent_is_fenced(client: Client, ward: Ward) -> None:
    inner, outer = Script([[("act", {})], "acted"]), Script([[("research", {})], "done"])

    async def act() -> str:
        return "acted"

    helper = Agent(inner.model, name="helper", tools=[act])

    @effect(Effect.READ_ONLY)
    async def research(ctx: RunContext[Any]) -> str:
        return (await run_agent(ctx, helper, "go")).output

    register_agent(Agent(outer.model, name="desk", tools=[research]))
    run_id = client.enqueue("desk", "go")
    ward.die_after(run_id, 4)
    run = client.status(run_id)
    assert (run.status, run.pending_effect) == (Status.FAILED, Effect.NON_IDEMPOTENT_WRITE)
    client.resolve(run_id, applied=True, result="acted by hand")
    assert ward.run(run_id).status is Status.COMPLETED
    steps = {step.key: step.result for step in client.steps(run_id)}
    assert steps["tool:call-0-0/tool:call-0-0"] == "acted by hand"
    assert inner.calls == 2


def test_a_provider_that_fails_inside_a_delegated_agent_is_asked_again(client: Client, ward: Ward) -> None:
    asked: list[int] = []

    def answer(messages: list[ModelMessage], info: AgentInfo) -> ModelResponse:
        asked.append(1)
        if len(asked) == 1:
            raise ModelHTTPError(503, "helper")
        return ModelResponse([TextPart("found")])

    helper = Agent(FunctionModel(answer), name="helper")
    outer = Script([[("research", {})], "done"])

    @effect(Effect.READ_ONLY)
    async def research(ctx: RunContext[Any]) -> str:
        return (await run_agent(ctx, helper, "go")).output

    register_agent(Agent(outer.model, name="desk", tools=[research]))
    run = ward.run(client.enqueue("desk", "go"))
    assert (run.status, run.error_count) == (Status.QUEUED, 1)
    time.sleep(0.3)
    run = ward.run(run.id)
    assert run.status is Status.COMPLETED, run.error
    assert (len(asked), outer.calls) == (2, 2)


async def test_outside_of_runs_agents_run_as_ever() -> None:
    script = Script([[("ask", {})], "done"])
    helper = small(Script(["helped"]))

    async def ask(ctx: RunContext[Any]) -> str:
        return (await run_agent(ctx, helper, "go")).output

    result = await Agent(script.model, name="desk", tools=[ask], capabilities=[AgentrunDurability()]).run("go")
    assert (result.output, script.calls) == ("done", 2)
