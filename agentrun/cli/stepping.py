"""`agentrun redispatch` and `agentrun step list|take|complete|fail|heartbeat`: steps that are done elsewhere."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict
from typing import Annotated, Any

import typer
from rich.text import Text

from agentrun.cli import screen
from agentrun.cli.base import AsJson, By, RunId
from agentrun.cli.desk import client, found_settings, run_id_of, somebody
from agentrun.cli.words import json_value
from agentrun.core.counting import counted

group = typer.Typer()
steps = typer.Typer(no_args_is_help=True, help="Steps done elsewhere: list, take, complete, fail, heartbeat.")
group.add_typer(steps, name="step")

Token = Annotated[
    str,
    typer.Argument(metavar="TOKEN", envvar="AGENTRUN_STEP_TOKEN", help="What `step take` gave; or in this variable."),
]


@group.command("redispatch")
def redispatch(run: RunId, by: By = None, as_json: AsJson = False) -> None:
    """Send every pending remote step of a run again, now. Safe on a healthy run; a final one is refused."""
    settings = found_settings()
    run_id = run_id_of(settings, run)
    with client(settings) as operator:
        did = operator.redispatch(run_id, by=somebody(by))
    if as_json:
        screen.show_json(asdict(did))
        return
    screen.show(Text(f"{counted(did.sent, 'step')} of run {run_id} sent again, {len(did.left)} left"))
    if did.left:
        screen.show(screen.table("step", "left, because", rows=did.left.items()))


@steps.command("list")
def list_steps(
    name: Annotated[str | None, typer.Option("--name", help="Only steps of this name.")] = None,
    run: Annotated[str | None, typer.Option("--run", metavar="RUN", help="Only this run's.")] = None,
    taken: Annotated[bool, typer.Option("--taken", help="Those in progress too.")] = False,
    limit: Annotated[int, typer.Option("--limit", min=1, max=1000)] = 100,
    payloads: Annotated[bool, typer.Option("--payloads", help="Show inputs too; they may be private.")] = False,
    as_json: AsJson = False,
) -> None:
    """External steps on offer, oldest first."""
    settings = found_settings()
    run_id = run_id_of(settings, run) if run is not None else None
    with client(settings) as reader:
        rows = reader.external_steps(name=name, run_id=run_id, taken=taken, limit=limit)
    if as_json:
        screen.show_json([_as_json(row, payloads=payloads) for row in rows])
        return
    if not rows:
        screen.remark("no external step is on offer")
        return
    columns = ("run", "key", "step", "effect", "status", "try", "silent for", "taken by", "progress")
    screen.show(screen.table(*columns, rows=[_row(row, payloads=payloads) for row in rows]))


@steps.command("take")
def take(
    run: RunId,
    key: Annotated[str | None, typer.Argument(metavar="KEY", help="Where the run offers several.")] = None,
    by: By = None,
    as_json: AsJson = False,
) -> None:
    """Take a step that is on offer: its input, and a token for this one take."""
    settings = found_settings()
    run_id = run_id_of(settings, run)
    with client(settings) as program:
        taken = program.take_step(run_id, key, by=somebody(by))
    if as_json:
        screen.show_json(taken)
        return
    names = ("run_id", "key", "name", "effect", "attempt", "idempotency_key", "token")
    screen.show(screen.facts([(name.replace("_", " "), getattr(taken, name)) for name in names]))
    screen.show(Text("input", style="dim"), screen.pretty(taken.input))


@steps.command("complete")
def complete(
    token: Token,
    result: Annotated[str, typer.Argument(metavar="JSON", help="The result, or - for stdin.")] = "null",
    as_json: AsJson = False,
) -> None:
    """Say what a step came to; its run goes on. The first result counts."""
    value = json_value(result)
    with client() as program:
        program.complete_step(token, value)
    _said("completed", as_json)


@steps.command("fail")
def fail(
    token: Token,
    message: Annotated[str, typer.Argument(metavar="MESSAGE", help="What went wrong.")],
    retryable: Annotated[bool, typer.Option("--retryable", help="Try again, if it has a try left.")] = False,
    retry_after: Annotated[float | None, typer.Option("--retry-after", min=0, help="Seconds until then.")] = None,
    not_applied: Annotated[bool, typer.Option("--not-applied", help="Of a write: nothing happened outside.")] = False,
    error_type: Annotated[str, typer.Option("--type", help="The kind of error.")] = "ExternalStepFailed",
    as_json: AsJson = False,
) -> None:
    """Say that a step failed. Of a non-idempotent write that may have happened, its run stops and asks."""
    with client() as program:
        became = program.fail_step(
            token, message, error_type=error_type, retryable=retryable, retry_after=retry_after, not_applied=not_applied
        )
    _said(became, as_json)


@steps.command("heartbeat")
def heartbeat(
    token: Token,
    progress: Annotated[str | None, typer.Argument(metavar="JSON", help="How far it is.")] = None,
    as_json: AsJson = False,
) -> None:
    """Say that somebody works on a step. Exit 1 where its run is over: stop then."""
    value = json_value(progress) if progress is not None else None
    with client() as program:
        goes_on = program.heartbeat_step(token, value)
    _said("go on" if goes_on else "stop: the run is over", as_json, go_on=goes_on)
    if not goes_on:
        raise typer.Exit(1)


def _said(outcome: str, as_json: bool, **more: Any) -> None:
    if as_json:
        screen.show_json({"outcome": outcome, **more})
    else:
        screen.show(Text(outcome))


def _row(row: Mapping[str, Any], *, payloads: bool) -> list[Any]:
    name = Text(screen.clean(row["name"]))
    if payloads:
        name.append("\n").append(screen.pretty(row["input"]))
    age = screen.span(float(row["silent_for"]))
    progress = screen.pretty(row["progress"]) if row["progress"] is not None else None
    cells = [row["run_id"], row["key"], name, row["effect"], screen.status(row["status"]), row["attempt"], age]
    return [*cells, row["by"] if row["status"] == "started" else None, progress]


def _as_json(row: Mapping[str, Any], *, payloads: bool) -> dict[str, Any]:
    numbers = {name: float(row[name]) if row[name] is not None else None for name in ("silent_for", "due_in")}
    return {name: value for name, value in row.items() if payloads or name != "input"} | numbers
