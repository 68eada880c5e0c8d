"""Every way in which a provider can fail over HTTP has its class and its wait, whichever client meets it."""

from __future__ import annotations

import time

import pytest

from agentrun.core.failures import Failure
from agentrun.core.words import FailureClass
from tests.failures.callers import AGENTS, CALLERS, LONG, PATIENCE, PROVIDER_CLIENTS, both, failure_of
from tests.failures.misbehaving import Provider

CONNECTION, RATE_LIMIT, SERVER_ERROR = FailureClass.CONNECTION, FailureClass.RATE_LIMIT, FailureClass.SERVER_ERROR
AUTH, UNKNOWN, CLIENT_ERROR = FailureClass.AUTH, FailureClass.UNKNOWN, FailureClass.CLIENT_ERROR

WAITS = {
    "429": None,
    "429-seconds": 7.0,
    "429-date": 90.0,
    "429-milliseconds": 1.5,
    "429-garbage": None,
    "429-for-ever": 86_400.0,
}
CLASSES = {
    "400": CLIENT_ERROR, "401": AUTH, "403": AUTH, "404": CLIENT_ERROR, "408": CONNECTION, "422": CLIENT_ERROR,
    "425": SERVER_ERROR, "500": SERVER_ERROR, "503": SERVER_ERROR, "529": SERVER_ERROR,
}  # fmt: skip
BROKEN = ["refused", "reset", "cut", "hang-up"]
GARBAGE = ["not-json", "wrong-shape", "page"]
ACCEPTED = {
    *((caller, "wrong-shape") for caller in CALLERS if caller not in AGENTS),
    *((caller, "page") for caller in PROVIDER_CLIENTS),
}
"""Who asks for any JSON gets it, and the providers' own clients hand a page over as text: no error to classify."""

OTHER_SHAPES = {"agent, openai chat, streaming", "agent, openai responses"}
"""The server has no good answer in the shapes that these understand."""

callers = pytest.mark.parametrize("caller", CALLERS)


async def _failure(caller: str, scenario: str, at: Provider, timeout: float = LONG) -> Failure:
    return await failure_of(CALLERS[caller](at.at(scenario), timeout))


@pytest.mark.parametrize("caller", [caller for caller in CALLERS if caller not in OTHER_SHAPES])
async def test_the_same_call_succeeds_where_the_provider_behaves(caller: str, provider: Provider) -> None:
    """The control: it is the provider's behaviour that fails the calls of the other tests."""
    assert await CALLERS[caller](provider.at("well"), LONG)


@callers
@pytest.mark.parametrize("scenario", WAITS)
async def test_a_rate_limit_is_retried_after_the_time_that_the_provider_names(
    scenario: str, caller: str, provider: Provider
) -> None:
    failure = await _failure(caller, scenario, provider)
    assert (failure.failure_class, failure.retry_after) == (RATE_LIMIT, WAITS[scenario])


@callers
async def test_a_server_error_may_name_a_time_too(caller: str, provider: Provider) -> None:
    failure = await _failure(caller, "503-seconds", provider)
    assert (failure.failure_class, failure.retry_after) == (SERVER_ERROR, 30)


@callers
@pytest.mark.parametrize("scenario", CLASSES)
async def test_an_error_status_has_its_class(scenario: str, caller: str, provider: Provider) -> None:
    failure = await _failure(caller, scenario, provider)
    assert (failure.failure_class, failure.retry_after) == (CLASSES[scenario], None)
    about = "model m" if caller in AGENTS else "127.0.0.1"
    assert failure.message == f"HTTP {scenario} from {about}"


@callers
@pytest.mark.parametrize("scenario", BROKEN)
async def test_a_broken_connection_is_retried(scenario: str, caller: str, provider: Provider) -> None:
    failure = await _failure(caller, scenario, provider)
    assert failure.failure_class is CONNECTION, failure


@callers
async def test_silence_is_retried(caller: str, provider: Provider) -> None:
    started = time.monotonic()
    failure = await _failure(caller, "silence", provider, PATIENCE)
    assert failure.failure_class is CONNECTION
    assert failure.message.startswith("timed out")
    assert time.monotonic() - started < LONG / 2


@callers
@pytest.mark.parametrize("scenario", GARBAGE)
async def test_an_answer_that_cannot_be_used_is_not_retried(scenario: str, caller: str, provider: Provider) -> None:
    """A model that answered was paid for; whether another answer would be better, only the caller can know."""
    if (caller, scenario) in ACCEPTED:
        assert await CALLERS[caller](provider.at(scenario), LONG) is not None
        return
    failure = await _failure(caller, scenario, provider)
    assert failure.failure_class is UNKNOWN, failure


@pytest.mark.parametrize("caller", ["openai", "agent, openai chat", "agent, openai responses"])
async def test_a_spent_quota_is_not_retried_though_it_comes_as_429(caller: str, provider: Provider) -> None:
    failure = await _failure(caller, "429-quota", provider)
    assert failure.failure_class is CLIENT_ERROR
    assert failure.message.endswith("(insufficient_quota)")


@pytest.mark.parametrize(
    ("first", "second", "failure_class", "retry_after"),
    [
        ("401", "429-seconds", RATE_LIMIT, 7),
        ("429-seconds", "401", AUTH, None),
        ("429-seconds", "503", SERVER_ERROR, None),
        ("500", "refused", CONNECTION, None),
        ("refused", "not-json", UNKNOWN, None),
        ("not-json", "silence", CONNECTION, None),
        ("503", "400", CLIENT_ERROR, None),
    ],
)
async def test_a_fallback_chain_fails_as_its_last_model_did(
    first: str, second: str, failure_class: FailureClass, retry_after: float | None, provider: Provider
) -> None:
    provider.seen.clear()
    failure = await both(first, second, provider)
    assert (failure.failure_class, failure.retry_after) == (failure_class, retry_after)
    assert failure.error_type == "pydantic_ai.exceptions.FallbackExceptionGroup"
    assert failure.message.startswith("2 errors, the last: ")
    assert provider.seen == [scenario for scenario in (first, second) if scenario != "refused"]


@pytest.mark.parametrize("caller", [*PROVIDER_CLIENTS, *AGENTS])
async def test_a_call_that_fails_is_made_once(caller: str, provider: Provider) -> None:
    """No client retries in these tests: what is classified is the first failure."""
    provider.seen.clear()
    await _failure(caller, "503", provider)
    assert provider.seen == ["503"]
