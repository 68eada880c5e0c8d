"""Tool calls are steps: fenced by their effect, one effect per call, and what they say to the model is replayed."""

from __future__ import annotations

import asyncio
import functools
import time
from typing import Any

import pytest
from pydantic import BaseModel
from pydantic_ai import Agent, ModelRetry, RunContext, Tool
from pydantic_ai.capabilities import AbstractCapability
from pydantic_ai.exceptions import ToolFailed
from pydantic_ai.messages import ModelMessage, RetryPromptPart, ToolCallPart, ToolReturnPart
from pydantic_ai.toolsets import AbstractToolset, FunctionToolset, ToolsetTool

from agentrun import NOT_APPLIED, Applied, Client, Effect, NotApplied, Reason, Run, Status, current_step, effect
from agentrun.agents import register_agent
from tests.agents.conftest import Script, Turn, Ward


def agent_of(script: Script, *tools: Any, **options: Any) -> Agent[Any, str]:
    return Agent(script.model, name="desk", tools=tools, **options)


def run_with(client: Client, ward: Ward, turns: list[Turn], *tools: Any, **options: Any) -> tuple[Run, Script]:
    """One run of an agent with these tools, in one segment."""
    script = Script(turns)
    register_agent(agent_of(script, *tools), **options)
    return ward.run(client.enqueue("desk", "go")), script


def answers(messages: list[ModelMessage]) -> list[Any]:
    """What the model was told of its calls."""
    parts = [part for message in messages for part in message.parts]
    return [part.content for part in parts if isinstance(part, ToolReturnPart | RetryPromptPart)]


ONE_CALL: list[Turn] = [[("act", {})], "done"]


# ---- effects


def test_an_undeclared_tool_is_a_fenced_non_idempotent_write(client: Client, ward: Ward) -> None:
    async def act() -> str:
        return "acted"

    run, _ = run_with(client, ward, ONE_CALL, act)
    step = client.steps(run.id)[1]
    assert (step.key, step.effect, step.result) == ("tool:call-0-0", Effect.NON_IDEMPOTENT_WRITE, "acted")
    assert step.started_at is not None
    assert step.idempotency_key is not None


def test_a_read_only_tool_costs_no_fence(client: Client, ward: Ward) -> None:
    @effect(Effect.READ_ONLY)
    async def act() -> str:
        return "read"

    run, _ = run_with(client, ward, ONE_CALL, act)
    step = client.steps(run.id)[1]
    assert (step.effect, step.idempotency_key) == (Effect.READ_ONLY, None)
    told = [event.type for event in client.events(run.id) if event.data.get("key") == step.key]
    assert told == ["step_completed"], "nothing was said before it began"


def _logged(function: Any) -> Any:
    @functools.wraps(function)
    async def wrapper(*args: Any, **kwargs: Any) -> Any:
        return await function(*args, **kwargs)

    return wrapper


def test_a_declaration_is_found_through_wrappers(client: Client, ward: Ward) -> None:
    class Tools:
        @_logged
        @effect(Effect.READ_ONLY)
        async def act(self) -> str:
            return "read"

    run, _ = run_with(client, ward, ONE_CALL, Tool(Tools().act))
    assert client.steps(run.id)[1].effect == Effect.READ_ONLY


def test_a_declaration_is_found_through_prefixes_and_dynamic_toolsets(client: Client, ward: Ward) -> None:
    @effect(Effect.READ_ONLY)
    async def act() -> str:
        return "read"

    async def other() -> str:
        return "wrote"

    script = Script([[("a_act", {}), ("other", {})], "done"])
    fixed: FunctionToolset[Any] = FunctionToolset([act])
    made: FunctionToolset[Any] = FunctionToolset([other])
    agent = Agent(script.model, name="desk", toolsets=[fixed.prefixed("a"), lambda ctx: made])
    register_agent(agent, effects={"other": Effect.IDEMPOTENT_WRITE})
    run = ward.run(client.enqueue("desk", "go"))
    assert run.status is Status.COMPLETED, run.error
    steps = {step.name: step.effect for step in client.steps(run.id) if step.kind == "tool"}
    assert steps == {"a_act": Effect.READ_ONLY, "other": Effect.IDEMPOTENT_WRITE}


def test_a_toolset_of_an_unknown_kind_is_fenced_too(client: Client, ward: Ward) -> None:
    class Own(AbstractToolset[Any]):
        """Executes by itself, as no class of pydantic-ai."""

        def __init__(self, inner: FunctionToolset[Any]) -> None:
            self.inner = inner

        @property
        def id(self) -> str | None:
            return None

        async def get_tools(self, ctx: RunContext[Any]) -> dict[str, ToolsetTool[Any]]:
            return await self.inner.get_tools(ctx)

        async def call_tool(self, name: str, tool_args: dict[str, Any], ctx: Any, tool: ToolsetTool[Any]) -> Any:
            return await self.inner.call_tool(name, tool_args, ctx, tool)

    async def act() -> str:
        return "acted"

    script = Script(ONE_CALL)
    register_agent(Agent(script.model, name="desk", toolsets=[Own(FunctionToolset([act]))]))
    run = ward.run(client.enqueue("desk", "go"))
    assert run.status is Status.COMPLETED, run.error
    assert client.steps(run.id)[1].started_at is not None


def test_a_tool_that_needs_an_approval_is_not_called_without_one(client: Client, ward: Ward) -> None:
    done: list[int] = []

    @effect(Effect.NON_IDEMPOTENT_WRITE, approval=True)
    async def act() -> None:
        done.append(1)

    run, _ = run_with(client, ward, ONE_CALL, act)
    assert (run.status, run.pending_effect, done) == (Status.WAITING, None, [])


def test_a_tool_knows_its_step(client: Client, ward: Ward) -> None:
    @effect(Effect.IDEMPOTENT_WRITE)
    def act() -> list[str]:
        step = current_step()
        return [step.key, step.name, step.idempotency_key]

    run, _ = run_with(client, ward, ONE_CALL, act)
    step = client.steps(run.id)[1]
    assert step.result == ["tool:call-0-0", "act", step.idempotency_key]


# ---- one effect per call


def test_tools_side_by_side_in_one_turn_are_each_recorded_and_fenced(client: Client, ward: Ward) -> None:
    both = asyncio.Barrier(2)
    done: list[str] = []

    async def act(name: str) -> str:
        async with asyncio.timeout(5):
            await both.wait()
        done.append(name)
        return f"did {name}"

    run, script = run_with(client, ward, [[("act", {"name": "a"}), ("act", {"name": "b"})], "done"], act)
    assert run.status is Status.COMPLETED, run.error
    assert sorted(done) == ["a", "b"]
    steps = [step for step in client.steps(run.id) if step.kind == "tool"]
    assert {step.key: step.result for step in steps} == {"tool:call-0-0": "did a", "tool:call-0-1": "did b"}
    assert all(step.started_at for step in steps)
    assert answers(script.asked[-1]) == ["did a", "did b"]


@pytest.mark.parametrize("how", ["one after the other", "side by side"])
def test_the_same_call_dispatched_twice_is_one_effect_and_one_result(client: Client, ward: Ward, how: str) -> None:
    done: list[str] = []

    class Twice(AbstractCapability[Any]):
        async def wrap_tool_execute(self, ctx: Any, *, call: Any, tool_def: Any, args: Any, handler: Any) -> Any:
            if how == "side by side":
                first, second = await asyncio.gather(handler(args), handler(args))
            else:
                first, second = await handler(args), await handler(args)
            assert first == second
            return first

    async def act(name: str) -> str:
        done.append(name)
        await asyncio.sleep(0.05)
        return f"did {name}"

    script = Script([[("act", {"name": "a"})], "done"])
    register_agent(agent_of(script, act, capabilities=[Twice()]))
    run = ward.run(client.enqueue("desk", "go"))
    assert run.status is Status.COMPLETED, run.error
    assert (done, answers(script.asked[-1])) == (["a"], ["did a"])


def test_the_same_write_under_the_same_id_in_a_later_turn_is_one_effect(client: Client, ward: Ward) -> None:
    done: list[str] = []

    async def act(name: str) -> str:
        done.append(name)
        return f"did {name}"

    again: Turn = [ToolCallPart("act", {"name": "a"}, tool_call_id="same")]
    run, script = run_with(client, ward, [again, again, "done"], act)
    assert run.status is Status.COMPLETED, run.error
    assert done == ["a"]
    assert answers(script.asked[-1]) == ["did a", "did a"]


def test_another_call_under_an_id_used_before_is_a_call_of_its_own(client: Client, ward: Ward) -> None:
    done: list[str] = []

    async def act(name: str) -> str:
        done.append(name)
        return f"did {name}"

    def call(name: str) -> Turn:
        return [ToolCallPart("act", {"name": name}, tool_call_id="same")]

    run, script = run_with(client, ward, [call("a"), call("b"), "done"], act)
    assert run.status is Status.COMPLETED, run.error
    assert done == ["a", "b"]
    assert answers(script.asked[-1]) == ["did a", "did b"]


def test_a_read_under_an_id_used_before_is_read_anew_in_a_later_turn(client: Client, ward: Ward) -> None:
    seen: list[int] = []

    @effect(Effect.READ_ONLY)
    async def act() -> int:
        seen.append(len(seen))
        return seen[-1]

    again: Turn = [ToolCallPart("act", {}, tool_call_id="same")]
    run, script = run_with(client, ward, [again, again, "done"], act)
    assert run.status is Status.COMPLETED, run.error
    assert answers(script.asked[-1]) == [0, 1]


# ---- what tools say to the model


def test_a_model_retry_is_a_recorded_result_and_replayed(client: Client, ward: Ward) -> None:
    script = Script([[("act", {"name": "wrong"})], [("act", {"name": "right"})], "done"])
    done: list[str] = []

    @effect(Effect.READ_ONLY)
    async def act(name: str) -> str:
        done.append(name)
        if name == "wrong":
            raise ModelRetry("ask for the right one")
        return "ok"

    register_agent(agent_of(script, act))
    run_id = client.enqueue("desk", "go")
    ward.die_after(run_id, 5)
    run = ward.run(run_id)
    assert (run.status, run.error_count) == (Status.COMPLETED, 0)
    assert (done, script.calls) == (["wrong", "right"], 3)
    assert "ask for the right one" in answers(script.asked[-1])[0]


def test_a_model_retry_of_a_write_means_that_nothing_happened(client: Client, ward: Ward) -> None:
    async def act(name: str = "") -> str:
        if not name:
            raise ModelRetry("name it")
        return f"did {name}"

    run, script = run_with(client, ward, [[("act", {})], [("act", {"name": "a"})], "done"], act)
    assert (run.status, run.pending_effect) == (Status.COMPLETED, None), run.error
    assert answers(script.asked[-1]) == ["name it", "did a"]


@pytest.mark.parametrize("said", [NotApplied("the card was declined"), ToolFailed("the card was declined")])
def test_what_did_not_happen_goes_back_to_the_model(client: Client, ward: Ward, said: Exception) -> None:
    async def act() -> str:
        raise said

    run, script = run_with(client, ward, ONE_CALL, act)
    assert (run.status, run.pending_effect) == (Status.COMPLETED, None), run.error
    assert answers(script.asked[-1]) == ["the card was declined"]


def test_not_applied_is_replayed_to_the_model(client: Client, ward: Ward) -> None:
    script = Script(ONE_CALL)
    tries: list[int] = []

    async def act() -> str:
        tries.append(1)
        raise NotApplied("declined")

    register_agent(agent_of(script, act))
    run_id = client.enqueue("desk", "go")
    ward.die_after(run_id, 4)
    assert ward.run(run_id).status is Status.COMPLETED
    assert (len(tries), answers(script.asked[-1])) == (1, ["declined"])


class Receipt(BaseModel):
    number: int


def _broken_answer() -> str:
    Receipt.model_validate({"number": "none"})
    return "never"


def _broken_line() -> str:
    raise ConnectionResetError("reset")


@pytest.mark.parametrize("act", [_broken_answer, _broken_line])
def test_a_write_that_raises_without_saying_how_it_ended_stops_the_run(client: Client, ward: Ward, act: Any) -> None:
    run, script = run_with(client, ward, ONE_CALL, Tool(act, name="act"))
    assert (run.status, run.reason, script.calls) == (Status.FAILED, Reason.NOT_RETRYABLE, 1)
    assert run.pending_effect == Effect.NON_IDEMPOTENT_WRITE


def test_a_write_that_timed_out_has_not_said_that_nothing_happened(client: Client, ward: Ward) -> None:
    async def act() -> str:
        await asyncio.sleep(5)
        return "too late"

    run, script = run_with(client, ward, ONE_CALL, Tool(act, timeout=0.05))
    assert (run.status, run.pending_effect, script.calls) == (Status.FAILED, Effect.NON_IDEMPOTENT_WRITE, 1)


def test_the_error_of_a_read_only_tool_is_the_runs(client: Client, ward: Ward) -> None:
    tries: list[int] = []

    @effect(Effect.READ_ONLY)
    def act() -> str:
        tries.append(1)
        if len(tries) == 1:
            raise ConnectionResetError("reset")
        return "second time"

    run, script = run_with(client, ward, ONE_CALL, act)
    assert (run.status, run.error_count) == (Status.QUEUED, 1)
    time.sleep(0.3)
    run = ward.run(run.id)
    assert (run.status, len(tries), script.calls) == (Status.COMPLETED, 2, 2)


def test_bad_arguments_and_unknown_tools_cost_no_fence(client: Client, ward: Ward) -> None:
    async def act(count: int) -> str:
        return "acted"

    turns: list[Turn] = [[("act", {"count": "many"})], [("nope", {})], "done"]
    run, script = run_with(client, ward, turns, act)
    assert run.status is Status.COMPLETED, run.error
    assert len(answers(script.asked[-1])) == 2
    assert {step.kind for step in client.steps(run.id)} == {"model"}


def test_an_interrupted_write_is_reconciled(client: Client, ward: Ward) -> None:
    landed: list[str] = []

    async def find(idempotency_key: str) -> Any:
        return Applied({"receipt": 7}) if idempotency_key in landed else NOT_APPLIED

    @effect(Effect.NON_IDEMPOTENT_WRITE, reconcile=find)
    async def act() -> dict[str, int]:
        landed.append(current_step().idempotency_key)
        return {"receipt": 7}

    script = Script(ONE_CALL)
    register_agent(agent_of(script, act))
    for commit, effects in ((3, 1), (4, 1)):
        landed.clear()
        run_id = client.enqueue("desk", "go")
        ward.die_after(run_id, commit)
        run = ward.run(run_id)
        assert run.status is Status.COMPLETED, run.error
        assert (len(landed), answers(script.asked[-1])) == (effects, [{"receipt": 7}])


# ---- results


class Order(BaseModel):
    number: str
    cents: int


RESULTS = [
    None, "text", 7, 1.5, True, [1, "a", None], {"a": {"b": [1]}}, {"kind": "tool-return", "x": 1},
    {"$tool": {"kind": "model_retry"}}, {"kind": "image-url", "url": "http://x"}, Order(number="A1", cents=5),
]  # fmt: skip


@pytest.mark.parametrize("result", RESULTS, ids=repr)
def test_results_of_tools_come_back_as_they_were(client: Client, ward: Ward, result: Any) -> None:
    @effect(Effect.READ_ONLY)
    async def act() -> Any:
        return result

    plain = Script(ONE_CALL)
    asyncio.run(Agent(plain.model, tools=[act]).run("go"))
    durable = Script(ONE_CALL)
    register_agent(agent_of(durable, act))
    run_id = client.enqueue("desk", "go")
    ward.die_after(run_id, 3)
    assert ward.run(run_id).status is Status.COMPLETED
    seen = [answers(script.asked[-1])[0] for script in (plain, durable)]
    if isinstance(result, BaseModel):
        # A replayed result is its JSON: what the model is sent is the same.
        seen[0] = seen[0].model_dump(mode="json")
    assert seen[0] == seen[1]
