"""From journals to the demo's table: what each run did, and what it did not do again. Reads only."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime
from uuid import UUID

from agentrun import Client, Event, EventType, Run, Step
from examples.support_desk.agent import Decision
from examples.support_desk.mails import Mail
from examples.support_desk.report import Line, Said

Snapshot = Mapping[UUID, Mapping[str, datetime]]
"""Per run: its recorded steps, and when each was."""


def snapshot(client: Client, run_ids: Sequence[UUID]) -> Snapshot:
    """The journals at this moment."""
    return {run_id: _recorded(client.steps(run_id)) for run_id in run_ids}


def line(client: Client, mail: Mail, run_id: UUID, before: Snapshot, killed_at: datetime | None) -> Line:
    """One run's row of the table. `before` is what was recorded when the worker was killed."""
    run, steps = client.status(run_id), client.steps(run_id)
    events = client.events(run_id)
    claims = [event.at for event in events if event.type is EventType.CLAIMED]
    recorded = _recorded(steps)
    known = before.get(run_id, {})
    return Line(
        mail_id=mail.id,
        customer=mail.name,
        run_id=str(run_id),
        status=str(run.status),
        decision=Decision.model_validate(run.result) if run.result is not None else None,
        executed=len(recorded),
        replayed=sum(at < claims[-1] for at in recorded.values()) if len(claims) > 1 else 0,
        segments=len(claims),
        executed_twice=tuple(key for key, at in known.items() if recorded.get(key) != at) + _asked_twice(run, steps),
        taken_over_after_seconds=taken_over_after(events, killed_at) if killed_at is not None else None,
        said=tuple(_said(step) for step in steps if step.kind == "approval" and step.status == "completed"),
    )


def taken_over_after(events: Sequence[Event], killed_at: datetime) -> float | None:
    """Seconds from the kill to the claim of a run that lost its worker by it. Both instants are the database's.

    A run may have lost its lease before, on a machine that is too busy to renew it: that is no take-over of the kill.
    """
    lost = next((each.seq for each in events if each.type is EventType.REAPED and each.at >= killed_at), None)
    if lost is None:
        return None
    claimed = next((each.at for each in events if each.type is EventType.CLAIMED and each.seq > lost), None)
    return (claimed - killed_at).total_seconds() if claimed is not None else None


def _said(step: Step) -> Said:
    return Said(approved=step.result["approved"], by=step.result["by"])


def _recorded(steps: Sequence[Step]) -> dict[str, datetime]:
    return {step.key: step.finished_at for step in steps if step.finished_at is not None}


def _asked_twice(run: Run, steps: Sequence[Step]) -> tuple[str, ...]:
    """Every recorded model call is on the run's bill once: more on the bill than in the journal was asked again."""
    asked = sum(step.kind == "model" for step in steps)
    return ("a model request",) if run.usage.model_calls != asked else ()
