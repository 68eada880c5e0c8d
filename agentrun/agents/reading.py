"""What else an agent's run asks for, as read-only steps: discovery of tools, validators, event handlers."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from typing import Any

from pydantic_ai.durable_exec import (
    CapabilityOperationId,
    DurableOperationId,
    EventStreamHandlerId,
    EventStreamHandlerParams,
    ToolsetGetInstructionsId,
    ToolsetGetToolsId,
    ToolsetValidateToolArgumentsId,
)

from agentrun.agents.scope import Scope
from agentrun.agents.units import Operation, caller, decoder, encoder
from agentrun.core.words import Effect, StepKind
from agentrun.runtime.stepspec import StepSpec


def reading_step(scope: Scope, operation: Operation, params: Any) -> StepSpec:
    """One read-only step, keyed by its position among its like."""
    name = _name(operation.operation_id, params)
    return StepSpec(
        key=scope.next_key(name),
        kind=StepKind.STEP,
        name=name,
        effect=Effect.READ_ONLY,
        call=caller(operation, params),
        encode=encoder(operation),
        decode=decoder(operation),
        retries=scope.context.wishes.retries,
    )


def start_step(scope: Scope) -> StepSpec:
    """The time at which an agent's run began."""
    return StepSpec(
        key=scope.next_key("start"),
        kind=StepKind.STEP,
        name="start",
        effect=Effect.READ_ONLY,
        call=_now,
        encode=lambda value: json.dumps(value.isoformat()),
        decode=lambda text: datetime.fromisoformat(json.loads(text)),
    )


async def _now() -> datetime:
    return datetime.now(UTC)  # noqa: TID251 - recorded once as a step; it bounds the agent's own `timeout=`


def _name(operation_id: DurableOperationId, params: Any) -> str:
    match operation_id:
        case ToolsetGetToolsId(toolset_id=toolset):
            return f"tools of {toolset or 'toolset'}"
        case ToolsetGetInstructionsId(toolset_id=toolset):
            return f"instructions of {toolset or 'toolset'}"
        case ToolsetValidateToolArgumentsId():
            return f"validate {params.name} {params.ctx.tool_call_id or ''}".rstrip()
        case EventStreamHandlerId():
            return _event(params)
        case CapabilityOperationId(capability_id=capability, operation=operation):
            return f"{capability}.{operation}"
        case _:
            return type(operation_id).__name__


def _event(params: EventStreamHandlerParams) -> str:
    """Named by its call, where it has one: tools side by side end in another order at every replay."""
    part = getattr(params.event, "part", None)
    call = getattr(part, "tool_call_id", None) or getattr(params.event, "tool_call_id", None)
    return " ".join(filter(None, ["event", params.event.event_kind, call]))
