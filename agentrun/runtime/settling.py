"""From a body's ending to the run's next move: one match, one retry decision, and what is sent after the commit."""

from __future__ import annotations

import json
import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, assert_never
from uuid import UUID

from agentrun.core.codec import decode
from agentrun.core.errors import AgentrunError
from agentrun.core.failures import Failure, describe
from agentrun.core.outcome import Cancelled, ContinueAsNew, HandedBack, LimitReached, Parked, StopSegment
from agentrun.core.policy import Backoff, Facts, GiveUp, RetryIn, decide
from agentrun.core.wake import Wake
from agentrun.core.words import EventType, FailureClass, Outcome, Reason, Segment, Status
from agentrun.runtime.lease import Lease
from agentrun.runtime.luck import luck
from agentrun.store import transitions
from agentrun.store.batches import Write
from agentrun.store.reads import FACTS, HELD, MOVE_LANDED
from agentrun.store.sql import Statement
from agentrun.store.sweeping import IN_FLIGHT
from agentrun.store.waits import PARK

if TYPE_CHECKING:
    from agentrun.runtime.engine import Engine
    from agentrun.runtime.waits import Waits


@dataclass(frozen=True, slots=True)
class Report:
    """What became of one wake or interactive run: for the log line, Flower, and the caller. Carries no payload."""

    run_id: UUID
    outcome: Outcome | str
    kind: str = ""
    epoch: int = 0
    reason: str | None = None
    replayed: int = 0
    executed: int = 0
    result: str | None = field(default=None, repr=False)
    error: Mapping[str, Any] | None = field(default=None, repr=False)
    early: float = 0.0

    def as_json(self) -> dict[str, Any]:
        """For display; without result and error."""
        said = {"run": str(self.run_id), "kind": self.kind, "outcome": str(self.outcome), "epoch": self.epoch}
        return said | {"reason": self.reason, "replayed": self.replayed, "executed": self.executed}


@dataclass(frozen=True, slots=True)
class Finished:
    """The body returned; this is its result as JSON text."""

    result: str


@dataclass(frozen=True, slots=True)
class Broke:
    """The body raised."""

    failure: Failure


@dataclass(frozen=True, slots=True)
class Interrupted:
    """A non-idempotent write raised without saying that nothing happened."""

    failure: Failure


@dataclass(frozen=True, slots=True)
class Stopped:
    """The segment was told to end, or only waits are left."""

    by: StopSegment


Ending = Finished | Broke | Interrupted | Stopped


async def settle(engine: Engine, claimed: Mapping[str, Any], lease: Lease, ending: Ending) -> Report:
    """Match the ending, make the move, and only then send what follows from it."""
    if not lease.begin_ending():
        return Report(lease.run_id, Outcome.LEASE_LOST, claimed["kind"])
    report = await _moved_on(engine, claimed, lease, ending)
    if report.outcome == Outcome.LEASE_LOST and await _cancel_asked(engine, lease):
        return await _final(engine, claimed, lease, Status.CANCELLED, Reason.CANCELLED)
    return report


async def _cancel_asked(engine: Engine, lease: Lease) -> bool:
    """A move was refused: is the run still held, and its end asked for? Then nothing else may become of it."""
    rows = await engine.writer.write(Write(HELD, {"run_id": lease.run_id, "epoch": lease.epoch}))
    return bool(rows) and rows[0]["cancel_requested"]


async def _moved_on(engine: Engine, claimed: Mapping[str, Any], lease: Lease, ending: Ending) -> Report:
    match ending:
        case Finished(result):
            return await _final(engine, claimed, lease, Status.COMPLETED, Reason.COMPLETED, result=result)
        case Broke(failure):
            return await _failed(engine, claimed, lease, failure)
        case Interrupted(failure):
            return await _failed(engine, claimed, lease, failure, interrupted=True)
        case Stopped(by):
            return await _stopped(engine, claimed, lease, by)
        case _:
            assert_never(ending)


async def _stopped(engine: Engine, claimed: Mapping[str, Any], lease: Lease, by: StopSegment) -> Report:
    match by:
        case Cancelled():
            return await _final(engine, claimed, lease, Status.CANCELLED, Reason.CANCELLED)
        case LimitReached():
            failure = Failure(FailureClass.UNKNOWN, "LimitReached", by.detail)
            return await _final(engine, claimed, lease, Status.FAILED, by.reason, failure=failure)
        case Parked():
            failure = Failure(FailureClass.CONFIGURATION, "CannotWait", _CANNOT_WAIT)
            return await _final(engine, claimed, lease, Status.FAILED, Reason.NOT_RETRYABLE, failure=failure)
        case ContinueAsNew():
            return await _continued(engine, claimed, lease, by.request)
        case HandedBack() if not claimed.get("keeps_request", True):
            return await _final(engine, claimed, lease, Status.FAILED, Reason.NOT_RETRYABLE, failure=_DRAINED)
        case HandedBack():
            return await _handed_back(engine, claimed, lease)
        case _:
            return Report(lease.run_id, Outcome.LEASE_LOST, claimed["kind"])


async def park(engine: Engine, claimed: Mapping[str, Any], lease: Lease, waits: Waits) -> Report | None:
    """Give up the lease, since only waits are left. None: refused; the segment goes on if it still holds the run."""
    if not lease.begin_ending():
        return Report(lease.run_id, Outcome.LEASE_LOST, claimed["kind"])
    said = " + ".join(sorted(set(waits.waiting_on)))[:200] or "wait"
    params = {"resolutions": waits.resolutions, "waiting_on": said}
    rows = await _move(engine, lease, PARK, EventType.PARKED, params, {"waiting_on": said})
    if not rows:
        return None
    if rows[0]["due_in"] is not None:
        engine.wake_later(Wake.of(rows[0], cause="timer"), float(rows[0]["due_in"]))
    return Report(lease.run_id, Outcome.WAITING, claimed["kind"])


async def _continued(engine: Engine, claimed: Mapping[str, Any], lease: Lease, request: object) -> Report:
    """The run is completed and its continuation born in one statement: a chain cannot break between the two."""
    try:
        kind = engine.registry.require(claimed["kind"])
        text = kind.encode_request(request)
    except AgentrunError as error:
        return await _failed(engine, claimed, lease, describe(error))
    next_id = uuid.uuid5(lease.run_id, "continuation")
    params = {"request": text, "next_id": next_id, "resolutions": claimed["resolutions"]}
    said = {"status": "completed", "reason": "completed", "continued_as": str(next_id)}
    while not (rows := await _move(engine, lease, transitions.CONTINUE, EventType.SETTLED, params, said)):
        held = await engine.writer.write(Write(HELD, {"run_id": lease.run_id, "epoch": lease.epoch}))
        if not held or held[0]["resolutions"] == params["resolutions"]:
            return Report(lease.run_id, Outcome.LEASE_LOST, claimed["kind"])
        # A signal came meanwhile: it goes along, too.
        params["resolutions"] = held[0]["resolutions"]
    engine.publisher.settled(lease.run_id)
    engine.publisher.soon(Wake(next_id, rows[0]["queue"], rows[0]["kind"], rows[0]["priority"], cause="continue"))
    return Report(lease.run_id, Outcome.COMPLETED, claimed["kind"], reason="completed", result="null")


async def _final(
    engine: Engine,
    claimed: Mapping[str, Any],
    lease: Lease,
    status: Status,
    reason: Reason,
    *,
    result: str | None = None,
    failure: Failure | None = None,
    interrupted: bool = False,
) -> Report:
    error = failure.as_json() if failure is not None else None
    if interrupted and error is not None:
        error["in_flight"] = named_writes(await engine.writer.write(Write(IN_FLIGHT, {"run_id": lease.run_id})))
    params = {"reason": str(reason), "result": result, "error": json.dumps(error) if error is not None else None}
    said = {"status": str(status), "reason": str(reason), **({"failure": error} if error else {})}
    a_child = claimed["parent_id"] is not None
    rows = await _move(engine, lease, transitions.SETTLE[status], EventType.SETTLED, params, said, alone=a_child)
    if not rows:
        return Report(claimed["id"], Outcome.LEASE_LOST, claimed["kind"])
    engine.publisher.settled(claimed["id"])
    for parent in woken_parents(rows):
        engine.publisher.soon(parent)
    return Report(claimed["id"], _OUTCOMES[status], claimed["kind"], reason=str(reason), result=result, error=error)


_OUTCOMES = {
    Status.COMPLETED: Outcome.COMPLETED,
    Status.FAILED: Outcome.FAILED,
    Status.CANCELLED: Outcome.CANCELLED,
}


_CANNOT_WAIT = "a function that is no registered kind cannot wait: nobody else could go on with it; register it"
_DRAINED = Failure(FailureClass.UNKNOWN, "Drained", "the process ended, and the run keeps no request to go on from")


async def _failed(
    engine: Engine, claimed: Mapping[str, Any], lease: Lease, failure: Failure, *, interrupted: bool = False
) -> Report:
    """The one retry decision, on the facts of the row as it is now."""
    # An interrupted write is asked about later whatever it raised, where it can be asked about at all.
    cause = replace(failure, failure_class=FailureClass.CONNECTION) if interrupted else failure
    rows = await engine.writer.write(Write(FACTS, {"run_id": lease.run_id, "epoch": lease.epoch}))
    if not rows:
        return Report(lease.run_id, Outcome.LEASE_LOST, claimed["kind"])
    decision = decide(
        facts_of(rows[0], engine.settings.max_requeues, surfaces=lease.owner.startswith(Segment.INTERACTIVE)),
        cause,
        backoff_of(engine),
        luck=luck(),
    )
    match decision:
        case GiveUp(status, reason):
            return await _final(engine, claimed, lease, status, reason, failure=failure, interrupted=interrupted)
        case RetryIn(delay):
            return await _requeued(engine, claimed, lease, failure, delay)
        case _:
            assert_never(decision)


async def _requeued(engine: Engine, claimed: Mapping[str, Any], lease: Lease, failure: Failure, delay: float) -> Report:
    error = failure.as_json()
    params = {"delay": delay, "error": json.dumps(error), "redo": failure.failed_steps}
    said = {"delay": round(delay, 3), "failure": error}
    rows = await _move(engine, lease, transitions.REQUEUE, EventType.REQUEUED, params, said)
    if not rows:
        return Report(lease.run_id, Outcome.LEASE_LOST, claimed["kind"])
    engine.publisher.soon(Wake.of(rows[0], delay=delay, cause="retry"))
    return Report(lease.run_id, Outcome.REQUEUED, claimed["kind"], error=error)


async def _handed_back(engine: Engine, claimed: Mapping[str, Any], lease: Lease) -> Report:
    rows = await _move(engine, lease, transitions.HAND_BACK, EventType.HANDED_BACK, {}, {})
    if not rows:
        return Report(lease.run_id, Outcome.LEASE_LOST, claimed["kind"])
    engine.publisher.soon(Wake.of(rows[0], cause="hand back"))
    return Report(lease.run_id, Outcome.HANDED_BACK, claimed["kind"])


async def _move(
    engine: Engine,
    lease: Lease,
    statement: Statement,
    event: EventType,
    params: dict[str, Any],
    said: dict[str, Any],
    *,
    alone: bool = False,
) -> list[dict[str, Any]]:
    guard = {"run_id": lease.run_id, "epoch": lease.epoch, "by": lease.owner, "data": json.dumps(said)}
    write = Write(statement, params | guard, landed=MOVE_LANDED, landed_params={"landed_type": str(event)}, alone=alone)
    return await engine.writer.write(write)


def woken_parents(rows: Sequence[Mapping[str, Any]]) -> list[Wake]:
    """The wakes for parents that heard of their child's end in the same statement."""
    names = ("id", "kind", "queue", "priority")
    return [
        Wake.of({name: row[f"parent_{name}"] for name in names}, cause="child")
        for row in rows
        if row["parent_id"] is not None
    ]


def named_writes(rows: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """The writes in flight, as an operator has to look them up: tool, arguments, key, owner, time."""
    names = ("key", "name", "effect", "args_digest", "idempotency_key", "by")
    return [
        {name: row[name] for name in names} | {"args": decode(row["args"]), "started_at": str(row["started_at"])}
        for row in rows
    ]


def facts_of(row: Mapping[str, Any], max_requeues: int, *, surfaces: bool = False) -> Facts:
    """The retry decision's facts from a row of FACTS or EXPIRED."""
    return Facts(
        has_request=row["has_request"],
        requeue_count=row["requeue_count"],
        max_requeues=max_requeues if row["max_requeues"] is None else row["max_requeues"],
        write_in_flight=row["write_in_flight"],
        deadline_passed=row["deadline_passed"],
        cancel_requested=row["cancel_requested"],
        surfaces=surfaces,
    )


def backoff_of(engine: Engine) -> Backoff:
    """The backoff of this process's settings."""
    return Backoff(engine.settings.backoff_base_seconds, engine.settings.backoff_max_seconds)
