"""Everything that agentrun raises at its users. Each message says what, which, and the next step.

AgentrunError
├── ConfigurationError        a setting is missing or wrong
│   └── SchemaMismatch        the database schema is not the one this code needs
├── InvalidRequest            refused before anything was stored
│   ├── UnknownKind
│   ├── TooLarge
│   ├── IdempotencyConflict
│   └── InvalidAnswer         data that does not fit what a wait asks for
├── NotFound                  no such run here (unknown and forbidden look the same)
│   └── NamespaceMismatch
├── NotAllowed                the run is in a status that does not permit it
│   ├── AlreadyDecided        somebody answered this wait first, or it asks something else by now
│   └── StaleToken            the step of this token was offered again, or given up, since it was taken
├── Forbidden                 the actor may see the run, and may not do this
├── EnqueueFailed             strict dispatch: settled as failed, because no wake could be sent
├── RunFailed                 `run()` and `result()`: the run ended without a result
└── BodyError                 raised inside bodies and steps
    ├── StepFailed
    │   └── WaitExpired       nobody answered in time
    ├── NonDeterminism
    ├── InvalidResult
    ├── WriteWithoutLease
    ├── Retryable, Fatal, NotApplied     raised by bodies to steer
"""

from __future__ import annotations

from datetime import timedelta
from typing import ClassVar


class AgentrunError(Exception):
    """Base of all. `exit_code` is what the command line ends with."""

    exit_code: ClassVar[int] = 1


class ConfigurationError(AgentrunError):
    """A setting is missing or has a value that cannot be used; the message names the variable."""

    exit_code = 3


class SchemaMismatch(ConfigurationError):
    """The database's schema is not the revision that this code needs; the message names the command.

    `missing`: there is none yet, so no other version can have been here. `newer`: a later version was, and migrating
    leads nowhere.
    """

    exit_code = 4

    def __init__(self, message: str, *, missing: bool = False, newer: bool = False) -> None:
        super().__init__(message)
        self.missing, self.newer = missing, newer


class InvalidRequest(AgentrunError):
    """What was asked for cannot be stored; nothing was."""

    exit_code = 5


class UnknownKind(InvalidRequest):
    """No body is registered under this name: in this process, or in any that is known of."""

    exit_code = 6


class TooLarge(InvalidRequest):
    """A request, result or payload is over its limit."""

    exit_code = 7


class IdempotencyConflict(InvalidRequest):
    """The idempotency key is taken by another request of the same kind."""

    exit_code = 8


class NotFound(AgentrunError):
    """There is no such run, or none that the caller may see."""

    exit_code = 9


class NamespaceMismatch(NotFound):
    """The run belongs to another namespace than the one this process serves."""

    exit_code = 10


class NotAllowed(AgentrunError):
    """The run's status does not permit this; the message names the status and what does permit it."""

    exit_code = 11


class AlreadyDecided(NotAllowed):
    """Somebody answered this wait first, or what it asks has changed since it was read; nothing was recorded."""

    exit_code = 14


class StaleToken(NotAllowed):
    """The token is for a take of a step that is over: it was offered again since, and somebody else may have it."""

    exit_code = 17


class InvalidAnswer(InvalidRequest):
    """The data does not fit what the wait asks for; the wait stays open and nothing is lost."""

    exit_code = 15


class Forbidden(AgentrunError):
    """The actor may not do this. Only told to who may see the run: for others it is not there."""

    exit_code = 16


class EnqueueFailed(AgentrunError):
    """Strict dispatch (ADR-102): the run was stored, its wake could not be sent, and it was settled as failed."""

    exit_code = 12

    def __init__(self, message: str, run_id: str) -> None:
        super().__init__(message)
        self.run_id = run_id


class RunFailed(AgentrunError):
    """The run is final and has no result. `reason` and `detail` say why."""

    exit_code = 13

    def __init__(self, run_id: str, status: str, reason: str | None, detail: str | None) -> None:
        why = f" ({reason})" if reason else ""
        super().__init__(f"run `{run_id}` is {status}{why}{': ' + detail if detail else ''}")
        self.run_id, self.status, self.reason, self.detail = run_id, status, reason, detail


class BodyError(AgentrunError):
    """Base of what is raised inside bodies and steps."""


class StepFailed(BodyError):
    """A step raised. The same error comes at the first pass and at every replay, so a body may catch it safely.

    `error_type` is the qualified name of what was raised, `failure_class` its class, `key` the step. At the first
    pass the original is `__cause__`.
    """

    def __init__(self, key: str, name: str, error_type: str, message: str, failure_class: str) -> None:
        super().__init__(f"step `{name}` ({key}) raised {error_type}: {message}")
        self.key, self.name, self.error_type = key, name, error_type
        self.message, self.failure_class = message, failure_class
        self.retry_after: float | None = None


class WaitExpired(StepFailed):
    """Nobody answered in time, and the wait says that this is a failure. Replays as the same error."""


class NonDeterminism(BodyError):
    """The body took another way than its journal: another step came where one is recorded."""

    def __init__(self, key: str, recorded: str, came: str) -> None:
        super().__init__(
            f"step {key} is recorded as {recorded}, but the body now asks for {came}; "
            "restore the old order of steps, give moved steps explicit keys, or enqueue a new run"
        )
        self.key, self.recorded, self.came = key, recorded, came


class InvalidResult(BodyError):
    """A body or step returned what cannot be stored as JSON, or not be read back from it."""


class WriteWithoutLease(BodyError):
    """A write was asked for outside a durable run that holds a lease; it did not start (ADR-141)."""


class Retryable(BodyError):
    """Raised by a body or step: try again later. `after` is the least delay."""

    def __init__(self, message: str = "", *, after: timedelta | None = None) -> None:
        super().__init__(message)
        self.after = after


class Fatal(BodyError):
    """Raised by a body or step: no attempt will ever succeed; dead-letter now."""


class NotApplied(BodyError):
    """Raised inside a write: nothing happened outside, so the error is an ordinary result of the step."""
