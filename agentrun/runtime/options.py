"""What a kind overrides of the settings, and how often a step is tried: checked where it is said."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import timedelta
from typing import cast

from agentrun.core.errors import ConfigurationError, InvalidRequest
from agentrun.core.policy import Backoff
from agentrun.runtime.checks import (
    checked_attempts,
    checked_flag,
    checked_lease,
    checked_queue,
    checked_requeues,
    checked_timeout,
)

STEP_BACKOFF = Backoff(base=1.0, cap=30.0)


@dataclass(frozen=True, slots=True)
class Retries:
    """How often a step that may be repeated is tried within its segment, and how long the pauses are (seconds).

    Raises InvalidRequest for less than one attempt, and for what is no backoff.
    """

    attempts: int = 1
    backoff: Backoff = STEP_BACKOFF

    def __post_init__(self) -> None:
        checked_attempts(self.attempts)
        if not isinstance(cast("object", self.backoff), Backoff):
            told = repr(self.backoff)[:80]
            raise InvalidRequest(f"the backoff of retries must be a Backoff(base, cap, jitter), not {told}")


ONCE = Retries()


@dataclass(frozen=True, slots=True)
class Options:
    """What a kind overrides. `timeout` bounds the whole run, waits included; None leaves the setting."""

    queue: str | None = None
    max_requeues: int | None = None
    timeout: timedelta | None = None
    lease_seconds: float | None = None
    retries: Retries = ONCE
    four_eyes: bool = False
    """Whoever started a run approves nothing of it."""

    def overrides(self) -> dict[str, float]:
        """What is not left to the settings, in numbers and seconds."""
        timeout = self.timeout.total_seconds() if self.timeout is not None else None
        said = {"max_requeues": self.max_requeues, "lease_seconds": self.lease_seconds, "timeout": timeout}
        return {name: value for name, value in said.items() if value is not None}


def options_of(
    name: str,
    *,
    queue: str | None,
    max_requeues: int | None,
    timeout: timedelta | float | None,
    lease_seconds: float | None,
    retries: Retries | int | None,
    four_eyes: bool,
) -> Options:
    """What was said of a kind. Raises ConfigurationError that names the kind and what it cannot be told."""
    try:
        seconds, tried = checked_timeout(timeout), as_retries(retries)
        requeues, lease = checked_requeues(max_requeues), checked_lease(lease_seconds)
        usual, eyes = checked_queue(queue), checked_flag("four_eyes", four_eyes)
    except InvalidRequest as error:
        raise ConfigurationError(f"kind `{name}`: {error}") from None
    bound = timedelta(seconds=seconds) if seconds is not None else None
    return Options(usual, requeues, bound, lease, tried, eyes)


def as_retries(value: Retries | int | None) -> Retries:
    """A number of attempts, or the policy itself. Raises InvalidRequest for anything else."""
    match value:
        case None:
            return ONCE
        case Retries():
            return value
        case _:
            return Retries(attempts=value)
