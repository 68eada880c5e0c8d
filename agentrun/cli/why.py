"""Why a run stands where it stands, and the one command that moves it on. Pure: facts in, words out."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from shlex import quote
from typing import assert_never

from agentrun.cli.screen import instant, span
from agentrun.core.counting import counted
from agentrun.core.failures import unfit_step_in
from agentrun.core.records import Run, Step
from agentrun.core.words import Reason, Status
from agentrun.runtime.doctor import Finding
from agentrun.runtime.healing import code_changed, of_failed
from agentrun.store.watching import Moment


@dataclass(frozen=True, slots=True)
class Standing:
    """Why the run does not move (None: it does), and the command that heals it (None: nothing is to be done)."""

    why: str | None
    heal: str | None = None


def not_taken(run: Run, found: Finding, moment: Moment) -> Standing:
    """It waits for a worker, as doctor has found: there is none, or it knows or takes nothing."""
    due = run.status is Status.QUEUED and run.due_at is not None
    since = f"it has been due for {span(moment.now - run.due_at)}" if due and run.due_at else "its step is on offer"
    return Standing(f"{since}, and {found.cause}; {found.evidence}", found.heal)


def _asked(run: Run, until: str) -> Standing:
    """It waits for somebody: who may answer it, with the first of what it waits for."""
    sort, _, name = (run.waiting_on or "").split(" + ")[0].partition(":")
    why = f"it waits for {run.waiting_on}{until}"
    match sort:
        case "approval":
            return Standing(f"{why}; `agentrun reject {run.id}` denies it", f"agentrun approve {run.id}")
        case "input":
            return Standing(why, f"agentrun input {run.id}")
        case "signal":
            return Standing(why, f"agentrun signal {run.id} {quote(name) if name else 'NAME'}")
        case _:
            return Standing(why)


def standing(
    run: Run,
    moment: Moment,
    *,
    sweep_seconds: float,
    steps: Sequence[Step] = (),
    said_applied: Collection[str] = (),
) -> Standing:
    """How the run stands at this moment; its steps say more of one that waits for remote ones.

    `said_applied` are the keys of the steps that an operator resolved as applied.
    """
    overdue = moment.sweep_age is None or moment.sweep_age > 3 * sweep_seconds
    match run.status:
        case Status.QUEUED:
            return _queued(run, moment, overdue=overdue)
        case Status.RUNNING:
            return _running(run, moment, overdue=overdue)
        case Status.WAITING if pending := [step for step in steps if step.status in _PENDING and step.offered_at]:
            return _elsewhere(run, pending, moment, overdue=overdue)
        case Status.WAITING:
            until = f", until {instant(run.due_at)} at the latest" if run.due_at else ""
            return _asked(run, until)
        case Status.FAILED:
            return _failed(run, said_applied)
        case Status.COMPLETED | Status.CANCELLED:
            return Standing(None)
        case _:
            assert_never(run.status)


def _queued(run: Run, moment: Moment, *, overdue: bool) -> Standing:
    if run.due_at is not None and run.due_at > moment.now:
        cause = f", after {counted(run.requeue_count, 'requeue')}" if run.requeue_count else ""
        return Standing(f"it is due in {span(run.due_at - moment.now)}{cause}")
    late = span(moment.now - run.due_at) if run.due_at else "a while"
    why = f"it has been due for {late}, and waits for a free worker that consumes queue `{run.queue}`"
    return Standing(f"{why}; and {_no_sweep(moment)}", "agentrun sweep") if overdue else Standing(why)


def _running(run: Run, moment: Moment, *, overdue: bool) -> Standing:
    if run.lease_expires_at is not None and run.lease_expires_at < moment.now:
        ago = span(moment.now - run.lease_expires_at)
        why = f"`{run.claimed_by}` stopped renewing its lease, which ran out {ago} ago"
        if overdue:
            return Standing(f"{why}; and {_no_sweep(moment)}", "agentrun sweep")
        return Standing(f"{why}; the next sweep puts it back to the queue")
    if run.cancel_requested_at is not None:
        return Standing("it was asked to end, and does so at its next step")
    return Standing(None)


_PENDING = ("offered", "started")


def _elsewhere(run: Run, pending: Sequence[Step], moment: Moment, *, overdue: bool) -> Standing:
    """What of its remote and external steps is on offer, in progress, or lost."""
    offered = [step for step in pending if step.status == "offered"]
    taken = [step for step in pending if step.status == "started"]
    lost = [step for step in taken if step.lease_expires_at is not None and step.lease_expires_at < moment.now]
    parts = [f"it waits for {run.waiting_on}"]
    for queue in sorted({step.queue or "" for step in offered}):
        those = [step for step in offered if (step.queue or "") == queue]
        since = span(moment.now - min(step.offered_at for step in those if step.offered_at))
        where = f"queue `{queue}`, for a worker that consumes it" if queue else "the listing, for a program elsewhere"
        parts.append(f"{counted(len(those), 'step')} on offer in {where}, for {since}")
    if len(taken) > len(lost):
        heard = [step.heartbeat_at or step.started_at for step in taken if step not in lost]
        quiet = span(moment.now - min(at for at in heard if at))
        parts.append(f"{counted(len(taken) - len(lost), 'step')} in progress, longest without a beat for {quiet}")
    if lost:
        parts.append(f"{counted(len(lost), 'step')} lost by a taker that died; the next sweep settles that")
    if overdue:
        return Standing(f"{'; '.join(parts)}; and {_no_sweep(moment)}", "agentrun sweep")
    if any(step.queue is None for step in offered):
        return Standing("; ".join(parts), f"agentrun step take {run.id}")
    return Standing("; ".join(parts), f"agentrun redispatch {run.id}" if lost else None)


def _failed(run: Run, said_applied: Collection[str]) -> Standing:
    if run.pending_effect is not None:
        return Standing(
            "a write was in flight when it stopped; find out, by its idempotency key, whether it happened, and say "
            "--applied with --result JSON, or --not-applied",
            of_failed(run.id, write_in_flight=True),
        )
    key = unfit_step_in(run.error)
    if key in said_applied:
        # Such a step has its result: what fails is to read it, and does so at every redrive.
        return Standing(
            f"step {key} was resolved as applied, with a result that does not fit its function; say what it returned",
            of_failed(run.id, unfit=key),
        )
    if run.reason is Reason.DEADLINE_EXCEEDED:
        # A redrive keeps the deadline, and ends there again.
        enqueue = f"agentrun enqueue {quote(run.kind)} - --deadline 1h"
        again = f"agentrun show {run.id} --payloads --json | jq .request | {enqueue}"
        return Standing("its time was over; enqueue it again with more time", again)
    if code_changed((run.error or {}).get("type")):
        why = "the body's code has changed under it; with code that takes the recorded way, redrive it"
        return Standing(f"{why}: `agentrun redrive {run.id}`", of_failed(run.id, changed=True))
    said = "it ran out of requeues" if run.reason is Reason.RETRIES_EXHAUSTED else f"it ended as {run.reason}"
    heal = of_failed(run.id)
    return Standing(f"{said}; once the cause is gone it can go on from its journal", heal)


def _no_sweep(moment: Moment) -> str:
    if moment.sweep_age is None:
        return f"no sweep has been seen; is `celery -A {moment.app} beat` running?"
    return f"the last sweep was {span(moment.sweep_age)} ago; is `celery -A {moment.app} beat` running?"
