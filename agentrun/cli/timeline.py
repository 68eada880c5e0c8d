"""A run's time as a picture: what it did when, which steps took how long, and where all of it went."""

from __future__ import annotations

import math
import shutil
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from rich.console import RenderableType
from rich.text import Text

from agentrun.cli.screen import span, table
from agentrun.cli.story import outcome_line
from agentrun.core.records import Run
from agentrun.core.timeline import Doing, Lasting, Phase, Span, Timeline

BESIDE, NARROWEST, WIDEST = 60, 20, 80
"""Columns of what stands beside the bars, and of the bars at least and at most."""

_COLOURS = {
    Doing.QUEUED: "cyan",
    Doing.PAUSING: "magenta",
    Doing.EXECUTING: "blue",
    Doing.WAITING: "yellow",
    Doing.SILENT: "red",
    Doing.ENDED: "bright_black",
}
_OF_STEPS = {"completed": "green", "failed": "red"}


@dataclass(frozen=True, slots=True)
class _Row(Lasting):
    label: str
    began: datetime
    ended: datetime
    colour: str
    bar: str = "█"


def drawn(run: Run, line: Timeline, *, most: int) -> Iterator[RenderableType]:
    """The screen. Of phases and steps the `most` that took longest, in their order; the others together."""
    yield outcome_line(run)
    if not line.phases:
        return
    began, ended = line.phases[0].began, max([line.phases[-1].ended, *(each.ended for each in line.spans)])
    rows, width = _longest(list(_rows(line)), most), _width()
    yield Text()
    yield table(
        "what", _axis(width, (ended - began).total_seconds()), "took",
        rows=[(row.label, _bar(row, began, ended, width), span(row.seconds)) for row in rows],
    )  # fmt: skip
    yield Text()
    yield table("time", "in all", "share", title="Where it went", rows=_shares(line))
    if line.spans:
        yield Text()
        yield table("step", "kind", "times", "in all", "longest", title="In steps", rows=_by_step(line.spans)[:most])


def timeline_json(run: Run, line: Timeline) -> dict[str, Any]:
    """The same as JSON members; durations are seconds."""
    phases = [
        {"doing": each.doing, "began": each.began, "seconds": each.seconds, "epoch": each.epoch, "by": each.by,
         "waiting_on": each.waiting_on}
        for each in line.phases
    ]  # fmt: skip
    steps = [
        {"key": each.key, "name": each.name, "kind": each.kind, "status": each.status, "began": each.began,
         "seconds": each.seconds, "by": each.by}
        for each in line.spans
    ]  # fmt: skip
    return {
        "id": run.id,
        "kind": run.kind,
        "status": run.status,
        "spent": line.spent(),
        "phases": phases,
        "steps": steps,
    }


def _rows(line: Timeline) -> Iterator[_Row]:
    """Each phase, and under it the steps that began in it."""
    left = list(line.spans)
    for nth, phase in enumerate(line.phases):
        yield _Row(_label(phase), phase.began, phase.ended, _COLOURS[phase.doing])
        until = line.phases[nth + 1].began if nth + 1 < len(line.phases) else None
        while left and (until is None or left[0].began < until):
            step = left.pop(0)
            colour = _OF_STEPS.get(step.status, "bright_magenta")
            yield _Row(f"  {step.name} [{step.key}]", step.began, step.ended, colour, "▬")


def _label(phase: Phase) -> str:
    more = phase.waiting_on or phase.by
    return f"{phase.doing} {more}" if more else str(phase.doing)


def _longest(rows: Sequence[_Row], most: int) -> list[_Row]:
    kept = set(sorted(range(len(rows)), key=lambda nth: -rows[nth].seconds)[:most])
    shown, left_out = list[_Row](), list[_Row]()
    for nth, row in enumerate(rows):
        if nth not in kept:
            left_out.append(row)
            continue
        shown += _together(left_out)
        left_out = []
        shown.append(row)
    return shown + _together(left_out)


def _together(rows: Sequence[_Row]) -> list[_Row]:
    if not rows:
        return []
    ended = max(row.ended for row in rows)
    return [_Row(f"  … {len(rows):,} shorter", rows[0].began, ended, "bright_black", "·")]


def _width() -> int:
    return max(NARROWEST, min(WIDEST, shutil.get_terminal_size((BESIDE + WIDEST, 0)).columns - BESIDE))


def _axis(width: int, seconds: float) -> str:
    end = span(seconds)
    return f"0{end:>{width - 1}}"


def _bar(row: _Row, began: datetime, ended: datetime, width: int) -> Text:
    """At least one column wide: what took no time to speak of is seen, too."""
    whole = (ended - began).total_seconds() or 1.0
    first = min(width - 1, int(width * max(0.0, (row.began - began).total_seconds()) / whole))
    last = max(first + 1, min(width, math.ceil(width * (row.ended - began).total_seconds() / whole)))
    return Text(" " * first) + Text(row.bar * (last - first), style=row.colour)


def _shares(line: Timeline) -> list[tuple[Any, ...]]:
    spent = line.spent()
    whole = sum(spent.values()) or 1.0
    return [
        (Text(doing, style=_COLOURS[doing]), span(seconds), f"{100 * seconds / whole:.0f} %")
        for doing, seconds in spent.items()
    ]


def _by_step(spans: Sequence[Span]) -> list[tuple[Any, ...]]:
    took: dict[tuple[str, str], list[float]] = {}
    for each in spans:
        took.setdefault((each.name, each.kind), []).append(each.seconds)
    ordered = sorted(took.items(), key=lambda each: -sum(each[1]))
    return [(name, kind, len(all_), span(sum(all_)), span(max(all_))) for (name, kind), all_ in ordered]
