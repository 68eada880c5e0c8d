"""Tool calls as steps: keyed by the call's id, fenced by the tool's effect, control flow recorded as results.

A non-idempotent write that raises has not said how it ended. Only what is declared to mean "nothing happened" goes
back to the model: `NotApplied`, and the words of pydantic-ai that a tool's own function says (ModelRetry, ToolFailed,
ApprovalRequired, CallDeferred). Anything else stops the run as a crash would.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cached_property, partial
from typing import Any, cast

from pydantic_ai.durable_exec import ToolsetCallToolParams
from pydantic_ai.exceptions import ApprovalRequired, CallDeferred, ModelRetry, ToolFailed
from pydantic_ai.tools import RunContext
from pydantic_ai.toolsets import ToolsetTool
from pydantic_ai.toolsets.function import FunctionToolsetTool
from pydantic_core import to_json

from agentrun.agents.answers import Answer, loader, stored
from agentrun.agents.effects import effect_of
from agentrun.agents.scope import CALLED, Scope
from agentrun.agents.units import Operation, in_unit
from agentrun.core.codec import digest
from agentrun.core.errors import BodyError, NotApplied
from agentrun.core.words import Effect, StepKind
from agentrun.runtime.effects import Declared
from agentrun.runtime.kinds import ONCE
from agentrun.runtime.stepspec import StepSpec

NOTHING_HAPPENED = (NotApplied, ModelRetry, ToolFailed, ApprovalRequired, CallDeferred)
"""What a tool's own function raises to say that it did nothing outside."""


def tool_step(scope: Scope, operation: Operation, params: ToolsetCallToolParams) -> StepSpec:
    """One call of a tool."""
    call = ToolCall(scope, operation, params)
    if call.declared.approval:
        raise BodyError(
            f"tool `{call.name}` waits for an approval (@effect(…, approval=…)), which agents cannot ask for yet; "
            "it was not called. Ask with ctx.approval in a @durable body, or take the approval out of its declaration"
        )
    return StepSpec(
        key=call.key,
        kind=StepKind.TOOL,
        name=call.name,
        effect=call.declared.effect,
        call=call.run,
        encode=stored,
        decode=loader(operation.result_codec.load),
        arguments=lambda: call.arguments,
        retries=scope.context.wishes.retries if call.declared.effect is Effect.READ_ONLY else ONCE,
        reconcile=call.declared.reconcile,
    )


@dataclass
class ToolCall:
    """A call that the model asked for, with its arguments validated already."""

    scope: Scope
    operation: Operation
    params: ToolsetCallToolParams

    @cached_property
    def name(self) -> str:
        """As the model called it."""
        return CALLED.get() or self.params.name

    @cached_property
    def declared(self) -> Declared:
        """What the tool does outside."""
        return effect_of(self.params.tool, (self.name, self.params.name), self.scope.effects)

    @cached_property
    def arguments(self) -> str:
        """JSON text; what has no JSON stands as its type."""
        return to_json(
            self.params.tool_args,
            fallback=lambda value: f"<{type(value).__name__}>",
            inf_nan_mode="strings",
            bytes_mode="base64",
        ).decode()

    @cached_property
    def key(self) -> str:
        """A write with the same id and arguments is one effect; a read in a later turn of the model is asked anew."""
        ctx = self.params.ctx
        turn = ctx.run_step if self.declared.effect is Effect.READ_ONLY else None
        identity = json.dumps([self.name, digest(self.arguments), turn])
        return self.scope.call_key(ctx.tool_call_id, identity, approved=ctx.tool_call_approved)

    async def run(self) -> Answer:
        """Call the tool. Raises what its function raised, where that is no answer to the model."""
        if self.declared.effect is not Effect.NON_IDEMPOTENT_WRITE:
            return await self._answer(self.params, self.scope.inside(self.key))
        heard = Heard()
        # What happens inside a write that cannot be repeated is one with it: nothing in it is a step of its own.
        answer = await self._answer(heard.listening(self.params), None)
        if not answer.returned and not heard.nothing_happened:
            raise BodyError(
                f"tool `{self.name}` ended with {answer.kind}, which does not say that nothing happened; "
                "raise NotApplied (or ModelRetry) in it where nothing did, or declare its effect"
            )
        return answer

    async def _answer(self, params: ToolsetCallToolParams, inside: Scope | None) -> Answer:
        return Answer(self.operation.result_codec.dump(await in_unit(self.operation, params, inside)))


class Heard:
    """Whether a write's own function said that nothing happened.

    Others on the way say so too of what they do not know: of a timeout, a server's error, a result that is not valid.
    """

    def __init__(self) -> None:
        self.nothing_happened = False

    def listening(self, params: ToolsetCallToolParams) -> ToolsetCallToolParams:
        """The same call, with the tool's function listened to, where it has one in this process."""
        tool = params.tool
        if not isinstance(tool, FunctionToolsetTool):
            return params
        function = cast("Callable[[dict[str, Any], RunContext[Any]], Any]", tool.call_func)
        heard = replace(tool, call_func=partial(self._call, function))
        return replace(params, tool=cast("ToolsetTool[Any]", heard))

    async def _call(
        self, function: Callable[[dict[str, Any], RunContext[Any]], Any], args: dict[str, Any], ctx: RunContext[Any]
    ) -> Any:
        try:
            return await function(args, ctx)
        except NOTHING_HAPPENED:
            self.nothing_happened = True
            raise
