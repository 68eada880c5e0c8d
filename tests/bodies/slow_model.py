"""An agent whose model takes its time."""

from __future__ import annotations

import asyncio
import os

from pydantic_ai import Agent, ModelMessage, ModelResponse, TextPart
from pydantic_ai.models.function import AgentInfo, FunctionModel

from agentrun import register_agent
from agentrun.runtime.current import current_step
from tests.bodies.writes import sql


async def _answer(messages: list[ModelMessage], info: AgentInfo) -> ModelResponse:
    prompt = str(messages[0].parts[-1].content)  # type: ignore[union-attr]
    await asyncio.to_thread(
        sql,
        "INSERT INTO side_effects (run_id, what, pid) VALUES (%s, 'model', %s)",
        current_step().run_id,
        os.getpid(),
    )
    await asyncio.sleep(float(prompt.split()[1]))
    return ModelResponse(parts=[TextPart("at last")])


register_agent(Agent(FunctionModel(_answer, model_name="slow"), name="slow-model"))
