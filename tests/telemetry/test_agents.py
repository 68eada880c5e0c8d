"""pydantic-ai's own spans stand inside the step that they belong to, and what is replayed is told by neither."""

from __future__ import annotations

from pydantic_ai import Agent
from pydantic_ai.capabilities import Instrumentation
from pydantic_ai.models.instrumented import InstrumentationSettings

from agentrun import Client, Effect, Retryable, effect
from agentrun.agents import register_agent
from agentrun.testing.rows import Rows
from tests.agents.conftest import Script
from tests.telemetry.conftest import Exported, Traced, is_inside, trace_ids


def test_an_agents_spans_and_the_steps_are_one_trace_without_replays(
    client: Client, traced: Traced, exported: Exported, rows: Rows
) -> None:
    script = Script([[("look_up", {"order": "A1"})], "done"])
    down = [True]

    @effect(Effect.READ_ONLY)
    def look_up(order: str) -> str:
        """Look an order up."""
        if down:
            down.clear()
            raise Retryable("later")
        return order

    seen = Instrumentation(InstrumentationSettings(tracer_provider=exported.provider, include_content=False))
    register_agent(Agent(script.model, name="desk", tools=[look_up], capabilities=[seen]))
    run_id = client.enqueue("desk", "please look A1 up")
    assert traced().run(run_id).outcome == "requeued"
    names = exported.names()
    assert (names.count("model desk"), names.count("tool look_up")) == (1, 1)
    exported.exporter.clear()
    rows.make_due(run_id)
    assert traced().run(run_id).outcome == "completed"
    names = exported.names()
    assert (names.count("model desk"), names.count("tool look_up")) == (1, 1), "the first model request is replayed"
    assert names.count("chat scripted") == 1
    assert trace_ids(exported.spans) == {run_id}
    step, theirs = exported.one("model desk"), exported.one("chat scripted")
    assert is_inside(step, theirs) or is_inside(theirs, step)
    assert script.calls == 2
