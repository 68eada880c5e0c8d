"""Ways to ask a provider: plain HTTP clients and the providers' own, alone and through pydantic-ai. None retries.

The providers' libraries are imported on first use: every process of the tests collects this file, and one asks.
"""

from __future__ import annotations

import asyncio
import json
import ssl
import urllib.request
from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack
from typing import TYPE_CHECKING, Any

import httpx2
import requests
from pydantic_ai import Agent
from pydantic_ai.models import Model
from pydantic_ai.models.fallback import FallbackModel

from agentrun.core.failures import Failure, describe
from tests.failures.misbehaving import SECRET, Provider

if TYPE_CHECKING:
    import openai

PATIENCE = 0.15
"""Seconds until a client takes silence for an answer. Scenarios that answer do so at once."""
LONG = 20.0

TLS = ssl.create_default_context()
"""Made once: it takes longer than a test's whole call."""

Caller = Callable[[str, float], Awaitable[Any]]
"""Asks at a base URL with a timeout in seconds; raises what the client raises."""

SAYS: list[Any] = [{"role": "user", "content": SECRET}]


async def httpx_async(base: str, timeout: float) -> Any:
    async with httpx2.AsyncClient(timeout=timeout, verify=TLS) as client:
        answer = await client.post(f"{base}/v1/x?key={SECRET}", json=SAYS)
        return answer.raise_for_status().json()


async def httpx_sync(base: str, timeout: float) -> Any:
    answer = httpx2.get(f"{base}/v1/x?key={SECRET}", timeout=timeout, verify=TLS)
    return answer.raise_for_status().json()


async def requests_sync(base: str, timeout: float) -> Any:
    answer = requests.post(f"{base}/v1/x?key={SECRET}", json=SAYS, timeout=timeout)
    answer.raise_for_status()
    return answer.json()


async def urllib_sync(base: str, timeout: float) -> Any:
    with urllib.request.urlopen(f"{base}/v1/x?key={SECRET}", timeout=timeout) as answer:
        return json.load(answer)


async def openai_sync(base: str, timeout: float) -> Any:
    import openai

    http = openai.DefaultHttpxClient(verify=TLS)
    with openai.OpenAI(
        base_url=f"{base}/v1", api_key=SECRET, max_retries=0, timeout=timeout, http_client=http
    ) as client:
        return client.chat.completions.create(model="m", messages=SAYS)


async def anthropic_sync(base: str, timeout: float) -> Any:
    import anthropic

    http = anthropic.DefaultHttpxClient(verify=TLS)
    with anthropic.Anthropic(base_url=base, api_key=SECRET, max_retries=0, timeout=timeout, http_client=http) as client:
        return client.messages.create(model="m", max_tokens=9, messages=SAYS)


async def chat_agent(base: str, timeout: float) -> Any:
    async with AsyncExitStack() as closing:
        return await Agent(await chat_model(closing, base, timeout)).run(SECRET)


async def streaming_chat_agent(base: str, timeout: float) -> Any:
    async with AsyncExitStack() as closing:
        agent = Agent(await chat_model(closing, base, timeout))
        async with agent.run_stream(SECRET) as streamed:
            return await streamed.get_output()


async def responses_agent(base: str, timeout: float) -> Any:
    async with AsyncExitStack() as closing:
        return await Agent(await responses_model(closing, base, timeout)).run(SECRET)


async def anthropic_agent(base: str, timeout: float) -> Any:
    async with AsyncExitStack() as closing:
        return await Agent(await anthropic_model(closing, base, timeout)).run(SECRET)


async def chat_model(closing: AsyncExitStack, base: str, timeout: float = LONG, name: str = "m") -> Model:
    from pydantic_ai.models.openai import OpenAIChatModel
    from pydantic_ai.providers.openai import OpenAIProvider

    return OpenAIChatModel(name, provider=OpenAIProvider(openai_client=await _openai(closing, base, timeout)))


async def responses_model(closing: AsyncExitStack, base: str, timeout: float = LONG, name: str = "m") -> Model:
    from pydantic_ai.models.openai import OpenAIResponsesModel
    from pydantic_ai.providers.openai import OpenAIProvider

    return OpenAIResponsesModel(name, provider=OpenAIProvider(openai_client=await _openai(closing, base, timeout)))


async def anthropic_model(closing: AsyncExitStack, base: str, timeout: float = LONG, name: str = "m") -> Model:
    import anthropic
    from pydantic_ai.models.anthropic import AnthropicModel
    from pydantic_ai.providers.anthropic import AnthropicProvider

    http = anthropic.DefaultAsyncHttpxClient(verify=TLS)
    client = anthropic.AsyncAnthropic(base_url=base, api_key=SECRET, max_retries=0, timeout=timeout, http_client=http)
    provider = AnthropicProvider(anthropic_client=await closing.enter_async_context(client))
    return AnthropicModel(name, provider=provider)


async def _openai(closing: AsyncExitStack, base: str, timeout: float) -> openai.AsyncOpenAI:
    import openai

    http, url = openai.DefaultAsyncHttpxClient(verify=TLS), f"{base}/v1"
    client = openai.AsyncOpenAI(base_url=url, api_key=SECRET, max_retries=0, timeout=timeout, http_client=http)
    return await closing.enter_async_context(client)


async def both(first: str, second: str, at: Provider) -> Failure:
    """How a fallback chain fails whose first model meets one scenario and whose second, of another kind, the other."""
    async with AsyncExitStack() as closing:
        models = (
            await chat_model(closing, at.at(first), PATIENCE, "one"),
            await anthropic_model(closing, at.at(second), PATIENCE, "two"),
        )
        return await failure_of(Agent(FallbackModel(*models)).run(SECRET))


async def failure_of(asking: Awaitable[Any]) -> Failure:
    """How it failed. Checks on the way that the description holds nothing that was sent or answered."""
    try:
        answer = await asking
    except asyncio.CancelledError:
        raise
    except Exception as error:
        failure = describe(error)
        assert SECRET not in json.dumps(failure.as_json()), failure
        return failure
    raise AssertionError(f"it did not fail: {answer!r}")


HTTP_CLIENTS: dict[str, Caller] = {
    "httpx": httpx_sync,
    "httpx async": httpx_async,
    "requests": requests_sync,
    "urllib": urllib_sync,
}
PROVIDER_CLIENTS: dict[str, Caller] = {"openai": openai_sync, "anthropic": anthropic_sync}
AGENTS: dict[str, Caller] = {
    "agent, openai chat": chat_agent,
    "agent, openai chat, streaming": streaming_chat_agent,
    "agent, openai responses": responses_agent,
    "agent, anthropic": anthropic_agent,
}
CALLERS = HTTP_CLIENTS | PROVIDER_CLIENTS | AGENTS
