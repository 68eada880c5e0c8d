"""The table at the end and the results file. Ratios and medians are taken here; nothing is measured."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from bench.machine import summary
from bench.measure import FLOOR, OURS, Measurement, Peer, Row, Samples, median

RESULTS = Path(__file__).parent / "results"


def table(samples: Samples, measurements: Iterable[Measurement]) -> Table:
    """One line per row that was measured: medians, with the least and the largest of the rounds."""
    shown = Table(title="medians of the rounds (least - largest)", title_justify="left")
    for name in ("what", "floor", "peer", "agentrun", "ratio", "goal", "reached"):
        shown.add_column(name, justify="left" if name in ("what", "reached") else "right")
    for measurement in measurements:
        lines = [line for row in measurement.rows if (line := _line(samples, row))]
        for line in lines:
            shown.add_row(*line)
        if lines:
            shown.add_section()
    return shown


def save(
    samples: Samples,
    measurements: Sequence[Measurement],
    facts: dict[str, Any],
    notes: Mapping[str, Any],
    *,
    label: str = "",
) -> Path:
    """Write everything as JSON, by date and machine; a partial run under a name of its own."""
    found = {
        row.metric: {"what": row.what, "unit": row.unit, **_judged(samples, row)}
        for measurement in measurements
        for row in measurement.rows
        if samples.of(row.metric, OURS)
    }
    content = facts | {"results": found, "samples": samples.all, "notes": dict(notes)}
    RESULTS.mkdir(exist_ok=True)
    path = RESULTS / f"{datetime.now(UTC).date()}-{summary(facts)}{label}.json"
    path.write_text(json.dumps(content, indent=1, default=str) + "\n")
    return path


def show(samples: Samples, measurements: Sequence[Measurement]) -> None:
    """Print the table, as wide as the terminal, or wide enough for a file."""
    console = Console()
    (console if console.is_terminal else Console(width=170)).print(table(samples, measurements))


def _line(samples: Samples, row: Row) -> list[str] | None:
    ours, theirs = samples.of(row.metric, OURS), samples.of(row.metric, row.against)
    if not ours:
        return None
    judged = _judged(samples, row)
    reached = {True: "[green]yes[/]", False: "[red]no[/]", None: ""}[judged["reached"]]
    floor, peer = _beside(row, theirs)
    ratio = f"{judged['ratio']:.2f} x" if judged["ratio"] is not None else ""
    return [row.what, floor, peer, _spread(ours, row.unit), ratio, judged["goal"] or "", reached]


def _beside(row: Row, theirs: Sequence[float]) -> tuple[str, str]:
    """Under "floor" or under "peer"; with a name where it is not the usual one."""
    if not theirs:
        return "", ""
    spread = _spread(theirs, row.unit)
    if isinstance(row.against, Peer):
        return "", f"{row.against} {spread}"
    return spread if row.against == FLOOR else f"{row.against} {spread}", ""


def _judged(samples: Samples, row: Row) -> dict[str, Any]:
    ours, ratios = samples.of(row.metric, OURS), samples.ratios(row.metric, row.against)
    ratio = median(ratios) if ratios else None
    judged = ratio if row.goal and row.goal.ratio else median(ours)
    return {
        "agentrun": median(ours),
        "against": row.against,
        "ratio": ratio,
        "goal": str(row.goal) if row.goal else None,
        "reached": row.goal.reached(judged) if row.goal and judged is not None else None,
    }


def _spread(values: Sequence[float], unit: str) -> str:
    middle = f"{_figure(median(values))} {unit}".rstrip()
    if len(values) == 1 or min(values) == max(values):
        return middle
    return f"{middle} ({_figure(min(values))} - {_figure(max(values))})"


def _figure(value: float) -> str:
    if value == int(value) or abs(value) >= 100:
        return f"{value:,.0f}"
    return f"{value:.1f}" if abs(value) >= 10 else f"{value:.2f}"
