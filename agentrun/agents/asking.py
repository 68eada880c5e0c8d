"""Deferred tool calls as waits: pydantic-ai's requests become approvals and inputs, and answers become its results.

All calls of a turn are asked side by side, and each is answered by itself; the run goes on once none is left open. It
never decides, and never calls a tool.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from pydantic_ai.messages import ToolCallPart
from pydantic_ai.tools import DeferredToolRequests, DeferredToolResults, RunContext, ToolApproved, ToolDenied
from pydantic_core import to_jsonable_python

from agentrun.agents.approvals import ALWAYS, Approval, as_approval, asked, seconds_of
from agentrun.agents.earlier import recorded, unasked
from agentrun.agents.effects import declared_by, function_of
from agentrun.agents.forms import Form
from agentrun.agents.scope import AROUND, Scope
from agentrun.core.codec import decode, encode
from agentrun.core.errors import BodyError
from agentrun.core.outcome import Parked, StopSegment
from agentrun.core.words import Effect, StepKind, WaitKind
from agentrun.runtime.stepspec import StepSpec
from agentrun.runtime.waits import WaitSpec, expiry

LONGEST_VALUE = 60
"""Characters of one argument in a question; the payload has them in full."""

DENIED = "The tool call was denied."


async def decided(scope: Scope, ctx: RunContext[Any], requests: DeferredToolRequests) -> DeferredToolResults | None:
    """Decisions on all calls that need one, and data for all that wait for some. None where there are none; others'
    deferred calls are left alone.

    Raises Parked until all are answered, WaitExpired where one that nobody answered in time is to fail the run.
    """
    said_of = requests.metadata
    questions = [Question(scope, ctx, call, said_of.get(call.tool_call_id)) for call in requests.approvals]
    forms = [
        Form(scope, ctx, call, said_of.get(call.tool_call_id))
        for call in requests.calls
        if call.tool_name in scope.inputs
    ]
    if not questions and not forms:
        return None
    said = await _answers(scope, [*questions, *forms])
    return DeferredToolResults(
        approvals={each.call.tool_call_id: each.result(said[each.key]) for each in questions},
        calls={each.call.tool_call_id: said[each.key] for each in forms},
        metadata={each.call.tool_call_id: each.told(said[each.key]) for each in questions},
    )


async def _answers(scope: Scope, asked: Sequence[Question | Form]) -> dict[str, Any]:
    """By key. All are asked before anybody waits: they are open side by side."""
    scope.go_on()
    said: dict[str, Any] = {}
    parked: Parked | None = None
    try:
        for each in asked:
            try:
                said[each.key] = await each.ask()
            except Parked as wait:
                parked = wait
        if parked is not None:
            raise parked
    except StopSegment as stop:
        scope.stopped_by.append(stop)
        raise
    return said


@dataclass
class Question:
    """One call that somebody has to approve."""

    scope: Scope
    ctx: RunContext[Any]
    call: ToolCallPart
    metadata: dict[str, Any] | None

    def __post_init__(self) -> None:
        self.key = self.scope.approval_key(self.call.tool_call_id, self.call.tool_name, self.ctx.run_step)
        self.arguments = self.call.args_as_dict()
        known = self.scope.demanded.get(self.key)
        self.approval, self.why = known or (self._declared() or ALWAYS, "always")

    async def ask(self) -> Mapping[str, Any]:
        """The decision. Raises Parked until there is one.

        What happened before anybody had to approve it (the code has changed since) goes on with what it came to.
        """
        if self.key not in recorded(self.scope) and unasked(self.scope, self.call.tool_call_id, self.call.tool_name):
            return {"approved": True}
        policy = self.approval
        preview = await self._preview()
        seconds = seconds_of(policy.expires)
        spec = WaitSpec(
            self.key,
            StepKind.APPROVAL,
            WaitKind.APPROVAL,
            self.call.tool_name,
            asks=self._asks(preview),
            role=policy.role,
            due_in=seconds,
            remind_in=seconds_of(policy.remind),
            on_expiry=expiry(policy.on_expiry, role=policy.escalate_to, seconds=seconds),
        )
        return await self.scope.context.waits.ask(spec)

    def result(self, said: Mapping[str, Any]) -> ToolApproved | ToolDenied:
        """The decision as pydantic-ai takes it. A denial goes to the model, with its comment."""
        if not said.get("approved"):
            return ToolDenied(said.get("comment") or DENIED)
        edited = said.get("edited")
        return ToolApproved(override_args=_edited(edited) if edited is not None else None)

    def told(self, said: Mapping[str, Any]) -> dict[str, Any]:
        """What the tool may read of the decision, in `ctx.tool_call_metadata`."""
        decision = {"approved_by": said.get("by"), "comment": said.get("comment")}
        return {**(self.metadata or {}), **decision}

    def _asks(self, preview: Any) -> dict[str, Any]:
        asks: dict[str, Any] = {
            "question": self._question(),
            "payload": {"tool": self.call.tool_name, "arguments": self.arguments},
            "editable": self.approval.editable,
            "four_eyes": self.approval.four_eyes,
            "why": self.why,
        }
        if self.approval.preview is not None:
            asks["preview"] = preview
        if self.metadata:
            asks["metadata"] = self.metadata
        if self.approval.editable:
            asks["schema"] = edits_schema(self.call.tool_name, self._parameters())
        return to_jsonable_python(asks, fallback=str, inf_nan_mode="strings")

    def _question(self) -> str:
        shown = ", ".join(f"{name}={_short(value)}" for name, value in self.arguments.items())
        return f"{self.call.tool_name}({shown})?"

    async def _preview(self) -> Any:
        """Made once, as a step: it runs under the owner's name, and a replay does not make it again."""
        function = self.approval.preview
        if function is None:
            return None

        async def make() -> Any:
            try:
                return to_jsonable_python(
                    await asked(function, self.arguments, self.scope.context.threads), fallback=str
                )
            except Exception as error:
                # Whoever decides does without, and knows it.
                return {"failed": type(error).__name__}

        name = f"preview of {self.call.tool_name}"
        return await self.scope.context.perform(
            StepSpec(f"{self.key}:preview", StepKind.STEP, name, Effect.READ_ONLY, make, _encoded, decode)
        )

    def _declared(self) -> Approval | None:
        """For calls that pydantic-ai itself defers: what the operator says of the tool, or what it declares."""
        name = self.call.tool_name
        if name in self.scope.approvals:
            return self.scope.approvals[name]
        return declared_approval(self.ctx, name)

    def _parameters(self) -> dict[str, Any]:
        known = self.ctx.tools.get(self.call.tool_name)
        return known.parameters_json_schema if known is not None else {"type": "object"}


def declared_approval(ctx: RunContext[Any], name: str) -> Approval | None:
    """What the tool declares itself."""
    manager = ctx.tool_manager
    tool: Any = (manager.tools or {}).get(name) if manager is not None else None
    while hasattr(tool, "source_tool"):
        # Toolsets that hold others wrap their tools.
        tool = tool.source_tool
    function = function_of(tool)
    own = declared_by(function) if function is not None else None
    return as_approval(own.approval) if own is not None else None


def refuse_unasked(ctx: RunContext[Any], name: str) -> None:
    """Raises BodyError for a tool that needs an approval, by its own word or the operator's, where no run can park."""
    around = AROUND.get()
    said: Mapping[str, Approval | None] = around.approvals if around is not None else {}
    needed = said[name] if name in said else declared_approval(ctx, name)
    if needed is not None:
        raise BodyError(
            f"tool `{name}` waits for an approval, and nobody can be asked inside a non-idempotent write, which is one "
            "step with all that happens in it; it was not called. Run its agent in a tool that may be repeated"
        )


def edits_schema(tool: str, parameters: Mapping[str, Any]) -> dict[str, Any]:
    """What an edit has to be: the tool's arguments, or the whole payload with the same tool."""
    arguments = {name: value for name, value in parameters.items() if name != "$defs"}
    whole = {
        "type": "object",
        "properties": {"tool": {"const": tool}, "arguments": arguments},
        "required": ["tool", "arguments"],
        "additionalProperties": False,
    }
    definitions = {"$defs": parameters["$defs"]} if "$defs" in parameters else {}
    return {**definitions, "anyOf": [arguments, whole]}


def _edited(edited: dict[str, Any]) -> dict[str, Any]:
    return edited["arguments"] if edited.keys() == {"tool", "arguments"} else edited


def _short(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= LONGEST_VALUE else f"{text[: LONGEST_VALUE - 1]}…"


def _encoded(value: Any) -> str:
    return encode(value, what="the preview")
