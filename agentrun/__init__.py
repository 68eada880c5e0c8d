"""agentrun: durable runs for agents and long functions, on Celery, Redis and PostgreSQL."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from agentrun.async_client import AsyncClient
from agentrun.client import Client
from agentrun.core.actors import Actor, Scope
from agentrun.core.errors import (
    AgentrunError,
    AlreadyDecided,
    BodyError,
    ConfigurationError,
    EnqueueFailed,
    Fatal,
    Forbidden,
    IdempotencyConflict,
    InvalidAnswer,
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
    StaleToken,
    StepFailed,
    TooLarge,
    UnknownKind,
    WaitExpired,
    WriteWithoutLease,
)
from agentrun.core.failures import classifies as classify_as
from agentrun.core.records import Event, Purged, Redispatched, Run, Step, TakenStep, Usage
from agentrun.core.words import Effect, EventType, FailureClass, Outcome, Reason, Status
from agentrun.runtime.childverbs import Child
from agentrun.runtime.context import Context
from agentrun.runtime.current import current_step
from agentrun.runtime.effects import NOT_APPLIED, Applied, NotAppliedYet, effect
from agentrun.runtime.hooks import on_dead, on_stalled, on_waiting
from agentrun.runtime.kinds import durable
from agentrun.runtime.options import Retries
from agentrun.runtime.rehearsal import rehearse
from agentrun.runtime.remotesteps import remote_step
from agentrun.runtime.synchronous import SyncContext
from agentrun.runtime.tellers import log_line, shell_command, signed_call
from agentrun.runtime.verbs import Decision, Webhook
from agentrun.settings import Settings

if TYPE_CHECKING:
    from agentrun.agents import AgentRequest as AgentRequest
    from agentrun.agents import AgentrunDurability as AgentrunDurability
    from agentrun.agents import register_agent as register_agent
    from agentrun.agents import run_agent as run_agent

__all__ = [
    "NOT_APPLIED",
    "Actor",
    "AgentrunError",
    "AlreadyDecided",
    "Applied",
    "AsyncClient",
    "BodyError",
    "Child",
    "Client",
    "ConfigurationError",
    "Context",
    "Decision",
    "Effect",
    "EnqueueFailed",
    "Event",
    "EventType",
    "FailureClass",
    "Fatal",
    "Forbidden",
    "IdempotencyConflict",
    "InvalidAnswer",
    "InvalidRequest",
    "InvalidResult",
    "NamespaceMismatch",
    "NonDeterminism",
    "NotAllowed",
    "NotApplied",
    "NotAppliedYet",
    "NotFound",
    "Outcome",
    "Purged",
    "Reason",
    "Redispatched",
    "Retries",
    "Retryable",
    "Run",
    "RunFailed",
    "SchemaMismatch",
    "Scope",
    "Settings",
    "StaleToken",
    "Status",
    "Step",
    "StepFailed",
    "SyncContext",
    "TakenStep",
    "TooLarge",
    "UnknownKind",
    "Usage",
    "WaitExpired",
    "Webhook",
    "WriteWithoutLease",
    "classify_as",
    "current_step",
    "durable",
    "effect",
    "log_line",
    "on_dead",
    "on_stalled",
    "on_waiting",
    "rehearse",
    "remote_step",
    "shell_command",
    "signed_call",
]

_OF_AGENTS = frozenset({"AgentRequest", "AgentrunDurability", "register_agent", "run_agent"})


def __getattr__(name: str) -> Any:
    """What needs pydantic-ai is imported when it is asked for: who runs no agents needs no agents extra."""
    if name not in _OF_AGENTS:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    try:
        return getattr(import_module("agentrun.agents"), name)
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] != "pydantic_ai":
            raise
        raise ConfigurationError(
            f"`agentrun.{name}` needs pydantic-ai, which is not installed; pip install 'agentrun[agents]'"
        ) from None
