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
from agentrun.agents.approvals import ALWAYS, Approval, applies, as_approval
from agentrun.agents.earlier import happened, recorded
from agentrun.agents.effects import effect_of
from agentrun.agents.scope import CALLED, Scope
from agentrun.agents.units import Operation, in_unit
from agentrun.core.codec import digest
from agentrun.core.errors import BodyError, NotApplied
from agentrun.core.words import Effect, StepKind
from agentrun.runtime.effects import Declared
from agentrun.runtime.options import ONCE
from agentrun.runtime.stepspec import StepSpec

NOTHING_HAPPENED = (NotApplied, ModelRetry, ToolFailed, ApprovalRequired, CallDeferred)
"""What a tool's own function raises to say that it did nothing outside."""


def tool_step(call: ToolCall) -> StepSpec:
    """One call of a tool."""
    scope, operation = call.scope, call.operation
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
    def names(self) -> tuple[str, ...]:
        """By which the operator may mean it: as the model called it, and within its toolset where no other tool of the
        agent is called so."""
        manager, inner = self.params.ctx.tool_manager, self.params.name
        others = (manager.tools if manager is not None else None) or {}
        return (self.name,) if inner == self.name or inner in others else (self.name, inner)

    @cached_property
    def declared(self) -> Declared:
        """What the tool does outside."""
        return effect_of(self.params.tool, self.names, self.scope.effects)

    @cached_property
    def approval(self) -> Approval | None:
        """Who has to approve such calls: the operator's word, else the tool's own."""
        said = self.scope.approvals
        for name in self.names:
            if name in said:
                return said[name]
        return as_approval(self.declared.approval)

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
        key = self.scope.call_key(ctx.tool_call_id, identity)
        if not ctx.tool_call_approved or happened(recorded(self.scope).get(key)):
            # What happened before anybody had to approve it is not done again because somebody has to now.
            return key
        return self.scope.call_key(ctx.tool_call_id, identity, approved=True)

    async def allowed(self) -> None:
        """Raises ApprovalRequired where somebody has to approve this call first: pydantic-ai asks then, and comes back.

        A rule may answer otherwise at a replay: what was asked once is asked for good, and what began without a
        question is not held up by one.
        """
        ctx, approval = self.params.ctx, self.approval
        if ctx.tool_call_approved:
            return
        key = self.scope.approval_key(ctx.tool_call_id or self.name, self.name, ctx.run_step)
        if approval is None:
            self._not_decided(key)
            return
        waits = self.scope.context.waits
        if self.key in waits.steps.recorded:
            return
        why = "asked before" if await waits.asked(key) else None
        why = why or await applies(approval, self.params.tool_args, self.scope.context.threads)
        if why is not None:
            self.scope.demanded[key] = approval, why
            raise ApprovalRequired

    def _not_decided(self, question: str) -> None:
        """Raises ApprovalRequired where somebody decided on this call before it needed no approval any more: a denial
        stands, and what was done once it was approved is not done again."""
        known = recorded(self.scope)
        if not known or self.key in known:
            return
        if question in known or question in (self.scope.context.waits.rows or ()):
            self.scope.demanded[question] = ALWAYS, "asked before"
            raise ApprovalRequired

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
