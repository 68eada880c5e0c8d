"""`agentrun workers`: who is alive, what each holds, and since when. Changes nothing."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import typer

from agentrun.cli import screen
from agentrun.cli.base import AllNamespaces, AsJson
from agentrun.cli.desk import database_of, found_settings
from agentrun.core.codec import decode
from agentrun.runtime.doctor import Row, is_late
from agentrun.settings import Settings
from agentrun.store import roster
from agentrun.store.watching import OWN_APP

group = typer.Typer()


@group.command("workers")
def workers(all_namespaces: AllNamespaces = False, as_json: AsJson = False) -> None:
    """Processes that execute runs: queues, kinds, what each holds and since when. Not seen for three beats: `late`;
    for a minute: `gone`."""
    settings = found_settings()
    scope = {"namespace": None if all_namespaces else settings.namespace}
    with database_of(settings) as database:
        seen, held = database.rows(roster.PROCESSES, scope), database.rows(roster.HOLDINGS, scope)
    told = [_told({**row, "about": decode(row["about"]) or {}}, held, settings) for row in seen]
    if as_json:
        screen.show_json({"workers": told})
    elif told:
        columns = ("worker", "", "seen", "up", "version", "queues", "kinds", "holds")
        names = ("namespace", *columns) if all_namespaces else columns
        screen.show(screen.table(*names, rows=_rows(told, all_namespaces=all_namespaces)))
    else:
        screen.remark(f"no worker was seen within the last hour; start `celery -A {OWN_APP} worker -P threads -c 100`")


def _told(row: Row, held: Sequence[Row], settings: Settings) -> dict[str, Any]:
    """One process. Its segments are called after it: `worker:host:pid`, `interactive:host:pid`."""
    mine = row["name"].partition(":")[2]
    names = (
        "name",
        "namespace",
        "deployment",
        "version",
        "queues",
        "kinds",
        "clock_skew_seconds",
        "started_at",
        "seen_at",
    )
    return {name: row[name] for name in names} | {
        "state": _state(row, settings),
        "up_seconds": row["age"],
        "silent_seconds": row["silent"],
        "about": row["about"],
        "holds": [
            {name: each[name] for name in ("run_id", "step", "kind", "since")} | {"age_seconds": each["age"]}
            for each in held
            if row["alive"] and (each["by"] or "").partition(":")[2] == mine
        ],
    }


def _state(row: Row, settings: Settings) -> str:
    if not row["alive"]:
        return "gone"
    if is_late(row, settings):
        return "late"
    return "draining" if row["draining"] else "alive"


def _rows(told: Sequence[dict[str, Any]], *, all_namespaces: bool) -> Iterator[tuple[Any, ...]]:
    for each in told:
        yield (
            *((each["namespace"],) if all_namespaces else ()),
            each["name"],
            screen.status(each["state"]),
            f"{screen.span(each['silent_seconds'])} ago",
            screen.span(each["up_seconds"]),
            each["version"],
            each["queues"],
            each["kinds"],
            "\n".join(_holding(one) for one in each["holds"]) or "nothing",
        )


def _holding(held: dict[str, Any]) -> str:
    step = f" {held['step']}" if held["step"] else ""
    return f"{held['run_id']}{step} ({held['kind']}) for {screen.span(held['age_seconds'])}"
