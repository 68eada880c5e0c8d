"""`agentrun replay`: a recorded journal against today's code. Executes nothing, and writes nothing at all."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from agentrun.cli import screen
from agentrun.cli.base import AsJson
from agentrun.cli.desk import client, database_of, found_settings, load_kinds, run_id_of
from agentrun.runtime.journals import Journal
from agentrun.runtime.replaying import replay
from agentrun.settings import Settings

group = typer.Typer()


@group.command("replay")
def replay_run(
    run: Annotated[str, typer.Argument(metavar="RUN|FILE", help="A run's id, or a file with an exported journal.")],
    journal: Annotated[
        bool, typer.Option("--journal", help="Replay nothing: print the run's journal, for a file. It holds payloads.")
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Whether today's code takes a recorded run's way; exit 1 where it parts from it. Executes and writes nothing."""
    file = Path(run)
    settings = Settings() if file.is_file() else found_settings()
    found = Journal.parsed(file.read_text()) if file.is_file() else _stored(settings, run)
    if journal:
        typer.echo(found.as_json())
        return
    load_kinds(settings)
    outcome = replay(found, settings=settings)
    if as_json:
        screen.show_json(outcome.as_json())
    else:
        screen.show(str(outcome))
    if not outcome.same:
        raise typer.Exit(1)


def _stored(settings: Settings, run: str) -> Journal:
    run_id = run_id_of(settings, run)
    with client(settings) as reader:
        reader.status(run_id)
    with database_of(settings) as database:
        return Journal.stored(database, run_id)
