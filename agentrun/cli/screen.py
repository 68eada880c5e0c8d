"""What people and programs see: tables and lines on stdout, remarks and refusals on stderr, JSON where it is asked for.

Owns form only. Whatever comes out of a run is cleaned of control characters before a terminal gets it.
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
import os
import sys
from collections.abc import Iterable, Sequence
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any, TextIO

from rich.console import Console, RenderableType
from rich.table import Table
from rich.text import Text

WIDE = 240
"""Columns of what is piped into a file or program: nothing is cut there."""

SHOWN_AT_FIRST, SHOWN_AT_LAST = 20, 80

_STYLES = {
    "queued": "cyan",
    "running": "blue",
    "waiting": "yellow",
    "completed": "green",
    "failed": "red",
    "cancelled": "magenta",
    "error": "red",
    "warning": "yellow",
    "notice": "cyan",
    "alive": "green",
    "draining": "yellow",
    "late": "yellow",
    "gone": "red",
    "ok": "green",
}


def show(*things: RenderableType) -> None:
    """Print on stdout."""
    console = _console(sys.stdout)
    for thing in things:
        console.print(thing, soft_wrap=isinstance(thing, (str, Text)))


def remark(message: str) -> None:
    """Print beside the result, on stderr."""
    _beside(Text(clean(message), style="dim"))


def refuse(message: str) -> None:
    """Say on stderr why something was not done, as one paragraph."""
    said = Text("agentrun: ", style="bold red") + Text(clean(" ".join(message.split())))
    _beside(said)


def show_json(value: Any) -> None:
    """One line of JSON on stdout, in ASCII."""
    print(json.dumps(value, default=_as_json), flush=True)


def hold_stdout() -> None:
    """Where stdout is closed, as by `>&-`, whoever prints gets an error, and who has nothing to print needs none."""
    if sys.stdout is None:
        # For reading, so that writing fails; and no socket gets the number of stdout, for others to print into.
        sys.stdout = open(os.open(os.devnull, os.O_RDONLY), "w")  # noqa: SIM115, PTH123 - until the end of the process


def forget_stdout() -> None:
    """Whatever it did not take is not tried again at the end of the process."""
    sys.stdout = Path(os.devnull).open("w")  # noqa: SIM115 - until the end of the process


def pretty(value: Any) -> Text:
    """A JSON value for people."""
    return Text(clean(json.dumps(value, indent=2, ensure_ascii=False, default=_as_json)))


def status(word: str) -> Text:
    """A status in its colour."""
    return Text(word, style=_STYLES.get(word, ""))


def table(*columns: str, title: str | None = None, rows: Iterable[Sequence[Any]]) -> Table:
    """A table without frills. The first column is never broken; None is left blank."""
    made = Table(box=None, pad_edge=False, title=title, title_justify="left", title_style="bold", header_style="dim")
    for index, name in enumerate(columns):
        made.add_column(name, no_wrap=index == 0, overflow="fold")
    for row in rows:
        made.add_row(*(cell(value) for value in row))
    return made


def shortened(rows: list[tuple[Any, ...]]) -> list[tuple[Any, ...]]:
    """Rows of a long table without its middle, and how many that were."""
    left_out = len(rows) - SHOWN_AT_FIRST - SHOWN_AT_LAST
    if left_out <= 0:
        return rows
    gap = (f"… {left_out:,} more, see --json", *[None] * (len(rows[0]) - 1))
    return [*rows[:SHOWN_AT_FIRST], gap, *rows[-SHOWN_AT_LAST:]]


def facts(pairs: Iterable[tuple[str, Any]]) -> Table:
    """Names and values, line by line; what is None or empty is left out."""
    grid = Table.grid(padding=(0, 2))
    grid.add_column(style="dim", no_wrap=True)
    grid.add_column(overflow="fold")
    for name, value in pairs:
        if value is not None and value != "" and value != ():
            grid.add_row(name, cell(value))
    return grid


def cell(value: Any) -> RenderableType:
    """A value as a cell of a table."""
    match value:
        case None:
            return ""
        case Text() | Table():
            return value
        case datetime():
            return instant(value)
        case bool():
            return "yes" if value else "no"
        case list() | tuple():
            return clean(", ".join(str(each) for each in value))  # pyright: ignore[reportUnknownVariableType, reportUnknownArgumentType]
        case _:
            return Text(clean(str(value)))


def instant(at: datetime) -> str:
    """A time to the second, in UTC."""
    return at.strftime("%Y-%m-%d %H:%M:%S")


def span(duration: timedelta | float) -> str:
    """A duration in its two largest units: `1 h 5 min`."""
    seconds = duration.total_seconds() if isinstance(duration, timedelta) else duration
    if 0 < seconds < 0.001:
        return "< 1 ms"
    if seconds < 10:
        return f"{max(seconds, 0):.3g} s"
    left, parts = round(seconds), list[str]()
    for unit, size in (("d", 86_400), ("h", 3_600), ("min", 60), ("s", 1)):
        count, left = divmod(left, size)
        if count:
            parts.append(f"{count} {unit}")
    return " ".join(parts[:2])


def clean(text: str) -> str:
    """`text` without what a terminal would obey: only line breaks and tabs are left of the control characters."""
    return "".join(each if each.isprintable() or each in "\n\t" else "\N{REPLACEMENT CHARACTER}" for each in text)


def _beside(said: Text) -> None:
    # Without a stderr that takes it, there is nobody to tell.
    with contextlib.suppress(OSError):
        if sys.stderr is not None:
            _console(sys.stderr).print(said, soft_wrap=True)


def _console(stream: TextIO) -> Console:
    # Made anew each time: what stdout is may change (tests, redirection).
    return Console(file=stream, width=None if stream.isatty() else WIDE, highlight=False, markup=False, emoji=False)


def _as_json(value: Any) -> Any:
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {field.name: getattr(value, field.name) for field in dataclasses.fields(value)}
    return value.isoformat() if isinstance(value, datetime) else str(value)
