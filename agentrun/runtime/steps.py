"""The one place through which every step passes: replayed from the journal, or run and recorded under the epoch.

A write is fenced before it starts and finished after it (ADR-112); without a lease it does not start at all (ADR-141).
"""

from __future__ import annotations

import asyncio
import functools
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from datetime import datetime
from decimal import Decimal
from typing import Any

from agentrun.core.errors import NonDeterminism, StepFailed
from agentrun.core.failures import Failure, describe
from agentrun.core.outcome import LeaseLost, LimitReached
from agentrun.core.words import Effect, Reason, StepKind, StepStatus
from agentrun.runtime.fenced import Fenced
from agentrun.runtime.journaling import by_position
from agentrun.runtime.luck import luck
from agentrun.runtime.spending import Spending
from agentrun.runtime.stepspec import (
    Named,
    Spent,
    StepSpec,
    WriteUnknown,
    detached,
    ended,
    ended_with,
    in_thread,
    recorded_failure,
    same_step,
    unfit,
)
from agentrun.store import journal
from agentrun.store.batches import Write
from agentrun.store.budgets import BUDGETS_EXCEEDED
from agentrun.store.committing import Committing
from agentrun.store.database import Database

LONGEST_PAUSE = 60.0
"""Seconds between the attempts of one step within a segment."""


@dataclass(slots=True, kw_only=True)
class Steps(Fenced):
    """The steps of one segment: its lease, its journal, and what is in flight."""

    database: Database
    spending: Spending
    namespace: str = "default"
    replayed: int = 0
    executed: int = 0
    in_flight: dict[str, tuple[StepSpec, asyncio.Future[Any]]] = field(
        default_factory=dict[str, "tuple[StepSpec, asyncio.Future[Any]]"]
    )
    """By key: who is performed, and what ends with it. A task of its own brings the result, too."""

    writes: set[asyncio.Task[Any]] = field(default_factory=set["asyncio.Task[Any]"])
    """Writes and transactions in flight: they go on when the body that asked for them is cancelled."""

    broken: NonDeterminism | StepFailed | WriteUnknown | None = None
    """What ends the segment whatever the body makes of it: no step starts after it."""

    repeatable: set[asyncio.Task[Any]] = field(default_factory=set["asyncio.Task[Any]"])
    """Of these, those that may be done again."""

    closed: bool = False
    """The body has ended: what it left behind starts nothing any more."""

    async def perform(self, spec: StepSpec) -> Any:
        """The step's result: from the journal where it has ended, else run and recorded.

        Raises StepFailed where it failed (now or then), NonDeterminism where another step is recorded under its key,
        and the segment's own endings (LeaseLost, Cancelled, HandedBack, Parked) where it must not start.
        """
        if self.lease.unsure is not None:
            # The body began before its claim had committed; what it does must not.
            await asyncio.wait([self.lease.unsure])
        self._may_start()
        there = self.recorded.get(spec.key)
        if there is not None:
            self._same(spec, there)
            if there["status"] == StepStatus.COMPLETED:
                return self.recorded_result(spec, there, spec.decode)
            if there["status"] == StepStatus.FAILED:
                self.replayed += 1
                raise recorded_failure(spec, there)
        if spec.kind is StepKind.MODEL:
            await self.may_spend()
        same = self.in_flight.get(spec.key) if self.in_flight else None
        return await (self._once(spec, there) if same is None else self._joined(spec, *same))

    def recorded_result(self, spec: Named, there: Mapping[str, Any], decode: Callable[[str], Any]) -> Any:
        """What a completed step is recorded with. Raises StepFailed where that does not fit, and ends the segment."""
        self.replayed += 1
        try:
            return decode(there["result"])
        except Exception as error:
            # A body that went on would take a write that happened for one that failed. Its value stays unsaid.
            self.broken = unfit(spec, error, self.lease.run_id)
            raise self.broken from None

    async def _joined(self, spec: StepSpec, first: StepSpec, ending: asyncio.Future[Any]) -> Any:
        """The same call dispatched twice (one key): one effect, one result. Another call stops, as in a replay."""
        self._same(spec, {"kind": str(first.kind), "name": first.name})
        try:
            answer = await asyncio.shield(ending)
        except asyncio.CancelledError:
            mine = asyncio.current_task()
            if not ending.cancelled() or (mine is not None and mine.cancelling()):
                raise
            # Whoever came first has given it up, and this one has not.
            return await self.perform(spec)
        return answer if isinstance(ending, asyncio.Task) else await self.perform(spec)

    def _may_start(self) -> None:
        self.lease.check()
        if self.broken is not None:
            raise self.broken
        if self.closed:
            raise LeaseLost

    async def all_written(self) -> None:
        """The body has ended. No step starts from now on; the writes that it left behind say their ends first."""
        self.closed = True
        while self.writes and not isinstance(self.lease.stopped, LeaseLost):
            await asyncio.wait(set(self.writes))

    def let_go(self) -> None:
        """The process ends and nobody waits any longer: a write that may be done again is, elsewhere."""
        for task in list(self.repeatable):
            task.cancel()

    def _same(self, spec: StepSpec, there: Mapping[str, Any]) -> None:
        try:
            same_step(spec, there)
        except NonDeterminism as error:
            self.broken = error
            raise

    async def _once(self, spec: StepSpec, there: Mapping[str, Any] | None) -> Any:
        self.executed += 1
        if spec.kind is StepKind.STEP and spec.effect is Effect.READ_ONLY and by_position(spec.key):
            return await self._read(spec, there)
        is_write = spec.effect.is_write
        if not is_write and spec.kind not in (StepKind.TOOL, StepKind.WRITE, StepKind.TRANSACTION):
            return await self._inline(spec, there)
        task = detached(self._write(spec, there) if is_write else self._read(spec, there))
        self.in_flight[spec.key] = spec, task
        # A transaction's function is in a thread, and nothing takes it back from there.
        goes_on = is_write or spec.recorded_by_call
        if goes_on:
            self.writes.add(task)
            if spec.effect is not Effect.NON_IDEMPOTENT_WRITE:
                self.repeatable.add(task)
        # As `asyncio.shield`, for half of its price: the write goes on when the body is cancelled.
        told: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        task.add_done_callback(functools.partial(self._ended, spec, told))
        try:
            return await told
        except asyncio.CancelledError:
            # A cancel does not interrupt a write in flight: its end is recorded before the segment ends.
            if isinstance(self.lease.stopped, LeaseLost) or not goes_on:
                task.cancel()
            raise
        finally:
            if told.done() and not told.cancelled():
                told.exception()  # a body that was cancelled just then does not hear of it

    async def _inline(self, spec: StepSpec, there: Mapping[str, Any] | None) -> Any:
        done: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        self.in_flight[spec.key] = spec, done
        try:
            return await self._read(spec, there)
        finally:
            del self.in_flight[spec.key]
            done.set_result(None)

    def _ended(self, spec: StepSpec, told: asyncio.Future[Any], task: asyncio.Task[Any]) -> None:
        self.in_flight.pop(spec.key, None)
        self.writes.discard(task)
        self.repeatable.discard(task)
        error = None if task.cancelled() else task.exception()
        if isinstance(error, WriteUnknown) and self.broken is None:
            self.broken = error
        if told.done():
            return
        if task.cancelled():
            told.cancel()
        elif error is not None:
            told.set_exception(error)
        else:
            told.set_result(task.result())

    async def may_spend(self, planned: Decimal | None = None) -> None:
        """The one gate: raises LimitReached where the run's limits or its owner's budgets are spent."""
        self.spending.check()
        if self.owner is None:
            return
        params = {"run_id": self.lease.run_id, "namespace": self.namespace, "owner": self.owner, "planned": planned}
        for row in await self.writer.write(Write(BUDGETS_EXCEEDED, params)):
            raise LimitReached(
                Reason.BUDGET_EXHAUSTED,
                f"the {row['period']}'s budget of owner `{self.owner}` is spent: {row['tokens']} tokens "
                f"(of {row['max_tokens']}), {row['cost']} US dollars (of {row['max_cost']})",
            )

    # ---- what may be repeated: run, then record

    async def _read(self, spec: StepSpec, there: Mapping[str, Any] | None) -> Any:
        attempt = there["attempt"] + 1 if there is not None else 1
        last = attempt + spec.retries.attempts - 1
        while True:
            began = time.monotonic()
            try:
                value = await self._called(spec, attempt)
                text, replayed = self._encoded(spec, value)
            except spec.passes:
                raise
            except Exception as error:
                failure = describe(error)
                pause = failure.retry_after or spec.retries.backoff.delay(attempt - 1, luck())
                # A longer pause is the queue's: the run gives its worker back and is due when it is over.
                if attempt < last and failure.failure_class.retryable and pause <= LONGEST_PAUSE:
                    await asyncio.sleep(pause)
                    self.lease.check()
                    attempt += 1
                    continue
                await self._record(spec, attempt, StepStatus.FAILED, began, error=failure)
                raise self._failed(spec, failure) from error
            if spec.recorded_by_call:
                self._remember(spec, attempt, ended(StepStatus.COMPLETED, text, None))
            else:
                spent = spec.spent and spec.spent(value)
                await self._record(spec, attempt, StepStatus.COMPLETED, began, result=text, spent=spent)
            return replayed

    async def _record(
        self,
        spec: StepSpec,
        attempt: int,
        status: StepStatus,
        began: float,
        *,
        result: str | None = None,
        error: Failure | None = None,
        spent: Spent | None = None,
    ) -> None:
        params = self._named(spec, attempt)
        params["took"] = time.monotonic() - began
        if spent is None:
            statement = journal.RECORD
            params.update(ended(status, result, error))
        else:
            statement = journal.RECORD_WITH_USAGE
            params.update(ended_with(status, result, error, spent), lease=self.default_lease)
        if not await self._written(statement, params, status):
            raise await self._refused()
        self._remember(spec, attempt, params)
        if spent is not None:
            self.spending.add(spent.input_tokens + spent.output_tokens, Decimal(spent.cost or 0))

    # ---- exactly once: the write and its record in one transaction of the same database

    async def transact(self, spec: StepSpec, function: Callable[..., Any]) -> Any:
        """Call `function(connection)` in a transaction that also records the step: both commit, or neither.

        Nothing needs to be fenced or reconciled. Raises as `perform`; whatever the function raises rolls back. A
        function that closes or ends its transaction itself fails its step with BodyError.
        """

        async def commit() -> Any:
            # Its record takes another way than the journal's writer, and comes after what the segment wrote before.
            await self.writer.caught_up(self.lease.run_id, self.lease.epoch)
            return await in_thread(self.threads, self._committed, spec, function)

        return await self.perform(replace(spec, call=commit, recorded_by_call=True))

    def _committed(self, spec: StepSpec, function: Callable[..., Any]) -> Any:
        there = self.recorded.get(spec.key)
        attempt = there["attempt"] + 1 if there is not None else 1
        guard = self._named(spec, attempt)

        began = time.monotonic()

        def work(connection: Any) -> Any:
            nonlocal began
            began = time.monotonic()
            return function(connection)

        def record(connection: Any, value: Any) -> datetime:
            # Last in the transaction: the run's row stays unlocked while the function works.
            said = ended(StepStatus.COMPLETED, self._encoded(spec, value)[0], None) | {"took": time.monotonic() - began}
            rows = connection.execute(journal.RECORD_IN_TRANSACTION.sql, guard | said).fetchall()
            if not rows:
                raise LeaseLost
            return rows[0]["began"]

        def landed(connection: Any) -> bool:
            asked = guard | {"landed_status": str(StepStatus.COMPLETED)}
            return connection.execute(journal.STEP_LANDED.sql, asked).fetchone() is not None

        may_go_on = self.lease.check
        return Committing(
            database=self.database, work=work, record=record, landed=landed, may_go_on=may_go_on
        ).committed()
