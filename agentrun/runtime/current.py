"""`current_step()`: what code inside a step or tool may know about the step it is in."""

from __future__ import annotations

import contextvars
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any
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
    beat: Callable[[Any], None] | None = field(default=None, repr=False, compare=False)

    def heartbeat(self, progress: Any = None) -> None:
        """Say that the step is alive, and how far it is (a JSON value). For remote steps with a `timeout`.

        Stored at most once per half window; in a step that is not remote it only checks that the step may go on.
        Raises what ends the step (LeaseLost, Cancelled): let it through.
        """
        if self.beat is not None:
            self.beat(progress)


CURRENT: contextvars.ContextVar[CurrentStep | None] = contextvars.ContextVar("agentrun_current_step", default=None)


def current_step() -> CurrentStep:
    """The step that is executing. Raises BodyError outside one."""
    step = CURRENT.get()
    if step is None:
        raise BodyError("there is no current step here; current_step() works inside steps and tools")
    return step
