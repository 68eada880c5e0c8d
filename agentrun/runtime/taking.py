"""The worker's side of a remote step: take it, execute it under its own lease, and say how it ended.

Taking is exclusive, so a message may come twice. Whatever this process does not say any more, the sweep settles.
"""

from __future__ import annotations

import asyncio
import json
import logging
import threading
import time
import uuid
from collections.abc import Callable, Coroutine, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any
from uuid import UUID

from agentrun.core.codec import decode, within
from agentrun.core.errors import BodyError, NotApplied
from agentrun.core.failures import Failure, describe
from agentrun.core.outcome import HandedBack, LeaseLost, StopSegment
from agentrun.core.policy import Backoff
from agentrun.core.wake import Wake
from agentrun.core.words import Effect, FailureClass, Segment, StepStatus
from agentrun.runtime.current import CURRENT, CurrentStep
from agentrun.runtime.effects import NOT_APPLIED, Applied
from agentrun.runtime.keys import BRANCH
from agentrun.runtime.lease import Lease
from agentrun.runtime.luck import luck
from agentrun.runtime.remotesteps import RemoteStep, remote_steps
from agentrun.runtime.settling import Report
from agentrun.runtime.stepspec import ended_with, in_thread
from agentrun.settings import Settings
from agentrun.store.batches import Write
from agentrun.store.ending import COMPLETE, FAIL, INTERRUPT, STEP_ENDED_BY
from agentrun.store.offering import ASK_AGAIN, GIVE_BACK, RETRY
from agentrun.store.offers import STATE
from agentrun.store.sql import Statement
from agentrun.store.taking import BEAT, TAKE, TAKE_LANDED

if TYPE_CHECKING:
    from agentrun.runtime.engine import Engine

log = logging.getLogger("agentrun.runtime")

Taken = Mapping[str, Any]


async def run_step(engine: Engine, run_id: UUID, key: str) -> Report:
    """Take the step and execute it. Never raises for its outcome; a message that finds nothing to do changes nothing.

    The report's outcome is `completed`, `failed`, `retried`, `handed_back`, `interrupted`, `lease_lost`; or why it was
    not taken: `unknown`, `early`, `elsewhere` (this process has not registered it), `ended`, `busy`.
    """
    asked_at = time.monotonic()
    owner = engine.owner(Segment.WORKER)
    taken = await _take(engine, run_id, key, owner)
    if taken is None:
        return await _why_not(engine, run_id, key)
    before = engine.taking.get((run_id, key))
    if before is not None:
        # This very process had it, and it was offered again meanwhile.
        before.lease.stop(LeaseLost())
    lease = Lease(run_id, taken["step_epoch"], owner, engine.settings.lease_seconds, asked_at=asked_at, key=key)
    engine.heartbeat.hold(lease)
    taking = _Taking(engine, taken, lease)
    try:
        outcome = await taking.outcome()
    finally:
        engine.heartbeat.drop(lease)
        if engine.taking.get((run_id, key)) is taking:
            del engine.taking[run_id, key]
        taking.ended.set()
    log.info("step %s of run %s: %s", key, run_id, outcome)
    return Report(run_id, outcome, taken["name"], taken["step_epoch"])


async def _take(engine: Engine, run_id: UUID, key: str, owner: str) -> Taken | None:
    params = {
        "run_id": run_id,
        "key": key,
        "namespace": engine.settings.namespace,
        "names": list(remote_steps.names()),
        "reconcilable": list(remote_steps.reconcilable()),
        "effects": json.dumps(remote_steps.effects()),
        "by": owner,
        "lease": engine.settings.lease_seconds,
        # Nobody else's, not even a process's of the same name: what it took must not be taken for ours.
        "token_digest": uuid.uuid4().hex,
    }
    rows = await engine.writer.write(Write(TAKE, params, landed=TAKE_LANDED, of_step=True))
    return rows[0] if rows else None


async def _why_not(engine: Engine, run_id: UUID, key: str) -> Report:
    rows = await engine.writer.write(Write(STATE, {"run_id": run_id, "key": key}, of_step=True))
    if not rows:
        log.warning("a message for step %s of run %s found no such step", key, run_id)
        return Report(run_id, "unknown")
    row = rows[0]
    ours = row["namespace"] == engine.settings.namespace
    if row["over"] or row["status"] in (StepStatus.COMPLETED, StepStatus.FAILED, StepStatus.REDO):
        return Report(run_id, "ended" if ours else "unknown", row["name"])
    if row["status"] != StepStatus.OFFERED or row["queue"] is None:
        return Report(run_id, "busy" if ours else "unknown", row["name"])
    wake = Wake(run_id, row["queue"], row["name"], row["priority"], cause="hand on", step_key=key)
    if float(row["early"]) > 0:
        engine.publisher.soon(replace(wake, delay=float(row["early"]), cause="early"))
        return Report(run_id, "early", row["name"])
    if ours and remote_steps.get(row["name"]) is not None:
        return Report(run_id, "busy", row["name"])
    # It may be another namespace's, on a queue that two of them consume.
    engine.handing_on.hand_on(wake)
    return Report(run_id, "elsewhere" if ours else "unknown", row["name"])


class _Taking:
    """One step that this process executes now."""

    def __init__(self, engine: Engine, taken: Taken, lease: Lease) -> None:
        self._engine, self._taken, self.lease = engine, taken, lease
        self._policy: dict[str, Any] = decode(taken["policy"]) or {}
        self._irrevocable = taken["effect"] == Effect.NON_IDEMPOTENT_WRITE
        self.ended = threading.Event()
        self._began = False
        """Something may have happened outside."""

        self._beats = Beats(engine, self._guard(), self._policy.get("timeout") or lease.seconds)

    async def outcome(self) -> str:
        """Execute it and say how it ended; the word for the report."""
        step = remote_steps.require(self._taken["name"])
        loop = asyncio.get_running_loop()
        task = asyncio.ensure_future(self._executed(step))
        self._engine.taking[(self.lease.run_id, self._taken["key"])] = self
        self._task = task

        def stop(ending: BaseException) -> None:
            loop.call_soon_threadsafe(self._stopped, ending)

        self.lease.when_stopped(stop)
        if self._engine.draining:
            self.lease.stop(HandedBack())
        try:
            text = await task
        except (asyncio.CancelledError, StopSegment):
            return await self._given_back()
        except Exception as error:
            return await self._failed(error)
        finally:
            self._beats.close()
        rows = await self._said(COMPLETE, StepStatus.COMPLETED, result=text)
        return "completed" if rows else "lease_lost"

    def interrupt(self) -> None:
        """Throw away what is being done, where it may be done again."""
        if not self._irrevocable or isinstance(self.lease.stopped, LeaseLost):
            self._task.cancel()

    def _stopped(self, ending: BaseException) -> None:
        if not isinstance(ending, HandedBack) and not self._goes_on(ending):
            self._task.cancel()

    def _goes_on(self, ending: BaseException) -> bool:
        """A write that nobody will repeat is done to its end, and says how it ended, whatever became of its run.

        Where somebody can ask about it, somebody else may start it afresh once the lease is lost.
        """
        asked = remote_steps.require(self._taken["name"]).declares.reconcile is not None
        return self._irrevocable and not (asked and isinstance(ending, LeaseLost))

    # ---- what it does

    async def _executed(self, step: RemoteStep) -> str:
        current = CurrentStep(
            run_id=self.lease.run_id,
            key=self._taken["key"],
            name=step.name,
            attempt=self._taken["attempt"],
            owner=self._taken["owner"],
            beat=self.beat,
        )
        CURRENT.set(current)
        BRANCH.set(None)
        call = step.bound(self._taken["args"])
        self._began = True
        found = await self._reconciled(step)
        value = found[0] if found is not None else await self._looked_at(self._called(step, call))
        limit = self._engine.settings.max_result_bytes
        what = f"the result of remote step `{step.name}`"
        return within(step.encode_result(value), limit, what=what, setting="AGENTRUN_MAX_RESULT_BYTES")

    async def _looked_at(self, called: Coroutine[Any, Any, Any]) -> Any:
        observer = self._engine.observer
        if observer is None:
            return await called
        with observer.remote_step(self._taken, self.lease):
            return await called

    async def _called(self, step: RemoteStep, call: Callable[[], Any]) -> Any:
        try:
            return await call() if step.is_async else await in_thread(self._engine.threads, call)
        except (SystemExit, KeyboardInterrupt) as error:
            raise BodyError(f"`{step.name}` raised {type(error).__name__}; a step must not end its process") from error

    async def _reconciled(self, step: RemoteStep) -> tuple[Any] | None:
        """A write that somebody took before is asked about first. None: it may start afresh."""
        if step.declares.reconcile is None or not self._irrevocable or self._taken["step_epoch"] == 1:
            return None
        answer = await in_thread(self._engine.threads, step.declares.reconcile, self._taken["idempotency_key"])
        if asyncio.iscoroutine(answer):
            answer = await answer
        if answer is NOT_APPLIED:
            return None
        if not isinstance(answer, Applied):
            raise BodyError(
                f"the reconcile function of `{step.name}` returned {type(answer).__name__}, not Applied or NOT_APPLIED"
            )
        return (answer.result,)

    def beat(self, progress: Any) -> None:
        """Store a beat, at most one per half window. Raises what stops the step; nothing stops a write in the middle
        that nobody will repeat."""
        stopped = self.lease.stopped
        if stopped is None or not self._goes_on(stopped):
            self.lease.check()
        self._beats.beat(progress)

    # ---- how it ended

    async def _failed(self, error: Exception) -> str:
        failure = describe(error)
        if self._irrevocable and self._began and not isinstance(error, NotApplied):
            return await self._interrupted(failure)
        if failure.failure_class.retryable and self._taken["attempt"] < self._policy.get("attempts", 1):
            rows = await self._again(RETRY, failure, self._taken["attempt"], cause="retry")
            return "retried" if rows else "lease_lost"
        return await self._ended(failure)

    async def _interrupted(self, failure: Failure) -> str:
        """Nobody knows how a write ended: whoever takes it next asks, where that is possible; else its run stops."""
        count, most = self._taken["redispatch_count"], redispatch_max(self._policy, self._engine.settings)
        if remote_steps.require(self._taken["name"]).declares.reconcile is not None and count < most:
            rows = await self._again(ASK_AGAIN, failure, count + 1, cause="redispatch")
            return "redispatched" if rows else "lease_lost"
        rows = await self._said(INTERRUPT, StepStatus.STARTED, error=failure)
        return "interrupted" if rows else "lease_lost"

    async def _again(self, statement: Statement, failure: Failure, count: int, *, cause: str) -> list[dict[str, Any]]:
        delay = failure.retry_after or backoff_of(self._policy).delay(count - 1, luck())
        rows = await self._said(statement, StepStatus.OFFERED, error=failure, delay=delay)
        for row in rows:
            self._engine.publisher.soon(Wake.of_step(row, delay=delay, cause=cause))
        return rows

    async def _given_back(self) -> str:
        stopped = self.lease.stopped
        if isinstance(stopped, LeaseLost):
            return "lease_lost"
        if stopped is None or (self._irrevocable and self._began):
            cancelled = Failure(FailureClass.UNKNOWN, "CancelledError", "the step was cancelled", self._taken["key"])
            return await (self._interrupted(cancelled) if self._irrevocable else self._ended(cancelled))
        rows = await self._said(GIVE_BACK, StepStatus.OFFERED)
        for row in rows:
            self._engine.publisher.soon(Wake.of_step(row, cause="hand back"))
        return "handed_back" if rows else "lease_lost"

    async def _ended(self, failure: Failure) -> str:
        rows = await self._said(FAIL, StepStatus.FAILED, error=failure)
        return "failed" if rows else "lease_lost"

    async def _said(
        self,
        statement: Statement,
        status: StepStatus,
        *,
        result: str | None = None,
        error: Failure | None = None,
        delay: float | None = None,
    ) -> list[dict[str, Any]]:
        said = ended_with(status, result, error, None)
        event = {"key": self._taken["key"], "name": self._taken["name"], "attempt": self._taken["attempt"]}
        if error is not None:
            event["failure"] = error.as_json()
        params = self._guard() | said | {"delay": delay, "data": json.dumps(event), "mine": "yes"}
        # Still started says nothing of whether it landed, and to interrupt twice is to interrupt once.
        landed = STEP_ENDED_BY if status is not StepStatus.STARTED else None
        write = Write(statement, params, landed=landed, landed_params={"ended": str(status)}, of_step=True)
        rows = await self._engine.writer.write(write)
        for row in rows:
            if row.get("status") == "waiting":
                self._engine.publisher.soon(Wake.of(row, cause="step"))
        return rows

    def _guard(self) -> dict[str, Any]:
        return {
            "run_id": self.lease.run_id,
            "key": self._taken["key"],
            "step_epoch": self.lease.epoch,
            "token_digest": None,
            "namespace": self._engine.settings.namespace,
            "by": self.lease.owner,
        }


class Beats:
    """Explicit beats of one step, stored at most once per half window. The last one is never forgotten: its age goes
    with it, so that silence counts from when the step spoke."""

    def __init__(self, engine: Engine, guard: Mapping[str, Any], window: float) -> None:
        self._engine, self._guard, self._pause = engine, guard, window / 2
        self._stored = time.monotonic()
        self._spoken = 0.0
        self._progress: Any = None
        self._due: asyncio.TimerHandle | None = None
        self._closed = False

    def beat(self, progress: Any) -> None:
        """From any thread. Raises TypeError for progress that is not JSON."""
        json.dumps(progress)
        self._engine.loop.call_soon_threadsafe(self._beat, progress, time.monotonic())

    def close(self) -> None:
        """The step has ended."""
        self._closed = True
        if self._due is not None:
            self._due.cancel()

    def _beat(self, progress: Any, spoken: float) -> None:
        self._spoken = spoken
        self._progress = progress if progress is not None else self._progress
        if self._due is None and not self._closed:
            self._due = self._engine.loop.call_later(self._stored + self._pause - time.monotonic(), self._store)

    def _store(self) -> None:
        self._due, self._stored = None, time.monotonic()
        said = {"progress": json.dumps(self._progress) if self._progress is not None else None}
        params = {**self._guard, **said, "silent_for": self._stored - self._spoken}
        self._engine.submit(self._engine.writer.write(Write(BEAT, params, of_step=True)))


def redispatch_max(policy: Mapping[str, Any], settings: Settings) -> int:
    """How often a step is offered again because its taker was lost."""
    own = policy.get("redispatch_max")
    return settings.redispatch_max if own is None else own


def backoff_of(policy: Mapping[str, Any]) -> Backoff:
    """The pauses between a step's tries."""
    return Backoff(policy.get("backoff_base") or 1.0, policy.get("backoff_cap") or 30.0)
