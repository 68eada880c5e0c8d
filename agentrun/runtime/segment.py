"""One segment of a run: claim, body, settle. The body's ending is a value, matched in one place."""

from __future__ import annotations

import asyncio
import json
import logging
import math
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, cast
from uuid import UUID

from agentrun.core.codec import within
from agentrun.core.failures import describe
from agentrun.core.outcome import Cancelled, HandedBack, LeaseLost, LimitReached, Parked, StopSegment
from agentrun.core.wake import Wake
from agentrun.core.words import Outcome, Segment, Status
from agentrun.runtime.context import Context, RunFacts, SyncContext, Wishes
from agentrun.runtime.keys import BRANCH, Branch
from agentrun.runtime.kinds import Kind
from agentrun.runtime.lease import Lease
from agentrun.runtime.observing import Seen
from agentrun.runtime.settling import Broke, Ending, Finished, Interrupted, Report, Stopped, park, settle
from agentrun.runtime.spending import Spending
from agentrun.runtime.steps import Steps
from agentrun.runtime.stepspec import WriteUnknown, in_thread
from agentrun.runtime.waits import Waits
from agentrun.store import claims
from agentrun.store.batches import Write
from agentrun.store.journal import REPLAY
from agentrun.store.reads import CLAIM_LANDED, HELD, UNCLAIMED

if TYPE_CHECKING:
    from agentrun.runtime.engine import Engine

log = logging.getLogger("agentrun.runtime")

LONGEST_PAUSE = 0.5
"""Seconds that a segment lets pass before it looks again at what was resolved while it wanted to park."""


@dataclass(slots=True, eq=False)
class Executing:
    """A segment that executes in this process now."""

    lease: Lease
    task: asyncio.Future[Any]
    let_go: Callable[[], None]
    ended: threading.Event = field(default_factory=threading.Event)

    def interrupt(self) -> None:
        """Cancel the body; writes in flight go on, but for those that may be done again."""
        self.task.cancel()
        self.let_go()


async def run_segment(
    engine: Engine, run_id: UUID, segment: Segment = Segment.WORKER, *, claimed: Callable[[], object] = int
) -> Report:
    """Wake one run: claim it, lend its body a context, settle the outcome. Never raises for a run's outcome.

    A wake that cannot claim ends quietly with the word why: `unknown`, `early`, `busy`, `elsewhere`, or a status.
    """
    asked_at = time.monotonic()
    owner = engine.owner(segment)
    row = await _claim(engine, run_id, owner, claimed)
    if row is None:
        return _unclaimed(await _why_not(engine, run_id))
    return await run_claimed(engine, row, owner, asked_at)


async def run_claimed(
    engine: Engine, claimed: Mapping[str, Any], owner: str, asked_at: float, *, kind: Kind | None = None
) -> Report:
    """The segment of a run that was just claimed or born claimed. `kind` is given where it is not registered."""
    seconds = claimed["lease_seconds"] or engine.settings.lease_seconds
    lease = Lease(claimed["id"], claimed["epoch"], owner, seconds, asked_at=asked_at)
    if engine.observer is None:
        return await _held_segment(engine, claimed, lease, kind)
    with engine.observer.segment(claimed, lease) as seen:
        report = await _held_segment(engine, claimed, lease, kind, seen)
        if seen is not None:
            seen.ended(report)
        return report


async def _held_segment(
    engine: Engine, claimed: Mapping[str, Any], lease: Lease, kind: Kind | None, seen: Seen | None = None
) -> Report:
    _know(engine, lease)
    engine.heartbeat.hold(lease)
    try:
        kind = kind or engine.registry.require(claimed["kind"])
        return await _until_it_ends(engine, kind, claimed, lease, seen)
    except LeaseLost:
        # It was about to settle or to park when its claim turned out to be undone.
        return Report(lease.run_id, Outcome.LEASE_LOST, claimed["kind"], claimed["epoch"])
    finally:
        engine.heartbeat.drop(lease)
        engine.writer.forget(lease.run_id, lease.epoch)
        executing = engine.executing.get(lease.run_id)
        # A later segment of the same run, in this same process, may have come after it.
        if executing is not None and executing.lease is lease:
            del engine.executing[lease.run_id]
            executing.ended.set()


def _know(engine: Engine, lease: Lease) -> None:
    """Have the lease lost where its claim turns out not to have committed."""
    claim = engine.writer.unsure(lease.run_id)
    if claim is None:
        return

    def known(_: object) -> None:
        lease.unsure = None
        if not claim.stood:
            lease.stop(LeaseLost())

    lease.unsure = claim.done
    claim.done.add_done_callback(known)


async def _until_it_ends(
    engine: Engine, kind: Kind, claimed: Mapping[str, Any], lease: Lease, seen: Seen | None
) -> Report:
    """Execute, and execute again from the journal while parking is refused: an answer came that was not seen yet."""
    resolutions = claimed["resolutions"]
    while True:
        began = time.monotonic()
        steps, waits = await _journal(engine, claimed, lease, resolutions, seen)
        ending = await _execute(engine, kind, claimed, steps, waits)
        if not (isinstance(ending, Stopped) and isinstance(ending.by, Parked) and claimed.get("keeps_request", True)):
            return _told(await settle(engine, claimed, lease, ending), claimed, steps)
        report = await park(engine, claimed, lease, waits)
        if report is not None:
            return _told(report, claimed, steps)
        held = await _held(engine, lease)
        if not held:
            return _told(Report(lease.run_id, Outcome.LEASE_LOST, claimed["kind"]), claimed, steps)
        if held[0]["cancel_requested"]:
            return _told(await settle(engine, claimed, lease, Stopped(Cancelled())), claimed, steps)
        lease.go_on()
        # While the steps of a large fan end one after the other, half the time is enough for looking at what has ended.
        await asyncio.sleep(min(time.monotonic() - began, LONGEST_PAUSE))
        resolutions = (await _held(engine, lease) or held)[0]["resolutions"]


async def _held(engine: Engine, lease: Lease) -> list[dict[str, Any]]:
    return await engine.writer.write(Write(HELD, {"run_id": lease.run_id, "epoch": lease.epoch}))


async def _claim(engine: Engine, run_id: UUID, owner: str, answered: Callable[[], object]) -> Mapping[str, Any] | None:
    token = engine.token()
    params = engine.registry.of_claims() | {
        "run_id": run_id,
        "namespace": engine.settings.namespace,
        "lease": engine.settings.lease_seconds,
        "by": owner,
        "data": json.dumps({"claim": token}),
    }
    write = Write(claims.CLAIM_RUN, params, landed=CLAIM_LANDED, landed_params={"claim": token})
    rows = await engine.writer.claim(write, answered=answered)
    return rows[0] if rows else None


def _unclaimed(report: Report) -> Report:
    level = logging.WARNING if report.outcome == "unknown" else logging.INFO
    log.log(level, "a wake for run %s changed nothing: it is %s", report.run_id, report.outcome)
    return report


async def _why_not(engine: Engine, run_id: UUID) -> Report:
    rows = await engine.writer.write(Write(UNCLAIMED, {"run_id": run_id}))
    if not rows or rows[0]["namespace"] != engine.settings.namespace:
        return Report(run_id, "unknown")
    row = rows[0]
    if row["status"] == Status.WAITING and float(row["early"] or 1) <= 0:
        # A timer of this run is due, and its process kept the time: no need to wait for the sweep.
        await asyncio.to_thread(engine.end_due_waits, run_id)
        return Report(run_id, "due", row["kind"])
    if row["status"] == Status.WAITING and not engine.keeps_time_of(run_id):
        # Whoever kept the time of this run drains, and says so with a wake.
        wake = Wake(run_id, row["queue"], row["kind"], row["priority"], cause="timer")
        engine.wake_later(wake, float(row["early"] or math.inf))
    if row["status"] != Status.QUEUED:
        return Report(run_id, "busy" if row["status"] == Status.RUNNING else row["status"], row["kind"])
    early = float(row["early"])
    if early > 0:
        engine.publisher.soon(Wake(run_id, row["queue"], row["kind"], row["priority"], delay=early, cause="early"))
        return Report(run_id, "early", row["kind"], early=early)
    if engine.registry.get(row["kind"]) is not None:
        return Report(run_id, "busy", row["kind"])
    engine.handing_on.hand_on(Wake(run_id, row["queue"], row["kind"], row["priority"], cause="hand on"))
    return Report(run_id, "elsewhere", row["kind"])


async def _journal(
    engine: Engine, claimed: Mapping[str, Any], lease: Lease, resolutions: int, seen: Seen | None
) -> tuple[Steps, Waits]:
    """What earlier segments left. A run's first segment finds nothing, and does not ask."""
    earlier = lease.epoch > 1 or resolutions > claimed["resolutions"]
    steps = Steps(
        writer=engine.writer,
        lease=lease,
        recorded={},
        result_limit=engine.settings.max_result_bytes,
        default_lease=engine.settings.lease_seconds,
        database=engine.database,
        threads=engine.threads,
        spending=Spending.of(claimed),
        namespace=engine.settings.namespace,
        owner=claimed["owner"],
        keep_arguments=engine.settings.record_arguments,
        seen=seen,
    )
    waits = Waits(
        steps, None if earlier else {}, resolutions, engine.publisher.soon, engine.settings, engine.registry,
        claimed["kind"],
    )  # fmt: skip
    if earlier:
        await _read(steps, waits)
    return steps, waits


async def _read(steps: Steps, waits: Waits) -> None:
    replayed = steps.writer.write(Write(REPLAY, {"run_id": steps.lease.run_id}))
    if waits.resolutions:
        rows, _ = await asyncio.gather(replayed, waits.load())
    else:
        # Nothing was resolved yet: the waits are read when the body asks for one.
        rows = await replayed
    steps.recorded.update({row["key"]: row for row in rows})


async def _execute(engine: Engine, kind: Kind, claimed: Mapping[str, Any], steps: Steps, waits: Waits) -> Ending:
    """Run the body until it ends or the lease says stop. Writes in flight are waited for, unless it is lost."""
    if claimed["cancel_requested_at"] is not None:
        return Stopped(Cancelled())
    if claimed["deadline_passed"]:
        return Stopped(LimitReached())
    if engine.draining:
        # Nothing has begun that would have to reach its next step.
        return Stopped(HandedBack())
    task = asyncio.ensure_future(ending_of_body(engine, kind, claimed, steps, waits))
    loop = asyncio.get_running_loop()
    before = engine.executing.get(steps.lease.run_id)
    if before is not None:
        before.ended.set()
    engine.executing[steps.lease.run_id] = Executing(steps.lease, task, steps.let_go)

    def stop(ending: StopSegment) -> None:
        loop.call_soon_threadsafe(_interrupt, engine, steps, task, ending)

    steps.lease.when_stopped(stop)
    if engine.draining:
        steps.lease.stop(HandedBack())
    try:
        ending = await task
    except asyncio.CancelledError as error:
        stopped = steps.lease.stopped
        # Nobody but the lease's end cancels a body; one that cancels itself has failed.
        ending = Broke(describe(error)) if stopped is None else Stopped(stopped)
    await steps.all_written()
    return _as_it_stands(ending, steps)


def _as_it_stands(ending: Ending, steps: Steps) -> Ending:
    """A lost lease and a write of which nobody knows the end outweigh what the body made of them."""
    if isinstance(steps.lease.stopped, LeaseLost):
        return Stopped(steps.lease.stopped)
    if isinstance(steps.broken, WriteUnknown):
        return Interrupted(steps.broken.failure)
    return ending


def _interrupt(engine: Engine, steps: Steps, task: asyncio.Future[Any], ending: StopSegment) -> None:
    match ending:
        case LeaseLost():
            engine.writer.abandon(steps.lease.run_id, LeaseLost())
            for write in list(steps.writes):
                write.cancel()
            task.cancel()
        case Cancelled() | LimitReached():
            task.cancel()
        case _:
            # A hand-back waits for the next step boundary: what is running now is not thrown away.
            pass


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


def _told(report: Report, claimed: Mapping[str, Any], steps: Steps) -> Report:
    told = replace(report, epoch=claimed["epoch"], replayed=steps.replayed, executed=steps.executed)
    if log.isEnabledFor(logging.INFO):
        log.info("run %s: %s", told.run_id, told.outcome, extra={"agentrun": told.as_json()})
    return told
