"""What an agent is asked: a prompt, as text or with what belongs to it."""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, TypeAdapter
from pydantic_ai.messages import ModelMessage, UserContent


class AgentRequest(BaseModel):
    """The request of an agent's kind. Plain text stands for `{"prompt": text}`.

    `message_history` is an earlier conversation to go on from (`result.all_messages()` of an earlier run, as JSON);
    `instructions` are added to the agent's own; `model_settings` and `metadata` are pydantic-ai's.
    """

    model_config = ConfigDict(extra="forbid", ser_json_bytes="base64", val_json_bytes="base64")

    prompt: str | list[UserContent] | None = None
    message_history: list[ModelMessage] = Field(default_factory=list[ModelMessage])
    instructions: str | None = None
    model_settings: dict[str, Any] | None = None
    metadata: dict[str, Any] | None = None


def _from_text(value: Any) -> Any:
    return {"prompt": value} if isinstance(value, str) else value


REQUEST: TypeAdapter[AgentRequest] = TypeAdapter(Annotated[AgentRequest, BeforeValidator(_from_text)])
"""Reads what producers send: text, or the object."""
