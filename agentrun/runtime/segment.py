"""One segment of a run: claim, body, settle. The body's ending is a value, matched in one place."""

from __future__ import annotations

import asyncio
import logging
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any
from uuid import UUID

from agentrun.core.failures import describe
from agentrun.core.outcome import Cancelled, HandedBack, LeaseLost, LimitReached, Parked, StopSegment
from agentrun.core.words import Outcome, Segment
from agentrun.runtime.body import ending_of_body
from agentrun.runtime.claiming import claim, why_not
from agentrun.runtime.kinds import Kind
from agentrun.runtime.lease import Lease
from agentrun.runtime.observing import Seen
from agentrun.runtime.settling import Broke, Ending, Interrupted, Report, Stopped, park, settle
from agentrun.runtime.spending import Spending
from agentrun.runtime.steps import Steps
from agentrun.runtime.stepspec import WriteUnknown
from agentrun.runtime.waits import Waits
from agentrun.store.batches import Write
from agentrun.store.journal import REPLAY
from agentrun.store.reads import HELD

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
    row = await claim(engine, run_id, owner, claimed)
    if row is None:
        return _unclaimed(await why_not(engine, run_id))
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


def _unclaimed(report: Report) -> Report:
    level = logging.WARNING if report.outcome == "unknown" else logging.INFO
    log.log(level, "a wake for run %s changed nothing: it is %s", report.run_id, report.outcome)
    return report


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


def _told(report: Report, claimed: Mapping[str, Any], steps: Steps) -> Report:
    told = replace(report, epoch=claimed["epoch"], replayed=steps.replayed, executed=steps.executed)
    if log.isEnabledFor(logging.INFO):
        log.info("run %s: %s", told.run_id, told.outcome, extra={"agentrun": told.as_json()})
    return told
