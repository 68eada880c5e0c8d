"""`agentrun list|show|timeline|tail|wait`: what is there, and what became of it. Nothing here changes anything."""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Sequence
from datetime import timedelta
from typing import Annotated, Any
from uuid import UUID

import typer

from agentrun.cli import screen
from agentrun.cli.asking import asked_json
from agentrun.cli.base import AllNamespaces, AsJson, Payloads, RunId
from agentrun.cli.desk import client, found_in, found_settings, moment_of, places, run_id_of
from agentrun.cli.doctor import nobody_took
from agentrun.cli.story import event_json, event_line, outcome_line, run_json, step_json, told
from agentrun.cli.timeline import drawn, timeline_json
from agentrun.cli.why import not_taken, standing
from agentrun.cli.words import attributes, duration
from agentrun.client import Client
from agentrun.clients.reading import result_of
from agentrun.core.records import Event, Run
from agentrun.core.timeline import timeline
from agentrun.core.words import EventType, Reason, Status

group = typer.Typer()

PAGE = 1_000
LOOK_SECONDS = 0.5


@group.command("list")
def list_runs(
    status: Annotated[list[Status] | None, typer.Option(help="May be given several times.")] = None,
    kind: Annotated[str | None, typer.Option(help="Of this kind.")] = None,
    reason: Annotated[Reason | None, typer.Option(help="Ended for this reason.")] = None,
    tag: Annotated[str | None, typer.Option(help="With this tag.")] = None,
    attribute: Annotated[
        list[str] | None, typer.Option(metavar="NAME=VALUE", help="With these attributes; VALUE is JSON or text.")
    ] = None,
    owner: Annotated[str | None, typer.Option(help="Belonging to.")] = None,
    parent: Annotated[str | None, typer.Option(metavar="RUN", help="Children of this run.")] = None,
    limit: Annotated[int, typer.Option(help="How many, at most 1000.")] = 50,
    before: Annotated[str | None, typer.Option(metavar="RUN", help="The page after this run.")] = None,
    all_namespaces: AllNamespaces = False,
    as_json: AsJson = False,
) -> None:
    """Runs, newest first."""
    settings = found_settings()
    filters: dict[str, Any] = {
        "status": status,
        "kind": kind,
        "reason": reason,
        "tag": tag,
        "attributes": attributes(attribute or ()),
        "owner": owner,
        "parent": run_id_of(settings, parent) if parent else None,
        "limit": limit,
        "before": run_id_of(settings, before) if before else None,
    }
    runs: list[Run] = []
    for place in places(settings, all_namespaces=all_namespaces):
        with client(place) as reader:
            runs += reader.list(**filters)
    runs = sorted(runs, key=lambda run: run.id, reverse=True)[:limit]
    more = str(runs[-1].id) if len(runs) == limit else None
    if as_json:
        screen.show_json({"runs": [run_json(run, payloads=False) for run in runs], "next": more})
        return
    if not runs:
        screen.remark("no runs")
        return
    columns = (*(("namespace",) if all_namespaces else ()), *_COLUMNS)
    screen.show(screen.table(*columns, rows=_listed(runs, all_namespaces=all_namespaces)))
    if more:
        screen.remark(f"perhaps more: add --before {shlex.quote(more)}")


@group.command("show")
def show(
    run: RunId, payloads: Payloads = False, all_namespaces: AllNamespaces = False, as_json: AsJson = False
) -> None:
    """The whole story of a run: how it stands, why, its events and steps, its error, and what heals it."""
    settings, run_id = found_in(found_settings(), run, all_namespaces=all_namespaces)
    with client(settings) as reader:
        found, steps = reader.status(run_id), reader.steps(run_id)
        events = list(_all_events(reader, run_id))
        waits = reader.waits(run_id) if found.status is Status.WAITING else ()
    moment = moment_of(settings)
    stands = standing(
        found, moment, sweep_seconds=settings.sweep_seconds, steps=steps, said_applied=_said_applied(events)
    )
    if (deaf := nobody_took(settings, found, steps, moment.now)) is not None:
        stands = not_taken(found, deaf, moment)
    if not as_json:
        screen.show(*told(found, stands, events, steps, waits, now=moment.now, payloads=payloads))
        return
    screen.show_json(
        run_json(found, payloads=payloads)
        | {"why": stands.why, "heal": stands.heal}
        | {"events": [event_json(event, payloads=payloads) for event in events]}
        | {"steps": [step_json(step, payloads=payloads) for step in steps]}
        | {"waits": asked_json(waits, payloads=payloads)}
    )


@group.command("timeline")
def show_timeline(
    run: RunId,
    most: Annotated[
        int, typer.Option(min=1, metavar="N", help="Draw the N that took longest; the others together.")
    ] = 40,
    as_json: AsJson = False,
) -> None:
    """Where a run's time went, drawn: queued, executing, waiting, lost; and its steps."""
    settings = found_settings()
    run_id = run_id_of(settings, run)
    with client(settings) as reader:
        found, steps = reader.status(run_id), reader.steps(run_id)
        line = timeline(_all_events(reader, run_id), steps, now=moment_of(settings).now)
    if as_json:
        screen.show_json(timeline_json(found, line))
    else:
        screen.show(*drawn(found, line, most=most))


@group.command("tail")
def tail(
    run: RunId,
    after: Annotated[int, typer.Option(help="Only events later than this seq.")] = -1,
    as_json: AsJson = False,
) -> None:
    """Follow a run's events until it is final. With --json one event a line."""
    settings = found_settings()
    run_id = run_id_of(settings, run)
    with client(settings) as reader:
        for event in _followed(reader, run_id, after):
            screen.show_json(event_json(event, payloads=False)) if as_json else screen.show(event_line(event))
        if not as_json:
            screen.show(outcome_line(reader.status(run_id)))


@group.command("wait")
def wait(
    run: RunId,
    timeout: Annotated[
        timedelta | None,
        typer.Option(parser=duration, metavar="DURATION", help="Wait no longer than this; exit 1 then."),
    ] = None,
    payloads: Payloads = False,
    as_json: AsJson = False,
) -> None:
    """Wait until a run is final; exit 13 where it ended without a result."""
    settings = found_settings()
    run_id = run_id_of(settings, run)
    with client(settings) as reader:
        say_end(reader.wait(run_id, timeout=timeout), payloads=payloads, as_json=as_json)


def say_end(run: Run, *, payloads: bool, as_json: bool) -> None:
    """Show how a run ended. Raises RunFailed where it has no result."""
    if as_json:
        screen.show_json(run_json(run, payloads=payloads))
    elif run.status is Status.COMPLETED:
        screen.show(outcome_line(run))
        if payloads:
            screen.show(screen.pretty(run.result))
    result_of(run)


_COLUMNS = ("run", "kind", "status", "why", "enqueued (UTC)", "owner", "tags")


def _listed(runs: list[Run], *, all_namespaces: bool) -> Iterator[tuple[Any, ...]]:
    for run in runs:
        where = (run.namespace,) if all_namespaces else ()
        why = run.reason if run.status.final and run.status is not Status.COMPLETED else run.waiting_on
        yield *where, run.id, run.kind, screen.status(run.status), why, run.created_at, run.owner, list(run.tags)


def _all_events(reader: Client, run_id: UUID, after: int = -1) -> Iterator[Event]:
    while page := reader.events(run_id, after=after, limit=PAGE):
        yield from page
        after = page[-1].seq


def _said_applied(events: Sequence[Event]) -> set[str]:
    """The keys of the steps of which an operator said that they were applied."""
    resolved = [event.data for event in events if event.type == EventType.RESOLVED]
    return {data["key"] for data in resolved if data.get("applied") is True}


def _followed(reader: Client, run_id: UUID, after: int) -> Iterator[Event]:
    """Events as they come. After the end is seen there is one more look: the last event is committed with it."""
    final = False
    while True:
        for event in _all_events(reader, run_id, after):
            after = event.seq
            yield event
        if final:
            return
        try:
            reader.wait(run_id, timeout=LOOK_SECONDS)
            final = True
        except TimeoutError:
            continue
