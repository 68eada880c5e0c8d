"""A deferred tool call as a wait for data: what comes is the call's result. It never decides which calls are asked."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from pydantic_ai.messages import ToolCallPart
from pydantic_ai.tools import RunContext
from pydantic_core import to_jsonable_python

from agentrun.agents.approvals import seconds_of
from agentrun.agents.scope import Scope
from agentrun.core.words import StepKind, WaitKind
from agentrun.runtime.waits import WaitSpec, expiry

LONGEST_NAME = 200


@dataclass
class Form:
    """One call that somebody answers with data."""

    scope: Scope
    ctx: RunContext[Any]
    call: ToolCallPart
    metadata: dict[str, Any] | None

    def __post_init__(self) -> None:
        self.input = self.scope.inputs[self.call.tool_name]
        self.key = self.scope.input_key(self.call.tool_call_id, self.call.tool_name, self.ctx.run_step)

    async def ask(self) -> Any:
        """The data. Raises Parked until there are some, WaitExpired where nobody gave any in time and that fails."""
        asked, seconds = self.input, seconds_of(self.input.expires)
        arguments = self.call.args_as_dict()
        question = self._question(arguments)
        asks = {
            "question": question,
            "schema": asked.asked_schema,
            "payload": {"tool": self.call.tool_name, "arguments": arguments},
        }
        spec = WaitSpec(
            self.key,
            StepKind.INPUT,
            WaitKind.INPUT,
            question[:LONGEST_NAME],
            asks=to_jsonable_python(asks, fallback=str, inf_nan_mode="strings"),
            role=asked.role,
            due_in=seconds,
            remind_in=seconds_of(asked.remind),
            on_expiry=expiry(
                asked.on_expiry, default=asked.answer_of_nobody, role=asked.escalate_to, seconds=seconds
            ),
        )  # fmt: skip
        return await self.scope.context.waits.ask(spec)

    def _question(self, arguments: Mapping[str, Any]) -> str:
        """What the tool says as it defers (`question` in its metadata), else its argument `question`, else the call."""
        for said in ((self.metadata or {}).get("question"), arguments.get("question")):
            if isinstance(said, str) and said:
                return said
        return f"{self.call.tool_name}({', '.join(f'{name}={value!r}' for name, value in arguments.items())})"
