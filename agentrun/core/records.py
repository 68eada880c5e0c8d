"""What reads return: frozen values without behaviour, the same for every face (API, command line, web)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from decimal import Decimal
from typing import Any
from uuid import UUID

from agentrun.core.words import EventType, Reason, Status


@dataclass(frozen=True, slots=True)
class Usage:
    """What a run or step spent, failed attempts included. Cost is in US dollars."""

    model_calls: int = 0
    input_tokens: int = 0
    output_tokens: int = 0
    cost: Decimal = Decimal(0)


@dataclass(frozen=True, slots=True)
class Run:
    """One run as its row says. Times are the database's; `request` and `result` are plain JSON values."""

    id: UUID
    namespace: str
    kind: str
    status: Status
    reason: Reason | None
    waiting_on: str | None
    request: Any
    result: Any
    error: Mapping[str, Any] | None
    queue: str
    priority: int
    due_at: datetime | None
    requeue_count: int
    crash_count: int
    error_count: int
    handback_count: int
    claimed_by: str | None
    lease_expires_at: datetime | None
    epoch: int
    pending_effect: str | None
    cancel_requested_at: datetime | None
    deadline_at: datetime | None
    usage: Usage
    tags: Sequence[str]
    attributes: Mapping[str, Any]
    owner: str | None
    parent_id: UUID | None
    idempotency_key: str | None
    created_at: datetime
    started_at: datetime | None
    finished_at: datetime | None


@dataclass(frozen=True, slots=True)
class Event:
    """One entry of a run's story. `seq` is ordered within the run; page with `after=seq`."""

    seq: int
    type: EventType
    at: datetime
    epoch: int
    data: Mapping[str, Any] = field(default_factory=dict[str, Any])


@dataclass(frozen=True, slots=True)
class Step:
    """One step of the journal, for people and for `doctor`. Payloads are JSON values.

    `started_at` is when its last attempt began; a step that waited for an answer has none. Of a `transaction`, whose
    record commits with it, the `effect` is `read_only`: no fence stands before it.

    From `by` on: who works on it, or did; and of remote and external steps the queue, when it was offered, how often
    because its taker was lost, when its taker last called `heartbeat`, and what that said.
    """

    key: str
    kind: str
    name: str
    effect: str
    status: str
    attempt: int
    epoch: int
    result: Any
    error: Mapping[str, Any] | None
    args_digest: str | None
    idempotency_key: str | None
    started_at: datetime | None
    finished_at: datetime | None
    usage: Usage
    by: str | None = None
    queue: str | None = None
    offered_at: datetime | None = None
    due_at: datetime | None = None
    lease_expires_at: datetime | None = None
    redispatch_count: int = 0
    heartbeat_at: datetime | None = None
    progress: Any = None


@dataclass(frozen=True, slots=True)
class TakenStep:
    """An external step that a program took. `token` is for this one take: complete, fail or heartbeat with it.

    `idempotency_key` is the same at every attempt: hand it to the outside system.
    """

    run_id: UUID
    key: str
    name: str
    input: Any
    effect: str
    attempt: int
    redispatch_count: int
    idempotency_key: str
    token: str = field(repr=False)
    run_kind: str = ""
    run_owner: str | None = None


@dataclass(frozen=True, slots=True)
class Redispatched:
    """What a re-dispatch by hand did: how many steps were sent again, and why each other pending one was left."""

    run_id: UUID
    sent: int
    left: Mapping[str, str]


@dataclass(frozen=True, slots=True)
class Purged:
    """What a purge has removed: runs, and the steps and events that were stored of them. With `dry_run`, only how many
    runs would go: steps and events are not counted then."""

    runs: int = 0
    steps: int = 0
    events: int = 0

    def __add__(self, other: Purged) -> Purged:
        return Purged(self.runs + other.runs, self.steps + other.steps, self.events + other.events)
