"""The command line `agentrun`: the same commands and reads as the client's, for people and shell scripts.

One small module per group of commands; here they become one. Nothing is decided here.
"""

from __future__ import annotations

import logging
from importlib.metadata import version
from typing import Annotated

import typer

from agentrun.cli import (
    answering,
    doctor,
    enqueue,
    metrics,
    purging,
    reading,
    replay,
    serving,
    steering,
    stepping,
    up,
    upkeep,
    workers,
)
from agentrun.cli.base import Commands
from agentrun.cli.screen import hold_stdout

app = typer.Typer(
    cls=Commands,
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
    help="Durable runs for LLM agents and long functions, on Celery, Redis and PostgreSQL.",
)
for part in (
    up, enqueue, reading, replay, answering, steering, stepping, serving, upkeep, purging, doctor, workers, metrics,
):  # fmt: skip
    app.add_typer(part.group)


def _version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"agentrun {version('agentrun')}")
        raise typer.Exit


@app.callback()
def _root(
    _: Annotated[bool, typer.Option("--version", callback=_version, is_eager=True, help="Show the version.")] = False,
) -> None:
    # What a pool tells while a server is away, the refusal says in one line.
    logging.getLogger("psycopg.pool").setLevel(logging.CRITICAL)


def main() -> None:
    """The entry point."""
    hold_stdout()
    app(prog_name="agentrun")
