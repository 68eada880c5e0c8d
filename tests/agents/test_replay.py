"""After a crash nothing that was answered is asked again, and nothing that was done is done again."""

from __future__ import annotations

from typing import Any

import pytest
from opentelemetry.trace import INVALID_SPAN_CONTEXT, NonRecordingSpan, NoOpTracer, Span, Tracer, TracerProvider
from pydantic_ai import Agent
from pydantic_ai.capabilities import Instrumentation
from pydantic_ai.models.instrumented import InstrumentationSettings

from agentrun import Client, Effect, Status, effect
from agentrun.agents import register_agent
from tests.agents.conftest import Script, Ward


class Desk:
    """A refund desk whose tools remember their calls."""

    def __init__(self) -> None:
        self.script = Script([[("look_up", {"order": "A1"})], [("refund", {"order": "A1", "cents": 500})], "done"])
        self.done: list[str] = []
        self.agent = Agent(self.script.model, name="desk", tools=[self.look_up, self.refund])

    @effect(Effect.READ_ONLY)
    def look_up(self, order: str) -> dict[str, Any]:
        """Look an order up."""
        self.done.append(f"look_up {order}")
        return {"order": order, "cents": 500}

    @effect(Effect.NON_IDEMPOTENT_WRITE)
    async def refund(self, order: str, cents: int) -> str:
        """Give money back."""
        self.done.append(f"refund {order} {cents}")
        return "refunded"


WHOLE = ["look_up A1", "refund A1 500"]


def test_an_agent_runs_as_a_kind(client: Client, ward: Ward) -> None:
    desk = Desk()
    register_agent(desk.agent)
    run = ward.run(client.enqueue("desk", "please refund A1"))
    assert (run.status, run.result, desk.done) == (Status.COMPLETED, "done", WHOLE)
    steps = client.steps(run.id)
    assert [(step.key, step.kind, step.name) for step in steps] == [
        ("model:1", "model", "desk"),
        ("tool:call-0-0", "tool", "look_up"),
        ("model:2", "model", "desk"),
        ("tool:call-1-0", "tool", "refund"),
        ("model:3", "model", "desk"),
    ]


@pytest.mark.parametrize("commit", range(1, 9))
def test_a_crash_after_any_commit_asks_and_does_nothing_twice(client: Client, ward: Ward, commit: int) -> None:
    desk = Desk()
    register_agent(desk.agent)
    run_id = client.enqueue("desk", "please refund A1")
    ward.die_after(run_id, commit)
    run = client.status(run_id)
    if run.status is Status.FAILED:
        # It died inside the write: somebody has to say that nothing happened.
        assert run.pending_effect == Effect.NON_IDEMPOTENT_WRITE
        client.resolve(run_id, applied="refund A1 500" in desk.done, result="refunded")
    run = ward.run(run_id) if not client.status(run_id).status.final else client.status(run_id)
    assert (run.status, run.result) == (Status.COMPLETED, "done")
    assert desk.script.calls == 3
    assert desk.done == WHOLE


def test_the_sweep_over_commits_covers_the_whole_run(client: Client, ward: Ward) -> None:
    desk = Desk()
    register_agent(desk.agent)
    assert ward.commits(client.enqueue("desk", "please refund A1")) == 8


class Spans(TracerProvider):
    """Remembers the spans that were ended: what an exporter would see."""

    def __init__(self) -> None:
        self.ended: list[str] = []

    def get_tracer(self, *args: Any, **kwargs: Any) -> Tracer:
        provider = self

        class Named(NoOpTracer):
            def start_span(self, name: str, *args: Any, **kwargs: Any) -> Span:
                return Ended(name, provider.ended)

        return Named()


class Ended(NonRecordingSpan):
    def __init__(self, name: str, ended: list[str]) -> None:
        super().__init__(INVALID_SPAN_CONTEXT)
        self.name, self.ended = name, ended

    def end(self, end_time: int | None = None) -> None:
        self.ended.append(self.name)


def test_what_is_replayed_is_traced_once(client: Client, ward: Ward) -> None:
    spans, desk = Spans(), Desk()
    settings = InstrumentationSettings(tracer_provider=spans)
    agent = Agent(
        desk.script.model, name="desk", tools=[desk.look_up, desk.refund], capabilities=[Instrumentation(settings)]
    )
    register_agent(agent)
    run_id = client.enqueue("desk", "please refund A1")
    ward.die_after(run_id, 4)
    spans.ended.clear()
    assert ward.run(run_id).status is Status.COMPLETED
    seen = [name.partition(" ")[0] for name in spans.ended]
    # model:1, look_up and model:2 were traced by the segment that died.
    assert seen.count("chat") == 1
    assert [name for name in spans.ended if name.startswith("execute_tool")] == ["execute_tool refund"]
