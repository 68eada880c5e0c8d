"""`agentrun enqueue`: a run from the shell, as any producer would enqueue it."""

from __future__ import annotations

from datetime import timedelta
from typing import Annotated, Any

import typer

from agentrun.cli import screen
from agentrun.cli.base import AsJson, Payloads
from agentrun.cli.desk import client, found_settings, load_kinds
from agentrun.cli.reading import say_end
from agentrun.cli.words import attributes, duration, json_value

group = typer.Typer()

Wait = Annotated[bool, typer.Option("--wait", help="Wait for the run's end; exit 13 where it has no result.")]
Timeout = Annotated[
    timedelta | None, typer.Option(parser=duration, metavar="DURATION", help="Wait no longer than this; exit 1 then.")
]


@group.command("enqueue")
def enqueue(
    kind: Annotated[str, typer.Argument(metavar="KIND", help="The kind, as @durable or register_agent names it.")],
    request: Annotated[
        Any, typer.Argument(metavar="JSON", parser=json_value, help="The request as JSON; - reads it from stdin.")
    ] = None,
    key: Annotated[
        str | None, typer.Option("--idempotency-key", metavar="KEY", help="The same key is the same run.")
    ] = None,
    queue: Annotated[str | None, typer.Option(help="The queue, where it is not the kind's own.")] = None,
    priority: Annotated[int, typer.Option(help="0 is the most urgent, 9 the least.")] = 0,
    delay: Annotated[
        timedelta | None, typer.Option(parser=duration, metavar="DURATION", help="Start no sooner: 90, 15m, 2d.")
    ] = None,
    deadline: Annotated[
        timedelta | None, typer.Option(parser=duration, metavar="DURATION", help="End by then, whatever happens.")
    ] = None,
    tag: Annotated[list[str] | None, typer.Option(metavar="TAG", help="May be given several times.")] = None,
    attribute: Annotated[
        list[str] | None, typer.Option(metavar="NAME=VALUE", help="May be given several times; VALUE is JSON or text.")
    ] = None,
    owner: Annotated[str | None, typer.Option(help="Whom the run belongs to.")] = None,
    strict: Annotated[
        bool, typer.Option("--strict", help="Where no wake can be sent, settle the run as failed; exit 12.")
    ] = False,
    wait: Wait = False,
    timeout: Timeout = None,
    payloads: Payloads = False,
    as_json: AsJson = False,
) -> None:
    """Store a run and wake a worker; prints the run's id."""
    settings = found_settings()
    load_kinds(settings)
    with client(settings, strict=strict) as producer:
        run_id = producer.enqueue(
            kind,
            request,
            idempotency_key=key,
            queue=queue,
            priority=priority,
            delay=delay,
            deadline=deadline,
            tags=tag or (),
            attributes=attributes(attribute or ()),
            owner=owner,
        )
        if not (wait and as_json):
            screen.show_json({"id": run_id}) if as_json else screen.show(str(run_id))
        if wait:
            say_end(producer.wait(run_id, timeout=timeout), payloads=payloads, as_json=as_json)
