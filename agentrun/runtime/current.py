"""`current_step()`: what code inside a step or tool may know about the step it is in."""

from __future__ import annotations

import contextvars
from dataclasses import dataclass
from uuid import UUID

from agentrun.core.errors import BodyError


@dataclass(frozen=True, slots=True)
class CurrentStep:
    """The step that is executing. `idempotency_key` is the same in every attempt: hand it to the outside system."""

    run_id: UUID
    key: str
    name: str
    attempt: int
    idempotency_key: str
    owner: str | None = None


CURRENT: contextvars.ContextVar[CurrentStep | None] = contextvars.ContextVar("agentrun_current_step", default=None)


def current_step() -> CurrentStep:
    """The step that is executing. Raises BodyError outside one."""
    step = CURRENT.get()
    if step is None:
        raise BodyError("there is no current step here; current_step() works inside steps and tools")
    return step
