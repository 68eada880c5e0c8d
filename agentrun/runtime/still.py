"""The check of `agentrun doctor` for runs that stand still: what the pager pages for, one finding for each cause."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from agentrun.core.alarms import Shape
from agentrun.core.counting import counted, counted_is
from agentrun.core.words import StepKind, StepStatus
from agentrun.runtime.doctor import Facts, Finding, Row, Severity, place, span
from agentrun.runtime.pager import command

_STANDS = {
    Shape.SILENT_STEP: ("a remote or external step is pending, and nothing was heard of it",
                        "it was lost, or whoever does it is dead, or slow and does not beat"),
    Shape.NEVER_RESOLVED: ("it waits, and nothing will ever resolve what it waits for",
                           "what it waited for has ended or is gone"),
    Shape.NO_PROGRESS: ("it is running under a live lease, and no step ends",
                        "its body hangs, or one step takes very long"),
}  # fmt: skip


def stranded(facts: Facts) -> Iterator[Finding]:
    """E, G. That no worker would take a run, or a remote step, is found by itself."""
    for shape in _STANDS:
        rows = [row for row in facts.stranded if row["shape"] == shape and not _unheard(row)]
        external = [row for row in rows if row["step_kind"] == StepKind.EXTERNAL]
        for same in (external, [row for row in rows if row not in external]):
            if same:
                yield _found(facts, shape, same)


BLOCKED_SECONDS = 10.0


def blocked_loops(facts: Facts) -> Iterator[Finding]:
    """E. A body calls blocking code on the event loop: every run of its process stands, under a lease that lives."""
    for each in facts.alive:
        seconds = each["about"].get("blocked") or 0.0
        if seconds > BLOCKED_SECONDS and each not in facts.late:
            host, pid = place(each)
            yield Finding(
                "blocked_loop",
                Severity.ERROR,
                f"`{each['name']}` lives, and none of its runs goes on: its event loop has been blocked for "
                f"{span(seconds)}",
                "an `async def` body or step calls blocking code: make it a plain `def`, or call that code in a step "
                "of one",
                f"it holds {counted(each['holds'], 'run')}: `agentrun workers` has them, the guilty one among them",
                f"kill -KILL {pid}",
                f"a shell on {host}, and whatever starts the worker again; TERM would wait for the body",
            )


def _unheard(row: Row) -> bool:
    """Offered to workers of which none consumes the queue."""
    offered = row["step_status"] == StepStatus.OFFERED and row["step_kind"] == StepKind.REMOTE
    return row["shape"] == Shape.SILENT_STEP and offered and not row["step_consumed"]


def _found(facts: Facts, shape: Shape, rows: Sequence[Row]) -> Finding:
    symptom, cause = _STANDS[shape]
    return Finding(
        str(shape),
        Severity.WARNING,
        f"{counted_is(len(rows), 'run')} standing still for up to {span(rows[0]['age'])}: {symptom}",
        cause,
        f"run {rows[0]['run_id']} ({rows[0]['kind']}){_step(rows[0])}",
        command(shape, rows[0], app=facts.app),
        run_id=str(rows[0]["run_id"]),
    )


def _step(row: Row) -> str:
    if row["step_key"] is None:
        return ""
    beat = f", last beat {span(row['step_heartbeat_age'])} ago" if row["step_heartbeat_age"] is not None else ""
    again = f", re-dispatched {counted(row['step_redispatch_count'], 'time')}" if row["step_redispatch_count"] else ""
    return f", step `{row['step_name']}` {row['step_key']}, pending for {span(row['step_age'] or 0)}{beat}{again}"
