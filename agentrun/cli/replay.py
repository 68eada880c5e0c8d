"""`agentrun replay`: a recorded journal against today's code. Executes nothing, and writes nothing at all."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from agentrun.cli import screen
from agentrun.cli.base import AsJson
from agentrun.cli.desk import client, database_of, found_settings, load_kinds, run_id_of
from agentrun.core.errors import InvalidRequest
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
    of_file = _of_file(run)
    settings = Settings() if of_file is not None else found_settings()
    found = of_file or _stored(settings, run)
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


def _of_file(name: str) -> Journal | None:
    """The journal in this file; None where that is rather the name of a run.

    Raises InvalidRequest where it looks like a file and is none, or none that can be read.
    """
    file = Path(name)
    if file.is_file():
        try:
            return Journal.parsed(file.read_text())
        except (OSError, UnicodeDecodeError) as error:
            raise InvalidRequest(f"the file `{name}` cannot be read as a journal: {error}") from None
    if file.suffix or len(file.parts) > 1 or file.is_dir():
        raise InvalidRequest(
            f"there is no file `{name}` with a journal, and a run has no such id; `agentrun replay RUN --journal` "
            "prints one for a file"
        )
    return None


def _stored(settings: Settings, run: str) -> Journal:
    run_id = run_id_of(settings, run)
    with client(settings) as reader:
        reader.status(run_id)
    with database_of(settings) as database:
        return Journal.stored(database, run_id)
