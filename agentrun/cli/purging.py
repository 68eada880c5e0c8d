"""`agentrun purge`: removes the history of runs that ended long ago. What may go is decided below, by one statement."""

from __future__ import annotations

import time
from dataclasses import asdict
from datetime import timedelta
from typing import Annotated

import typer

from agentrun.cli import screen
from agentrun.cli.base import AsJson
from agentrun.cli.desk import database_of, found_settings
from agentrun.cli.words import duration
from agentrun.core.counting import counted
from agentrun.core.records import Purged
from agentrun.core.words import FINAL, Status
from agentrun.runtime.purging import BATCH, LARGEST_BATCH, purge

group = typer.Typer()

EVERY_SECONDS = 5.0
"""How often somebody who watches hears how far it is."""


@group.command("purge")
def purge_command(
    older_than: Annotated[
        timedelta, typer.Option("--older-than", metavar="DURATION", parser=duration, help="How long ago they ended.")
    ],
    status: Annotated[str, typer.Option("--status", metavar="STATUS,…", help="Only runs that ended so.")] = ",".join(
        sorted(FINAL)
    ),
    kind: Annotated[str | None, typer.Option("--kind", help="Only this kind.")] = None,
    dead: Annotated[
        bool, typer.Option("--dead", help="Dead letters and interrupted writes too: nobody can redrive them then.")
    ] = False,
    batch: Annotated[
        int, typer.Option("--batch", min=1, max=LARGEST_BATCH, help="How many runs one transaction looks at.")
    ] = BATCH,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only count them.")] = False,
    as_json: AsJson = False,
) -> None:
    """Remove runs that ended long ago, with their steps and events, in small batches; it may be stopped anywhere."""
    wanted, settings = _statuses(status), found_settings()
    with database_of(settings) as database:
        gone = purge(
            database, settings, older_than=older_than, status=wanted, kind=kind, dead=dead, dry_run=dry_run,
            batch=batch, told=Progress(dry_run=dry_run),
        )  # fmt: skip
    if as_json:
        screen.show_json({"dry_run": dry_run} | ({"runs": gone.runs} if dry_run else asdict(gone)))
    else:
        screen.show(_said(gone, dry_run=dry_run))


class Progress:
    """Says on stderr, every few seconds, what went so far."""

    def __init__(self, *, dry_run: bool) -> None:
        self._dry_run, self._last = dry_run, time.monotonic()

    def __call__(self, gone: Purged) -> None:
        """After each batch."""
        if time.monotonic() - self._last >= EVERY_SECONDS:
            self._last = time.monotonic()
            screen.remark(f"{_said(gone, dry_run=self._dry_run)} so far")


def _statuses(text: str) -> list[Status]:
    names = [name.strip() for name in text.split(",") if name.strip()]
    known = {str(each): each for each in FINAL}
    wrong = [name for name in names if name not in known]
    if wrong or not names:
        said = f"not {', '.join(wrong)}" if wrong else "at least one"
        raise typer.BadParameter(f"only runs that have ended are removed: {', '.join(sorted(known))}; {said}")
    return [known[name] for name in names]


def _said(gone: Purged, *, dry_run: bool) -> str:
    if dry_run:
        return f"{counted(gone.runs, 'run')} would be removed"
    return (
        f"{counted(gone.runs, 'run')} removed, with {counted(gone.steps, 'step')} and {counted(gone.events, 'event')}"
    )
