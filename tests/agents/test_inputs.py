"""Tool calls that people answer with data: asked once, checked, given to the model as the call's result."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from pydantic import BaseModel, Field
from pydantic_ai import Agent, DeferredToolRequests
from pydantic_ai.exceptions import CallDeferred
from pydantic_ai.tools import ToolDefinition
from pydantic_ai.toolsets import ExternalToolset

from agentrun import Client, Context, Effect, Status, durable, effect
from agentrun.agents import Input, register_agent, run_agent
from agentrun.core.errors import ConfigurationError, InvalidAnswer
from agentrun.runtime.kinds import Registry
from agentrun.testing.clock import Clock
from tests.agents.conftest import Script, Turn, Ward
from tests.agents.test_approvals import asks, results, started

ASKED: list[Turn] = [[("which_list", {"topic": "lamps"}), ("pay", {"cents": 100})], "done"]
FORM, DECISION = "input:call-0-0", "approval:call-0-1"


class Choice(BaseModel):
    """What a person answers."""

    name: str
    copies: int = Field(ge=1)


@effect(Effect.READ_ONLY)
async def which_list(topic: str) -> str:
    raise CallDeferred(metadata={"question": f"Which list for {topic}?"})


@effect(Effect.NON_IDEMPOTENT_WRITE, approval=True)
async def pay(cents: int) -> str:
    return f"paid {cents}"


def test_data_and_decisions_of_one_turn_are_asked_side_by_side_and_become_results(client: Client, ward: Ward) -> None:
    run, script = started(client, ward, ASKED, [which_list, pay], inputs={"which_list": Input(schema=Choice, role="a")})
    assert run.status is Status.WAITING
    assert {wait["step_key"]: (wait["kind"], wait["role"]) for wait in client.waits(run.id)} == {
        FORM: ("input", "a"), DECISION: ("approval", None),
    }  # fmt: skip
    asked = asks(client, run.id)[FORM]
    assert asked["question"] == "Which list for lamps?"
    assert asked["payload"] == {"tool": "which_list", "arguments": {"topic": "lamps"}}
    assert asked["schema"]["required"] == ["name", "copies"]
    for wrong in ({"name": "a"}, {"name": "a", "copies": 0}, "a"):
        with pytest.raises(InvalidAnswer):
            client.submit_input(run.id, wrong, by="eve", key=FORM)
    client.submit_input(run.id, {"name": "gold", "copies": 2}, by="eve", key=FORM)
    assert ward.run(run.id).status is Status.WAITING
    client.approve(run.id, by="eve", key=DECISION)
    run = ward.run(run.id)
    assert (run.status, run.result, script.calls) == (Status.COMPLETED, "done", 2)
    assert results(script.asked[-1]) == [("call-0-0", {"name": "gold", "copies": 2}), ("call-0-1", "paid 100")]


def test_a_crash_after_any_commit_loses_no_data_and_asks_nothing_again(client: Client, ward: Ward) -> None:
    turns: list[Turn] = [[("which_list", {"topic": "lamps"})], "done"]
    for commit in range(1, 10):
        run, script = started(client, ward, turns, [which_list], name=f"crash-{commit}", inputs={"which_list": True})
        client.submit_input(run.id, ["any", "json"], by="eve")
        try:
            ward.die_after(run.id, commit)
        except pytest.fail.Exception:
            assert commit > 2
            return
        run = client.status(run.id)
        run = run if run.status.final else ward.run(run.id)
        assert (run.status, client.waits(run.id)) == (Status.COMPLETED, [])
        assert all(results(asked) == [("call-0-0", ["any", "json"])] for asked in script.asked[1:])
    pytest.fail("the segment never came to its end")


def test_a_tool_without_a_function_is_answered_too_inside_a_body(client: Client, ward: Ward, kinds: Registry) -> None:
    parameters: dict[str, Any] = {"type": "object", "properties": {"question": {"type": "string"}}}
    outside = ExternalToolset([ToolDefinition(name="ask_user", parameters_json_schema=parameters)])
    script = Script([[("ask_user", {"question": "Red or blue?"})], "as you wish"])
    agent = Agent(script.model, name="asks-outside", toolsets=[outside])

    @durable("paints-by-answer")
    async def paints(ctx: Context) -> str:
        return (await run_agent(ctx, agent, "paint", inputs={"ask_user": {"enum": ["red", "blue"]}})).output

    run = ward.run(client.enqueue("paints-by-answer"))
    (wait,) = client.waits(run.id)
    assert (wait["step_key"], wait["name"]) == ("#1/input:call-0-0", "Red or blue?")
    client.submit_input(run.id, "blue", by="eve")
    assert ward.run(run.id).result == "as you wish"
    assert results(script.asked[-1]) == [("call-0-0", "blue")]


def test_what_nobody_answers_in_time_has_its_default(
    client: Client, ward: Ward, clock: Clock, sweep: Callable[[], Any]
) -> None:
    policy = Input(expires=60, on_expiry="default", default="nobody answered")
    turns: list[Turn] = [[("which_list", {"topic": "lamps"})], "done"]
    run, script = started(client, ward, turns, [which_list], inputs={"which_list": policy})
    clock.travel(minutes=2)
    assert sweep().answered == 1
    assert ward.run(run.id).status is Status.COMPLETED
    assert results(script.asked[-1]) == [("call-0-0", "nobody answered")]


def test_deferred_calls_that_are_nobodys_to_answer_are_the_agents_output_as_ever(client: Client, ward: Ward) -> None:
    script = Script([[("which_list", {"topic": "lamps"})]])
    agent = Agent(script.model, name="left-alone", tools=[which_list], output_type=[str, DeferredToolRequests])
    register_agent(agent, inputs={"another": True})
    run = ward.run(client.enqueue("left-alone", "go"))
    assert run.status is Status.COMPLETED
    assert [call["tool_name"] for call in run.result["calls"]] == ["which_list"]


@pytest.mark.parametrize(
    ("wish", "says"),
    [
        ("which?", "is neither True"),
        ({"type": "nothing"}, "is no JSON schema"),
        (False, "is neither True"),
    ],
)
def test_what_is_no_input_is_refused_at_registration(wish: Any, says: str, kinds: Registry) -> None:
    agent = Agent(Script(["done"]).model, name="misregistered", tools=[which_list])
    with pytest.raises(ConfigurationError, match=f"inputs: `which_list`: .*{says}"):
        register_agent(agent, inputs={"which_list": wish})
    with pytest.raises(ValueError, match="does not fit its schema"):
        Input(schema=Choice, on_expiry="default", default={"name": "a"})
