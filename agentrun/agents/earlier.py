"""What the journal has of an agent's tool calls: which of them happened, and which today's agent asks for no more."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from agentrun.agents.answers import says_it_returned
from agentrun.agents.scope import Scope
from agentrun.core.errors import NonDeterminism, WriteWithoutLease
from agentrun.core.words import ENDED, Effect, StepKind, StepStatus

LEFT_OUT = (
    "model `{name}` without it: no tool of the agent takes that call any more (one was renamed, is gone, or has other "
    "parameters), and the model would be told that it was not done"
)


def recorded(scope: Scope) -> Mapping[str, Mapping[str, Any]]:
    """The journal, by key. Nothing in a rehearsal, which has none."""
    try:
        return scope.context.waits.steps.recorded
    except WriteWithoutLease:
        return {}


def happened(step: Mapping[str, Any] | None) -> bool:
    """Whether a tool call began, and has not said that nothing happened."""
    if step is None or step["kind"] != StepKind.TOOL:
        return False
    if step["status"] == StepStatus.COMPLETED:
        return says_it_returned(step["result"])
    return step["status"] == StepStatus.STARTED


def unasked(scope: Scope, call_id: str, tool: str) -> bool:
    """Whether this call happened without a question, in an earlier segment: nobody can be asked about it any more."""
    key = scope.unclaimed_key(call_id)
    step = recorded(scope).get(key) if key is not None else None
    return step is not None and step["name"] == tool and happened(step)


def nothing_left_out(scope: Scope, request: str, name: str) -> None:
    """Raises NonDeterminism, and ends the segment, where the model is to be asked anew after a write that happened
    and that today's agent has passed over.

    Recorded answers are replayed nevertheless: they were given by a model that knew of the write.
    """
    there = recorded(scope).get(request)
    if there is not None and there["status"] in ENDED:
        return
    for key, step in _writes(scope):
        if not scope.asked_for(key):
            error = NonDeterminism(key, f"tool `{step['name']}`", LEFT_OUT.format(name=name))
            steps = scope.context.waits.steps
            steps.broken = steps.broken or error
            raise error


def _writes(scope: Scope) -> Iterator[tuple[str, Mapping[str, Any]]]:
    for key, step in list(recorded(scope).items()):
        if key.startswith(f"{scope.prefix}tool:") and Effect(step["effect"]).is_write and happened(step):
            yield key, step
