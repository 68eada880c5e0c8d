"""Remote and external steps of one run on its screen."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from datetime import datetime
from typing import Any

from rich.console import RenderableType
from rich.text import Text

from agentrun.cli.screen import shortened, span, status, table
from agentrun.core.records import Step


def done_elsewhere(steps: Sequence[Step], now: datetime) -> Iterator[RenderableType]:
    """Remote and external steps: where they are, with whom, and when they were last heard of."""
    rows = [_remote_row(step, now) for step in steps if step.kind in ("remote", "external")]
    if rows:
        yield Text()
        yield table(
            "key", "step", "queue", "status", "offered", "taken by", "taken", "last beat", "progress", "try",
            "re-dispatched", title="Done elsewhere", rows=shortened(rows),
        )  # fmt: skip


def _remote_row(step: Step, now: datetime) -> tuple[Any, ...]:
    taken = step.status != "offered" and step.started_at is not None
    progress = json.dumps(step.progress, ensure_ascii=False)[:80] if step.progress is not None else None
    where = step.queue or "(no queue: a program elsewhere takes it)"
    said = (step.key, step.name, where, status(step.status), _since(step.offered_at, now))
    times = (step.by, _since(step.started_at, now), _since(step.heartbeat_at, now)) if taken else (None, None, None)
    return *said, *times, progress, step.attempt, step.redispatch_count or None


def _since(at: datetime | None, now: datetime) -> str | None:
    if at is None:
        return None
    return f"{span(now - at)} ago" if at <= now else f"in {span(at - now)}"
