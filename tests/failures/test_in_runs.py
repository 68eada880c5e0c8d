"""A provider's failure in a whole run: when the run is due again, what its row says, and what a replay raises."""

from __future__ import annotations

import asyncio
from datetime import timedelta

import httpx2
import pytest
from pydantic_ai.exceptions import ModelConnectionError, ModelHTTPError, ModelRateLimitError

from agentrun import Client, Context, StepFailed, durable
from agentrun.agents.errors import as_raised
from agentrun.core.failures import describe
from agentrun.runtime.engine import Engine
from agentrun.testing import until
from tests.failures.callers import TLS
from tests.failures.misbehaving import SECRET, Provider


@pytest.mark.parametrize(
    ("scenario", "status", "reason", "error_class", "wait"),
    [
        ("429-seconds", "queued", None, "rate_limit", 7),
        ("429-date", "queued", None, "rate_limit", 90),
        ("401", "failed", "not_retryable", "auth", None),
        ("not-json", "failed", "not_retryable", "unknown", None),
    ],
)
def test_a_run_that_meets_a_provider_is_due_when_that_says_or_ends(
    scenario: str, status: str, reason: str | None, error_class: str, wait: float | None,
    client: Client, engine: Engine, provider: Provider,
) -> None:  # fmt: skip
    async def ask() -> str:
        async with httpx2.AsyncClient(verify=TLS) as http:
            answer = await http.post(f"{provider.at(scenario)}/v1?key={SECRET}", json=SECRET)
            return answer.raise_for_status().json()

    @durable("asking")
    async def asking(ctx: Context, request: None) -> str:
        return await ctx.step(ask)

    run_id = client.enqueue("asking", None)
    enqueued = client.status(run_id)
    engine.run(run_id)
    run = client.status(run_id)
    assert (run.status, run.reason) == (status, reason)
    assert run.error is not None
    assert (run.error["class"], run.error["step"]) == (error_class, "#1")
    assert SECRET not in str([run, *client.events(run_id)])
    if wait is not None:
        assert enqueued.due_at is not None
        assert run.due_at is not None
        assert timedelta(seconds=wait) <= run.due_at - enqueued.due_at < timedelta(seconds=wait * 1.1 + 60)


@pytest.mark.parametrize("again", ["requeued", "redriven"])
def test_steps_that_failed_side_by_side_are_all_done_again_together(again: str, client: Client, engine: Engine) -> None:
    """One retry is one for each of them: a wide turn does not use up the budget by its width."""
    asked: list[int] = []

    async def ask(number: int) -> int:
        asked.append(number)
        if asked.count(number) > 1:
            return number
        raise ConnectionResetError("gone") if again == "requeued" else ValueError("odd")

    @durable("wide")
    async def wide(ctx: Context, width: int) -> int:
        async with asyncio.TaskGroup() as group:
            answers = [group.create_task(ctx.step(ask, number)) for number in range(width)]
        return sum(answer.result() for answer in answers)

    run_id = client.enqueue("wide", 5)
    engine.run(run_id)
    run = client.status(run_id)
    assert run.status == ("queued" if again == "requeued" else "failed")
    assert run.error is not None
    assert run.error["steps"] == ["#1", "#2", "#3", "#4", "#5"]
    if again == "redriven":
        client.redrive(run_id, by="operator")
    until(lambda: engine.run(run_id).outcome == "completed", tell=lambda: client.status(run_id))
    assert client.status(run_id).result == 10
    assert sorted(asked) == [number for number in range(5) for _ in range(2)]


@pytest.mark.parametrize(
    "error",
    [
        ModelHTTPError(418, "gpt-9", {"error": SECRET}, headers={"Retry-After": "7"}),
        ModelHTTPError.for_category(ModelRateLimitError, status_code=429, model_name="gpt-9", body=SECRET),
        ModelConnectionError("gpt-9", SECRET),
    ],
    ids=lambda error: type(error).__name__,
)
def test_what_an_agent_sees_at_a_replay_is_of_the_type_class_and_status_of_the_first_pass(error: Exception) -> None:
    failure = describe(error)
    failed = StepFailed("#1", "ask", failure.error_type, failure.message, str(failure.failure_class))
    failed.retry_after = failure.retry_after
    again = as_raised(failed)
    assert qualified(again) == qualified(error)
    assert describe(again) == describe(failed)
    assert (failure.failure_class, failure.retry_after) == (describe(again).failure_class, describe(again).retry_after)
    assert getattr(again, "status_code", None) == getattr(error, "status_code", None)
    assert SECRET not in str(again)


def qualified(error: Exception) -> str:
    return describe(error).error_type
