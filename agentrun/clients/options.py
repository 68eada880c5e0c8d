"""The keyword arguments that AsyncClient hands on to Client's verbs, for editors and type checkers.

Which name takes what is Client's to say; here it is only written down a second time, and a test compares the two.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from datetime import timedelta
from decimal import Decimal
from typing import Any, Literal, TypedDict

from agentrun.clients.base import RunId
from agentrun.core.actors import Actor
from agentrun.core.records import Purged
from agentrun.core.words import Status
from agentrun.runtime.kinds import Registry
from agentrun.settings import Settings

Dispatch = Literal["leave", "fail"]
Seconds = float | timedelta | None


class ClientOptions(TypedDict, total=False):
    """Of Client itself."""

    database_url: str | None
    broker_url: str | None
    namespace: str | None
    dispatch_failure: Dispatch
    settings: Settings | None
    kinds: Registry


class _OfRuns(TypedDict, total=False):
    """Of all that start runs."""

    deadline: Seconds
    tags: Sequence[str]
    attributes: Mapping[str, Any] | None
    owner: str | None


class _OfOneRun(_OfRuns, total=False):
    limits: Mapping[str, Any] | None
    planned_cost: Decimal | None


class EnqueueOptions(_OfOneRun, total=False):
    """Of `enqueue`, beside `idempotency_key` and `connection`."""

    queue: str | None
    priority: int
    delay: Seconds


class RunOptions(_OfOneRun, total=False):
    """Of `run`."""

    idempotency_key: str | None


class EnqueueManyOptions(_OfRuns, total=False):
    """Of `enqueue_many`."""

    idempotency_keys: Sequence[str] | None
    queue: str | None
    priority: int
    delay: Seconds


class ListOptions(TypedDict, total=False):
    """Of `list`."""

    status: Status | str | Sequence[Status | str] | None
    kind: str | None
    reason: str | None
    tag: str | None
    owner: str | None
    attributes: Mapping[str, Any] | None
    parent: RunId | None
    limit: int
    before: RunId | None


class InboxOptions(TypedDict, total=False):
    """Of `inbox`."""

    role: str | None
    kind: str | None
    limit: int


class AnswerOptions(TypedDict, total=False):
    """Of `submit_input`, beside `by`."""

    key: str | None
    digest: str | None
    here: bool


class RejectOptions(AnswerOptions, total=False):
    """Of `reject`, beside `by`."""

    comment: str | None


class ApproveOptions(RejectOptions, total=False):
    """Of `approve`, beside `by`."""

    edits: Any


class ExternalStepsOptions(TypedDict, total=False):
    """Of `external_steps`."""

    name: str | None
    run_id: RunId | None
    taken: bool
    limit: int


class FailStepOptions(TypedDict, total=False):
    """Of `fail_step`."""

    error_type: str
    retryable: bool
    retry_after: float | None
    not_applied: bool


class ResolveOptions(TypedDict, total=False):
    """Of `resolve`, beside `applied`."""

    result: Any
    key: str | None
    by: Actor | str


class PurgeOptions(TypedDict, total=False):
    """Of `purge`, beside `older_than`."""

    status: Status | str | Sequence[Status | str] | None
    kind: str | None
    dead: bool
    dry_run: bool
    batch: int
    told: Callable[[Purged], object]
