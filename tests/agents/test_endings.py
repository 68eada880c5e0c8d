"""How an agent's segment ends: cancelled, handed back, stopped; and that nothing of the agent's can swallow that."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from typing import Any

import pytest
from pydantic import BaseModel
from pydantic_ai import Agent
from pydantic_ai.capabilities import AbstractCapability
from pydantic_ai.messages import FunctionToolResultEvent
from pydantic_ai.run import AgentRunResult

from agentrun import Client, Effect, Reason, Status, WriteWithoutLease, effect, rehearse
from agentrun.agents import register_agent
from agentrun.runtime.engine import Engine
from agentrun.runtime.kinds import Registry
from tests.agents.conftest import Script, Turn, Ward


def segment(engine: Engine, run_id: Any) -> threading.Thread:
    thread = threading.Thread(target=engine.run, args=(run_id,))
    thread.start()
    return thread


def test_a_cancel_interrupts_a_model_request(client: Client, engine: Engine) -> None:
    asked = threading.Event()

    async def answer(messages: Any, info: Any) -> Any:
        asked.set()
        await asyncio.sleep(60)

    from pydantic_ai.models.function import FunctionModel

    register_agent(Agent(FunctionModel(answer), name="desk"))
    run_id = client.enqueue("desk", "go")
    thread = segment(engine, run_id)
    assert asked.wait(10)
    client.cancel(run_id)
    thread.join(10)
    assert client.status(run_id).status is Status.CANCELLED


def test_a_cancel_waits_for_a_write_and_records_it(client: Client, engine: Engine) -> None:
    started, script = threading.Event(), Script([[("act", {})], "done"])

    async def act() -> str:
        started.set()
        await asyncio.sleep(1.5)
        return "acted"

    register_agent(Agent(script.model, name="desk", tools=[act]))
    run_id = client.enqueue("desk", "go")
    thread = segment(engine, run_id)
    assert started.wait(10)
    client.cancel(run_id)
    thread.join(10)
    run = client.status(run_id)
    assert (run.status, run.pending_effect, script.calls) == (Status.CANCELLED, None, 1)
    assert client.steps(run_id)[1].result == "acted"


def test_a_drain_hands_the_run_back_at_its_next_step(client: Client, make_engine: Callable[..., Engine]) -> None:
    engine, started, script = make_engine(), threading.Event(), Script([[("act", {})], "done"])

    async def act() -> str:
        started.set()
        await asyncio.sleep(0.5)
        return "acted"

    register_agent(Agent(script.model, name="desk", tools=[act]))
    run_id = client.enqueue("desk", "go")
    thread = segment(engine, run_id)
    assert started.wait(10)
    engine.drain()
    thread.join(10)
    run = client.status(run_id)
    assert (run.status, run.handback_count, run.requeue_count, run.pending_effect) == (Status.QUEUED, 1, 0, None)
    make_engine().run(run_id)
    assert (client.status(run_id).status, script.calls) == (Status.COMPLETED, 2)


def test_a_write_beside_a_failing_tool_is_waited_for_and_recorded(client: Client, ward: Ward) -> None:
    both: Turn = [("act", {}), ("look", {})]
    script, started = Script([both, "done"]), asyncio.Event()

    async def act() -> str:
        started.set()
        await asyncio.sleep(0.3)
        return "acted"

    @effect(Effect.READ_ONLY)
    async def look() -> str:
        await started.wait()
        raise ConnectionResetError("reset")

    register_agent(Agent(script.model, name="desk", tools=[act, look]))
    run = ward.run(client.enqueue("desk", "go"))
    assert (run.status, run.pending_effect, run.error_count) == (Status.QUEUED, None, 1), run.error
    steps = {step.name: step.status for step in client.steps(run.id) if step.kind == "tool"}
    assert steps["act"] == "completed"


class Recovers(AbstractCapability[Any]):
    """Answers for whatever goes wrong, as an agent's author may."""

    async def wrap_run(self, ctx: Any, *, handler: Any) -> AgentRunResult[Any]:
        try:
            return await handler()
        except BaseException:
            return AgentRunResult("recovered")

    async def on_tool_execute_error(self, ctx: Any, **given: Any) -> Any:
        return "recovered"


def test_no_hook_can_swallow_an_interrupted_write(client: Client, ward: Ward) -> None:
    script = Script([[("act", {})], "done"])

    async def act() -> str:
        raise ConnectionResetError("reset")

    register_agent(Agent(script.model, name="desk", tools=[act], capabilities=[Recovers()]))
    run = ward.run(client.enqueue("desk", "go"))
    assert (run.status, run.reason, run.result) == (Status.FAILED, Reason.NOT_RETRYABLE, None)
    assert run.pending_effect == Effect.NON_IDEMPOTENT_WRITE


def test_no_hook_can_swallow_a_limit(client: Client, ward: Ward) -> None:
    @effect(Effect.READ_ONLY)
    async def look() -> str:
        return "seen"

    script = Script([[("look", {})], "done"])
    register_agent(Agent(script.model, name="desk", tools=[look], capabilities=[Recovers()]))
    run = ward.run(client.enqueue("desk", "go", limits={"max_model_calls": 1}))
    assert (run.status, run.reason, run.result) == (Status.FAILED, Reason.MAX_ITERATIONS, None)


def test_a_hook_may_recover_from_a_read_only_tools_error_also_at_a_replay(client: Client, ward: Ward) -> None:
    script, tries = Script([[("look", {})], "done"]), list[int]()

    @effect(Effect.READ_ONLY)
    async def look() -> str:
        tries.append(1)
        raise ConnectionResetError("reset")

    register_agent(Agent(script.model, name="desk", tools=[look], capabilities=[Recovers()]))
    run_id = client.enqueue("desk", "go")
    ward.die_after(run_id, 3)
    run = ward.run(run_id)
    assert (run.status, run.result, len(tries)) == (Status.COMPLETED, "done", 1), run.error


@pytest.mark.parametrize("commit", [None, 3, 5])
def test_an_event_handler_hears_of_everything_and_of_nothing_twice_at_a_replay(
    client: Client, ward: Ward, commit: int | None
) -> None:
    script, heard = Script([[("look", {}), ("look", {})], "done"]), list[Any]()

    @effect(Effect.READ_ONLY)
    async def look() -> str:
        return "seen"

    async def handler(ctx: Any, events: Any) -> None:
        heard.extend([event async for event in events])

    register_agent(Agent(streaming(script), name="desk", tools=[look]), event_stream_handler=handler)
    run_id = client.enqueue("desk", "go")
    if commit:
        ward.die_after(run_id, commit)
    run = ward.run(run_id)
    assert (run.status, run.result, script.calls) == (Status.COMPLETED, "done", 2), run.error
    results = [event.part.tool_call_id for event in heard if isinstance(event, FunctionToolResultEvent)]
    assert sorted(results) == ["call-0-0", "call-0-1"]


def streaming(script: Script) -> Any:
    """The script's model, which can be asked for a stream."""
    from pydantic_ai.messages import TextPart, ToolCallPart
    from pydantic_ai.models.function import DeltaToolCall, FunctionModel

    async def stream(messages: Any, info: Any) -> Any:
        response = script._answer(messages, info)
        for index, part in enumerate(response.parts):
            if isinstance(part, TextPart):
                yield part.content
            elif isinstance(part, ToolCallPart):
                yield {index: DeltaToolCall(part.tool_name, part.args_as_json_str(), tool_call_id=part.tool_call_id)}

    return FunctionModel(script._answer, stream_function=stream, model_name="scripted")


# ---- without a worker


def test_an_agent_runs_here_and_now_with_a_typed_result(client: Client) -> None:
    script = Script([[("final_result", {"count": 2})]])
    register_agent(Agent(script.model, name="desk", output_type=Count))
    assert client.run("desk", "go") == Count(count=2)


class Count(BaseModel):
    count: int


async def test_a_rehearsal_reads_and_does_not_write(kinds: Registry) -> None:
    done: list[str] = []

    @effect(Effect.READ_ONLY)
    async def look() -> str:
        done.append("look")
        return "seen"

    async def act() -> str:
        done.append("act")
        return "acted"

    register_agent(Agent(Script([[("look", {})], "done"]).model, name="reader", tools=[look]))
    register_agent(Agent(Script([[("act", {})], "done"]).model, name="writer", tools=[act]))
    assert await rehearse("reader", "go") == "done"
    with pytest.raises(WriteWithoutLease):
        await rehearse("writer", "go")
    assert done == ["look"]
