"""pydantic-ai's durable operations as our steps: one StepSpec for each operation that an agent's run asks for.

It decides each step's key, kind and effect, and never how a step is recorded: that is `Steps.perform`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from datetime import datetime
from typing import Any, Generic, Literal, TypeVar

from pydantic_ai.durable_exec import (
    BoundDurableOperation,
    DurableOperation,
    DurableOperationBackend,
    ModelCompactMessagesId,
    ModelRequestId,
    ToolsetCallToolId,
    record_durable_unit,
)

from agentrun.agents.earlier import nothing_left_out
from agentrun.agents.errors import as_raised
from agentrun.agents.models import model_step
from agentrun.agents.reading import reading_step, start_step
from agentrun.agents.scope import SCOPE, Scope
from agentrun.agents.tools import ToolCall, tool_step
from agentrun.core.errors import StepFailed
from agentrun.core.outcome import StopSegment
from agentrun.runtime.stepspec import StepSpec, WriteUnknown

ParamsT = TypeVar("ParamsT")
WireT = TypeVar("WireT")
ResultT = TypeVar("ResultT")


class StepBackend(DurableOperationBackend[None]):
    """Binds operations to the journal of whatever scope they are called in."""

    def __init__(self, agent_name: str) -> None:
        self._agent_name = agent_name

    def bind(
        self, operation: DurableOperation[ParamsT, WireT, ResultT]
    ) -> BoundDurableOperation[ParamsT, WireT, ResultT]:
        """The operation as a step."""
        return BoundStep(operation, self._agent_name)

    def config_for_tool(
        self, operation: DurableOperation[Any, Any, Any], *, tool: object | None, tool_name: str
    ) -> Literal[False] | None:
        """Nothing: effects are found when a tool is called, and no tool can be taken out of the journal."""
        return None

    def registrations(self) -> Sequence[Callable[..., object]]:
        """None: a step needs no registration."""
        return ()


class BoundStep(BoundDurableOperation[ParamsT, WireT, ResultT], Generic[ParamsT, WireT, ResultT]):
    """One operation; calling it performs a step."""

    def __init__(self, operation: DurableOperation[ParamsT, WireT, ResultT], agent_name: str) -> None:
        self._operation, self._agent_name = operation, agent_name

    @property
    def operation(self) -> DurableOperation[ParamsT, WireT, ResultT]:
        """The operation as pydantic-ai declared it."""
        return self._operation

    async def __call__(self, params: ParamsT, *, config: object | None = None) -> ResultT:
        scope = SCOPE.get()
        if scope is None:
            return await self._operation.handler(params)
        if isinstance(self._operation.operation_id, ToolsetCallToolId):
            return await _performed(scope, await self._call_spec(scope, params))
        return await _performed(scope, self._spec(scope, params))

    async def _call_spec(self, scope: Scope, params: Any) -> StepSpec:
        call = ToolCall(scope, self._operation, params)
        scope.go_on()
        await call.allowed()
        return tool_step(call)

    def _spec(self, scope: Scope, params: Any) -> StepSpec:
        match self._operation.operation_id:
            case ModelRequestId():
                key = scope.next_key("model")
                nothing_left_out(scope, key, self._agent_name)
                return model_step(scope, self._operation, params, key=key, name=self._agent_name)
            case ModelCompactMessagesId():
                return model_step(scope, self._operation, params, key=scope.next_key("compact"), name=self._agent_name)
            case _:
                return reading_step(scope, self._operation, params)


async def started_at(scope: Scope) -> datetime:
    """When the scope's agent run began, recorded at the first pass."""
    return await _performed(scope, start_step(scope))


async def _performed(scope: Scope, spec: StepSpec) -> Any:
    """Perform, and tell the traces whether anything was done or only replayed."""
    executed = False

    async def call() -> Any:
        nonlocal executed
        executed = True
        return await spec.call()

    scope.go_on()
    try:
        value = await scope.context.perform(replace(spec, call=call))
    except StepFailed as failed:
        scope.failed(spec.key)
        error = as_raised(failed)
    except (StopSegment, WriteUnknown) as stop:
        scope.stopped_by.append(stop)
        raise
    else:
        record_durable_unit(executed=executed)
        return value
    record_durable_unit(executed=executed)
    raise error
