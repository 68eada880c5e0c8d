"""Model requests are steps: what they used lands on step and run, and what they failed with reaches the agent."""

from __future__ import annotations

import time
from decimal import Decimal
from typing import Any

from pydantic_ai import Agent
from pydantic_ai.capabilities import ModelFallback
from pydantic_ai.exceptions import ModelHTTPError
from pydantic_ai.messages import ModelMessage, ModelResponse, TextPart
from pydantic_ai.models.function import AgentInfo, FunctionModel
from pydantic_ai.models.test import TestModel
from pydantic_ai.usage import RequestUsage, UsageLimits

from agentrun import Client, Effect, Reason, Status, effect
from agentrun.agents import register_agent
from tests.agents.conftest import Script, Ward


@effect(Effect.READ_ONLY)
def look() -> str:
    return "seen"


def test_usage_lands_on_the_step_and_on_the_run(client: Client, ward: Ward) -> None:
    script = Script([[("look", {})], "done"])
    register_agent(Agent(script.model, name="desk", tools=[look]))
    run = ward.run(client.enqueue("desk", "go"))
    usage = run.usage
    assert (usage.model_calls, usage.input_tokens, usage.output_tokens, usage.cost) == (2, 20, 10, Decimal(0))
    step = client.steps(run.id)[0]
    assert (step.usage.input_tokens, step.usage.output_tokens) == (10, 5)


def test_cost_lands_on_the_step_and_on_the_run_where_the_price_is_known(client: Client, ward: Ward) -> None:
    register_agent(Agent(Priced(), name="desk"))
    run = ward.run(client.enqueue("desk", "go"))
    assert run.status is Status.COMPLETED, run.error
    assert run.usage.cost > 1
    assert client.steps(run.id)[0].usage.cost == run.usage.cost


class Priced(TestModel):
    """Answers in the name of a model whose price is known."""

    def __init__(self) -> None:
        super().__init__(custom_output_text="done", model_name="gpt-4o")

    async def request(self, *args: Any, **kwargs: Any) -> ModelResponse:
        response = await super().request(*args, **kwargs)
        response.usage, response.provider_name = RequestUsage(input_tokens=1_000_000, output_tokens=1), "openai"
        return response


def test_a_replay_counts_nothing_twice(client: Client, ward: Ward) -> None:
    script = Script([[("look", {})], "done"])
    register_agent(Agent(script.model, name="desk", tools=[look]))
    run_id = client.enqueue("desk", "go")
    ward.die_after(run_id, 3)
    run = ward.run(run_id)
    assert (run.status, run.usage.model_calls, run.usage.input_tokens) == (Status.COMPLETED, 2, 20)


def test_the_runs_limits_stop_it_before_the_next_model_request(client: Client, ward: Ward) -> None:
    script = Script([[("look", {})], [("look", {})], "done"])
    register_agent(Agent(script.model, name="desk", tools=[look]))
    run = ward.run(client.enqueue("desk", "go", limits={"max_model_calls": 1}))
    assert (run.status, run.reason, script.calls) == (Status.FAILED, Reason.MAX_ITERATIONS, 1)


def test_the_agents_own_usage_limits_hold_over_segments(client: Client, ward: Ward) -> None:
    script = Script([[("look", {})], [("look", {})], "done"])
    register_agent(Agent(script.model, name="desk", tools=[look]), usage_limits=UsageLimits(request_limit=2))
    run_id = client.enqueue("desk", "go")
    ward.die_after(run_id, 3)
    run = ward.run(run_id)
    assert (run.status, script.calls) == (Status.FAILED, 2)
    assert run.error is not None
    assert "UsageLimitExceeded" in run.error["type"]


class Failing:
    """A model that fails so many times, and then answers."""

    def __init__(self, times: int, status: int = 503) -> None:
        self.left, self.status, self.asked = times, status, 0

    @property
    def model(self) -> FunctionModel:
        return FunctionModel(self._answer, model_name="failing")

    def _answer(self, messages: list[ModelMessage], info: AgentInfo) -> ModelResponse:
        self.asked += 1
        if self.left:
            self.left -= 1
            raise ModelHTTPError(self.status, "failing", body={"error": "overloaded"})
        return ModelResponse([TextPart("at last")])


def test_a_provider_that_fails_is_asked_again_by_the_next_segment(client: Client, ward: Ward) -> None:
    failing = Failing(1)
    register_agent(Agent(failing.model, name="desk"))
    run = ward.run(client.enqueue("desk", "go"))
    assert (run.status, run.error_count) == (Status.QUEUED, 1)
    assert run.error is not None
    assert (run.error["class"], run.error["step"]) == ("server_error", "model:1")
    time.sleep(0.3)
    run = ward.run(run.id)
    assert (run.status, run.result, failing.asked) == (Status.COMPLETED, "at last", 2)


def test_a_model_request_is_tried_again_within_its_segment_where_the_agent_says_so(client: Client, ward: Ward) -> None:
    failing = Failing(1)
    register_agent(Agent(failing.model, name="desk"), retries=2)
    run = ward.run(client.enqueue("desk", "go"))
    assert (run.status, run.error_count, failing.asked) == (Status.COMPLETED, 0, 2)


def test_a_provider_that_refuses_ends_the_run(client: Client, ward: Ward) -> None:
    failing = Failing(9, status=401)
    register_agent(Agent(failing.model, name="desk"))
    run = ward.run(client.enqueue("desk", "go"))
    assert (run.status, run.reason, failing.asked) == (Status.FAILED, Reason.NOT_RETRYABLE, 1)


def test_a_fallback_sees_the_providers_error_also_at_a_replay(client: Client, ward: Ward) -> None:
    failing, script = Failing(99), Script([[("look", {})], "done"])
    fallback: ModelFallback[Any] = ModelFallback(script.model)
    register_agent(Agent(failing.model, name="desk", tools=[look], capabilities=[fallback]))
    run_id = client.enqueue("desk", "go")
    ward.die_after(run_id, 4)
    before = failing.asked
    run = ward.run(run_id)
    assert run.status is Status.COMPLETED, run.error
    assert (run.result, script.calls) == ("done", 2)
    assert (before, failing.asked) == (1, 2)
