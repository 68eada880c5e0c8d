"""`current_step()`: what code inside a step or tool may know about the step it is in."""

from __future__ import annotations

import contextvars
import hashlib
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any
from uuid import UUID

from agentrun.core.errors import BodyError


@dataclass(frozen=True, slots=True)
class CurrentStep:
    """The step that is executing."""

    run_id: UUID
    key: str
    name: str
    attempt: int
    owner: str | None = None
    beat: Callable[[Any], None] | None = field(default=None, repr=False, compare=False)

    @property
    def idempotency_key(self) -> str:
        """The same in every attempt of the step, and no other step's: hand it to the outside system."""
        return idempotency_key(self.run_id, self.key)

    def heartbeat(self, progress: Any = None) -> None:
        """Say that the step is alive, and how far it is (a JSON value). For remote steps with a `timeout`.

        Stored at most once per half window; in a step that is not remote it only checks that the step may go on.
        Raises what ends the step (LeaseLost, Cancelled): let it through.
        """
        if self.beat is not None:
            self.beat(progress)


def idempotency_key(run_id: UUID, key: str) -> str:
    """The same in every attempt of a step, and nobody else's: what outside systems tell repeats by."""
    return hashlib.sha256(f"{run_id}/{key}".encode()).hexdigest()[:32]


CURRENT: contextvars.ContextVar[CurrentStep | None] = contextvars.ContextVar("agentrun_current_step", default=None)


def current_step() -> CurrentStep:
    """The step that is executing. Raises BodyError outside one."""
    step = CURRENT.get()
    if step is None:
        raise BodyError("there is no current step here; current_step() works inside steps and tools")
    return step
