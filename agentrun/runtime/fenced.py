"""Writes: fenced before they start, finished after (ADR-112). An interrupted one is asked about, never presumed."""

from __future__ import annotations

import asyncio
import functools
import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from agentrun.core.codec import digest
from agentrun.core.errors import BodyError, InvalidResult, NotApplied, TooLarge
from agentrun.core.failures import Failure, describe
from agentrun.core.outcome import LeaseLost
from agentrun.core.words import Effect, FailureClass, StepStatus
from agentrun.runtime.current import idempotency_key
from agentrun.runtime.effects import NOT_APPLIED, Applied
from agentrun.runtime.journaling import Journaling
from agentrun.runtime.stepspec import StepSpec, WriteUnknown, ended, in_thread
from agentrun.store import journal


@dataclass(slots=True, kw_only=True)
class Fenced(Journaling):
    """The only way by which a write starts."""

    keep_arguments: bool = False

    async def _write(self, spec: StepSpec, there: Mapping[str, Any] | None) -> Any:
        attempt = there["attempt"] + 1 if there is not None else 1
        if there is not None and there["status"] == StepStatus.STARTED and spec.effect is Effect.NON_IDEMPOTENT_WRITE:
            found = await self._reconciled(spec, there)
            if found is not None:
                return found[0]
        await self._fence(spec, attempt)
        try:
            value = await self._called(spec, attempt)
        except asyncio.CancelledError as error:
            # A task that cancels itself is not asked to, and nobody knows what it did.
            asked = asyncio.current_task()
            let_go = spec.effect is Effect.IDEMPOTENT_WRITE and asked is not None and asked.cancelling() > 0
            if let_go or isinstance(self.lease.stopped, LeaseLost):
                raise
            raise WriteUnknown(spec.key, spec.name, describe(error)) from error
        except spec.passes as error:
            await self._finish(spec, attempt, StepStatus.FAILED, error=describe(error))
            raise
        except Exception as error:
            failure = describe(error)
            if isinstance(error, NotApplied) or spec.effect is Effect.IDEMPOTENT_WRITE:
                await self._finish(spec, attempt, StepStatus.FAILED, error=failure)
                raise self._failed(spec, failure) from error
            raise WriteUnknown(spec.key, spec.name, failure) from error
        text, replayed = self._known(spec, value)
        await self._finish(spec, attempt, StepStatus.COMPLETED, result=text)
        return replayed

    def _known(self, spec: StepSpec, value: Any) -> tuple[str, Any]:
        """The result of a write that happened: where it cannot be stored, the body must not hear of a failure."""
        try:
            return self._encoded(spec, value)
        except (InvalidResult, TooLarge) as error:
            raise WriteUnknown(spec.key, spec.name, describe(error)) from error

    async def _fence(self, spec: StepSpec, attempt: int) -> None:
        arguments = spec.arguments() if spec.arguments is not None else "null"
        params = self._named(spec, attempt)
        params["args_digest"] = digest(arguments)
        params["args"] = arguments if self.keep_arguments else None
        params["idempotency_key"] = idempotency_key(self.lease.run_id, spec.key)
        params["reconcilable"] = spec.reconcile is not None
        params["lease"] = self.default_lease
        rows = await self._written(journal.FENCE, params, StepStatus.STARTED)
        if not rows:
            raise await self._refused()
        if self.lease.expired or isinstance(self.lease.stopped, LeaseLost):
            # This process slept between the fence and here: somebody may have said by now how the write ended.
            raise LeaseLost
        if rows[0]["key"] is None and not rows[0].get("landed"):
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
    ) -> None:
        params = self._guard(spec.key)
        params.update(ended(status, result, error))
        if not await self._written(journal.FINISH, params, status):
            raise LeaseLost
        self._remember(spec, attempt, params)

    async def _reconciled(self, spec: StepSpec, there: Mapping[str, Any]) -> tuple[Any] | None:
        """Ask outside how an interrupted write ended. None: nothing happened, it may start afresh."""
        if spec.reconcile is None:
            raise WriteUnknown(
                spec.key, spec.name, Failure(FailureClass.UNKNOWN, "Interrupted", "the write was interrupted", spec.key)
            )
        try:
            ask = functools.partial(self._maybe_in_thread, spec.reconcile, there["idempotency_key"])
            answer = await self._inside(spec, there["attempt"], ask)
        except Exception as error:
            raise WriteUnknown(spec.key, spec.name, describe(error)) from error
        if answer is NOT_APPLIED:
            freed = await self._written(journal.NOT_APPLIED, self._guard(spec.key), StepStatus.NOT_APPLIED)
            if not freed:
                raise await self._refused()
            return None
        if not isinstance(answer, Applied):
            told = f"the reconcile function returned {type(answer).__name__}, not Applied(result) or NOT_APPLIED"
            raise WriteUnknown(spec.key, spec.name, Failure(FailureClass.UNKNOWN, "InvalidReconcile", told, spec.key))
        text, replayed = self._known(spec, answer.result)
        await self._finish(spec, there["attempt"], StepStatus.COMPLETED, result=text)
        return (replayed,)

    async def _maybe_in_thread(self, function: Callable[..., Any], *args: Any) -> Any:
        if inspect.iscoroutinefunction(function):
            return await function(*args)
        return await in_thread(self.threads, function, *args)
