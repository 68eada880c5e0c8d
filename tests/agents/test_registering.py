"""`register_agent`: what it takes, what it refuses, and that the agent stays as its author wrote it."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from collections.abc import AsyncIterator
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

import pytest
from pydantic import BaseModel
from pydantic_ai import Agent, NativeOutput, RunContext, TextOutput, ToolOutput
from pydantic_ai.durable_exec import BaseDurabilityCapability, DurabilityEngineSpec
from pydantic_ai.messages import ModelRequest, UserPromptPart
from pydantic_ai.models.test import TestModel
from pydantic_ai.toolsets import FunctionToolset

from agentrun import Client, ConfigurationError, Context, Effect, InvalidRequest, Status, durable, effect
from agentrun.agents import AgentRequest, AgentrunDurability, ToolFacts, register_agent
from agentrun.runtime.kinds import Registry
from tests.agents.conftest import Script, Ward


def named(name: str | None = "desk", *turns: Any, **options: Any) -> Agent[Any, Any]:
    return Agent(Script(list(turns) or ["done"]).model, name=name, **options)


# ---- refusals


def test_an_agent_without_a_name_is_refused_and_told_how_to_get_one(kinds: Registry) -> None:
    with pytest.raises(ConfigurationError, match='register_agent\\(agent, name="refund-desk"\\)'):
        register_agent(named(None))
    assert register_agent(named(None), name="desk") is not None
    assert kinds.get("desk") is not None


def test_an_agent_without_a_model_is_refused(kinds: Registry) -> None:
    with pytest.raises(ConfigurationError, match="model"):
        register_agent(Agent(name="desk"))


def test_another_agent_under_the_same_name_is_refused(kinds: Registry) -> None:
    register_agent(named())
    with pytest.raises(ConfigurationError, match="registered already"):
        register_agent(named())


def test_a_function_under_the_same_name_is_refused(kinds: Registry) -> None:
    @durable("desk")
    async def desk(ctx: Context) -> None: ...

    with pytest.raises(ConfigurationError, match="registered already"):
        register_agent(named())


def test_the_same_agent_twice_is_harmless_and_the_last_options_count(kinds: Registry) -> None:
    agent = named()
    register_agent(agent, queue="slow")
    register_agent(agent, queue="fast", timeout=60, max_requeues=1)
    kind = kinds.require("desk")
    assert (kind.options.queue, kind.options.timeout, kind.options.max_requeues) == ("fast", timedelta(seconds=60), 1)


def test_an_agent_with_another_engine_is_refused(kinds: Registry) -> None:
    class Other(BaseDurabilityCapability[Any]):
        engine_spec = DurabilityEngineSpec(engine_name="Other", durable_unit_noun="unit", durable_container_noun="flow")
        in_durable_context = False

        def get_durable_operation_backend(self) -> Any:
            return AgentrunDurability(name="x").get_durable_operation_backend()

    with pytest.raises(ConfigurationError, match="another engine"):
        register_agent(named(capabilities=[Other(name="other")]))


def test_an_agent_that_needs_dependencies_is_refused_without_them(kinds: Registry) -> None:
    with pytest.raises(ConfigurationError, match="deps=lambda"):
        register_agent(named(deps_type=int))


def test_an_unknown_effect_is_refused(kinds: Registry) -> None:
    with pytest.raises(ConfigurationError, match="read_only"):
        register_agent(named(), effects={"act": "harmless"})  # pyright: ignore[reportArgumentType]


def test_an_effect_that_contradicts_the_tools_own_declaration_is_refused(kinds: Registry) -> None:
    @effect(Effect.NON_IDEMPOTENT_WRITE)
    def act() -> None: ...

    with pytest.raises(ConfigurationError, match="declares itself non_idempotent_write"):
        register_agent(named(tools=[act]), effects={"act": Effect.READ_ONLY})


def test_a_request_of_the_wrong_shape_is_refused_before_it_is_stored(client: Client) -> None:
    register_agent(named())
    with pytest.raises(InvalidRequest, match="promt"):
        client.enqueue("desk", {"promt": "hello"})
    assert client.list() == []


# ---- what stays


async def test_the_agent_still_runs_by_itself(kinds: Registry) -> None:
    agent = register_agent(named("desk", "first", capabilities=[AgentrunDurability()]))
    assert (await agent.run("go")).output == "first"


def test_registering_adds_nothing_to_the_agent(kinds: Registry) -> None:
    agent = named()
    register_agent(agent)
    assert AgentrunDurability.from_agent(agent) is None


def test_what_is_undeclared_can_be_listed(kinds: Registry) -> None:
    @effect(Effect.READ_ONLY)
    def look() -> None: ...

    def act() -> None: ...

    register_agent(named(tools=[look, act]), effects={"remote": Effect.IDEMPOTENT_WRITE})
    assert kinds.require("desk").about["tools"]() == [
        ToolFacts("look", Effect.READ_ONLY),
        ToolFacts("act", None),
        ToolFacts("remote", Effect.IDEMPOTENT_WRITE),
    ]


def test_agentrun_works_without_pydantic_ai_and_register_agent_names_the_extra() -> None:
    code = """
import sys
class Missing:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] == "pydantic_ai":
            raise ModuleNotFoundError("No module named 'pydantic_ai'", name="pydantic_ai")
sys.meta_path.insert(0, Missing())
import agentrun
try:
    agentrun.register_agent
except agentrun.ConfigurationError as error:
    print(error)
"""
    said = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd=".").stdout
    assert "pip install 'agentrun[agents]'" in said


# ---- requests and results


def test_a_request_is_text_or_an_object(client: Client, ward: Ward) -> None:
    script = Script(["hello"])
    register_agent(Agent(script.model, name="desk"))
    wishes = AgentRequest(prompt="as an object", instructions="Be brief.", metadata={"customer": 7})
    for request in ("as text", {"prompt": "as json"}, wishes):
        assert ward.run(client.enqueue("desk", request)).status is Status.COMPLETED
    prompts = [part.content for asked in script.asked for part in asked[0].parts if isinstance(part, UserPromptPart)]
    assert prompts == ["as text", "as json", "as an object"]
    last = script.asked[-1][-1]
    assert isinstance(last, ModelRequest)
    assert "Be brief." in str(last.instructions)


def test_an_earlier_conversation_can_be_gone_on_from(client: Client, ward: Ward) -> None:
    script = Script(["Ada, noted", "you are Ada"])
    agent = register_agent(Agent(script.model, name="desk"))
    earlier = asyncio.run(agent.run("I am Ada")).all_messages()
    run = ward.run(client.enqueue("desk", AgentRequest(prompt="who am I?", message_history=earlier)))
    assert run.result == "you are Ada"
    assert len(script.asked[-1]) == 3


class Decision(BaseModel):
    action: str
    cents: int


@pytest.mark.parametrize("output_type", [Decision, ToolOutput(Decision), [Decision, str]], ids=str)
def test_structured_output_round_trips(client: Client, ward: Ward, output_type: Any) -> None:
    script = Script([[("final_result", {"action": "refund", "cents": 5})]])
    register_agent(Agent(script.model, name="desk", output_type=output_type))
    run = ward.run(client.enqueue("desk", "go"))
    assert run.status is Status.COMPLETED, run.error
    assert run.result == {"action": "refund", "cents": 5}


def test_output_validators_run_as_usual(client: Client, ward: Ward) -> None:
    from pydantic_ai import ModelRetry

    script = Script([[("final_result", {"action": "refund", "cents": cents})] for cents in (-1, 5)])
    agent: Agent[Any, Decision] = Agent(script.model, name="desk", output_type=Decision)

    @agent.output_validator
    def positive(decision: Decision) -> Decision:
        if decision.cents < 0:
            raise ModelRetry("not negative")
        return decision

    register_agent(agent)
    run = ward.run(client.enqueue("desk", "go"))
    assert (run.result, script.calls) == ({"action": "refund", "cents": 5}, 2)


# ---- dependencies


@dataclass
class Shop:
    owner: str | None
    customer: Any
    closed: bool = False


@pytest.mark.parametrize("shape", ["plain", "async", "generator"])
def test_dependencies_are_made_anew_in_every_segment(client: Client, ward: Ward, shape: str) -> None:
    made: list[Shop] = []

    def plain(ctx: Context, request: AgentRequest) -> Shop:
        made.append(Shop(ctx.owner, (request.metadata or {}).get("customer")))
        return made[-1]

    async def coroutine(ctx: Context, request: AgentRequest) -> Shop:
        return plain(ctx, request)

    async def generator(ctx: Context, request: AgentRequest) -> AsyncIterator[Shop]:
        shop = plain(ctx, request)
        yield shop
        shop.closed = True

    script = Script([[("who", {})], "done"])
    agent: Agent[Shop, str] = Agent(script.model, name="desk", deps_type=Shop)

    @agent.tool
    @effect(Effect.READ_ONLY)
    def who(ctx: RunContext[Shop]) -> str:
        return f"{ctx.deps.customer} of {ctx.deps.owner}"

    register_agent(agent, deps={"plain": plain, "async": coroutine, "generator": generator}[shape])
    run_id = client.enqueue("desk", {"prompt": "go", "metadata": {"customer": 7}}, owner="ada")
    ward.die_after(run_id, 2)
    assert ward.run(run_id).status is Status.COMPLETED
    assert len(made) == 2
    assert client.steps(run_id)[1].result == "7 of ada"
    assert made[-1].closed is (shape == "generator")


def test_dependencies_may_need_the_context_alone(client: Client, ward: Ward) -> None:
    register_agent(named(deps_type=str), deps=lambda ctx: ctx.owner)
    assert ward.run(client.enqueue("desk", "go")).status is Status.COMPLETED


# ---- what would be lost without a word


def _pay() -> str:
    return "paid"


@pytest.mark.parametrize("what", ["approvals", "inputs"])
def test_what_is_said_of_a_tool_that_the_agent_does_not_have_is_logged(
    what: str, kinds: Registry, caplog: pytest.LogCaptureFixture
) -> None:
    agent = Agent(TestModel(), name="desk", tools=[_pay])
    register_agent(agent, **{what: {"pay_out": True, "_pay": True}})
    assert [record.getMessage().partition(":")[0] for record in caplog.records] == [
        f"{what} of agent `desk` name `pay_out`, and it has no such tool"
    ]


def test_tools_that_are_known_only_when_the_agent_runs_may_be_named(
    kinds: Registry, caplog: pytest.LogCaptureFixture
) -> None:
    tools = FunctionToolset[Any]([_pay])
    for toolset in (tools.prefixed("x"), tools.renamed({"x_pay": "_pay"}), lambda ctx: tools):
        agent = Agent(TestModel(), name="desk", toolsets=[toolset])
        kinds._kinds.pop("desk", None)
        register_agent(agent, approvals={"x_pay": True})
    assert caplog.records == []


@pytest.mark.parametrize("wrap", [lambda f: f, ToolOutput, TextOutput, lambda f: [str, f], lambda f: NativeOutput([f])])
def test_an_output_function_that_declares_itself_a_write_is_refused(wrap: Any, kinds: Registry) -> None:
    @effect(Effect.NON_IDEMPOTENT_WRITE)
    def send(text: str) -> str:
        return "sent"

    agent = Agent(TestModel(), name="desk", output_type=wrap(send))
    with pytest.raises(ConfigurationError, match=r"`send` is an output function of agent `desk`.* make it a tool"):
        register_agent(agent)
