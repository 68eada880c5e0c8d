"""`agentrun cancel|redrive`: what an operator may ask of a run. Each is one guarded move; the row decides."""

from __future__ import annotations

from collections.abc import Callable
from uuid import UUID

import typer

from agentrun.cli import screen
from agentrun.cli.base import AsJson, By, RunId
from agentrun.cli.desk import client, found_settings, run_id_of, somebody
from agentrun.cli.story import outcome_line, run_json
from agentrun.client import Client
from agentrun.core.records import Run

group = typer.Typer()


@group.command("cancel")
def cancel(run: RunId, by: By = None, as_json: AsJson = False) -> None:
    """End a queued or waiting run now; ask a running one to end at its next step."""
    _asked(run, as_json, lambda operator, run_id: operator.cancel(run_id, by=somebody(by)))


@group.command("redrive")
def redrive(run: RunId, by: By = None, as_json: AsJson = False) -> None:
    """Put a failed run back to the queue: its journal is kept, its budget starts afresh."""
    _asked(run, as_json, lambda operator, run_id: operator.redrive(run_id, by=somebody(by)))


def _asked(run: str, as_json: bool, verb: Callable[[Client, UUID], Run]) -> None:
    """Do it, and show the run as it is then."""
    settings = found_settings()
    run_id = run_id_of(settings, run)
    with client(settings) as operator:
        moved = verb(operator, run_id)
    if as_json:
        screen.show_json(run_json(moved, payloads=False))
        return
    line = outcome_line(moved)
    screen.show(line.append(", and was asked to end") if moved.cancel_requested_at and not moved.status.final else line)
