"""agentrun: durable runs for agents and long functions, on Celery, Redis and PostgreSQL."""

from agentrun.client import AsyncClient, Client
from agentrun.core.errors import (
    AgentrunError,
    ConfigurationError,
    EnqueueFailed,
    Fatal,
    IdempotencyConflict,
    InvalidRequest,
    InvalidResult,
    NamespaceMismatch,
    NonDeterminism,
    NotAllowed,
    NotApplied,
    NotFound,
    Retryable,
    RunFailed,
    SchemaMismatch,
    StepFailed,
    TooLarge,
    UnknownKind,
    WriteWithoutLease,
)
from agentrun.core.failures import classifies as classify_as
from agentrun.core.records import Event, Run, Step, Usage
from agentrun.core.words import Effect, EventType, FailureClass, Outcome, Reason, Status
from agentrun.runtime.context import Context, SyncContext
from agentrun.runtime.current import current_step
from agentrun.runtime.effects import NOT_APPLIED, Applied, effect
from agentrun.runtime.kinds import Retries, durable
from agentrun.runtime.rehearsal import rehearse
from agentrun.settings import Settings

__all__ = [
    "NOT_APPLIED",
    "AgentrunError",
    "Applied",
    "AsyncClient",
    "Client",
    "ConfigurationError",
    "Context",
    "Effect",
    "EnqueueFailed",
    "Event",
    "EventType",
    "FailureClass",
    "Fatal",
    "IdempotencyConflict",
    "InvalidRequest",
    "InvalidResult",
    "NamespaceMismatch",
    "NonDeterminism",
    "NotAllowed",
    "NotApplied",
    "NotFound",
    "Outcome",
    "Reason",
    "Retries",
    "Retryable",
    "Run",
    "RunFailed",
    "SchemaMismatch",
    "Settings",
    "Status",
    "Step",
    "StepFailed",
    "SyncContext",
    "TooLarge",
    "UnknownKind",
    "Usage",
    "WriteWithoutLease",
    "classify_as",
    "current_step",
    "durable",
    "effect",
    "rehearse",
]
