"""What runs ask people, on the screen and as JSON: the question always, its payload only where asked for."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from shlex import quote
from typing import Any

from rich.console import RenderableType
from rich.text import Text

from agentrun.cli import screen
from agentrun.runtime.filters import ASKED_OF_PEOPLE

Row = Mapping[str, Any]


def inbox_row(row: Row, *, payloads: bool) -> list[Any]:
    """One wait as a line of the inbox."""
    age = screen.span(float(row["age"]))
    return [age, row["run_id"], row["run_kind"], _question(row, payloads=payloads), _of(row), _answer_with(row)]


def inbox_json(row: Row, *, payloads: bool) -> dict[str, Any]:
    """One wait as members of the inbox."""
    names = ("namespace", "run_id", "run_kind", "owner", "kind", "name", "role", "created_at", "due_at")
    return {name: row[name] for name in names} | _key_and_asks(row, payloads=payloads)


def asked(rows: Sequence[Row], *, payloads: bool) -> Iterator[RenderableType]:
    """What one run asks, for its screen."""
    of_people = [row for row in rows if row["kind"] in ASKED_OF_PEOPLE]
    if not of_people:
        return
    yield Text()
    lines = [(row["step_key"], row["kind"], _question(row, payloads=payloads), _of(row)) for row in of_people]
    yield screen.table("key", "waits for", "asks", "of", title="Asked", rows=lines)
    if not payloads and any(row["asks"].get("payload") is not None for row in of_people):
        yield Text(f"what it asks about is shown by `agentrun show {of_people[0]['run_id']} --payloads`", style="dim")


def asked_json(rows: Sequence[Row], *, payloads: bool) -> list[dict[str, Any]]:
    """What one run asks, as JSON members."""
    names = ("kind", "name", "role", "created_at", "due_at")
    return [
        {name: row[name] for name in names} | _key_and_asks(row, payloads=payloads)
        for row in rows
        if row["kind"] in ASKED_OF_PEOPLE
    ]


def _key_and_asks(row: Row, *, payloads: bool) -> dict[str, Any]:
    said = {"key": row["step_key"], "digest": row["asks_digest"]}
    return said | ({"asks": row["asks"]} if payloads else {})


def _question(row: Row, *, payloads: bool) -> Text:
    asks = Text(screen.clean(str(row["name"] or "")))
    if payloads and row["asks"].get("payload") is not None:
        asks.append("\n").append(screen.pretty(row["asks"]["payload"]))
    return asks


def _of(row: Row) -> str:
    return row["role"] or "anybody"


def _answer_with(row: Row) -> str:
    """Commands that can be pasted as they stand, one a line."""
    run_id, step = row["run_id"], f"--key {quote(row['step_key'])}"
    match row["kind"]:
        case "approval":
            return f"agentrun approve {run_id} {step}\nagentrun reject {run_id} {step}"
        case "input":
            return f"agentrun input {run_id} {step}"
        case _ if row["webhook"]:
            return "a call with its token"
        case _:
            return f"agentrun signal {run_id} {quote(row['name'])}"
