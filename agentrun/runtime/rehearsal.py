"""Trying a body without a run: nothing is stored, what may be repeated is called, and no write can start (ADR-141)."""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from agentrun.core.errors import WriteWithoutLease
from agentrun.core.failures import describe
from agentrun.core.words import StepStatus
from agentrun.runtime.context import Context, RunFacts
from agentrun.runtime.keys import BRANCH, Branch
from agentrun.runtime.kinds import kind_of, registry
from agentrun.runtime.luck import luck
from agentrun.runtime.steps import LONGEST_PAUSE
from agentrun.runtime.stepspec import StepSpec, ended, in_thread, recorded_failure, stored
from agentrun.runtime.synchronous import SyncContext
from agentrun.runtime.wishes import Wishes


class Unleased:
    """Steps without a run: called and given back as a replay would, recorded nowhere; writes are refused."""

    async def perform(self, spec: StepSpec) -> Any:
        """The result of what may be repeated, with the retries and the timeout that it would have in a run.

        Raises StepFailed where it failed; WriteWithoutLease for a write, before it starts.
        """
        if spec.effect.is_write:
            raise _without_lease(spec)
        attempt = 0
        while True:
            try:
                return await _tried(spec)
            except (WriteWithoutLease, *spec.passes):
                raise
            except Exception as error:
                failure = describe(error)
                pause = failure.retry_after or spec.retries.backoff.delay(attempt, luck())
                attempt += 1
                again = attempt < spec.retries.attempts and failure.failure_class.retryable
                if not again or pause > LONGEST_PAUSE:
                    raise recorded_failure(spec, ended(StepStatus.FAILED, None, failure)) from error
            await asyncio.sleep(pause)

    async def transact(self, spec: StepSpec, function: Callable[..., Any]) -> Any:
        """Raises WriteWithoutLease: a transaction writes."""
        raise _without_lease(spec)


async def rehearse(kind: str | Callable[..., Any], request: Any = None) -> Any:
    """Call a body (a registered kind, or the function itself) here, without a database; returns its result.

    For trying prompts and read-only paths. Raises WriteWithoutLease at the first write or transaction, UnknownKind,
    InvalidRequest, StepFailed, and whatever the body raises.
    """
    body = registry.require(kind) if isinstance(kind, str) else kind_of(kind.__qualname__, kind)
    typed = body.decode_request(body.encode_request(request))
    facts = RunFacts(uuid.uuid4(), body.name, 0, 0, None, (), {}, None)
    with ThreadPoolExecutor(8, thread_name_prefix="agentrun rehearsal") as threads:
        context = Context(facts, Unleased(), threads, Wishes(retries=body.options.retries))
        token = BRANCH.set(Branch())
        try:
            if body.is_async:
                return await body.call(context, typed)
            return await in_thread(threads, body.call, SyncContext(context, asyncio.get_running_loop()), typed)
        finally:
            BRANCH.reset(token)


async def _tried(spec: StepSpec) -> Any:
    async with asyncio.timeout(spec.timeout):
        value = await spec.call()
    return stored(spec, value)[1]


def _without_lease(spec: StepSpec) -> WriteWithoutLease:
    return WriteWithoutLease(
        f"the write `{spec.name}` was refused: there is no durable run and no lease here; "
        "enqueue the run or use client.run(...), which claims one"
    )
