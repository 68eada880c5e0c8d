"""A wake: what is sent after a commit so that a worker looks at a row. Losing one costs time, never a run."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Protocol
from uuid import UUID


@dataclass(frozen=True, slots=True)
class Wake:
    """For one run, or for one remote step of it. `kind` is for display only; `delay` is seconds, and the row's due
    time is what counts."""

    run_id: UUID
    queue: str
    kind: str = ""
    priority: int = 0
    delay: float = 0.0
    cause: str = "enqueue"
    step_key: str | None = None
    strict: bool = False
    """Strict dispatch: where it cannot be sent now, its run is settled as failed, and is left to no sweep."""

    @classmethod
    def of_step(cls, row: Mapping[str, Any], *, delay: float = 0.0, cause: str) -> Wake:
        """The message for a step on offer."""
        return cls(row["run_id"], row["queue"], row["name"], row["priority"], delay, cause, row["key"])

    @classmethod
    def of(cls, row: Mapping[str, Any], *, delay: float = 0.0, cause: str) -> Wake:
        """The wake for a moved row."""
        return cls(row["id"], row["queue"], row["kind"], row["priority"], delay, cause)


class Publisher(Protocol):
    """Sends wakes and hints. Bounded in time; says whether it worked and never raises for a broker that is away."""

    def wake(self, *wakes: Wake) -> int:
        """Send; returns how many were sent."""
        ...

    def soon(self, wake: Wake) -> None:
        """Send in the background."""
        ...

    def settled(self, run_id: UUID) -> None:
        """Hint, in the background, to whoever waits for the run's end."""
        ...

    def depth(self, queue: str) -> int | None:
        """How many messages wait in a queue; None where the broker cannot be asked."""
        ...

    def close(self) -> None:
        """Send what is waiting, within the publish timeout."""
        ...
