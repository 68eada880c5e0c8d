"""A body's waits: one idea for timers, signals, approvals, inputs, webhooks and children.

A wait is registered, and its branch ends with Parked; whoever resolves it wakes the run, and the replay finds the
answer and records it as the step's result. Branches that still work finish before the run parks.
"""

from __future__ import annotations

import asyncio
import json
import uuid
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from datetime import datetime
from typing import Any
from uuid import UUID

from agentrun.core.codec import decode, digest
from agentrun.core.errors import NonDeterminism, StepFailed, WaitExpired
from agentrun.core.failures import WAIT_EXPIRED, Failure, failed_steps_in
from agentrun.core.outcome import LeaseLost, Parked
from agentrun.core.wake import Wake
from agentrun.core.words import Effect, FailureClass, Status, StepKind, StepStatus, WaitKind, WaitStatus
from agentrun.runtime.children import why_not_started
from agentrun.runtime.gathering import note_waiting
from agentrun.runtime.kinds import Registry
from agentrun.runtime.steps import Steps
from agentrun.runtime.stepspec import ended_with, recorded_failure, same_step
from agentrun.settings import Settings
from agentrun.store import journal, signals, waits
from agentrun.store.batches import Write
from agentrun.store.births import CHILD_BORN
from agentrun.store.reads import CHILD_RESULT
from agentrun.store.steering import REDRIVE


@dataclass(frozen=True, slots=True)
class WaitSpec:
    """One wait that a body asks for. Times are seconds from its registration, or an instant."""

    key: str
    kind: StepKind
    waits_for: WaitKind
    name: str
    asks: Mapping[str, Any] = field(default_factory=dict[str, Any])
    role: str | None = None
    due_in: float | None = None
    due_at: datetime | None = None
    remind_in: float | None = None
    on_expiry: Mapping[str, Any] | None = None
    token_digest: str | None = None
    child: Mapping[str, Any] | None = None
    """The row of a child that is born with its wait."""

    answer: Callable[[Mapping[str, Any]], str] | None = None
    """The step's result as JSON text, from the resolved wait; by default its resolution."""


@dataclass(slots=True)
class Waits:
    """The waits of one segment: what it found at its claim, and what its branches wait for."""

    steps: Steps
    rows: dict[str, Mapping[str, Any]] | None
    """By step key; None until somebody asks, where earlier segments may have left some."""

    resolutions: int
    wake: Callable[[Wake], None]
    settings: Settings
    kinds: Registry
    kind: str = ""
    """The run's own."""

    waiting_on: list[str] = field(default_factory=list[str])
    """What the run would park for, a word per branch that waits."""

    _loading: asyncio.Lock = field(default_factory=asyncio.Lock)

    async def ask(self, spec: WaitSpec, *, decoded: Callable[[str], Any] = decode) -> Any:
        """The answer: from the journal, or from the wait once it is resolved. Raises Parked until then.

        Raises WaitExpired where nobody answered in time and the wait says `fail`; StepFailed for a child that failed;
        NonDeterminism and the segment's endings as every step does.
        """
        self.steps.lease.check()
        there = self.steps.recorded.get(spec.key)
        again = there is not None and there["status"] == StepStatus.REDO
        if there is not None:
            same_step(spec, there)
        if there is not None and not again:
            self.steps.replayed += 1
            if there["status"] == StepStatus.COMPLETED:
                return decoded(there["result"])
            raise _as_raised(recorded_failure(spec, there))
        row = (await self.load()).get(spec.key)
        if row is not None:
            _same_wait(spec, row)
            row = await self._anew(spec, row) if again or row["status"] == WaitStatus.CLOSED else row
        if row is None or row["status"] == WaitStatus.OPEN:
            row = await self._looked_up(spec, row)
        if row["status"] == WaitStatus.OPEN:
            note_waiting(self.waiting_on, _said(spec))
            raise Parked
        return decoded(await self._recorded(spec, row))

    async def asked(self, key: str) -> bool:
        """Whether the step has asked, in this segment or an earlier one."""
        return key in self.steps.recorded or key in await self.load()

    async def start(self, spec: WaitSpec) -> None:
        """Register the wait (and its child) without waiting for it yet."""
        self.steps.lease.check()
        if spec.key not in self.steps.recorded and spec.key not in await self.load():
            await self._registered(spec)

    async def _anew(self, spec: WaitSpec, row: Mapping[str, Any]) -> Mapping[str, Any]:
        """The wait whose end had ended the run, or that the run's end had closed: what it waits for is asked anew.

        A child that failed goes on, one that was cancelled has a successor; and where it has a result by now, or cannot
        go on, that is the answer.
        """
        status = await self._brought_back(row["child_id"]) if row["child_id"] is not None else Status.QUEUED
        if not status.final:
            return await self._registered(replace(spec, child=None))
        if status is Status.CANCELLED and spec.child is not None:
            next_id = child_id(self.steps.lease.run_id, f"{spec.key}/{row['child_id']}")
            return await self._registered(replace(spec, child={**spec.child, "child_id": next_id}))
        return row

    async def _brought_back(self, child: UUID) -> Status:
        """How a child stands, once it is redriven where it had failed and may go on. One that was asked to end is as
        good as cancelled: it ends at its next step."""
        status = await self._child_status(child)
        if status["status"] != Status.FAILED:
            living = not Status(status["status"]).final
            return Status.CANCELLED if living and status["cancel_requested"] else Status(status["status"])
        said = {"namespace": self.steps.namespace, "by": self.steps.lease.owner, "data": "{}"}
        redo = failed_steps_in(decode(status["error"]))
        rows = await self.steps.writer.write(Write(REDRIVE, {"run_id": child, "redo": redo, **said}))
        for row in rows:
            self.wake(Wake.of(row, cause="redrive"))
        # Where it was refused: somebody may have been first, this process itself without hearing of it.
        return Status.QUEUED if rows else Status((await self._child_status(child))["status"])

    async def _child_status(self, child: UUID) -> Mapping[str, Any]:
        return (await self.steps.writer.write(Write(CHILD_RESULT, {"run_id": child})))[0]

    async def _looked_up(self, spec: WaitSpec, row: Mapping[str, Any] | None) -> Mapping[str, Any]:
        """The wait as it is now: a buffered signal answers it at once, else it is registered."""
        if spec.waits_for is WaitKind.SIGNAL and spec.token_digest is None:
            taken = await self._write(signals.TAKE_SIGNAL, spec)
            if taken:
                return taken[0]
        return row if row is not None else await self._registered(spec)

    async def _registered(self, spec: WaitSpec) -> Mapping[str, Any]:
        statement = waits.REGISTER if spec.child is None else CHILD_BORN
        rows = await self._write(statement, spec)
        if not rows:
            rows = [row for row in await self._all() if row["step_key"] == spec.key]
        if not rows:
            raise LeaseLost
        (await self.load())[spec.key] = rows[0]
        if spec.child is not None:
            child = spec.child
            self.wake(
                Wake(
                    child["child_id"], child["child_queue"], child["child_kind"], child["child_priority"], cause="child"
                )
            )
        return rows[0]

    async def _recorded(self, spec: WaitSpec, row: Mapping[str, Any]) -> str:
        """Record the answer as the step's end."""
        text, failure = await self._ended(spec, row)
        status = StepStatus.COMPLETED if failure is None else StepStatus.FAILED
        lease = self.steps.lease
        guard = {"run_id": lease.run_id, "epoch": lease.epoch, "by": lease.owner, "key": spec.key}
        named = {"kind": str(spec.kind), "name": spec.name, "effect": str(Effect.READ_ONLY), "attempt": 1}
        blank = {"args": None, "args_digest": None, "lease": None, "took": None}
        params = guard | named | blank | ended_with(status, text, failure, None)
        landed = {"landed_status": str(status)}
        write = Write(journal.RECORD, params, landed=journal.STEP_LANDED, landed_params=landed)
        if spec.waits_for is not WaitKind.CHILD:
            # The wait itself says so, and will say the same: the body need not wait for the journal.
            self.steps.writer.trail(write)
        elif not await self.steps.writer.write(write):
            raise LeaseLost
        self.steps.executed += 1
        if failure is not None:
            failed = StepFailed(spec.key, spec.name, failure.error_type, failure.message, str(failure.failure_class))
            raise _as_raised(failed)
        return text or "null"

    async def _ended(self, spec: WaitSpec, row: Mapping[str, Any]) -> tuple[str | None, Failure | None]:
        if spec.waits_for is WaitKind.CHILD:
            return await self._child_ended(spec, row)
        if row["status"] == WaitStatus.EXPIRED and decode(row["resolution"]) == {"expired": "fail"}:
            return None, Failure(FailureClass.UNKNOWN, WAIT_EXPIRED, f"nobody answered `{spec.name}` in time", spec.key)
        return (spec.answer(row) if spec.answer is not None else row["resolution"] or "null"), None

    async def _child_ended(self, spec: WaitSpec, row: Mapping[str, Any]) -> tuple[str | None, Failure | None]:
        child = await self._child_status(row["child_id"])
        if child["status"] == "completed":
            return child["result"] or "null", None
        said = f"child `{row['child_id']}` is {child['status']} ({child['reason']})"
        said += why_not_started(decode(child["error"]))
        return None, Failure(FailureClass.UNKNOWN, "agentrun.ChildFailed", said, spec.key)

    async def known(self, key: str) -> Mapping[str, Any] | None:
        """The step's wait as this segment found it, or None."""
        return (await self.load()).get(key)

    async def reloaded(self, key: str) -> list[Mapping[str, Any]]:
        """The step's wait as it is now: for a statement that may have been sent twice."""
        return [row for row in await self._all() if row["step_key"] == key]

    async def load(self) -> dict[str, Mapping[str, Any]]:
        """The run's waits by step key, read once."""
        if self.rows is None:
            async with self._loading:
                if self.rows is None:
                    self.rows = {row["step_key"]: row for row in await self._all()}
        return self.rows

    async def _all(self) -> list[dict[str, Any]]:
        return await self.steps.writer.write(Write(waits.OF_RUN, {"run_id": self.steps.lease.run_id}))

    def _asks(self, spec: WaitSpec) -> Mapping[str, Any]:
        """What is asked. Four eyes that the kind demands are part of it: they hold whoever decides, wherever."""
        registered = self.kinds.get(self.kind)
        if spec.waits_for is WaitKind.APPROVAL and registered is not None and registered.options.four_eyes:
            return {**spec.asks, "four_eyes": True}
        return spec.asks

    async def _write(self, statement: Any, spec: WaitSpec) -> list[dict[str, Any]]:
        lease = self.steps.lease
        asks = json.dumps(self._asks(spec))
        params = {
            "run_id": lease.run_id,
            "epoch": lease.epoch,
            "by": lease.owner,
            "wait_id": wait_id(lease.run_id, spec.key),
            "key": spec.key,
            "kind": str(spec.waits_for),
            "name": spec.name,
            "asks": asks,
            "asks_digest": digest(asks),
            "role": spec.role,
            "due_at": spec.due_at,
            "due_in": spec.due_in,
            "remind_in": spec.remind_in,
            "on_expiry": json.dumps(spec.on_expiry) if spec.on_expiry is not None else None,
            "token_digest": spec.token_digest,
            **(spec.child or {}),
        }
        return await self.steps.writer.write(Write(statement, params))


def _same_wait(spec: WaitSpec, row: Mapping[str, Any]) -> None:
    """Raises NonDeterminism where the key's wait is another: its answer is none to this one."""
    if (row["kind"], row["name"]) != (str(spec.waits_for), spec.name):
        raise NonDeterminism(spec.key, f"{row['kind']} `{row['name']}`", f"{spec.waits_for} `{spec.name}`")


def wait_id(run_id: UUID, key: str) -> UUID:
    """The id of a step's wait: the same in every attempt to register it."""
    return uuid.uuid5(run_id, f"wait/{key}")


def child_id(run_id: UUID, key: str) -> UUID:
    """The id of a step's child: the same in every attempt to start it."""
    return uuid.uuid5(run_id, f"child/{key}")


def expiry(policy: str, default: Any = None, role: str | None = None, seconds: float | None = None) -> dict[str, Any]:
    """What happens when nobody answers in time: fail, deny, default (a value), or escalate (another role)."""
    return {"policy": policy, "default": default, "role": role, "seconds": seconds}


def _said(spec: WaitSpec) -> str:
    match spec.waits_for:
        case WaitKind.TIMER:
            return "timer"
        case WaitKind.SIGNAL | WaitKind.CHILD:
            return f"{spec.waits_for}:{spec.name}"
        case _:
            return str(spec.waits_for)


def _as_raised(failed: StepFailed) -> StepFailed:
    if failed.error_type == WAIT_EXPIRED:
        return WaitExpired(failed.key, failed.name, failed.error_type, failed.message, failed.failure_class)
    return failed
