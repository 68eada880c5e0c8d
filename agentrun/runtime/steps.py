"""The one place through which every step passes: replayed from the journal, or run and recorded under the epoch.

A write is fenced before it starts and finished after it (ADR-112); without a lease it does not start at all (ADR-141).
"""

from __future__ import annotations

import asyncio
import contextvars
import functools
import hashlib
import inspect
import json
from collections.abc import Awaitable, Callable, Coroutine, Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol
from uuid import UUID

from agentrun.core.codec import decode, digest, within
from agentrun.core.errors import BodyError, InvalidResult, NonDeterminism, NotApplied, StepFailed, TooLarge
from agentrun.core.failures import Failure, describe
from agentrun.core.outcome import Cancelled, LeaseLost
from agentrun.core.words import Effect, FailureClass, StepKind, StepStatus
from agentrun.runtime.current import CURRENT, CurrentStep
from agentrun.runtime.effects import NOT_APPLIED, Applied
from agentrun.runtime.keys import BRANCH
from agentrun.runtime.kinds import ONCE, Retries
from agentrun.runtime.lease import Lease
from agentrun.runtime.luck import luck
from agentrun.store import journal
from agentrun.store.reads import HELD
from agentrun.store.sql import Statement
from agentrun.store.writer import Write

LONGEST_MESSAGE = 2_000
"""Characters of an error's message that are kept."""


@dataclass(frozen=True, slots=True)
class Spent:
    """What a model call used, as recorded on its step and its run. Cost is in US dollars, as text."""

    model: str
    input_tokens: int
    output_tokens: int
    cost: str | None = None


@dataclass(frozen=True, slots=True)
class StepSpec:
    """One step that a body asks for. `arguments` gives JSON text and is only asked for writes."""

    key: str
    kind: StepKind
    name: str
    effect: Effect
    call: Callable[[], Awaitable[Any]]
    encode: Callable[[Any], str]
    decode: Callable[[str], Any]
    arguments: Callable[[], str] | None = None
    retries: Retries = ONCE
    timeout: float | None = None
    reconcile: Callable[..., Any] | None = None
    spent: Callable[[Any], Spent | None] | None = None
    passes: tuple[type[Exception], ...] = ()
    """Exceptions that are control flow of the body's own framework: they pass through and are not recorded."""


class JournalWriter(Protocol):
    """What steps need of the engine."""

    async def write(self, write: Write) -> list[dict[str, Any]]: ...


@dataclass(slots=True)
class Steps:
    """The steps of one segment: its lease, its journal, and what is in flight."""

    writer: JournalWriter
    lease: Lease
    recorded: dict[str, Mapping[str, Any]]
    result_limit: int
    default_lease: float
    owner: str | None = None
    keep_arguments: bool = False
    replayed: int = 0
    executed: int = 0
    in_flight: dict[str, asyncio.Future[Any]] = field(default_factory=dict[str, "asyncio.Future[Any]"])
    writes: set[asyncio.Task[Any]] = field(default_factory=set["asyncio.Task[Any]"])

    async def perform(self, spec: StepSpec) -> Any:
        """The step's result: from the journal where it has ended, else run and recorded.

        Raises StepFailed where it failed (now or then), NonDeterminism where another step is recorded under its key,
        and the segment's own endings (LeaseLost, Cancelled, HandedBack, Parked) where it must not start.
        """
        self.lease.check()
        there = self.recorded.get(spec.key)
        if there is not None:
            _same(spec, there)
            if there["status"] == StepStatus.COMPLETED:
                self.replayed += 1
                return spec.decode(there["result"])
            if there["status"] == StepStatus.FAILED:
                self.replayed += 1
                raise _recorded_failure(spec, there)
        same = self.in_flight.get(spec.key)
        if same is not None:
            # The same call dispatched twice (one key): one effect, one result.
            return await asyncio.shield(same)
        return await self._once(spec, there)

    async def _once(self, spec: StepSpec, there: Mapping[str, Any] | None) -> Any:
        self.executed += 1
        if not spec.effect.is_write and spec.kind not in (StepKind.TOOL, StepKind.WRITE):
            return await self._read(spec, there)
        task = _detached(self._write(spec, there) if spec.effect.is_write else self._read(spec, there))
        self.in_flight[spec.key] = task
        if spec.effect.is_write:
            self.writes.add(task)
        try:
            return await asyncio.shield(task)
        except asyncio.CancelledError:
            # A cancel does not interrupt a write in flight: its end is recorded before the segment ends.
            if isinstance(self.lease.stopped, LeaseLost) or not spec.effect.is_write:
                task.cancel()
            raise
        finally:
            if task.done():
                self._ended(spec, task)
            else:
                task.add_done_callback(functools.partial(self._ended, spec))

    def _ended(self, spec: StepSpec, task: asyncio.Task[Any]) -> None:
        self.in_flight.pop(spec.key, None)
        self.writes.discard(task)
        if not task.cancelled():
            task.exception()

    # ---- what may be repeated: run, then record

    async def _read(self, spec: StepSpec, there: Mapping[str, Any] | None) -> Any:
        attempt = there["attempt"] + 1 if there is not None else 1
        last = attempt + spec.retries.attempts - 1
        while True:
            try:
                value = await self._called(spec, attempt)
                text = self._encoded(spec, value)
            except spec.passes:
                raise
            except Exception as error:
                failure = describe(error)
                if attempt < last and failure.failure_class.retryable:
                    await asyncio.sleep(failure.retry_after or spec.retries.backoff.delay(attempt - 1, luck()))
                    self.lease.check()
                    attempt += 1
                    continue
                await self._record(spec, attempt, StepStatus.FAILED, error=failure)
                raise self._failed(spec, failure) from error
            await self._record(spec, attempt, StepStatus.COMPLETED, result=text, spent=spec.spent and spec.spent(value))
            return _as_replayed(spec, value, text)

    async def _record(
        self,
        spec: StepSpec,
        attempt: int,
        status: StepStatus,
        *,
        result: str | None = None,
        error: Failure | None = None,
        spent: Spent | None = None,
    ) -> None:
        statement = journal.RECORD if spent is None else journal.RECORD_WITH_USAGE
        params = self._named(spec, attempt) | _ended_with(status, result, error, spent)
        if not await self._written(statement, params, status):
            raise await self._refused()

    # ---- what may not: fence, run, finish

    async def _write(self, spec: StepSpec, there: Mapping[str, Any] | None) -> Any:
        attempt = there["attempt"] + 1 if there is not None else 1
        if there is not None and there["status"] == StepStatus.STARTED and spec.effect is Effect.NON_IDEMPOTENT_WRITE:
            found = await self._reconciled(spec, there)
            if found is not None:
                return found[0]
        await self._fence(spec, attempt)
        try:
            value = await self._called(spec, attempt)
        except spec.passes as error:
            await self._finish(spec, attempt, StepStatus.FAILED, error=describe(error))
            raise
        except Exception as error:
            failure = describe(error)
            if isinstance(error, NotApplied) or spec.effect is Effect.IDEMPOTENT_WRITE:
                await self._finish(spec, attempt, StepStatus.FAILED, error=failure)
                raise self._failed(spec, failure) from error
            raise WriteUnknown(spec.key, spec.name, failure) from error
        try:
            text = self._encoded(spec, value)
        except (InvalidResult, TooLarge) as error:
            raise WriteUnknown(spec.key, spec.name, describe(error)) from error
        await self._finish(spec, attempt, StepStatus.COMPLETED, result=text, spent=spec.spent and spec.spent(value))
        return _as_replayed(spec, value, text)

    async def _fence(self, spec: StepSpec, attempt: int) -> None:
        arguments = spec.arguments() if spec.arguments is not None else "null"
        params = self._named(spec, attempt) | {
            "args_digest": digest(arguments),
            "args": arguments if self.keep_arguments else None,
            "idempotency_key": idempotency_key(self.lease.run_id, spec.key),
            "reconcilable": spec.reconcile is not None,
            "lease": self.default_lease,
        }
        rows = await self._written(journal.FENCE, params, StepStatus.STARTED)
        if not rows:
            raise await self._refused()
        if rows[0]["key"] is None:
            raise BodyError(
                f"write `{spec.name}` ({spec.key}) is in flight or has ended under another attempt and did not start; "
                f"look at `agentrun show {self.lease.run_id}`"
            )

    async def _finish(
        self,
        spec: StepSpec,
        attempt: int,
        status: StepStatus,
        *,
        result: str | None = None,
        error: Failure | None = None,
        spent: Spent | None = None,
    ) -> None:
        params = self._named(spec, attempt) | _ended_with(status, result, error, spent) | {"lease": self.default_lease}
        if not await self._written(journal.FINISH, params, status):
            raise LeaseLost

    async def _reconciled(self, spec: StepSpec, there: Mapping[str, Any]) -> tuple[Any] | None:
        """Ask outside how an interrupted write ended. None: nothing happened, it may start afresh."""
        if spec.reconcile is None:
            raise WriteUnknown(
                spec.key, spec.name, Failure(FailureClass.UNKNOWN, "Interrupted", "the write was interrupted", spec.key)
            )
        answer = await self._inside(spec, there["attempt"], functools.partial(spec.reconcile, there["idempotency_key"]))
        if answer is NOT_APPLIED:
            freed = await self._written(journal.NOT_APPLIED, self._guard(spec.key), StepStatus.NOT_APPLIED)
            if not freed:
                raise await self._refused()
            return None
        if not isinstance(answer, Applied):
            raise BodyError(
                f"the reconcile function of `{spec.name}` returned {type(answer).__name__}; "
                "it must return Applied(result) or NOT_APPLIED"
            )
        text = self._encoded(spec, answer.result)
        await self._finish(spec, there["attempt"], StepStatus.COMPLETED, result=text)
        return (spec.decode(text),)

    # ---- shared

    async def _called(self, spec: StepSpec, attempt: int) -> Any:
        async with asyncio.timeout(spec.timeout):
            return await self._inside(spec, attempt, spec.call)

    async def _inside(self, spec: StepSpec, attempt: int, call: Callable[[], Any]) -> Any:
        """Call with the step's own context: `current_step()` works, and steps do not nest."""
        step = CurrentStep(
            self.lease.run_id, spec.key, spec.name, attempt, idempotency_key(self.lease.run_id, spec.key), self.owner
        )
        inside, outside = CURRENT.set(step), BRANCH.set(None)
        try:
            answer = call()
            return await answer if inspect.isawaitable(answer) else answer
        finally:
            CURRENT.reset(inside)
            BRANCH.reset(outside)

    def _encoded(self, spec: StepSpec, value: Any) -> str:
        what = f"the result of step `{spec.name}`"
        try:
            text = spec.encode(value)
        except ValueError as error:
            raise InvalidResult(f"{what} cannot be stored as JSON: {error}") from None
        return within(text, self.result_limit, what=what, setting="AGENTRUN_MAX_RESULT_BYTES")

    async def _written(self, statement: Statement, params: dict[str, Any], status: StepStatus) -> list[dict[str, Any]]:
        landed = {"landed_status": str(status)}
        return await self.writer.write(Write(statement, params, landed=journal.STEP_LANDED, landed_params=landed))

    def _guard(self, key: str) -> dict[str, Any]:
        return {"run_id": self.lease.run_id, "epoch": self.lease.epoch, "by": self.lease.owner, "key": key}

    def _named(self, spec: StepSpec, attempt: int) -> dict[str, Any]:
        return {
            "run_id": self.lease.run_id,
            "epoch": self.lease.epoch,
            "by": self.lease.owner,
            "key": spec.key,
            "kind": str(spec.kind),
            "name": spec.name,
            "effect": str(spec.effect),
            "attempt": attempt,
            "args_digest": None,
            "args": None,
            "lease": self.default_lease,
        }

    def _failed(self, spec: StepSpec, failure: Failure) -> StepFailed:
        failed = StepFailed(spec.key, spec.name, failure.error_type, failure.message, str(failure.failure_class))
        failed.retry_after = failure.retry_after
        return failed

    async def _refused(self) -> BaseException:
        """A guard refused: the row is another owner's, or a cancel was asked for before the heartbeat brought it."""
        if self.lease.stopped is None:
            rows = await self.writer.write(Write(HELD, self._guard("")))
            self.lease.stop(Cancelled() if rows and rows[0]["cancel_requested"] else LeaseLost())
        return Cancelled() if isinstance(self.lease.stopped, Cancelled) else LeaseLost()


class WriteUnknown(BaseException):
    """A non-idempotent write raised without saying that nothing happened: the run stops as it would at a crash.

    Derives from BaseException: a body that went on after it could do the write again by another name.
    """

    def __init__(self, key: str, name: str, failure: Failure) -> None:
        super().__init__(f"write `{name}` ({key}) raised {failure.error_type}; nobody knows whether it happened")
        self.key, self.name, self.failure = key, name, failure


def idempotency_key(run_id: UUID, key: str) -> str:
    """The same in every attempt of a step, and nobody else's: what outside systems tell repeats by."""
    return hashlib.sha256(f"{run_id}/{key}".encode()).hexdigest()[:32]


async def in_thread(executor: Any, call: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    """A plain function in a thread, with the caller's context variables."""
    context = contextvars.copy_context()
    bound = functools.partial(context.run, call, *args, **kwargs)
    return await asyncio.get_running_loop().run_in_executor(executor, bound)


def _detached(coroutine: Coroutine[Any, Any, Any]) -> asyncio.Task[Any]:
    """A task that is no branch of the body: a replay does not start it, so it must not be counted."""
    context = contextvars.copy_context()
    context.run(BRANCH.set, None)
    return asyncio.create_task(coroutine, context=context)


def _same(spec: StepSpec, there: Mapping[str, Any]) -> None:
    if (there["kind"], there["name"]) != (str(spec.kind), spec.name):
        raise NonDeterminism(spec.key, f"{there['kind']} `{there['name']}`", f"{spec.kind} `{spec.name}`")


def _recorded_failure(spec: StepSpec, there: Mapping[str, Any]) -> StepFailed:
    error: dict[str, Any] = decode(there["error"]) or {}
    failed = StepFailed(
        spec.key, spec.name, error.get("type", "?"), error.get("message", ""), error.get("class", "unknown")
    )
    failed.retry_after = error.get("retry_after")
    return failed


def _ended_with(status: StepStatus, result: str | None, error: Failure | None, spent: Spent | None) -> dict[str, Any]:

    said = error.as_json() if error is not None else None
    if said is not None:
        said["message"] = str(said["message"])[:LONGEST_MESSAGE]
    return {
        "status": str(status),
        "result": result,
        "error": json.dumps(said) if said is not None else None,
        "model": spent.model if spent else None,
        "input_tokens": spent.input_tokens if spent else None,
        "output_tokens": spent.output_tokens if spent else None,
        "cost": spent.cost if spent else None,
    }


def _as_replayed(spec: StepSpec, value: Any, text: str) -> Any:
    """What the body gets is what a replay would give it, so that the first pass and the replay take one way."""
    return value if type(value) in (type(None), str, int, bool) else spec.decode(text)
