"""The vocabulary as enums: the same words in Python, SQL, the API, the command line, the docs and the logs.

This module owns the words and nothing else; what may follow what is in `moves`.
"""

from __future__ import annotations

from enum import StrEnum


class Status(StrEnum):
    """Where a run is. Everything finer is a column: when it is due, what it waits for, why it ended."""

    QUEUED = "queued"
    RUNNING = "running"
    WAITING = "waiting"
    COMPLETED = "completed"
    FAILED = "failed"
    CANCELLED = "cancelled"

    @property
    def final(self) -> bool:
        """True where only an operator's redrive or resolve leads on."""
        return self in FINAL


FINAL = frozenset({Status.COMPLETED, Status.FAILED, Status.CANCELLED})


class Reason(StrEnum):
    """Why a run is final. Details (failure class, the step in flight, the last error) stand beside it."""

    COMPLETED = "completed"
    MAX_ITERATIONS = "max_iterations"
    BUDGET_EXHAUSTED = "budget_exhausted"
    DEADLINE_EXCEEDED = "deadline_exceeded"
    POLICY_DENIED = "policy_denied"
    APPROVAL_DENIED = "approval_denied"
    PROVIDER_FAILED = "provider_failed"
    NOT_RETRYABLE = "not_retryable"
    RETRIES_EXHAUSTED = "retries_exhausted"
    CANCELLED = "cancelled"


class Segment(StrEnum):
    """One stretch of executing a run in one process; the first word of the owner's name (ADR-141)."""

    WORKER = "worker"
    INTERACTIVE = "interactive"
    RESUME = "resume"


class StepKind(StrEnum):
    """What a journaled unit of a body is."""

    STEP = "step"
    WRITE = "write"
    TRANSACTION = "transaction"
    MODEL = "model"
    TOOL = "tool"
    REMOTE = "remote"
    EXTERNAL = "external"
    SLEEP = "sleep"
    SIGNAL = "signal"
    APPROVAL = "approval"
    INPUT = "input"
    CHILD = "child"


class StepStatus(StrEnum):
    """Where a step is.

    `offered` is a remote step that waits to be taken. `started` is the fence: a write (or a remote step) began and
    has not said how it ended. `not_applied` is an
    interrupted write of which somebody (a reconcile function, an operator, the body) knows that nothing happened:
    it may start afresh. `redo` is a failed step whose failure ended a segment: the next segment does it again.
    """

    OFFERED = "offered"
    STARTED = "started"
    COMPLETED = "completed"
    FAILED = "failed"
    NOT_APPLIED = "not_applied"
    REDO = "redo"


ENDED = frozenset({StepStatus.COMPLETED, StepStatus.FAILED})


class Effect(StrEnum):
    """What repeating a step would do (ADR-111, ADR-112)."""

    READ_ONLY = "read_only"
    IDEMPOTENT_WRITE = "idempotent_write"
    NON_IDEMPOTENT_WRITE = "non_idempotent_write"

    @property
    def is_write(self) -> bool:
        """True where a fence has to stand before the step starts."""
        return self is not Effect.READ_ONLY


class EventType(StrEnum):
    """What the event stream tells, in the past tense."""

    ENQUEUED = "enqueued"
    CLAIMED = "claimed"
    STEP_STARTED = "step_started"
    STEP_COMPLETED = "step_completed"
    STEP_FAILED = "step_failed"
    PARKED = "parked"
    RESOLVED = "resolved"
    REQUEUED = "requeued"
    REAPED = "reaped"
    HANDED_BACK = "handed_back"
    LEASE_LOST = "lease_lost"
    CANCEL_REQUESTED = "cancel_requested"
    REDRIVEN = "redriven"
    STEP_RETRIED = "step_retried"
    REDISPATCHED = "redispatched"
    SETTLED = "settled"


class Outcome(StrEnum):
    """How one segment ended, for whoever called it. Not stored as such."""

    COMPLETED = "completed"
    WAITING = "waiting"
    REQUEUED = "requeued"
    HANDED_BACK = "handed_back"
    LEASE_LOST = "lease_lost"
    CANCELLED = "cancelled"
    FAILED = "failed"


class WaitKind(StrEnum):
    """What a parked run waits for."""

    APPROVAL = "approval"
    INPUT = "input"
    SIGNAL = "signal"
    TIMER = "timer"
    CHILD = "child"
    REMOTE = "remote"


class WaitStatus(StrEnum):
    """Where a wait is: open, or closed by an answer, by time, or with its run."""

    OPEN = "open"
    RESOLVED = "resolved"
    EXPIRED = "expired"
    CLOSED = "closed"


class FailureClass(StrEnum):
    """What an error means for the next attempt (ADR-095, ADR-104)."""

    CONNECTION = "connection"
    RATE_LIMIT = "rate_limit"
    SERVER_ERROR = "server_error"
    CIRCUIT_OPEN = "circuit_open"
    AUTH = "auth"
    CONFIGURATION = "configuration"
    CLIENT_ERROR = "client_error"
    UNKNOWN = "unknown"

    @property
    def retryable(self) -> bool:
        """True where another attempt, later or elsewhere, may succeed."""
        return self in RETRYABLE


RETRYABLE = frozenset(
    {FailureClass.CONNECTION, FailureClass.RATE_LIMIT, FailureClass.SERVER_ERROR, FailureClass.CIRCUIT_OPEN}
)
