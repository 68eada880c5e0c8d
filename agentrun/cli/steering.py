"""`agentrun cancel|redrive|resolve|budget`: what an operator may ask. Each is one guarded move; the row decides."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from decimal import Decimal
from typing import Annotated
from uuid import UUID

import typer
from rich.text import Text

from agentrun.cli import screen
from agentrun.cli.base import AsJson, By, RunId
from agentrun.cli.desk import client, found_settings, run_id_of, somebody
from agentrun.cli.story import outcome_line, run_json
from agentrun.cli.words import json_value
from agentrun.client import Client
from agentrun.core.counting import counted
from agentrun.core.errors import NotAllowed
from agentrun.core.records import Run

group = typer.Typer()


@group.command("cancel")
def cancel(run: RunId, by: By = None, as_json: AsJson = False) -> None:
    """End a queued or waiting run now; ask a running one to end at its next step."""
    _asked(run, as_json, lambda operator, run_id: operator.cancel(run_id, by=somebody(by)))


@group.command("redrive")
def redrive(
    run: Annotated[str | None, typer.Argument(metavar="RUN", help="The run; left out with --all.")] = None,
    every: Annotated[
        bool, typer.Option("--all", help="All failed runs that the filters choose, oldest first.")
    ] = False,
    kind: Annotated[str | None, typer.Option("--kind", help="With --all: only this kind.")] = None,
    reason: Annotated[str | None, typer.Option("--reason", help="With --all: only runs that ended so.")] = None,
    limit: Annotated[int, typer.Option("--limit", min=1, max=10_000, help="With --all: at most so many.")] = 1000,
    yes: Annotated[bool, typer.Option("--yes", help="With --all: do it; without, they are only counted.")] = False,
    by: By = None,
    as_json: AsJson = False,
) -> None:
    """Put failed runs back to the queue: their journals are kept, their budgets start afresh."""
    if every == (run is not None):
        raise typer.BadParameter("give a RUN, or --all with filters")
    if run is not None and (kind is not None or reason is not None or yes):
        raise typer.BadParameter("--kind, --reason and --yes go with --all; a RUN is redriven whatever its kind")
    if run is not None:
        _asked(run, as_json, lambda operator, run_id: operator.redrive(run_id, by=somebody(by)))
        return
    with client() as operator:
        found = operator.redrivable(kind=kind, reason=reason, limit=limit)
        moved = [run_id for run_id in found if _redriven(operator, run_id, somebody(by))] if yes else []
    if as_json:
        screen.show_json({"found": found, "redriven": moved})
    elif yes:
        screen.show(f"{len(moved)} of {counted(len(found), 'failed run')} queued again")
    else:
        screen.show(f"{counted(len(found), 'failed run')} would be redriven; say --yes to do it")


@group.command("budget")
def budget(
    owner: Annotated[str | None, typer.Argument(metavar="OWNER", help="Whose; left out: everybody's.")] = None,
    period: Annotated[str, typer.Option("--period", help="day or month (UTC).")] = "day",
    max_tokens: Annotated[int | None, typer.Option("--max-tokens", min=0)] = None,
    max_cost: Annotated[float | None, typer.Option("--max-cost", min=0, help="US dollars.")] = None,
    lift: Annotated[bool, typer.Option("--lift", help="Take the owner's ceiling of that period away.")] = False,
    as_json: AsJson = False,
) -> None:
    """Show owners' budgets with what is spent of them, or set one."""
    ceiling = max_tokens is not None or max_cost is not None
    if lift and ceiling:
        raise typer.BadParameter("say a ceiling (--max-tokens, --max-cost), or --lift")
    if owner is None and (lift or ceiling):
        raise typer.BadParameter("say whose: an OWNER")
    with client() as operator:
        if owner is not None and (lift or ceiling):
            cost = Decimal(str(max_cost)) if max_cost is not None else None
            operator.set_budget(owner, period=period, max_tokens=max_tokens, max_cost=cost)  # pyright: ignore[reportArgumentType]
        rows = operator.budgets(owner)
    if as_json:
        screen.show_json(rows)
        return
    names = ("owner", "period", "tokens", "max_tokens", "cost", "max_cost")
    columns = ("owner", "period", "tokens spent", "of", "cost spent", "of")
    screen.show(screen.table(*columns, rows=[[row[name] for name in names] for row in rows]))


def _redriven(operator: Client, run_id: UUID, by: str) -> bool:
    try:
        operator.redrive(run_id, by=by)
    except NotAllowed:  # somebody was first
        return False
    return True


@group.command("resolve")
def resolve(
    run: RunId,
    applied: Annotated[bool, typer.Option("--applied", help="The interrupted write happened.")] = False,
    not_applied: Annotated[bool, typer.Option("--not-applied", help="It did not: it starts afresh.")] = False,
    result: Annotated[
        str | None,
        typer.Option(metavar="JSON", help="With --applied: what the write would have returned; null for nothing."),
    ] = None,
    key: Annotated[
        str | None, typer.Option(metavar="STEP", help="The write's step, where several are in flight.")
    ] = None,
    by: By = None,
    as_json: AsJson = False,
) -> None:
    """Say how an interrupted write ended, once you have found out; the run goes on from its journal."""
    # Not one option with two names: of both, the last would win, and a write be done twice.
    if applied and not_applied:
        raise typer.BadParameter("--applied or --not-applied: only one of them is true; nothing was recorded")
    if not (applied or not_applied) or (result is not None and not applied):
        raise typer.BadParameter(
            "say --applied with --result JSON (what the write would have returned, null for nothing), or "
            f"--not-applied; `agentrun show {run}` has the write and its idempotency key, by which to find out"
        )
    if applied and result is None:
        raise typer.BadParameter(
            "--applied needs --result JSON: what the write would have returned, which the run goes on with; "
            "--result null where it returns nothing"
        )
    value = json_value(result) if result is not None else None
    _asked(
        run,
        as_json,
        lambda operator, run_id: operator.resolve(run_id, applied=applied, result=value, key=key, by=somebody(by)),
    )


def _asked(run: str, as_json: bool, verb: Callable[[Client, UUID], Run]) -> None:
    """Do it, and show the run as it is then."""
    settings = found_settings()
    run_id = run_id_of(settings, run)
    with client(settings) as operator:
        moved = verb(operator, run_id)
    if as_json:
        screen.show_json(run_json(moved, payloads=False))
        return
    screen.show(_standing_line(moved))


def _standing_line(run: Run) -> Text:
    """How the run stands now. Its error is what it was before; of that, only what is still to be done is told."""
    line = outcome_line(replace(run, error=None))
    if run.cancel_requested_at and not run.status.final:
        return line.append(", and was asked to end")
    keys = [str(write.get("key")) for write in (run.error or {}).get("in_flight") or ()]
    return line.append(f", and has a write in flight still: {', '.join(keys)}") if keys and run.status.final else line
