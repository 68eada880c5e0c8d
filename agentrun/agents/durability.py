"""The capability that makes an agent's run durable: what pydantic-ai asks of an engine, answered with our steps.

Outside of durable runs it does nothing, so an agent that carries it runs as ever.
"""

from __future__ import annotations

from datetime import datetime
from typing import Any, TypeVar

from pydantic_ai.agent import EventStreamHandler
from pydantic_ai.agent.abstract import AbstractAgent
from pydantic_ai.capabilities import WrapRunHandler, WrapToolExecuteHandler
from pydantic_ai.durable_exec import (
    JSON_CODEC,
    BaseDurabilityCapability,
    DurabilityEngineSpec,
    conversation_id_from_run_id,
)
from pydantic_ai.exceptions import UserError
from pydantic_ai.messages import ToolCallPart
from pydantic_ai.models import Model
from pydantic_ai.run import AgentRunResult
from pydantic_ai.tools import DeferredToolRequests, DeferredToolResults, RunContext, ToolDefinition
from pydantic_ai.toolsets import AbstractToolset

from agentrun.agents.asking import decided, refuse_unasked
from agentrun.agents.backend import StepBackend, started_at
from agentrun.agents.scope import CALLED, SCOPE, scoped
from agentrun.agents.toolsets import Journaling
from agentrun.core.errors import BodyError, InvalidResult
from agentrun.runtime.current import CURRENT
from agentrun.runtime.keys import BRANCH

DepsT = TypeVar("DepsT")


def _unstorable(error: Exception) -> InvalidResult:
    return InvalidResult(f"what a step of the agent returned cannot be stored as JSON: {error}")


class AgentrunDurability(BaseDurabilityCapability[DepsT]):
    """Journals the model requests and tool calls of an agent wherever it runs inside a durable run.

    `register_agent` and `run_agent` add it for the run. An agent that others delegate to may carry it from its author
    (`Agent(…, capabilities=[AgentrunDurability()])`): its model requests are then steps too, inside the tool that
    delegates. `event_stream_handler` gets the events of the run: each at least once, and none again at a replay.
    """

    engine_spec = DurabilityEngineSpec(
        engine_name="agentrun",
        durable_unit_noun="step",
        durable_container_noun="run",
        codec=JSON_CODEC,
        serialization_failure=_unstorable,
        # Toolsets are journaled when a run begins (`get_wrapper_toolset`), so none needs an id of its own.
        wrapped_toolset_kinds=frozenset(),
        toolset_lifecycles={"function": "enter-always", "mcp": "enter-in-durable-unit", "dynamic": "enter-always"},
    )

    def __init__(
        self,
        *,
        name: str | None = None,
        event_stream_handler: EventStreamHandler[DepsT] | None = None,
    ) -> None:
        super().__init__(event_stream_handler=event_stream_handler, name=name)

    @property
    def in_durable_context(self) -> bool:
        """Whether there is a journal to write to."""
        return SCOPE.get() is not None

    def get_durable_operation_backend(self) -> StepBackend:
        """Our steps."""
        return StepBackend(self.name)

    def get_default_run_id(self) -> str | None:
        """Derived from the durable run's id: the same at every replay."""
        scope = SCOPE.get()
        return scope.begin_run() if scope is not None else None

    def get_default_conversation_id(self, run_id: str) -> str | None:
        """Derived from the run's id."""
        return conversation_id_from_run_id(run_id) if self.in_durable_context else None

    async def get_run_start_time(self, run_id: str) -> datetime | None:
        """Recorded once: a run's `timeout=` counts from its first start, whatever crashed since."""
        scope = SCOPE.get()
        return await started_at(scope.of_run(run_id)) if scope is not None else None

    async def before_run(self, ctx: RunContext[DepsT]) -> None:
        """Raises BodyError in a body: `agent.run` there would journal nothing, and do all of it again at a replay."""
        if SCOPE.get() is None and CURRENT.get() is None and BRANCH.get() is not None:
            raise BodyError(
                f"agent `{self.name}` was run by `agent.run` in a body, where nothing of it would be journaled; "
                "run it with `run_agent(ctx, agent, …)`"
            )
        await super().before_run(ctx)

    async def wrap_run(self, ctx: RunContext[DepsT], *, handler: WrapRunHandler) -> AgentRunResult[Any]:
        """Every agent run keeps its steps apart from those of other agents in the same scope."""
        scope = SCOPE.get()
        if scope is None:
            return await handler()
        with scoped(scope.of_run(ctx.run_id)):
            return await super().wrap_run(ctx, handler=handler)

    async def wrap_tool_execute(
        self,
        ctx: RunContext[DepsT],
        *,
        call: ToolCallPart,
        tool_def: ToolDefinition,
        args: dict[str, Any],
        handler: WrapToolExecuteHandler,
    ) -> Any:
        """Remember the name by which the model called. Nobody can be asked inside a write that is one step."""
        if SCOPE.get() is None and CURRENT.get() is not None and not ctx.tool_call_approved:
            refuse_unasked(ctx, call.tool_name)
        token = CALLED.set(call.tool_name)
        try:
            return await handler(args)
        finally:
            CALLED.reset(token)

    async def handle_deferred_tool_calls(
        self, ctx: RunContext[DepsT], *, requests: DeferredToolRequests
    ) -> DeferredToolResults | None:
        """Calls that somebody has to approve wait for a decision, each for its own."""
        scope = SCOPE.get()
        return await decided(scope, ctx, requests) if scope is not None else None

    def get_wrapper_toolset(self, toolset: AbstractToolset[DepsT]) -> AbstractToolset[DepsT] | None:
        """Every toolset that executes, journaled."""
        if not self.in_durable_context:
            return None
        return Journaling(self._build_function_toolset, self._build_mcp_toolset).within(toolset)

    def _find_model_id(self, model: Model) -> str | None:
        """Any model will do, also one that a capability brings along: a step runs in the run's own process."""
        try:
            return super()._find_model_id(model)
        except UserError:
            known = f"{model.model_id} #{len(self._models_by_id)}"
            self._models_by_id[known] = model
            return known

    def _bind_to_agent(self, agent: AbstractAgent[DepsT, Any]) -> None:
        """Nothing to bind: toolsets are wrapped when a run begins, also those that were added to the agent since."""
