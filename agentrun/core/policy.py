"""The retry decision: one pure function, used by a segment that failed and by the reaper alike (ADR-104, 112, 141)."""

from __future__ import annotations

import math
from dataclasses import dataclass

from agentrun.core.errors import InvalidRequest
from agentrun.core.failures import Failure
from agentrun.core.retry_after import LONGEST_RETRY_AFTER
from agentrun.core.words import Reason, Status


@dataclass(frozen=True, slots=True)
class Facts:
    """What the decision stands on. `write_in_flight` means a non-idempotent one that nobody can reconcile."""

    has_request: bool
    requeue_count: int
    max_requeues: int
    write_in_flight: bool = False
    deadline_passed: bool = False
    cancel_requested: bool = False
    surfaces: bool = False
    """An interactive segment: somebody is waiting for the answer, so a failure is told and not retried (ADR-104)."""


@dataclass(frozen=True, slots=True)
class Crash:
    """The owner's lease ran out: nobody knows what happened to it."""


@dataclass(frozen=True, slots=True)
class RetryIn:
    """Back to the queue, due in so many seconds."""

    delay: float


@dataclass(frozen=True, slots=True)
class GiveUp:
    """Settle: no further attempt will be made by itself."""

    status: Status
    reason: Reason


@dataclass(frozen=True, slots=True)
class Backoff:
    """Seconds: min(base x 2^n, cap), and up to `jitter` of that on top. Raises InvalidRequest for what is no pause."""

    base: float = 30.0
    cap: float = 600.0
    jitter: float = 0.1

    def __post_init__(self) -> None:
        for what in ("base", "cap", "jitter"):
            value: object = getattr(self, what)
            if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value < math.inf:
                raise InvalidRequest(f"the {what} of a backoff must be a number, 0 or more, not {repr(value)[:80]}")

    def delay(self, requeue_count: int, luck: float) -> float:
        """Seconds until the next attempt; `luck` in [0, 1) places it within the jitter."""
        plain = min(self.base * 2.0 ** min(requeue_count, 32), self.cap)
        return plain * (1 + self.jitter * luck)


def decide(facts: Facts, ending: Failure | Crash, backoff: Backoff, *, luck: float) -> RetryIn | GiveUp:
    """What follows a failed or crashed segment. The order of the checks is the decision table of ADR-104, 112, 141."""
    if facts.cancel_requested:
        return GiveUp(Status.CANCELLED, Reason.CANCELLED)
    if facts.deadline_passed:
        return GiveUp(Status.FAILED, Reason.DEADLINE_EXCEEDED)
    if facts.write_in_flight:
        return GiveUp(Status.FAILED, Reason.NOT_RETRYABLE)
    if isinstance(ending, Failure) and not ending.failure_class.retryable:
        return GiveUp(Status.FAILED, Reason.NOT_RETRYABLE)
    if isinstance(ending, Failure) and facts.surfaces:
        return GiveUp(Status.FAILED, Reason.PROVIDER_FAILED)
    if not facts.has_request:
        return GiveUp(Status.FAILED, Reason.NOT_RETRYABLE)
    if facts.requeue_count >= facts.max_requeues:
        return GiveUp(Status.FAILED, Reason.RETRIES_EXHAUSTED)
    return RetryIn(_delay(facts, ending, backoff, luck))


def _delay(facts: Facts, ending: Failure | Crash, backoff: Backoff, luck: float) -> float:
    match ending:
        case Crash():
            return 0.0
        case Failure(retry_after=float() | int() as asked):
            # In this order, not-a-number becomes 0 as well.
            return max(0.0, float(min(asked, LONGEST_RETRY_AFTER))) * (1 + backoff.jitter * luck)
        case Failure():
            return backoff.delay(facts.requeue_count, luck)
