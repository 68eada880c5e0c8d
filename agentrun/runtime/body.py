"""A body's call, and its ending as a value: what it returned, what it raised, or why it stopped."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any, cast

from agentrun.core.codec import within
from agentrun.core.failures import describe
from agentrun.core.outcome import LeaseLost, Parked, StopSegment
from agentrun.runtime.context import Context, RunFacts
from agentrun.runtime.keys import BRANCH, Branch
from agentrun.runtime.kinds import Kind
from agentrun.runtime.settling import Broke, Ending, Finished, Interrupted, Stopped
from agentrun.runtime.steps import Steps
from agentrun.runtime.stepspec import WriteUnknown, in_thread
from agentrun.runtime.synchronous import SyncContext
from agentrun.runtime.waits import Waits
from agentrun.runtime.wishes import Wishes

if TYPE_CHECKING:
    from agentrun.runtime.engine import Engine


async def ending_of_body(engine: Engine, kind: Kind, claimed: Mapping[str, Any], steps: Steps, waits: Waits) -> Ending:
    """Call the body, and wait for its branches; its ending is what is left of all. Of the engine it needs little:
    threads and settings."""
    root = Branch()
    context = Context(_facts_of(claimed), steps, engine.threads, Wishes(retries=kind.options.retries), waits)
    try:
        ending = await _called(engine, kind, claimed, steps, waits, context, root)
        return await _with_branches(ending, root)
    finally:
        for task in list(root.tasks):
            task.cancel()


async def _called(
    engine: Engine,
    kind: Kind,
    claimed: Mapping[str, Any],
    steps: Steps,
    waits: Waits,
    context: Context,
    root: Branch,
) -> Ending:
    try:
        if claimed["model_calls"] == 0:
            await steps.may_spend(claimed["planned_cost"])
        request = kind.decode_request(claimed["request"])
        BRANCH.set(root)
        if kind.is_async:
            result = await kind.call(context, request)
        else:
            sync = SyncContext(context, asyncio.get_running_loop())
            result = await in_thread(engine.threads, kind.call, sync, request)
        if steps.broken is not None:
            # The body swallowed it, or gathered it among its results.
            raise steps.broken
        if waits.waiting_on:
            # A branch ended with Parked, and the body gathered that among its results or left it: its answer is open.
            raise Parked
        text = kind.encode_result(result)
        what = f"the result of kind `{kind.name}`"
        return Finished(within(text, engine.settings.max_result_bytes, what=what, setting="AGENTRUN_MAX_RESULT_BYTES"))
    except asyncio.CancelledError:
        raise
    except BaseException as error:
        return _ending_of(steps.broken or error)


async def _with_branches(ending: Ending, root: Branch) -> Ending:
    """Before a run parks, branches that still work finish; what they end with may weigh more than the park."""
    if not (isinstance(ending, Stopped) and isinstance(ending.by, Parked)):
        return ending
    while root.tasks:
        done, _ = await asyncio.wait(set(root.tasks))
        for task in done:
            error = None if task.cancelled() else task.exception()
            if isinstance(error, WriteUnknown | StopSegment) and not isinstance(error, Parked):
                return _ending_of(error)
    return ending


def _ending_of(error: BaseException) -> Ending:
    if isinstance(error, BaseExceptionGroup):
        stops = [leaf for leaf in _leaves(cast("BaseExceptionGroup[BaseException]", error)) if _is_stop(leaf)]
        # The leading one of several: an interrupted write before a lost lease before the gentler endings.
        stops.sort(key=lambda leaf: (not isinstance(leaf, WriteUnknown), not isinstance(leaf, LeaseLost)))
        return _stopped(stops[0]) if stops else Broke(describe(cast("BaseException", error)))
    # SystemExit and KeyboardInterrupt included: a body that calls sys.exit() must not take the worker with it.
    return _stopped(error) if _is_stop(error) else Broke(describe(error))


def _is_stop(error: BaseException) -> bool:
    return isinstance(error, StopSegment | WriteUnknown)


def _leaves(group: BaseExceptionGroup[BaseException]) -> Iterator[BaseException]:
    for member in group.exceptions:
        if isinstance(member, BaseExceptionGroup):
            yield from _leaves(cast("BaseExceptionGroup[BaseException]", member))
        else:
            yield member


def _stopped(stop: BaseException) -> Ending:
    if isinstance(stop, WriteUnknown):
        return Interrupted(stop.failure)
    return Stopped(stop if isinstance(stop, StopSegment) else LeaseLost())


def _facts_of(claimed: Mapping[str, Any]) -> RunFacts:
    return RunFacts(
        claimed["id"], claimed["kind"], claimed["epoch"], claimed["requeue_count"], claimed["owner"],
        claimed["tags"], claimed["attributes"], claimed["deadline_at"],
    )  # fmt: skip
